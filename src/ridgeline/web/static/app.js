// Ask for the view of the URL and draw it; drawn again whenever the URL changes.
import { h, say, words } from "./dom.js";
import { copyButton, drawBlocks, frames } from "./blocks.js";
import { close } from "./explain.js";
import { drawControls, mark } from "./controls.js";
import { current, listeners, query } from "./state.js";
import { listen, offer } from "./palette.js";

const place = (id) => document.getElementById(id);
let asked = null, facts = null;
export const redraws = [];
window.redraws = redraws;  // milliseconds from a slider's move to the drawn answer, for tests

async function show() {
  const { page, choices } = current();
  asked?.abort();
  asked = new AbortController();
  const began = mark.at;
  mark.at = undefined;
  drawNavigation(page, choices);
  document.body.classList.add("busy");
  let view;
  try {
    view = await (await fetch(`/api/view/${page}${query(choices)}`, { signal: asked.signal })).json();
  } catch (wrong) {
    if (wrong.name !== "AbortError") say("the server does not answer: is `ridgeline open` still running?");
    return;
  }
  document.body.classList.remove("busy");
  if (view.problems) view = { title: "This address means nothing here", answer: "Every reason is below.", tone: "bad", controls: [],
    blocks: [{ kind: "problems", title: "Reasons", items: view.problems }] };
  if (view.url && view.url !== location.pathname + location.search && page !== "home") history.replaceState({}, "", view.url);
  draw(view, page, current().choices);
  if (began !== undefined) requestAnimationFrame(() => redraws.push(performance.now() - began));
}

function draw(view, page, choices) {
  close();
  document.title = `${view.title} | Ridgeline`;
  document.body.dataset.page = page;
  place("head").replaceChildren(
    h("h1", { id: "title" }, words(view.title)), h("p", { className: `answer ${view.tone || ""}` }, words(view.answer)),
    view.certainty ? h("p", { className: "certainty" }, h("b", {}, "How sure"), view.certainty) : "");
  place("blocks").replaceChildren(...drawBlocks(view.blocks));
  drawControls(place("controls"), view.controls || []);
  offer(facts.pages, facts.cards, view.controls || []);
  place("foot").replaceChildren(
    view.command ? h("p", { className: "command" }, "The same in a terminal: ", h("code", {}, view.command), " ", copyButton(view.command)) : "",
    h("p", {}, `Ridgeline ${facts.version}. `, view.evidence || "", " ", h("a", { href: `/api/view/${page}${query(choices)}`, download: `${page}.json` }, "This page as JSON"), "."),
  );
  document.body.dataset.drawn = location.href;
}

function drawNavigation(page, choices) {
  const kept = new URLSearchParams(choices);
  for (const key of ["versus", "spec"]) kept.delete(key);
  place("pages").replaceChildren(...facts.pages.map(({ page: each, name }) =>
    h("a", { href: `/${each}${query(kept)}`, "aria-current": each === page ? "page" : null }, name)));
  place("pages").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

place("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("ridgeline-theme", root.dataset.theme);
});
place("share").addEventListener("click", async () => {
  await navigator.clipboard?.writeText(location.href);
  say("the address of this state is copied: it opens on this machine while the workbench runs");
});

facts = await (await fetch("/api/facts")).json();
frames.origin = facts.frames;
listen();
listeners.add(show);
await show();
