// The parts together, and what is said in words.
let problems = 0;
addEventListener("error", () => { document.documentElement.dataset.errors = ++problems; });
document.documentElement.dataset.errors = 0;

const bands = makeBands();
let chosen = 0, second = 0, secondChosen = false;

function choose(moment, sliding) {
  chosen = snapped(data, moment);
  // Without another choice growth is counted since half of the way.
  if (!secondChosen) second = snapped(data, Math.floor(chosen / 2));
  chart.choose(chosen, data.events ? second : null, sliding);
  const there = map.choose(chosen);
  table.choose(chosen);
  who.choose(chosen, second);
  events.choose(chosen);
  now(there);
}

// The chosen moment in figures.
function now(there) {
  let live = 0, pending = 0;
  for (const block of data.blocks) if (block.from <= chosen && chosen < block.done) { if (chosen < block.freed) live += block.size; else pending += block.size; }
  restAt(data, chosen, (stack, bytes) => { live += bytes; });
  const list = [["Moment", data.events ? (data.times ? duration(timeAt(chosen)) + ", " : "") + "event " + count(chosen) + " of " + count(data.events) : "at the end"], ["Live", size(live)]];
  if (pending) list.push(["Pending", size(pending)]);
  if (data.reserved) {
    const bytes = data.reserved[Math.min(pointOf(chosen), data.points - 1)];
    list.push(["Cached", size(Math.max(0, bytes - live - pending))], ["Reserved", size(bytes)]);
  }
  if (there) {
    list.push(["Largest free range", size(there.free)]);
    byId("map-count").textContent = count(there.blocks.length) + (there.blocks.length === 1 ? " block in " : " blocks in ") + count(there.segments.length) + (there.segments.length === 1 ? " segment" : " segments") + (there.outside ? "; " + count(there.outside) + " where no mapping was recorded" : "");
  } else byId("map-count").textContent = "";
  byId("now").replaceChildren(...list.map(([name, text]) => { const pair = element("div"); pair.append(element("dt", name), element("dd", text)); return pair; }));
  byId("second-text").textContent = data.events ? when(second) : "";
}

function showBlock(block, moment) {
  choose(moment === undefined ? Math.max(block.from, Math.min(chosen, Math.min(block.freed, data.events + 1) - 1)) : moment);
  chart.pin(block);
  pin(block);
  map.keep(block);
}

// The band that was clicked on.
function pin(band) {
  const place = byId("pinned");
  place.hidden = !band;
  if (!band) return;
  const parts = [element("h3", chart.bandText(band, chosen))];
  if (band.from !== undefined) {
    const [said, compiled, pool, tag] = data.labels[band.label];
    const facts = [["size", exact(band.size)], ["asked for", count(band.requested) + " bytes"], ["allocated", when(band.from)], ["lifetime", lifetime(band)], ["stream", streamName(band.stream)],
      ["address", data.addresses ? hex(band.address) : ""], ["category", said || (band.stack ? categoryName(categories[band.stack]) : "unknown")], ["compiled code", compiled], ["pool", pool ? pool.join(", ") : ""], ["tag", tag]];
    const list = element("dl", undefined, "facts");
    for (const [name, text] of facts) if (text) list.append(element("dt", name), element("dd", text));
    parts.push(list, stackList(band.stack));
  } else {
    const sample = data.blocks.find((block) => GROUPS[bands.group()].of(block) === band.key && block.from <= chosen && chosen < block.done);
    parts.push(element("p", "Blocks below a thousandth of the peak, together. " + (sample ? "One of them:" : "")));
    if (sample) parts.push(stackList(sample.stack));
  }
  parts.push(button("Close", () => { chart.pin(null); pin(null); }));
  place.replaceChildren(...parts);
}

const chart = makeChart(choose, pin);
const map = makeMap();
const who = makeWho(showBlock);
const events = makeEvents(choose, showBlock);
const compare = makeCompare();
const table = makeTable(showBlock);

function jumps() {
  const list = [["Peak", data.peak]];
  if (data.reserved) list.push(["Peak reserved", Math.min(highest(data.reserved) * data.step, data.events)]);
  if (data.events) list.push(["Start", 0], ["End", data.events]);
  const last = data.outOfMemory[data.outOfMemory.length - 1];
  if (last) list.push(["Out of memory", Math.max(0, last.moment - 1)]);
  byId("jumps").replaceChildren(...list.map(([text, moment]) => button(text, () => choose(moment))));
}

function notes() {
  const list = [];
  const whole = !data.windows.length || data.windows[0][0] === 0 && data.windows[0][1] >= data.events;
  if (data.step > 1) list.push("A point of the curves stands for " + count(data.step) + " events and shows their highest.");
  if (!whole) {
    list.push("The recording is long: every block and event is listed in its last part, and around each peak and failed allocation (" + data.windows.map(([from, to]) => count(from) + " to " + count(to)).join(", ") + "). Of the rest "
      + "large allocations are listed, and " + count(data.restBlocks) + " others are summed up by call site, every " + count(data.restStep) + " events.");
  }
  if (data.omittedBlocks) list.push(count(data.omittedBlocks) + " of the smallest blocks had no room in this page. The curves and figures count them; tables and map do not.");
  if (data.omittedSegments) list.push(count(data.omittedSegments) + " short-lived segments had no room in this page.");
  byId("notes").replaceChildren(...list.map((text) => element("p", text, "note")));
}

