// A sheet is what the board shows of a head: cells of bin x bin positions from (left, top) on, with their numbers. The
// whole map is one sheet. When zoomed in, a head whose queries and keys are in the page gets a sheet of exact weights,
// which are computed here for the visible part.

// The largest number of positions per side that are shown with exact weights.
const MOST_EXACT = 192;

const wholeSheet = (l = state.layer, h = state.head) => ({
  bin: layers[l].bin, left: 0, top: layers[l].top, rows: layers[l].rows, columns: layers[l].columns,
  get map() { return of("map", l, h); },
  get uniform() { return of("uniform", l, h); },
  // A difference has none, and its scales do not need it.
  get first() { return changed ? null : of("first", l, h); },
});

const isExact = (view) => head().exact !== undefined && view.x1 - view.x0 <= MOST_EXACT && view.y1 - view.y0 <= MOST_EXACT;

// A page with a server sets this to a function (layer, head, part) -> Promise of {map, uniform, first}; a part is
// {left, right, top, bottom, bin}. Every view then gets a sheet of its own resolution.
let tileSource = null;
const liveSheets = new Map();
const MOST_LIVE_SHEETS = 24;

// The part that covers a view with at most MOST_EXACT cells per side; null where the whole map is as fine.
function partFor({ x0, x1, y0, y1 }) {
  const { start, queries, keys, bin: coarsest } = layer();
  let bin = 1;
  while (Math.max(x1 - x0, y1 - y0) > MOST_EXACT * bin) bin *= 2;
  if (tileSource === null || changed || bin >= coarsest) return null;
  const [left, top] = [Math.floor(x0 / bin) * bin, start + Math.floor((y0 - start) / bin) * bin];
  return { left, right: Math.min(keys, Math.ceil(x1 / bin) * bin), top, bottom: Math.min(start + queries, start + Math.ceil((y1 - start) / bin) * bin), bin };
}

// The live sheet of a view if it has arrived; otherwise it is asked for, and drawn when it arrives.
let waiting = null;
function liveSheet(part) {
  const [l, h] = [state.layer, state.head];
  const name = [l, h, part.left, part.right, part.top, part.bottom, part.bin].join();
  if (liveSheets.has(name)) return liveSheets.get(name);
  clearTimeout(waiting);
  waiting = setTimeout(async () => {
    const numbers = await tileSource(l, h, part).catch(() => null);
    if (numbers === null) return;
    if (liveSheets.size >= MOST_LIVE_SHEETS) liveSheets.delete(liveSheets.keys().next().value);
    const [rows, columns] = [Math.ceil((part.bottom - part.top) / part.bin), Math.ceil((part.right - part.left) / part.bin)];
    liveSheets.set(name, { ...numbers, bin: part.bin, left: part.left, top: part.top, rows, columns, name });
    if (state.layer === l && state.head === h) drawBoard();
  }, 40);
  return null;
}

// The sheet of a view; the same object as long as nothing has changed.
let currentSheet = null;
function sheetFor(view) {
  const part = head().exact ? null : partFor(view);
  const live = part && liveSheet(part);
  if (live) return live;
  const exact = isExact(view);
  const edges = exact ? [Math.floor(view.x0), Math.ceil(view.x1), Math.floor(view.y0), Math.ceil(view.y1)] : [];
  const name = [state.layer, state.head, ...edges].join();
  if (currentSheet?.name !== name) currentSheet = Object.assign(exact ? exactSheet(...edges) : wholeSheet(), { name });
  return currentSheet;
}

function exactSheet(left, right, top, bottom) {
  const [rows, columns] = [bottom - top, right - left];
  const [map, uniform, first] = [rows * columns, rows * columns, rows].map((size) => new Float32Array(size));
  for (let row = 0; row < rows; row++) {
    const query = exactQuery(top + row);
    first[row] = query.weight(0);
    for (let column = 0; column < columns; column++) {
      const n = row * columns + column;
      map[n] = query.weight(left + column);
      uniform[n] = query.hears(left + column) ? 1 / query.count : 0;
    }
  }
  return { bin: 1, left, top, rows, columns, map, uniform, first };
}

// One query of the current head: which keys it hears, and with which weights.
function exactQuery(query) {
  const exact = head().exact;
  const n = query - layer().start;
  const dim = exact.query.shape[1];
  const ranges = exact.starts.shape[1];
  const [q, k, lse] = [cached(exact.query), cached(exact.key), cached(exact.lse)[n]];
  const [starts, ends] = [exact.starts, exact.ends].map((edges) => cached(edges).subarray(n * ranges, (n + 1) * ranges));
  const hears = (key) => starts.some((start, r) => start <= key && key < ends[r]);
  const weight = (key) => {
    if (!hears(key)) return 0;
    let score = 0;
    for (let d = 0; d < dim; d++) score += q[n * dim + d] * k[key * dim + d];
    score *= exact.scale;
    if (exact.softcap) score = Math.tanh(score / exact.softcap) * exact.softcap;
    return Math.exp(score - exact.slope * Math.abs(query - key) - lse);
  };
  return { hears, weight, count: starts.reduce((sum, start, r) => sum + ends[r] - start, 0) };
}

// The numbers of an array without an axis of heads, cached.
const cachedArrays = new Map();
function cached(array) {
  if (!cachedArrays.has(array.at)) cachedArrays.set(array.at, plainNumbers(array));
  return cachedArrays.get(array.at);
}

function plainNumbers({ at, code, shape }) {
  const size = shape.reduce((product, n) => product * n, 1);
  if (code === "f4") return new Float32Array(block, at, size);
  if (code === "i4") return new Int32Array(block, at, size);
  const halves = new Uint16Array(block, at, size);
  // bfloat16 is the upper half of a float32.
  if (code === "b2") return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
  return Float32Array.from(halves, (half) => {
    const [power, rest] = [(half >> 10) & 31, half & 1023];
    const size = power === 31 ? (rest ? NaN : Infinity) : power ? 2 ** (power - 15) * (1 + rest / 1024) : 2 ** -24 * rest;
    return half & 0x8000 ? -size : size;
  });
}
