// Numbers as people read them, and the colours of the page.
const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]];

function size(bytes) {
  for (const [name, unit] of UNITS) if (bytes >= unit) return (bytes / unit).toFixed(bytes < 10 * unit ? 2 : 1) + " " + name;
  return bytes + " B";
}

const exact = (bytes) => bytes < 1024 ? size(bytes) : size(bytes) + " (" + count(bytes) + " bytes)";
const count = (number) => number.toLocaleString("en-US");
const hex = (address) => "0x" + address.toString(16);

// Microseconds at a moment, between those of the points around it.
function timeAt(moment) {
  const point = Math.floor(moment / data.step), rest = moment / data.step - point;
  const next = data.times[Math.min(point + 1, data.points - 1)];
  return Math.round(data.times[point] + rest * (next - data.times[point]));
}

function duration(micros) {
  if (micros < 1e3) return micros + " µs";
  if (micros < 1e6) return (micros / 1e3).toPrecision(3) + " ms";
  return (micros / 1e6).toFixed(micros < 1e7 ? 3 : 1) + " s";
}

// Handles of streams are addresses where they are not small numbers.
const streamName = (stream) => stream < 65536 ? String(stream) : hex(stream);

// When a moment is, in the words of the recording.
function when(moment) {
  if (moment === 0) return data.events ? "before the first event" : "when the snapshot was taken";
  const event = "event " + count(moment);
  return data.times ? duration(timeAt(moment)) + ", " + event : event;
}

function lifetime(block) {
  const end = Math.min(block.freed, data.events);
  const events = count(end - block.from) + (end - block.from === 1 ? " event" : " events");
  const took = data.times ? duration(timeAt(end) - timeAt(block.from)) + ", " + events : events;
  const open = [];
  if (block.from === 0) open.push("from before");
  if (block.freed === NEVER) open.push("to the end");
  return open.length ? took + " (" + open.join(", ") + ")" : took;
}

// Round steps between `low` and `high`, about `wanted` of them: 1, 2 or 5 of a power of ten, or a power of two of bytes.
// Events come one by one: their step is a whole number.
function ticks(low, high, wanted, of) {
  const span = Math.max(high - low, 1e-9);
  let step;
  if (of === "bytes") {
    step = 2 ** Math.ceil(Math.log2(span / wanted));
  } else {
    const power = 10 ** Math.floor(Math.log10(span / wanted));
    step = power * [1, 2, 5, 10].find((digit) => digit * power * wanted >= span * 0.999);
    if (of === "events") step = Math.max(step, 1);
  }
  const list = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) list.push(value);
  return { list, step };
}

// Colours of the scheme, looked up once.
let known = new Map();
const forgetColours = () => { known = new Map(); };
function colour(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim());
  return known.get(name);
}
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

// Colours of call sites and other groups: hues far from each other, and shades that tell neighbours apart.
function rgb(rank, shade) {
  const hue = (rank * 137.508 + 205) % 360, light = (isDark() ? 58 : 50) + [0, 6, -6][shade % 3] + [0, -7, 7][Math.floor(rank / 7) % 3], saturation = 0.55;
  const a = saturation * Math.min(light, 100 - light) / 100;
  const part = (n) => { const k = (n + hue / 30) % 12; return Math.round(255 * (light / 100 - a * Math.max(-1, Math.min(k - 3, 9 - k, 1)))); };
  return [part(0), part(8), part(4)];
}
const css = ([red, green, blue]) => "rgb(" + red + " " + green + " " + blue + ")";
const GREY = () => isDark() ? [110, 118, 129] : [160, 168, 178];

function element(tag, text, style) {
  const made = document.createElement(tag);
  if (text !== undefined) made.append(text);
  if (style) made.className = style;
  return made;
}
const byId = (id) => document.getElementById(id);
const button = (text, action) => { const made = element("button", text); made.type = "button"; made.addEventListener("click", action); return made; };
const signed = (bytes) => (bytes > 0 ? "+" : bytes < 0 ? "−" : "±") + size(Math.abs(bytes));
// A call site in words: its line, its function, the library's line that it led to.
function siteNode(site) {
  const node = element("span", undefined, "site"), line = element("b", site.title);
  line.title = site.file;
  node.append(line);
  if (site.name) node.append(" " + site.name);
  if (site.within) node.append(element("span", "in " + site.within, "within"));
  return node;
}
function stackList(stack) {
  const list = element("ol", undefined, "frames"), frames = framesOf(stack);
  frames.forEach((frame, at) => list.append(element("li", frameText(frame), "frame-" + frameKinds[raw.stacks[stack - 1][at]])));
  return list;
}
const FONT = "12px system-ui, sans-serif";

// A canvas cleared for drawing, in pixels of the page.
function prepare(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 600;
  if (height) canvas.style.height = height + "px";
  height = height || canvas.clientHeight;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = FONT;
  return { pen, width, height };
}

// Lines across a colour, so that what they mark is told apart without it.
function hatch(pen, fill, stroke, turn) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const inner = tile.getContext("2d");
  inner.fillStyle = fill;
  inner.fillRect(0, 0, 6, 6);
  inner.strokeStyle = stroke;
  inner.lineWidth = 1.2;
  inner.beginPath();
  for (const x of [-6, 0, 6]) {
    inner.moveTo(x, turn ? 0 : 6);
    inner.lineTo(x + 6, turn ? 6 : 0);
  }
  inner.stroke();
  return pen.createPattern(tile, "repeat");
}

const fills = (pen) => ({
  live: colour("live"),
  pending: hatch(pen, colour("pending"), colour("page"), false),
  cached: colour("cached"),
});

// Swatches with words; `entries` are names of colours and what they mean.
function legend(place, entries) {
  place.replaceChildren(...entries.map(([name, words]) => {
    const entry = document.createElement("span"), swatch = document.createElement("canvas");
    entry.append(swatch, words);
    swatch.width = 26;
    swatch.height = 16;
    const pen = swatch.getContext("2d");
    if (name === "reserved" || name === "reference" || name === "cursor") {
      pen.strokeStyle = colour(name);
      pen.lineWidth = 2;
      if (name === "reference") pen.setLineDash([5, 4]);
      pen.beginPath();
      if (name === "cursor") { pen.moveTo(13, 0); pen.lineTo(13, 16); } else { pen.moveTo(0, 8); pen.lineTo(26, 8); }
      pen.stroke();
    } else if (name === "oom") {
      cross(pen, 13, 8);
    } else {
      pen.fillStyle = name === "unmapped" ? colour("page") : fills(pen)[name];
      pen.fillRect(0, 0, 26, 16);
      pen.strokeStyle = colour("soft");
      pen.strokeRect(0.5, 0.5, 25, 15);
    }
    return entry;
  }));
}

function cross(pen, x, y) {
  pen.strokeStyle = colour("oom");
  pen.lineWidth = 2.5;
  pen.beginPath();
  pen.moveTo(x - 5, y - 5); pen.lineTo(x + 5, y + 5);
  pen.moveTo(x - 5, y + 5); pen.lineTo(x + 5, y - 5);
  pen.stroke();
}

// A card of a figure.
function card(name, text, about) {
  const element = document.createElement("div"), add = (tag, words, style) => {
    const part = document.createElement(tag);
    part.textContent = words;
    if (style) part.className = style;
    element.append(part);
  };
  element.className = "card";
  add("dt", name);
  add("dd", text);
  if (about) add("dd", about, "about");
  return element;
}
