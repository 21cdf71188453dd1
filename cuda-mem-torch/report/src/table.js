// The largest blocks, of the whole recording or of the chosen moment.
function makeTable(onShow) {
  const MOST = 100;
  const body = document.getElementById("blocks"), which = document.getElementById("which");
  const bySize = data.blocks.slice().sort((one, other) => other.size - one.size || one.from - other.from);
  let moment = 0;
  for (const [style, has] of [["with-address", data.addresses], ["with-stack", data.stacks.length > 0]]) {
    if (!has) document.querySelectorAll("th." + style).forEach((cell) => cell.classList.add("without"));
  }

  function row(block, place) {
    const line = document.createElement("tr");
    const add = (content) => { const cell = document.createElement("td"); cell.append(content); line.append(cell); return cell; };
    add(String(place + 1));
    add(size(block.size)).title = count(block.size) + " bytes";
    add(block.requested === block.size ? "the same" : count(block.requested) + " bytes");
    const show = document.createElement("button");
    show.type = "button";
    show.textContent = when(block.from);
    show.title = "Show this moment";
    show.addEventListener("click", () => onShow(block));
    add(show);
    add(lifetime(block));
    add(streamName(block.stream));
    if (data.addresses) add(hex(block.address));
    if (data.stacks.length) add(stack(block)).className = "with-stack";
    line.dataset.bytes = block.size;
    return line;
  }

  function stack(block) {
    if (block.stack < 0) return "not recorded";
    const details = document.createElement("details"), summary = document.createElement("summary"), list = document.createElement("ol");
    const frames = data.stacks[block.stack];
    summary.textContent = frames[0];
    list.append(...frames.map((frame) => { const item = document.createElement("li"); item.textContent = frame; return item; }));
    details.append(summary, list);
    return details;
  }

  function draw() {
    const now = which.value === "now", chosen = [];
    let found = 0;
    for (const block of bySize) {
      if (now && !(block.from <= moment && moment < block.done)) continue;
      found++;
      if (chosen.length < MOST) chosen.push(block);
    }
    body.replaceChildren(...chosen.map(row));
    document.getElementById("table-count").textContent = "showing " + count(chosen.length) + " of " + count(found);
  }
  which.addEventListener("change", draw);
  draw();
  return { choose(point) { moment = momentOf(point); if (which.value === "now") draw(); } };
}
