// Turn wheels, pointers and keys into moves of the stage.

const CLICK = 4; // pixels a pointer may stray and still mean a click
const KEYS = {
  w: stage => stage.zoom(0.7, undefined, true), s: stage => stage.zoom(1 / 0.7, undefined, true),
  "+": stage => stage.zoom(0.7, undefined, true), "=": stage => stage.zoom(0.7, undefined, true),
  "-": stage => stage.zoom(1 / 0.7, undefined, true),
  a: stage => stage.pan(-0.2 * (stage.to - stage.from), true), d: stage => stage.pan(0.2 * (stage.to - stage.from), true),
  arrowleft: stage => stage.pan(-0.1 * (stage.to - stage.from), true),
  arrowright: stage => stage.pan(0.1 * (stage.to - stage.from), true),
  arrowup: stage => { stage.stage.scrollTop -= 3 * LANE; },
  arrowdown: stage => { stage.stage.scrollTop += 3 * LANE; },
  f: stage => stage.fit(), 0: stage => stage.fit(), home: stage => stage.fit(),
  enter: stage => stage.selected >= 0 && stage.show(stage.selected),
  "[": stage => neighbour(stage, -1), "]": stage => neighbour(stage, 1),
};

function listen(stage) {
  const { canvas } = stage;
  canvas.addEventListener("wheel", event => onWheel(stage, event), { passive: false });
  canvas.addEventListener("keydown", event => onKey(stage, event));
  canvas.addEventListener("dblclick", event => {
    const hit = stage.hit(event.offsetX, event.offsetY), gap = gapAt(stage, hit);
    if (gap) showGap(stage, gap);
    else if (hit.place >= 0) stage.show(hit.place);
  });
  canvas.addEventListener("pointerleave", () => hover(stage, null));
  stage.stage.addEventListener("scroll", () => stage.ask());
  addEventListener("resize", () => stage.resize());
  drags(stage);
  mapDrags(stage);
  rulerDrags(stage);
}

function onWheel(stage, event) {
  const wants = event.ctrlKey || event.metaKey || document.activeElement === stage.canvas;
  const steps = event.deltaMode === 1 ? 30 : 1, across = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    stage.pan((across * steps * stage.ratio) / stage.scale);
  } else if (wants) {
    event.preventDefault();
    stage.zoom(Math.exp(Math.max(-80, Math.min(80, event.deltaY * steps)) * 0.003), stage.instantAt(event.offsetX));
  }
}

function onKey(stage, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase();
  if (key === "escape") {
    stage.select(-1);
    stage.canvas.blur();
  } else if (KEYS[key]) {
    event.preventDefault();
    KEYS[key](stage);
  }
}

// the span before or after the selected one in its lane
function neighbour(stage, by) {
  const { data } = stage, place = stage.selected;
  const track = place >= 0 ? stage.tracks[data.track[place]] : stage.tracks.find(one => !data.processes[one.process].host) || stage.tracks[0];
  const rows = place >= 0 ? track.lanes.find(lane => includes(data, lane, place)) : track.lanes[0];
  if (!rows) return;
  const at = place >= 0 ? rows.indexOf(place) + by : 0;
  if (at < 0 || at >= rows.length) return;
  const next = rows[at], end = endOf(data, next);
  if (data.start[next] < stage.from || end > stage.to) stage.show(next);
  else stage.select(next);
}

// one pointer drags, two pinch
function drags(stage) {
  const held = new Map();
  let strayed = 0, apart = 0;
  const { canvas } = stage;
  canvas.addEventListener("pointerdown", event => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    if (held.size === 1) strayed = 0;
    apart = spreadOf(held);
  });
  canvas.addEventListener("pointermove", event => {
    const was = held.get(event.pointerId);
    if (!was) return hover(stage, event);
    const [dx, dy] = [event.offsetX - was.x, event.offsetY - was.y];
    strayed += Math.abs(dx) + Math.abs(dy);
    held.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    if (held.size === 2) {
      const now = spreadOf(held), middle = [...held.values()].reduce((sum, one) => sum + one.x / 2, 0);
      stage.zoom(apart / now, stage.instantAt(middle));
      apart = now;
    } else if (strayed > CLICK) {
      hover(stage, null);
      stage.pan((-dx * stage.ratio) / stage.scale);
      if (event.pointerType === "mouse") stage.stage.scrollTop -= dy;
    }
  });
  const release = event => {
    if (!held.delete(event.pointerId) || event.type === "pointercancel" || strayed > CLICK) return;
    const { row, place } = stage.hit(event.offsetX, event.offsetY);
    canvas.focus({ preventScroll: true });
    if (row && row.kind === "process") stage.fold(row.process, !stage.folded.has(row.process));
    else stage.select(place);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
}

function spreadOf(held) {
  if (held.size < 2) return 0;
  const [one, two] = [...held.values()];
  return Math.max(8, Math.abs(one.x - two.x));
}

// the window on the map follows the pointer
function mapDrags(stage) {
  const { minimap } = stage;
  const follow = event => {
    if (!(event.buttons & 1)) return;
    const room = stage.whole.to - stage.whole.from, half = (stage.to - stage.from) / 2;
    const middle = stage.whole.from + (event.offsetX / minimap.clientWidth) * room;
    stage.go(middle - half, middle + half, false);
  };
  minimap.addEventListener("pointerdown", event => { minimap.setPointerCapture(event.pointerId); follow(event); });
  minimap.addEventListener("pointermove", follow);
}

// a stretch drawn on the ruler becomes the view
function rulerDrags(stage) {
  const { ruler } = stage;
  let begun = null;
  ruler.addEventListener("pointerdown", event => { ruler.setPointerCapture(event.pointerId); begun = stage.instantAt(event.offsetX); });
  ruler.addEventListener("pointerup", event => {
    const ended = stage.instantAt(event.offsetX);
    if (begun !== null && Math.abs(ended - begun) * stage.scale > 6) stage.go(Math.min(begun, ended), Math.max(begun, ended));
    begun = null;
  });
}
