// Start the page, and measure it when asked.

async function start() {
  const data = await readData();
  header(data);
  const stage = new Stage(data);
  layersOf(stage);
  rangeDrags(stage);
  stage.listeners.push(place => details(stage, place));
  for (const part of [findings, breakdown, heatMap, classes, ops, rates, idle, flame, collectives, criticalPath, whatIfForm, rest, doubts]) part(stage);
  navigation();
  legend(stage);
  layerButtons(stage);
  steps(stage);
  searching(stage);
  buttons(stage);
  stage.resize();
  listen(stage);
  window.ridgeline = { stage, whatIf: (factors, noGaps) => whatIf(data, new Map(factors), noGaps), rangeParts: (from, to) => rangeParts(stage, from, to), flameOf: (from, to) => flameOf(stage, from, to), showGap: gap => showGap(stage, gap), measure: count => measure(stage, count) };
}

// milliseconds a frame takes to draw while the view zooms in, pans and zooms out; the last pixel is read, so that
// nothing is left to be drawn later
async function measure(stage, frames = 60) {
  const taken = [], gaps = [], { from, to } = stage.whole, wide = to - from;
  let last = 0;
  for (let frame = 0; frame < frames; frame++) {
    const part = frame / (frames - 1), zoom = Math.min(part, 1 - part) * 2;
    const room = wide * Math.exp(-8 * zoom), middle = from + wide * (0.3 + 0.4 * part);
    const now = await new Promise(requestAnimationFrame);
    if (last) gaps.push(now - last);
    last = now;
    const begun = performance.now();
    Object.assign(stage, { from: middle - room / 2, to: middle + room / 2 });
    stage.draw();
    stage.pens.canvas.getImageData(0, 0, 1, 1);
    taken.push(performance.now() - begun);
  }
  stage.fit(false);
  window.__frames = { frames, spans: stage.data.count, drawing: summary(taken), between: summary(gaps) };
  return window.__frames;
}

function summary(values) {
  const order = [...values].sort((a, b) => a - b), at = share => order[Math.min(order.length - 1, Math.floor(share * order.length))];
  return { mean: order.reduce((sum, value) => sum + value, 0) / order.length, median: at(0.5), p95: at(0.95), longest: order[order.length - 1] };
}

start().catch(wrong => {
  byId("about").textContent = `This page cannot be shown: ${wrong.message}`;
  throw wrong;
});
