// The Trace of the page: its numbers, how they are written, and the matrix of each view.

const trace = data;
const NAMED = { inf: Infinity, "-inf": -Infinity, nan: NaN };
const matrices = trace.matrices.map((rows) => rows.map((row) => row.map((x) => (typeof x === "string" ? NAMED[x] : x))));
const stages = Object.fromEntries(trace.stages.map((stage) => [stage.key, stage]));
// The steps whose cells are pairs of a query and a key, after the mask.
const JUDGED = ["mask", "masked", "weights"];
const STRONG = 0.73; // From this weight on, the cell is dark and its text is light (in the dark theme, vice versa).

const state = { step: trace.stages[0].key, mask: true, difference: false, head: 0, cell: null, pinned: false };

// Numbers, written as rearview.explanation.numbers.shown writes them.

function shown(x) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "-∞";
  if (x === 0) return "0";
  if (Math.abs(x) < 0.0005) return "0.000";
  if (Math.abs(x) >= 1e21) return `${BigInt(x)}.000`;
  // toFixed rounds an exact tie away from 0, Python to even. With three digits a tie is an odd number of sixteenths.
  if (Math.abs(x * 16) % 2 === 1) {
    const below = Math.floor(Math.abs(x) * 1000);
    return (Math.sign(x) * ((below + (below % 2)) / 1000)).toFixed(3);
  }
  return x.toFixed(3);
}

const signed = (x) => (x >= 0.0005 ? "+" : "") + shown(x);

// A matrix of whole numbers is written without decimals.
function writerOf(matrix, write) {
  const whole = matrix.every((row) => row.every((x) => !Number.isFinite(x) || Number.isInteger(x)));
  return whole ? (x) => write(x).replace(/\.000$/, "") : write;
}

// The matrix of a view, and who may hear whom.

const view = (stage) => (stage.difference && state.difference ? "difference" : stage.without && !state.mask ? "without" : "with");

function matrixOf(key, which = view(stages[key])) {
  const stage = stages[key];
  if (which === "difference") {
    const without = matrixOf(key, "without");
    return matrixOf(key, "with").map((row, i) => row.map((x, j) => x - without[i][j]));
  }
  const places = (stage[which] ?? stage.with).matrix;
  return matrices[places[places.length > 1 ? state.head : 0]];
}

function mayHear(query, key) {
  return trace.visible[trace.visible.length > 1 ? state.head : 0][query][key] === "1";
}

// The logit of the learned sink; null where there is none.
const sinkOf = () => ("sinks" in stages ? matrixOf("sinks")[0][0] : null);

// The part of a row's attention that goes to keys it may hear, and to a sink, when nothing is masked.
function kept(query) {
  const without = matrixOf("weights", "without")[query];
  const heard = without.filter((_, key) => mayHear(query, key));
  if (heard.length === without.length) return 1;
  return sum(heard) + (sinkOf() === null ? 0 : 1 - sum(without));
}

function formula(text) {
  // W_Q is written with a subscript.
  return text.split(/(W_[A-Z])/).map((part) => (/^W_[A-Z]$/.test(part) ? make("span", {}, "W", make("sub", { textContent: part[2] })) : part));
}
