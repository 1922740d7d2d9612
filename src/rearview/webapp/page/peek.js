// Peek?: the audit, check by check, and one token changed on the text.

function beginPeek() {
  at("peek").onclick = () => auditModel().catch(() => {});
}

async function auditModel() {
  at("peek-empty").hidden = true;
  at("verdict").replaceChildren();
  at("checks").replaceChildren();
  at("peek").disabled = true;
  const seenChecks = new Map();
  const show = (name, status, why = "") => {
    const line = make("li", {}, make("span", { className: `badge ${status}`, textContent: status }), make("span", { textContent: name }), make("span", { className: "sub", textContent: why }));
    seenChecks.get(name)?.replaceWith(line);
    if (!seenChecks.has(name)) at("checks").append(line);
    seenChecks.set(name, line);
  };
  let [last, ended] = [null, false];
  try {
    const report = await ask("peek", { model: at("model").value, contract: at("contract").value }, {
      check: ({ name }) => {
        if (last) show(last, "done");
        show((last = name), "running");
      },
    });
    at("checks").replaceChildren();
    seenChecks.clear();
    for (const { name, status, why } of report.checks) show(name, status, why);
    drawVerdict(report);
    ended = true;
  } finally {
    if (!ended) at("checks").replaceChildren();
    at("peek-empty").hidden = ended;
    at("peek").disabled = false;
  }
}

function drawVerdict(report) {
  const parts = [make("p", { className: "verdict" }, make("span", { className: `badge ${report.verdict.toLowerCase()}`, textContent: report.verdict }), ` ${report.why}`)];
  if (report.place) parts.push(make("h3", { textContent: "The line" }), make("p", { textContent: `${report.place.module || "The model"}, line ${report.place.line}: ${report.place.hint}` }), make("pre", { textContent: report.place.source }));
  if (report.witnesses.length) parts.push(make("h3", { textContent: "Witnesses" }), make("ul", { className: "plain-list" }, ...report.witnesses.map((witness) => make("li", {}, witness.sentence, ...(witness.kind === "time" && run ? [" ", make("button", { type: "button", className: "small", textContent: "Replay on the text", onclick: () => replayWitness(witness) })] : [])))));
  if (report.conditions.length) parts.push(make("h3", { textContent: "Conditions" }), Object.assign(list(report.conditions), { className: "plain-list" }));
  if (report.assumptions.length) parts.push(make("details", {}, make("summary", { textContent: plural(report.assumptions.length, "assumption", "assumptions") }), Object.assign(list(report.assumptions), { className: "plain-list" })));
  parts.push(make("p", {}, make("button", { type: "button", id: "peek-save", textContent: "Save the report as one file", onclick: () => savePage(report.page) })));
  at("verdict").replaceChildren(...parts);
}

let peekText = null;
function showPeekText() {
  at("peek-text").hidden = !isRead();
  at("peek-said").textContent = run ? `Click a token: it becomes another one of the text.${isRead() ? ofLongText() : ""}` : "Type a text first.";
  if (!isRead()) return;
  const list = data.labels[0].slice(0, MOST_CHOICES);
  peekText = tokenText(at("peek-text"), list, { choose: changeToken, title: (n) => `change the token at position ${n}` });
}

// The source of a witness is changed on this text, at its own position or at the last.
async function replayWitness({ source }) {
  at("peek-text").parentElement.scrollIntoView({ block: "nearest" });
  await changeToken(Math.min(source, peekText.count - 1));
}

async function changeToken(n) {
  const found = await ask("replay", { run: run.run, position: n }).catch((error) => {
    if (error.name !== "AbortError") at("peek-said").textContent = error.message;
    return null;
  });
  if (!found) return;
  tell("");
  const top = Math.max(...found.moved, 1e-12);
  const [good, bad] = [channels(colour("--teal")), channels(colour("--red"))];
  peekText.shade((k) => `rgb(${(k < n ? bad : good).join(" ")} / ${found.moved[k] ? 0.12 + ((DEEPEST - 0.12) * found.moved[k]) / top : 0})`, (k) => ({ chosen: k === n }));
  const became = `Position ${n} became “${found.label}” instead of “${found.before}”`;
  at("peek-said").textContent = found.earlier === 0
    ? `${became}. No earlier output moved, not by one bit; later ones moved by up to ${readable(top)}.`
    : `${became}, and earlier outputs moved, most of all position ${found.earliest}, by ${readable(found.earlier)}: the model looks ahead.`;
}
