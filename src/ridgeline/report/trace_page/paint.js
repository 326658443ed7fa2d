// Turn lanes into pixels. A row of pixels is worked out once and copied down the height of its lane.

const HUES = {
  matmul: "#3f7fd6", attention: "#8561d8", convolution: "#4a63c9", norm: "#22a39a", elementwise: "#5cb6e6",
  reduction: "#3c97a8", softmax: "#6d8fe0", rope: "#76a5af", embedding: "#5a9e6f", loss: "#a58bd6",
  "moe-routing": "#7f95f2", quantize: "#8fb3c9", random: "#9aa7d9", "kernel-copy": "#6fae8f", optimizer: "#a3914a",
  predicted: "#3f7fd6", nccl: "#d6468c", collective: "#d6468c", hccl: "#d6468c", mscclpp: "#b8399a",
  "expert-exchange": "#e2663c", "symmetric-memory": "#e05a7a", "custom-all-reduce": "#c84fb5", memcpy: "#4aa564",
  memset: "#7fbf7a", waiting: "#d9a92f", unknown: "#8d8f94", host: "#b4bbc4", runtime: "#c7ad97", python: "#c9c2ab",
  annotation: "#c3d0de", marker: "#c3d0de", sync: "#d9a92f", overhead: "#b77f7f", work: "#8d8f94",
};
const OTHERS = ["#4f8fc0", "#7d6cc4", "#3f9f8f", "#6b9fd1", "#5f86b3", "#8a7fd0", "#4fa0b8", "#7397e6"];
const SHADES = 32; // of a colour, by how much of a pixel is covered
const LEAST = 0.3; // what covers little of a pixel is still seen

const channels = hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
const packedColour = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
const blend = (under, over, share) => under.map((part, at) => Math.round(part + (over[at] - part) * share));

function hueOf(id, number) {
  return HUES[id] || OTHERS[number % OTHERS.length];
}

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// colours of the theme, worked out once: shades of every paint, plain and dimmed
function coloursOf(data) {
  const ground = channels(variable("--lane"));
  const hues = data.paints.map((paint, number) => channels(hueOf(paint.id, number)));
  const shades = share => {
    const found = new Uint32Array(hues.length * SHADES);
    hues.forEach((hue, number) => {
      for (let shade = 0; shade < SHADES; shade++) {
        const part = Math.max(LEAST, shade / (SHADES - 1)) * share;
        found[number * SHADES + shade] = packedColour(blend(ground, hue, part));
      }
    });
    return found;
  };
  return {
    css: Object.fromEntries(["ink", "paper", "band", "rule", "faint", "accent", "veil"].map(name => [name, variable(`--${name}`)])),
    ground: packedColour(ground),
    paper: packedColour(channels(variable("--paper"))),
    band: packedColour(channels(variable("--band"))),
    area: packedColour(blend(ground, channels(variable("--accent")), 0.45)),
    bright: shades(1),
    dim: shades(0.22),
    dark: hues.map(([red, green, blue]) => 0.3 * red + 0.59 * green + 0.11 * blue < 140),
  };
}

// The row of pixels that is being worked out.
class Row {
  constructor(width) {
    this.width = width;
    this.cover = new Float32Array(width + 1);
    this.most = new Float32Array(width + 1);
    this.paint = new Uint16Array(width + 1);
    this.edge = new Uint8Array(width + 1);
  }

  clear() {
    this.cover.fill(0);
    this.most.fill(0);
    this.edge.fill(0);
  }

  add(at, part, paint) {
    this.cover[at] += part;
    if (this.paint[at] === paint && this.most[at] > 0) this.most[at] += part;
    else if (part > this.most[at]) {
      this.most[at] = part;
      this.paint[at] = paint;
    }
  }

  // a stretch from one pixel to another, both with fractions
  stretch(from, to, paint, share) {
    const first = Math.max(0, from), last = Math.min(this.width, to);
    if (last <= first) return;
    const left = first | 0, right = last | 0;
    if (left === right) return this.add(left, (last - first) * share, paint);
    this.add(left, (left + 1 - first) * share, paint);
    for (let at = left + 1; at < right; at++) this.add(at, share, paint);
    if (last > right) this.add(right, (last - right) * share, paint);
  }
}

// put a lane into the row; `scale` is pixels a nanosecond, `from` the instant at the left edge
function spread(data, lane, row, from, scale) {
  const power = Math.ceil(Math.log2(data.window_ns * scale));
  if (lane.blocks) spreadBlocks(data, lane.blocks, row, from, scale);
  if (lane.levels && power <= lane.top) spreadLevel(data, lane.levels, Math.max(power, COARSEST), row, from, scale);
  else spreadSpans(data, lane, row, from, scale);
}

function spreadLevel(data, levels, power, row, from, scale) {
  const { cover, paint } = levels[power];
  const width = data.window_ns / 2 ** power, wide = width * scale;
  const last = Math.min(cover.length, Math.ceil((from + row.width / scale) / width));
  for (let bin = Math.max(0, Math.floor(from / width)); bin < last; bin++) {
    if (cover[bin] > 0) {
      const left = (bin * width - from) * scale;
      row.stretch(left, left + wide, paint[bin], Math.min(1, cover[bin]));
    }
  }
}

function spreadSpans(data, lane, row, from, scale) {
  const { start, duration, paint } = data;
  const until = from + row.width / scale;
  for (let at = firstAfter(lane, from); at < lane.rows.length; at++) {
    const place = lane.rows[at];
    if (start[place] >= until) break;
    const left = (start[place] - from) * scale, wide = duration[place] * scale;
    if (wide < 3) row.stretch(left, left + Math.max(wide, 0.02), paint[place], 1);
    else {
      row.stretch(Math.round(left), Math.round(left + wide), paint[place], 1);
      if (left >= 0) row.edge[Math.round(left)] = 1;
    }
  }
}

function spreadBlocks(data, blocks, row, from, scale) {
  const wide = (data.window_ns / data.bins) * scale;
  for (const block of blocks) {
    const left = data.block_place[block] * wide - from * scale;
    if (left < row.width && left + wide > 0) {
      row.stretch(left, left + wide, data.block_paint[block], (0.7 * data.block_cover[block]) / 65535);
    }
  }
}

// write the row into the image from one line to another; without a ground, only where there is something
function imprint(image, row, { top, bottom, left, shades, ground }) {
  const { pixels, width, height } = image;
  const first = Math.max(0, top), last = Math.min(height, bottom);
  if (last <= first) return;
  const line = first * width + left;
  for (let at = 0; at < row.width; at++) {
    const covered = row.cover[at];
    if (covered > 0) {
      const share = row.edge[at] ? 0.55 : Math.min(1, covered);
      pixels[line + at] = shades[row.paint[at] * SHADES + ((share * (SHADES - 1)) | 0)];
    } else if (ground !== undefined) pixels[line + at] = ground;
  }
  if (ground !== undefined) {
    for (let y = first + 1; y < last; y++) pixels.copyWithin(y * width + left, line, line + row.width);
    return;
  }
  for (let at = 0; at < row.width; at++) {
    if (row.cover[at] > 0) for (let y = first + 1; y < last; y++) pixels[y * width + left + at] = pixels[line + at];
  }
}

function fillBox(image, top, bottom, colour) {
  const first = Math.max(0, top), last = Math.min(image.height, bottom);
  if (last > first) image.pixels.fill(colour, first * image.width, last * image.width);
}
