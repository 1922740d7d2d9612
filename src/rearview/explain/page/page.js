// The page as a whole: the step, the switches, the address, and the hands on mouse, screen and keys.

// Beside the steps: who hears whom, in words.

// Many names: the first are shown, and all of them when it is opened.
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

// The whole.

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
  remember();
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

// The address keeps the place: #step=weights&mask=off&head=1

function remember() {
  const place = new URLSearchParams({ step: state.step, mask: state.mask ? "on" : "off", head: state.head });
  if (state.difference) place.set("view", "difference");
  try {
    history.replaceState(null, "", `#${place}`);
  } catch {
    // A page inside a notebook has no address of its own.
  }
}

function recall() {
  const place = new URLSearchParams(location.hash.slice(1));
  const head = Number(place.get("head"));
  change({
    step: Object.hasOwn(stages, place.get("step")) ? place.get("step") : state.step,
    mask: place.get("mask") !== "off",
    difference: place.get("view") === "difference",
    head: Number.isInteger(head) && head >= 0 && head < trace.heads ? head : 0,
  });
}

// Hands: mouse, touch, keys.

function placeOf(target) {
  const td = target.closest?.("#matrix tbody td:not(.extra)");
  return td ? { row: td.parentNode.sectionRowIndex, column: td.cellIndex - 1 } : null;
}

function onGridKey(event, place) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const last = grid.columns.length - 1;
  const to = event.key === "Home" ? [place.row, 0] : event.key === "End" ? [place.row, last]
    : event.key in moves ? [place.row + moves[event.key][0], place.column + moves[event.key][1]] : null;
  if (!to) return false;
  grid.cells[to[0]]?.[to[1]]?.focus();
  return true;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
  const place = placeOf(event.target);
  const keys = {
    ArrowLeft: () => turn(-1), ArrowRight: () => turn(1), Home: () => goTo(0), End: () => goTo(trace.stages.length - 1),
    m: toggleMask, d: toggleDifference, Escape: leave,
  };
  const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if ((place && onGridKey(event, place)) || (act && (act(), true))) event.preventDefault();
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
    // On a phone the panel rises from below: the cell stays in sight above it.
    event.target.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  at("back").onclick = () => turn(-1);
  at("next").onclick = () => turn(1);
  at("mask").onclick = toggleMask;
  at("difference").onclick = toggleDifference;
  at("head").onchange = (event) => change({ head: Number(event.target.value) });
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", recall);
  window.addEventListener("beforeprint", () => grid.rows.forEach((_, i) => grow(i)));
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