function categoriesTable() {
  byId("category-rows").replaceChildren(...CATEGORIES.map(([name, pattern, words], place) => {
    const tr = document.createElement("tr");
    tr.append(element("td", String(place + 1)), element("td", name), element("td", words));
    tr.title = String(pattern);
    return tr;
  }), (() => { const tr = document.createElement("tr"); tr.append(element("td", ""), element("td", "unknown"), element("td", "none of these, or no stack")); return tr; })());
}

function legends() {
  const group = bands.group(), keys = bands.keys().slice(0, 10);
  const entries = keys.map((key) => { const entry = element("span"), swatch = element("i"); swatch.style.background = bands.colourOfKey(key); entry.append(swatch, GROUPS[group].text(key)); return entry; });
  if (bands.keys().length > 10) entries.push(element("span", "and " + count(bands.keys().length - 10) + " more"));
  byId("chart-legend").replaceChildren(...entries);
  const ofMap = [["pending", "pending: freed, a stream still uses it"], ["cached", "free within a segment"], ["unmapped", "nothing mapped"]];
  legend(byId("map-legend"), ofMap);
  const more = data.reserved ? [["reserved", "reserved"], ["cached", "cached: reserved and not in use"]] : [];
  if (data.waits) more.push(["pending", "hatched: pending"]);
  if (data.outOfMemory.length) more.push(["oom", "out of memory"]);
  more.push(["cursor", "the chosen moment"]);
  const node = element("span", undefined, "legend");
  legend(node, more);
  byId("chart-legend").append(...node.childNodes);
}

function redraw() { forgetColours(); bands.forget(); chart.forget(); legends(); chart.draw(); map.draw(); who.draw(); }
let resizing = 0;
addEventListener("resize", () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(redraw); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
byId("colour-by").addEventListener("change", () => { bands.choose(byId("colour-by").value); pin(null); chart.pin(null); legends(); chart.draw(); map.draw(); who.draw(); });
byId("second-here").addEventListener("click", () => { second = chosen; secondChosen = true; choose(chosen); });
byId("second-start").addEventListener("click", () => { second = 0; secondChosen = true; choose(chosen); });

function showSpace(place, moment) {
  data = space(place);
  secondChosen = false;
  for (const tab of document.querySelectorAll("#tabs button")) tab.setAttribute("aria-selected", Number(tab.dataset.space) === place);
  for (const part of document.querySelectorAll(".of-space")) part.hidden = Number(part.dataset.space) !== place;
  const choice = byId("colour-by");
  for (const option of choice.options) option.hidden = !tells(data, option.value);
  if (choice.selectedOptions[0].hidden) choice.value = "site";
  bands.choose(choice.value);
  pin(null);
  chart.show();
  map.show();
  who.show();
  table.show();
  events.show();
  notes();
  byId("settings-details").hidden = !data.settings.length;
  byId("settings").textContent = data.settings.join("\n");
  jumps();
  legends();
  choose(moment === undefined ? data.peak : moment);
  chart.draw();
  compare.show();
}

for (const tab of document.querySelectorAll("#tabs button")) tab.addEventListener("click", () => showSpace(Number(tab.dataset.space)));
byId("tabs").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  const next = Math.min(Math.max(0, data.place + by), raw.spaces.length - 1);
  showSpace(next);
  document.querySelector("#tabs button[data-space='" + next + "']").focus();
});
byId("tabs").hidden = raw.spaces.length < 2;
categoriesTable();
showSpace(FIRST_SPACE);

// What stands out, of all of them as far as they are quickly looked at.
{
  const letters = raw.spaces.map((it) => it.blocks.length), several = raw.spaces.length > 1, shown = [], rest = [];
  raw.spaces.forEach((it, place) => {
    if (place !== FIRST_SPACE && letters[place] > 4e6) return;
    const back = data;
    data = space(place);
    for (const one of standouts(data, several)) (place === FIRST_SPACE || one.kind === "grows" || one.kind === "oom" ? shown : rest).push({ ...one, place });
    data = back;
  });
  const order = ["oom", "grows", "holes", "most"];
  shown.push(...rest.filter(({ kind }) => kind === "holes"));
  shown.sort((one, other) => order.indexOf(one.kind) - order.indexOf(other.kind));
  byId("standouts").replaceChildren(...shown.map(({ kind, place, site, moment, section, text }) => {
    const item = element("li", undefined, kind), press = button("", () => {
      if (data.place !== place) showSpace(place, moment); else choose(moment);
      if (site !== undefined) who.open(site);
      if (section) byId(section).scrollIntoView({ behavior: "smooth" });
    });
    press.className = "plain";
    press.append(...text);
    item.append(press);
    return item;
  }));
}

// What was drawn, beside what the tool counted: a test compares them.
const drawn = {
  "peak-live": data.live[highest(data.live)], "peak-active": data.active, "out-of-memory": data.outOfMemory.length + data.omittedMarks,
  "peak-reserved": data.reserved ? data.reserved[highest(data.reserved)] : "",
};
if (!data.omittedBlocks && !data.restBlocks) drawn.allocations = data.blocks.filter((block) => block.from > 0).length;
for (const [id, value] of Object.entries(drawn)) {
  const figure = byId(id);
  if (figure) figure.dataset.drawn = value;
}
document.documentElement.dataset.ready = "true";
