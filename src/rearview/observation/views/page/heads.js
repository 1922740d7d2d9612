// All heads of all layers on one canvas: small maps, or one figure per head as a colour.

const LEFT = 58;
const TOP = 20;
const mostHeads = () => Math.max(...layers.map((one) => one.heads.length));
const thumbnails = new Map();

function headSize() {
  const room = at("heads-scroll").clientWidth - LEFT - 2;
  return Math.max(26, Math.min(Math.max(56, Math.floor(560 / layers.length)), 160, Math.floor(room / mostHeads())));
}

function thumbnail(l, h) {
  const key = `${state.scale}.${l}.${h}`;
  if (!thumbnails.has(key)) thumbnails.set(key, pixels(state.scale, wholeSheet(l, h)));
  return thumbnails.get(key);
}

// The scale of one figure over all heads: from 0 to the largest, or symmetric for changes.
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
  const number = x === 0 ? "0" : Math.abs(x) >= 1000 ? grouped(Math.round(x)) : Math.abs(x) < 1e-3 ? x.toExponential(2) : x.toPrecision(3);
  return `${metric.signed && x > 0 ? "+" : ""}${number}`.replace("-", "−");
}
const css = (word) => `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;
const bright = (word) => 0.3 * (word & 255) + 0.59 * ((word >> 8) & 255) + 0.11 * ((word >> 16) & 255) > 140;

const allHeads = () => layers.flatMap((one, l) => one.heads.map((_, h) => [l, h]));
const numberedAlike = () => layers.every((one) => one.heads.every((each, h) => each.head === (layers[0].heads[h] ?? each).head));
let metric = null;

const overview = matrix(at("heads"), {
  get rows() { return layers.length; },
  get columns() { return mostHeads(); },
  left: LEFT, top: TOP, apart: [1, 22], slow: true,
  size: () => ({ wide: headSize(), high: headSize() }),
  rowLabel: (l) => layers[l].short,
  columnLabel: (h) => (numberedAlike() ? layers.find((one) => one.heads[h]).heads[h].head : h),
  paint(pen, [l, h], [x, y, wide, high]) {
    if (!metric) {
      pen.imageSmoothingEnabled = layers[l].columns > wide;
      pen.imageSmoothingQuality = "high";
      pen.drawImage(thumbnail(l, h), x, y, wide, high);
      return;
    }
    const value = metric.all[l][h];
    const word = metric.colours[within(Math.round(255 * metric.shade(value)), 0, 255)];
    pen.fillStyle = css(word);
    pen.fillRect(x, y, wide, high);
    if (wide < 34) return;
    pen.fillStyle = bright(word) ? "#000" : "#fff";
    pen.textAlign = "center";
    pen.fillText(written(state.metric, value).replace(" %", "%").replace("over ", ">"), x + wide / 2, y + high / 2 + 4);
  },
  chosen: () => [state.layer, state.head],
  point: (cell) => tellHead(...(cell && isHead(cell) ? cell : [state.layer, state.head])),
  choose: ([l, h]) => chooseHead(l, Math.min(h, layers[l].heads.length - 1)),
});
const isHead = ([l, h]) => layers[l].heads[h] !== undefined;

function drawHeads() {
  metric = state.metric === "maps" ? null : metricOf(state.metric);
  overview.draw(allHeads());
}

// Scrolls a long list to the chosen head, without scrolling the page.
function revealHead() {
  const [box, size] = [at("heads-scroll"), headSize()];
  const near = (at, room, scrolled) => (at < scrolled ? at : at + size > scrolled + room ? at + size - room : scrolled);
  box.scrollTop = near(state.layer ? TOP + state.layer * size : 0, box.clientHeight, box.scrollTop);
  box.scrollLeft = near(state.head ? LEFT + state.head * size : 0, box.clientWidth, box.scrollLeft);
}

function tellHead(l, h) {
  const [one, each] = [layers[l], layers[l].heads[h]];
  const figure = state.metric === "maps" ? "" : `, ${data.metrics[state.metric].name} ${written(state.metric, each.figures[state.metric])}`;
  at("heads-said").textContent = `${one.title}, head ${each.head}${figure}: ${each.sentences[0] ?? one.name}`;
}

function beginHeads() {
  at("metric").onchange = () => {
    state.metric = at("metric").value;
    drawHeads();
    tellHead(state.layer, state.head);
  };
  at("heads-note").textContent = "rows: layers · columns: heads";
}

// The figures that can be shown for these heads.
function showMetrics() {
  at("metric").replaceChildren(make("option", { value: "maps", textContent: "maps" }),
    ...Object.entries(data.metrics).map(([value, { name }]) => make("option", { value, textContent: name })));
  if (state.metric !== "maps" && !(state.metric in data.metrics)) state.metric = "maps";
  at("metric").value = state.metric;
  at("heads").ariaLabel = `${layers.length} layers with up to ${mostHeads()} heads. Arrow keys choose one; the selects below do the same.`;
}
