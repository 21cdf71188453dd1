// Memory over time. The horizontal axis counts points of the curves, or microseconds.
function makeChart(onChoose) {
  const canvas = document.getElementById("chart"), strip = document.getElementById("overview");
  const axis = document.getElementById("axis");
  const LEFT = 74, TOP = 14, BOTTOM = 40;
  const timed = () => data.times !== null && axis.value === "time";
  const along = (point) => timed() ? data.times[point] : momentOf(point);
  const end = () => Math.max(along(data.points - 1), 1);
  // The last point at or before a place on the axis.
  const at = (place) => {
    let low = 0, high = data.points - 1;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (along(middle) <= place) low = middle; else high = middle - 1;
    }
    return low;
  };
  let view = { from: 0, to: end() }, chosen = 0, hover = null;

  let top = 1;
  for (let i = 0; i < data.points; i++) top = Math.max(top, data.live[i] + data.pending[i], data.reserved ? data.reserved[i] : 0);
  for (const reference of data.references) top = Math.max(top, reference.bytes);
  top *= 1.05;

  const right = (width) => data.references.length ? Math.min(250, width * 0.3) : 16;

  // The highest of a column of pixels: what is between two points of the axis.
  function columns(width, from, to) {
    const list = [];
    let first = at(from);
    for (let x = 0; x < width; x++) {
      const last = at(from + (to - from) * (x + 1) / width);
      let live = 0, active = 0, reserved = 0;
      for (let i = first; i <= last; i++) {
        if (data.live[i] > live) live = data.live[i];
        if (data.live[i] + data.pending[i] > active) active = data.live[i] + data.pending[i];
        if (data.reserved && data.reserved[i] > reserved) reserved = data.reserved[i];
      }
      list.push({ live, active, reserved });
      first = last;
    }
    return list;
  }

  function area(pen, list, value, left, y, fill) {
    pen.beginPath();
    pen.moveTo(left, y(0));
    list.forEach((column, x) => { pen.lineTo(left + x, y(value(column))); pen.lineTo(left + x + 1, y(value(column))); });
    pen.lineTo(left + list.length, y(0));
    pen.fillStyle = fill;
    pen.fill();
  }

  function curves(pen, list, left, y) {
    const fill = fills(pen);
    if (data.reserved) area(pen, list, (column) => column.reserved, left, y, fill.cached);
    area(pen, list, (column) => column.active, left, y, fill.pending);
    area(pen, list, (column) => column.live, left, y, fill.live);
    if (data.reserved) {
      pen.beginPath();
      list.forEach((column, x) => pen.lineTo(left + x + 0.5, y(column.reserved)));
      pen.strokeStyle = colour("reserved");
      pen.lineWidth = 2;
      pen.stroke();
    }
  }

  function draw() {
    const { pen, width, height } = prepare(canvas);
    const plot = { left: LEFT, width: Math.max(50, width - LEFT - right(width)), height: height - TOP - BOTTOM };
    const y = (bytes) => TOP + plot.height * (1 - bytes / top);
    const x = (place) => plot.left + (place - view.from) / (view.to - view.from) * plot.width;
    axes(pen, plot, x, y);
    pen.save();
    pen.beginPath();
    pen.rect(plot.left, 0, plot.width, height);
    pen.clip();
    curves(pen, columns(Math.floor(plot.width), view.from, view.to), plot.left, y);
    for (const event of data.outOfMemory) {
      const place = x(along(pointOf(event.moment)));
      pen.fillStyle = colour("oom");
      pen.fillRect(place - 0.5, TOP, 1, plot.height);
      cross(pen, place, TOP + 8);
    }
    marker(pen, x(along(chosen)), plot, colour("cursor"), 2);
    if (hover !== null) marker(pen, x(along(hover)), plot, colour("soft"), 1);
    pen.restore();
    references(pen, plot, width, y);
    if (hover !== null) tip(pen, x(along(hover)), plot, hover);
    overview();
    canvas.setAttribute("aria-label", "Memory over time. " + words(chosen));
  }

  function marker(pen, x, plot, style, width) {
    pen.strokeStyle = style;
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(x, TOP);
    pen.lineTo(x, TOP + plot.height);
    pen.stroke();
  }

  function axes(pen, plot, x, y) {
    pen.fillStyle = colour("soft");
    pen.strokeStyle = colour("grid");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const bytes of ticks(0, top, 6, "bytes").list) {
      pen.beginPath();
      pen.moveTo(plot.left, y(bytes));
      pen.lineTo(plot.left + plot.width, y(bytes));
      pen.stroke();
      pen.fillText(tickSize(bytes), plot.left - 8, y(bytes));
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const bottom = TOP + plot.height;
    const unit = timed() ? (view.to - view.from > 2e6 ? [1e6, "s"] : view.to - view.from > 2e3 ? [1e3, "ms"] : [1, "µs"]) : [1, ""];
    const marks = ticks(view.from / unit[0], view.to / unit[0], Math.max(2, Math.floor(plot.width / 110)), timed() ? "time" : "events");
    const digits = Math.max(0, -Math.floor(Math.log10(marks.step)));
    for (const value of marks.list) {
      const place = x(value * unit[0]);
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
  function references(pen, plot, width, y) {
    const labels = data.references.map((reference) => ({ ...reference, line: y(reference.bytes), place: y(reference.bytes) }));
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

  function words(point) {
    const live = data.live[point], pending = data.pending[point];
    let text = when(momentOf(point)) + ": live " + size(live);
    if (pending) text += ", pending " + size(pending);
    if (data.reserved) {
      text += ", cached " + size(Math.max(0, data.reserved[point] - live - pending)) + ", reserved " + size(data.reserved[point]);
    }
    return text;
  }

  function tip(pen, x, plot, point) {
    const text = words(point);
    const width = pen.measureText(text).width + 14;
    const left = Math.min(Math.max(plot.left, x - width / 2), plot.left + plot.width - width);
    pen.fillStyle = colour("panel");
    pen.strokeStyle = colour("soft");
    pen.lineWidth = 1;
    pen.fillRect(left, TOP + 2, width, 22);
    pen.strokeRect(left + 0.5, TOP + 2.5, width - 1, 21);
    pen.fillStyle = colour("text");
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(text, left + 7, TOP + 13.5);
  }

  function overview() {
    const { pen, width, height } = prepare(strip);
    const plot = Math.max(50, width - LEFT - right(width));
    curves(pen, columns(Math.floor(plot), 0, end()), LEFT, (bytes) => height * (1 - bytes / top));
    const x = (place) => LEFT + place / end() * plot;
    pen.fillStyle = colour("page");
    pen.globalAlpha = 0.7;
    pen.fillRect(LEFT, 0, x(view.from) - LEFT, height);
    pen.fillRect(x(view.to), 0, LEFT + plot - x(view.to), height);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("text");
    pen.lineWidth = 1.5;
    pen.strokeRect(x(view.from) + 0.75, 0.75, Math.max(3, x(view.to) - x(view.from) - 1.5), height - 1.5);
    pen.fillStyle = colour("soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.fillText("overview", LEFT - 8, height / 2);
  }

  function show(from, to) {
    const least = timed() ? 10 : 4 * data.step, span = Math.min(Math.max(to - from, Math.min(least, end())), end());
    from = Math.min(Math.max(0, from), end() - span);
    view = { from, to: from + span };
    draw();
  }

  const plotWidth = (element) => Math.max(50, element.clientWidth - LEFT - right(element.clientWidth));
  const placeOf = (event) => view.from + (event.offsetX - LEFT) / plotWidth(canvas) * (view.to - view.from);
  // Around a place that stays where it is.
  const zoom = (factor, around) => show(around - (around - view.from) * factor, around + (view.to - around) * factor);
  const centre = () => { const place = along(chosen); return place >= view.from && place <= view.to ? place : (view.from + view.to) / 2; };
  const move = (share) => show(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.offsetX, view, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && Math.abs(event.offsetX - drag.x) > 4) drag.moved = true;
    if (drag && drag.moved) {
      const by = (drag.x - event.offsetX) / plotWidth(canvas) * (drag.view.to - drag.view.from);
      show(drag.view.from + by, drag.view.to + by);
    } else {
      hover = at(Math.min(Math.max(placeOf(event), view.from), view.to));
      draw();
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) onChoose(at(Math.min(Math.max(placeOf(event), view.from), view.to)));
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => { hover = null; draw(); });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, placeOf(event));
  }, { passive: false });
  strip.addEventListener("pointerdown", (event) => { strip.setPointerCapture(event.pointerId); strip.onpointermove = pull; pull(event); });
  strip.addEventListener("pointerup", () => { strip.onpointermove = null; });
  const pull = (event) => {
    const middle = (event.offsetX - LEFT) / plotWidth(strip) * end(), half = (view.to - view.from) / 2;
    show(middle - half, middle + half);
  };
  canvas.addEventListener("keydown", (event) => {
    const pixel = () => Math.max(1, at(along(chosen) + (view.to - view.from) / plotWidth(canvas)) - chosen);
    const keys = {
      ArrowLeft: () => onChoose(chosen - (event.shiftKey ? 1 : pixel())), ArrowRight: () => onChoose(chosen + (event.shiftKey ? 1 : pixel())),
      "+": () => zoom(0.5, centre()), "=": () => zoom(0.5, centre()), "-": () => zoom(2, centre()),
      PageUp: () => move(-0.5), PageDown: () => move(0.5), Home: () => onChoose(0), End: () => onChoose(data.points - 1), 0: () => show(0, end()),
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
  });
  const press = (id, action) => document.getElementById(id).addEventListener("click", action);
  press("zoom-in", () => zoom(0.5, centre()));
  press("zoom-out", () => zoom(2, centre()));
  press("earlier", () => move(-0.5));
  press("later", () => move(0.5));
  press("zoom-all", () => show(0, end()));
  document.getElementById("axis-choice").hidden = data.times === null;
  axis.addEventListener("change", () => show(0, end()));

  return {
    draw,
    choose(point) {
      chosen = point;
      const place = along(point);
      // Follows a moment that was chosen elsewhere.
      if (place < view.from || place > view.to) show(place - (view.to - view.from) / 2, place + (view.to - view.from) / 2);
      else draw();
    },
    words,
  };
}
