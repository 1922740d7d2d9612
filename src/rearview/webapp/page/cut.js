// Cut: links, tokens and heads that are taken away, and what the model says then.

// What was taken away, and the word whose next token is predicted: the last one, unless another was chosen.
let [taken, chosenPosition] = [[], null];
// The most tokens of a text that can be chosen in it.
const MOST_CHOICES = 2000;
const lastChoice = () => Math.min(data.labels[0].length, MOST_CHOICES) - 1;
const cutPosition = () => Math.min(chosenPosition ?? lastChoice(), lastChoice());
const ofLongText = () => (data.labels[0].length > MOST_CHOICES ? ` The first ${grouped(MOST_CHOICES)} of ${grouped(data.labels[0].length)} tokens can be chosen.` : "");

function beginCut() {
  at("cut-add").onclick = () => {
    const number = (id) => (at(id).value === "all" ? null : Number(at(id).value));
    taken.push({ layer: number("cut-layer"), head: number("cut-head"), query: number("cut-query"), key: number("cut-key") });
    cutNow();
  };
  at("cut-clear").onclick = () => { forgetCuts(); showCutChoices(); };
  at("rank-links").onclick = () => rankBy("links");
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
  const able = isRead() && run.next !== undefined;
  for (const id of ["cut-add", "rank-links", "rank-tokens", "rank-heads"]) at(id).disabled = !able;
  at("cut-lead").textContent = able || elsewhere ? `Choose the word whose next token is predicted, then take something away.${able ? ofLongText() : ""}`
    : run ? `${run.contents.title} does not predict the next token, so there is nothing to compare. Choose a model that continues a text.`
    : "Type a text first.";
  at("cut-text").hidden = !able;
  if (!able) return;
  const list = data.labels[0].slice(0, MOST_CHOICES);
  const words = (n) => `${n} ${shorter(list[n], 14)}`;
  choices("cut-layer", layers.length, (n) => layers[n].choice);
  showHeads();
  choices("cut-query", list.length, words);
  choices("cut-key", list.length, words);
  cutText = tokenText(at("cut-text"), list, { choose: choosePosition, title: (n) => `predict the token after position ${n}` });
  cutText.stopAt(cutPosition());
  shadeCut();
}

function choosePosition(n) {
  chosenPosition = n === lastChoice() ? null : n;
  shadeCut();
  if (taken.length) cutNow();
  else rememberAll();
}

// The address remembers what was taken away.
const cutFields = () => (view === "cut" && run ? {
  ...(taken.length && { cuts: taken.map(({ layer, head, query, key }) => [layer, head, query, key].map((n) => n ?? "").join(" ")).join(",") }),
  ...(chosenPosition !== null && { position: chosenPosition }),
} : {});
async function recallCuts(place) {
  chosenPosition = /^\d{1,9}$/.test(place.get("position") ?? "") ? Number(place.get("position")) : null;
  showCutChoices();
  taken = (place.get("cuts") ?? "").split(",").filter(Boolean).slice(0, 64).map((each) => {
    const [layer, head, query, key] = each.split(" ").map((n) => (/^\d+$/.test(n) ? Number(n) : null));
    return { layer, head: head ?? null, query: query ?? null, key: key ?? null };
  });
  if (taken.length) await cutNow();
}

const shadeCut = (background = () => "") => cutText?.shade(background, (n) => ({ chosen: n === cutPosition() }));

const nameOf = ({ layer, head, query, key }) => {
  const list = data.labels[0];
  const word = (n) => `${n} “${list[n] ?? ""}”`;
  const who = [layer === null ? "all layers" : `layer ${layer}`, head === null ? "all heads" : `head ${head}`].join(", ");
  const what = query === null && key === null ? "everything" : [query === null ? "every query" : `query ${word(query)}`, key === null ? "every key" : `key ${word(key)}`].join(" → ");
  return `${who}: ${what}`;
};

async function cutNow() {
  rememberAll();
  at("cuts").replaceChildren(...taken.map((each, n) => make("li", {}, make("button", { type: "button", textContent: `✕ ${nameOf(each)}`, ariaLabel: `Put back ${nameOf(each)}`, onclick: () => { taken.splice(n, 1); cutNow(); } }))));
  const cuts = taken.map((each) => Object.fromEntries(Object.entries(each).filter(([, value]) => value !== null)));
  const found = await ask("cut", { run: run.run, position: cutPosition(), cuts }).catch(() => null);
  if (!found) return;
  const rows = make("ol", { className: "bars changes" });
  bars(rows, found.likely);
  const losses = found.before.loss === null ? "" : ` The loss of the text goes from ${found.before.loss.toFixed(4)} to ${found.after.loss.toFixed(4)}.`;
  at("cut-result").replaceChildren(make("p", { className: "lead", textContent: `What follows “${data.labels[0][found.position]}” at position ${found.position}: grey before, teal after.${losses}` }), rows);
}

async function rankBy(what) {
  const found = await ask("rank", { run: run.run, position: cutPosition(), what }, { progress: progress("Taking away") }).catch(() => null);
  if (!found) return;
  const top = Math.max(...found.effects.map((effect) => effect.moved), 1e-12);
  if (what !== "heads") {
    const by = new Map(found.effects.map((effect) => [effect.key, effect.moved]));
    const teal = channels(colour("--teal"));
    shadeCut((n) => `rgb(${teal.join(" ")} / ${(DEEPEST * (by.get(n) ?? 0)) / top})`);
  }
  const name = (effect) => (what === "heads" ? effect.label : `${effect.key} ${effect.label}`);
  const takeAway = (effect) => {
    taken.push({ layer: effect.layer ?? null, head: effect.head ?? null, query: what === "links" ? found.position : null, key: effect.key ?? null });
    cutNow();
  };
  const rows = found.effects.slice(0, 24).map((effect) => {
    const bar = make("i");
    bar.style.width = `${(100 * effect.moved) / top}%`;
    return make("tr", {},
      make("td", {}, make("button", { type: "button", className: "plain", textContent: name(effect), title: "Take it away", onclick: () => takeAway(effect) })),
      make("td", { className: "bar-cell" }, bar),
      make("td", { className: "number", textContent: percent(effect.moved) }),
      make("td", { className: "number", textContent: `× ${Number(Math.exp(effect.change).toPrecision(3))}` }));
  });
  const tried = { links: "links of this word", tokens: "tokens", heads: "heads" }[what];
  at("ranked").replaceChildren(
    make("p", { className: "sub", textContent: `${grouped(found.tried)} ${tried} were taken away, one at a time. After position ${found.position}, “${found.target}” has a probability of ${percent(found.probability)} with all of them.` }),
    make("table", { className: "steps-of ranked" }, make("thead", {}, make("tr", {}, make("th", { scope: "col", textContent: "without" }), make("th", { scope: "col", colSpan: 2, textContent: "probability that moves" }), make("th", { scope: "col", className: "number", title: found.target, textContent: `“${shorter(found.target, 12)}”` }))), make("tbody", {}, ...rows)));
}
