// Charts beside the timeline: ranks by steps, collectives by size, a histogram of a kernel's durations, the path's parts.

const MEASURES = [["span_us", "step"], ["idle_us", "idle"], ["exposed_communication_us", "exposed communication"], ["compute_us", "compute"]];

// a cell for each rank and step, darker where it took longer; a click shows it
function heatMap(stage) {
  const { steps } = stage.data.facts, ranks = [...new Set(steps.map(row => row.process))], numbers = [...new Set(steps.map(row => row.step))];
  if (steps.length < 2) return;
  const grid = element("div", { class: "heat", role: "table", "aria-label": "Ranks by steps" }), choose = element("select", { id: "heat-by" }, ...MEASURES.map(([key, name]) => element("option", { value: key }, name)));
  const by = new Map(steps.map(row => [`${row.process} ${row.step}`, row]));
  const shown = numbers.slice(0, 200), told = element("output", {});
  grid.style.gridTemplateColumns = `max-content repeat(${shown.length}, minmax(8px, 1fr))`;
  const paint = () => {
    const key = choose.value, values = steps.map(row => row[key]), low = Math.min(...values), high = Math.max(...values);
    grid.replaceChildren(...ranks.flatMap(process => [element("span", { class: "rank" }, process), ...shown.map(step => {
      const row = by.get(`${process} ${step}`), cell = element("button", { type: "button", title: row ? `${process}, step ${step}: ${us(row[key])}` : "" });
      if (!row) return cell;
      const part = high > low ? (row[key] - low) / (high - low) : 0.5;
      cell.style.background = `color-mix(in srgb, var(--exposed) ${Math.round(24 + 68 * part)}%, var(--lane))`;
      cell.addEventListener("click", () => showStep(stage, process, step));
      return cell;
    })]));
    told.textContent = `${us(low)} to ${us(high)}`;
  };
  choose.addEventListener("input", paint);
  paint();
  section("heat-map", "Ranks by steps", "Each column is a step, each line a rank; darker took longer. A click shows it on the timeline.", element("p", { class: "tools" }, "By ", choose, told), grid);
}

function showStep(stage, process, step) {
  const window = stage.data.facts.step_windows.find(one => one.step === step), number = stage.data.processes.findIndex(one => one.name === process);
  if (!window) return;
  if (number >= 0 && stage.folded.has(number)) stage.fold(number, false);
  byId("timeline-section").scrollIntoView({ behavior: calm() ? "auto" : "smooth" });
  const room = (window.end_ns - window.start_ns) * 0.02;
  stage.go(window.start_ns - room, window.end_ns + room);
}

function collectives(stage) {
  const found = stage.data.facts.collectives, rows = found.by_size;
  if (!rows.length) return;
  const longest = Math.max(...rows.map(row => row.total_us), 1e-9);
  const last = row => Object.entries(row.last_ranks).sort((one, two) => two[1] - one[1]).slice(0, 3).map(([rank, many]) => `rank ${rank}: ${many}`).join(", ");
  const sizes = table([
    words("collective", "name"), { name: "size", value: row => row.payload_bytes, text: row => (row.payload_bytes ? inRate(row.payload_bytes, "B") : "") },
    { name: "ranks", value: row => row.group_size, text: row => (row.group_size ? String(row.group_size) : "") }, count("calls", "calls"),
    { name: "", left: true, cell: row => meter(row.total_us / longest, "var(--exposed)") }, time("together", "total_us"), time("median transfer", "transfer_us"), time("fastest", "fastest_us"), time("bound", "bound_us"), time("waiting", "wait_us"),
    { name: "bus bandwidth", value: row => row.busbw_gbytes_per_s || 0, text: row => (row.busbw_gbytes_per_s ? `${row.busbw_gbytes_per_s.toFixed(1)} GB/s` : "") }, share("of the link", "share_of_link"),
    { name: "came last", left: true, value: last, text: last }, { name: "show", left: true, cell: row => spanButtons(stage, row.span_ids) },
  ], rows, "Collectives by size");
  const skewed = found.by_skew.length ? element("details", {}, element("summary", {}, `By skew: ${inCount(found.matched)} matched across ranks`), table([
    words("collective", "name"), { name: "place", value: row => row.sequence, text: row => String(row.sequence) }, time("skew", "skew_us"), { name: "last", value: row => row.last_rank, text: row => `rank ${row.last_rank}` },
    time("transfer", "transfer_us"), { name: "waits by rank", left: true, cell: row => waitBars(row) }, { name: "show", left: true, cell: row => spanButtons(stage, row.span_ids.slice(0, 4)) },
  ], found.by_skew, "Collectives by skew")) : null;
  section("collectives", "Collectives", "By type and size. Transfer counts from the last rank's arrival; bus bandwidth as nccl-tests count it; the bound is what the link needs for the bytes.", sizes, skewed);
}

