// One head, large: the map with its tokens, below it what each key receives, next to it the entropy of each query.
// The view is the visible part of the map, in positions of keys (x) and queries (y); zooming and panning change it.

const board = { left: 0, top: 0, wide: 0, high: 0 };
const [STRIP, ENTROPY, BETWEEN] = [64, 58, 8];
// The latest picture, and its sheet.
let picture = null;

const sheet = () => sheetFor(state.view);
const wholeView = () => ({ x0: 0, x1: layer().keys, y0: layer().start, y1: layer().start + layer().queries });
const pixelX = (x) => board.left + ((x - state.view.x0) / (state.view.x1 - state.view.x0)) * board.wide;
const pixelY = (y) => board.top + ((y - state.view.y0) / (state.view.y1 - state.view.y0)) * board.high;
const isZoomed = () => state.view.x1 - state.view.x0 < layer().keys || state.view.y1 - state.view.y0 < layer().queries;

// The positions of a row or a column of cells, and the row or column of a position.
function queriesOf(row) {
  const [{ start, queries }, { bin, top }] = [layer(), sheet()];
  return [Math.max(start, top + row * bin), Math.min(start + queries, top + (row + 1) * bin)];
}
function keysOf(column) {
  const { bin, left } = sheet();
  return [left + column * bin, Math.min(layer().keys, left + (column + 1) * bin)];
}
const rowOf = (query) => Math.floor((query - sheet().top) / sheet().bin);
const columnOf = (key) => Math.floor((key - sheet().left) / sheet().bin);
// The ranges of queries and of keys of the chosen cell.
const chosenCell = () => state.cell && [queriesOf(rowOf(state.cell.query)), keysOf(columnOf(state.cell.key))];

function measure() {
  const one = layer();
  const room = at("board-box").clientWidth;
  const narrow = room < 480;
  const roomy = (set, span, size) => words(set) !== null && size / span >= 11;
  const entropyRoom = narrow ? 0 : ENTROPY + BETWEEN;
  const guess = Math.min(room - 40 - entropyRoom, 640);
  board.rowWords = roomy(one.querySet, state.view.y1 - state.view.y0, guess);
  board.columnWords = roomy(one.keySet, state.view.x1 - state.view.x0, guess);
  // Room for the largest number.
  board.left = board.rowWords ? (narrow ? 62 : 92) : Math.max(44, 8 + 7 * grouped(one.start + one.queries).length);
  board.top = board.columnWords ? 76 : 22;
  board.entropyRoom = entropyRoom;
  board.wide = Math.max(120, Math.min(room - board.left - entropyRoom - 2, 640));
  board.high = Math.max(140, Math.min(board.wide, Math.round((board.wide * one.queries) / one.keys)));
}

function drawBoard() {
  measure();
  const pen = paper(at("board"), board.left + board.wide + board.entropyRoom + 2, board.top + board.high + BETWEEN + STRIP + 16);
  Object.assign(at("board").dataset, { left: board.left, top: board.top, wide: board.wide, high: board.high });
  const { x0, x1, y0, y1 } = state.view;
  const { bin, left, top } = sheet();
  if (picture?.sheet !== sheet()) {
    picture = { sheet: sheet(), painted: pixels(state.scale, sheet()) };
    drawRamp();
    tellResolution();
  }
  at("board").dataset.bin = bin;
  const from = [(x0 - left) / bin, (y0 - top) / bin, (x1 - x0) / bin, (y1 - y0) / bin];
  pen.save();
  pen.beginPath();
  pen.rect(board.left, board.top, board.wide, board.high);
  pen.clip();
  // A picture finer than the screen is averaged; a coarser one keeps its edges.
  pen.imageSmoothingEnabled = from[2] > board.wide;
  pen.drawImage(picture.painted, ...from, board.left, board.top, board.wide, board.high);
  drawNumbers(pen);
  pen.restore();
  drawAxes(pen);
  drawReceived(pen);
  if (board.entropyRoom) drawEntropy(pen);
  drawCross(pen);
  pen.strokeStyle = colour("--line");
  pen.lineWidth = 1;
  pen.strokeRect(board.left - 0.5, board.top - 0.5, board.wide + 1, board.high + 1);
  at("board").style.touchAction = isZoomed() ? "none" : "pan-y";
  at("whole").disabled = at("out").disabled = !isZoomed();
}

