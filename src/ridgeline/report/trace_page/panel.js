// What stands around the canvas: tooltip, details of a span, search, legend, steps.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined && value !== false) made.setAttribute(name, value);
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

const byId = id => document.getElementById(id);

function spanFacts(data, place) {
  const process = data.processes[data.tracks[data.track[place]].process], text = (column, table) => {
    const code = data[column] ? data[column][place] : -1;
    return code >= 0 ? data[table][code] : "";
  };
  const paint = data.paints[data.paint[place]], size = data.size ? data.size[place] : -1;
  return {
    name: data.names[data.name[place]] || "(no name)",
    class: paint.class ? `${paint.id} (${data.groups[paint.id]})` : paint.id,
    track: `${process.name}, ${data.tracks[data.track[place]].stream}`,
    start: inTime(data.start[place], 9),
    duration: inTime(data.duration[place], 7),
    step: data.step[place] >= 0 ? String(data.step[place]) : "",
    op: text("op", "ops"),
    operands: text("shape", "operands"),
    collective: text("collective", "collectives"),
    bytes: size >= 0 ? inRate(size, "B") : "",
    launch: launchText(data, place),
  };
}

function launchText(data, place) {
  const call = data.launch[place];
  if (call === -2) return "in the trace, but among the spans this page does not keep";
  if (call < 0) return "";
  return `${data.names[data.name[call]]}, ${inTime(data.start[place] - data.start[call])} before`;
}

function hover(stage, event) {
  const tip = byId("tip"), found = event ? stage.hit(event.offsetX, event.offsetY) : { place: -1 };
  byId("cursor").textContent = event && found.instant !== undefined ? `at ${inTime(found.instant, 6)}` : "";
  if (stage.hovered !== found.place) {
    stage.hovered = found.place;
    stage.ask();
  }
  const merged = event && found.place < 0 ? gapText(stage, found) || blockText(stage, found) : "";
  tip.hidden = found.place < 0 && !merged;
  if (tip.hidden) return;
  tip.replaceChildren(...(merged ? [element("b", {}, merged)] : tipLines(stage.data, found.place)));
  const left = event.clientX + 14, below = event.clientY + 16;
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : below}px`;
}

function tipLines(data, place) {
  const { name, track, start, ...rest } = spanFacts(data, place);
  const lines = Object.entries({ ...rest, start }).filter(([, value]) => value);
  return [element("b", {}, name), ...lines.map(([key, value]) => element("div", {}, element("i", {}, key), value))];
}

// what the page knows of spans it does not keep
function blockText({ data }, { lane, instant }) {
  const place = Math.floor((instant / data.window_ns) * data.bins);
  const block = lane && lane.blocks && lane.blocks.find(one => data.block_place[one] === place);
  return block === undefined || !lane.blocks ? "" : `${plural(data.block_spans[block], "short span")} merged here, ${inShare(data.block_cover[block] / 65535)} covered`;
}

function details(stage, place) {
  const { data } = stage, box = byId("details");
  if (place < 0) return box.replaceChildren();
  const { name, launch, ...rest } = spanFacts(data, place);
  const rows = Object.entries(rest).filter(([, value]) => value);
  const call = data.launch[place];
  const list = element("dl", {}, ...rows.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)]));
  if (launch) list.append(element("dt", {}, "launched by"), element("dd", {}, call >= 0 ? spanButton(stage, call, launch) : launch));
  const launched = call === -1 ? launchedBy(data, place) : [];
  if (launched.length) list.append(element("dt", {}, "launches"), element("dd", {}, ...launched.map(one => spanButton(stage, one, shortName(data.names[data.name[one]])))));
  box.replaceChildren(element("h3", {}, name, element("small", {}, ` span #${rowOf(data, place)}`)), list, ...[histogram(stage, place)].filter(Boolean));
}

