// Blocks, of the whole recording or of the chosen moment, the largest first.
function makeTable(onShow) {
  const FIRST = 25, MORE = 200;
  const body = byId("blocks"), which = byId("which"), search = byId("block-search");
  let moment = 0, sorted = [], order = "size", down = true, shown = FIRST;

  function row(block, place) {
    const line = document.createElement("tr");
    const add = (content, style) => { const cell = element("td", content, style); line.append(cell); return cell; };
    add(String(place + 1));
    add(size(block.size)).title = count(block.size) + " bytes";
    add(block.requested === block.size ? "the same" : count(block.requested) + " bytes");
    const show = button(when(block.from), () => onShow(block));
    show.title = "Show this moment";
    add(show);
    add(lifetime(block));
    add(streamName(block.stream));
    add(data.addresses ? hex(block.address) : "");
    add(stack(block), "name");
    line.dataset.bytes = block.size;
    return line;
  }

  function stack(block) {
    if (!block.stack) return "not recorded";
    const details = document.createElement("details"), summary = document.createElement("summary");
    summary.append(siteNode(sites[siteOf(block)]));
    details.append(summary);
    // Filled when it is opened: most never are.
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(stackList(block.stack)); });
    return details;
  }

  function draw() {
    const now = which.value === "now", wanted = search.value.trim().toLowerCase(), chosen = [];
    const named = new Map(), fits = (site) => { if (!named.has(site)) named.set(site, siteText(sites[site]).toLowerCase().includes(wanted)); return named.get(site); };
    let found = 0, bytes = 0;
    for (const block of sorted) {
      if (now && !(block.from <= moment && moment < block.done)) continue;
      if (wanted && !fits(siteOf(block)) && !hex(block.address).includes(wanted)) continue;
      found++;
      bytes += block.size;
      if (chosen.length < shown) chosen.push(block);
    }
    body.replaceChildren(...chosen.map(row));
    byId("table-count").textContent = "showing " + count(chosen.length) + " of " + count(found) + (data.omittedBlocks || data.restBlocks ? " that are listed" : "") + ", " + size(bytes) + " in all";
    byId("table-more").hidden = found <= shown;
    for (const head of document.querySelectorAll("#block-head button")) head.parentElement.setAttribute("aria-sort", head.dataset.order !== order ? "none" : down ? "descending" : "ascending");
  }

  function sort() {
    const life = (block) => Math.min(block.freed, data.events) - block.from;
    const by = { size: (block) => block.size, from: (block) => block.from, life, stream: (block) => block.stream, address: (block) => block.address, name: (block) => siteText(sites[siteOf(block)]) }[order];
    sorted = data.blocks.slice().sort((one, other) => { const a = by(one), b = by(other); return (a < b ? -1 : a > b ? 1 : other.from - one.from) * (down ? -1 : 1); });
    draw();
  }
  which.addEventListener("change", draw);
  search.addEventListener("input", draw);
  byId("table-more").addEventListener("click", () => { shown += MORE; draw(); });
  for (const head of document.querySelectorAll("#block-head button")) head.addEventListener("click", () => { if (order === head.dataset.order) down = !down; else { order = head.dataset.order; down = order === "size" || order === "life"; } sort(); });
  return { show() { shown = FIRST; sort(); }, choose(at) { moment = at; if (which.value === "now") draw(); } };
}
