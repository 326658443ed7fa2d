// Make elements; text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key === "className" ? "class" : key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// A drawing that the server made; scripts in it would not run under the page's policy.
export function drawing(text) {
  const parsed = new DOMParser().parseFromString(text, "text/html").querySelector("svg");
  return parsed ? document.adoptNode(parsed) : h("p", {}, "no drawing");
}

const NAME = /[A-Za-z0-9][\w.:/=+]*-[\w.:/=+-]*\w/g;

// A text whose names of models and machines do not break at their hyphens.
export function words(text) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(NAME)) {
    if (found[0].length > 28) continue;
    parts.push(text.slice(from, found.index), h("span", { className: "id" }, found[0]));
    from = found.index + found[0].length;
  }
  return [...parts, text.slice(from)];
}

export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { place.textContent = ""; }, 4000);
}
