// Which line of whose code allocated: stacks by call site, and by what they are for.
const TORCH = /(^|\/)(site-packages|dist-packages)\/(torch|cuda_mem_torch|triton|functorch)\/|\/torch\/(_\w+|nn|optim|autograd|cuda|utils|distributed|functional|fx|storage|serialization|tensor|amp|compiler|func|jit|library|multiprocessing|overrides|random|accelerator|backends|testing)[/.]/;
const LIBRARY = /\/(site|dist)-packages\/|\/\.cargo\/|\/rustc\/|\/library\/(std|core|alloc)\//;
const STANDARD = /\/lib\/python\d[\d.]*t?\/(?!site-packages|dist-packages)|^<frozen /;
const COMPILED = /\.(c|cc|cpp|cxx|cu|cuh|h|hpp|inl|S)$/;

function kindOf([, file, line]) {
  if (!file || file === "??" || line <= 0 || COMPILED.test(file)) return "compiled";
  if (TORCH.test(file)) return "torch";
  if (STANDARD.test(file)) return "standard";
  return LIBRARY.test(file) ? "library" : "user";
}
const frameKinds = raw.frames.map(kindOf);

const baseName = (file) => file.split("/").pop();
// From the package on, where it is one of a library.
const shortFile = (file) => { const parts = file.split(/\/(?:site|dist)-packages\//); return parts.length > 1 ? parts.pop() : baseName(file); };
const frameText = ([name, file, line]) => line > 0 ? name + " (" + file + ":" + line + ")" : name;
const framesOf = (stack) => stack ? raw.stacks[stack - 1].map((frame) => raw.frames[frame]) : [];

// What stacks are for, by the first pattern that a frame of theirs has; the page shows this table.
const CATEGORIES = [
  ["optimizer state", /\/optim\/|(^| )(step|_init_group)$/, "a frame of torch/optim, or a function step"],
  ["gradients", /\/autograd\/|autograd::Engine|(^| )backward$/, "a frame of torch/autograd, or a function backward"],
  ["communication", /\/distributed\/|nccl|c10d/i, "a frame of torch/distributed, or of NCCL"],
  ["graphs and compiled code", /cuda\/graphs\.py|_inductor|_dynamo|triton/, "torch.cuda.graphs, inductor, dynamo, triton"],
  ["data", /utils\/data\/|pin_memory/, "a frame of torch/utils/data, or pin_memory"],
  ["parameters", /parameter\.py|nn\/init\.py|load_state_dict|from_pretrained|nn\/modules\/module\.py (_apply|to|cuda)$/, "torch.nn.Parameter, torch.nn.init, Module.to, load_state_dict, from_pretrained"],
  ["activations", /nn\/modules\/|nn\/functional\.py|(^| )forward$/, "a frame of torch/nn, or a function forward"],
];
const UNKNOWN = CATEGORIES.length;
const frameCategories = raw.frames.map(([name, file]) => CATEGORIES.findIndex(([, pattern]) => pattern.test(file + " " + name)));
const categoryName = (place) => place === UNKNOWN ? "unknown" : CATEGORIES[place][0];
function categoryOf(stack) {
  let best = UNKNOWN;
  for (const frame of raw.stacks[stack - 1]) if (frameCategories[frame] >= 0) best = Math.min(best, frameCategories[frame]);
  return best;
}

// A call site: the innermost frame of the user's own code, and the library's line that it led to.
const NO_SITE = { place: 0, title: "stack not recorded", name: "", within: "", file: "", stacks: [] };
const sites = [NO_SITE], siteOfStack = new Int32Array(raw.stacks.length + 1), categories = new Int32Array(raw.stacks.length + 1).fill(UNKNOWN);
{
  const known = new Map();
  raw.stacks.forEach((frames, at) => {
    const find = (kind, end) => { for (let i = 0; i < end; i++) if (frameKinds[frames[i]] === kind) return i; return -1; };
    const user = find("user", frames.length), library = find("library", user < 0 ? frames.length : user);
    let main = user >= 0 ? user : library;
    if (main < 0) main = find("torch", frames.length);
    if (main < 0) main = find("standard", frames.length);
    if (main < 0) main = 0;
    const inner = library >= 0 && library !== main ? frames[library] : -1, key = frames[main] + " " + inner;
    if (!known.has(key)) {
      const [name, file, line] = raw.frames[frames[main]], within = inner < 0 ? "" : shortFile(raw.frames[inner][1]) + ":" + raw.frames[inner][2] + " " + raw.frames[inner][0];
      known.set(key, sites.length);
      sites.push({ place: sites.length, title: line > 0 ? (user >= 0 ? baseName(file) : shortFile(file)) + ":" + line : name, name: line > 0 ? name : "", within, file, stacks: [] });
    }
    const place = known.get(key);
    sites[place].stacks.push(at + 1);
    siteOfStack[at + 1] = place;
    categories[at + 1] = categoryOf(at + 1);
  });
}
const siteOf = (block) => siteOfStack[block.stack];
const siteText = (site) => site.title + (site.within ? " in " + site.within : "");

// How blocks can be told apart; `of` is the key of a block, `text` says it.
const GROUPS = {
  site: { title: "call site", of: siteOf, ofStack: (stack) => siteOfStack[stack], text: (key) => siteText(sites[key]) },
  category: {
    title: "category",
    of: (block) => data.labels[block.label][0] || categoryName(categories[block.stack]), ofStack: (stack) => categoryName(categories[stack]), text: (key) => key,
  },
  stream: { title: "stream", of: (block) => block.stream, ofStack: () => "not listed", text: (key) => typeof key === "number" ? "stream " + streamName(key) : key },
  pool: {
    title: "pool", of: (block) => { const pool = data.labels[block.label][2]; return pool ? pool.join(", ") : "default"; },
    ofStack: () => "not listed", text: (key) => key === "default" ? "default pool" : key === "not listed" ? key : "pool (" + key + ")",
  },
  tag: { title: "tag", of: (block) => data.labels[block.label][3] || "no tag", ofStack: () => "not listed", text: (key) => key },
  compiled: { title: "compiled code", of: (block) => data.labels[block.label][1] || "eager", ofStack: () => "not listed", text: (key) => key },
};

// Whether a group parts the blocks of a recording.
const LABELS = { compiled: 1, pool: 2, tag: 3 };
const tells = (it, group) => group in LABELS ? it.labels.some((label) => label[LABELS[group]]) : group !== "stream" || it.streams.length > 1;

// Bytes and blocks by a group's keys at a moment.
function holders(it, moment, group) {
  const held = new Map(), { of, ofStack } = GROUPS[group];
  const add = (key, bytes, blocks) => { const sum = held.get(key); if (sum) { sum.bytes += bytes; sum.blocks += blocks; } else held.set(key, { bytes, blocks }); };
  for (const block of it.blocks) if (block.from <= moment && moment < block.done) add(of(block), block.size, 1);
  restAt(it, moment, (stack, bytes, blocks) => add(ofStack(stack), bytes, blocks));
  return held;
}

// What each call site has at moments all over the recording.
const SAMPLES = 240;
function samplesOf(it) {
  if (it.samples) return it.samples;
  const samples = new Map(), of = (site) => { let list = samples.get(site); if (!list) samples.set(site, list = new Float64Array(SAMPLES + 2)); return list; };
  const place = (moment) => moment === NEVER ? SAMPLES + 1 : Math.min(Math.ceil(moment * SAMPLES / Math.max(1, it.events)), SAMPLES + 1);
  for (const block of it.blocks) {
    const from = place(block.from), to = place(block.done);
    if (from === to) continue;
    const list = of(siteOf(block));
    list[from] += block.size;
    list[to] -= block.size;
  }
  for (const list of samples.values()) for (let i = 1; i <= SAMPLES; i++) list[i] += list[i - 1];
  for (let i = 0; i <= SAMPLES && it.rest.length; i++) restAt(it, snapped(it, i * it.events / SAMPLES), (stack, bytes) => { of(siteOfStack[stack])[i] += bytes; });
  return it.samples = samples;
}

// A site grows if what it never goes below rises throughout the recording.
const PARTS = 8;
function growth(it, site) {
  const list = samplesOf(it).get(site);
  if (!list || it.events < 2 * PARTS) return null;
  const least = [];
  for (let part = 0; part < PARTS; part++) {
    let low = Infinity;
    for (let i = Math.floor(part * SAMPLES / PARTS) + (part ? 1 : 0); i <= (part + 1) * SAMPLES / PARTS; i++) low = Math.min(low, list[i]);
    least.push(low);
  }
  let rises = 0;
  for (let part = 1; part < PARTS; part++) {
    if (least[part] < least[part - 1] * 0.98) return null;
    if (least[part] > least[part - 1]) rises++;
  }
  const by = least[PARTS - 1] - least[0];
  return rises >= PARTS / 2 && by > 0 && least[PARTS - 1] - least[PARTS / 2 - 1] > 0.1 * least[PARTS - 1] ? by : null;
}

// What keeps free memory from going back: the call sites of the blocks beside free ranges, with the bytes of those.
function besideFree(it, moment) {
  const sums = new Map();
  let total = 0, largest = 0, pieces = 0;
  const add = (block, bytes) => { const sum = sums.get(siteOf(block)) || { bytes: 0, blocks: new Set() }; sum.bytes += bytes; sum.blocks.add(block); sums.set(siteOf(block), sum); };
  for (const { size, before, after } of freeRanges(it, moment)) {
    largest = Math.max(largest, size);
    total += size;
    pieces++;
    // What has nothing beside it can go back.
    if (!before && !after) continue;
    if (before) add(before, after ? size / 2 : size);
    if (after) add(after, before ? size / 2 : size);
  }
  const list = [...sums].map(([site, { bytes, blocks }]) => ({ site, bytes, blocks: blocks.size })).sort((one, other) => other.bytes - one.bytes);
  return { total, largest, pieces, list, held: list.reduce((sum, { bytes }) => sum + bytes, 0) };
}
