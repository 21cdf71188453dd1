// Two snapshots by call site: what each held, at its end or at its peak.
function makeCompare() {
  const section = byId("compare-section"), search = byId("compare-search"), when = byId("compare-when"), body = byId("compare-rows");
  section.hidden = !raw.before;
  if (!raw.before) return { show() {} };
  let rows = [], order = "change", down = true;

  function gather() {
    // Where each recording has one device beside pinned host memory, these two are compared, also of two ranks. Else a device that the
    // earlier snapshot lacks held nothing then.
    const devices = (list) => list.length === 1 ? list : list.filter((it) => it.device !== null), shown = raw.spaces[data.place];
    const now = devices(raw.spaces), then = devices(raw.before.spaces), areOnly = now.length === 1 && now[0] === shown && then.length === 1;
    const earlier = areOnly ? then[0] : raw.before.spaces.find((it) => it.device === shown.device), sums = new Map();
    const of = (site) => { if (!sums.has(site)) sums.set(site, { site, before: 0, blocksBefore: 0, after: 0, blocksAfter: 0 }); return sums.get(site); };
    for (const [stack, bytes, blocks] of earlier ? earlier[when.value] : []) { const sum = of(siteOfStack[stack]); sum.before += bytes; sum.blocksBefore += blocks; }
    const moment = when.value === "end" ? data.events : data.peak;
    for (const [site, held] of holders(data, snapped(data, moment), "site")) { const sum = of(site); sum.after += held.bytes; sum.blocksAfter += held.blocks; }
    rows = [...sums.values()].map((sum) => ({ ...sum, change: sum.after - sum.before, text: siteText(sites[sum.site]) }));
  }

  function draw() {
    const wanted = search.value.trim().toLowerCase(), found = rows.filter((row) => row.text.toLowerCase().includes(wanted));
    const by = { name: (row) => row.text, before: (row) => row.before, after: (row) => row.after, change: (row) => Math.abs(row.change) }[order];
    found.sort((one, other) => { const a = by(one), b = by(other); return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1); });
    body.replaceChildren(...found.slice(0, 300).map((row) => {
      const tr = document.createElement("tr"), add = (content, style) => tr.append(element("td", content, style));
      add(siteNode(sites[row.site]), "name");
      add(size(row.before)); add(count(row.blocksBefore)); add(size(row.after)); add(count(row.blocksAfter));
      add(row.change ? signed(row.change) : "same", row.change > 0 ? "up" : row.change < 0 ? "down" : "");
      tr.dataset.change = row.change;
      return tr;
    }));
    const sum = (key) => found.reduce((total, row) => total + row[key], 0);
    byId("compare-total").replaceChildren(...["all", size(sum("before")), count(sum("blocksBefore")), size(sum("after")), count(sum("blocksAfter")), signed(sum("change"))].map((text) => element("td", text)));
    for (const head of document.querySelectorAll("#compare-head button")) head.parentElement.setAttribute("aria-sort", head.dataset.order !== order ? "none" : down ? "descending" : "ascending");
  }

  byId("compare-name").textContent = raw.before.name;
  search.addEventListener("input", draw);
  when.addEventListener("change", () => { gather(); draw(); });
  for (const head of document.querySelectorAll("#compare-head button")) head.addEventListener("click", () => { if (order === head.dataset.order) down = !down; else { order = head.dataset.order; down = order !== "name"; } draw(); });
  return { show() { gather(); draw(); } };
}
