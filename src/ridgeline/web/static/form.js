// Fields that become one choice of the URL.
import { h } from "./dom.js";
import { choose } from "./state.js";

export function form(block) {
  const inputs = block.fields.map(([name, value, help]) => {
    const input = h("input", { type: "text", value, id: `field-${name}`, spellcheck: "false" });
    input.addEventListener("change", submit);
    return [name, help, input];
  });
  function submit() {
    choose({ [block.choice]: inputs.map(([, , input]) => input.value.trim()).join(";") }, {}, {});
  }
  return h("section", { className: "block form" }, h("h2", {}, block.title),
    h("div", { className: "fields" }, inputs.map(([name, help, input]) =>
      h("label", { for: input.id }, h("span", {}, name), input, h("i", {}, help)))),
    h("button", { type: "button", className: "go", onclick: submit }, "Show this chip"),
    block.note ? h("p", { className: "caption" }, block.note) : null);
}
