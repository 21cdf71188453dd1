// Who holds the memory at the chosen moment: a table by call site or another group, and a flame graph of the stacks.
function makeWho(onShow) {
  const body = byId("who-rows"), search = byId("who-search"), choice = byId("who-group"), flame = byId("flame"), readout = byId("flame-readout");
  const FIRST = 12, MORE = 200;
  let moment = 0, since = 0, order = "bytes", down = true, shown = FIRST, rows = [], open = null;

  function gather() {
    const group = choice.value, now = holders(data, moment, group), before = holders(data, since, group);
    const keys = new Set([...now.keys(), ...before.keys()]), none = { bytes: 0, blocks: 0 };
    rows = [...keys].map((key) => {
      const held = now.get(key) || none, was = before.get(key) || none;
      return { key, bytes: held.bytes, blocks: held.blocks, growth: held.bytes - was.bytes, more: held.blocks - was.blocks, text: GROUPS[group].text(key), grows: group === "site" && growth(data, key) };
    });
  }

  const matches = (row) => {
    const wanted = search.value.trim().toLowerCase();
    if (!wanted) return true;
    if (row.text.toLowerCase().includes(wanted)) return true;
    return choice.value === "site" && sites[row.key].stacks.some((stack) => framesOf(stack).some((frame) => frameText(frame).toLowerCase().includes(wanted)));
  };

  function draw() {
    const found = rows.filter(matches), by = { name: (row) => row.text, bytes: (row) => row.bytes, blocks: (row) => row.blocks, growth: (row) => row.growth }[order];
    found.sort((one, other) => { const a = by(one), b = by(other); return (a < b ? -1 : a > b ? 1 : other.bytes - one.bytes) * (down ? -1 : 1); });
    const total = rows.reduce((sum, row) => sum + row.bytes, 0), of = (key) => found.reduce((sum, row) => sum + row[key], 0);
    body.replaceChildren(...found.slice(0, shown).flatMap((row) => choice.value === "site" && open === row.key ? [line(row, total), opened(row.key)] : [line(row, total)]));
    const foot = byId("who-total");
    foot.replaceChildren(...["", found.length === rows.length ? "all " + count(rows.length) : count(found.length) + " of " + count(rows.length), size(of("bytes")), total ? Math.round(100 * of("bytes") / total) + " %" : "", count(of("blocks")), signed(of("growth")), ""].map((text) => element("td", text)));
    byId("who-more").hidden = found.length <= shown;
    byId("who-more").textContent = "Show " + count(Math.min(MORE, found.length - shown)) + " more of " + count(found.length - shown);
    for (const head of document.querySelectorAll("#who-head button")) head.parentElement.setAttribute("aria-sort", head.dataset.order !== order ? "none" : down ? "descending" : "ascending");
    byId("who-table").dataset.total = total;
    drawFlame();
  }

  function line(row, total) {
    const group = choice.value, tr = document.createElement("tr"), add = (content, style) => { const cell = element("td", content, style); tr.append(cell); return cell; };
    const swatch = add("", "swatch");
    const box = element("span");
    box.style.background = bands.group() === group ? bands.colourOfKey(row.key) : "transparent";
    swatch.append(box);
    const name = add("", "name");
    if (group === "site") {
      const press = button("", () => { open = open === row.key ? null : row.key; draw(); });
      press.className = "plain";
      press.setAttribute("aria-expanded", open === row.key);
      press.append(siteNode(sites[row.key]));
      name.append(press);
      if (row.grows) name.append(" ", element("span", "growing", "growing"));
    } else name.append(row.text);
    add(size(row.bytes)).title = count(row.bytes) + " bytes";
    add(total ? (100 * row.bytes / total).toFixed(row.bytes < total / 10 ? 1 : 0) + " %" : "");
    add(count(row.blocks));
    const change = add(row.growth ? signed(row.growth) : "same", row.growth > 0 ? "up" : "");
    change.title = (row.more > 0 ? "+" : "") + count(row.more) + " blocks since the second moment";
    const trend = add("", "trend");
    if (group === "site" && data.events) trend.append(spark(row.key));
    tr.dataset.bytes = row.bytes;
    tr.dataset.blocks = row.blocks;
    tr.dataset.site = row.text;
    return tr;
  }

  function opened(key) {
    const tr = document.createElement("tr"), cell = element("td", details(key), "opened");
    cell.colSpan = 7;
    tr.append(cell);
    return tr;
  }

  // The stacks of a site that hold something now, with their blocks.
  function details(key) {
    const sums = new Map();
    const add = (stack, bytes, blocks) => { const sum = sums.get(stack) || { bytes: 0, blocks: 0, first: null }; sum.bytes += bytes; sum.blocks += blocks; sums.set(stack, sum); return sum; };
    for (const block of data.blocks) if (siteOf(block) === key && block.from <= moment && moment < block.done) { const sum = add(block.stack, block.size, 1); if (!sum.first) sum.first = block; }
    restAt(data, moment, (stack, bytes, blocks) => { if (siteOfStack[stack] === key) add(stack, bytes, blocks); });
    const node = element("div", undefined, "details"), list = [...sums].sort((one, other) => other[1].bytes - one[1].bytes);
    if (!list.length) node.append(element("p", "Nothing of it is held at this moment."));
    for (const [stack, { bytes, blocks, first }] of list.slice(0, 5)) {
      const head = element("p", size(bytes) + " in " + count(blocks) + (blocks === 1 ? " block" : " blocks") + (categories[stack] === UNKNOWN ? "" : ", " + categoryName(categories[stack])));
      if (first) head.append(" ", button("show the first", () => onShow(first)));
      node.append(head, stackList(stack));
    }
    if (list.length > 5) node.append(element("p", "and " + (list.length - 5) + " other stacks"));
    return node;
  }

  function spark(key) {
    const canvas = element("canvas"), list = samplesOf(data).get(key), scale = window.devicePixelRatio || 1, width = 90, height = 20;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.setAttribute("aria-hidden", "true");
    if (!list) return canvas;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const top = list.slice(0, SAMPLES + 1).reduce((one, other) => Math.max(one, other), 1);
    pen.beginPath();
    pen.moveTo(0, height);
    for (let i = 0; i <= SAMPLES; i++) pen.lineTo(i / SAMPLES * width, height - 1 - list[i] / top * (height - 3));
    pen.lineTo(width, height);
    pen.fillStyle = colour("spark");
    pen.fill();
    pen.fillStyle = colour("cursor");
    pen.fillRect(moment / Math.max(1, data.events) * width - 0.5, 0, 1, height);
    return canvas;
  }

  // The flame graph: the outermost frames on top, each as wide as the bytes below it.
  let tree = null, root = null, boxes = [];
  function grow() {
    tree = { frame: -1, bytes: 0, blocks: 0, kids: new Map(), up: null };
    const add = (stack, bytes, blocks) => {
      let node = tree;
      node.bytes += bytes;
      node.blocks += blocks;
      const frames = stack ? raw.stacks[stack - 1] : [];
      for (let i = frames.length - 1; i >= -1 && (i >= 0 || !frames.length); i--) {
        const frame = i >= 0 ? frames[i] : -2;
        let kid = node.kids.get(frame);
        if (!kid) node.kids.set(frame, kid = { frame, bytes: 0, blocks: 0, kids: new Map(), up: node });
        kid.bytes += bytes;
        kid.blocks += blocks;
        node = kid;
      }
    };
    const sums = new Map();
    for (const block of data.blocks) if (block.from <= moment && moment < block.done) { const sum = sums.get(block.stack) || [0, 0]; sum[0] += block.size; sum[1]++; sums.set(block.stack, sum); }
    restAt(data, moment, (stack, bytes, blocks) => { const sum = sums.get(stack) || [0, 0]; sum[0] += bytes; sum[1] += blocks; sums.set(stack, sum); });
    for (const [stack, [bytes, blocks]] of sums) add(stack, bytes, blocks);
    root = tree;
  }

  const nodeText = (node) => node.frame === -1 ? "all" : node.frame === -2 ? "stack not recorded" : frameText(raw.frames[node.frame]);
  const ROW = 19;
  function drawFlame() {
    if (!root) return;
    const above = [];
    for (let node = root.up; node; node = node.up) above.unshift(node);
    const deep = (node, width) => width < 2 ? 0 : 1 + Math.max(0, ...[...node.kids.values()].map((kid) => deep(kid, width * kid.bytes / (node.bytes || 1))));
    const wide = flame.clientWidth || 600, rows = above.length + Math.min(60, deep(root, wide));
    const { pen, width } = prepare(flame, Math.max(2, rows) * ROW + 2);
    boxes = [];
    const box = (node, x, y, w, faded) => {
      boxes.push({ node, x, y, w });
      const kind = node.frame >= 0 ? frameKinds[node.frame] : "none";
      pen.fillStyle = colour("flame-" + kind);
      pen.globalAlpha = faded ? 0.5 : 1;
      pen.fillRect(x, y, Math.max(0.5, w - 1), ROW - 1);
      pen.globalAlpha = 1;
      if (w < 34) return;
      pen.save();
      pen.beginPath();
      pen.rect(x, y, w - 4, ROW);
      pen.clip();
      pen.fillStyle = colour(kind === "user" ? "flame-text-user" : "text");
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      const frame = node.frame >= 0 ? raw.frames[node.frame] : null;
      pen.fillText(frame ? (frame[2] > 0 ? baseName(frame[1]) + ":" + frame[2] + " " : "") + frame[0] : nodeText(node) + " " + size(node.bytes), x + 4, y + ROW / 2);
      pen.restore();
    };
    above.forEach((node, i) => box(node, 0, i * ROW, width, true));
    const place = (node, x, w, row) => {
      if (row >= rows) return;
      box(node, x, row * ROW, w, false);
      let at = x;
      for (const kid of [...node.kids.values()].sort((one, other) => other.bytes - one.bytes)) {
        const part = w * kid.bytes / (node.bytes || 1);
        if (part >= 0.5) place(kid, at, part, row + 1);
        at += part;
      }
    };
    place(root, 0, width, above.length);
    flame.setAttribute("aria-label", "Flame graph of " + size(tree.bytes) + " by call stack");
  }
  const hit = (event) => boxes.findLast((box) => box.x <= event.offsetX && event.offsetX < box.x + box.w && box.y <= event.offsetY && event.offsetY < box.y + ROW);
  const HINT = readout.textContent;
  flame.addEventListener("pointermove", (event) => {
    const box = hit(event);
    readout.textContent = box ? size(box.node.bytes) + " in " + count(box.node.blocks) + (box.node.blocks === 1 ? " block" : " blocks") + ": " + nodeText(box.node) : HINT;
  });
  flame.addEventListener("pointerleave", () => { readout.textContent = HINT; });
  const into = (node) => { root = node; drawFlame(); byId("flame-all").hidden = root === tree; };
  flame.addEventListener("click", (event) => { const box = hit(event); if (box) into(box.node); });
  flame.addEventListener("keydown", (event) => {
    const widest = [...root.kids.values()].sort((one, other) => other.bytes - one.bytes), beside = root.up ? [...root.up.kids.values()].sort((one, other) => other.bytes - one.bytes) : [root];
    const next = (by) => beside[Math.min(Math.max(0, beside.indexOf(root) + by), beside.length - 1)];
    const keys = { ArrowDown: () => widest[0], ArrowUp: () => root.up, ArrowLeft: () => next(-1), ArrowRight: () => next(1), Escape: () => tree, 0: () => tree };
    if (!keys[event.key]) return;
    event.preventDefault();
    into(keys[event.key]() || root);
    readout.textContent = size(root.bytes) + ": " + nodeText(root);
  });
  byId("flame-all").addEventListener("click", () => into(tree));

  search.addEventListener("input", () => { shown = FIRST; draw(); });
  choice.addEventListener("change", () => { open = null; shown = FIRST; gather(); draw(); });
  byId("who-more").addEventListener("click", () => { shown += MORE; draw(); });
  for (const head of document.querySelectorAll("#who-head button")) {
    head.addEventListener("click", () => { if (order === head.dataset.order) down = !down; else { order = head.dataset.order; down = order !== "name"; } draw(); });
  }

  return {
    draw,
    show() {
      open = null;
      shown = FIRST;
      for (const option of choice.options) option.hidden = !tells(data, option.value);
    },
    choose(at, from) { moment = at; since = from; gather(); grow(); byId("flame-all").hidden = true; draw(); },
    open(key) { choice.value = "site"; search.value = ""; open = key; gather(); shown = FIRST; const at = rows.sort((one, other) => other.bytes - one.bytes).findIndex((row) => row.key === key); shown = Math.max(FIRST, at + 1); order = "bytes"; down = true; draw(); },
    total: () => rows.reduce((sum, row) => sum + row.bytes, 0),
  };
}

