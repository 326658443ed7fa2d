// What lies over the pixels of a frame: names, the selected span and its launch, steps; the ruler and the map.

const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";
const SAMPLE = "nvjet_sm90_tst_256x128_elementwise"; // tells how wide a letter is on average

// a kernel's name without what every template has
function shortName(name) {
  const bare = name.replace(/^void\s+/, "").replace(/^(at|c10|cutlass|cuda)::(native::)?(\(anonymous namespace\)::)?/, "");
  const cut = bare.search(/[<(]/);
  return cut > 3 ? bare.slice(0, cut) : bare;
}

function drawOver(stage) {
  const { pens, ratio, data, colours } = stage, pen = pens.canvas;
  pen.save();
  pen.scale(ratio, ratio);
  drawSteps(stage, pen);
  drawRange(stage, pen);
  drawArrows(stage, pen);
  pen.font = `11px ${FONT}`;
  pen.textBaseline = "middle";
  const wide = stage.canvas.width / ratio, letter = stage.letter ||= pen.measureText(SAMPLE).width / SAMPLE.length;
  for (const { place, y } of stage.texts) {
    const left = Math.max(0, stage.pixelAt(data.start[place])), right = Math.min(wide, stage.pixelAt(endOf(data, place)));
    const letters = Math.floor((right - left - 8) / letter);
    if (letters < 3) continue;
    const name = shortName(data.names[data.name[place]]);
    pen.fillStyle = colours.dark[data.paint[place]] ? "#ffffff" : "#10161d";
    pen.fillText(name.length > letters ? `${name.slice(0, letters - 1)}…` : name, left + 4, y - stage.stage.scrollTop + LANE / 2);
  }
  if (stage.hovered >= 0 && stage.hovered !== stage.selected) outline(stage, pen, stage.hovered, 1);
  if (stage.selected >= 0) {
    drawLaunch(stage, pen);
    outline(stage, pen, stage.selected, 2);
  }
  pen.restore();
}

// where a span is drawn; of a folded process its line
function boxOf(stage, place) {
  const { data } = stage, track = stage.tracks[data.track[place]];
  const row = stage.rows.find(one => (one.kind === "track" ? one.track === track : one.kind === "process" && one.process === track.process && stage.folded.has(track.process)));
  if (!row) return null;
  const depth = row.kind === "track" ? Math.max(0, track.lanes.findIndex(rows => includes(data, rows, place))) : 0;
  const left = stage.pixelAt(data.start[place]), right = stage.pixelAt(endOf(data, place));
  const y = row.y - stage.stage.scrollTop + (row.kind === "track" ? depth * LANE + 1 : 4);
  return { left, right, y, height: LANE - 1 };
}

function includes(data, rows, place) {
  let low = 0, high = rows.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (rows[middle] === place) return true;
    if (rows[middle] < place) low = middle + 1;
    else high = middle - 1;
  }
  return false;
}

function outline(stage, pen, place, thick) {
  const box = boxOf(stage, place);
  if (!box) return;
  pen.strokeStyle = stage.colours.css.ink;
  pen.lineWidth = thick;
  pen.strokeRect(box.left - thick / 2, box.y - thick / 2, Math.max(2, box.right - box.left) + thick, box.height + thick);
}

function drawLaunch(stage, pen) {
  const { data } = stage, call = data.launch[stage.selected];
  const to = boxOf(stage, stage.selected), from = call >= 0 && boxOf(stage, call);
  if (!from || !to || from.left < -0.3 * stage.canvas.width) return;
  const [x, y] = [from.left, from.y + from.height / 2], [u, v] = [to.left, to.y + to.height / 2];
  const bend = Math.max(20, Math.min(120, Math.abs(u - x) / 2));
  pen.strokeStyle = stage.colours.css.accent;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.bezierCurveTo(x + bend, y, u - bend, v, u, v);
  pen.stroke();
}

function drawSteps(stage, pen) {
  const steps = stage.data.facts.step_windows;
  pen.strokeStyle = stage.colours.css.rule;
  pen.lineWidth = 1;
  pen.setLineDash([3, 3]);
  pen.beginPath();
  for (const { start_ns } of steps) {
    const x = Math.round(stage.pixelAt(start_ns)) + 0.5;
    if (x < 0 || x > stage.canvas.width) continue;
    pen.moveTo(x, 0);
    pen.lineTo(x, stage.canvas.height);
  }
  pen.stroke();
  pen.setLineDash([]);
}

