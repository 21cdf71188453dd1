// Memory over time. The horizontal axis counts events or microseconds.
function makeChart(onChoose, onPin) {
  const canvas = byId("chart"), over = byId("chart-over"), strip = byId("overview"), axis = byId("axis"), slider = byId("moment");
  const LEFT = 74, TOP = 30, BOTTOM = 40, STEPS = 10000;
  const timed = () => data.times !== null && axis.value === "time";
  const along = (moment) => timed() ? timeAt(moment) : moment;
  // A little beyond the last event, so that what it left is seen.
  const end = () => timed() ? Math.max(along(data.events) * 1.005, 1) : Math.max(data.events + Math.max(1, Math.floor(data.events / 500)), 1);
  // The last moment at or before a place on the axis.
  function at(place) {
    if (!timed()) return Math.min(Math.max(0, Math.floor(place)), data.events);
    const point = Math.max(0, lastNotAbove(data.times, place)), next = data.times[Math.min(point + 1, data.points - 1)];
    const share = next > data.times[point] ? (place - data.times[point]) / (next - data.times[point]) : 0;
    return Math.min(Math.floor((point + Math.min(share, 0.999999)) * data.step), data.events);
  }
  let view = { from: 0, to: 1 }, chosen = 0, since = null, hover = null, pinned = null, columns = [], top = 1, stripImage = null, annotationRows = [], outlines = new Map();

  const right = (width) => data.references.length ? Math.min(230, width * 0.28) : 16;
  const plotOf = (width, height) => ({ left: LEFT, width: Math.max(50, width - LEFT - right(width)), height: height - TOP - BOTTOM });
  const yOf = (plot, bytes) => TOP + plot.height * (1 - bytes / top);
  const xOf = (plot, place) => plot.left + (place - view.from) / (view.to - view.from) * plot.width;

  function show() {
    top = data.highest;
    for (const reference of data.references) top = Math.max(top, reference.bytes);
    top *= 1.05;
    byId("axis-choice").hidden = data.times === null;
    view = { from: 0, to: end() };
    pinned = hover = stripImage = null;
    since = null;
  }

  // The highest of reserved memory in each column.
  function reservedOf(width) {
    const list = new Float64Array(width);
    let first = at(view.from);
    for (let x = 0; x < width; x++) {
      const last = at(view.from + (view.to - view.from) * (x + 1) / width), to = Math.min(pointOf(last), data.points - 1);
      for (let i = pointOf(first); i <= to; i++) if (data.reserved[i] > list[x]) list[x] = data.reserved[i];
      first = last;
    }
    return list;
  }

  function line(pen, plot, width, list) {
    pen.beginPath();
    list.forEach((bytes, x) => { const y = yOf(plot, bytes); pen.lineTo(plot.left + x * plot.width / width, y); pen.lineTo(plot.left + (x + 1) * plot.width / width, y); });
    pen.strokeStyle = colour("reserved");
    pen.lineWidth = 1.5;
    pen.stroke();
  }

  function draw() {
    const { pen, width, height } = prepare(canvas), plot = plotOf(width, height), scale = window.devicePixelRatio || 1;
    axes(pen, plot);
    const wide = Math.max(1, Math.round(plot.width * scale)), high = Math.max(1, Math.round(plot.height * scale));
    columns = bands.layout(bands.momentsOf(wide, at, (share) => view.from + share * (view.to - view.from)));
    outlines = new Map();
    const image = bands.paint(columns, high, top), sheet = new OffscreenCanvas(wide, high);
    sheet.getContext("2d").putImageData(image, 0, 0);
    pen.save();
    pen.beginPath();
    pen.rect(plot.left, 0, plot.width, height);
    pen.clip();
    if (data.reserved) {
      const list = reservedOf(Math.floor(plot.width));
      pen.beginPath();
      pen.moveTo(plot.left, yOf(plot, 0));
      list.forEach((bytes, x) => { pen.lineTo(plot.left + x, yOf(plot, bytes)); pen.lineTo(plot.left + x + 1, yOf(plot, bytes)); });
      pen.lineTo(plot.left + plot.width, yOf(plot, 0));
      pen.fillStyle = colour("cached");
      pen.fill();
      pen.drawImage(sheet, plot.left, TOP, plot.width, plot.height);
      line(pen, plot, list.length, list);
    } else {
      pen.drawImage(sheet, plot.left, TOP, plot.width, plot.height);
    }
    for (const event of data.outOfMemory) {
      const place = xOf(plot, along(event.moment));
      pen.fillStyle = colour("oom");
      pen.fillRect(place - 0.5, TOP, 1, plot.height);
      cross(pen, place, TOP + 8);
    }
    annotations(pen, plot);
    pen.restore();
    references(pen, plot, width);
    overview();
    drawOver();
  }

  // What the program did: ribbons above the plot, two rows of them.
  function annotations(pen, plot) {
    annotationRows = [];
    const ends = [-Infinity, -Infinity];
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const [name, from, to] of data.annotations) {
      const left = xOf(plot, along(from)), width = Math.max(1, xOf(plot, along(to)) - left);
      if (left + width < plot.left || left > plot.left + plot.width) continue;
      const row = ends.findIndex((stop) => stop <= left + 0.5);
      if (row < 0) continue;
      ends[row] = left + width;
      const y = 2 + row * 13;
      annotationRows.push({ name, left, width, y });
      pen.fillStyle = colour("grid");
      pen.fillRect(left, y, Math.max(1, width - 1), 12);
      const inside = Math.max(left, plot.left), room = Math.min(left + width, plot.left + plot.width) - inside;
      if (room > 30) { pen.fillStyle = colour("text"); pen.save(); pen.beginPath(); pen.rect(inside, y, room - 3, 12); pen.clip(); pen.fillText(name, inside + 3, y + 6.5); pen.restore(); }
    }
  }

  // The upper sheet, empty; a new size takes a new canvas, which is slow.
  function cleared() {
    const scale = window.devicePixelRatio || 1, width = over.clientWidth, height = over.clientHeight;
    if (over.width !== Math.round(width * scale) || over.height !== Math.round(height * scale)) return prepare(over);
    const pen = over.getContext("2d");
    pen.clearRect(0, 0, width, height);
    return { pen, width, height };
  }

  // Everything that follows the pointer is on a sheet of its own: what lies below is not drawn again for it.
  function drawOver() {
    const { pen, width, height } = cleared(), plot = plotOf(width, height);
    pen.save();
    pen.beginPath();
    pen.rect(plot.left, 0, plot.width, height);
    pen.clip();
    if (pinned) outline(pen, plot, pinned);
    if (since !== null) { pen.setLineDash([5, 4]); marker(pen, xOf(plot, along(since)), plot, colour("soft"), 2); pen.setLineDash([]); }
    marker(pen, xOf(plot, along(chosen)), plot, colour("cursor"), 2);
    if (hover) {
      marker(pen, hover.x, plot, colour("soft"), 1);
      if (hover.band && hover.band !== pinned) outline(pen, plot, hover.band);
    }
    if (drag && drag.select) {
      pen.fillStyle = colour("select");
      pen.fillRect(Math.min(drag.x, drag.to), TOP, Math.abs(drag.to - drag.x), plot.height);
    }
    pen.restore();
    if (hover && !(drag && drag.moved)) tip(pen, plot, hover);
  }

  function marker(pen, x, plot, style, width) {
    pen.strokeStyle = style;
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(x, TOP);
    pen.lineTo(x, TOP + plot.height);
    pen.stroke();
  }

  // Where a band lies in a column: blocks in the order in which they came, then groups.
  function placeOf(list, band) {
    if (band.from === undefined) return list.lastIndexOf(band);
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle].from === undefined || list[middle].from >= band.from) high = middle; else low = middle + 1;
    }
    while (low < list.length && list[low] !== band && list[low].from === band.from) low++;
    return list[low] === band ? low : -1;
  }

  // Around all columns that a band is in: runs of columns with its lower and upper edge, found once.
  function runsOf(band) {
    if (outlines.has(band)) return outlines.get(band);
    const runs = [];
    columns.forEach(({ bands: list, tops, moment }, x) => {
      if (band.from !== undefined && (moment < band.from || moment >= band.done)) return;
      const place = placeOf(list, band);
      if (place < 0) return;
      const low = place ? tops[place - 1] : 0, high = tops[place], last = runs[runs.length - 1];
      if (last && last.to === x && last.low === low && last.high === high) last.to = x + 1;
      else runs.push({ from: x, to: x + 1, low, high });
    });
    outlines.set(band, runs);
    return runs;
  }
  function outline(pen, plot, band) {
    const wide = plot.width / columns.length;
    pen.fillStyle = colour("outline");
    for (const { from, to, low, high } of runsOf(band)) pen.fillRect(plot.left + from * wide, yOf(plot, high) - 1, (to - from) * wide, Math.max(2, yOf(plot, low) - yOf(plot, high) + 1));
  }

  function axes(pen, plot) {
    pen.fillStyle = colour("soft");
    pen.strokeStyle = colour("grid");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const bytes of data.highest > 1 ? ticks(0, top, 6, "bytes").list.filter((bytes) => bytes >= 1 || !bytes) : [0]) {
      pen.beginPath();
      pen.moveTo(plot.left, yOf(plot, bytes));
      pen.lineTo(plot.left + plot.width, yOf(plot, bytes));
      pen.stroke();
      pen.fillText(tickSize(bytes), plot.left - 8, yOf(plot, bytes));
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const bottom = TOP + plot.height;
    if (!data.events) { pen.fillText("no history was recorded: the one moment at which the snapshot was taken", plot.left + plot.width / 2, bottom + 10); return; }
    const unit = timed() ? (view.to - view.from > 2e6 ? [1e6, "s"] : view.to - view.from > 2e3 ? [1e3, "ms"] : [1, "µs"]) : [1, ""];
    const marks = ticks(view.from / unit[0], view.to / unit[0], Math.max(2, Math.floor(plot.width / 110)), timed() ? "time" : "events");
    const digits = Math.max(0, -Math.floor(Math.log10(marks.step)));
    for (const value of marks.list) {
      const place = xOf(plot, value * unit[0]);
      pen.beginPath();
      pen.moveTo(place, bottom);
      pen.lineTo(place, bottom + 5);
      pen.stroke();
      pen.fillText(value.toLocaleString("en-US", { maximumFractionDigits: digits }), place, bottom + 7);
    }
    pen.fillText(timed() ? "time since the first event (" + unit[1] + ")" : "number of " + data.what + " so far", plot.left + plot.width / 2, bottom + 23);
  }

  const tickSize = (bytes) => size(bytes).replace(/\.0+ /, " ");

  // Lines of other allocators, their names beside them and apart from each other.
  function references(pen, plot, width) {
    const labels = data.references.map((reference) => ({ ...reference, line: yOf(plot, reference.bytes), place: yOf(plot, reference.bytes) }));
    labels.sort((one, other) => one.place - other.place);
    // Down from the top, and back up where the last has no room.
    labels.forEach((label, i) => { if (i) label.place = Math.max(label.place, labels[i - 1].place + 30); });
    const edge = plot.left + plot.width, low = TOP + plot.height - 14;
    for (let i = labels.length - 1, most = low; i >= 0; most = labels[i].place - 30, i--) labels[i].place = Math.min(labels[i].place, most);
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const label of labels) {
      pen.strokeStyle = colour("reference");
      pen.lineWidth = 1.5;
      pen.setLineDash([6, 4]);
      pen.beginPath();
      pen.moveTo(plot.left, label.line);
      pen.lineTo(edge, label.line);
      pen.stroke();
      pen.setLineDash([]);
      pen.beginPath();
      pen.moveTo(edge, label.line);
      pen.lineTo(edge + 10, label.place);
      pen.stroke();
      pen.fillStyle = colour("text");
      pen.fillText(label.name, edge + 14, label.place - 7, width - edge - 16);
      pen.fillStyle = colour("soft");
      pen.fillText("reserved at most " + size(label.bytes), edge + 14, label.place + 7, width - edge - 16);
    }
  }

  function words(moment) {
    const point = Math.min(pointOf(moment), data.points - 1), live = data.live[point], pending = data.pending[point];
    let text = when(moment) + ": live " + size(live);
    if (pending) text += ", pending " + size(pending);
    if (data.reserved) text += ", cached " + size(Math.max(0, data.reserved[point] - live - pending)) + ", reserved " + size(data.reserved[point]);
    return text;
  }

  function bandText(band, moment) {
    if (!band) return null;
    if (Array.isArray(band)) return "small blocks of other groups";
    const text = GROUPS[bands.group()].text(bands.keyOf(band));
    if (band.key !== undefined) return "small blocks: " + text;
    return size(band.size) + (moment >= band.freed ? ", pending" : "") + ", by " + siteText(sites[siteOf(band)]) + (bands.group() === "site" ? "" : ", " + text);
  }

  function tip(pen, plot, { x, moment, band, annotation }) {
    const lines = annotation ? [annotation] : [words(moment)].concat(bandText(band, moment) || []);
    const most = over.clientWidth - 8;
    const width = Math.min(most, Math.max(...lines.map((text) => pen.measureText(text).width)) + 14), left = Math.min(Math.max(x - width / 2, 4), over.clientWidth - width - 4);
    pen.fillStyle = colour("panel");
    pen.strokeStyle = colour("soft");
    pen.lineWidth = 1;
    pen.fillRect(left, TOP + 2, width, 6 + 17 * lines.length);
    pen.strokeRect(left + 0.5, TOP + 2.5, width - 1, 5 + 17 * lines.length);
    pen.fillStyle = colour("text");
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    lines.forEach((text, i) => pen.fillText(text, left + 7, TOP + 14 + 17 * i, most - 14));
  }

  // The strip is painted once; what moves on it is the window.
  function overview() {
    const { pen, width, height } = prepare(strip), plot = { left: LEFT, width: Math.max(50, width - LEFT - right(width)) };
    const wide = Math.max(1, Math.floor(plot.width));
    if (!stripImage || stripImage.width !== wide) {
      stripImage = new OffscreenCanvas(wide, height);
      const sheet = stripImage.getContext("2d");
      let first = 0;
      for (let x = 0; x < wide; x++) {
        const last = Math.min(pointOf(at(end() * (x + 1) / wide)), data.points - 1);
        let active = 0, reserved = 0;
        for (let i = first; i <= last; i++) { active = Math.max(active, data.live[i] + data.pending[i]); if (data.reserved) reserved = Math.max(reserved, data.reserved[i]); }
        first = last;
        sheet.fillStyle = colour("cached");
        sheet.fillRect(x, height * (1 - reserved / top), 1, height);
        sheet.fillStyle = colour("live");
        sheet.fillRect(x, height * (1 - active / top), 1, height);
      }
    }
    pen.drawImage(stripImage, LEFT, 0);
    const x = (place) => LEFT + place / end() * plot.width;
    pen.fillStyle = colour("page");
    pen.globalAlpha = 0.7;
    pen.fillRect(LEFT, 0, x(view.from) - LEFT, height);
    pen.fillRect(x(view.to), 0, LEFT + plot.width - x(view.to), height);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("text");
    pen.lineWidth = 1.5;
    pen.strokeRect(x(view.from) + 0.75, 0.75, Math.max(3, x(view.to) - x(view.from) - 1.5), height - 1.5);
    pen.fillStyle = colour("soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.fillText("overview", LEFT - 8, height / 2);
  }

  function go(from, to) {
    const least = timed() ? 10 : 8, span = Math.min(Math.max(to - from, Math.min(least, end())), end());
    from = Math.min(Math.max(0, from), end() - span);
    view = { from, to: from + span };
    draw();
  }

  const plotWidth = (element) => Math.max(50, element.clientWidth - LEFT - right(element.clientWidth));
  const placeAt = (x) => Math.min(Math.max(view.from + (x - LEFT) / plotWidth(over) * (view.to - view.from), view.from), view.to);
  // Around a place that stays where it is.
  const zoom = (factor, around) => go(around - (around - view.from) * factor, around + (view.to - around) * factor);
  const centre = () => { const place = along(chosen); return place >= view.from && place <= view.to ? place : (view.from + view.to) / 2; };
  const move = (share) => go(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));

  // What is under the pointer: a moment, and the band there.
  function under(event) {
    const plot = plotOf(over.clientWidth, over.clientHeight), x = event.offsetX, y = event.offsetY;
    const column = columns[Math.min(Math.max(0, Math.floor((x - plot.left) / plot.width * columns.length)), columns.length - 1)];
    if (y < TOP - 2) {
      const found = annotationRows.find((row) => row.left <= x && x < row.left + row.width && row.y <= y && y < row.y + 13);
      return { x, moment: column.moment, band: null, annotation: found ? found.name : undefined };
    }
    const bytes = (1 - (y - TOP) / plot.height) * top;
    let low = 0, high = column.tops.length;
    while (low < high) { const middle = (low + high) >> 1; if (column.tops[middle] < bytes) low = middle + 1; else high = middle; }
    return { x, moment: column.moment, band: bytes >= 0 && low < column.bands.length ? column.bands[low] : null };
  }

  let drag = null;
  over.addEventListener("pointerdown", (event) => { drag = { x: event.offsetX, to: event.offsetX, view, moved: false, select: event.pointerType === "mouse" && !event.shiftKey }; over.setPointerCapture(event.pointerId); });
  over.addEventListener("pointermove", (event) => {
    if (drag && Math.abs(event.offsetX - drag.x) > 4) drag.moved = true;
    hover = under(event);
    if (drag && drag.moved && !drag.select) {
      const by = (drag.x - event.offsetX) / plotWidth(over) * (drag.view.to - drag.view.from);
      go(drag.view.from + by, drag.view.to + by);
      return;
    }
    if (drag) drag.to = event.offsetX;
    drawOver();
  });
  over.addEventListener("pointerup", (event) => {
    const was = drag;
    drag = null;
    if (was && was.moved && was.select) { go(placeAt(Math.min(was.x, event.offsetX)), placeAt(Math.max(was.x, event.offsetX))); return; }
    if (!was || was.moved) return;
    const found = under(event);
    pinned = found.band && !Array.isArray(found.band) ? found.band : null;
    onChoose(found.moment);
    onPin(pinned);
  });
  over.addEventListener("pointercancel", () => { drag = null; });
  over.addEventListener("pointerleave", () => { hover = null; drawOver(); });
  over.addEventListener("dblclick", () => go(0, end()));
  over.addEventListener("wheel", (event) => {
    // At its ends the wheel is the page's again.
    if (event.deltaY > 0 && view.to - view.from >= end()) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 1000);
    else zoom(event.deltaY < 0 ? 0.8 : 1.25, placeAt(event.offsetX));
  }, { passive: false });
  strip.addEventListener("pointerdown", (event) => { strip.setPointerCapture(event.pointerId); strip.onpointermove = pull; pull(event); });
  strip.addEventListener("pointerup", () => { strip.onpointermove = null; });
  const pull = (event) => {
    const middle = (event.offsetX - LEFT) / plotWidth(strip) * end(), half = (view.to - view.from) / 2;
    go(middle - half, middle + half);
  };
  over.addEventListener("keydown", (event) => {
    const pixel = Math.max(1, at(along(chosen) + (view.to - view.from) / plotWidth(over)) - chosen);
    const keys = {
      ArrowLeft: () => onChoose(chosen - (event.shiftKey ? 1 : pixel)), ArrowRight: () => onChoose(chosen + (event.shiftKey ? 1 : pixel)),
      "+": () => zoom(0.5, centre()), "=": () => zoom(0.5, centre()), "-": () => zoom(2, centre()),
      PageUp: () => move(-0.5), PageDown: () => move(0.5), Home: () => onChoose(0), End: () => onChoose(data.events), 0: () => go(0, end()),
      Escape: () => { pinned = null; onPin(null); drawOver(); },
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
  });
  const press = (id, action) => byId(id).addEventListener("click", action);
  press("zoom-in", () => zoom(0.5, centre()));
  press("zoom-out", () => zoom(2, centre()));
  press("earlier", () => move(-0.5));
  press("later", () => move(0.5));
  press("zoom-all", () => go(0, end()));
  axis.addEventListener("change", () => { stripImage = null; go(0, end()); place(); });
  // The slider goes along the same axis as the chart.
  slider.max = STEPS;
  slider.addEventListener("input", () => onChoose(at(slider.value / STEPS * end()), true));
  const place = () => { slider.value = along(chosen) / end() * STEPS; slider.setAttribute("aria-valuetext", words(chosen)); };

  return {
    draw, show, words, bandText,
    forget() { stripImage = null; },
    choose(moment, from, sliding) {
      chosen = moment;
      since = from;
      if (!sliding) place();
      else slider.setAttribute("aria-valuetext", words(chosen));
      over.setAttribute("aria-label", "Memory over time. " + words(chosen));
      const there = along(moment);
      // Follows a moment that was chosen elsewhere.
      if (there < view.from || there > view.to) go(there - (view.to - view.from) / 2, there + (view.to - view.from) / 2);
      else drawOver();
    },
    pin(block) { pinned = block; drawOver(); },
  };
}
