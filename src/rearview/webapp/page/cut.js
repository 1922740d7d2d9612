// Cut: links, tokens and heads that are taken away, and what the model says then.

let [taken, position] = [[], 0];

function beginCut() {
  at("cut-add").onclick = () => {
    const number = (id) => (at(id).value === "all" ? null : Number(at(id).value));
    taken.push({ layer: number("cut-layer"), head: number("cut-head"), query: number("cut-query"), key: number("cut-key") });
    cutNow();
  };
  at("cut-clear").onclick = () => { forgetCuts(); showCutChoices(); };
  at("rank-tokens").onclick = () => rankBy("tokens");
  at("rank-heads").onclick = () => rankBy("heads");
  at("cut-layer").onchange = showHeads;
}

function forgetCuts() {
  taken = [];
  at("cuts").replaceChildren();
  at("cut-result").replaceChildren();
  at("ranked").replaceChildren();
}

const choices = (id, count, name) => at(id).replaceChildren(make("option", { value: "all", textContent: "all" }), ...Array.from({ length: count }, (_, n) => make("option", { value: n, textContent: name(n) })));

function showHeads() {
  const l = at("cut-layer").value;
  choices("cut-head", l === "all" ? Math.min(...layers.map((one) => one.heads.length)) : layers[Number(l)].heads.length, String);
}

let cutText = null;
function showCutChoices() {
  if (!run || changed) return;
  const list = data.labels[0].slice(0, 2000);
  const words = (n) => `${n} ${shorter(list[n], 14)}`;
  choices("cut-layer", layers.length, (n) => layers[n].choice);
  showHeads();
  choices("cut-query", list.length, words);
  choices("cut-key", list.length, words);
  position = Math.min(position || list.length - 1, list.length - 1);
  cutText = tokenText(at("cut-text"), list, { choose: choosePosition, title: (n) => `predict the token after position ${n}` });
  shadeCut();
}

function choosePosition(n) {
  position = n;
  shadeCut();
  if (taken.length) cutNow();
}

const shadeCut = (background = () => "") => cutText?.shade(background, (n) => ({ chosen: n === position }));

const nameOf = ({ layer, head, query, key }) => {
  const list = data.labels[0];
  const word = (n) => `${n} “${list[n]}”`;
  const who = [layer === null ? "all layers" : `layer ${layer}`, head === null ? "all heads" : `head ${head}`].join(", ");
  const what = query === null && key === null ? "everything" : [query === null ? "every query" : `query ${word(query)}`, key === null ? "every key" : `key ${word(key)}`].join(" → ");
  return `${who}: ${what}`;
};

async function cutNow() {
  at("cuts").replaceChildren(...taken.map((each, n) => make("li", {}, make("button", { type: "button", textContent: `✕ ${nameOf(each)}`, ariaLabel: `Put back ${nameOf(each)}`, onclick: () => { taken.splice(n, 1); cutNow(); } }))));
  const cuts = taken.map((each) => Object.fromEntries(Object.entries(each).filter(([, value]) => value !== null)));
  const found = await ask("cut", { run: run.run, position, cuts }).catch(() => null);
  if (!found) return;
  const rows = make("ol", { className: "bars" });
  bars(rows, found.likely);
  const losses = found.before.loss === null ? "" : ` The loss of the text goes from ${found.before.loss.toFixed(4)} to ${found.after.loss.toFixed(4)}.`;
  at("cut-result").replaceChildren(make("p", { textContent: `After “${data.labels[0][position]}” at position ${position}: grey before, teal after.${losses}` }), rows);
}

async function rankBy(what) {
  const found = await ask("rank", { run: run.run, position, what }, { progress: progress("Taking away") }).catch(() => null);
  if (!found) return;
  const top = Math.max(...found.effects.map((effect) => effect.moved), 1e-12);
  if (what === "tokens") {
    const by = new Map(found.effects.map((effect) => [effect.key, effect.moved]));
    const teal = channels(colour("--teal"));
    shadeCut((n) => `rgb(${teal.join(" ")} / ${(0.9 * (by.get(n) ?? 0)) / top})`);
  }
  const rows = found.effects.slice(0, 24).map((effect) => make("tr", {},
    make("td", {}, make("code", { textContent: what === "tokens" ? `${effect.key} ${effect.label}` : effect.label })),
    make("td", { className: "number", textContent: percent(effect.moved) }),
    make("td", { className: "number", textContent: `× ${readable(Math.exp(effect.change))}` })));
  at("ranked").replaceChildren(
    make("p", { className: "sub", textContent: `${grouped(found.tried)} ${what} were taken away, one at a time. The probability of “${found.target}” after position ${found.position} is ${percent(found.probability)} with all of them.` }),
    make("table", { className: "steps-of" }, make("thead", {}, make("tr", {}, ...["taken away", "probability that moved", `“${found.target}”`].map((textContent) => make("th", { scope: "col", textContent })))), make("tbody", {}, ...rows)));
}