// -- the ruler and the map -------------------------------------------------------------------------------------------

function tickOf(room) {
  const power = 10 ** Math.floor(Math.log10(room));
  return [1, 2, 5, 10].map(times => times * power).find(tick => tick >= room);
}

function drawRuler(stage) {
  const { ratio, ruler, data } = stage, pen = stage.pens.ruler;
  const wide = ruler.width / ratio, high = ruler.height / ratio;
  pen.save();
  pen.scale(ratio, ratio);
  pen.fillStyle = stage.colours.css.paper;
  pen.fillRect(0, 0, wide, high);
  pen.font = `11px ${FONT}`;
  pen.textBaseline = "middle";
  for (const { step, start_ns, end_ns } of data.facts.step_windows) {
    const left = Math.max(-2, stage.pixelAt(start_ns)), right = Math.min(wide + 2, stage.pixelAt(end_ns));
    if (right <= left) continue;
    pen.fillStyle = stage.colours.css.band;
    pen.fillRect(left + 1, 1, Math.max(1, right - left - 2), 14);
    pen.fillStyle = stage.colours.css.faint;
    const name = right - left > 60 ? `step ${step}` : String(step);
    if (right - left > 7 * name.length + 8) pen.fillText(name, Math.max(left, 0) + 6, 8.5);
  }
  const room = ((stage.to - stage.from) / wide) * 92, tick = tickOf(room);
  const [unit, name] = stage.to - stage.from > 4e9 ? [1e9, "s"] : stage.to > 4e5 ? [1e6, "ms"] : [1e3, "µs"];
  const digits = Math.max(0, -Math.floor(Math.log10(tick / unit) + 1e-9));
  for (let at = Math.ceil(stage.from / tick) * tick; at <= stage.to; at += tick) {
    const x = Math.round(stage.pixelAt(at)) + 0.5;
    pen.fillStyle = stage.colours.css.faint;
    pen.fillRect(x - 0.5, high - 7, 1, 7);
    pen.fillText(`${(at / unit).toFixed(digits)} ${name}`, x + 4, high - 9);
  }
  pen.restore();
  stage.window.textContent = `${inTime(stage.to - stage.from)} shown`;
}

function drawMap(stage) {
  const { minimap, ratio, colours } = stage, pen = stage.pens.minimap;
  stage.mapImage ||= mapImage(stage);
  pen.putImageData(stage.mapImage.data, 0, 0);
  const room = stage.whole.to - stage.whole.from, wide = minimap.width;
  const left = ((stage.from - stage.whole.from) / room) * wide, right = ((stage.to - stage.whole.from) / room) * wide;
  pen.fillStyle = stage.colours.css.veil;
  pen.fillRect(0, 0, left, minimap.height);
  pen.fillRect(right, 0, wide - right, minimap.height);
  pen.strokeStyle = stage.colours.css.accent;
  pen.lineWidth = 1.5 * ratio;
  pen.strokeRect(left + ratio, ratio, Math.max(3, right - left - 2 * ratio), minimap.height - 2 * ratio);
}

// every track of a chip as a thin line over the whole time
function mapImage(stage) {
  const { data, minimap, ratio, colours, whole } = stage;
  const image = imageOf(stage.pens.minimap, minimap);
  image.pixels.fill(colours.paper);
  const busy = stage.tracks.filter(track => track.working);
  const tracks = busy.length ? busy : stage.tracks;
  const row = new Row(minimap.width), scale = minimap.width / (whole.to - whole.from);
  const high = Math.max(1, Math.min(8 * ratio, Math.floor((minimap.height - 4 * ratio) / Math.max(1, tracks.length))));
  tracks.forEach((track, number) => {
    row.clear();
    for (const lane of stage.layer[track.number].slice(0, track.working)) spread(data, lane, row, whole.from, scale);
    const top = Math.round(3 * ratio + number * high);
    imprint(image, row, { top, bottom: top + Math.max(1, high - 1), left: 0, shades: colours.bright, ground: colours.ground });
  });
  return image;
}
