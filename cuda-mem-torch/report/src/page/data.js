// What this file carries, as arrays.
const raw = JSON.parse(document.getElementById("data").textContent);

// Reads the numbers that the tool packed: seven bits a byte, the lowest first.
function reader(text) {
  const letters = atob(text);
  let at = 0;
  const number = () => {
    let value = 0, scale = 1, byte;
    do {
      byte = letters.charCodeAt(at++);
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    return value;
  };
  return {
    more: () => at < letters.length,
    number,
    difference: () => { const way = number(); return way % 2 ? -(way + 1) / 2 : way / 2; },
  };
}

function curve(text) {
  const values = [], read = reader(text);
  for (let value = 0; read.more();) values.push(value += read.difference());
  return Float64Array.from(values);
}

const NEVER = Infinity;

function readBlocks(text, streams) {
  const blocks = [], read = reader(text);
  let from = 0, address = 0;
  while (read.more()) {
    from += read.difference();
    const freed = read.number(), toFreed = freed ? from + freed - 1 : NEVER;
    const done = freed ? read.number() : 0, toDone = done ? toFreed + done - 1 : NEVER;
    const size = read.number(), requested = size + read.difference();
    const stream = streams[read.number()], stack = read.number(), label = read.number();
    address += read.difference();
    blocks.push({ from, freed: toFreed, done: toDone, size, requested, stream, stack, label, address });
  }
  return blocks;
}

function readSegments(text, streams) {
  const segments = [], read = reader(text);
  let from = 0, address = 0;
  while (read.more()) {
    from += read.difference();
    const until = read.number(), to = until ? from + until - 1 : NEVER;
    const size = read.number(), owner = read.number(), stream = streams[Math.floor(owner / 2)];
    address += read.difference();
    segments.push({ from, to, size, stream, grows: owner % 2 === 1, address });
  }
  return segments;
}

// What is not listed block by block: for each stack the columns at which it changes, and its bytes and blocks from there on.
function readRest(text) {
  const rest = [], read = reader(text);
  while (read.more()) {
    const stack = read.number(), columns = [], bytes = [], counts = [];
    let column = 0, sum = 0, many = 0;
    for (let left = read.number(); left > 0; left--) {
      columns.push(column += read.number());
      bytes.push(sum += read.difference());
      counts.push(many += read.difference());
    }
    rest.push({ stack, columns, bytes, counts });
  }
  return rest;
}

// One device, pinned host memory, or a trace, as far as it was looked at.
const loaded = [];
function space(place) {
  if (loaded[place]) return loaded[place];
  const it = raw.spaces[place];
  const full = {
    place, name: it.name, what: it.what, events: it.events, step: it.step, addresses: it.addresses, peak: it.peak,
    live: curve(it.live), pending: curve(it.pending), reserved: it.reserved === null ? null : curve(it.reserved),
    times: it.times === null ? null : curve(it.times),
    blocks: readBlocks(it.blocks, it.streams), segments: readSegments(it.segments, it.streams), labels: it.labels, streams: it.streams,
    windows: it.windows, rest: readRest(it.rest), restStep: it.restStep, restBlocks: it.restBlocks,
    omittedBlocks: it.omittedBlocks, omittedSegments: it.omittedSegments, omittedMarks: it.omittedMarks,
    outOfMemory: it.outOfMemory.map(([moment, requested, free, stack, stream]) => ({ moment, requested, free, stack, stream })),
    references: it.references.map(([name, bytes]) => ({ name, bytes })), annotations: it.annotations, settings: it.settings,
  };
  full.points = full.live.length;
  let highest = 1, active = 0;
  for (let i = 0; i < full.points; i++) {
    active = Math.max(active, full.live[i] + full.pending[i]);
    highest = Math.max(highest, full.live[i] + full.pending[i], full.reserved ? full.reserved[i] : 0);
  }
  // What is done right behind its request is not worth a mark.
  full.waits = full.blocks.some((block) => block.done > block.freed + 1 && block.freed !== NEVER);
  full.active = active;
  full.highest = highest;
  full.byAddress = full.blocks.slice().sort((one, other) => one.address - other.address || one.from - other.from);
  full.segmentsByAddress = full.segments.slice().sort((one, other) => one.address - other.address);
  return loaded[place] = full;
}

// The one that is shown.
let data = null;

const pointOf = (moment) => Math.ceil(moment / data.step);
const inWindow = (it, moment) => it.windows.some(([from, to]) => from <= moment && moment <= to);
// Where not every block is listed, sums are known at some moments only.
function snapped(it, moment) {
  moment = Math.min(Math.max(0, Math.round(moment)), it.events);
  return inWindow(it, moment) ? moment : Math.min(Math.round(moment / it.restStep) * it.restStep, it.events);
}

function highest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

// The last place of a sorted list that is not above a value; -1: none.
function lastNotAbove(list, value) {
  let low = -1, high = list.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (list[middle] <= value) low = middle; else high = middle - 1;
  }
  return low;
}

// Calls `show` with the stacks of blocks that are not listed, and what they have at a moment.
function restAt(it, moment, show) {
  if (inWindow(it, moment)) return;
  const column = Math.floor(moment / it.restStep);
  for (const { stack, columns, bytes, counts } of it.rest) {
    const at = lastNotAbove(columns, column);
    if (at >= 0 && counts[at]) show(stack, bytes[at], counts[at]);
  }
}

// Blocks and segments at a moment, by address.
const blocksAt = (it, moment) => it.byAddress.filter((block) => block.from <= moment && moment < block.done);
// What grows by pages is one segment as far as it reaches.
function segmentsAt(it, moment) {
  const list = [];
  for (const segment of it.segmentsByAddress) {
    if (moment < segment.from || segment.to <= moment) continue;
    const last = list[list.length - 1];
    if (last && last.grows && segment.grows && last.stream === segment.stream && last.address + last.size === segment.address) last.size += segment.size;
    else list.push({ ...segment });
  }
  return list;
}

// Free ranges within segments at a moment, each with the blocks beside it.
function freeRanges(it, moment) {
  const blocks = blocksAt(it, moment), ranges = [];
  let at = 0;
  for (const segment of segmentsAt(it, moment)) {
    let low = segment.address, before = null;
    const end = segment.address + segment.size;
    while (at < blocks.length && blocks[at].address < segment.address) at++;
    while (at < blocks.length && blocks[at].address < end) {
      const block = blocks[at++];
      if (block.address > low) ranges.push({ address: low, size: block.address - low, segment, before, after: block });
      if (block.address + block.size > low) { low = block.address + block.size; before = block; }
    }
    if (end > low) ranges.push({ address: low, size: end - low, segment, before, after: null });
  }
  return ranges;
}
