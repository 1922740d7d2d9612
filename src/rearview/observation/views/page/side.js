// Next to and below the map: the chosen pair, the figures, the distances, the links and the text.

function drawReading() {
  const one = layer();
  if (!state.cell) {
    at("value").textContent = "";
    at("reading").textContent = "Point at the map or tap it to see how much a query hears of a key.";
    at("compared").textContent = "";
    return;
  }
  const [{ mass, uniform, before }, [[q0, q1], [k0, k1]]] = [numbersOfCell(), chosenCell()];
  const query = named("query", "queries", one.querySet, q0, q1);
  const key = named("key", "keys", one.keySet, k0, k1);
  const many = q1 - q0 > 1;
  at("value").textContent = changed ? signed(mass) : share(mass);
  if (!uniform && !mass) {
    at("reading").textContent = `${query} may not hear ${key}.`;
    at("compared").textContent = "";
    return;
  }
  at("reading").textContent = changed
    ? `is what ${key} ${mass < 0 ? "loses" : "gains"} from ${query}${many ? ", on average" : ""}.`
    : `of the attention of ${query}${many ? ", on average," : ""} goes to ${key}.`;
  const ratio = mass / uniform;
  at("compared").textContent = changed ? `Before ${share(before)}, after ${share(before + mass)}.`
    : uniform ? `Uniform attention: ${share(uniform)}${mass ? `; this is ${ratio >= 1 ? `${times(ratio)} times as much` : `1/${times(1 / ratio)} of it`}` : ""}.` : "";
}

// The numbers of the chosen cell, which may lie outside the visible part and then be missing in an exact sheet.
function numbersOfCell() {
  const { query, key } = state.cell;
  if (isExact(state.view)) {
    const exact = exactQuery(query);
    return { mass: exact.weight(key), uniform: exact.hears(key) ? 1 / exact.count : 0 };
  }
  let { map, uniform, columns, rows, bin, left, top } = sheet();
  let [row, column] = [Math.floor((query - top) / bin), Math.floor((key - left) / bin)];
  if (row < 0 || column < 0 || row >= rows || column >= columns) {
    ({ map, uniform, columns, bin, left, top } = wholeSheet());
    [row, column] = [Math.floor((query - top) / bin), Math.floor((key - left) / bin)];
  }
  const n = row * columns + column;
  return { mass: map[n], uniform: uniform[n], before: changed ? of("before")[n] : null };
}

function drawFigures() {
  const figures = head().figures;
  at("figures").replaceChildren(...Object.entries(data.metrics).map(([name, metric]) => make("tr", {},
    make("th", { scope: "row", textContent: metric.name }),
    make("td", { textContent: written(name, figures[name]), dataset: { figure: name } }),
    make("td", { className: "uniform", textContent: figures[`${name}_uniform`] === undefined ? "" : `uniform ${written(name, figures[`${name}_uniform`])}` }))));
}

function drawBack() {
  const one = layer();
  // Positions of two sequences have no distance.
  at("back").parentElement.hidden = one.kind === "cross";
  const mass = of("histogram");
  const edges = one.edges;
  const wide = Math.max(180, Math.min(at("back").parentElement.clientWidth, 420));
  const high = 104;
  const pen = paper(at("back"), wide, high);
  const total = changed ? 1 : mass.reduce((sum, x) => sum + x, 0) || 1;
  const top = mass.reduce((most, x) => Math.max(most, Math.abs(x) / total), 1e-9);
  const each = wide / mass.length;
  const foot = high - 22;
  const base = changed ? foot / 2 + 8 : foot;
  pen.font = `10.5px ${colour("--sans")}`;
  mass.forEach((x, n) => {
    const tall = (x / total / top) * (changed ? foot / 2 - 4 : foot - 14);
    pen.fillStyle = colour(x < 0 ? "--less-2" : "--teal");
    pen.fillRect(n * each + 1.5, base - Math.max(0, tall), each - 3, Math.max(1, Math.abs(tall)));
    pen.fillStyle = colour("--quiet");
    // The label of a bar is the smallest of its distances. The label of the first bar is aligned left.
    pen.textAlign = n ? "center" : "left";
    const begins = edges[n].split("–")[0];
    if (n % Math.ceil(30 / each) === 0) pen.fillText(begins.length > 3 && begins !== "ahead" ? `${Math.round(begins / 1024)}k` : begins, (n ? n + 0.5 : 0) * each, foot + 14);
  });
  const told = [...mass].map((x, n) => `${edges[n]}: ${changed ? signed(x) : share(x / total)}`);
  at("back").ariaLabel = `Share of the attention by distance. ${told.join("; ")}.`;
  at("back").title = told.join("\n");
  at("back-note").textContent = changed ? "change, by positions back" : "share, by positions back";
}

