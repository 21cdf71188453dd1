// The address map: mapped ranges one after the other, in rows, with their blocks.
function makeMap() {
  const canvas = document.getElementById("map"), readout = document.getElementById("map-readout");
  const fixed = document.getElementById("map-fixed");
  const ROWS = 28, ROW = 17, STEP = 21, LEFT = 150, RIGHT = 16, TOP = 4, LEAST = 4096;
  const hint = readout.textContent;
  let moment = 0, blocks = [], segments = [], ranges = [], total = 0, ever = [];
  let view = null, kept = null;

  function show() {
    // Mapped at any time: neighbours are one range.
    ever = data.addresses ? withBlocks(data.segmentsByAddress, data.byAddress) : [];
    const reserved = data.reserved ? data.reserved[highest(data.reserved)] : 0;
    fixed.checked = ever.reduce((sum, range) => sum + range.size, 0) <= 2 * reserved;
    view = kept = null;
    for (const part of document.querySelectorAll("#map, #map-help, #map-legend, #map-section .bar")) part.style.display = data.addresses ? "" : "none";
    readout.textContent = data.addresses ? hint : "This recording has no addresses: a trace holds sizes and streams. A replay of it gives them: cargo xtask replay TRACE --calls FILE, then cargo xtask report TRACE --calls FILE -o PAGE.";
  }

  function merge(list) {
    const merged = [];
    for (const { address, size } of list) {
      const last = merged[merged.length - 1];
      if (last && address <= last.address + last.size) last.size = Math.max(last.size, address + size - last.address);
      else merged.push({ address, size });
    }
    return merged;
  }

  // A recording may lack mappings: blocks outside of those that it has make ranges of their own, so that each has its place.
  function withBlocks(segments, blocks) {
    return merge(segments.concat(blocks).sort((one, other) => one.address - other.address));
  }

  function layout() {
    ranges = fixed.checked ? ever : withBlocks(segments, blocks);
    total = 0;
    for (const range of ranges) { range.start = total; total += range.size; }
  }

  const rowBytes = (span) => 2 ** Math.ceil(Math.log2(Math.max(span / ROWS, LEAST)));

  // The range that an address, or a place in the row of ranges, is in.
  function find(value, key) {
    let low = 0, high = ranges.length - 1;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (ranges[middle][key] <= value) low = middle; else high = middle - 1;
    }
    return ranges[low];
  }
  const placeOf = (address) => { const range = find(address, "address"); return range.start + address - range.address; };
  const addressAt = (place) => { const range = find(place, "start"); return Math.floor(range.address + place - range.start); };

  function current() {
    const row = view ? view.row : rowBytes(total), most = Math.max(0, Math.ceil(total / row) - ROWS) * row;
    return { row, from: view ? Math.min(Math.max(0, view.from), most) : 0 };
  }

  function draw() {
    if (!data.addresses) return;
    const { row, from } = current();
    const rows = Math.max(1, Math.min(ROWS, Math.ceil((total - from) / row)));
    const { pen, width } = prepare(canvas, TOP + rows * STEP + 26);
    const plot = width - LEFT - RIGHT, fill = fills(pen);
    // The pieces of a range of places, a row each.
    const pieces = (start, length, paint) => {
      let low = Math.max(start, from);
      const high = Math.min(start + length, from + rows * row);
      while (low < high) {
        const line = Math.floor((low - from) / row), stop = Math.min(high, from + (line + 1) * row);
        paint(LEFT + (low - from - line * row) / row * plot, TOP + line * STEP, (stop - low) / row * plot, low === start);
        low = stop;
      }
    };
    pen.fillStyle = pen.strokeStyle = colour("grid");
    pieces(0, total, (x, y, w) => pen.strokeRect(x + 0.5, y + 0.5, Math.max(1, w - 1), ROW - 1));
    pen.fillStyle = fill.cached;
    for (const segment of segments) pieces(placeOf(segment.address), segment.size, (x, y, w) => pen.fillRect(x, y, Math.max(w, 0.5), ROW));
    // What is pending may be lent to its own stream already: what is live lies on top.
    for (const live of [false, true]) {
      for (const block of blocks) {
        if ((moment < block.freed) !== live) continue;
        pen.fillStyle = live ? bands.colourOf(block) : fill.pending;
        // A gap between blocks, where there is room to see one.
        pieces(placeOf(block.address), block.size, (x, y, w) => pen.fillRect(x, y + 1, w > 3 ? w - 1 : Math.max(w, 0.6), ROW - 2));
      }
    }
    pen.fillStyle = colour("edge");
    for (const segment of segments) {
      // Strokes that would touch each other tell nothing.
      const wide = segment.size / row * plot > 4;
      pieces(placeOf(segment.address), 1, (x, y, w, first) => first && wide && pen.fillRect(x - 0.75, y - 1, 1.5, ROW + 2));
    }
    if (kept) {
      pen.strokeStyle = colour("cursor");
      pen.lineWidth = 2.5;
      pieces(placeOf(kept.address), kept.size, (x, y, w) => pen.strokeRect(x - 1, y - 1, Math.max(w, 2) + 2, ROW + 2));
    }
    scale(pen, rows, row, from, plot);
    canvas.setAttribute("aria-label", "Address map: " + count(blocks.length) + " blocks in " + count(segments.length) + " segments. " + readout.textContent);
  }

  function scale(pen, rows, row, from, plot) {
    pen.fillStyle = colour("soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let line = 0; line < rows && total > 0; line++) pen.fillText(hex(addressAt(from + line * row)), LEFT - 10, TOP + line * STEP + ROW / 2);
    const bottom = TOP + rows * STEP;
    pen.strokeStyle = colour("soft");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(LEFT + 0.5, bottom); pen.lineTo(LEFT + 0.5, bottom + 8);
    pen.moveTo(LEFT + 0.5, bottom + 4); pen.lineTo(LEFT + plot - 0.5, bottom + 4);
    pen.moveTo(LEFT + plot - 0.5, bottom); pen.lineTo(LEFT + plot - 0.5, bottom + 8);
    pen.stroke();
    pen.textAlign = "center";
    pen.fillText("each row: " + size(row).replace(/\.0+ /, " ") + " of addresses", LEFT + plot / 2, bottom + 17);
  }

  function under(event) {
    const { row, from } = current();
    const line = Math.floor((event.offsetY - TOP) / STEP), share = (event.offsetX - LEFT) / (canvas.clientWidth - LEFT - RIGHT);
    const place = from + (line + share) * row;
    if (share < 0 || share >= 1 || line < 0 || place >= total || place < 0) return null;
    const address = addressAt(place);
    const here = (item) => item.address <= address && address < item.address + item.size;
    const found = blocks.filter(here);
    // Within a pixel there may be smaller ones: the nearest is better than none.
    return { block: found.find((block) => moment < block.freed) || found[0] || null, segment: segments.find(here) || null, address };
  }

  function tell(spot) {
    if (!spot) { readout.textContent = kept ? describe(kept) : hint; return; }
    if (spot.block) readout.textContent = describe(spot.block);
    else if (spot.segment) readout.textContent = hex(spot.address) + ": free, " + size(gap(spot)) + " in one piece, within a segment of " + exact(spot.segment.size) + inStream(spot.segment);
    else readout.textContent = hex(spot.address) + ": nothing is mapped here at this moment";
  }

  // The free range around an address.
  function gap({ segment, address }) {
    let low = segment.address, high = segment.address + segment.size;
    for (const block of blocks) {
      if (block.address + block.size <= address) low = Math.max(low, block.address + block.size);
      else if (block.address > address) high = Math.min(high, block.address);
    }
    return high - low;
  }

  const inStream = (item) => ", stream " + streamName(item.stream);
  function describe(block) {
    const asked = block.requested === block.size ? "" : ", asked for " + count(block.requested) + " bytes";
    const state = moment < block.freed ? "live" : "pending: freed, and a stream still uses it";
    const by = block.stack ? ", by " + siteText(sites[siteOf(block)]) : "";
    return hex(block.address) + ": " + state + ", " + exact(block.size) + asked + inStream(block) + ", allocated: " + when(block.from) + ", lifetime " + lifetime(block) + by;
  }

  function step(by) {
    if (!blocks.length) return;
    const at = blocks.indexOf(kept);
    keep(blocks[at < 0 ? (by > 0 ? 0 : blocks.length - 1) : Math.min(Math.max(0, at + by), blocks.length - 1)]);
    const { row, from } = current(), place = placeOf(kept.address);
    if (place < from || place >= from + ROWS * row) { view = { row, from: Math.floor(place / row) * row }; draw(); }
  }
  function keep(block) { kept = block; tell(null); draw(); }

  function zoom(factor) {
    const { row, from } = current(), wanted = Math.max(LEAST, row * factor);
    const middle = kept ? placeOf(kept.address) : from + Math.min(total - from, ROWS * row) / 2;
    if (wanted >= rowBytes(total)) view = null;
    else view = { row: wanted, from: Math.floor((middle - ROWS * wanted / 2) / wanted) * wanted };
    draw();
  }
  function move(share) { const { row, from } = current(); view = { row, from: from + Math.round(share * ROWS) * row }; draw(); }
  const all = () => { view = null; draw(); };

  canvas.addEventListener("pointermove", (event) => tell(under(event)));
  canvas.addEventListener("pointerleave", () => tell(null));
  canvas.addEventListener("click", (event) => { const spot = under(event); keep(spot ? spot.block : null); });
  canvas.addEventListener("keydown", (event) => {
    const keys = {
      ArrowLeft: () => step(-1), ArrowRight: () => step(1), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
      PageUp: () => move(-0.5), PageDown: () => move(0.5), 0: all, Escape: () => keep(null),
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
  });
  const press = (id, action) => document.getElementById(id).addEventListener("click", action);
  press("map-in", () => zoom(0.5));
  press("map-out", () => zoom(2));
  press("map-back", () => move(-0.5));
  press("map-on", () => move(0.5));
  press("map-all", all);
  fixed.addEventListener("change", () => { layout(); all(); });
  return {
    draw, show,
    choose(at) {
      moment = at;
      if (!data.addresses) return null;
      blocks = blocksAt(data, moment);
      segments = segmentsAt(data, moment);
      if (kept && !blocks.includes(kept)) kept = null;
      layout();
      tell(null);
      draw();
      return { blocks, segments, outside: outside(), free: largestGap() };
    },
    keep(block) { view = null; keep(block); },
  };

  // Blocks that are not all within what is known to be mapped.
  function outside() {
    const mapped = merge(segments);
    let found = 0, at = 0;
    for (const block of blocks) {
      while (at < mapped.length && mapped[at].address + mapped[at].size <= block.address) at++;
      const range = mapped[at];
      if (!range || block.address < range.address || range.address + range.size < block.address + block.size) found++;
    }
    return found;
  }

  // The largest free range within a segment.
  function largestGap() {
    let best = 0, at = 0;
    for (const segment of merge(segments)) {
      let low = segment.address;
      const end = segment.address + segment.size;
      while (at < blocks.length && blocks[at].address < end) {
        best = Math.max(best, blocks[at].address - low);
        low = Math.max(low, blocks[at].address + blocks[at].size);
        at++;
      }
      best = Math.max(best, end - low);
    }
    return best;
  }
}
