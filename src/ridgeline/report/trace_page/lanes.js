// Turn spans into lanes, and lanes into pyramids, so that a frame costs pixels and not spans.
//
//   lane      spans of one track that do not overlap, by start; nested ones lie a lane deeper
//   pyramid   the whole time in 2^k equal bins for several k: how much of each is covered, and what most of it is

const DEEPEST = 40; // lanes of a track
const COARSEST = 8, FINEST = 20; // bins, as powers of two
const FEW = 512; // spans a lane needs before a pyramid pays
const ROUNDING = 1000; // nanoseconds two kernels may overlap because a profiler rounded

function tracksOf(data) {
  const rows = data.tracks.map(() => []);
  for (let place = 0; place < data.count; place++) rows[data.track[place]].push(place);
  return data.tracks.map((track, number) => {
    if (data.processes[track.process].host) return { ...track, number, lanes: laneRows(data, rows[number], 0) };
    const isWork = place => data.paints[data.paint[place]].class;
    const work = laneRows(data, rows[number].filter(isWork), ROUNDING);
    const notes = laneRows(data, rows[number].filter(place => !isWork(place)), ROUNDING); // annotations lie below the work
    return { ...track, number, lanes: [...work, ...notes], working: work.length };
  });
}

// rows come by start, the longer first: the first free lane is the depth of a nested span
function laneRows(data, rows, most) {
  const ends = [], lanes = [];
  for (const place of rows) {
    const free = data.start[place] + Math.min(most, data.duration[place] / 4);
    let lane = 0;
    while (lane < DEEPEST - 1 && lane < ends.length && ends[lane] > free) lane++;
    if (lane === lanes.length) lanes.push([]);
    lanes[lane].push(place);
    ends[lane] = Math.max(ends[lane] || 0, endOf(data, place));
  }
  return lanes.map(places => Int32Array.from(places));
}

// One layer: lanes of every track with only the spans that `shown` allows.
function layerOf(data, tracks, shown) {
  const blocks = blocksOf(data, shown);
  return tracks.map((track, number) => {
    const lanes = track.lanes.map(rows => laneOf(data, shown ? rows.filter(shown) : rows));
    if (blocks[number]) {
      if (!lanes.length) lanes.push(laneOf(data, new Int32Array(0)));
      lanes[0].blocks = blocks[number];
    }
    return lanes;
  });
}

// spans the page does not keep, by track; a search cannot tell which of them match
function blocksOf(data, shown) {
  const found = [];
  if (!data.block_track || (shown && shown.search)) return found;
  for (let block = 0; block < data.block_track.length; block++) {
    if (shown && shown.hidden && shown.hidden[data.block_paint[block]]) continue;
    (found[data.block_track[block]] ||= []).push(block);
  }
  return found;
}

function laneOf(data, rows) {
  const ends = new Float64Array(rows.length);
  let latest = 0;
  for (let at = 0; at < rows.length; at++) ends[at] = latest = Math.max(latest, endOf(data, rows[at]));
  return { rows, ends, ...(rows.length >= FEW ? pyramidOf(data, rows) : { levels: null }) };
}

function pyramidOf(data, rows) {
  const top = Math.min(FINEST, Math.max(COARSEST + 1, Math.ceil(Math.log2(rows.length * 2))));
  const bins = 2 ** top, width = data.window_ns / bins;
  const level = { cover: new Float32Array(bins), most: new Float32Array(bins), paint: new Uint16Array(bins) };
  for (const place of rows) {
    const from = data.start[place] / width, to = endOf(data, place) / width, paint = data.paint[place];
    const last = Math.min(Math.floor(to), bins - 1);
    for (let bin = Math.min(Math.floor(from), bins - 1); bin <= last; bin++) {
      cover(level, bin, Math.max(0, Math.min(to, bin + 1) - Math.max(from, bin)), paint);
    }
  }
  const levels = [];
  levels[top] = level;
  for (let power = top - 1; power >= COARSEST; power--) levels[power] = halved(levels[power + 1]);
  return { levels, top };
}

function cover(level, bin, part, paint) {
  level.cover[bin] += part;
  if (level.paint[bin] === paint) level.most[bin] += part;
  else if (part >= level.most[bin]) {
    level.most[bin] = part;
    level.paint[bin] = paint;
  }
}

function halved({ cover, most, paint }) {
  const bins = cover.length / 2;
  const found = { cover: new Float32Array(bins), most: new Float32Array(bins), paint: new Uint16Array(bins) };
  for (let bin = 0; bin < bins; bin++) {
    const one = 2 * bin, two = one + 1;
    found.cover[bin] = (cover[one] + cover[two]) / 2;
    const same = paint[one] === paint[two];
    found.most[bin] = (same ? most[one] + most[two] : Math.max(most[one], most[two])) / 2;
    found.paint[bin] = most[one] >= most[two] ? paint[one] : paint[two];
  }
  return found;
}

// first position in a lane whose span ends after an instant
function firstAfter(lane, instant) {
  let low = 0, high = lane.ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.ends[middle] > instant) high = middle;
    else low = middle + 1;
  }
  return low;
}

// the span of a lane at an instant, or the longest within reach of it; -1 for none
function spanAt(data, lane, instant, reach) {
  let found = -1, longest = -1;
  for (let at = firstAfter(lane, instant - reach); at < lane.rows.length; at++) {
    const place = lane.rows[at];
    if (data.start[place] > instant + reach) break;
    if (data.start[place] <= instant && endOf(data, place) > instant) return place;
    if (data.duration[place] > longest) [found, longest] = [place, data.duration[place]];
  }
  return found;
}
