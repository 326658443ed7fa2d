// A long computation: started, followed, cancelled; its answer is drawn below.
import { h } from "./dom.js";
import { current, query } from "./state.js";
import { drawBlocks } from "./blocks.js";

const EVERY_MS = 250;

export function task(block) {
  const { page, choices } = current();
  const address = (verb) => `/api/${verb}/${page}/${block.task}${query(choices)}`;
  const here = location.href;
  const says = h("span", { className: "says", role: "status" }), answer = h("div", { className: "answer-of-task" });
  const word = block.confirm ? h("input", { type: "text", "aria-label": `type ${block.confirm} to start`, placeholder: `type “${block.confirm}”`, size: "12" }) : null;
  const start = h("button", { type: "button", className: "go", disabled: Boolean(block.refusal), onclick: () => begin() }, block.label);
  const stop = h("button", { type: "button", hidden: true, onclick: () => post("cancel") }, "Cancel");

  async function post(verb) {
    const body = JSON.stringify(word && verb === "task" ? { confirm: word.value } : {});
    return (await fetch(address(verb), { method: "POST", headers: { "Content-Type": "application/json" }, body })).json();
  }
  async function begin() {
    answer.replaceChildren();
    show(await post("task"));
  }
  async function follow() {
    if (location.href === here && says.isConnected) show(await (await fetch(address("task"))).json());
  }
  function show(run) {
    if (run.problems) { answer.replaceChildren(...drawBlocks([{ kind: "problems", title: "Not started", items: run.problems }])); return; }
    const isRunning = run.phase === "running";
    stop.hidden = !isRunning;
    start.disabled = isRunning || Boolean(block.refusal);
    says.textContent = isRunning ? run.words : run.phase === "stopped" ? "stopped: this is what there is" : "";
    says.classList.toggle("busy", isRunning);
    if (isRunning) setTimeout(follow, EVERY_MS);
    else answer.replaceChildren(...drawBlocks(run.blocks || [], true));
  }
  fetch(address("task")).then((got) => got.json()).then((run) => {
    if (run.phase && run.phase !== "absent") show(run);
    else if (block.automatic && !block.refusal) begin();
  });
  return h("section", { className: "block task" }, h("p", { className: "row" }, word, start, stop, says),
    block.note ? h("p", { className: "caption" }, block.note) : null,
    block.refusal ? h("p", { className: "caption refusal" }, block.refusal) : null, answer);
}
