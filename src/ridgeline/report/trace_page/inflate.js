// Inflate a zlib stream, for browsers that have no DecompressionStream. The size is known, so nothing grows.

const LENGTHS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const LENGTH_BITS = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const LENGTH_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const distanceBits = code => (code < 4 ? 0 : (code >> 1) - 1);
const distanceBase = code => (code < 4 ? code + 1 : ((2 + (code & 1)) << distanceBits(code)) + 1);

// symbols in the order of their codes, and how many codes have each length
function codeOf(lengths) {
  const count = new Uint16Array(17);
  for (const length of lengths) count[length]++;
  count[0] = 0;
  const next = new Uint16Array(17);
  for (let length = 1; length < 16; length++) next[length + 1] = next[length] + count[length];
  const symbols = new Uint16Array(lengths.length);
  lengths.forEach((length, symbol) => { if (length) symbols[next[length]++] = symbol; });
  return { count, symbols };
}

function inflate(source, size) {
  const out = new Uint8Array(size);
  let at = 2, put = 0, held = 0, many = 0;

  function take(bits) {
    while (many < bits) { held |= source[at++] << many; many += 8; }
    const value = held & ((1 << bits) - 1);
    held >>>= bits;
    many -= bits;
    return value;
  }

  function symbolOf(code) {
    let value = 0, first = 0, index = 0;
    for (let length = 1; length < 16; length++) {
      value |= take(1);
      const count = code.count[length];
      if (value - first < count) return code.symbols[index + value - first];
      index += count;
      first = (first + count) << 1;
      value <<= 1;
    }
    throw new Error("the data of this page is damaged");
  }

  function tables() {
    const literals = take(5) + 257, distances = take(5) + 1, given = take(4) + 4;
    const short = new Array(19).fill(0);
    for (let place = 0; place < given; place++) short[LENGTH_ORDER[place]] = take(3);
    const code = codeOf(short), lengths = [];
    while (lengths.length < literals + distances) {
      const symbol = symbolOf(code);
      if (symbol < 16) lengths.push(symbol);
      else {
        const value = symbol === 16 ? lengths[lengths.length - 1] : 0;
        const times = symbol === 16 ? 3 + take(2) : symbol === 17 ? 3 + take(3) : 11 + take(7);
        for (let again = 0; again < times; again++) lengths.push(value);
      }
    }
    return [codeOf(lengths.slice(0, literals)), codeOf(lengths.slice(literals))];
  }

  function fixedTables() {
    const lengths = Array.from({ length: 288 }, (_, code) => (code < 144 ? 8 : code < 256 ? 9 : code < 280 ? 7 : 8));
    return [codeOf(lengths), codeOf(new Array(30).fill(5))];
  }

  function stored() {
    held = many = 0;
    const length = source[at] | (source[at + 1] << 8);
    out.set(source.subarray(at + 4, at + 4 + length), put);
    at += 4 + length;
    put += length;
  }

  function compressed([literal, distance]) {
    for (let symbol = symbolOf(literal); symbol !== 256; symbol = symbolOf(literal)) {
      if (symbol < 256) out[put++] = symbol;
      else {
        const length = LENGTHS[symbol - 257] + take(LENGTH_BITS[symbol - 257]);
        const code = symbolOf(distance);
        const back = distanceBase(code) + take(distanceBits(code));
        for (let copied = 0; copied < length; copied++, put++) out[put] = out[put - back];
      }
    }
  }

  for (let last = 0; !last; ) {
    last = take(1);
    const kind = take(2);
    if (kind === 0) stored();
    else compressed(kind === 1 ? fixedTables() : tables());
  }
  return out;
}
