// The layers and heads of the page, with their numbers in one packed block.

// Whether a difference is shown, its layers, and the bytes of all arrays.
let [changed, layers, block] = [false, [], null];

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Shows these layers and heads from now on; `bytes` are their arrays.
function openData(contents, bytes) {
  [data, changed, layers, block] = [contents, contents.kind === "diff", contents.layers, bytes];
  for (const cache of [unpackedArrays, cachedArrays, thumbnails, liveSheets]) cache.clear();
  [picture, currentSheet] = [null, null];
  Object.assign(state, { cell: null, pinned: false, view: null });
  if (!data.scales.includes(state.scale)) state.scale = data.scales[0];
}

// An array is {at, code, shape}; its first axis is the head, and has size 1 where all heads share it.
function numbers(array, head) {
  const size = array.shape.slice(1).reduce((product, n) => product * n, 1);
  const place = array.shape[0] > 1 ? head : 0;
  if (array.code === "f4") return new Float32Array(block, array.at + 4 * size * place, size);
  // Sixteen bits: the sign, and 15 bits of the logarithm to base 2, from 2^-32 to 1; 0 means 0.
  const codes = new Int16Array(block, array.at + 2 * size * place, size);
  return Float32Array.from(codes, (code) => (code ? Math.sign(code) * array.largest * 2 ** (((Math.abs(code) - 1) / 32766) * 32 - 32) : 0));
}

const state = { layer: 0, head: 0, scale: "log", metric: "maps", cell: null, pinned: false, view: null };
const layer = () => layers[state.layer];
const head = () => layer().heads[state.head];

// The numbers of a head, cached.
const unpackedArrays = new Map();
function of(name, l = state.layer, h = state.head) {
  const key = `${l}.${h}.${name}`;
  if (!unpackedArrays.has(key)) {
    if (unpackedArrays.size > 96) unpackedArrays.delete(unpackedArrays.keys().next().value);
    unpackedArrays.set(key, numbers(layers[l].arrays[name], h));
  }
  return unpackedArrays.get(key);
}

// A share in percent with three digits; only 0 is written as 0, and only 1 as 100 %.
function share(x) {
  if (x === 0) return "0";
  if (x < 0) return `−${share(-x)}`;
  const percent = 100 * x;
  if (x < 1 && percent >= 99.95) return "over 99.9 %";
  if (percent >= 10) return `${percent.toFixed(1)} %`;
  if (percent >= 1) return `${percent.toFixed(2)} %`;
  return percent >= 1e-3 ? `${percent.toPrecision(3)} %` : x.toExponential(2);
}
const signed = (x) => (x > 0 ? "+" : "") + share(x);
const times = (ratio) => (ratio >= 100 ? ratio.toFixed(0) : ratio >= 10 ? ratio.toFixed(1) : ratio.toPrecision(2));
const grouped = (n) => n.toLocaleString("en");
const counted = (n, one, many) => `${grouped(n)} ${n === 1 ? one : many}`;

// Tokens. For a bin of several tokens, the first few are shown.
const words = (set) => (set === null ? null : data.labels[set]);
const shorter = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function tokens(set, from, to) {
  const list = words(set);
  if (!list || from >= list.length) return "";
  const some = list.slice(from, Math.min(to, from + 4)).join("");
  return `“${shorter(some, 28)}${to - from > 4 && some.length < 28 ? "…" : ""}”`;
}

function named(one, many, set, from, to) {
  const where = to - from === 1 ? `${one} ${grouped(from)}` : `${many} ${grouped(from)}–${grouped(to - 1)}`;
  return `${where} ${tokens(set, from, to)}`.trim();
}
