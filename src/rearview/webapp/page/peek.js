// Peek?: the audit, check by check, and one token changed on the text.

function beginPeek() {
  at("peek").onclick = () => auditModel().catch(() => {});
}

async function auditModel() {
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
  let last = null;
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
  } finally {
    at("peek").disabled = false;
  }
}

function drawVerdict(report) {
  const parts = [make("p", { className: "verdict" }, make("span", { className: `badge ${report.verdict.toLowerCase()}`, textContent: report.verdict })), make("p", { textContent: report.why })];
  if (report.place) parts.push(make("p", { textContent: `${report.place.module || "the model"}, line ${report.place.line}: ${report.place.hint}` }), make("pre", { textContent: report.place.source }));
  if (report.witnesses.length) parts.push(make("h3", { textContent: "Witnesses" }), list(report.witnesses));
  if (report.conditions.length) parts.push(make("h3", { textContent: "Conditions" }), list(report.conditions));
  if (report.assumptions.length) parts.push(make("h3", { textContent: "Assumptions" }), list(report.assumptions));
  parts.push(make("p", {}, make("a", { className: "button", href: `/api/pages/${report.page}`, download: "audit.html", textContent: "Save the report as one file" })));
  at("verdict").replaceChildren(...parts);
}

let peekText = null;
function showPeekText() {
  if (!run || changed) return;
  const list = data.labels[0].slice(0, 2000);
  at("peek-said").textContent = "Click a token to change it.";
  peekText = tokenText(at("peek-text"), list, { choose: (n) => changeToken(n).catch(() => {}), title: (n) => `change the token at position ${n}` });
}

async function changeToken(n) {
  const found = await ask("replay", { run: run.run, position: n, token: (n * 7 + 1) % 2 });
  const top = Math.max(...found.moved, 1e-12);
  const [good, bad] = [channels(colour("--teal")), channels(colour("--red"))];
  peekText.shade((k) => `rgb(${(k < n ? bad : good).join(" ")} / ${found.moved[k] ? 0.15 + (0.75 * found.moved[k]) / top : 0})`, (k) => ({ chosen: k === n }));
  at("peek-said").textContent = found.earlier === 0
    ? `Position ${n} became “${found.label}”. No earlier output moved, not by one bit; later ones moved by up to ${readable(top)}.`
    : `Position ${n} became “${found.label}”, and earlier outputs moved by up to ${readable(found.earlier)}: the model looks ahead.`;
}
