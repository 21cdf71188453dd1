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

function readBlocks(text) {
  const blocks = [], read = reader(text);
  let from = 0, address = 0;
  while (read.more()) {
    from += read.difference();
    const freed = read.number(), toFreed = freed ? from + freed - 1 : NEVER;
    const done = freed ? read.number() : 0, toDone = done ? toFreed + done - 1 : NEVER;
    const size = read.number(), requested = size + read.difference();
    const stream = raw.streams[read.number()], stack = read.number() - 1;
    address += read.difference();
    blocks.push({ from, freed: toFreed, done: toDone, size, requested, stream, stack, address });
  }
  return blocks;
}

function readSegments(text) {
  const segments = [], read = reader(text);
  let from = 0, address = 0;
  while (read.more()) {
    from += read.difference();
    const until = read.number(), to = until ? from + until - 1 : NEVER;
    const size = read.number(), owner = read.number(), stream = raw.streams[Math.floor(owner / 2)];
    address += read.difference();
    segments.push({ from, to, size, stream, grows: owner % 2 === 1, address });
  }
  return segments;
}

const data = {
  what: raw.what, events: raw.events, step: raw.step, stacks: raw.stacks, addresses: raw.addresses,
  live: curve(raw.live), pending: curve(raw.pending), reserved: raw.reserved === null ? null : curve(raw.reserved),
  times: raw.times === null ? null : curve(raw.times),
  blocks: readBlocks(raw.blocks), segments: readSegments(raw.segments),
  outOfMemory: raw.outOfMemory.map(([moment, requested, free]) => ({ moment, requested, free })),
  references: raw.references.map(([name, bytes]) => ({ name, bytes })),
};
data.points = data.live.length;

// A point of the curves stands for `step` moments, and shows the last of them in the map.
const momentOf = (point) => Math.min(point * data.step, data.events);
const pointOf = (moment) => Math.ceil(moment / data.step);

function highest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

// Blocks and segments at a moment, by address.
const byAddress = data.blocks.slice().sort((one, other) => one.address - other.address || one.from - other.from);
const segmentsByAddress = data.segments.slice().sort((one, other) => one.address - other.address);
const blocksAt = (moment) => byAddress.filter((block) => block.from <= moment && moment < block.done);
// What grows by pages is one segment as far as it reaches.
function segmentsAt(moment) {
  const list = [];
  for (const segment of segmentsByAddress) {
    if (moment < segment.from || segment.to <= moment) continue;
    const last = list[list.length - 1];
    if (last && last.grows && segment.grows && last.stream === segment.stream && last.address + last.size === segment.address) last.size += segment.size;
    else list.push({ ...segment });
  }
  return list;
}
