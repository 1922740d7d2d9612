// Read: the text, what the model predicts, and every head as a map.

// The current run: its number, its answer, and the view whose maps are shown.
let run = null;
const settings = () => ({ model: at("model").value, text: at("input").value });

async function read(fields = settings()) {
  if (!fields.text) return;
  const answer = await ask("read", fields);
  await showRun(answer);
  at("source-note").textContent = [`${grouped(data.labels[0]?.length ?? 0)} tokens`, answer.remark].filter(Boolean).join(" · ");
  at("said-card").hidden = !answer.next;
  if (answer.next) bars(at("next"), answer.next);
  at("loss-note").textContent = answer.loss === undefined ? "" : `loss ${answer.loss.toFixed(3)} nats per token of this text`;
  at("save").href = `/api/runs/${answer.run}/page`;
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
  const shown = at("surprise").checked && run?.losses;
  at("surprises").hidden = !shown;
  if (!shown) return;
  const top = Math.max(...run.losses, 1e-9);
  const list = data.labels[0];
  const shaded = tokenText(at("surprises"), list, { choose: () => {}, title: (n) => (n ? `surprise ${run.losses[n - 1].toFixed(2)} nats` : "the first token") });
  const orange = channels(colour("--orange"));
  shaded.shade((n) => `rgb(${orange.join(" ")} / ${n ? (0.85 * run.losses[n - 1]) / top : 0})`, () => ({}));
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
    refresh();
  };
  at("surprise").onchange = showSurprise;
}

const refresh = () => read().then(rememberAll, () => {});
