// Files: dropped or chosen, sent to this machine's own server, shown on the page that reads them.
import { h, say } from "./dom.js";
import { go } from "./state.js";

export async function send(file) {
  say(`${file.name}: sending ${(file.size / 1e6).toFixed(1)} MB to the server on this machine`);
  const got = await fetch(`/api/files?name=${encodeURIComponent(file.name)}`, { method: "POST",
    headers: { "Content-Type": "application/octet-stream" }, body: file });
  const answer = await got.json();
  if (answer.problems) say(answer.problems.map((item) => `${item.path}: got ${item.given}, expected ${item.expected}; ${item.todo}`).join(" "));
  else go(answer.url);
}

export function drop(block) {
  const input = h("input", { type: "file", className: "unseen", id: "drop-file", onchange: () => input.files[0] && send(input.files[0]) });
  return h("section", { className: "block drop" }, h("label", { for: "drop-file" }, h("b", {}, block.title), h("span", {}, block.note)), input);
}

addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dragging");
  if (event.dataTransfer.files[0]) send(event.dataTransfer.files[0]);
});
