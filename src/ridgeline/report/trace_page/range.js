// A stretch of time that is selected (Shift and drag), and what ran in it.

function rangeDrags(stage) {
  const { canvas, ruler } = stage;
  for (const one of [canvas, ruler]) {
    let begun = null;
    one.addEventListener("pointerdown", event => {
      if (!event.shiftKey || event.button) return;
      event.stopImmediatePropagation();
      event.preventDefault();
      one.setPointerCapture(event.pointerId);
      begun = stage.instantAt(event.offsetX);
      stage.range = { from: begun, to: begun };
    }, true);
    one.addEventListener("pointermove", event => {
      if (begun === null) return;
      event.stopImmediatePropagation();
      const now = stage.instantAt(event.offsetX);
      stage.range = { from: Math.min(begun, now), to: Math.max(begun, now) };
      stage.ask();
    }, true);
    one.addEventListener("pointerup", event => {
      if (begun === null) return;
      event.stopImmediatePropagation();
      begun = null;
      if ((stage.range.to - stage.range.from) * stage.scale < 4) stage.range = null;
      rangeDetails(stage);
      stage.ask();
    }, true);
  }
}

function drawRange(stage, pen) {
  if (!stage.range) return;
  const left = stage.pixelAt(stage.range.from), right = stage.pixelAt(stage.range.to), high = stage.canvas.height / stage.ratio;
  pen.fillStyle = stage.colours.css.accent;
  pen.globalAlpha = 0.12;
  pen.fillRect(left, 0, Math.max(1, right - left), high);
  pen.globalAlpha = 1;
  pen.strokeStyle = stage.colours.css.accent;
  pen.lineWidth = 1;
  pen.strokeRect(left + 0.5, 0.5, Math.max(1, right - left), high - 1);
}

// time by class and by cause of idleness in a stretch, chips added up and divided; unions, so that nothing counts twice
function rangeParts(stage, from, to) {
  const { data } = stage, chips = new Set(), ends = new Map(), busy = new Map(), classes = new Map();
  for (let place = 0; place < data.count; place++) {
    if (data.start[place] >= to) break;
    const paint = data.paint[place], process = data.tracks[data.track[place]].process;
    if (!data.paints[paint].class || data.processes[process].host) continue;
    const begin = Math.max(from, data.start[place]), end = Math.min(to, endOf(data, place));
    if (end <= begin) continue;
    chips.add(process);
    const key = `${process} ${paint}`;
    const fresh = (table, name) => { const last = table.get(name) ?? from, own = Math.max(0, end - Math.max(last, begin)); table.set(name, Math.max(last, end)); return own; };
    classes.set(paint, (classes.get(paint) || 0) + fresh(ends, key));
    busy.set(process, (busy.get(process) || 0) + fresh(ends, `all ${process}`));
  }
  const many = Math.max(1, chips.size), idle = new Map();
  if (data.gap_start) {
    for (let at = 0; at < data.gap_start.length; at++) {
      const own = Math.min(to, data.gap_start[at] + data.gap_length[at]) - Math.max(from, data.gap_start[at]);
      if (own > 0) idle.set(data.gap_cause[at], (idle.get(data.gap_cause[at]) || 0) + own);
    }
  }
  return { length: to - from, many, busy: [...busy.values()].reduce((sum, one) => sum + one, 0) / many, classes, idle };
}

function rangeDetails(stage, host = []) {
  const box = byId("range"), { data, range } = stage;
  if (stage.flame) stage.flame(range);
  if (!range) return box.replaceChildren();
  const { length, many, busy, classes, idle } = rangeParts(stage, range.from, range.to);
  const line = (name, colour, ns) => {
    const part = meter(ns / length);
    part.firstChild.style.background = colour;
    return [element("dt", {}, name), element("dd", { class: "parts" }, part, `${inTime(ns)}, ${inShare(ns / length)}`)];
  };
  const order = table => [...table].sort((one, two) => two[1] - one[1]).slice(0, 12);
  const list = element("dl", {},
    ...line("busy", "var(--accent)", busy),
    ...order(classes).flatMap(([paint, ns]) => line(data.paints[paint].id, hueOf(data.paints[paint].id, paint), ns / many)),
    ...order(idle).flatMap(([cause, ns]) => line(`idle: ${data.gap_causes[cause]}`, GAPS[data.gap_causes[cause]], ns / many)));
  const close = element("button", { type: "button" }, "Let go");
  close.addEventListener("click", () => { stage.range = null; rangeDetails(stage); stage.ask(); });
  const told = host.length ? host.map(one => [one.name, data.place.get(one.span_id) ?? -1, us(one.duration_us)])
    : stackOf(stage, range.from, range.to, range.rank ?? null).map(one => [data.names[one.name], one.longest, inTime(one.ns)]);
  const stack = told.length ? element("div", {}, element("h3", {}, "What the host did meanwhile, outermost first"),
    element("ol", { class: "stack" }, ...told.map(([name, place, time]) => element("li", {}, place >= 0 ? spanButton(stage, place, name) : name, ` ${time}`))),
    element("p", { class: "note" }, element("a", { href: "#flame" }, "all stacks of this stretch"))) : null;
  box.replaceChildren(element("h3", {}, `${inTime(length)} selected`, element("small", {}, many > 1 ? `, mean of ${many} chips` : "")), close, list, ...(stack ? [stack] : []));
}
