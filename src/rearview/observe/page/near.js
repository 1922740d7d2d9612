// A sheet is what the board shows of a head: cells of bin x bin positions from (left, top) on, and their numbers. The
// whole map is one. Near enough, a head whose queries and keys are in the page is shown pair by pair: its weights are
// computed here, for the piece that is in view.

const NEAR = 192;

const wholeSheet = (l = state.layer, h = state.head) => ({
  bin: layers[l].bin, left: 0, top: layers[l].top, rows: layers[l].rows, columns: layers[l].columns,
  get map() { return of("map", l, h); },
  get uniform() { return of("uniform", l, h); },
  // A difference has no such thing: its scales do not ask for it.
  get first() { return changed ? null : of("first", l, h); },
});

const isNear = (view) => head().near !== undefined && view.x1 - view.x0 <= NEAR && view.y1 - view.y0 <= NEAR;

// The sheet of a view; the same one as long as nothing has changed.
let sheetOnShow = null;
function sheetFor(view) {
  const near = isNear(view);
  const edges = near ? [Math.floor(view.x0), Math.ceil(view.x1), Math.floor(view.y0), Math.ceil(view.y1)] : [];
  const name = [state.layer, state.head, ...edges].join();
  if (sheetOnShow?.name !== name) sheetOnShow = Object.assign(near ? nearSheet(...edges) : wholeSheet(), { name });
  return sheetOnShow;
}

function nearSheet(left, right, top, bottom) {
  const [rows, columns] = [bottom - top, right - left];
  const [map, uniform, first] = [rows * columns, rows * columns, rows].map((size) => new Float32Array(size));
  for (let row = 0; row < rows; row++) {
    const listening = listener(top + row);
    first[row] = listening.weight(0);
    for (let column = 0; column < columns; column++) {
      const n = row * columns + column;
      map[n] = listening.weight(left + column);
      uniform[n] = listening.hears(left + column) ? 1 / listening.count : 0;
    }
  }
  return { bin: 1, left, top, rows, columns, map, uniform, first };
}

// One query of the head on show: whom it hears, and how much.
function listener(query) {
  const near = head().near;
  const n = query - layer().start;
  const dim = near.query.shape[1];
  const ranges = near.starts.shape[1];
  const [q, k, lse] = [held(near.query), held(near.key), held(near.lse)[n]];
  const [starts, ends] = [near.starts, near.ends].map((edges) => held(edges).subarray(n * ranges, (n + 1) * ranges));
  const hears = (key) => starts.some((start, r) => start <= key && key < ends[r]);
  const weight = (key) => {
    if (!hears(key)) return 0;
    let score = 0;
    for (let d = 0; d < dim; d++) score += q[n * dim + d] * k[key * dim + d];
    score *= near.scale;
    if (near.softcap) score = Math.tanh(score / near.softcap) * near.softcap;
    return Math.exp(score - near.slope * Math.abs(query - key) - lse);
  };
  return { hears, weight, count: starts.reduce((sum, start, r) => sum + ends[r] - start, 0) };
}

// The numbers of an array that is no matter of heads, read once.
const heldArrays = new Map();
function held(array) {
  if (!heldArrays.has(array.at)) heldArrays.set(array.at, plainNumbers(array));
  return heldArrays.get(array.at);
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