function waitBars(row) {
  const most = Math.max(...row.wait_us, 1e-9), box = element("span", { class: "waits" });
  row.wait_us.forEach((wait, at) => {
    const one = element("span", { title: `rank ${row.ranks[at]} waits ${us(wait)}` });
    one.style.height = `${Math.max(1, (16 * wait) / most)}px`;
    box.append(one);
  });
  return box;
}

// durations of all spans of a name, on a logarithmic scale; the selected one marked
function histogram(stage, place) {
  const { data } = stage, name = data.name[place], values = [];
  for (let at = 0; at < data.count; at++) if (data.name[at] === name && data.duration[at] > 0) values.push(data.duration[at]);
  if (values.length < 3) return null;
  const low = Math.log(Math.min(...values)), high = Math.max(low + 0.1, Math.log(Math.max(...values))), bins = 32, many = new Array(bins).fill(0);
  const binOf = value => Math.min(bins - 1, Math.floor(((Math.log(value) - low) / (high - low)) * bins));
  for (const value of values) many[binOf(value)]++;
  const most = Math.max(...many), own = binOf(Math.max(data.duration[place], Math.exp(low)));
  const box = element("div", { class: "histogram", role: "img", "aria-label": `Durations of ${values.length} spans of this name` });
  many.forEach((count, bin) => {
    const edge = Math.exp(low + ((high - low) * bin) / bins), one = element("span", { class: bin === own ? "own" : undefined, title: `${plural(count, "span")} of about ${inTime(edge, 3)}` });
    one.style.height = `${count ? Math.max(2, (56 * count) / most) : 0}px`;
    box.append(one);
  });
  values.sort((one, two) => one - two);
  const at = part => inTime(values[Math.min(values.length - 1, Math.floor(part * values.length))], 3);
  return element("div", {}, box, element("p", { class: "note" }, `${plural(values.length, "span")} of this name: ${at(0)} to ${at(1)}, median ${at(0.5)}, 99 of 100 below ${at(0.99)}`));
}

function criticalPath(stage) {
  const path = stage.data.facts.critical_path;
  if (!path) return;
  const most = Math.max(...path.parts.map(part => part.share), 1e-9);
  const parts = table([words("part", "part"), words("where", "where"), { name: "", left: true, cell: row => meter(row.share / most, "#e0342b") }, time("time", "us"), share("of the path", "share")], path.parts, "Parts of the critical path");
  const spans = element("details", {}, element("summary", {}, `The longest of ${plural(path.spans_on_it, "span")} on it`), table([words("span", "name"), time("time", "us"), { name: "show", left: true, cell: row => spanButtons(stage, [row.span_id]) }], path.spans, "Spans of the critical path"));
  const slack = element("details", {}, element("summary", {}, "Slack: how much later spans could have ended"), table([words("class", "class"), count("spans", "spans"), count("without slack", "critical"), time("median slack", "median_us")], path.slack, "Slack"));
  const edges = element("details", {}, element("summary", {}, "What it rests on"), table([words("dependency", "kind"), { name: "how", left: true, value: row => (row.recorded ? "recorded" : "inferred"), text: row => (row.recorded ? "recorded" : "inferred") }, count("edges", "edges")], path.dependencies, "Dependencies"));
  const button = element("button", { type: "button" }, "Draw it on the timeline");
  button.addEventListener("click", () => { if (!stage.shown.path) byId("show-path").click(); byId("timeline-section").scrollIntoView(); });
  section("critical-path", "Critical path", "The chain of work and waits as long as the span itself: only what is on it can make the step shorter.", stage.path ? button : null, parts, spans, slack, edges);
}
