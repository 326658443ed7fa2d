// Every number opens: its formula, what went in, and who says so.
import { h } from "./dom.js";

let opener = null;
const panel = () => document.getElementById("explain");

// A number as a button, or other cells as what they are.
export function cell(value, className = "") {
  if (typeof value === "string") return value;
  if (value.href !== undefined && value.formula === undefined) return h("a", { href: value.href }, value.text);
  return h("button", { type: "button", className: `number ${className}`.trim(), title: value.formula,
    onclick: (event) => open(value, event.currentTarget) }, value.text);
}

export function open(number, from) {
  opener = from;
  const rows = (number.inputs || []).map((input) =>
    h("tr", {}, h("td", { className: "text" }, input.name), h("td", {}, input.text), h("td", { className: "text faint" }, input.source)));
  const place = panel();
  place.replaceChildren(...[
    h("button", { type: "button", className: "close", "aria-label": "Close", onclick: close }, "×"),
    h("p", { className: "verb" }, "Where this number comes from"),
    h("p", { className: "big" }, number.text),
    h("p", { className: "faint exact" }, `exactly ${number.value} in base units`),
    h("h3", {}, "Formula"), h("p", { className: "formula" }, number.formula),
    rows.length ? h("h3", {}, "What goes in") : null,
    rows.length ? h("div", { className: "wide", tabindex: "0" }, h("table", {}, h("tbody", {}, rows))) : null,
    h("h3", {}, "Source"), h("p", {}, number.source),
    number.href ? h("p", {}, h("a", { href: number.href }, "What would change it")) : null,
  ].filter(Boolean));
  place.hidden = false;
  place.querySelector(".close").focus();
}

export function close() {
  if (panel().hidden) return;
  panel().hidden = true;
  if (opener && opener.isConnected) opener.focus();
}

addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
