// Read: the text, what the model predicts, and every head as a map.

// The current run: its number, its answer, and the view whose maps are shown.
let run = null;
// Whether the maps show a run of another view: one side or the difference of a comparison.
let elsewhere = false;
const isRead = () => run !== null && !elsewhere;
const settings = () => ({ model: at("model").value, text: at("input").value });

async function read(fields = settings()) {
  at("read-empty").hidden = fields.text !== "";
  at("maps-home").hidden = fields.text === "";
  if (!fields.text) {
    stop("read");
    run = null;
    at("source-note").textContent = "";
    at("said-card").hidden = true;
    closeWhy();
    return;
  }
  const answer = await ask("read", fields, { progress: progress("Reading, layer") });
  // The maps are drawn into the room that this leaves.
  at("said-card").hidden = !answer.next;
  elsewhere = false;
  await showRun(answer);
  at("source-note").textContent = [counted(data.labels[0]?.length ?? 0, "token", "tokens"), answer.remark].filter(Boolean).join(" · ");
  if (answer.next) bars(at("next"), answer.next);
  at("loss-note").textContent = answer.loss === undefined ? "" : `loss ${answer.loss.toFixed(3)} nats per token of this text`;
  showSurprise();
  closeWhy();
  forgetCuts();
  writeTokenTexts();
}

// Shows the maps of an answer, of one model or of a difference.
async function showRun(answer) {
  const numbers = await bytes(`/api/runs/${answer.run}/block`);
  run = answer;
  openData(answer.contents, numbers);
  showMaps();
  document.body.dataset.run = answer.run;
}

function showSurprise() {
  at("surprise").parentElement.hidden = !run?.losses;
  const shown = at("surprise").checked && run?.losses;
  at("surprises").hidden = !shown;
  if (!shown) return;
  const top = Math.max(...run.losses, 1e-9);
  const list = data.labels[0];
  const shaded = tokenText(at("surprises"), list, { choose: () => {}, title: (n) => (n ? `surprise ${run.losses[n - 1].toFixed(2)} nats` : "the first token") });
  const orange = channels(colour("--orange"));
  shaded.shade((n) => `rgb(${orange.join(" ")} / ${n ? (DEEPEST * run.losses[n - 1]) / top : 0})`, () => ({}));
}

tileSource = async (layer, head, { left, right, top, bottom, bin }) => {
  const numbers = new Float32Array(await bytes(`/api/runs/${run.run}/tile`, { layer, row: head, left, right, top, bottom, bin }, "tile"));
  const [rows, columns] = [Math.ceil((bottom - top) / bin), Math.ceil((right - left) / bin)];
  const size = rows * columns;
  return { map: numbers.subarray(0, size), uniform: numbers.subarray(size, 2 * size), first: numbers.subarray(2 * size, 2 * size + rows) };
};
rowSource = async (layer, head, query) => new Float32Array(await bytes(`/api/runs/${run.run}/row`, { layer, row: head, query }, "row"));

let typed = null;
function beginRead() {
  at("input").value = start.text;
  at("input").addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(() => { if (view === "learn" || view === "compare") return; refresh(); }, 500);
  });
  at("file").onchange = async () => {
    const [file] = at("file").files;
    if (!file) return;
    at("input").value = await file.text();
    at("file").value = "";
    refresh();
  };
  at("surprise").onchange = showSurprise;
  at("save").onclick = () => ask("save", { run: run.run }).then(({ page }) => savePage(page), () => {});
  // The address remembers the visible part of the map.
  const drawBefore = drawBoard;
  drawBoard = () => {
    drawBefore();
    rememberSoon();
  };
}

// The visible part of the map and the chosen pair, as they are in an address.
const placeInMap = () => ({
  ...(isZoomed() && { zoom: ["x0", "x1", "y0", "y1"].map((edge) => Number(state.view[edge].toFixed(2))).join(" ") }),
  ...(state.pinned && state.cell && { pair: `${state.cell.query} ${state.cell.key}` }),
});
function recallPlace(place) {
  const numbers = (name, count) => {
    const found = (place.get(name) ?? "").split(" ").map(Number);
    return found.length === count && found.every((x) => Number.isFinite(x)) ? found : null;
  };
  const whole = wholeView();
  const edges = numbers("zoom", 4);
  if (edges && edges[0] >= whole.x0 && edges[1] <= whole.x1 && edges[2] >= whole.y0 && edges[3] <= whole.y1 && edges[0] < edges[1] && edges[2] < edges[3]) {
    [state.view.x0, state.view.x1, state.view.y0, state.view.y1] = edges;
    drawBoard();
  }
  const pair = numbers("pair", 2);
  if (pair && pair.every((n) => Number.isInteger(n) && n >= 0)) choose(...pair, true);
}

const refresh = () => read().then(rememberAll, () => {});
