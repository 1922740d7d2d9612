// Who heard whom: a square per pair of an output and a changed position.

const report = data;
const hears = report.hears;
const [LABELS, TOP] = [34, 20];
const WORDS = { f: "heard, and must not be", h: "heard, as it may be", s: "not heard, though it may be", b: "not heard, and must not be" };
const FILLS = { f: "--red", h: "--teal", s: "--hatch", b: "--blocked" };

const written = (amount) => (amount !== 0 && Math.abs(amount) < 1e-3 ? amount.toExponential() : String(amount));

function beginHeard() {
  const [rows, columns] = [hears.cells.length, hears.sources.length];
  let chosen = null;
  at("heard").hidden = false;
  at("shape").textContent = hears.words;
  at("matrix").ariaLabel = `Who heard whom: rows are outputs, columns the positions that were changed. ${hears.words}`;
  const kinds = Object.keys(WORDS).filter((kind) => hears.cells.some((row) => row.includes(kind)));
  const some = columns < rows ? `, ${columns} of ${rows} positions` : "";
  at("legend").replaceChildren(...kinds.map((kind) => swatch(kind, WORDS[kind])), make("li", { textContent: `rows: outputs · columns: changed positions${some}` }));

  function choose([row, column]) {
    chosen = [row, column];
    const kind = hears.cells[row][column];
    at("cell").className = kind === "f" ? "bad" : "";
    at("cell").textContent = `Position ${row} moves by ${written(hears.amounts[row][column])} when position ${hears.sources[column]} changes: ${WORDS[kind]}.`;
    board.draw();
  }

  const board = matrix(at("matrix"), {
    rows, columns, left: LABELS, top: TOP,
    // Square where every position was changed; of a long input only some are.
    size() {
      const room = Math.min(at("heard").clientWidth - 44 - LABELS, 620);
      const fit = (count) => within(Math.floor(room / count), 3, 40);
      return { wide: fit(columns), high: fit(rows) };
    },
    rowLabel: (row) => row,
    columnLabel: (column) => hears.sources[column],
    paint(pen, [row, column], box) {
      pen.fillStyle = colour(FILLS[hears.cells[row][column]]);
      pen.fillRect(...box);
    },
    chosen: () => chosen,
    point: (cell) => cell && choose(cell),
    choose,
  });
  onChange(board.draw);

  // The worst of the forbidden pairs is chosen first, if there is one.
  const forbidden = hears.cells.flatMap((row, i) => [...row].map((kind, j) => (kind === "f" ? [Number(hears.amounts[i][j]), i, j] : null))).filter(Boolean);
  if (forbidden.length) return choose(forbidden.sort((a, b) => b[0] - a[0])[0].slice(1));
  const elsewhere = report.checks.filter((check) => check.status === "failed").map((check) => check.name);
  at("elsewhere").hidden = !elsewhere.length;
  at("elsewhere").textContent = `Nothing forbidden is heard in these runs. Other checks show the leak: ${elsewhere.join(", ")}.`;
  at("cell").textContent = "Point at a cell.";
  board.draw();
}