// Numbers are written into cells that are large enough.
function drawNumbers(pen) {
  const { bin, map, uniform, rows, columns } = sheet();
  const [wide, high] = [(board.wide * bin) / (state.view.x1 - state.view.x0), (board.high * bin) / (state.view.y1 - state.view.y0)];
  if (wide < 42 || high < 17) return;
  const values = shownNumbers(state.scale, sheet());
  const shade = strength(state.scale, topOf(state.scale, values));
  const colours = twoSided(state.scale) ? shades.sides : shades.ramp;
  pen.font = `${Math.min(13, Math.round(wide / 4.6))}px ${colour("--sans")}`;
  pen.textAlign = "center";
  const { x0, x1, y0, y1 } = state.view;
  for (let row = Math.max(0, rowOf(y0)); row < Math.min(rows, rowOf(y1) + 1); row++) {
    for (let column = Math.max(0, columnOf(x0)); column < Math.min(columns, columnOf(x1) + 1); column++) {
      const n = row * columns + column;
      if (!uniform[n] && !map[n]) continue;
      const [x, y] = [pixelX(sheet().left + (column + 0.5) * bin), pixelY(sheet().top + (row + 0.5) * bin)];
      pen.fillStyle = bright(colours[shade(values[n])]) ? "#000" : "#fff";
      pen.fillText(state.scale === "expected" ? `×${times(values[n])}` : (changed ? signed(values[n]) : share(values[n])).replace(" %", "%").replace("over ", ">"), x, y + 4);
    }
  }
}