// work launched by a call, or by the calls within a span of the host
function launchedBy(data, place) {
  const found = [], end = endOf(data, place);
  for (let work = place + 1; work < data.count && found.length < 5; work++) {
    const call = data.launch[work];
    if (call >= place && data.track[call] === data.track[place] && endOf(data, call) <= end) found.push(work);
  }
  return found;
}

function spanButton(stage, place, text) {
  const button = element("button", { type: "button", class: "link" }, text);
  button.addEventListener("click", () => reveal(stage, place));
  return button;
}

function reveal(stage, place) {
  const there = byId("timeline-section").getBoundingClientRect();
  if (there.top < 0 || there.top > innerHeight * 0.5) byId("timeline-section").scrollIntoView({ behavior: calm() ? "auto" : "smooth" });
  stage.show(place);
}

// -- search ----------------------------------------------------------------------------------------------------------

function search(stage, text) {
  const { data } = stage, wanted = text.trim().toLowerCase();
  stage.matching = null;
  stage.found = [];
  if (wanted) {
    const matching = stage.matching = Uint8Array.from(data.names, name => Number(name.toLowerCase().includes(wanted)));
    for (let place = 0; place < data.count; place++) if (matching[data.name[place]] && !stage.hidden[data.paint[place]]) stage.found.push(place);
  }
  stage.relayer();
  stage.ask();
  const total = stage.found.reduce((sum, place) => sum + data.duration[place], 0);
  byId("matches").textContent = wanted ? `${plural(stage.found.length, "span")}${total ? `, ${inTime(total)} together` : ""}` : "";
}

function step(stage, by) {
  const { found, selected } = stage;
  if (!found || !found.length) return;
  const at = found.indexOf(selected);
  stage.show(found[at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length]);
}

function searching(stage) {
  const input = byId("search");
  let waiting = 0;
  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => search(stage, input.value), 120);
  });
  input.addEventListener("keydown", event => {
    if (event.key === "Enter") step(stage, event.shiftKey ? -1 : 1);
    if (event.key === "Escape") {
      input.value = "";
      search(stage, "");
    }
  });
  byId("next").addEventListener("click", () => step(stage, 1));
  byId("previous").addEventListener("click", () => step(stage, -1));
  document.addEventListener("keydown", event => {
    if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) {
      event.preventDefault();
      input.focus();
    }
  });
}

// -- legend, steps, buttons ------------------------------------------------------------------------------------------

function legend(stage) {
  const { data } = stage, times = data.paints.map(() => 0);
  for (let place = 0; place < data.count; place++) times[data.paint[place]] += data.duration[place];
  const weight = number => (data.paints[number].class ? 1e18 : 0) + times[number];
  const order = data.paints.map((_, number) => number).sort((a, b) => weight(b) - weight(a));
  byId("legend").replaceChildren(...order.map(number => {
    const { id } = data.paints[number];
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = hueOf(id, number);
    const button = element("button", { type: "button", "aria-pressed": "true", title: `${id}: ${inTime(times[number])} added up` }, swatch, id);
    button.addEventListener("click", () => {
      stage.hidden[number] = 1 - stage.hidden[number];
      button.setAttribute("aria-pressed", String(!stage.hidden[number]));
      stage.relayer();
      stage.ask();
    });
    return button;
  }));
}

function steps(stage) {
  const select = byId("steps"), windows = stage.data.facts.step_windows;
  select.append(element("option", { value: "" }, "all"), ...windows.map(({ step }, at) => element("option", { value: at }, String(step))));
  select.disabled = !windows.length;
  select.addEventListener("change", () => {
    if (select.value === "") return stage.fit();
    const { start_ns, end_ns } = windows[select.value], room = (end_ns - start_ns) * 0.02;
    stage.go(start_ns - room, end_ns + room);
  });
}

function buttons(stage) {
  byId("fit").addEventListener("click", () => stage.fit());
  byId("closer").addEventListener("click", () => stage.zoom(0.5, undefined, true));
  byId("further").addEventListener("click", () => stage.zoom(2, undefined, true));
  byId("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark");
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    stage.recolour();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => stage.recolour());
}
