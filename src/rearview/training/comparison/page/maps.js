// Whom each token hears, in both models: a map, and the text itself, shaded by what the chosen token hears.

const heard = { layer: 0, head: -1, query: null };
const count = data.shown.length;
const seen = data.shown.map((token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥"));

// Ten-thousandths; the mean of all heads where none is chosen.
function weight(side, query, key) {
  const heads = data.sides[side].weights[heard.layer];
  if (heard.head >= 0) return heads[heard.head][query][key] / 1e4;
  return heads.reduce((sum, head) => sum + head[query][key], 0) / heads.length / 1e4;
}

function colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((n) => parseInt(text.slice(n, n + 2), 16));
}

function drawMap(side) {
  const canvas = at(`map-${side}`);
  const cell = Math.max(4, Math.floor(920 / count));
  canvas.width = canvas.height = cell * count;
  const paint = canvas.getContext("2d");
  const low = colour("--card"), high = colour(`--deep-${SIDES[side]}`), hatch = colour("--hatch");
  for (let query = 0; query < count; query++) {
    for (let key = 0; key < count; key++) {
      const strength = Math.sqrt(weight(side, query, key));
      const forbidden = side === 0 && key > query;
      const rgb = forbidden ? hatch : low.map((from, n) => Math.round(from + (high[n] - from) * strength));
      paint.fillStyle = `rgb(${rgb})`;
      paint.fillRect(key * cell, query * cell, cell, cell);
    }
  }
  if (heard.query !== null) {
    paint.strokeStyle = `rgb(${colour("--glow")})`;
    paint.lineWidth = 3;
    paint.strokeRect(1, heard.query * cell + 1, cell * count - 2, cell - 2);
  }
  const most = `Map of ${count} times ${count} weights, ${NAMES[SIDES[side]]}`;
  canvas.setAttribute("aria-label", side === 0 ? `${most}: a lower triangle; everything above the diagonal is exactly 0.` : `${most}: a full square.`);
}

function drawTokens(side) {
  const high = colour(`--deep-${SIDES[side]}`);
  [...at(`tokens-${side}`).children].forEach((button, key) => {
    const strength = heard.query === null ? 0 : Math.sqrt(weight(side, heard.query, key));
    button.style.backgroundColor = `rgb(${high} / ${fixed(0.85 * strength)})`.replaceAll(",", " ");
    button.classList.toggle("query", key === heard.query);
    button.classList.toggle("answer", heard.query !== null && key === heard.query + 1);
    button.tabIndex = key === (heard.query ?? 0) ? 0 : -1;
  });
  const shares = data.sides[side].toAnswer[heard.layer];
  const share = heard.head >= 0 ? shares[heard.head] : shares.reduce((sum, x) => sum + x, 0) / shares.length;
  at(`share-${side}`).textContent = share === 0 ? "nothing goes to the answer" : `${percent(share)} goes to the answer`;
}

function read() {
  if (heard.query === null) return "";
  const who = `“${seen[heard.query]}” (${heard.query + 1} of ${count})`;
  if (heard.query + 1 >= count) return `${who} is the last: its answer is not in sight of either model.`;
  const to = SIDES.map((name, side) => {
    const share = weight(side, heard.query, heard.query + 1);
    return `${share === 0 ? "0" : percent(share)} ${NAMES[name]}`;
  });
  return `To predict “${seen[heard.query + 1]}”, ${who} gives it ${to.join(", ")}.`;
}

function drawHeard() {
  SIDES.forEach((_, side) => {
    drawMap(side);
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
  at("layer").append(...layers.map((_, n) => make("option", { value: n, textContent: n + 1 })));
  at("head").append(make("option", { value: -1, textContent: "mean of all" }), ...layers[0].map((_, n) => make("option", { value: n, textContent: n + 1 })));
  // The layer and head that give the answer most are what there is to see.
  const shares = data.sides[1].toAnswer.flatMap((heads, layer) => heads.map((share) => [share, layer]));
  heard.layer = shares.reduce((best, one) => (one[0] > best[0] ? one : best))[1];
  at("layer").value = heard.layer;
  at("layer").onchange = () => { heard.layer = Number(at("layer").value); drawHeard(); };
  at("head").onchange = () => { heard.head = Number(at("head").value); drawHeard(); };
  SIDES.forEach((_, side) => {
    at(`tokens-${side}`).append(...seen.map((token, n) => make("button", { type: "button", textContent: token, title: `position ${n + 1}`, onclick: () => hear(n), onpointerenter: () => hear(n) })));
    at(`tokens-${side}`).addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (!by) return;
      hear(Math.max(0, Math.min(count - 1, (heard.query ?? 0) + by)));
      at(`tokens-${side}`).children[heard.query].focus();
      event.preventDefault();
    });
    const point = (event) => {
      const box = at(`map-${side}`).getBoundingClientRect();
      hear(Math.max(0, Math.min(count - 1, Math.floor(((event.clientY - box.top) / box.height) * count))));
    };
    at(`map-${side}`).addEventListener("pointermove", point);
    at(`map-${side}`).addEventListener("pointerdown", point);
  });
  // Something to look at before anybody points: the middle of the text.
  heard.query = Math.floor(count / 2);
  drawHeard();
}
