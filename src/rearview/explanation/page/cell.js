// The chosen cell: its row and column are highlighted, and the panel shows how its number is computed.

function select(cell) {
  const table = at("matrix");
  table.querySelectorAll(".lit").forEach((each) => each.classList.remove("lit", "chosen"));
  state.cell = cell && grid.cells[cell.row]?.[cell.column] ? cell : null;
  if (!state.cell) state.pinned = false;
  if (state.cell) {
    table.querySelectorAll("td[tabindex='0']").forEach((td) => (td.tabIndex = -1));
    grid.cells[cell.row][cell.column].tabIndex = 0;
    table.tHead.rows[0].cells[cell.column + 1].classList.add("lit");
    grid.rows.forEach((_, i) => light(i));
  }
  drawCell();
}

function light(i) {
  if (!state.cell || !grid.cells[i]) return;
  const { row, column } = state.cell;
  grid.cells[i][column].classList.add("lit");
  if (i !== row) return;
  [bodyRow(i).cells[0], ...grid.cells[i]].forEach((each) => each.classList.add("lit"));
  grid.cells[i][column].classList.add("chosen");
}

function drawCell() {
  const panel = at("cell");
  panel.toggleAttribute("data-empty", !state.cell);
  panel.classList.toggle("pinned", state.pinned);
  if (!state.cell) {
    panel.replaceChildren(make("p", { className: "hint", textContent: "Point at a cell to see how its number is computed; click or tap to keep it." }));
    return;
  }
  const { row, column } = state.cell;
  const stage = stages[state.step];
  const x = matrixOf(stage.key)[row][column];
  const close = make("button", { type: "button", className: "close", ariaLabel: "Close", textContent: "×", onclick: () => select(null) });
  const products = PRODUCTS[view(stage) === "difference" && stage.key === "weights" ? "renormalised" : stage.key];
  panel.replaceChildren(
    close,
    make("p", { className: "place" }, make("b", { textContent: stage.symbol }), ` ${stage.rows[row]}, ${stage.columns[column]}`),
    make("p", { className: "value", textContent: grid.write(x) }),
    make("p", { className: "exact" }, "exactly ", make("code", { textContent: Number.isFinite(x) ? String(x) : shown(x) })),
    ...(products ? products(row, column) : [note("One number of this step, given or projected.")])
  );
}

const note = (text) => make("p", { className: "note", textContent: text });
const result = (text) => make("p", { className: "result", textContent: text });

// A table of the terms of a sum. Each line has a name, cells and a class.
function terms(heads, lines) {
  const line = ({ name, cells, kind = "" }) =>
    make("tr", { className: kind }, make("th", { scope: "row", title: name }, make("span", { textContent: name })), ...cells.map((text) => make("td", { textContent: text })));
  return make("table", { className: "terms" },
    make("thead", {}, make("tr", {}, make("td"), ...heads.map((text) => make("th", { scope: "col", textContent: text })))),
    make("tbody", {}, ...lines.map(line)));
}