// The beginning of a text that fits into this width.
function fitted(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  const letters = [...text];
  while (letters.length > 1 && pen.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

const positions = (from, to, about) => ticks(from, to, about, 1).filter((position) => position < to);

function drawAxes(pen) {
  const one = layer();
  const { x0, x1, y0, y1 } = state.view;
  pen.fillStyle = colour("--quiet");
  const chosen = chosenCell();
  const ink = (lit) => { pen.fillStyle = colour(lit ? "--ink" : "--quiet"); };
  const lit = (position, range) => chosen !== null && position >= range[0] && position < range[1];
  if (board.columnWords) {
    pen.font = `12px ${colour("--sans")}`;
    pen.textAlign = "left";
    for (let key = Math.floor(x0); key < Math.min(x1, one.keys); key++) {
      if (pixelX(key + 0.5) < board.left || pixelX(key + 0.5) > board.left + board.wide) continue;
      pen.save();
      pen.translate(pixelX(key + 0.5) + 4, board.top - 6);
      pen.rotate(-Math.PI / 2);
      ink(lit(key, chosen?.[1]));
      pen.fillText(fitted(pen, words(one.keySet)[key] ?? String(key), board.top - 8), 0, 0);
      pen.restore();
    }
  } else {
    pen.font = `11px ${colour("--sans")}`;
    pen.textAlign = "center";
    // Inside the canvas, and none on top of another.
    let [free, edge] = [0, board.left + board.wide + 2];
    for (const key of positions(x0, x1, board.wide / 56)) {
      const half = pen.measureText(grouped(key)).width / 2;
      const x = Math.min(pixelX(key + (sheet().bin === 1 ? 0.5 : 0)), edge - half);
      if (x - half < free) continue;
      pen.fillText(grouped(key), x, 14);
      free = x + half + 8;
    }
  }
  pen.textAlign = "right";
  if (board.rowWords) {
    pen.font = `12px ${colour("--sans")}`;
    for (let query = Math.floor(y0); query < Math.min(y1, one.start + one.queries); query++) {
      if (pixelY(query + 0.5) < board.top || pixelY(query + 0.5) > board.top + board.high) continue;
      ink(lit(query, chosen?.[0]));
      pen.fillText(fitted(pen, words(one.querySet)[query] ?? String(query), board.left - 9), board.left - 7, pixelY(query + 0.5) + 4);
    }
  } else {
    pen.font = `11px ${colour("--sans")}`;
    for (const query of positions(y0, y1, board.high / 34)) pen.fillText(grouped(query), board.left - 6, pixelY(query + (sheet().bin === 1 ? 0.5 : 0)) + 4);
  }
}

// What each key receives, and what it would receive from uniform attention, on the scale of the colours.
function drawReceived(pen) {
  const one = layer();
  const [received, expected] = [of("received"), of("expected")];
  const top = board.top + board.high + BETWEEN;
  const step = one.keyStep;
  const [from, to] = [Math.max(0, Math.floor(state.view.x0 / step)), Math.min(received.length, Math.ceil(state.view.x1 / step))];
  const skip = state.scale === "without_first" && step === 1 ? 1 : 0;
  const ratio = state.scale === "expected" && !changed;
  const value = (n) => (ratio ? (expected[n] ? received[n] / expected[n] : 0) : received[n]);
  let high = 1e-9;
  for (let n = Math.max(from, skip); n < to; n++) high = Math.max(high, Math.abs(value(n)), changed || ratio ? 0 : expected[n]);
  const span = Math.log(1 / floor());
  const height = (x) => {
    if (changed) return (x / high) * (STRIP / 2);
    if (ratio) return x > 0 ? Math.max(-1, Math.min(1, Math.log(x) / Math.log(MOST_TIMES))) * (STRIP / 2) : -STRIP / 2;
    if (state.scale === "log") return x > 0 ? Math.max(0, 1 + Math.log(x / high) / span) * STRIP : 0;
    return Math.min(1, x / high) * STRIP;
  };
  const base = changed || ratio ? top + STRIP / 2 : top + STRIP;
  pen.fillStyle = colour("--blocked");
  pen.fillRect(board.left, top, board.wide, STRIP);
  pen.save();
  pen.beginPath();
  pen.rect(board.left, top, board.wide, STRIP);
  pen.clip();
  const wide = pixelX(step) - pixelX(0);
  for (let n = Math.max(from, skip); n < to; n++) {
    const tall = height(value(n));
    pen.fillStyle = colour(tall < 0 ? "--less-2" : "--teal");
    pen.fillRect(pixelX(n * step), base - Math.max(0, tall), Math.max(1, wide - (wide > 4 ? 1 : 0)), Math.max(0.5, Math.abs(tall)));
  }
  if (!changed && !ratio) {
    pen.strokeStyle = colour("--orange");
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (let n = from; n < to; n++) {
      pen.lineTo(pixelX(n * step), base - height(expected[n]));
      pen.lineTo(pixelX((n + 1) * step), base - height(expected[n]));
    }
    pen.stroke();
  } else {
    pen.fillStyle = colour("--quiet");
    pen.fillRect(board.left, base - 0.5, board.wide, 1);
  }
  pen.restore();
  pen.fillStyle = colour("--quiet");
  pen.font = `11px ${colour("--sans")}`;
  pen.textAlign = "left";
  const scaled = state.scale === "log" ? ", log" : "";
  const what = changed ? "change of what each key receives" : ratio ? "received by each key, times uniform" : `received by each key${scaled} · orange: uniform`;
  pen.fillText(what, board.left, top + STRIP + 13);
  pen.textAlign = "right";
  const end = ratio ? "×32" : high >= 10 ? high.toFixed(0) : high.toPrecision(2);
  pen.fillText(end, board.left - 6, top + 10);
}

function drawEntropy(pen) {
  const one = layer();
  const entropy = of("entropy");
  const left = board.left + board.wide + BETWEEN;
  const step = one.queryStep;
  const high = changed ? entropy.reduce((most, x) => Math.max(most, Math.abs(x)), 1e-9) : Math.max(Math.log(Math.max(2, one.keys)), 1e-9);
  pen.fillStyle = colour("--blocked");
  pen.fillRect(left, board.top, ENTROPY, board.high);
  pen.save();
  pen.beginPath();
  pen.rect(left, board.top, ENTROPY, board.high);
  pen.clip();
  for (let n = 0; n < entropy.length; n++) {
    const [above, below] = [pixelY(one.start + n * step), pixelY(Math.min(one.start + one.queries, one.start + (n + 1) * step))];
    if (below < board.top || above > board.top + board.high) continue;
    const long = (entropy[n] / high) * (changed ? ENTROPY / 2 : ENTROPY);
    const from = changed ? left + ENTROPY / 2 : left;
    pen.fillStyle = colour(long < 0 ? "--less-2" : "--plum");
    pen.fillRect(Math.min(from, from + long), above, Math.max(0.5, Math.abs(long)), Math.max(1, below - above - (below - above > 4 ? 1 : 0)));
  }
  pen.restore();
  pen.fillStyle = colour("--quiet");
  pen.font = `11px ${colour("--sans")}`;
  pen.textAlign = "right";
  pen.fillText("entropy", left + ENTROPY, board.top - 8);
}

function drawCross(pen) {
  if (!state.cell) return;
  const [[q0, q1], [k0, k1]] = chosenCell();
  const [x, y, wide, high] = [pixelX(k0), pixelY(q0), pixelX(k1) - pixelX(k0), pixelY(q1) - pixelY(q0)];
  pen.save();
  pen.beginPath();
  pen.rect(board.left, board.top, board.wide + board.entropyRoom, board.high + BETWEEN + STRIP);
  pen.clip();
  pen.strokeStyle = colour("--glow");
  pen.lineWidth = 1;
  pen.globalAlpha = 0.7;
  pen.strokeRect(board.left - 9, y, board.wide + board.entropyRoom + 18, Math.max(1, high));
  pen.strokeRect(x, board.top - 9, Math.max(1, wide), board.high + BETWEEN + STRIP + 18);
  pen.globalAlpha = 1;
  pen.lineWidth = 2;
  pen.strokeRect(x, y, Math.max(3, wide), Math.max(3, high));
  pen.restore();
}

// Zooms in for `by` below 1. The position under the pointer does not move.
function zoom(by, place = middle()) {
  const whole = wholeView();
  const { x0, x1, y0, y1 } = state.view;
  const [x, y] = place ?? [(x0 + x1) / 2, (y0 + y1) / 2];
  const least = Math.min(4, layer().keys, layer().queries) * finest();
  const along = (a, b, at, low, high) => {
    const span = Math.min(high - low, Math.max(Math.min(least, high - low), (b - a) * by));
    const share = (at - a) / (b - a);
    return slid(at - share * span, span, low, high);
  };
  const [nx, ny] = [along(x0, x1, x, whole.x0, whole.x1), along(y0, y1, y, whole.y0, whole.y1)];
  state.view = { x0: nx[0], x1: nx[1], y0: ny[0], y1: ny[1] };
  drawBoard();
}

// The range of this length that begins closest to `from` and lies between `low` and `high`.
function slid(from, span, low, high) {
  const start = within(from, low, high - span);
  return [start, start + span];
}

function pan(dx, dy) {
  const whole = wholeView();
  const { x0, x1, y0, y1 } = state.view;
  const [nx, ny] = [slid(x0 + dx, x1 - x0, whole.x0, whole.x1), slid(y0 + dy, y1 - y0, whole.y0, whole.y1)];
  state.view = { x0: nx[0], x1: nx[1], y0: ny[0], y1: ny[1] };
  drawBoard();
}

// The number of positions per cell at the largest zoom.
const finest = () => (head().exact || (tileSource && !changed) ? 1 : layer().bin);

// The middle of the chosen cell: key, query.
function middle() {
  const cell = chosenCell();
  return cell && cell.map(([from, to]) => (from + to) / 2).reverse();
}

// Chooses a pair and zooms in until its tokens can be read.
function goTo(query, key) {
  const one = layer();
  const [wide, high] = [Math.min(one.keys, 40 * finest()), Math.min(one.queries, 40 * finest())];
  const whole = wholeView();
  const [x, y] = [slid(key - wide / 2, wide, whole.x0, whole.x1), slid(query - high / 2, high, whole.y0, whole.y1)];
  state.view = { x0: x[0], x1: x[1], y0: y[0], y1: y[1] };
  choose(query, key, true);
}

function placeAt(event) {
  const box = at("board").getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left - board.left) / board.wide, (event.clientY - box.top - board.top) / board.high];
  const { x0, x1, y0, y1 } = state.view;
  return { x: x0 + x * (x1 - x0), y: y0 + y * (y1 - y0), inside: x >= 0 && y >= 0 && x < 1 && y < 1 };
}

