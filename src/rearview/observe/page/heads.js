// All heads of all layers on one canvas: small maps, or one figure a head as a colour.

const LEFT = 58;
const TOP = 20;
const most = Math.max(...layers.map((one) => one.heads.length));
const thumbnails = new Map();

function headSize() {
  const room = at("heads-scroll").clientWidth - LEFT - 2;
  return Math.max(26, Math.min(Math.max(56, Math.floor(560 / layers.length)), 128, Math.floor(room / most)));
}

function thumbnail(l, h) {
  const key = `${state.scale}.${l}.${h}`;
  if (!thumbnails.has(key)) thumbnails.set(key, pixels(state.scale, wholeSheet(l, h)));
  return thumbnails.get(key);
}

// One figure for all heads, from its least to its largest; changes are about 0.
function metricOf(name) {
  const all = layers.map((one) => one.heads.map((each) => each.figures[name]));
  const flat = all.flat().filter((x) => x !== null);
  const [low, high] = [Math.min(...flat), Math.max(...flat)];
  if (low < 0) return { all, colours: shades.sides, shade: (x) => 0.5 + x / Math.max(-low, high, 1e-12) / 2 };
  return { all, colours: shades.ramp, shade: (x) => (x === null ? 1 : x / (data.metrics[name].most ?? (high > 0 ? high : 1))) };
}

function written(name, x) {
  const metric = data.metrics[name];
  if (x === null) return "∞";
  if (metric.unit === "share") return metric.signed ? signed(x) : share(x);
  return `${metric.signed && x > 0 ? "+" : ""}${x === 0 ? "0" : Math.abs(x) < 1e-3 ? x.toExponential(2) : x.toPrecision(3)}`.replace("-", "−");
}
const css = (word) => `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
const bright = (word) => 0.3 * (word & 255) + 0.59 * ((word >> 8) & 255) + 0.11 * ((word >> 16) & 255) > 140;

let turn = 0;
function drawHeads() {
  const size = headSize();
  const gap = size > 40 ? 4 : 2;
  const canvas = at("heads");
  const pen = paper(canvas, LEFT + most * size, TOP + layers.length * size);
  pen.font = `11px ${colour("--sans")}`;
  pen.fillStyle = colour("--quiet");
  pen.textAlign = "center";
  const alike = layers.every((one) => one.heads.every((each, h) => each.head === (layers[0].heads[h] ?? each).head));
  const step = Math.ceil(22 / size);
  for (let h = 0; h < most; h += step) pen.fillText(alike ? (layers.find((one) => one.heads[h]).heads[h].head) : h, LEFT + (h + 0.5) * size, 13);
  pen.textAlign = "right";
  layers.forEach((one, l) => pen.fillText(one.short, LEFT - 8, TOP + (l + 0.5) * size + 4));
  pen.textAlign = "center";
  const metric = state.metric === "maps" ? null : metricOf(state.metric);
  const places = layers.flatMap((one, l) => one.heads.map((_, h) => [l, h]));
  const mine = ++turn;
  // Many heads are drawn a few at a time, so that the page answers meanwhile.
  const some = (from) => {
    if (mine !== turn) return;
    const begun = performance.now();
    let n = from;
    for (; n < places.length && performance.now() - begun < 24; n++) drawOne(...places[n]);
    outlineHead(pen, size, gap);
    canvas.dataset.drawn = n;
    if (n < places.length) requestAnimationFrame(() => some(n));
  };
  const drawOne = (l, h) => {
    const [x, y] = [LEFT + h * size + gap / 2, TOP + l * size + gap / 2];
    if (!metric) {
      pen.imageSmoothingEnabled = layers[l].columns > size;
      pen.imageSmoothingQuality = "high";
      pen.drawImage(thumbnail(l, h), x, y, size - gap, size - gap);
      return;
    }
    const value = metric.all[l][h];
    const word = metric.colours[Math.max(0, Math.min(255, Math.round(255 * metric.shade(value))))];
    pen.fillStyle = css(word);
    pen.fillRect(x, y, size - gap, size - gap);
    if (size < 38) return;
    pen.fillStyle = bright(word) ? "#000" : "#fff";
    pen.fillText(written(state.metric, value).replace(" %", "%").replace("over ", ">"), x + (size - gap) / 2, y + size / 2 + 2);
  };
  some(0);
}

function outlineHead(pen, size, gap) {
  pen.strokeStyle = colour("--glow");
  pen.lineWidth = 2.5;
  pen.strokeRect(LEFT + state.head * size + gap / 2 - 1, TOP + state.layer * size + gap / 2 - 1, size - gap + 2, size - gap + 2);
}

// In a long list the chosen one is brought into sight, without moving the page.
function revealHead() {
  const [box, size] = [at("heads-scroll"), headSize()];
  const near = (at, room, scrolled) => (at < scrolled ? at : at + size > scrolled + room ? at + size - room : scrolled);
  box.scrollTop = near(state.layer ? TOP + state.layer * size : 0, box.clientHeight, box.scrollTop);
  box.scrollLeft = near(state.head ? LEFT + state.head * size : 0, box.clientWidth, box.scrollLeft);
}

function headAt(event) {
  const box = at("heads").getBoundingClientRect();
  const size = headSize();
  const [l, h] = [Math.floor((event.clientY - box.top - TOP) / size), Math.floor((event.clientX - box.left - LEFT) / size)];
  return layers[l]?.heads[h] ? [l, h] : null;
}

function tellHead(l, h) {
  const [one, each] = [layers[l], layers[l].heads[h]];
  const figure = state.metric === "maps" ? "" : `, ${data.metrics[state.metric].name} ${written(state.metric, each.figures[state.metric])}`;
  at("heads-said").textContent = `${one.title}, head ${each.head}${figure}: ${each.sentences[0] ?? one.name}`;
}

function beginHeads() {
  at("metric").append(make("option", { value: "maps", textContent: "maps" }),
    ...Object.entries(data.metrics).map(([value, { name }]) => make("option", { value, textContent: name })));
  at("metric").onchange = () => {
    state.metric = at("metric").value;
    drawHeads();
    tellHead(state.layer, state.head);
  };
  const canvas = at("heads");
  canvas.ariaLabel = `${layers.length} layers with up to ${most} heads. Arrow keys choose one; the selects below do the same.`;
  at("heads-note").textContent = "rows: layers · columns: heads";
  canvas.addEventListener("pointermove", (event) => {
    const place = headAt(event);
    canvas.style.cursor = place ? "pointer" : "default";
    if (place) tellHead(...place);
  });
  canvas.addEventListener("pointerleave", () => tellHead(state.layer, state.head));
  canvas.addEventListener("click", (event) => {
    const place = headAt(event);
    if (place) chooseHead(...place);
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const l = Math.max(0, Math.min(layers.length - 1, state.layer + move[0]));
    chooseHead(l, Math.max(0, Math.min(layers[l].heads.length - 1, state.head + move[1])));
  });
}
