// Mask: an expression as cells, its ranges, its cost, and the model under it.

const EXAMPLES = ["causal()", "causal() & window(4)", "causal() & (window(4) | prefix(1))", "full()", "causal() | prefix(4)", "chunks(4) | causal()", "dilated(2) & causal()", "per_head([causal(), window(2)])"];
let looked = null;
let [painting, painted, maskCell] = [null, null, null];

function beginMask() {
  at("expressions").append(...EXAMPLES.map((value) => make("option", { value })));
  at("expression").value = "causal() & window(4)";
  let waiting = null;
  const soon = () => { clearTimeout(waiting); waiting = setTimeout(lookAtMask, 250); };
  at("expression").addEventListener("input", soon);
  at("mask-length").addEventListener("input", soon);
  at("mask-run").onclick = runUnder;
  const canvas = at("mask-cells");
  canvas.addEventListener("pointerdown", (event) => {
    const cell = maskCellAt(event);
    if (!cell || !looked) return;
    canvas.setPointerCapture(event.pointerId);
    painted = looked.cells[0].map((row) => [...row]);
    painting = painted[cell[0]][cell[1]] === "1" ? "0" : "1";
    paintCell(cell);
  });
  canvas.addEventListener("pointermove", (event) => painting !== null && paintCell(maskCellAt(event)));
  canvas.addEventListener("pointerup", () => {
    if (painting === null) return;
    painting = null;
    at("expression").value = rangesOf(painted);
    lookAtMask();
  });
}

function paintCell(cell) {
  if (!cell) return;
  painted[cell[0]][cell[1]] = painting;
  looked.cells[0][cell[0]] = painted[cell[0]].join("");
  maskMatrix.draw();
}

// The drawn cells as an expression: the runs of each row.
function rangesOf(rows) {
  const runs = rows.map((row) => [...row.join("").matchAll(/1+/g)].map((found) => [found.index, found.index + found[0].length]));
  const most = Math.max(1, ...runs.map((row) => row.length));
  const filled = runs.map((row) => [...row, ...Array(most - row.length).fill([0, 0])]);
  const written = (n) => JSON.stringify(most === 1 ? filled.map((row) => row[0][n]) : filled.map((row) => row.map((pair) => pair[n]))).replaceAll(",", ", ");
  return `ranges(${written(0)}, ${written(1)})`;
}

const maskSize = () => within(Math.floor((at("mask-cells").parentElement.clientWidth - 34) / (looked?.shown ?? 16)), 5, 30);
const maskMatrix = matrix(at("mask-cells"), {
  get rows() { return looked.shown; },
  get columns() { return looked.shown; },
  left: 30, top: 20,
  size: () => ({ wide: maskSize(), high: maskSize() }),
  rowLabel: String, columnLabel: String,
  paint(pen, [row, column], [x, y, wide, high]) {
    const [mine, own] = [looked.cells[0][row][column] === "1", looked.ownCells?.[row][column] === "1"];
    pen.fillStyle = colour(mine ? (looked.ownCells && !own ? "--more-2" : "--teal") : own && looked.ownCells ? "--less-1" : "--blocked");
    pen.fillRect(x, y, wide, high);
  },
  chosen: () => maskCell,
  point: (cell) => cell && tellMask(cell),
  choose: (cell) => { maskCell = cell; maskMatrix.draw(); tellMask(cell); },
});

function maskCellAt(event) {
  const [edges, size] = [at("mask-cells").getBoundingClientRect(), maskSize()];
  const [row, column] = [Math.floor((event.clientY - edges.top - 20) / size), Math.floor((event.clientX - edges.left - 30) / size)];
  return looked && row >= 0 && column >= 0 && row < looked.shown && column < looked.shown ? [row, column] : null;
}

const tellMask = ([row, column]) => {
  at("mask-said").textContent = `Query ${row} ${looked.cells[0][row][column] === "1" ? "may hear" : "may not hear"} key ${column}.`;
};

async function lookAtMask() {
  const fields = { mask: at("expression").value, length: Number(at("mask-length").value) || 1, model: at("model").value };
  try {
    looked = await ask("mask", fields);
  } catch (error) {
    if (error.name === "AbortError") return;
    at("mask-error").hidden = false;
    at("mask-error").textContent = error.message;
    tell("");
    return;
  }
  at("mask-error").hidden = true;
  maskMatrix.draw();
  const cost = [make("p", {}, make("b", { textContent: looked.engine ?? "none" }), ` ${looked.why}`)];
  if (looked.share !== null && looked.share !== undefined) cost.push(make("p", { className: "sub", textContent: `${percent(looked.share)} of all pairs are visible at length ${grouped(looked.length)}.` }));
  if (looked.obstacle) cost.push(make("p", { className: "sub", textContent: `No ranges: ${looked.obstacle}.` }));
  cost.push(list(looked.others.map(({ name, why }) => `${name}: ${why}`)));
  at("mask-cost").replaceChildren(...cost, ...looked.warnings.map((textContent) => make("p", { className: "error", textContent })));
  at("mask-diff").textContent = looked.own === null ? "No model is chosen."
    : looked.onlyOwn === null ? `Its own mask is ${looked.own}; heads differ.`
    : looked.onlyOwn + looked.onlyThis === 0 ? `The same pairs as ${looked.own}.`
    : `Its own mask is ${looked.own}: ${grouped(looked.onlyOwn)} pairs are heard only there, ${grouped(looked.onlyThis)} only here.`;
  at("mask-legend").replaceChildren(...(looked.shown < looked.length ? [make("li", { textContent: `the first ${looked.shown} of ${grouped(looked.length)} positions` })] : []),
    ...(looked.heads > 1 ? [make("li", { textContent: "head 0 is drawn" })] : []),
    make("li", { textContent: "teal: heard · blue: heard only here · sand: heard only by the model's own mask" }));
  at("mask-ranges").replaceChildren(...(looked.ranges ?? []).map((row, n) => make("tr", {},
    make("th", { scope: "row", textContent: n }), make("td", { textContent: row.map(([a, b]) => `[${a}, ${b})`).join(" ") || "nothing" }))));
  rememberAll();
}

// The model as it is, and under the mask: shown as a difference.
async function runUnder() {
  at("compare-first").value = at("compare-second").value = at("model").value;
  at("compare-first-mask").value = "";
  at("compare-second-mask").value = at("expression").value;
  at("compare-replace").checked = at("mask-replace").checked;
  openView("compare");
  await compareModels().catch(() => {});
}
