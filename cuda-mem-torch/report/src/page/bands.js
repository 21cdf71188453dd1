// The filled areas of the timeline: a band for each large allocation, and one for all small ones of a group.
function makeBands() {
  const MOST_GROUPS = 60;
  let group = "site", ranks = new Map(), large = [], small = [], others = null, from = null, cached = null;

  // What has its own band: a thousandth of the peak and more.
  function prepareSpace() {
    cached = null;
    const least = Math.max(1, data.active / 1000), { of, ofStack } = GROUPS[group], sums = new Map();
    large = [];
    const changes = new Map();
    const change = (key, moment, bytes) => { let list = changes.get(key); if (!list) changes.set(key, list = []); list.push(moment, bytes); };
    const weigh = (key, bytes) => sums.set(key, Math.max(sums.get(key) || 0, bytes));
    for (const block of data.blocks) {
      if (block.size >= least) large.push(block);
      else {
        const key = of(block);
        change(key, block.from, block.size);
        if (block.done !== NEVER) change(key, block.done, -block.size);
      }
    }
    large.sort((one, other) => one.from - other.from);
    const peaks = new Map();
    for (const block of data.blocks) if (block.from <= data.peak && data.peak < block.done) { const key = of(block); peaks.set(key, (peaks.get(key) || 0) + block.size); }
    for (const [key, bytes] of peaks) weigh(key, 1e6 * bytes);
    for (const block of large) weigh(of(block), block.size);
    const rest = new Map();
    for (const { stack, columns, bytes } of data.rest) {
      const key = ofStack(stack);
      if (!rest.has(key)) rest.set(key, []);
      rest.get(key).push({ columns, bytes });
      weigh(key, Math.max(...bytes.slice(0, 1000)));
    }
    small = [];
    const keys = new Set([...changes.keys(), ...rest.keys()]);
    for (const key of keys) {
      const list = changes.get(key) || [], order = [];
      for (let i = 0; i < list.length; i += 2) order.push(i);
      order.sort((one, other) => list[one] - list[other]);
      const moments = new Float64Array(order.length), bytes = new Float64Array(order.length);
      let sum = 0, top = 0;
      order.forEach((at, i) => { moments[i] = list[at]; bytes[i] = sum += list[at + 1]; top = Math.max(top, sum); });
      weigh(key, top);
      small.push({ key, moments, bytes, rest: rest.get(key) || [] });
    }
    ranks = new Map([...sums].sort((one, other) => other[1] - one[1]).map(([key], rank) => [key, rank]));
    small.sort((one, other) => ranks.get(one.key) - ranks.get(other.key));
    others = small.splice(MOST_GROUPS);
  }

  function valueAt({ moments, bytes, rest }, moment, column) {
    const at = lastNotAbove(moments, moment);
    let sum = at < 0 ? 0 : bytes[at];
    if (column >= 0) for (const part of rest) { const place = lastNotAbove(part.columns, column); if (place >= 0) sum += part.bytes[place]; }
    return sum;
  }

  // For each of `width` columns of pixels the moment that it shows: the one with most bytes.
  function momentsOf(width, at, along) {
    const list = new Float64Array(width);
    let first = at(along(0));
    for (let x = 0; x < width; x++) {
      const last = at(along((x + 1) / width)), from = Math.ceil(first / data.step), to = Math.floor(last / data.step);
      let best = last, top = -1;
      for (let point = from; point <= to && point < data.points; point++) {
        const bytes = data.live[point] + data.pending[point];
        if (bytes > top) { top = bytes; best = Math.min(point * data.step, data.events); }
      }
      list[x] = snapped(data, best);
      first = last;
    }
    return list;
  }

  // What lies on what in each column: bands from the bottom up, with the bytes at their tops.
  function layout(moments) {
    const columns = [];
    let next = 0, active = [], before = -1, column = null;
    for (const moment of moments) {
      if (moment === before && column) { columns.push(column); continue; }
      if (moment < before) { next = 0; active = []; }
      before = moment;
      while (next < large.length && large[next].from <= moment) active.push(large[next++]);
      active = active.filter((block) => moment < block.done);
      const bands = [], tops = [], inside = inWindow(data, moment), place = inside ? -1 : Math.floor(moment / data.restStep);
      let sum = 0;
      for (const block of active) { bands.push(block); tops.push(sum += block.size); }
      for (const one of small) { const bytes = valueAt(one, moment, place); if (bytes > 0) { bands.push(one); tops.push(sum += bytes); } }
      let left = 0;
      for (const one of others) left += valueAt(one, moment, place);
      if (left > 0) { bands.push(others); tops.push(sum += left); }
      columns.push(column = { moment, bands, tops });
    }
    return columns;
  }

  const keyOf = (band) => Array.isArray(band) ? null : band.key !== undefined ? band.key : GROUPS[group].of(band);
  const shades = new Map();
  function pixel(key, shade) {
    const name = key + " " + shade;
    let value = shades.get(name);
    if (value === undefined) {
      const [red, green, blue] = key === null ? GREY() : rgb(ranks.get(key) || 0, shade);
      shades.set(name, value = (255 << 24 | blue << 16 | green << 8 | red) >>> 0);
    }
    return value;
  }

  // Paints columns into an image, `height` pixels for `top` bytes.
  function paint(columns, height, top) {
    const width = columns.length, image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    columns.forEach(({ bands, tops, moment }, x) => {
      let y = height;
      for (let i = 0; i < bands.length && y > 0; i++) {
        const band = bands[i], end = Math.max(0, Math.round(height * (1 - tops[i] / top)));
        if (end >= y) continue;
        const isBlock = band.from !== undefined, value = pixel(keyOf(band), isBlock ? band.from % 3 : 0), pending = isBlock && moment >= band.freed && band.done > band.freed + 1;
        // What is pending is hatched.
        for (let at = end; at < y; at++) if (!pending || (at + x) % 6 > 2) pixels[at * width + x] = value;
        y = end;
      }
    });
    return image;
  }

  return {
    show: prepareSpace,
    choose(name) { group = name; shades.clear(); prepareSpace(); },
    forget: () => shades.clear(),
    group: () => group,
    colourOf: (block) => { const key = GROUPS[group].of(block); return css(rgb(ranks.get(key) || 0, block.from % 3)); },
    colourOfKey: (key) => ranks.has(key) ? css(rgb(ranks.get(key), 0)) : css(GREY()),
    keys: () => [...ranks.keys()],
    momentsOf, layout, paint, keyOf,
    count: () => large.length,
  };
}
