// A matrix on a canvas: labelled cells that can be chosen by mouse, touch and arrow keys.

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// The cell that a key moves to from a cell, inside the matrix; null for other keys.
function stepped(key, [row, column], rows, columns) {
  const to = key === "Home" ? [row, 0] : key === "End" ? [row, columns - 1]
    : key in ARROWS ? [row + ARROWS[key][0], column + ARROWS[key][1]] : null;
  return to && [within(to[0], 0, rows - 1), within(to[1], 0, columns - 1)];
}

// Options: `rows`, `columns` and `left`, which may change before it is drawn again; `size()`, the width and height of a
// cell in CSS pixels; `left` and `top`, the room for the labels that `rowLabel(row)` and `columnLabel(column)` give, at least `apart` pixels from one to the next;
// `paint(pen, cell, box)`, which fills a cell; `chosen()`, the cell with the outline or null; `point(cell)`, called
// when the mouse is over a cell and with null when it leaves; `choose(cell)`, for a click, a tap or a key. A cell is
// [row, column]. `byRow` outlines the row of the chosen cell; `slow` paints a few cells at a time.
function matrix(canvas, options) {
  const { size, top = 0, apart = [13, 26], byRow = false, slow = false, paint, chosen, point = () => {}, choose } = options;
  canvas.classList.add("matrix");
  const left = () => options.left ?? 0;
  const boxOf = ([row, column], wide, high) => {
    const gap = Math.min(wide, high) > 40 ? 4 : Math.min(wide, high) > 6 ? 1 : 0;
    return [left() + column * wide, top + row * high, wide - gap, high - gap];
  };

  function draw(cells = everyCell()) {
    const { wide, high } = size();
    const pen = paper(canvas, left() + options.columns * wide, top + options.rows * high);
    pen.font = `11px ${colour("--sans")}`;
    pen.fillStyle = colour("--quiet");
    if (options.columnLabel) {
      pen.textAlign = "center";
      const step = Math.ceil(apart[1] / wide);
      for (let n = 0; n < options.columns; n += step) pen.fillText(options.columnLabel(n), left() + (n + 0.5) * wide, top - 7);
    }
    if (options.rowLabel) {
      pen.textAlign = "right";
      const step = Math.ceil(apart[0] / high);
      for (let n = 0; n < options.rows; n += step) pen.fillText(options.rowLabel(n), left() - 7, top + (n + 0.5) * high + 4);
    }
    paintSome(pen, cells);
  }

  const everyCell = () => Array.from({ length: options.rows * options.columns }, (_, n) => [Math.floor(n / options.columns), n % options.columns]);

  // Slow cells are painted a few at a time, so that the page stays responsive.
  let turn = 0;
  function paintSome(pen, cells) {
    const mine = ++turn;
    const { wide, high } = size();
    const some = (from) => {
      if (mine !== turn) return;
      const begun = performance.now();
      let n = from;
      for (; n < cells.length && (!slow || performance.now() - begun < 24); n++) paint(pen, cells[n], boxOf(cells[n], wide, high));
      if (chosen()) outline(pen, wide, high);
      canvas.dataset.drawn = n;
      if (n < cells.length) requestAnimationFrame(() => some(n));
    };
    some(0);
  }

  function outline(pen, wide, high) {
    const [x, y, across, down] = boxOf(chosen(), wide, high);
    pen.strokeStyle = colour("--glow");
    pen.lineWidth = 2.5;
    pen.strokeRect(byRow ? left() : x, y, byRow ? options.columns * wide + across - wide : across, down);
  }

  function cellAt(event) {
    const [edges, { wide, high }] = [canvas.getBoundingClientRect(), size()];
    const [row, column] = [Math.floor((event.clientY - edges.top - top) / high), Math.floor((event.clientX - edges.left - left()) / wide)];
    return row >= 0 && column >= 0 && row < options.rows && column < options.columns ? [row, column] : null;
  }

  canvas.addEventListener("pointermove", (event) => {
    const cell = event.pointerType === "mouse" ? cellAt(event) : null;
    if (cell) point(cell);
  });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) choose(cell);
  });
  canvas.addEventListener("keydown", (event) => {
    const cell = chosen() ? stepped(event.key, chosen(), options.rows, options.columns) : event.key in ARROWS ? [0, 0] : null;
    if (!cell) return;
    event.preventDefault();
    choose(cell);
  });
  return { draw, cellAt };
}