function drawLinks() {
  const one = layer();
  at("h-links").firstChild.textContent = changed ? "Largest changes " : "Strongest links ";
  at("links-note").textContent = changed ? "where the maps differ most" : "of this head, exact weights";
  at("links").tHead.replaceChildren(make("tr", {}, ...["query", "key", changed ? "change" : "weight"].map((name) => make("th", { scope: "col", textContent: name }))));
  const links = changed ? largestChanges() : head().links;
  at("links").tBodies[0].replaceChildren(...links.map(([query, key, weight]) => {
    const go = make("button", { type: "button", ariaLabel: `Go to query ${query}, key ${key}`, onclick: () => goTo(query, key) });
    go.append(make("span", { className: "position", textContent: grouped(query) }), tokens(one.querySet, query, query + 1));
    return make("tr", {}, make("td", {}, go),
      make("td", {}, make("span", { className: "position", textContent: grouped(key) }), tokens(one.keySet, key, key + 1)),
      make("td", { className: "number", textContent: changed ? signed(weight) : share(weight) }));
  }));
  at("links").parentElement.hidden = !links.length;
  if (!links.length) at("links-note").textContent = "none were kept";
}

function largestChanges() {
  const one = layer();
  const map = of("map");
  const order = [...map.keys()].filter((n) => map[n] !== 0).sort((a, b) => Math.abs(map[b]) - Math.abs(map[a])).slice(0, 20);
  return order.map((n) => [queriesOf(Math.floor(n / one.columns))[0], keysOf(n % one.columns)[0], map[n]]);
}

// The text, shaded by what the chosen query hears or, if none is chosen, by what each token receives.
let text = null;
function writeText() {
  const one = layer();
  const list = words(one.keySet);
  const fits = list !== null && one.keys <= data.mostWritten;
  at("text-card").hidden = !fits;
  text = fits ? tokenText(at("text"), list.slice(0, one.keys), { choose: chooseQuery, point: pointAtQuery, title: (n) => `position ${n}` }) : null;
  if (!fits) at("text").replaceChildren();
}

function chooseQuery(position) {
  const one = layer();
  const query = Math.max(one.start, Math.min(one.start + one.queries - 1, position));
  choose(query, state.cell?.key ?? 0, true);
  follow();
}

// The mouse over a token: its row of the map, at the key that it hears most.
function pointAtQuery(position) {
  const one = layer();
  if (state.pinned || position < one.start || position >= one.start + one.queries) return;
  const heard = heardBy(position);
  let best = 0;
  for (let key = 1; key < one.keys; key++) if (Math.abs(heard(key)) > Math.abs(heard(best))) best = key;
  choose(position, best, false);
}

// The share of a query's attention that goes to a key, or to its bin.
function heardBy(query) {
  if (isExact(state.view)) return exactQuery(query).weight;
  const row = liveRow(query);
  if (row) return (key) => row[key];
  const { map, columns, bin, left, top } = wholeSheet();
  return (key) => map[Math.floor((query - top) / bin) * columns + Math.floor((key - left) / bin)];
}

// A page with a server sets this to a function (layer, head, query) -> Promise of the query's weights on all keys.
let rowSource = null;
let latestRow = null;
function liveRow(query) {
  if (rowSource === null || changed) return null;
  const [l, h, rows] = [state.layer, state.head, block];
  const name = [l, h, query].join();
  if (latestRow?.name === name && latestRow.rows === rows) return latestRow.weights;
  latestRow = { name, rows, weights: null };
  const mine = latestRow;
  rowSource(l, h, query).then((weights) => {
    mine.weights = weights;
    if (latestRow === mine) shadeText();
  }, () => {});
  return null;
}

function shadeText() {
  if (!text) return;
  const one = layer();
  const query = state.cell?.query ?? null;
  const heard = query === null ? (key) => of("received")[Math.floor(key / one.keyStep)] : heardBy(query);
  const values = Array.from({ length: text.count }, (_, n) => heard(n));
  const top = Math.max(...values.map(Math.abs)) || 1;
  const [more, less] = [channels(colour("--more-2")), channels(colour("--less-2"))];
  const [q0, q1] = query === null ? [-1, -1] : queriesOf(rowOf(query));
  const own = one.kind !== "cross";
  const [k0, k1] = query === null ? [-1, -1] : keysOf(columnOf(state.cell.key));
  const depth = (n) => (Math.sqrt(Math.abs(values[n]) / top) * DEEPEST).toFixed(3);
  text.shade((n) => `rgb(${(values[n] < 0 ? less : more).join(" ")} / ${depth(n)})`, (n) => ({ query: own && n >= q0 && n < q1, key: n >= k0 && n < k1 }));
  at("text-note").textContent = query === null ? "shaded by what each token receives; choose one to see what it hears"
    : `shaded by ${changed ? "the change of what" : "what"} ${named("query", "queries", one.querySet, q0, q1)} hears`;
}
