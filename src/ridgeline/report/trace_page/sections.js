// The sections of the report, in the order they stand on the page.

const KNOWN = new Set([
  "kind", "sources", "format", "chip_name", "chip", "span_us", "busy_us", "idle_us", "compute_us", "communication_us", "copy_us",
  "exposed_communication_us", "overlap_fraction", "policy", "policy_statement", "counted_spans", "classes", "top_ops", "idle_causes",
  "findings", "op_rates", "launches", "unknown_ops", "chips", "steps", "streams", "kept", "dropped", "warnings", "title", "roof",
  "step_windows", "collectives", "critical_path",
]);
const us = value => inTime(value * 1e3);
const time = (name, key) => ({ name, value: row => row[key], text: row => (row[key] === undefined || row[key] === null ? "" : us(row[key])) });
const share = (name, key) => ({ name, value: row => row[key], text: row => inShare(row[key]) });
const count = (name, key) => ({ name, value: row => row[key], text: row => inCount(row[key]) });
const words = (name, key) => ({ name, left: true, value: row => String(row[key] ?? ""), cell: row => element("span", { class: "words", title: row[key] ?? "" }, row[key] ?? "") });

function section(id, title, note, ...children) {
  const content = children.filter(Boolean);
  if (!content.length) return;
  const head = element("h2", {}, title);
  byId("sections").append(element("section", { id }, head, note ? element("p", { class: "note" }, note) : null, ...content));
}

function header({ facts, count: kept, of, processes }) {
  const ranks = new Set(processes.filter(process => !process.host).map(process => process.rank)).size;
  const about = [ranks > 1 ? `${ranks} ranks, mean of their times` : "one rank", `${inCount(of)} spans${kept < of ? `, ${inCount(kept)} of them kept here` : ""}`];
  byId("about").textContent = about.filter(Boolean).join(" · ");
  byId("policy").replaceChildren(element("b", {}, `counted ${facts.policy}`), ` ${facts.policy_statement}`);
  const all = [["span_us", "span"], ["busy_us", "busy"], ["idle_us", "idle"], ["compute_us", "compute"], ["communication_us", "communication"], ["exposed_communication_us", "exposed"], ["copy_us", "copies"]];
  const some = all.filter(([key]) => key === "span_us" || key === "busy_us" || facts[key] > 0);
  byId("facts").replaceChildren(...some.map(([key, name]) => element("div", { class: key.replace(/_us$/, "") }, element("b", {}, us(facts[key])), element("span", {}, key === "span_us" ? name : `${name} ${inShare(facts[key] / (facts.span_us || 1))}`))));
  if (facts.overlap_fraction !== null && facts.communication_us > 0) byId("facts").append(element("div", {}, element("b", {}, inShare(facts.overlap_fraction)), element("span", {}, "of communication overlapped")));
}

function findings(stage) {
  const { findings: found } = stage.data.facts;
  byId("findings-section").hidden = false;
  if (!found.length) return byId("findings").replaceWith(element("p", { class: "note" }, "Nothing costs more than 1 % of the span."));
  const most = Math.max(...found.map(one => one.predicted_gain), 1e-9);
  byId("findings").append(...found.map(one => element("li", {},
    element("div", { class: "gain" }, element("b", {}, inShare(one.predicted_gain)), meter(one.predicted_gain / most)),
    element("div", {}, element("strong", {}, one.what), element("p", {}, one.action),
      element("p", { class: "proof" }, `${inShare(one.share_of_step)} of the span; shown by `, gapButton(stage, one.gap), spanButtons(stage, one.evidence.map(span => span.span_id)))))));
}

// the gap itself, not the span behind it
function gapButton(stage, gap) {
  if (!gap) return "";
  const button = element("button", { type: "button", class: "link gap" }, `the longest gap, ${us(gap.end_us - gap.start_us)}`);
  button.addEventListener("click", () => showGap(stage, gap));
  return button;
}

function breakdown({ data: { facts } }) {
  const key = element("p", { class: "key note" }, ...PARTS.map(([id, name]) => element("span", {}, element("span", { class: `swatch ${id}` }), name)));
  const columns = [time("span", "span_us"), time("busy", "busy_us"), time("idle", "idle_us"), time("compute", "compute_us"), time("communication", "communication_us"), time("exposed", "exposed_communication_us"), time("copy", "copy_us"), share("overlapped", "overlap_fraction"), count("spans", "spans")];
  const parts = [["By rank", facts.chips, [words("rank", "process")]], ["By step", facts.steps, [words("rank", "process"), { name: "step", value: row => row.step, text: row => String(row.step) }]], ["By stream", facts.streams, [words("rank", "process"), words("stream", "stream")]]];
  const tables = parts.filter(([, rows]) => rows.length).map(([title, rows, first], at) => {
    const longest = Math.max(...rows.map(row => row.span_us));
    const whole = { name: "", left: true, cell: row => bar(row, longest) };
    return element("details", at < 2 ? { open: "" } : {}, element("summary", {}, title), table([...first, whole, ...columns], rows, title));
  });
  section("breakdown", "Where the time went", "A bar is a span: compute + exposed communication + copies and waits that nothing runs beside + idle. The columns overlap and do not add up.", key, ...tables);
}

