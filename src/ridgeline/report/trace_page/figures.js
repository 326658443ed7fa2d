// Figures of the report: bars, sortable tables, the roofline. Everything from the trace is written as text.

const PARTS = [["compute", "compute"], ["exposed", "exposed communication"], ["other", "copies and waits alone"], ["idle", "idle"]];
const SVG = "http://www.w3.org/2000/svg";
const ROWS = 25; // a table shows before it is asked for more

function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// compute + exposed communication + what runs beside neither + idle = span
function partsOf(times) {
  const other = Math.max(0, times.busy_us - times.compute_us - times.exposed_communication_us);
  return { compute: times.compute_us, exposed: times.exposed_communication_us, other, idle: times.idle_us };
}

function bar(times, longest) {
  const parts = partsOf(times), box = element("div", { class: "bar" });
  for (const [id, name] of PARTS) {
    const part = element("span", { class: id, title: `${name}: ${inTime(parts[id] * 1e3)}, ${inShare(parts[id] / (times.span_us || 1))}` });
    part.style.width = `${(100 * parts[id]) / (longest || 1)}%`;
    box.append(part);
  }
  return box;
}

function meter(share, colour) {
  const fill = element("span");
  fill.style.width = `${Math.min(100, share * 100)}%`;
  if (colour) fill.style.background = colour;
  return element("div", { class: "meter" }, fill);
}

// Columns are {name, value(row), text(row)?, cell(row)?, left?}; a click on a head sorts by it.
function table(columns, rows, caption) {
  let order = rows, all = false, by = -1, down = true;
  const body = element("tbody"), head = element("tr"), box = element("div", { class: "wide" });
  const more = element("button", { type: "button", class: "more" });
  const fill = () => {
    const shown = all ? order : order.slice(0, ROWS);
    body.replaceChildren(...shown.map(row => element("tr", {}, ...columns.map(column => element("td", { class: column.left ? "text" : undefined }, column.cell ? column.cell(row) : (column.text || (one => String(column.value(one) ?? "")))(row))))));
    more.hidden = all || order.length <= ROWS;
    more.textContent = `Show all ${inCount(order.length)}`;
  };
  const sort = at => {
    down = by === at ? !down : typeof columns[at].value(rows[0] || {}) !== "string";
    by = at;
    const value = columns[at].value;
    order = [...rows].sort((a, b) => {
      const [one, two] = [value(a), value(b)];
      return (typeof one === "string" ? one.localeCompare(two) : (one ?? -Infinity) - (two ?? -Infinity)) * (down ? -1 : 1);
    });
    [...head.children].forEach((cell, place) => cell.setAttribute("aria-sort", place === at ? (down ? "descending" : "ascending") : "none"));
    fill();
  };
  columns.forEach((column, at) => {
    const cell = element("th", { class: column.left ? "text" : undefined, scope: "col" });
    if (column.value) {
      const button = element("button", { type: "button" }, column.name);
      button.addEventListener("click", () => sort(at));
      cell.append(button);
    } else cell.append(column.name);
    head.append(cell);
  });
  more.addEventListener("click", () => { all = true; fill(); });
  fill();
  box.append(element("table", {}, element("caption", { class: "hidden" }, caption), element("thead", {}, head), body), more);
  return box;
}

function spanButtons(stage, ids) {
  const places = (ids || []).map(id => stage.data.place.get(id)).filter(place => place !== undefined);
  return element("span", { class: "spans" }, ...places.slice(0, 5).map((place, at) => spanButton(stage, place, `#${rowOf(stage.data, place)}`)));
}

function classMark(stage, id) {
  const number = stage.data.paints.findIndex(paint => paint.id === id);
  const swatch = element("span", { class: "swatch" });
  swatch.style.background = hueOf(id, Math.max(0, number));
  return element("span", {}, swatch, id);
}

// -- the roofline ----------------------------------------------------------------------------------------------------

const PLOT = { wide: 860, high: 430, left: 84, right: 24, top: 30, bottom: 46 };