// What stands out, in a sentence each, of all devices: sites that grow, memory that cannot go back, failed allocations.
// What was free when an allocation failed, where it is listed.
function roomFor(it, { moment }) {
  const before = Math.max(0, moment - 1);
  if (!it.addresses || !inWindow(it, before)) return "";
  const sizes = freeRanges(it, before).map((range) => range.size), total = sizes.reduce((sum, bytes) => sum + bytes, 0);
  return total ? "; " + size(total) + " were free in " + count(sizes.length) + (sizes.length === 1 ? " piece" : " pieces, the largest " + size(sizes.reduce((one, other) => Math.max(one, other)))) : "; nothing was free";
}

function standouts(it, several) {
  const list = [], where = several ? it.name + ": " : "", peak = it.peak, now = holders(it, it.events, "site");
  const grown = [...samplesOf(it).keys()].map((site) => ({ site, by: growth(it, site) })).filter(({ by }) => by !== null && by >= it.active / 1000);
  grown.sort((one, other) => other.by - one.by);
  for (const { site } of grown.slice(0, 5)) {
    const held = now.get(site) || { bytes: 0, blocks: 0 };
    list.push({ kind: "grows", site, moment: it.events, text: [where, siteNode(sites[site]), " keeps growing: " + count(held.blocks) + (held.blocks === 1 ? " block, " : " blocks, ") + size(held.bytes) + " at the end"] });
  }
  if (grown.length > 5) list.push({ kind: "grows", moment: it.events, text: [where, "and " + (grown.length - 5) + " other call sites grow"] });
  if (it.outOfMemory.length) {
    const last = it.outOfMemory[it.outOfMemory.length - 1], site = siteOfStack[last.stack];
    list.push({ kind: "oom", moment: last.moment, section: "events-title", text: [where, "Out of memory " + (it.outOfMemory.length === 1 ? "once" : count(it.outOfMemory.length + it.omittedMarks) + " times") + ": ", siteNode(sites[site]), " asked for " + size(last.requested) + roomFor(it, last)] });
  }
  if (it.reserved) {
    const point = highest(it.reserved), moment = snapped(it, Math.min(point * it.step, it.events)), { held, largest, pieces, list: beside } = besideFree(it, moment);
    if (held > 0.12 * it.reserved[point] && held > 4 << 20 && beside.length) {
      const names = beside.slice(0, 3).filter(({ bytes }) => bytes > held / 10).flatMap(({ site, bytes }, i) => [i ? ", " : "", siteNode(sites[site]), " (" + size(bytes) + ")"]);
      list.push({ kind: "holes", site: beside[0].site, moment, section: "map-title", text: [where, "Fragmented: " + size(held) + " of " + size(it.reserved[point]) + " reserved are free between blocks in " + count(pieces) + " pieces, the largest " + size(largest) + ". Beside them: ", ...names] });
    }
  }
  const top = [...holders(it, snapped(it, peak), "site")].sort((one, other) => other[1].bytes - one[1].bytes)[0];
  if (top) list.push({ kind: "most", site: top[0], moment: peak, text: [where, it.events ? "Most at the peak: " : "Most: ", siteNode(sites[top[0]]), ", " + size(top[1].bytes) + " in " + count(top[1].blocks) + (top[1].blocks === 1 ? " block" : " blocks")] });
  return list;
}
