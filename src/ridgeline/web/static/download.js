// Every picture downloads as SVG and PNG, every table as CSV and JSON.
import { h, s, say } from "./dom.js";
import { current, query } from "./state.js";

export function save(name, data, kind) {
  const url = URL.createObjectURL(data instanceof Blob ? data : new Blob([data], { type: kind }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 5000);
  say(`${name} is saved`);
}

async function standalone(svg) {
  const style = await (await fetch("/static/picture.css")).text();
  const copy = svg.cloneNode(true);
  const box = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  const theme = document.documentElement.dataset.theme;
  if (theme) copy.setAttribute("data-theme", theme);
  copy.prepend(s("style", {}, style.replaceAll(":root", "svg")));
  return new XMLSerializer().serializeToString(copy);
}

export async function savePicture(svg, name, kind) {
  const text = await standalone(svg);
  if (kind === "svg") return save(`${name}.svg`, text, "image/svg+xml");
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = h("canvas", { width: svg.viewBox.baseVal.width * 2, height: svg.viewBox.baseVal.height * 2 });
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return save(`${name}.png`, await new Promise((ready) => canvas.toBlob(ready, "image/png")), "image/png");
}

// The small buttons of a picture; `picture` makes or finds the SVG.
export function pictureTools(name, picture) {
  const button = (kind) => h("button", { type: "button", onclick: () => savePicture(picture(), name, kind),
    "aria-label": `${name} as ${kind.toUpperCase()}` }, kind.toUpperCase());
  return h("span", { className: "saves" }, button("svg"), button("png"));
}

export function tableTools(block, live) {
  const { page, choices } = current();
  const csv = live
    ? h("button", { type: "button", "aria-label": `${block.name} as CSV`,
        onclick: () => save(`${block.name}.csv`, csvText(block), "text/csv") }, "CSV")
    : h("a", { href: `/api/table/${page}/${block.name}.csv${query(choices)}`, download: `${block.name}.csv`,
        "aria-label": `${block.name} as CSV` }, "CSV");
  return h("span", { className: "saves" }, csv, h("button", { type: "button", "aria-label": `${block.name} as JSON`,
    onclick: () => save(`${block.name}.json`, JSON.stringify(block, null, 1), "application/json") }, "JSON"));
}

function csvText(block) {
  const plain = (value) => typeof value === "string" ? value : value.value !== undefined ? String(value.value) : value.text;
  const guarded = (text) => /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  const quoted = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  return [block.head, ...block.rows].map((row) => row.map((value) => quoted(guarded(plain(value)))).join(",")).join("\n");
}