function pairAt(event) {
  const place = placeAt(event);
  return place.inside ? [Math.floor(place.y), Math.floor(place.x)] : null;
}

function beginBoard() {
  const canvas = at("board");
  const fingers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event);
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before && fingers.size === 2) pinch(event, before);
    else if (before && (isZoomed() || event.pointerType === "touch")) drag(event, before);
    else if (!state.pinned && event.pointerType === "mouse") {
      const pair = pairAt(event);
      if (pair) choose(...pair, false);
    }
    if (before) fingers.set(event.pointerId, event);
  });
  const drag = (event, before) => {
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
    moved += Math.abs(dx) + Math.abs(dy);
    const { x0, x1, y0, y1 } = state.view;
    if (isZoomed()) pan((-dx / board.wide) * (x1 - x0), (-dy / board.high) * (y1 - y0));
  };
  const pinch = (event, before) => {
    const other = [...fingers.values()].find((each) => each.pointerId !== event.pointerId);
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    const place = placeAt({ clientX: (event.clientX + other.clientX) / 2, clientY: (event.clientY + other.clientY) / 2 });
    moved += 99;
    if (apart(event) > 4) zoom(apart(before) / apart(event), [place.x, place.y]);
  };
  const lift = (event) => fingers.delete(event.pointerId);
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("click", (event) => {
    const pair = moved < 6 ? pairAt(event) : null;
    if (pair) choose(...pair, true);
  });
  canvas.addEventListener("dblclick", (event) => {
    const place = placeAt(event);
    if (place.inside) zoom(0.4, [place.x, place.y]);
  });
  canvas.addEventListener("wheel", (event) => {
    // The wheel zooms only a map that is in use, so that the page can be scrolled past it.
    if (!(event.ctrlKey || isZoomed() || document.activeElement === canvas)) return;
    if (!isZoomed() && event.deltaY > 0 && !event.ctrlKey) return;
    event.preventDefault();
    const place = placeAt(event);
    zoom(Math.exp(Math.max(-80, Math.min(80, event.deltaY)) * (event.ctrlKey ? 0.012 : 0.0035)), [place.x, place.y]);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const move = ARROWS[event.key];
    if (!move) return;
    event.preventDefault();
    if (event.shiftKey) return pan((move[1] * (state.view.x1 - state.view.x0)) / 8, (move[0] * (state.view.y1 - state.view.y0)) / 8);
    const { query, key } = state.cell ?? { query: layer().start, key: 0 };
    const jump = state.cell ? sheet().bin : 0;
    choose(query + jump * move[0], key + jump * move[1], true);
    follow();
  });
  at("in").onclick = () => zoom(0.5);
  at("out").onclick = () => zoom(2);
  at("whole").onclick = () => { state.view = wholeView(); drawBoard(); };
}

// Pans until the chosen cell is visible.
function follow() {
  const [x, y] = middle();
  const { x0, x1, y0, y1 } = state.view;
  const half = sheet().bin / 2;
  const out = (at, a, b) => (at - half < a ? at - half - a : at + half > b ? at + half - b : 0);
  const [dx, dy] = [out(x, x0, x1), out(y, y0, y1)];
  if (dx || dy) pan(dx, dy);
}