function roofline(stage, rates, roof) {
  const points = rates.filter(rate => rate.flops > 0 && rate.bytes > 0 && rate.total_us > 0).map(rate => ({
    ...rate, x: rate.flops / rate.bytes, y: rate.tflops_per_s * 1e12,
  }));
  if (!points.length) return null;
  const peaks = roof ? Object.entries(roof.peaks) : [];
  const ridges = peaks.map(([, peak]) => peak / roof.bytes_per_s);
  const [low, far] = bounds([...points.map(one => one.x), ...ridges], 3);
  const [floor, roofs] = bounds([...points.map(one => one.y), ...peaks.map(([, peak]) => peak)], 2);
  const x = value => PLOT.left + ((Math.log10(value) - low) / (far - low)) * (PLOT.wide - PLOT.left - PLOT.right);
  const y = value => PLOT.high - PLOT.bottom - ((Math.log10(value) - floor) / (roofs - floor)) * (PLOT.high - PLOT.top - PLOT.bottom);
  const plot = drawn("svg", { viewBox: `0 0 ${PLOT.wide} ${PLOT.high}`, role: "img", "aria-label": "Ops on the roofline of the chip", class: "plot" });
  plot.append(...grid(x, y, [low, far], [floor, roofs]));
  for (const [dtype, peak] of peaks) plot.append(...roofLine(x, y, dtype, peak, roof, [10 ** low, 10 ** far, 10 ** floor]));
  const most = Math.max(...points.map(one => one.total_us));
  for (const point of [...points].sort((a, b) => b.total_us - a.total_us)) plot.append(dot(stage, point, x(point.x), y(point.y), most));
  return element("div", { class: "wide" }, plot);
}

// logarithms of a little less than the least and a little more than the most
function bounds(values, room) {
  return [Math.log10(Math.min(...values) / room), Math.log10(Math.max(...values) * room)];
}

// where lines stand: powers of ten, and twice and five times them when there are few
function marksOf([low, high]) {
  const made = [], times = high - low < 3.2 ? [1, 2, 5] : [1];
  for (let power = Math.floor(low); power <= high; power++) {
    for (const one of times) if (Math.log10(one) + power >= low && Math.log10(one) + power <= high) made.push(one * 10 ** power);
  }
  return made;
}

function grid(x, y, across, up) {
  const made = [], inside = PLOT.high - PLOT.bottom;
  for (const mark of marksOf(across)) {
    const at = x(mark);
    made.push(drawn("path", { class: "rule", d: `M${at} ${PLOT.top}V${inside}` }), drawn("text", { x: at, y: inside + 18, "text-anchor": "middle" }, mark < 1 ? String(Number(mark.toPrecision(2))) : inRate(mark, "").trim()));
  }
  for (const mark of marksOf(up)) {
    const at = y(mark);
    made.push(drawn("path", { class: "rule", d: `M${PLOT.left} ${at}H${PLOT.wide - PLOT.right}` }), drawn("text", { x: PLOT.left - 8, y: at + 4, "text-anchor": "end" }, inRate(mark, "FLOP/s")));
  }
  made.push(drawn("text", { x: (PLOT.wide + PLOT.left) / 2, y: PLOT.high - 8, "text-anchor": "middle", class: "axis" }, "operations per byte (FLOP/B), logarithmic"), drawn("text", { x: PLOT.left, y: PLOT.top - 8, class: "axis" }, "FLOP/s, logarithmic"));
  return made;
}

function roofLine(x, y, dtype, peak, roof, [least, far, floor]) {
  const ridge = peak / roof.bytes_per_s, from = Math.max(least, floor / roof.bytes_per_s);
  const path = `M${x(from)} ${y(from * roof.bytes_per_s)}L${x(ridge)} ${y(peak)}H${x(far)}`;
  return [
    drawn("path", { class: "roof", d: path }),
    drawn("path", { class: "ridge", d: `M${x(ridge)} ${y(peak)}V${PLOT.high - PLOT.bottom}` }),
    drawn("text", { x: x(far) - 4, y: y(peak) - 6, "text-anchor": "end", class: "axis" }, `${dtype} peak ${inRate(peak, "FLOP/s")}`),
    drawn("text", { x: x(ridge) + 5, y: PLOT.high - PLOT.bottom - 6 }, `ridge ${ridge.toPrecision(3)} FLOP/B`),
  ];
}

function dot(stage, point, x, y, most) {
  const told = `${point.op} ${point.operands} ${point.dtype}: ${inRate(point.y, "FLOP/s")}, ${inRate(point.gbytes_per_s * 1e9, "B/s")}, ` +
    `${inTime(point.total_us * 1e3)} in ${plural(point.calls, "call")}${point.efficiency === null ? "" : `, ${inShare(point.efficiency)} of the ${point.bound} roof`}`;
  const radius = 3.5 + 11 * Math.sqrt(point.total_us / most);
  const made = drawn("circle", { cx: x, cy: y, r: radius, tabindex: "0", role: "button", "aria-label": told }, drawn("title", {}, told));
  made.style.fill = hueOf(point.class, 0);
  const place = (point.span_ids || []).map(id => stage.data.place.get(id)).find(one => one !== undefined);
  const open = () => place !== undefined && reveal(stage, place);
  made.addEventListener("click", open);
  made.addEventListener("keydown", event => { if (event.key === "Enter") open(); });
  return made;
}