function classes(stage) {
  const { facts } = stage.data, most = Math.max(...facts.classes.map(one => one.share_of_busy), 1e-9);
  section("classes", "Classes", "Time covered by each class, counted once where its spans overlap.", table([
    { name: "class", left: true, value: row => row.class, cell: row => classMark(stage, row.class) },
    { name: "", left: true, cell: row => meter(row.share_of_busy / most, hueOf(row.class, 0)) },
    time("time", "union_us"), share("of busy", "share_of_busy"), count("spans", "spans"), words("group", "group"), words("what", "what"),
  ], facts.classes, "Classes"));
}

function ops(stage) {
  section("ops", "Ops", "Kernels by name; a number shows one of the longest.", table([
    { name: "name", left: true, value: row => row.name, cell: row => element("span", { class: "name", title: row.name }, row.name || "(no name)") },
    { name: "class", left: true, value: row => row.class, cell: row => classMark(stage, row.class) },
    time("total", "total_us"), share("of busy", "share_of_busy"), count("spans", "spans"), time("longest", "longest_us"),
    { name: "show", left: true, cell: row => spanButtons(stage, row.span_ids) },
  ], stage.data.facts.top_ops, "Ops"));
}

function rates(stage) {
  const { op_rates: found, roof } = stage.data.facts;
  if (!found.length) return;
  const against = roof ? `against ${roof.chip}: ${inRate(roof.bytes_per_s, "B/s")}, data sheet peaks` : "no chip known: name one with --chip";
  section("roofline", "Roofline", `Ops with recorded shapes, ${against}. Size is total time; click a dot for its longest call. Ops without multiplications stand in the table only.`,
    roofline(stage, found, roof), table([
      words("op", "op"), words("operands", "operands"), words("dtype", "dtype"), { name: "class", left: true, value: row => row.class, cell: row => classMark(stage, row.class) },
      time("total", "total_us"), count("calls", "calls"),
      { name: "rate", value: row => row.tflops_per_s, text: row => (row.flops ? inRate(row.tflops_per_s * 1e12, "FLOP/s") : "") },
      { name: "traffic", value: row => row.gbytes_per_s, text: row => inRate(row.gbytes_per_s * 1e9, "B/s") },
      share("of the roof", "efficiency"), words("bound", "bound"), { name: "show", left: true, cell: row => spanButtons(stage, row.span_ids) },
    ], found, "Rates of ops"));
}

function idle(stage) {
  const { idle_causes: causes, launches } = stage.data.facts;
  const why = causes.length ? table([
    words("cause", "cause"), { name: "", left: true, cell: row => meter(row.share_of_span, "var(--idle)") },
    time("idle", "idle_us"), share("of span", "share_of_span"), count("gaps", "gaps"), time("longest", "longest_us"), words("meaning", "meaning"),
    { name: "show", left: true, cell: row => spanButtons(stage, row.span_ids) },
  ], causes, "Why chips were idle") : null;
  const calls = launches.length ? element("details", { open: "" }, element("summary", {}, "Launches"), table([
    words("rank", "process"), count("spans", "spans"), count("calls", "calls"), count("unlinked", "unlinked"), time("median call", "call_us"),
    time("median delay", "delay_us"), time("p99 delay", "delay_p99_us"), { name: "queue", value: row => row.queue_depth, text: row => row.queue_depth.toFixed(1) },
    share("on an empty queue", "empty_queue_share"), count("graph replays", "graph_replays"), count("spans < 10 µs", "short_spans"),
  ], launches, "Launches")) : null;
  section("idle", "Why chips were idle", "By when the span that ended each gap was launched. The causes add up to the idle time.", why, calls);
}

// -- whatever else the analysis carries -------------------------------------------------------------------------------

const isList = value => Array.isArray(value), isTable = value => isList(value) && value.length && value.every(one => one && typeof one === "object" && !isList(one));

function plainText(key, value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return typeof value === "object" ? JSON.stringify(value) : String(value);
  if (/(^|_)us$/.test(key)) return us(value);
  if (/_bytes$|^bytes$/.test(key)) return inRate(value, "B");
  if (/share|fraction|gain|efficiency/.test(key)) return inShare(value);
  return Number.isInteger(value) ? inCount(value) : String(Number(value.toPrecision(5)));
}

