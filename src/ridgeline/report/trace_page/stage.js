// The timeline on its canvas: which rows there are, what part of the time is seen, and one frame of it.

const LANE = 15, HEAD = 22, PAD = 3, COUNTER = 40; // heights, in pixels of the page
const NARROWEST = 50; // nanoseconds a view shows at least
const TEXTS = 260; // labels a frame has room for
const MOTION_MS = 180;
const UNFOLDED = 16; // chips that are open at first

class Stage {
  constructor(data) {
    this.data = data;
    this.tracks = tracksOf(data);
    this.hidden = new Uint8Array(data.paints.length);
    this.matching = null;
    this.selected = this.hovered = -1;
    this.listeners = [];
    this.folded = new Set(data.processes.flatMap((process, number) => (process.host ? [number] : [])));
    const chips = data.processes.flatMap((process, number) => (process.host ? [] : [number]));
    chips.slice(UNFOLDED).forEach(number => this.folded.add(number));
    for (const name of ["stage", "tall", "labels", "canvas", "ruler", "minimap", "window"]) {
      this[name] = document.getElementById(name);
    }
    const how = { alpha: false, willReadFrequently: true };
    this.pens = { canvas: this.canvas.getContext("2d", how), ruler: this.ruler.getContext("2d"), minimap: this.minimap.getContext("2d", how) };
    this.from = 0;
    this.to = data.window_ns || 1;
    this.whole = { from: -0.01 * this.to, to: 1.01 * this.to };
    this.relayer();
    this.shown = {};
    this.range = null;
    this.fit(false);
  }

  relayer() {
    const { data, hidden, matching } = this;
    const any = hidden.some(Boolean);
    const seen = place => !hidden[data.paint[place]];
    seen.hidden = hidden;
    this.layer = layerOf(data, this.tracks, any ? seen : null);
    const match = place => matching[data.name[place]] && !hidden[data.paint[place]];
    match.search = true;
    this.matches = matching ? layerOf(data, this.tracks, match) : null;
    this.mapImage = null;
  }

  // -- rows ----------------------------------------------------------------------------------------------------------

  arrange() {
    const { data } = this;
    const order = data.processes.map((_, number) => number);
    order.sort((a, b) => data.processes[a].rank - data.processes[b].rank || data.processes[a].host - data.processes[b].host || a - b);
    this.rows = [];
    let y = 0;
    const push = (kind, height, more) => { this.rows.push({ kind, y, height, ...more }); y += height; };
    for (const process of order) {
      const tracks = this.tracks.filter(track => track.process === process);
      const counters = data.counters.flatMap((counter, number) => (counter.process === process ? [number] : []));
      if (!tracks.length && !counters.length) continue;
      push("process", HEAD, { process, tracks });
      if (this.folded.has(process)) continue;
      for (const track of tracks) push("track", this.layer[track.number].length * LANE + PAD, { track });
      for (const counter of counters) push("counter", COUNTER, { counter });
    }
    this.height = y;
    this.tall.style.height = `${y}px`;
    this.label();
  }

  label() {
    this.labels.replaceChildren(...this.rows.map(row => {
      const box = row.kind === "process" ? this.foldButton(row) : element("div", { class: "label" }, this.labelText(row));
      box.style.top = `${row.y}px`;
      box.style.height = `${row.height}px`;
      return box;
    }));
  }

  labelText(row) {
    const counter = this.data.counters[row.counter];
    const text = row.kind === "track" ? row.track.stream : `${counter.name}, peak ${inRate(counter.peak, /memory|bytes/i.test(counter.name) ? "B" : "")}`;
    return element("span", { title: text }, text);
  }

  foldButton({ process }) {
    const folded = this.folded.has(process), { name } = this.data.processes[process];
    const button = element("button", { class: "label head", type: "button", "aria-expanded": String(!folded), title: name },
      element("span", { class: "turn", "aria-hidden": "true" }, folded ? "▸" : "▾"), name);
    button.addEventListener("click", () => this.fold(process, !folded));
    return button;
  }

  fold(process, folded) {
    this.folded[folded ? "add" : "delete"](process);
    this.resize();
  }

  // -- the view ------------------------------------------------------------------------------------------------------