const PRODUCTS = {
  x_positioned: (i, j) => [result(`${shown(matrixOf("x")[i][j])} + ${shown(matrixOf("p")[i][j])} = ${shown(matrixOf("x_positioned")[i][j])}`)],

  scores(i, j) {
    const turned = "q_turned" in stages;
    const [q, k] = turned ? ["q_turned", "k_turned"] : ["q", "k"];
    const [query, key] = [matrixOf(q)[i], matrixOf(k)[j]];
    const dot = sum(query.map((x, d) => x * key[d]));
    const score = matrixOf("scores")[i][j];
    const bias = score - dot * trace.scale;
    const biased = Math.abs(bias) > 1e-9 * (1 + Math.abs(score));
    const root = Math.abs(trace.scale * Math.sqrt(query.length) - 1) < 1e-12;
    const scaled = root ? `/ √${query.length}` : `× ${shown(trace.scale)}`;
    const lines = query.map((x, d) => ({ name: stages[q].columns[d], cells: [shown(x), shown(key[d]), shown(x * key[d])] }));
    lines.push({ name: "Σ", cells: ["", "", shown(dot)], kind: "total" });
    return [
      terms([stages[q].symbol, stages[k].symbol, "product"], lines),
      result(`${shown(dot)} ${scaled}${biased ? ` + ${shown(bias)}` : ""} = ${shown(score)}`),
      biased ? note("The last term is the bias of the scores.") : null,
    ].filter(Boolean);
  },

  mask(i, j) {
    const may = mayHear(i, j) ? "may hear" : state.mask ? "may not hear" : "would not be allowed by the mask to hear";
    return [note(`${trace.labels[i]} ${may} ${trace.keyLabels[j]}.`)];
  },

  masked: (i, j) => [result(`${shown(matrixOf("scores")[i][j])} + ${shown(matrixOf("mask")[i][j])} = ${shown(matrixOf("masked")[i][j])}`)],

  weights(i, j) {
    const scores = matrixOf("masked")[i];
    const weights = matrixOf("weights")[i];
    const sink = sinkOf();
    const heard = Math.max(...scores);
    const most = sink === null ? heard : Math.max(heard, sink);
    if (heard === -Infinity) return [note("Every score of this row is -∞: nothing is heard, and every weight is exactly 0.")];
    const powers = scores.map((s) => Math.exp(s - most));
    const drained = sink === null ? 0 : Math.exp(sink - most);
    const total = sum(powers) + drained;
    const lines = scores.map((s, key) => ({
      name: trace.keyLabels[key],
      cells: [shown(s), shown(powers[key]), shown(weights[key])],
      kind: `${key === j ? "here" : ""} ${s === -Infinity ? "silent" : ""}`,
    }));
    if (sink !== null) lines.push({ name: "sink", cells: [shown(sink), shown(drained), shown(drained / total)] });
    lines.push({ name: "Σ", cells: ["", shown(total), shown(sum(weights) + drained / total)], kind: "total" });
    const own = scores[j] === -Infinity ? "exp(-∞)" : `exp(${shown(scores[j])} − ${shown(most)})`;
    return [
      result(`${own} / ${shown(total)}`),
      result(`= ${shown(powers[j])} / ${shown(total)} = ${shown(weights[j])}`),
      terms(["score", `exp(s − ${shown(most)})`, "weight"], lines),
    ];
  },

  renormalised(i, j) {
    const [masked, open] = [matrixOf("weights", "with")[i][j], matrixOf("weights", "without")[i][j]];
    const said = [result(`${shown(masked)} − ${shown(open)} = ${signed(masked - open)}`)];
    if (!mayHear(i, j)) return [...said, note("Forbidden: the mask takes all of it.")];
    if (kept(i) === 1) return [...said, note("The mask forbids nothing in this row.")];
    said.push(result(`${shown(open)} / ${shown(kept(i))} = ${shown(masked)}`));
    const [to, who] = sinkOf() === null ? ["keys that it may hear", "the row sums"] : ["keys that it may hear and to the sink", "the row and its sink sum"];
    said.push(note(`Without the mask ${shown(kept(i))} of this row's attention goes to ${to}. Divided by that, ${who} to 1 again.`));
    return said;
  },

  output(i, column) {
    const [weights, values] = [matrixOf("weights")[i], matrixOf("v")];
    const open = view(stages.output) !== "with";
    const lines = weights.map((weight, key) => {
      const silent = !open && !mayHear(i, key);
      const product = weight * values[key][column];
      return { name: trace.keyLabels[key], cells: [shown(weight), shown(values[key][column]), silent ? "0" : shown(product)], kind: silent ? "silent" : "" };
    });
    lines.push({ name: "Σ", cells: ["", "", shown(matrixOf("output")[i][column])], kind: "total" });
    const heard = weights.some((weight) => weight !== 0) || open;
    return [
      terms([view(stages.weights) === "difference" ? "change of A" : "A", "V", "product"], lines),
      heard ? null : note("Nothing is heard: the output is exactly 0."),
      weights.some((_, key) => !mayHear(i, key)) && !open && heard ? note("Struck out: forbidden, exactly 0.") : null,
    ].filter(Boolean);
  },

  projected: () => [note("One number of the projected output: all heads, concatenated, times W_O.")],
};
