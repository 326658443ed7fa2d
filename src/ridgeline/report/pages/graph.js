const MOST = 300, WIDE = 160;
const tree = document.getElementById("tree"), told = document.getElementById("told");
const amountText = amount => {
  const units = graph.timed ? [[1, "s"], [1e-3, "ms"], [1e-6, "us"]] : [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  const [size, unit] = units.find(([size]) => amount >= size) || units[units.length - 1];
  return `${(amount / size).toPrecision(3)} ${unit}`;
};
const root = { name: "", parts: new Map(), ops: [], amount: 0, bounds: {}, runs: 0 };
for (const op of graph.ops) {
  const path = graph.modules[op[1]];
  let at = root;
  const add = node => { node.amount += op[5]; node.bounds[op[3]] = (node.bounds[op[3]] || 0) + op[5]; node.runs += op[4]; };
  add(at);
  for (const word of path ? path.split(".") : ["outside of modules"]) {
    if (!at.parts.has(word)) at.parts.set(word, { name: word, parts: new Map(), ops: [], amount: 0, bounds: {}, runs: 0 });
    at = at.parts.get(word);
    add(at);
  }
  at.ops.push(op);
}
const largest = Math.max(...[...root.parts.values()].map(node => node.amount), 1e-30);
const bar = bounds => {
  const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
  svg.setAttribute("width", WIDE); svg.setAttribute("height", 12); svg.setAttribute("aria-hidden", "true");
  let x = 0;
  for (const bound of ["compute", "memory", "network"]) {
    if (!bounds[bound]) continue;
    const rect = document.createElementNS(space, "rect"), wide = Math.max(1, Math.min(WIDE - x, WIDE * bounds[bound] / largest));
    rect.setAttribute("class", bound); rect.setAttribute("x", x); rect.setAttribute("width", wide); rect.setAttribute("height", 12);
    svg.append(rect);
    x += wide;
  }
  return svg;
};
const text = (kind, words) => { const span = document.createElement("span"); span.className = kind; span.textContent = words; return span; };
const line = (name, bounds, amount, kind) => {
  const button = document.createElement("button");
  button.className = `node ${kind}`; button.type = "button"; button.setAttribute("role", "treeitem");
  button.append(text("name", name), bar(bounds), text("amount", amountText(amount)));
  return button;
};
const tell = op => {
  const share = root.amount ? (100 * op[5] / root.amount).toPrecision(3) : 0;
  told.textContent = `${graph.names[op[0]]}, ${op[2]}: writes ${op[7]}, ${op[4]} runs a step, ${op[8].toPrecision(4)} bytes and `
    + `${op[9].toPrecision(4)} flops each, ${share} % of the step${op[6] < 0 ? "" : `; could be one kernel: ${graph.regions[op[6]]}`}`;
};
const opLine = op => {
  const times = op[4] > 1 ? ` x${op[4]}` : "";
  const button = line(`${graph.names[op[0]]}${times}, ${op[2]}`, { [op[3]]: op[5] }, op[5], "op");
  button.addEventListener("click", () => tell(op)); button.addEventListener("focus", () => tell(op));
  return button;
};
const branchLine = node => {
  const item = document.createElement("div"), button = line(`\u25b8 ${node.name}`, node.bounds, node.amount, "module");
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    button.firstChild.textContent = `${open ? "\u25b8" : "\u25be"} ${node.name}`;
    if (open) { item.lastChild.remove(); return; }
    const inside = document.createElement("div");
    inside.className = "branch"; inside.setAttribute("role", "group");
    unfold(inside, node);
    item.append(inside);
  });
  item.append(button);
  return item;
};
const unfold = (place, node) => {
  const items = [...[...node.parts.values()].map(part => ({ part })), ...node.ops.map(op => ({ op }))];
  let next = 0, region = -1, box = null;
  const more = () => {
    for (const end = Math.min(items.length, next + MOST); next < end; next++) {
      const { part, op } = items[next];
      if (part) { place.append(branchLine(part)); continue; }
      if (op[6] < 0) { place.append(opLine(op)); region = -1; continue; }
      if (op[6] !== region) {
        region = op[6]; box = document.createElement("div"); box.className = "region";
        const label = document.createElement("p"); label.textContent = graph.regions[region]; box.append(label); place.append(box);
      }
      box.append(opLine(op));
    }
    if (next < items.length) {
      const button = document.createElement("button");
      button.type = "button"; button.className = "node more"; button.textContent = `${items.length - next} more`;
      button.addEventListener("click", () => { button.remove(); more(); });
      place.append(button);
    }
  };
  more();
};
unfold(tree, root);
