// What if: replay the dependencies of the trace with other lags, in the page.
//
//   t(point) = max over what it waits for of (t + lag) + delay(point)          edges of one target stand together

const HOST_EDGE = 1, FIRST_CLASS = 2, GONE = -1e300;

function rootsOf(data) {
  const found = new Uint8Array(data.point_delay.length).fill(1);
  for (let edge = 0; edge < data.edge_target.length; edge++) found[data.edge_target[edge]] = 0;
  return found;
}

function replay(data, lag, delay) {
  const { edge_source: source, edge_target: target } = data, time = Float64Array.from(delay), roots = (data.roots ||= rootsOf(data));
  for (let point = 0; point < time.length; point++) if (!roots[point]) time[point] = 0;
  let edge = 0;
  while (edge < target.length) {
    const point = target[edge];
    let ready = GONE;
    for (; edge < target.length && target[edge] === point; edge++) ready = Math.max(ready, time[source[edge]] + lag[edge]);
    time[point] = ready + delay[point];
  }
  return time;
}

// mean over chips of the time from the first start to the last end of work
function spanOf(data, time) {
  const first = [], last = [];
  for (let point = 0; point < time.length; point++) {
    const code = data.point_chip[point];
    if (!code) continue;
    const chip = (code - 1) >> 1;
    if (code % 2) first[chip] = Math.min(first[chip] ?? Infinity, time[point]);
    else last[chip] = Math.max(last[chip] ?? -Infinity, time[point]);
  }
  const spans = first.map((at, chip) => last[chip] - at).filter(Number.isFinite);
  return spans.reduce((sum, one) => sum + one, 0) / Math.max(1, spans.length);
}

// factors by class number, and whether the host takes no time
function whatIf(data, factors, noGaps) {
  data.measured ||= replay(data, data.edge_lag, data.point_delay);
  const lag = Float64Array.from(data.edge_lag), delay = Float64Array.from(data.point_delay);
  for (let edge = 0; edge < lag.length; edge++) {
    const factor = factors.get(data.edge_what[edge] - FIRST_CLASS);
    if (factor && data.edge_what[edge] >= FIRST_CLASS) lag[edge] = Math.round(lag[edge] / factor);
    if (noGaps && data.edge_what[edge] === HOST_EDGE) lag[edge] = Math.min(lag[edge], 0);
  }
  if (noGaps) unheld(data, delay);
  const before = spanOf(data, data.measured), after = spanOf(data, replay(data, lag, delay));
  return { before, after, gain: before ? 1 - after / before : 0 };
}

// what the host held back is late no more
function unheld(data, delay) {
  const { edge_source: source, edge_target: target, edge_lag: lag, edge_what: what, measured, roots } = data;
  const last = new Float64Array(delay.length).fill(GONE), host = new Float64Array(delay.length).fill(GONE);
  for (let edge = 0; edge < target.length; edge++) {
    const reach = measured[source[edge]] + lag[edge], point = target[edge];
    if (reach > last[point]) last[point] = reach;
    if (what[edge] === HOST_EDGE && reach > host[point]) host[point] = reach;
  }
  for (let point = 0; point < delay.length; point++) if (!roots[point] && host[point] >= last[point]) delay[point] = 0;
}

function whatIfForm(stage) {
  const { data } = stage;
  if (!data.edge_source) return;
  const select = element("select", { id: "what-class" }, element("option", { value: "" }, "nothing"), ...data.replay_classes.map((name, code) => element("option", { value: code }, name)));
  const factor = element("input", { id: "what-factor", type: "number", min: "0.1", max: "1000", step: "any", value: "2" });
  const gaps = element("input", { id: "what-gaps", type: "checkbox" });
  const answer = element("output", { id: "what-answer" });
  const ask = () => {
    const factors = new Map(), times = Number(factor.value);
    if (select.value !== "" && times > 0) factors.set(Number(select.value), times);
    const { before, after, gain } = whatIf(data, factors, gaps.checked);
    answer.textContent = `${inTime(before)} becomes ${inTime(after)}: ${gain >= 0 ? "" : "+"}${inShare(gain >= 0 ? gain : -gain)} ${gain >= 0 ? "less" : "more"}`;
  };
  for (const one of [select, factor, gaps]) one.addEventListener("input", ask);
  const form = element("p", { class: "tools" }, "What if ", select, " took 1 / ", factor, " of its time", element("label", {}, gaps, " and launches took none"), answer);
  section("replay", "What if", "Every dependency of the trace is replayed in this page: time that was hidden behind what is removed appears. `--what-if` asks for more: overlap, fusing.", form);
  ask();
}