  resize() {
    this.arrange();
    const ratio = this.ratio = window.devicePixelRatio || 1;
    const high = Math.max(60, Math.min(this.height, Math.round(window.innerHeight * 0.62)));
    this.stage.style.height = `${high}px`;
    this.canvas.style.width = "0px";
    const gutter = this.labels.offsetWidth, wide = Math.max(80, this.stage.clientWidth - gutter);
    for (const [canvas, height] of [[this.canvas, high], [this.ruler, 36], [this.minimap, 34]]) {
      canvas.style.width = `${wide}px`;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.image = imageOf(this.pens.canvas, this.canvas);
    this.row = new Row(this.canvas.width);
    this.spare = new Row(this.canvas.width);
    this.mapImage = null;
    this.recolour();
  }

  openHosts() {
    this.data.processes.forEach((process, number) => { if (process.host) this.folded.delete(number); });
    this.resize();
  }

  recolour() {
    this.colours = coloursOf(this.data);
    this.gapShades = this.pathShades = null;
    this.mapImage = null;
    this.ask();
  }

  get scale() { return this.canvas.width / (this.to - this.from); }
  instantAt(x) { return this.from + (x * this.ratio) / this.scale; }
  pixelAt(instant) { return ((instant - this.from) * this.scale) / this.ratio; }

  fit(smooth = true) { this.go(this.whole.from, this.whole.to, smooth); }

  go(from, to, smooth = true) {
    const room = this.whole.to - this.whole.from;
    const wide = Math.min(room, Math.max(NARROWEST, to - from));
    const middle = (from + to) / 2;
    const first = Math.min(this.whole.to - wide, Math.max(this.whole.from, middle - wide / 2));
    this.goal = { from: first, to: first + wide };
    if (!smooth || calm()) {
      Object.assign(this, this.goal);
      this.goal = null;
    } else this.leave = { from: this.from, to: this.to, at: performance.now() };
    this.ask();
  }

  zoom(factor, instant = (this.from + this.to) / 2, smooth = false) {
    const { from, to } = this.goal || this;
    this.go(instant - (instant - from) * factor, instant + (to - instant) * factor, smooth);
  }

  pan(ns, smooth = false) {
    const { from, to } = this.goal || this;
    this.go(from + ns, to + ns, smooth);
  }

  // bring a span into view with room around it, open its process, select it
  show(place, smooth = true) {
    const { data } = this, track = this.tracks[data.track[place]];
    if (this.folded.has(track.process)) this.fold(track.process, false);
    const room = Math.max(data.duration[place] * 3, NARROWEST * 4);
    const middle = data.start[place] + data.duration[place] / 2;
    this.go(middle - room, middle + room, smooth);
    const row = this.rows.find(one => one.kind === "track" && one.track === track);
    if (row.y < this.stage.scrollTop || row.y + row.height > this.stage.scrollTop + this.stage.clientHeight) {
      this.stage.scrollTop = Math.max(0, row.y - this.stage.clientHeight / 3);
    }
    this.select(place);
  }

  select(place) {
    this.selected = place;
    this.listeners.forEach(listener => listener(place));
    this.ask();
  }

  // the row, lane and span under a point of the canvas
  hit(x, y) {
    const at = y + this.stage.scrollTop, row = this.rows.find(one => at >= one.y && at < one.y + one.height);
    if (!row) return { place: -1 };
    const instant = this.instantAt(x), reach = (2 * this.ratio) / this.scale;
    if (row.kind !== "track") return { row, instant, place: -1 };
    const lane = this.layer[row.track.number][Math.floor((at - row.y - 1) / LANE)];
    return { row, lane, instant, place: lane ? spanAt(this.data, lane, instant, reach) : -1 };
  }

  // -- a frame -------------------------------------------------------------------------------------------------------

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(now => {
      this.asked = false;
      if (this.goal) this.move(now);
      this.draw();
    });
  }

  move(now) {
    const part = Math.min(1, Math.max(0, (now - this.leave.at) / MOTION_MS)), eased = 1 - (1 - part) ** 3;
    this.from = this.leave.from + (this.goal.from - this.leave.from) * eased;
    this.to = this.leave.to + (this.goal.to - this.leave.to) * eased;
    if (part < 1) return this.ask();
    Object.assign(this, this.goal);
    this.goal = null;
  }

