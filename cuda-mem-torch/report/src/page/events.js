// What happened around the chosen moment, and the allocations that failed.
function makeEvents(onChoose, onShow) {
  const body = byId("event-rows"), filter = byId("event-filter"), AROUND = 200, SHOWN = 25;
  let moment = 0;

  function around() {
    const low = Math.max(1, moment - AROUND * 8), high = Math.min(data.events, moment + AROUND * 8), list = [];
    const add = (at, what, size, address, stream, stack, block) => { if (at >= low && at <= high) list.push({ at, what, size, address, stream, stack, block }); };
    for (const block of data.blocks) {
      if (block.from > high || block.done < low) continue;
      add(block.from, "allocated", block.requested, block.address, block.stream, block.stack, block);
      if (block.freed !== NEVER) {
        add(block.freed, block.done === block.freed ? "freed" : "free requested", block.requested, block.address, block.stream, block.stack, block);
        if (block.done !== block.freed && block.done !== NEVER) add(block.done, "free completed", block.requested, block.address, block.stream, block.stack, block);
      }
    }
    for (const segment of data.segments) {
      add(segment.from, "mapped", segment.size, segment.address, segment.stream, 0, null);
      if (segment.to !== NEVER) add(segment.to, "unmapped", segment.size, segment.address, segment.stream, 0, null);
    }
    for (const event of data.outOfMemory) add(event.moment, "out of memory", event.requested, null, event.stream, event.stack, null);
    return list.sort((one, other) => one.at - other.at);
  }

  function draw() {
    const wanted = filter.value, list = around().filter((event) => wanted === "all" || event.what.startsWith(wanted));
    let next = list.findIndex((event) => event.at > moment);
    if (next < 0) next = list.length;
    const shown = list.slice(Math.max(0, next - SHOWN), next + SHOWN);
    body.replaceChildren(...shown.map((event) => {
      const tr = document.createElement("tr"), add = (content, style) => tr.append(element("td", content, style));
      if (event.at === moment) tr.className = "here";
      if (event.what === "out of memory") tr.classList.add("failed");
      const go = button(count(event.at), () => { onChoose(event.at); if (event.block && event.block.from <= event.at && event.at < event.block.done) onShow(event.block, event.at); });
      add(go);
      if (data.times) add(duration(timeAt(event.at)));
      else add("");
      add(event.what, "word");
      add(size(event.size));
      add(event.stream === null || event.stream === undefined ? "" : streamName(event.stream));
      add(event.address === null || !data.addresses ? "" : hex(event.address));
      add(event.stack ? siteNode(sites[siteOfStack[event.stack]]) : "", "name");
      return tr;
    }));
    const here = body.querySelector(".here"), scroll = body.closest(".scroll");
    if (here) scroll.scrollTop = here.offsetTop - scroll.clientHeight / 2;
    byId("event-count").textContent = !data.events ? "The recording has no events." : shown.length ? "" : inWindow(data, moment) ? "No such event near this moment." : "Around this moment events are summed up: choose one within a highlighted part, or one of the failed allocations.";
  }

  function failures() {
    const place = byId("failures");
    place.hidden = !data.outOfMemory.length;
    byId("failure-rows").replaceChildren(...data.outOfMemory.slice(-100).map((event) => {
      const before = Math.max(0, event.moment - 1), ranges = data.addresses && inWindow(data, before) ? freeRanges(data, before) : [];
      const most = (list) => list.reduce((best, range) => Math.max(best, range.size), 0), total = ranges.reduce((sum, range) => sum + range.size, 0);
      const mine = most(ranges.filter((range) => range.segment.stream === event.stream)), tr = document.createElement("tr"), add = (content, style) => tr.append(element("td", content, style));
      add(button(when(event.moment), () => onChoose(before)));
      add(size(event.requested));
      add(event.free === null ? "not recorded" : size(event.free));
      add(size(total));
      add(size(mine));
      add(size(most(ranges)));
      add(most(ranges) >= event.requested ? "yes, " + (mine >= event.requested ? "on its stream" : "on another stream") : total >= event.requested ? "only in pieces" : "no");
      add(event.stack ? siteNode(sites[siteOfStack[event.stack]]) : "not recorded", "name");
      tr.dataset.fitting = most(ranges);
      return tr;
    }));
    byId("failure-note").textContent = data.omittedMarks ? count(data.omittedMarks) + " earlier ones are not listed." : "";
  }

  filter.addEventListener("change", draw);
  return { show: failures, choose(at) { moment = at; draw(); } };
}
