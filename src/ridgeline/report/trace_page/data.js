// Turn the embedded blocks into columns: typed arrays by name, and the texts behind their codes.

const TYPES = { u16: Uint16Array, u32: Uint32Array, i32: Int32Array, f64: Float64Array };
const HALF = 2 ** 32;

function bytesOf(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) found[at] = raw.charCodeAt(at);
  return found;
}

async function inflated(bytes) {
  if (typeof DecompressionStream !== "function")
    throw new Error("this browser has no DecompressionStream; every browser since May 2023 does: update it, or open the file in another");
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// start and duration in nanoseconds: whole numbers, exact up to a hundred days
function timesOf(low, high, added) {
  const found = new Float64Array(low.length);
  let at = 0;
  for (let place = 0; place < low.length; place++) {
    const value = low[place] + high[place] * HALF;
    at = added ? at + value : value;
    found[place] = at;
  }
  return found;
}

async function readData() {
  const facts = JSON.parse(document.getElementById("data-facts").textContent);
  const layout = JSON.parse(document.getElementById("data-layout").textContent);
  const buffer = await inflated(bytesOf(document.getElementById("data-spans").textContent));
  const columns = {};
  for (const [name, type, at, count] of layout.layout) columns[name] = new TYPES[type](buffer, at, count);
  const { start, start_high, duration, duration_high, ...rest } = columns;
  const data = {
    ...rest,
    ...layout,
    facts,
    count: start.length,
    start: timesOf(start, start_high, true),
    duration: timesOf(duration, duration_high, false),
  };
  data.place = new Map();
  for (let place = 0; place < data.count; place++) data.place.set(data.row[place] + place, place);
  return data;
}

const rowOf = (data, place) => data.row[place] + place;
const endOf = (data, place) => data.start[place] + data.duration[place];

// -- numbers as people read them -----------------------------------------------------------------------------------

function inTime(ns, digits = 4) {
  if (!ns) return "0";
  const size = Math.abs(ns);
  const [unit, name] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${Number((ns / unit).toPrecision(digits))} ${name}`;
}

function inRate(value, unit) {
  const powers = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const [scale, letter] = powers.find(([scale]) => value >= scale) || [1, ""];
  return `${Number((value / scale).toPrecision(3))} ${letter}${unit}`;
}

const inCount = value => value.toLocaleString("en-GB");
const inShare = value => (value === null || value === undefined ? "" : `${(value * 100).toFixed(1)} %`);
const plural = (count, one) => `${inCount(count)} ${one}${count === 1 ? "" : "s"}`;
