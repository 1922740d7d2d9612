// Mask: an expression as cells, its ranges, its cost, and the model under it.

const EXAMPLES = ["causal()", "causal() & window(4)", "causal() & (window(4) | prefix(1))", "full()", "causal() | prefix(4)", "chunks(4) | causal()", "dilated(2) & causal()", "per_head([causal(), window(2)])"];
let looked = null;
// While cells are drawn: the value that they are given, and the cells of each row.
let [painting, painted] = [null, null];
// The chosen cell, and names of the positions where a step of the tour gives them.
let [maskCell, maskNames] = [null, null];

function beginMask() {
  at("expressions").append(...EXAMPLES.map((value) => make("option", { value })));
  at("expression").value = at("expression").defaultValue = "causal() & window(4)";
  let waiting = null;
  const soon = () => {
    maskNames = null;
    clearTimeout(waiting);
    waiting = setTimeout(lookAtMask, 250);
  };
  at("expression").addEventListener("input", soon);
  at("mask-length").addEventListener("input", soon);
  at("mask-layer").addEventListener("change", soon);
  at("mask-run").onclick = runUnder;
  const canvas = at("mask-cells");
  // Fingers scroll the page, and a tap flips one cell.
  canvas.addEventListener("pointerdown", (event) => {
    const cell = event.pointerType !== "touch" && event.button === 0 ? maskMatrix.cellAt(event) : null;
    if (!cell || !canDraw()) return;
    canvas.setPointerCapture(event.pointerId);
    startPainting(cell);
  });
  canvas.addEventListener("pointermove", (event) => painting !== null && paintCell(maskMatrix.cellAt(event)));
  canvas.addEventListener("pointerup", finishPainting);
  canvas.addEventListener("pointercancel", () => {
    if (painting === null) return;
    painting = null;
    lookAtMask();
  });
  canvas.addEventListener("click", (event) => {
    // A mouse has drawn by now.
    if (event.pointerType === "touch" && maskCell) flip(maskCell);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    if (maskCell) flip(maskCell);
  });
}

// Cells can be drawn where all of them are shown, for a mask that is the same for every head.
function canDraw() {
  if (!looked) return false;
  const why = looked.shown < looked.length ? `Only the first ${looked.shown} positions are shown. Choose a length of at most ${looked.shown} to draw.`
    : looked.heads > 1 ? "This mask differs between heads and cannot be drawn." : "";
  if (why) at("mask-said").textContent = why;
  return !why;
}

function startPainting(cell) {
  painted = looked.cells[0].map((row) => [...row]);
  painting = painted[cell[0]][cell[1]] === "1" ? "0" : "1";
  paintCell(cell);
}

function paintCell(cell) {
  if (!cell) return;
  painted[cell[0]][cell[1]] = painting;
  looked.cells[0][cell[0]] = painted[cell[0]].join("");
  maskMatrix.draw();
}

function finishPainting() {
  if (painting === null) return;
  painting = null;
  at("expression").value = rangesOf(painted);
  lookAtMask();
}

function flip(cell) {
  if (!canDraw()) return;
  startPainting(cell);
  finishPainting();
}

// The drawn cells as an expression: the runs of each row.
function rangesOf(rows) {
  const runs = rows.map((row) => [...row.join("").matchAll(/1+/g)].map((found) => [found.index, found.index + found[0].length]));
  const most = Math.max(1, ...runs.map((row) => row.length));
  const filled = runs.map((row) => [...row, ...Array(most - row.length).fill([0, 0])]);
  const written = (n) => JSON.stringify(most === 1 ? filled.map((row) => row[0][n]) : filled.map((row) => row.map((pair) => pair[n]))).replaceAll(",", ", ");
  return `ranges(${written(0)}, ${written(1)})`;
}

const nameOfPosition = (n) => maskNames?.[n] ?? String(n);
const maskRoom = () => (maskNames ? 66 : 34);
const maskSize = () => within(Math.floor((at("mask-cells").parentElement.clientWidth - maskRoom() - 4) / (looked?.shown ?? 16)), 5, maskNames ? 72 : 36);
const maskMatrix = matrix(at("mask-cells"), {
  get rows() { return looked.shown; },
  get columns() { return looked.shown; },
  get left() { return maskRoom(); },
  top: 20,
  size: () => ({ wide: maskSize(), high: maskSize() }),
  rowLabel: nameOfPosition, columnLabel: nameOfPosition,
  paint(pen, [row, column], [x, y, wide, high]) {
    const [mine, own] = [looked.cells[0][row][column] === "1", looked.ownCells?.[row][column] === "1"];
    const differs = looked.ownCells && mine !== own;
    pen.fillStyle = colour(mine ? (differs ? "--plum" : "--teal") : differs ? "--less-1" : "--blocked");
    pen.fillRect(x, y, wide, high);
    if (!differs || wide < 14) return;
    // Not by colour alone: what the mask adds to the model's own, and what it takes away.
    pen.fillStyle = colour(mine ? "--card" : "--ink");
    pen.textAlign = "center";
    pen.fillText(mine ? "+" : "−", x + wide / 2, y + high / 2 + 4);
  },
  chosen: () => maskCell,
  point: (cell) => cell && tellMask(cell),
  choose: (cell) => {
    maskCell = cell;
    maskMatrix.draw();
    tellMask(cell);
  },
});