  draw() {
    const { image, colours, pens, ratio } = this, top = this.stage.scrollTop;
    this.texts = [];
    image.pixels.fill(colours.paper);
    for (const row of this.rows) {
      const y = Math.round((row.y - top) * ratio), bottom = Math.round((row.y + row.height - top) * ratio);
      if (bottom <= 0 || y >= image.height) continue;
      if (row.kind === "process") this.drawHead(row, y, bottom);
      else if (row.kind === "track") this.drawTrack(row, y);
      else this.drawCounter(row, y, bottom);
    }
    pens.canvas.putImageData(image.data, 0, 0);
    drawOver(this);
    drawRuler(this);
    drawMap(this);
  }

  drawHead({ process, tracks }, y, bottom) {
    const { image, colours, row, spare } = this;
    fillBox(image, y, bottom, colours.band);
    if (!this.folded.has(process)) return drawGaps(this, process, y, bottom);
    row.clear();
    for (const track of tracks) {
      for (const lane of this.layer[track.number]) {
        spare.clear();
        spread(this.data, lane, spare, this.from, this.scale);
        deeper(row, spare);
      }
    }
    const inset = Math.round(4 * this.ratio);
    imprint(image, row, { top: y + inset, bottom: bottom - inset, left: 0, shades: this.matches ? colours.dim : colours.bright, ground: colours.ground });
    if (this.matches) this.drawMatches(tracks.flatMap(track => this.matches[track.number]), y + inset, bottom - inset);
  }

  drawMatches(lanes, top, bottom) {
    this.row.clear();
    for (const lane of lanes) spread(this.data, lane, this.row, this.from, this.scale);
    imprint(this.image, this.row, { top, bottom, left: 0, shades: this.colours.bright });
  }

  drawTrack({ track, y: under }, y) {
    const { image, colours, row, ratio } = this;
    this.layer[track.number].forEach((lane, depth) => {
      const top = y + Math.round((depth * LANE + 1) * ratio), bottom = y + Math.round(((depth + 1) * LANE) * ratio);
      if (bottom <= 0 || top >= image.height) return;
      row.clear();
      spread(this.data, lane, row, this.from, this.scale);
      imprint(image, row, { top, bottom, left: 0, shades: this.matches ? colours.dim : colours.bright, ground: colours.ground });
      const matching = this.matches && this.matches[track.number][depth];
      if (matching) this.drawMatches([matching], top, bottom);
      if (!this.matches || matching) this.collect(matching || lane, under + depth * LANE + 1);
    });
    drawPath(this, track.number, y, y + Math.round((this.layer[track.number].length * LANE + PAD) * ratio));
  }

  // labels of the spans of a lane that are wide enough to read
  collect(lane, y) {
    const { data, scale, ratio } = this, least = 34 * ratio;
    if (lane.levels && Math.log2(data.window_ns * scale) <= lane.top) return;
    for (let at = firstAfter(lane, this.from); at < lane.rows.length && this.texts.length < TEXTS; at++) {
      const place = lane.rows[at];
      if (data.start[place] >= this.to) break;
      if (data.duration[place] * scale > least) this.texts.push({ place, y });
    }
  }

  drawCounter({ counter }, y, bottom) {
    const { data, image, colours, scale } = this;
    const times = data[`times_${counter}`], values = data[`values_${counter}`], { peak } = data.counters[counter];
    fillBox(image, y + 2, bottom - 1, colours.ground);
    if (!times.length || !peak) return;
    let at = 0;
    for (let x = 0; x < image.width; x++) {
      const instant = this.from + x / scale;
      while (at + 1 < times.length && times[at + 1] <= instant) at++;
      if (instant < times[0]) continue;
      const full = bottom - y - 4, from = bottom - 1 - Math.round((full * values[at]) / peak);
      for (let line = Math.max(0, from); line < Math.min(image.height, bottom - 1); line++) image.pixels[line * image.width + x] = colours.area;
    }
  }
}

function deeper(row, over) {
  for (let at = 0; at < row.width; at++) {
    if (over.cover[at] > 0.5 || over.cover[at] > row.cover[at]) {
      row.cover[at] = over.cover[at];
      row.paint[at] = over.paint[at];
    }
  }
}

function imageOf(pen, { width, height }) {
  const data = pen.createImageData(width, height);
  return { data, width, height, pixels: new Uint32Array(data.data.buffer) };
}

const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
