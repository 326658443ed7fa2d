// The choices of a page: sliders and lists whose elements stay while one drags, so that only the answer is drawn again.
import { h } from "./dom.js";
import { choose } from "./state.js";

let shown = "";

export function drawControls(place, groups) {
  const shape = JSON.stringify(groups.map((group) => [group.title, group.controls.map((control) =>
    [control.key, control.style, control.options.length])]));
  const defaults = Object.fromEntries(groups.flatMap((group) => group.controls.map((control) => [control.key, control.default])));
  place.hidden = !groups.length;
  document.body.classList.toggle("alone", !groups.length);
  if (shape !== shown) {
    shown = shape;
    place.replaceChildren(h("details", { open: innerWidth > 900, className: "all" }, h("summary", {}, "Choices"), groups.map(drawGroup)));
  }
  for (const control of groups.flatMap((group) => group.controls)) update(place, control, defaults);
}

function drawGroup(group) {
  const title = h("h2", {}, group.title);
  const fields = group.controls.map((control) => h("div", { className: `choice ${control.style}`, "data-key": control.key }));
  if (group.is_folded) return h("details", { className: "group" }, h("summary", {}, title), fields);
  return h("section", { className: "group" }, title, fields);
}

function update(place, control, defaults) {
  const field = place.querySelector(`[data-key="${control.key}"]`);
  const id = `choice-${control.key}`;
  const set = (value, options) => choose({ [control.key]: value }, defaults, options);
  let input = field.querySelector("input, select");
  if (!input) {
    const label = h("label", { for: id, title: control.help || "" }, control.label);
    if (control.style === "slider") {
      input = h("input", { type: "range", id, min: "0", step: "1" });
      field.append(label, h("output", { for: id }), input);
      input.addEventListener("input", () => { mark(); set(field.options[Number(input.value)][0], { replace: true }); });
    } else if (control.style === "select") {
      input = h("select", { id });
      field.append(label, input);
      input.addEventListener("change", () => set(input.value));
    } else {
      input = h("input", { type: "text", id, spellcheck: "false", placeholder: control.help || "" });
      field.append(label, input);
      input.addEventListener("change", () => set(input.value.trim()));
    }
  }
  field.options = control.options;
  if (control.style === "slider") {
    input.max = control.options.length - 1;
    const at = control.options.findIndex(([value]) => value === control.value);
    if (document.activeElement !== input || Number(input.value) !== at) input.value = at;
    field.querySelector("output").textContent = control.options[at] ? control.options[at][1] : control.value;
    input.setAttribute("aria-valuetext", field.querySelector("output").textContent);
  } else if (control.style === "select") {
    if (input.length !== control.options.length) input.replaceChildren(...control.options.map(([value, name]) => h("option", { value }, name)));
    input.value = control.value;
  } else if (document.activeElement !== input) input.value = control.value;
  field.classList.toggle("changed", control.value !== control.default);
}

// When a slider began to move: what it takes until the answer is drawn is measured.
export function mark() { mark.at = performance.now(); }
