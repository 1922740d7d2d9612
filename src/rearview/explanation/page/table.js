// The matrix is an HTML table, because its numbers are text. Cells are reused from one step to the next if the labels
// are the same, so that they change in place. In a long table only the rows near the visible part have cells.

const grid = { rows: null, columns: null, cells: [], near: new Set(), drawRow: null, write: null };
const NEAR = 40;
const bodyRow = (i) => at("matrix").tBodies[0].rows[i];
const watcher = new IntersectionObserver((entries) => entries.forEach(onVisibility), { root: at("scroll"), rootMargin: "500px 0px" });

function onVisibility({ target, isIntersecting }) {
  if (!target.isConnected) return;
  const i = target.sectionRowIndex;
  if (!isIntersecting) return void grid.near.delete(i);
  grid.near.add(i);
  if (!grid.cells[i]) fillRow(i);
}

function drawMatrix(stage) {
  const same = (a, b) => a?.length === b.length && a.every((label, n) => label === b[n]);
  if (!same(grid.rows, stage.rows) || !same(grid.columns, stage.columns)) buildGrid(stage);
  const [matrix, which, judged] = [matrixOf(stage.key), view(stage), JUDGED.includes(stage.key)];
  const weights = stage.key === "weights" && which !== "difference";
  const largest = matrix.flat().filter(Number.isFinite).reduce((most, x) => Math.max(most, Math.abs(x)), 0) || 1;
  const unheard = which === "without" ? "future" : "forbidden";
  grid.write = writerOf(matrix, which === "difference" ? signed : shown);
  grid.drawRow = (i) => {
    grid.cells[i].forEach((td, j) => {
      td.textContent = grid.write(matrix[i][j]);
      colourCell(td, matrix[i][j], weights ? 1 : largest, judged && !mayHear(i, j) ? unheard : "");
    });
    markRow(stage, i);
    addSums(stage, matrix, i);
  };
  const table = at("matrix");
  table.className = `${weights ? "weights" : "signed"} ${which} of-${stage.key}`;
  table.classList.toggle("long", stage.rows.length > NEAR);
  table.classList.toggle("roomy", stage.columns.length <= 5 && stage.rows.length <= 10);
  table.caption.textContent = `${stage.symbol}, ${stage.rows.length} rows and ${stage.columns.length} columns`;
  const heading = table.tHead.rows[0];
  heading.cells[0].textContent = judged || stage.key === "scores" ? "query \\ key" : "";
  heading.querySelectorAll(".extra").forEach((th) => th.remove());
  heading.append(...sumNames(stage).map((text) => make("th", { scope: "col", className: "extra", textContent: text })));
  grid.rows.forEach((_, i) => {
    const wanted = grid.near.has(i) || grid.rows.length <= NEAR || i === state.cell?.row;
    if (wanted) fillRow(i);
    else if (grid.cells[i]) emptyRow(i);
  });
  drawLegend(stage);
}

function buildGrid(stage) {
  const heading = (scope) => (label) => make("th", { scope, title: label }, make("span", { textContent: label }));
  Object.assign(grid, { rows: stage.rows, columns: stage.columns, cells: [], near: new Set(stage.rows.slice(0, NEAR).keys()) });
  state.cell = null;
  watcher.disconnect();
  at("matrix").replaceChildren(
    make("caption"),
    make("thead", {}, make("tr", {}, make("td", { className: "corner" }), ...stage.columns.map(heading("col")))),
    make("tbody", {}, ...stage.rows.map((label) => make("tr", {}, heading("row")(label))))
  );
  grid.rows.forEach((_, i) => emptyRow(i));
  if (stage.rows.length > NEAR) [...at("matrix").tBodies[0].rows].forEach((row) => watcher.observe(row));
  at("scroll").scrollTo(0, 0);
}

function emptyRow(i) {
  grid.cells[i] = null;
  bodyRow(i).replaceChildren(bodyRow(i).cells[0], make("td", { className: "empty extra", colSpan: grid.columns.length }));
}

function fillRow(i) {
  if (!grid.cells[i]) {
    grid.cells[i] = grid.columns.map((_, j) => make("td", { tabIndex: i === 0 && j === 0 && !state.cell ? 0 : -1 }));
    bodyRow(i).replaceChildren(bodyRow(i).cells[0], ...grid.cells[i]);
  }
  grid.drawRow(i);
  light(i);
}

function colourCell(td, x, full, unheard) {
  td.style.setProperty("--strength", Number.isFinite(x) ? (Math.abs(x) / full).toFixed(4) : 0);
  td.className = `${x > 0 ? "positive" : x < 0 ? "negative" : "zero"} ${x >= STRONG ? "strong" : ""} ${unheard}`;
  if (unheard) td.ariaLabel = `${td.textContent}, ${unheard === "future" ? "the mask would forbid it" : "forbidden"}`;
  else td.removeAttribute("aria-label");
}

function markRow(stage, i) {
  const heading = bodyRow(i).cells[0];
  heading.querySelector(".badge")?.remove();
  if (!JUDGED.includes(stage.key) && stage.key !== "output") return;
  const { nothing, onlyItself } = trace.spoken[state.head][view(stage) === "without" ? "without" : "with"][i];
  const badge = nothing ? "hears nothing" : onlyItself ? "only itself" : null;
  if (badge) heading.append(make("small", { className: "badge", textContent: badge }));
}

// Columns next to the weights: the sum of each row, or what the mask took and the factor of the remaining weights.
const sumNames = (stage) => (stage.key !== "weights" ? [] : view(stage) === "difference" ? ["taken", "heard ones ×"] : ["Σ"]);

function addSums(stage, matrix, i) {
  bodyRow(i).querySelectorAll(".extra").forEach((td) => td.remove());
  const names = sumNames(stage);
  if (!names.length) return;
  const part = kept(i);
  const texts = names.length === 2 ? [shown(1 - part), part ? shown(1 / part) : "–"] : [shown(sum(matrix[i]))];
  bodyRow(i).append(...texts.map((text) => make("td", { className: "extra", textContent: text })));
}

function drawLegend(stage) {
  const judged = JUDGED.includes(stage.key);
  const which = view(stage);
  const items = [];
  if (which === "difference") items.push(swatch("gained", "more with the mask"), swatch("lost", "less with the mask"));
  else if (stage.key === "weights") items.push(swatch("ramp", "weight 0 to 1"));
  if (stage.key === "mask" && which === "with") items.push(swatch("heard", "may be heard"));
  if (judged && which !== "without") items.push(swatch("forbidden", stage.key === "weights" && which === "with" ? "forbidden: exactly 0" : "forbidden"));
  if (judged && which === "without") items.push(swatch("future", "the mask would forbid it"));
  if (!stage.without) items.push(make("li", { textContent: "the same with and without the mask" }));
  at("legend").replaceChildren(...items);
}
