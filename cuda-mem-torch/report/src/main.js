// The parts together, and what is said in words.
let problems = 0;
addEventListener("error", () => { document.documentElement.dataset.errors = ++problems; });
document.documentElement.dataset.errors = 0;

const slider = document.getElementById("moment");
slider.max = data.points - 1;

function moments(point) {
  const event = "event " + count(momentOf(point)), of = "of " + count(data.events) + " " + data.what;
  return data.times ? [duration(data.times[point]), event + " " + of] : [event, of];
}

function choose(point) {
  point = Math.min(Math.max(0, Math.round(point)), data.points - 1);
  slider.value = point;
  slider.setAttribute("aria-valuetext", chart.words(point));
  chart.choose(point);
  const there = map.choose(point);
  table.choose(point);
  const live = data.live[point], pending = data.pending[point];
  const cards = [
    card("Moment", ...moments(point)), card("Live", size(live), count(live) + " bytes"),
  ];
  if (pending) cards.push(card("Pending", size(pending), "freed, still in use by a stream"));
  if (data.reserved) {
    const bytes = data.reserved[point];
    cards.push(card("Cached", size(Math.max(0, bytes - live - pending)), "reserved, and not in use"), card("Reserved", size(bytes), count(bytes) + " bytes"));
  }
  for (const event of data.outOfMemory.filter((event) => pointOf(event.moment) === point).slice(0, 3)) {
    cards.push(card("✕ Out of memory", size(event.requested), "asked for" + (event.free === null ? "" : "; the device had " + size(event.free) + " left")));
  }
  if (there) {
    const pieces = there.segments.length === 1 ? "segment" : "segments";
    const outside = there.outside ? "; " + count(there.outside) + " where no mapping was recorded" : "";
    cards.push(card("Blocks", count(there.blocks.length), "in " + count(there.segments.length) + " " + pieces + outside));
    cards.push(card("Largest free range", size(there.free), "what fits without new memory"));
  }
  document.getElementById("now").replaceChildren(...cards);
}

const chart = makeChart(choose);
const map = makeMap();
const table = makeTable((block) => {
  choose(pointOf(block.from));
  if (data.addresses) map.keep(block);
  document.getElementById("moment-title").scrollIntoView();
});

// What this file leaves out.
const limits = [];
if (data.step > 1) limits.push("The recording is long: a point of the curves stands for " + data.step + " events and shows the highest of them.");
if (raw.omittedBlocks) limits.push("The " + count(raw.omittedBlocks) + " smallest blocks are neither in the map nor in the table of this file; the curves and figures count them.");
if (raw.omittedSegments) limits.push("The " + count(raw.omittedSegments) + " shortest-lived mappings are not in the map of this file; the curves and figures count them.");
if (raw.omittedMarks) limits.push("The chart marks the first " + count(data.outOfMemory.length) + " failed allocations, not the " + count(raw.omittedMarks) + " after them.");
document.querySelector("dl.cards").after(...limits.map((text) => {
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = text;
  return note;
}));

// Buttons for the moments worth a look.
const peak = highest(data.live);
const jumps = [["Peak live", peak]];
if (data.reserved) jumps.push(["Peak reserved", highest(data.reserved)]);
data.outOfMemory.slice(0, 5).forEach((event, place) => jumps.push(["Out of memory " + (place + 1), pointOf(event.moment)]));
jumps.push(["The end", data.points - 1]);
document.getElementById("jumps").append(...jumps.flatMap(([name, point]) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.addEventListener("click", () => choose(point));
  return [button, " "];
}));
slider.addEventListener("input", () => choose(Number(slider.value)));

function legends() {
  const pending = data.pending.some((bytes) => bytes > 0);
  const entries = [["live", "live: in use by the program"]];
  if (pending) entries.push(["pending", "pending: freed, still in use by a stream"]);
  const ofMap = entries.slice();
  if (data.reserved) entries.push(["cached", "cached: reserved and not in use"], ["reserved", "reserved: taken from the device"]);
  if (data.references.length) entries.push(["reference", "most that another allocator reserved for the same work"]);
  if (data.outOfMemory.length) entries.push(["oom", "out of memory"]);
  entries.push(["cursor", "the chosen moment"]);
  legend(document.getElementById("chart-legend"), entries);
  ofMap.push(["cached", "free within a segment"], ["unmapped", "nothing mapped"]);
  legend(document.getElementById("map-legend"), ofMap);
}

function redraw() { legends(); chart.draw(); map.draw(); }
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
legends();
choose(peak);

// What was drawn, beside what the tool counted: a test compares them.
let active = 0;
for (let i = 0; i < data.points; i++) active = Math.max(active, data.live[i] + data.pending[i]);
const drawn = {
  "peak-live": data.live[peak], "peak-active": active, "out-of-memory": data.outOfMemory.length + raw.omittedMarks,
  "peak-reserved": data.reserved ? data.reserved[highest(data.reserved)] : "",
};
if (!raw.omittedBlocks) drawn.allocations = data.blocks.filter((block) => block.from > 0).length;
for (const [id, value] of Object.entries(drawn)) {
  const element = document.getElementById(id);
  if (element) element.dataset.drawn = value;
}
document.documentElement.dataset.ready = "true";