const LABELS = { us: "time", peak_us: "peak at", peak_bytes: "peak", first_bytes: "at first" };
const label = key => LABELS[key] || key.replace(/_us$/, "").replace(/_bytes$/, "").replace(/_/g, " ");

// a table by name, all its values numbers: two columns, and no column of its own inside another table
const isNamed = value => value && typeof value === "object" && !isList(value) && Object.values(value).every(one => typeof one === "number");

function named(key, value) {
  const list = element("dl", { class: "named" });
  for (const [name, number] of Object.entries(value)) list.append(element("dt", {}, name), element("dd", {}, plainText(UNITS[key] || name, number)));
  return list;
}

const UNITS = { growth_by_phase: "bytes", growth_by_op: "bytes" };

function generic(stage, key, value) {
  if (isTable(value)) {
    const keys = [...new Set(value.flatMap(Object.keys))];
    return table(keys.map(one => genericColumn(stage, one, value)), value, label(key));
  }
  if (isList(value)) return element("p", {}, value.slice(0, 200).map(one => plainText(key, one)).join(", "));
  if (value && typeof value === "object") {
    const list = element("dl", { class: "plain" });
    for (const [name, inner] of Object.entries(value)) {
      const ids = name === "span_ids" ? spanButtons(stage, inner) : name === "span_id" ? spanButtons(stage, [inner]) : null;
      list.append(element("dt", {}, label(name)), element("dd", {}, ids || (inner && typeof inner === "object" ? generic(stage, name, inner) : plainText(name, inner))));
    }
    return list;
  }
  return element("p", {}, plainText(key, value));
}

function genericColumn(stage, key, rows) {
  if (key === "span_ids") return { name: "show", left: true, cell: row => spanButtons(stage, row[key]) };
  if (key === "span_id") return { name: "show", left: true, cell: row => spanButtons(stage, [row[key]]) };
  const inner = rows.some(row => row[key] && typeof row[key] === "object");
  const column = { name: label(key), left: rows.some(row => typeof row[key] === "string") || inner, value: row => row[key], text: row => plainText(key, row[key]) };
  if (inner) return { ...column, value: undefined, cell: row => (isNamed(row[key]) ? named(key, row[key]) : row[key] && typeof row[key] === "object" ? generic(stage, key, row[key]) : plainText(key, row[key])) };
  return column;
}

const TITLES = { critical_path: "Critical path", what_if: "What if", ranks: "Ranks", memory: "Memory" };

function rest(stage) {
  const { facts } = stage.data;
  for (const [key, value] of Object.entries(facts)) {
    const empty = value === null || (isList(value) && (!value.length || typeof value[0] !== "object"));
    if (KNOWN.has(key) || empty || (key === "ranks" && isList(value) && typeof value[0] === "number")) continue;
    const title = TITLES[key] || label(key).replace(/^./, letter => letter.toUpperCase());
    section(`more-${key.replace(/\W/g, "-")}`, title, "", generic(stage, key, value));
  }
}

const ASSUMED = [
  "Times are lengths of unions of intervals on the clock of the trace, to the nanosecond; of several ranks, the mean.",
  "A gain is an upper bound: what the removed time hid may appear behind it.",
  "Peaks are the data sheet's dense ones; bytes of an op count every operand once, so an efficiency above 1 means a cache helped.",
  "A class is told from the kernel's name by a table of patterns; names that match none count as compute and are listed.",
];

function doubts(stage) {
  const { facts, kept, of, bins, window_ns } = stage.data;
  const items = facts.warnings.map(line => element("li", { class: "warning" }, line));
  if (kept < of) items.push(element("li", { class: "warning" }, `The timeline keeps ${inCount(kept)} of ${inCount(of)} spans: those the report names and the longest. The others are drawn merged, by track and ${inTime(window_ns / bins)}; the figures count all.`));
  const told = (what, table) => { const list = Object.entries(table).map(([kind, many]) => `${inCount(many)} ${kind}`).join(", "); if (list) items.push(element("li", {}, `${what}: ${list}`)); };
  told("kept", facts.kept);
  told("not kept when read", facts.dropped);
  if (facts.unknown_ops.length) items.push(element("li", {}, `in no class: ${facts.unknown_ops.map(one => one.name.slice(0, 80)).join("; ")}`));
  section("doubts", "What was read, and assumed", "", items.length ? element("ul", {}, ...items) : null, element("ul", {}, ...ASSUMED.map(line => element("li", {}, line))));
}

function navigation() {
  const heads = [...document.querySelectorAll("main section:not([hidden])")];
  byId("nav").replaceChildren(...heads.map(one => element("a", { href: `#${one.id}` }, one.querySelector("h2").textContent)));
}
