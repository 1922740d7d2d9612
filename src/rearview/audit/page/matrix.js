// Who heard whom: one square a pair, on a canvas, since a long input has many. Mouse, touch and arrow keys choose a cell.

const hears = report.hears;
const chosen = { row: -1, column: -1 };
const [LABELS, TOP] = [34, 20];
const WORDS = { f: "heard, and must not be", h: "heard, as it may be", s: "not heard, though it may be", b: "not heard, and must not be" };

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Square where as many were changed as there are outputs; of a long input only some were.
function cellSize() {
  const [rows, columns] = [hears.cells.length, hears.sources.length];
  const room = Math.min(at("heard").clientWidth - 44 - LABELS, 620);
  const fit = (count) => Math.max(3, Math.min(40, Math.floor(room / count)));
  return { wide: fit(columns), high: fit(rows) };
}

function drawMatrix() {
  const [rows, columns, canvas] = [hears.cells.length, hears.sources.length, at("matrix")];
  const { wide, high } = cellSize();
  const [width, height, sharp] = [LABELS + columns * wide, TOP + rows * high, window.devicePixelRatio || 1];
  Object.assign(canvas, { width: width * sharp, height: height * sharp });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(sharp, sharp);
  const fills = { f: colour("--red"), h: colour("--teal"), s: colour("--silent"), b: colour("--blocked") };
  const gap = Math.min(wide, high) > 6 ? 1 : 0;
  hears.cells.forEach((row, i) => [...row].forEach((kind, j) => {
    pen.fillStyle = fills[kind];
    pen.fillRect(LABELS + j * wide, TOP + i * high, wide - gap, high - gap);
  }));
  pen.fillStyle = colour("--quiet");
  pen.font = `11px ${colour("--sans")}`;
  pen.textAlign = "center";
  const across = Math.ceil(26 / wide);
  hears.sources.forEach((source, j) => j % across || pen.fillText(source, LABELS + (j + 0.5) * wide, 13));
  pen.textAlign = "right";
  const down = Math.ceil(13 / high);
  hears.cells.forEach((_, i) => i % down || pen.fillText(i, LABELS - 6, TOP + (i + 0.5) * high + 4));
  if (chosen.row >= 0) {
    pen.strokeStyle = colour("--glow");
    pen.lineWidth = 2;
    pen.strokeRect(LABELS + chosen.column * wide, TOP + chosen.row * high, wide - gap, high - gap);
  }
}

const written = (amount) => (amount !== 0 && Math.abs(amount) < 1e-3 ? amount.toExponential() : String(amount));

function choose(row, column) {
  Object.assign(chosen, { row, column });
  const kind = hears.cells[row][column];
  at("cell").className = kind === "f" ? "bad" : "";
  at("cell").textContent = `Position ${row} moves by ${written(hears.amounts[row][column])} when position ${hears.sources[column]} changes: ${WORDS[kind]}.`;
  drawMatrix();
}

function cellAt(event) {
  const box = at("matrix").getBoundingClientRect();
  const { wide, high } = cellSize();
  const [row, column] = [Math.floor((event.clientY - box.top - TOP) / high), Math.floor((event.clientX - box.left - LABELS) / wide)];
  return row >= 0 && column >= 0 && row < hears.cells.length && column < hears.sources.length ? [row, column] : null;
}

function beginMatrix() {
  at("heard").hidden = false;
  at("shape").textContent = hears.words;
  at("matrix").ariaLabel = `Who heard whom: rows are outputs, columns the positions that were changed. ${hears.words}`;
  const kinds = ["f", "h", "s", "b"].filter((kind) => hears.cells.some((row) => row.includes(kind)));
  at("legend").replaceChildren(...kinds.map((kind) => make("li", {}, make("i", { className: `swatch ${kind}` }), WORDS[kind])));
  const some = hears.sources.length < hears.cells.length ? `, ${hears.sources.length} of ${hears.cells.length} positions` : "";
  at("legend").append(make("li", { textContent: `rows: outputs · columns: what was changed${some}` }));
  const canvas = at("matrix");
  const point = (event) => {
    const cell = cellAt(event);
    if (cell) choose(...cell);
  };
  canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && point(event));
  canvas.addEventListener("click", point);
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const within = (value, most) => Math.max(0, Math.min(most - 1, value));
    choose(within(chosen.row + move[0], hears.cells.length), within(chosen.column + move[1], hears.sources.length));
  });
  window.addEventListener("resize", drawMatrix);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMatrix);
  // The worst of the forbidden pairs is chosen at first; else nothing is.
  const worst = hears.cells.flatMap((row, i) => [...row].map((kind, j) => (kind === "f" ? [Number(hears.amounts[i][j]), i, j] : null)))
    .filter(Boolean).sort((a, b) => b[0] - a[0])[0];
  if (worst) choose(worst[1], worst[2]);
  else {
    const elsewhere = report.checks.filter((check) => check.status === "failed").map((check) => check.name);
    at("elsewhere").hidden = !elsewhere.length;
    at("elsewhere").textContent = `Nothing forbidden is heard in these runs. The leak shows elsewhere: ${elsewhere.join(", ")}.`;
    at("cell").textContent = "Point at a cell.";
    drawMatrix();
  }
}
