// Why: the arithmetic of the chosen pair, term by term.

let arithmetic = null;

function beginWhy() {
  at("why-mask").onchange = drawWhy;
  at("why-steps").onclick = showSteps;
  at("why-save").onclick = () => savePage(stepsPage);
  at("value").parentElement.append(make("button", { type: "button", id: "why-go", textContent: "Why this number?", hidden: true, onclick: goToWhy }));
  // The maps pin a pair when it is clicked, or chosen by keys.
  const chooseBefore = choose;
  choose = (query, key, pin) => {
    chooseBefore(query, key, pin);
    at("why-go").hidden = changed || view !== "read";
    if (pin && !changed && view === "read") askWhy();
  };
  const clearBefore = clearChoice;
  clearChoice = () => {
    clearBefore();
    closeWhy();
  };
}

async function goToWhy() {
  const { query, key } = state.cell;
  choose(query, key, true);
  await asked;
  at("why-card").scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

// Every matrix of the head over the first tokens, as a page of its own.
let stepsPage = null;
async function showSteps() {
  at("why-error").hidden = true;
  try {
    stepsPage = (await ask("steps", { run: run.run, layer: layerNumber(), head: head().head })).page;
  } catch (error) {
    if (error.name === "AbortError") return;
    tell("");
    at("why-error").hidden = false;
    at("why-error").textContent = error.message;
    return;
  }
  at("why-frame").replaceChildren(framedPage(stepsPage, "All steps of this head"));
  at("why-save").hidden = false;
}

let asked = Promise.resolve();
function askWhy() {
  const { query, key } = state.cell;
  const fields = { run: run.run, layer: layerNumber(), head: head().head, query, key };
  asked = ask("why", fields).then((found) => {
    arithmetic = found;
    at("why-card").hidden = false;
    forgetSteps();
    drawWhy();
  }, () => {});
}

function forgetSteps() {
  stepsPage = null;
  at("why-frame").replaceChildren();
  at("why-save").hidden = at("why-error").hidden = true;
}

const layerNumber = () => Number(layer().choice.split(" ")[0]);

function closeWhy() {
  arithmetic = null;
  at("why-card").hidden = at("why-go").hidden = true;
  forgetSteps();
}

function drawWhy() {
  if (!arithmetic) return;
  const a = arithmetic;
  const masked = at("why-mask").checked;
  const row = masked ? a.masked : a.unmasked;
  const set = data.labels[layer().keySet] ?? [];
  const word = (n) => `${grouped(n)} “${set[n] ?? n}”`;
  at("why-note").textContent = `${layer().title}, head ${head().head}: query ${word(a.query)}, key ${word(a.key)}`;
  const line = (symbol, words, number) => make("tr", {}, make("th", { scope: "row", textContent: symbol }), make("td", {}, ...[words].flat()), make("td", { className: "number", textContent: number }));
  const few = (numbers) => `[${numbers.slice(0, 6).map(readable).join(", ")}${numbers.length > 6 ? `, … ${numbers.length} numbers` : ""}]`;
  const code = (textContent) => make("code", { textContent });
  const rows = [
    line("q", code(few(a.q)), ""),
    line("k", code(few(a.k)), ""),
    line("q · k", [code(a.products.slice(0, 6).map(readable).join(" + ") + (a.products.length > 6 ? " + …" : "")), dims(a.products)], readable(a.dot)),
    line("× scale", `times ${readable(a.scale)}`, readable(a.scaled)),
  ];
  if (a.softcap !== null) rows.push(line("softcap", `${readable(a.softcap)} × tanh(score / ${readable(a.softcap)})`, readable(a.capped)));
  if (a.bias !== null) rows.push(line("+ bias", "added to the score", readable(a.bias)));
  const blocked = masked && !a.heard;
  rows.push(
    line("mask", masked ? [code(a.mask), ` lets this query hear ${grouped(a.hears)} of ${grouped(a.keys)} keys; ${a.heard ? "this one is among them" : "not this one"}`] : "none: every key is heard", blocked ? "−∞" : readable(a.score)),
    line("exp", blocked ? "exp(−∞) is exactly 0" : `exp(${readable(a.score)} − ${readable(row.top)}), relative to the largest score`, readable(row.exponential)),
    line("Σ", `the sum over ${masked ? "the keys that are heard" : "all keys"}${a.sink === null ? "" : " and the sink"}`, readable(row.total)),
    line("weight", [code(`${readable(row.exponential)} / ${readable(row.total)}`), ", the share of this query's attention"], percent(row.weight)),
    line("× v", [code(few(row.contribution)), " is what this key adds to the output ", code(few(row.output))], ""),
  );
  const strongest = make("p", { className: "sub", textContent: `Strongest keys of this query: ${a.strongest.map(({ key, label, weight }) => `${grouped(key)} “${label}” ${percent(weight)}`).join(", ")}.` });
  at("why").replaceChildren(make("table", { className: "steps-of" }, make("tbody", {}, ...rows)), strongest);
}

// The products of all dimensions as small coloured bars.
function dims(products) {
  const top = Math.max(...products.map(Math.abs), 1e-12);
  const [more, less] = [channels(colour("--more-2")), channels(colour("--less-2"))];
  return make("span", { className: "dims", ariaHidden: "true" }, ...products.slice(0, 128).map((x, n) => {
    const bar = make("i", { title: `dimension ${n}: ${readable(x)}` });
    bar.style.backgroundColor = `rgb(${(x < 0 ? less : more).join(" ")} / ${0.08 + (0.92 * Math.abs(x)) / top})`;
    return bar;
  }));
}
