// Ctrl-K: pages, questions, models and machines by name.
import { h } from "./dom.js";
import { choose, go } from "./state.js";

let items = [];

export function offer(pages, cards, groups) {
  const named = (key, what) => (groups.flatMap((group) => group.controls).find((control) => control.key === key)?.options || [])
    .map(([value, name]) => ({ text: name, kind: what, run: () => choose({ [key]: value }) }));
  items = [...pages.map(({ page, name }) => ({ text: name, kind: "page", run: () => go(`/${page}${location.search}`) })),
    ...cards.map((card) => ({ text: card.title, kind: "question", run: () => go(card.href) })),
    ...named("model", "model"), ...named("machine", "machine"), ...named("engine", "software")];
}

function open() {
  const dialog = document.getElementById("palette");
  const list = h("ul", { role: "listbox", id: "palette-list" });
  const input = h("input", { type: "search", placeholder: "A page, a question, a model, a machine …", "aria-label": "Find",
    role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", autocomplete: "off", spellcheck: "false" });
  let at = 0, found = [];
  const pick = (item) => { dialog.close(); item.run(); };
  const draw = () => {
    const asked = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = items.filter((item) => asked.every((word) => `${item.text} ${item.kind}`.toLowerCase().includes(word))).slice(0, 12);
    at = Math.min(at, Math.max(found.length - 1, 0));
    list.replaceChildren(...found.map((item, place) => h("li", { role: "option", id: `palette-${place}`, "aria-selected": String(place === at),
      onmousedown: (event) => { event.preventDefault(); pick(item); } }, h("span", {}, item.text), h("i", {}, item.kind))));
    input.setAttribute("aria-activedescendant", found.length ? `palette-${at}` : "");
  };
  input.addEventListener("input", () => { at = 0; draw(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = (at + (event.key === "ArrowDown" ? 1 : found.length - 1)) % Math.max(found.length, 1);
      draw();
    } else if (event.key === "Enter" && found[at]) { event.preventDefault(); pick(found[at]); }
  });
  dialog.replaceChildren(input, list);
  draw();
  dialog.showModal();
  input.focus();
}

export function listen() {
  document.getElementById("palette-open").addEventListener("click", open);
  document.getElementById("palette").addEventListener("click", (event) => { if (event.target.id === "palette") event.target.close(); });
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element && event.target.matches("input, select, textarea");
    if ((event.key === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !typing)) { event.preventDefault(); open(); }
  });
}
