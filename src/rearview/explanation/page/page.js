// The page: the sentences below the matrix, the step, the switches, and mouse, touch and keys.

// A sentence with many names shows the first of them, and all of them when it is opened.
function folded(sentence) {
  const summary = make("summary");
  const details = make("details", { ontoggle: () => (summary.textContent = details.open ? sentence : first) }, summary);
  const first = `${sentence.slice(0, sentence.lastIndexOf(", ", 120))} …`;
  summary.textContent = first;
  return details;
}

function drawAloud() {
  const spoken = trace.spoken[state.head];
  const which = state.mask ? "with" : "without";
  if (at("readings").dataset.of === `${which} ${state.head}`) return;
  at("readings").dataset.of = `${which} ${state.head}`;
  at("aloud-view").textContent = state.mask ? "with the mask" : "without the mask";
  at("readings").replaceChildren(...spoken[which].map((row) => {
    const kind = row.nothing ? "nothing" : row.onlyItself ? "only-itself" : "";
    return make("li", { className: kind }, row.heard > 8 ? folded(row.sentence) : row.sentence);
  }));
  const most = Math.max(...spoken.received.map((key) => Math.max(key.total, key.even)), 1e-9);
  at("received").replaceChildren(...spoken.received.map((key) => {
    const bar = make("div", { className: "bar", ariaHidden: "true" }, make("i"), make("b"));
    bar.firstChild.style.width = `${(100 * key.total) / most}%`;
    bar.lastChild.style.left = `${(100 * key.even) / most}%`;
    return make("li", {}, make("span", { textContent: key.sentence }), bar);
  }));
  at("remarks").replaceChildren(...spoken.remarks.map((text) => make("li", { textContent: text })));
}

function draw() {
  const stage = stages[state.step];
  const which = view(stage);
  const place = trace.stages.indexOf(stage);
  at("count").textContent = `Step ${place + 1} of ${trace.stages.length}`;
  at("formula").replaceChildren(...(stage.key === "mask" ? [stage[which].formula] : formula(stage[which].formula)));
  at("formula").classList.toggle("code", stage.key === "mask");
  at("sentence").textContent = stage[which].sentence;
  at("back").disabled = place === 0;
  at("next").disabled = place === trace.stages.length - 1;
  at("mask").setAttribute("aria-checked", state.mask);
  at("mask-word").textContent = state.mask ? "on" : "off";
  at("difference").hidden = !stage.difference;
  at("difference").setAttribute("aria-pressed", which === "difference");
  at("head").value = state.head;
  document.body.classList.toggle("mask-off", !state.mask);
  drawChips();
  drawMatrix(stage);
  drawAloud();
  select(state.cell);
  remember({ step: state.step, mask: state.mask ? "on" : "off", head: state.head, ...(state.difference ? { view: "difference" } : {}) });
}

function drawChips() {
  const list = at("chips");
  [...list.children].forEach((item, n) => {
    const here = trace.stages[n].key === state.step;
    if (here) item.firstChild.setAttribute("aria-current", "step");
    else item.firstChild.removeAttribute("aria-current");
    if (here) list.scrollTo({ left: item.offsetLeft - (list.clientWidth - item.clientWidth) / 2 });
  });
}

function change(changes) {
  Object.assign(state, changes);
  draw();
}

const turn = (by) => goTo(trace.stages.findIndex((stage) => stage.key === state.step) + by);
const goTo = (place) => trace.stages[place] && change({ step: trace.stages[place].key });
const toggleMask = () => change({ mask: !state.mask, difference: false });
const toggleDifference = () => stages[state.step].difference && change({ difference: !state.difference });

function recall() {
  const place = recalled();
  const head = Number(place.get("head"));
  change({
    step: Object.hasOwn(stages, place.get("step")) ? place.get("step") : state.step,
    mask: place.get("mask") !== "off",
    difference: place.get("view") === "difference",
    head: Number.isInteger(head) && head >= 0 && head < trace.heads ? head : 0,
  });
}

// Mouse, touch and keys.

function placeOf(target) {
  const td = target.closest?.("#matrix tbody td:not(.extra)");
  return td ? { row: td.parentNode.sectionRowIndex, column: td.cellIndex - 1 } : null;
}

function onMatrixKey(event) {
  const place = placeOf(event.target);
  const to = place && stepped(event.key, [place.row, place.column], grid.rows.length, grid.columns.length);
  if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  grid.cells[to[0]]?.[to[1]]?.focus();
}

function leave() {
  select(null);
  if (placeOf(document.activeElement)) at("chips").querySelector("[aria-current]").focus();
}

function listen() {
  const matrix = at("matrix");
  matrix.addEventListener("pointerover", (event) => {
    const place = event.pointerType === "mouse" && !state.pinned && placeOf(event.target);
    if (place) select(place);
  });
  matrix.addEventListener("focusin", (event) => {
    const place = placeOf(event.target);
    if (place) select(place);
  });
  matrix.addEventListener("click", (event) => {
    const place = placeOf(event.target);
    if (!place) return;
    const again = state.pinned && state.cell?.row === place.row && state.cell?.column === place.column;
    state.pinned = !again;
    select(place);
    // On a phone the panel covers the lower part of the page, so the cell is scrolled into view above it.
    event.target.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  at("back").onclick = () => turn(-1);
  at("next").onclick = () => turn(1);
  at("mask").onclick = toggleMask;
  at("difference").onclick = toggleDifference;
  at("head").onchange = (event) => change({ head: Number(event.target.value) });
  matrix.addEventListener("keydown", onMatrixKey);
  onKeys({
    ArrowLeft: () => turn(-1), ArrowRight: () => turn(1), Home: () => goTo(0), End: () => goTo(trace.stages.length - 1),
    m: toggleMask, d: toggleDifference, Escape: leave,
  });
  window.addEventListener("hashchange", recall);
  window.addEventListener("beforeprint", writePaper);
  window.addEventListener("afterprint", clearPaper);
}

function begin() {
  at("title").textContent = trace.title;
  at("expression").textContent = trace.mask;
  at("chips").append(...trace.stages.map((stage, n) =>
    make("li", {}, make("button", { type: "button", title: stage.with.sentence, textContent: stage.symbol, onclick: () => goTo(n) }))));
  at("head").append(...Array.from({ length: trace.heads }, (_, n) => make("option", { value: n, textContent: n })));
  at("head-choice").hidden = trace.heads === 1;
  listen();
  recall();
}

begin();
