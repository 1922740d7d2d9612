// Compare: two models, checkpoints or masks over the same text.

const SIDES_SHOWN = { change: "the difference", first: "the first", second: "the second" };
// The latest answer, and the runs whose checkpoints the slider goes through, by name.
let compared = null;
const checkpointsByRun = new Map();

function beginCompare() {
  for (const id of ["compare-first", "compare-second"]) at(id).append(...start.models.map(({ name }) => make("option", { value: name, textContent: name })));
  at("compare").onclick = () => compareModels().catch(() => {});
  for (const each of start.models) {
    if (each.step === null) continue;
    if (!checkpointsByRun.has(each.run)) checkpointsByRun.set(each.run, []);
    checkpointsByRun.get(each.run).push(each);
  }
  for (const [name, steps] of checkpointsByRun) if (steps.length < 2) checkpointsByRun.delete(name);
  at("steps-row").hidden = !checkpointsByRun.size;
  at("steps-run-label").hidden = checkpointsByRun.size < 2;
  at("steps-run").append(...[...checkpointsByRun.keys()].map((value) => make("option", { value, textContent: value })));
  at("steps-run").onchange = showCheckpoints;
  at("steps").addEventListener("input", tellStep);
  at("steps").addEventListener("change", compareSteps);
  at("sides").append(...Object.entries(SIDES_SHOWN).map(([value, textContent], n) => make("button", { type: "button", role: "radio", value, textContent, tabIndex: n ? -1 : 0, onclick: () => showSide(value) })));
  at("sides").addEventListener("keydown", (event) => {
    const by = ARROWS[event.key]?.[1];
    if (!by) return;
    event.preventDefault();
    const names = Object.keys(SIDES_SHOWN);
    const next = names[(names.indexOf(side) + by + names.length) % names.length];
    showSide(next);
    at("sides").querySelector(`[value=${next}]`).focus();
  });
  // Two different models to begin with: the first checkpoint and the last.
  const [steps] = checkpointsByRun.values();
  const [first, second] = steps ? [steps[0].name, steps.at(-1).name] : [start.models[0].name, (start.models[1] ?? start.models[0]).name];
  at("compare-first").value = first;
  at("compare-second").value = second;
  for (const id of ["compare-first", "compare-second"]) for (const option of at(id).options) option.defaultSelected = option.selected;
  if (steps) showCheckpoints();
}

const chosenSteps = () => checkpointsByRun.get(at("steps-run").value);
function showCheckpoints() {
  at("steps").max = chosenSteps().length - 1;
  at("steps").value = at("steps").max;
  tellStep();
}
const tellStep = () => { at("step-name").textContent = `step ${grouped(chosenSteps()[at("steps").value].step)}, beside step ${grouped(chosenSteps()[0].step)}`; };

function compareSteps() {
  at("compare-first").value = chosenSteps()[0].name;
  at("compare-second").value = chosenSteps()[at("steps").value].name;
  compareModels().catch(() => {});
}

let side = "change";
async function compareModels() {
  const fields = {
    text: at("input").value, model: at("compare-first").value, other: at("compare-second").value,
    mask: at("compare-first-mask").value, other_mask: at("compare-second-mask").value, replace: at("compare-replace").checked,
  };
  compared = await ask("compare", fields, { progress: progress("Reading, layer") });
  at("compare-empty").hidden = true;
  at("compare-maps").append(at("maps"));
  at("maps-home").hidden = false;
  at("sides").hidden = false;
  side = side in SIDES_SHOWN ? side : "change";
  // The side that was looked at stays, so that the slider shows a head form.
  if (side === "change") await showCompared(compared);
  else await showSide(side);
  const { first, second } = compared;
  // A model that does not predict the next token has neither a loss nor next tokens.
  const predicts = first.next !== undefined || second.next !== undefined;
  const row = (name, one) => make("tr", {}, make("th", { scope: "row", textContent: name }), make("td", { textContent: one.name }), ...(predicts ? [
    make("td", { className: "number", textContent: one.loss === undefined ? "" : one.loss.toFixed(4) }),
    make("td", {}, ...(one.next ?? []).slice(0, 4).flatMap(({ label, probability }) => [make("span", { className: "together" }, make("code", { textContent: label }), ` ${percent(probability)}`), " "]))] : []));
  at("compared-said").replaceChildren(make("div", { className: "wide" }, make("table", { className: "steps-of" },
    make("thead", {}, make("tr", {}, ...["", "model", ...(predicts ? ["loss", "next token"] : [])].map((textContent) => make("th", { scope: "col", textContent, className: textContent === "loss" ? "number" : "" })))),
    make("tbody", {}, row("First", first), row("Second", second)))),
  ...(compared.remark ? [make("p", { className: "sub", textContent: compared.remark })] : []));
  rememberAll();
}

async function showSide(name) {
  side = name;
  await showCompared(name === "change" ? compared : await ask("open", { run: compared.runs[name] }));
}

async function showCompared(answer) {
  const kept = [state.layer, state.head];
  elsewhere = true;
  await showRun(answer);
  if (layers[kept[0]]?.heads[kept[1]]) chooseHead(...kept);
  for (const button of at("sides").children) {
    button.ariaChecked = String(button.value === side);
    button.tabIndex = button.value === side ? 0 : -1;
  }
}
