// The attention of both models: a map, and the text itself, shaded by the weights of the selected query.

const heard = { layer: 0, head: -1, query: null };
const count = data.shown.length;
const seen = data.shown.map((token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥"));

// Stored in ten-thousandths; the mean of all heads if none is selected.
function weight(side, query, key) {
  const heads = data.sides[side].weights[heard.layer];
  if (heard.head >= 0) return heads[heard.head][query][key] / 1e4;
  return sum(heads.map((head) => head[query][key])) / heads.length / 1e4;
}

const maps = SIDES.map((name, side) => matrix(at(`map-${side}`), {
  rows: count, columns: count, byRow: true,
  size() {
    const cell = Math.max(1, Math.floor(Math.min(460, at(`map-${side}`).parentElement.clientWidth) / count));
    return { wide: cell, high: cell };
  },
  paint(pen, [query, key], box) {
    const [low, high] = [channels(colour("--card")), channels(colour(`--deep-${name}`))];
    const forbidden = side === 0 && key > query;
    pen.fillStyle = forbidden ? colour("--hatch") : `rgb(${mixed(low, high, Math.sqrt(weight(side, query, key)))})`;
    pen.fillRect(...box);
  },
  chosen: () => heard.query === null ? null : [heard.query, 0],
  point: (cell) => cell && hear(cell[0]),
  choose: ([query]) => hear(query),
}));

const texts = SIDES.map((_, side) => tokenText(at(`tokens-${side}`), seen, { choose: hear, title: (n) => `position ${n}`, point: hear }));

function drawTokens(side) {
  const high = channels(colour(`--deep-${SIDES[side]}`)).join(" ");
  const strength = (key) => (heard.query === null ? 0 : Math.sqrt(weight(side, heard.query, key)));
  texts[side].shade((key) => `rgb(${high} / ${fixed(0.85 * strength(key))})`,
    (key) => ({ query: key === heard.query, answer: heard.query !== null && key === heard.query + 1 }));
  texts[side].stopAt(heard.query ?? 0);
  const shares = data.sides[side].toAnswer[heard.layer];
  const share = heard.head >= 0 ? shares[heard.head] : sum(shares) / shares.length;
  at(`share-${side}`).textContent = share === 0 ? "no attention to the answer" : `${percent(share)} of the attention goes to the answer`;
}

function read() {
  if (heard.query === null) return "";
  const who = `“${seen[heard.query]}” (position ${heard.query})`;
  if (heard.query + 1 >= count) return `${who} is the last token of the row: neither model can hear its answer.`;
  const to = SIDES.map((name, side) => {
    const share = weight(side, heard.query, heard.query + 1);
    return `${share === 0 ? "0" : percent(share)} ${NAMES[name]}`;
  });
  return `To predict “${seen[heard.query + 1]}”, ${who} attends to it with ${to.join(", ")}.`;
}

function drawHeard() {
  SIDES.forEach((_, side) => {
    maps[side].draw();
    drawTokens(side);
  });
  at("reading").textContent = read();
}

function hear(query) {
  if (query === heard.query) return;
  heard.query = query;
  drawHeard();
}

function beginMaps() {
  const layers = data.sides[0].weights;
  at("layer").append(...layers.map((_, n) => make("option", { value: n, textContent: n })));
  at("head").append(make("option", { value: -1, textContent: "mean of all" }), ...layers[0].map((_, n) => make("option", { value: n, textContent: n })));
  // Start with the layer whose head attends most to the answer.
  const shares = data.sides[1].toAnswer.flatMap((heads, layer) => heads.map((share) => [share, layer]));
  heard.layer = shares.reduce((best, one) => (one[0] > best[0] ? one : best))[1];
  at("layer").value = heard.layer;
  at("layer").onchange = () => { heard.layer = Number(at("layer").value); drawHeard(); };
  at("head").onchange = () => { heard.head = Number(at("head").value); drawHeard(); };
  SIDES.forEach((_, side) => {
    const what = `Map of ${count} times ${count} weights, ${NAMES[SIDES[side]]}`;
    at(`map-${side}`).ariaLabel = side === 0 ? `${what}: a lower triangle; everything above the diagonal is exactly 0.` : `${what}: a full square.`;
  });
  // Before the pointer is used, the middle of the text is selected.
  heard.query = Math.floor(count / 2);
  drawHeard();
}
