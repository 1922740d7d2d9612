// The maps as a whole: the chosen head, scale and pair, and the keyboard.

// Chooses the cell that contains a pair of positions.
function choose(query, key, pin) {
  const { start, queries, keys } = layer();
  state.cell = { query: within(query, start, start + queries - 1), key: within(key, 0, keys - 1) };
  state.pinned = pin;
  drawBoard();
  drawReading();
  shadeText();
}

function clearChoice() {
  Object.assign(state, { cell: null, pinned: false });
  drawBoard();
  drawReading();
  shadeText();
}

function chooseHead(l, h) {
  const before = layer();
  Object.assign(state, { layer: l, head: h });
  picture = null;
  const alike = before.keys === layer().keys && before.queries === layer().queries && before.start === layer().start && before.bin === layer().bin;
  // The view and the cell stay the same for another head, so that heads can be compared, unless the shape differs.
  if (!alike || state.view === null) Object.assign(state, { view: wholeView(), cell: null, pinned: false });
  if (!alike || text === null) writeText();
  drawHead();
  drawHeads();
  revealHead();
  tellHead(l, h);
  rememberHead();
}

function drawHead() {
  const [one, each] = [layer(), head()];
  at("h-head").textContent = `${one.title}, head ${each.head}`;
  at("module").textContent = one.name;
  at("layer").value = state.layer;
  at("head").replaceChildren(...one.heads.map((each, n) => make("option", { value: n, textContent: each.head })));
  at("head").value = state.head;
  at("sentences").replaceChildren(...each.sentences.map((textContent) => make("li", { textContent })));
  at("board").ariaLabel = `${one.queries} queries (rows) and ${one.keys} keys (columns). ${each.sentences.join(" ")} Arrow keys move from pair to pair, plus and minus zoom.`;
  drawBoard();
  drawReading();
  drawFigures();
  drawBack();
  drawLinks();
  shadeText();
}

function tellResolution() {
  const [one, { bin }] = [layer(), sheet()];
  const zooms = head().exact || (tileSource && !changed);
  at("resolution").textContent = bin === 1 ? "One cell is one query and one key, with its exact weight."
    : bin < one.bin ? `One cell is ${bin} queries x ${bin} keys: the sum over keys and the mean over queries.`
    : `${one.resolution} ${zooms ? "Zoom in to see every pair with its exact weight." : one.elsewhere}`;
}

function chooseScale(scale) {
  state.scale = scale;
  picture = null;
  thumbnails.clear();
  for (const button of at("scales").children) {
    button.ariaChecked = String(button.value === scale);
    button.tabIndex = button.value === scale ? 0 : -1;
  }
  drawBoard();
  drawHeads();
  rememberHead();
}

// A page with more than maps remembers more.
let rememberHead = () => remember({ layer: state.layer, head: head().head, scale: state.scale });

function recall() {
  const place = recalled();
  const l = Math.max(0, Math.min(layers.length - 1, Number(place.get("layer") ?? data.first[0]) || 0));
  const wanted = place.has("head") ? layers[l].heads.findIndex((each) => String(each.head) === place.get("head")) : data.first[1];
  if (data.scales.includes(place.get("scale"))) state.scale = place.get("scale");
  return [l, wanted >= 0 && wanted < layers[l].heads.length ? wanted : 0];
}

const turn = (l, h) => layers[l]?.heads.length && chooseHead(l, within(h, 0, layers[l].heads.length - 1));
// Keys do nothing until there is something to show.
const shown = (action) => () => layers.length && action();
onKeys({
  "[": shown(() => state.head > 0 && turn(state.layer, state.head - 1)),
  "]": shown(() => state.head < layer().heads.length - 1 && turn(state.layer, state.head + 1)),
  PageUp: shown(() => turn(state.layer - 1, state.head)),
  PageDown: shown(() => turn(state.layer + 1, state.head)),
  "+": shown(() => zoom(0.5)),
  "=": shown(() => zoom(0.5)),
  "-": shown(() => zoom(2)),
  0: shown(() => at("whole").click()),
  s: shown(() => chooseScale(data.scales[(data.scales.indexOf(state.scale) + 1) % data.scales.length])),
  Escape: shown(() => clearChoice()),
});

// Connects the controls of the maps, once.
function beginMaps() {
  mixColours();
  at("layer").onchange = () => chooseHead(Number(at("layer").value), Math.min(state.head, layers[Number(at("layer").value)].heads.length - 1));
  at("head").onchange = () => chooseHead(state.layer, Number(at("head").value));
  at("scales").addEventListener("keydown", (event) => {
    const by = ARROWS[event.key]?.[1];
    if (!by) return;
    event.preventDefault();
    const n = (data.scales.indexOf(state.scale) + by + data.scales.length) % data.scales.length;
    chooseScale(data.scales[n]);
    at("scales").children[n].focus();
  });
  beginHeads();
  beginBoard();
  onChange(shown(redraw), () => {
    mixColours();
    thumbnails.clear();
    picture = null;
    if (!layers.length) return;
    drawHead();
    drawHeads();
  });
}

// Shows the layers that were opened, beginning with the head that the address names, or the one with the most to see.
function showMaps() {
  at("title").textContent = data.title;
  at("facts").textContent = data.facts.join("  ·  ");
  at("notes").hidden = !data.notes.length;
  at("notes").replaceChildren(...data.notes.map((textContent) => make("li", { textContent })));
  at("layer").replaceChildren(...layers.map((one, n) => make("option", { value: n, textContent: one.choice })));
  const first = recall();
  at("scales").replaceChildren(...data.scales.map((value) => make("button", { type: "button", role: "radio", value, textContent: SCALES[value], ariaChecked: String(value === state.scale), tabIndex: value === state.scale ? 0 : -1, onclick: () => chooseScale(value) })));
  showMetrics();
  text = null;
  chooseHead(...first);
}

function redraw() {
  picture = null;
  drawBoard();
  drawBack();
  drawHeads();
}