const tellMask = ([row, column]) => {
  const who = maskNames ? `${maskNames[row]} ${looked.cells[0][row][column] === "1" ? "may hear" : "may not hear"} ${maskNames[column]}.`
    : `Query ${row} ${looked.cells[0][row][column] === "1" ? "may hear" : "may not hear"} key ${column}.`;
  at("mask-said").textContent = who;
};

async function lookAtMask() {
  const fields = { mask: at("expression").value, length: Number(at("mask-length").value) || 1, model: at("model").value, layer: Number(at("mask-layer").value) || 0 };
  try {
    looked = await ask("mask", fields);
  } catch (error) {
    if (error.name === "AbortError") return;
    at("mask-error").hidden = false;
    say(at("mask-error"), error.message);
    tell("");
    return;
  }
  at("mask-error").hidden = true;
  if (maskCell && Math.max(...maskCell) >= looked.shown) maskCell = null;
  maskMatrix.draw();
  drawMaskFacts();
  rememberAll();
}

function drawMaskFacts() {
  const engines = [[looked.engine ?? "none", looked.why, true], ...looked.others.map(({ name, why }) => [name, why, false])];
  const cost = [make("dl", { className: "engines" }, ...engines.flatMap(([name, why, taken]) => [
    make("dt", {}, make("span", { className: taken ? "badge passed" : "badge", textContent: name })), make("dd", { textContent: why })]))];
  if (looked.share !== null && looked.share !== undefined) cost.unshift(make("p", { className: "sub", textContent: `${percent(looked.share)} of all pairs are visible at length ${grouped(looked.length)}.` }));
  if (looked.obstacle) cost.push(make("p", { className: "sub", textContent: `No ranges: ${looked.obstacle}.` }));
  at("mask-cost").replaceChildren(...cost, ...looked.warnings.map((textContent) => make("p", { className: "error", textContent })));
  const partly = looked.compared < looked.length ? ` Compared are the first ${grouped(looked.compared)} positions.`
    : looked.ownAt < looked.length ? ` Its own mask is the one at ${grouped(looked.ownAt)} tokens.` : "";
  at("mask-diff").textContent = (looked.own === null ? "No model is chosen."
    : looked.onlyOwn === null ? `Its own mask is ${looked.own}; heads differ.`
    : looked.onlyOwn + looked.onlyThis === 0 ? `The same pairs as ${looked.own}.`
    : `Its own mask is ${looked.own}: ${counted(looked.onlyOwn, "pair is", "pairs are")} heard only there, ${grouped(looked.onlyThis)} only here.`) + partly;
  const square = (name, text) => {
    const item = swatch("", text);
    item.firstChild.style.background = colour(name);
    return item;
  };
  at("mask-legend").replaceChildren(square("--teal", "heard"),
    ...(looked.ownCells ? [square("--plum", "+ heard only here"), square("--less-1", "− heard only by the model's own mask")] : []),
    square("--blocked", "not heard"),
    ...(looked.shown < looked.length ? [make("li", { textContent: `the first ${looked.shown} of ${grouped(looked.length)} positions` })] : []),
    ...(looked.heads > 1 ? [make("li", { textContent: "head 0 is drawn" })] : []));
  if (maskCell) tellMask(maskCell);
  else at("mask-said").textContent = looked.shown < looked.length || looked.heads > 1 ? "" : `${matchMedia("(pointer: coarse)").matches ? "Tap a cell to change it" : "Drag over cells to draw"}: the expression becomes a ranges mask.`;
  at("mask-ranges-note").textContent = looked.ranges ? "of the keys that each query hears" : "none";
  at("mask-ranges").replaceChildren(...(looked.ranges ?? []).map((row, n) => make("tr", {},
    make("th", { scope: "row", textContent: nameOfPosition(n) }), make("td", { textContent: row.map(([a, b]) => `[${a}, ${b})`).join(" ") || "nothing" }))));
}

// The layers whose masks an expression is compared with.
function showMaskLayers() {
  const chosen = at("mask-layer").value;
  const own = isRead() ? layers.length : 0;
  at("mask-layer").replaceChildren(...Array.from({ length: own || 1 }, (_, n) => make("option", { value: n, textContent: own ? `layer ${layers[n].choice.split(" ")[0]}` : "layer 0" })));
  if (Number(chosen) < own) at("mask-layer").value = chosen || "0";
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
