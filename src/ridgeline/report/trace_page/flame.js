// Host stacks as a flame graph: spans of one thread that lie inside each other, added up by their path of names.

const FLAMES = 1500, DEEP = 80, THIN = 0.002; // boxes, rows, and the share of the width below which none is drawn

// the tree of a stretch of time; each box has its time, calls and longest call
function flameOf(stage, from, to, rank = null) {
  const { data } = stage, root = { name: -1, ns: 0, calls: 0, longest: -1, kids: new Map() }, open = new Map();
  for (let place = 0; place < data.count; place++) {
    const start = data.start[place];
    if (start >= to) break;
    const track = data.track[place], process = data.processes[data.tracks[track].process];
    if (!process.host || data.paints[data.paint[place]].class || (rank !== null && process.rank !== rank)) continue;
    let stack = open.get(track);
    if (!stack) open.set(track, stack = []);
    while (stack.length && stack[stack.length - 1].end <= start) stack.pop();
    const above = stack[stack.length - 1], end = Math.min(endOf(data, place), above ? above.end : Infinity);
    const own = Math.min(end, to) - Math.max(start, from), kids = (above ? above.box : root).kids, name = data.name[place];
    let box = kids.get(name);
    if (!box) kids.set(name, box = { name, ns: 0, calls: 0, longest: -1, paint: data.paint[place], kids: new Map() });
    stack.push({ end, box });
    if (own <= 0) continue;
    box.ns += own;
    box.calls += 1;
    if (box.longest < 0 || data.duration[place] > data.duration[box.longest]) box.longest = place;
  }
  root.ns = [...root.kids.values()].reduce((sum, one) => sum + one.ns, 0);
  return root;
}

// boxes that are wide enough to be seen: left and width as shares, row from the top
function flameBoxes(root) {
  const found = [], whole = root.ns || 1;
  const place = (box, left, row) => {
    let at = left;
    for (const one of [...box.kids.values()].sort((a, b) => b.ns - a.ns)) {
      const wide = one.ns / whole;
      if (wide < THIN || found.length >= FLAMES || row >= DEEP) break;
      found.push({ box: one, left: at, wide, row });
      place(one, at, row + 1);
      at += wide;
    }
  };
  place(root, 0, 0);
  return found;
}

// a function of Python by its own name and where it stands; anything else as on the timeline
function flameName(name) {
  const found = /^(.*?)([^/\\]+\.py)\((\d+)\): (.+)$/.exec(name);
  return found ? `${found[4]} · ${found[2]}:${found[3]}` : shortName(name);
}

function drawFlame(stage, root, target, told) {
  const { data } = stage, boxes = flameBoxes(root), rows = boxes.reduce((most, one) => Math.max(most, one.row + 1), 0);
  target.style.height = `${rows * 19}px`;
  target.replaceChildren(...boxes.map(({ box, left, wide, row }) => {
    const name = data.names[box.name] || "(no name)";
    const part = element("button", { type: "button", title: `${name}\n${inTime(box.ns)}, ${inShare(box.ns / root.ns)}, ${plural(box.calls, "call")}` }, flameName(name));
    Object.assign(part.style, { left: `${left * 100}%`, width: `${wide * 100}%`, top: `${row * 19}px`, background: `color-mix(in srgb, ${hueOf(data.paints[box.paint].id, box.paint)} 35%, var(--card))` });
    part.addEventListener("click", () => told(box));
    return part;
  }));
}

// the section: whole time, or the stretch that is selected; a click takes a box as the whole width
function flame(stage) {
  const { data } = stage, whole = flameOf(stage, -Infinity, Infinity);
  if (!whole.kids.size) return;
  const target = element("div", { class: "flame", id: "flame-boxes" }), about = element("p", { class: "note", id: "flame-about" });
  const back = element("button", { type: "button", id: "flame-back" }, "All of it");
  const python = data.paints.some(one => one.id === "python");
  let tree = whole, where = "the whole time";
  const show = root => {
    const own = root === tree ? "" : ` · ${data.names[root.name]}: ${inTime(root.ns)} in ${plural(root.calls, "call")}`;
    about.replaceChildren(`Host threads together, ${where}, ${inTime(tree.ns)}${own} `, root.longest >= 0 ? spanButton(stage, root.longest, "longest call") : "");
    back.hidden = root === tree;
    drawFlame(stage, root === tree ? root : { ...root, kids: new Map([[root.name, root]]) }, target, show);
  };
  back.addEventListener("click", () => show(tree));
  stage.flame = range => {
    tree = range ? flameOf(stage, range.from, range.to, range.rank ?? null) : whole;
    where = range ? `the ${inTime(range.to - range.from)} selected` : "the whole time";
    show(tree);
  };
  section("flame", "Host stacks", `Width is time, outermost on top; a click widens a box. Select a stretch or a gap on the timeline to see its stacks.${python ? "" : " Record Python as well (with_stack=True) to see its functions."}`, about, back, target);
  stage.flame(null);
}

// the stack that covers most of a stretch, outermost first: from each box into its widest
function stackOf(stage, from, to, rank) {
  const found = [];
  let box = flameOf(stage, from, to, rank);
  const least = 0.5 * (to - from);
  while (found.length < 12) {
    const next = [...box.kids.values()].sort((a, b) => b.ns - a.ns)[0];
    if (!next || next.ns < least) break;
    found.push(next);
    box = next;
  }
  return found;
}
