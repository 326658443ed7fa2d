// Draw the pieces of a page: one function for each kind.
import { drawing, h } from "./dom.js";
import { bars, stacks, titled, tornado } from "./charts.js";
import { cell } from "./explain.js";
import { pictureTools, save, tableTools } from "./download.js";
import { drop } from "./drop.js";
import { form } from "./form.js";
import { task } from "./task.js";

const DRAWN = {
  figures: (block) => h("section", { className: "block figures" }, block.items.map((item) =>
    h("div", { className: `figure ${item.tone || ""}` }, h("b", { className: (item.number.text || item.number).length > 9 ? "long" : null }, cell(item.number)), h("span", {}, item.name)))),
  bars, stacks, tornado, task, drop, form,
  picture: (block) => {
    const svg = drawing(block.svg);
    const told = h("p", { className: "told" }, "Point at a dot, or step to it with the Tab key: what it is stands here.");
    for (const dot of svg.querySelectorAll("[data-told]")) {
      const tell = () => { told.textContent = dot.dataset.told; };
      dot.addEventListener("mouseenter", tell);
      dot.addEventListener("focus", tell);
    }
    const hasDots = svg.querySelector("[data-told]");
    return titled(block, pictureTools(block.name, () => svg), h("figure", { tabindex: "0" }, svg), hasDots ? told : null);
  },
  table: (block, live) => {
    const left = new Set(block.text || []), chosen = new Set(block.chosen || []);
    const side = (name) => (left.has(name) ? "text" : "");
    const head = h("tr", {}, block.head.map((name) => h("th", { className: side(name), scope: "col" }, name)));
    const named = (value) => (typeof value === "string" ? value : value.text);
    const rows = block.rows.map((row) => h("tr", { className: chosen.has(named(row[0])) ? "chosen" : "" },
      row.map((value, place) => h("td", { className: side(block.head[place]) }, cell(value)))));
    return titled(block, tableTools(block, live), h("div", { className: "wide", tabindex: "0" },
      h("table", {}, h("thead", {}, head), h("tbody", {}, rows))));
  },
  cards: (block) => h("section", { className: "block cards" }, block.title ? h("h2", {}, block.title) : null,
    h("div", { className: "grid" }, block.items.map((item) => h("a", { className: "card", href: item.href },
      h("b", {}, item.title), item.verb ? h("i", {}, item.verb) : null, h("span", {}, item.text))))),
  problems: (block) => h("section", { className: "block problems", role: "alert" }, h("h2", {}, block.title),
    h("ul", {}, block.items.map((item) => h("li", {}, item.path ? h("b", {}, item.path, ": ") : null,
      `got ${item.given}`, item.expected ? `, expected ${item.expected}` : "", ".",
      item.todo ? h("span", { className: "todo" }, ` → ${item.todo}`) : null)))),
  lines: (block) => {
    if (!block.lines.length) return null;
    const list = h("ul", { className: "lines" }, block.lines.map((text) => h("li", {}, text)));
    if (!block.is_folded) return h("section", { className: "block" }, h("h2", {}, block.title), list);
    return h("section", { className: "block" }, h("details", {}, h("summary", {}, `${block.title} (${block.lines.length})`), list));
  },
  code: (block) => h("section", { className: "block code" }, h("div", { className: "title" }, h("h2", {}, block.title),
    h("span", { className: "saves" }, copyButton(block.text), block.file
      ? h("button", { type: "button", onclick: () => save(block.file, block.text, "text/plain") }, "Save") : null)),
    h("pre", { tabindex: "0" }, block.text)),
  tree: (block) => titled(block, null, h("div", { className: "tree" }, node(block.root))),
  frame: (block) => h("section", { className: "block" }, h("div", { className: "title" }, h("h2", {}, block.title),
    h("span", { className: "saves" }, h("a", { href: frameOf(block), target: "_blank", rel: "noreferrer" }, "Open alone"))),
    h("iframe", { className: "perfetto", src: frameOf(block), title: block.title }), block.note ? h("p", { className: "caption" }, block.note) : null),
};

// The Perfetto page has an address of its own; it is told which trace of that address to show.
export const frames = { origin: "" };

function frameOf(block) {
  return `${frames.origin}/#!/?mode=embedded&url=${encodeURIComponent(frames.origin + block.src)}`;
}

export function copyButton(text) {
  return h("button", { type: "button", onclick: async (event) => {
    await navigator.clipboard.writeText(text);
    event.target.textContent = "Copied";
    setTimeout(() => { event.target.textContent = "Copy"; }, 1500);
  } }, "Copy");
}

function node(part) {
  const figures = (part.figures || []).map((item) => h("span", { className: "fact" }, `${item.name} `, cell(item.number)));
  return h("div", { className: "node" }, h("b", {}, part.title), part.note ? h("span", { className: "faint" }, ` ${part.note}`) : null,
    figures.length ? h("p", {}, figures) : null, (part.children || []).map(node));
}

// `live`: pieces of a task's answer, which no URL makes again.
export function drawBlocks(blocks, live = false) {
  return blocks.map((block) => DRAWN[block.kind] && DRAWN[block.kind](block, live)).filter(Boolean);
}
