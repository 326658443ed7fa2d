// Bars, stacks and tornados: rows of a page, and the same as one drawing to download.
import { h, s } from "./dom.js";
import { cell } from "./explain.js";
import { pictureTools } from "./download.js";

const percent = (share) => `${(100 * share).toFixed(3)}%`;

export function titled(block, tools, ...children) {
  return h("section", { className: `block ${block.kind}`, "data-name": block.name },
    h("div", { className: "title" }, block.title ? h("h2", {}, block.title) : h("span"), tools), ...children,
    block.caption ? h("p", { className: "caption" }, block.caption) : null);
}

function bar(pieces, limit) {
  const marks = pieces.map(([start, share, colour, note]) =>
    s("rect", { x: percent(start), width: percent(Math.max(share, 0.0015)), height: "100%", className: colour },
      note ? s("title", {}, note) : null));
  if (limit !== undefined) marks.push(s("line", { x1: percent(limit), x2: percent(limit), y1: "0", y2: "100%", className: "limit" }));
  return s("svg", { className: "bar", width: "100%", height: "18", preserveAspectRatio: "none", "aria-hidden": "true" }, marks);
}

export function bars(block) {
  const whole = Math.max(block.total.value, ...block.rows.map((row) => row.number.value)) || 1;
  let from = 0;
  const rows = block.rows.map((row) => {
    const share = row.number.value / whole;
    const start = block.style === "waterfall" ? Math.min(from, 1 - share) : 0;
    from += share;
    return h("li", {}, h("span", { className: "name", title: row.meaning }, row.name), bar([[start, share, row.colour, row.meaning]]),
      h("span", { className: "amount" }, cell(row.number)), h("span", { className: "share" }, `${(100 * share).toFixed(1)}%`));
  });
  const colours = [...new Set(block.rows.map((row) => row.colour))].filter((colour) => LEGEND[colour]);
  const legend = h("p", { className: "key" }, colours.map((colour) =>
    h("span", {}, s("svg", { className: "swatch", width: "11", height: "11" }, s("rect", { width: "11", height: "11", className: colour })), LEGEND[colour])));
  return titled(block, pictureTools(block.name, () => barPicture(block, whole)), legend, h("ul", { className: "bars" }, rows));
}

const LEGEND = { compute: "compute", memory: "memory bandwidth", network: "network", host: "host and waiting" };

export function stacks(block) {
  const most = Math.max(block.limit ? block.limit.value : 0, ...block.rows.map((row) => row.total.value)) * 1.02 || 1;
  const limit = block.limit && block.limit.value / most;
  const kinds = new Map();
  for (const row of block.rows) for (const part of row.parts) kinds.set(LEGEND[part.colour] || part.name, part.colour);
  const legend = h("p", { className: "key" }, [...kinds].map(([name, colour]) =>
    h("span", {}, s("svg", { className: "swatch", width: "11", height: "11" }, s("rect", { width: "11", height: "11", className: colour })), name)));
  const rows = block.rows.map((row) => {
    let from = 0;
    const pieces = row.parts.map((part) => {
      const piece = [from, part.number.value / most, part.colour, `${part.name}: ${part.number.text}`];
      from += part.number.value / most;
      return piece;
    });
    const over = block.limit && row.total.value > block.limit.value;
    return h("li", {}, h("span", { className: "name" }, row.name), bar(pieces, limit),
      h("span", { className: `amount ${over ? "over" : ""}` }, cell(row.total)),
      h("details", { className: "parts" }, h("summary", {}, "parts"), h("p", {}, row.parts.map((part) =>
        h("span", { className: "part" }, `${part.name} `, cell(part.number))))));
  });
  const note = block.limit ? h("p", { className: "caption" }, "Line: ", cell(block.limit), " usable") : null;
  return titled(block, pictureTools(block.name, () => stackPicture(block, most)), legend, h("ul", { className: "bars stacks" }, rows), note);
}

export function tornado(block) {
  const most = Math.max(...block.rows.flatMap((row) => [Math.abs(row.low.value), Math.abs(row.high.value)])) || 1;
  const rows = block.rows.map((row) => {
    const side = (number) => number.value / most / 2;
    const pieces = [row.low, row.high].map((number, place) => {
      const share = side(number);
      return [share < 0 ? 0.5 + share : 0.5, Math.abs(share), place ? "high" : "low", `${row.name.text}: ${number.text}`];
    });
    return h("tr", {}, h("td", { className: "text name", title: row.meaning }, cell(row.name)),
      h("td", { className: "drawn" }, bar(pieces, 0.5)), h("td", {}, cell(row.low)), h("td", {}, cell(row.high)),
      (row.cells || []).map((value) => h("td", { className: typeof value === "string" ? "text" : "" }, cell(value))));
  });
  const head = ["parameter", "", ...block.head].map((name, place) =>
    h("th", { className: place ? "" : "text", scope: "col", "aria-label": name ? null : "effect" }, name));
  return titled(block, pictureTools(block.name, () => tornadoPicture(block, most)),
    h("div", { className: "wide", tabindex: "0" }, h("table", { className: "tornado" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))));
}

// -- the same as one drawing ------------------------------------------------------------------------------------------

const WIDE = 960, NAMES = 180, RIGHT = 110, ROW = 26, TOP = 40;

function sheet(block, count, marks) {
  const tall = TOP + count * ROW + 14;
  return s("svg", { viewBox: `0 0 ${WIDE} ${tall}`, width: WIDE, height: tall },
    s("text", { x: 8, y: 22, "font-weight": "600" }, block.title), marks);
}

function line(place, name, amount, pieces) {
  const top = TOP + place * ROW;
  const across = (share) => NAMES + share * (WIDE - NAMES - RIGHT);
  return [s("text", { x: NAMES - 10, y: top + 14, "text-anchor": "end" }, name),
    ...pieces.map(([start, share, colour]) => s("rect", { x: across(start), y: top, className: colour, height: 18,
      width: Math.max(across(start + share) - across(start), 0.5) })),
    s("text", { x: WIDE - 8, y: top + 14, "text-anchor": "end" }, amount)];
}

function barPicture(block, whole) {
  let from = 0;
  return sheet(block, block.rows.length, block.rows.flatMap((row, place) => {
    const share = row.number.value / whole, start = block.style === "waterfall" ? from : 0;
    from += share;
    return line(place, row.name, row.number.text, [[start, share, row.colour]]);
  }));
}

function stackPicture(block, most) {
  return sheet(block, block.rows.length, block.rows.flatMap((row, place) => {
    let from = 0;
    return line(place, row.name, row.total.text, row.parts.map((part) => {
      const piece = [from, part.number.value / most, part.colour];
      from += piece[1];
      return piece;
    }));
  }));
}

function tornadoPicture(block, most) {
  return sheet(block, block.rows.length, block.rows.flatMap((row, place) =>
    line(place, row.name.text, `${row.low.text} / ${row.high.text}`, [row.low, row.high].map((number, side) => {
      const share = number.value / most / 2;
      return [share < 0 ? 0.5 + share : 0.5, Math.abs(share), side ? "high" : "low"];
    }))));
}
