// What is drawn over or beside the spans of a chip: gaps by cause, the critical path, launch arrows.

const GAPS = { host: "#e07b39", synchronisation: "#d9a92f", "data loading": "#b0604f", "start-up": "#9a6fb0", communication: "#d6468c",
  copy: "#4aa564", "between kernels": "#c9ced6", dependency: "#8d8f94", unlinked: "#b9bcc2" };
const ARROWS = 160; // a frame has room for

// lanes of gaps by process and of path pieces by track: each with data of its own, drawn like spans
function layersOf(stage) {
  const { data } = stage;
  const made = (start, length, paint) => ({ start, duration: length, paint, window_ns: data.window_ns });
  stage.gaps = data.gap_start ? { data: made(data.gap_start, data.gap_length, data.gap_cause), lanes: grouped(data.gap_process) } : null;
  stage.path = data.path_start ? { data: made(data.path_start, data.path_length, new Uint16Array(data.path_start.length)), lanes: grouped(data.path_track) } : null;
  for (const one of [stage.gaps, stage.path]) {
    if (one) for (const [key, rows] of one.lanes) one.lanes.set(key, laneOf(one.data, rows));
  }
  stage.shown = { gaps: true, path: false, arrows: false };
}

function grouped(codes) {
  const found = new Map();
  codes.forEach((code, at) => { if (!found.has(code)) found.set(code, []); found.get(code).push(at); });
  for (const [code, rows] of found) found.set(code, Int32Array.from(rows));
  return found;
}

// shades of other colours than the classes'
function shadesOf(hexes) {
  const ground = channels(variable("--band")), found = new Uint32Array(hexes.length * SHADES);
  hexes.forEach((hex, number) => {
    for (let shade = 0; shade < SHADES; shade++) found[number * SHADES + shade] = packedColour(blend(ground, channels(hex), Math.max(0.35, shade / (SHADES - 1))));
  });
  return found;
}

function drawGaps(stage, process, y, bottom) {
  const lane = stage.shown.gaps && stage.gaps && stage.gaps.lanes.get(process);
  if (!lane) return;
  stage.gapShades ||= shadesOf(stage.data.gap_causes.map(cause => GAPS[cause] || "#8d8f94"));
  stage.row.clear();
  spread(stage.gaps.data, lane, stage.row, stage.from, stage.scale);
  const inset = Math.round(6 * stage.ratio);
  imprint(stage.image, stage.row, { top: y + inset, bottom: bottom - inset, left: 0, shades: stage.gapShades });
}

function drawPath(stage, track, y, bottom) {
  const lane = stage.shown.path && stage.path && stage.path.lanes.get(track);
  if (!lane) return;
  stage.pathShades ||= shadesOf(["#e0342b"]);
  stage.row.clear();
  spread(stage.path.data, lane, stage.row, stage.from, stage.scale);
  imprint(stage.image, stage.row, { top: bottom - Math.round(4 * stage.ratio), bottom, left: 0, shades: stage.pathShades });
}

// from the call to each span that is wide enough to have a name
function drawArrows(stage, pen) {
  if (!stage.shown.arrows) return;
  pen.strokeStyle = stage.colours.css.accent;
  pen.globalAlpha = 0.45;
  pen.lineWidth = 1;
  pen.beginPath();
  let drawn = 0;
  for (const { place } of stage.texts) {
    const call = stage.data.launch[place];
    if (call < 0 || drawn++ >= ARROWS) continue;
    const from = boxOf(stage, call), to = boxOf(stage, place);
    if (!from || !to) continue;
    const [x, y] = [from.left, from.y + from.height / 2], [u, v] = [to.left, to.y + to.height / 2], bend = Math.max(10, Math.min(80, Math.abs(u - x) / 2));
    pen.moveTo(x, y);
    pen.bezierCurveTo(x + bend, y, u - bend, v, u, v);
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function layerButtons(stage) {
  const box = byId("layers");
  const add = (key, text, there) => {
    if (!there) return;
    const button = element("button", { type: "button", id: `show-${key}`, "aria-pressed": String(stage.shown[key]) }, text);
    button.addEventListener("click", () => {
      stage.shown[key] = !stage.shown[key];
      button.setAttribute("aria-pressed", String(stage.shown[key]));
      if (key === "arrows" && stage.shown.arrows) stage.openHosts();
      stage.ask();
    });
    box.append(button);
  };
  add("gaps", "Idle by cause", stage.gaps);
  add("path", "Critical path", stage.path);
  add("arrows", "Launches", stage.data.launch.some(call => call >= 0));
  if (!stage.gaps) return;
  const used = new Set(stage.data.gap_cause);
  stage.data.gap_causes.forEach((cause, code) => {
    if (!used.has(code)) return;
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = GAPS[cause] || "#8d8f94";
    box.append(element("span", { class: "gapkey" }, swatch, cause));
  });
}

// the gap under an instant on a chip, in words
function gapText(stage, { row, instant }) {
  if (!row || row.kind !== "process" || !stage.gaps) return "";
  const lane = stage.gaps.lanes.get(row.process);
  const at = lane ? spanAt(stage.gaps.data, lane, instant, 0) : -1;
  return at < 0 ? "" : `idle ${inTime(stage.data.gap_length[at])}: ${stage.data.gap_causes[stage.data.gap_cause[at]]}`;
}

// the gap under an instant on a chip's line, as a finding would name it
function gapAt(stage, { row, instant }) {
  if (!row || row.kind !== "process" || !stage.gaps) return null;
  const lane = stage.gaps.lanes.get(row.process), { data } = stage;
  const at = lane ? spanAt(stage.gaps.data, lane, instant, 0) : -1;
  if (at < 0) return null;
  const start = data.gap_start[at] + data.first_ns;
  return { process: data.processes[row.process].name, start_us: start / 1e3, end_us: (start + data.gap_length[at]) / 1e3 };
}

// zoom to a gap of a finding: its chip, and the host of its rank opened below
function showGap(stage, gap) {
  const { data } = stage, start = gap.start_us * 1e3 - data.first_ns, end = gap.end_us * 1e3 - data.first_ns;
  const chip = data.processes.findIndex(one => one.name === gap.process);
  const rank = chip >= 0 ? data.processes[chip].rank : -1;
  data.processes.forEach((one, number) => { if (one.rank === rank) stage.folded.delete(number); });
  stage.resize();
  byId("timeline-section").scrollIntoView({ behavior: calm() ? "auto" : "smooth" });
  const room = (end - start) * 0.15;
  stage.go(start - room, end + room);
  stage.range = { from: start, to: end, rank: rank >= 0 ? rank : null };
  rangeDetails(stage, gap.host || []);
}
