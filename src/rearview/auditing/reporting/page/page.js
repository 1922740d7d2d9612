// The rest of the page: verdict, conditions, places, modules, checks, witnesses, proof.

const MARKS = { passed: "✓ passed", failed: "✗ failed", skipped: "– skipped", inconclusive: "? inconclusive" };

function drawVerdict() {
  at("verdict").classList.add(report.verdict);
  at("badge").textContent = report.verdict;
  for (const name of ["headline", "why", "subject", "contract"]) at(name).textContent = report[name];
  at("conditions").hidden = !report.conditions.length;
  at("conditions-title").textContent = report.verdict === "PROVEN" ? "Under these conditions" : "Conditions";
  at("conditions").querySelector("ul").replaceWith(list(report.conditions));
}

function drawPlace(place, number, places) {
  const row = (name, value) => (value ? [make("dt", { textContent: name }), make("dd", { textContent: value })] : []);
  const many = places.length > 1 ? ` ${number + 1} of ${places.length}` : "";
  const module = place.module || "the model itself";
  return make("section", { className: "card place" },
    make("h2", { textContent: `Where the leak gets in${many}` }, make("small", { textContent: place.check })),
    place.hint ? make("p", { className: "hint", textContent: `${place.hint[0].toUpperCase()}${place.hint.slice(1)}.` }) : null,
    place.source ? make("pre", {}, make("code", { textContent: place.source })) : null,
    make("dl", {},
      ...row("line", place.file ? `${place.file}:${place.line}` : ""),
      ...row("module", place.module_class ? `${module} (${place.module_class})` : module),
      ...row("op", place.op),
      ...row("also", place.also.join(", "))),
    make("p", { className: "sure", textContent: place.confirmed ? "Confirmed: the leak is gone when this place has its clean output." : place.evidence }));
}

// The tree is folded except for the paths to the leaking modules.
function drawTree() {
  const culprits = new Set(report.places.flatMap((place) => [place.module, ...place.also]));
  const children = new Map();
  for (const [path, kind] of report.modules) {
    if (!path) continue;
    const parent = path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "";
    children.set(parent, [...(children.get(parent) ?? []), [path, kind]]);
  }
  const leads = (path) => [...culprits].some((culprit) => path === "" || culprit.startsWith(`${path}.`));
  const branch = ([path, kind]) => {
    const guilty = report.places.length && culprits.has(path);
    const name = make("span", { className: guilty ? "culprit" : "", textContent: path ? path.slice(path.lastIndexOf(".") + 1) : "model" });
    const words = [name, make("span", { className: "kind", textContent: ` ${kind}` })];
    const inside = children.get(path);
    if (!inside) return make("li", {}, make("div", { className: "leaf" }, ...words));
    const shallow = path === "" || report.modules.length <= 24;
    return make("li", {}, make("details", { open: shallow || leads(path) }, make("summary", {}, ...words), make("ul", {}, ...inside.map(branch))));
  };
  const root = report.modules.find(([path]) => path === "") ?? ["", report.subject];
  at("tree-card").hidden = report.modules.length < 2;
  at("tree-note").textContent = plural(report.modules.length, "module", "modules");
  at("tree").append(make("ul", {}, branch(root)));
}

function drawChecks() {
  const count = (status) => report.checks.filter((check) => check.status === status).length;
  at("checks-note").textContent = ["passed", "failed", "inconclusive", "skipped"].filter(count).map((status) => `${count(status)} ${status}`).join(" · ");
  at("checks").querySelector("tbody").append(...report.checks.map((check) => make("tr", { className: check.status },
    make("td", { className: "status", textContent: MARKS[check.status] }),
    make("td", { className: "name", textContent: check.name }),
    make("td", { className: "why", textContent: check.why }),
    make("td", { className: "numbers", textContent: Object.entries(check.numbers).map(([name, value]) => `${name} ${value}`).join(" · ") }))));
}

function drawWitness(witness) {
  const length = Math.max(witness.before.length, witness.after.length);
  const places = Array.from({ length }, (_, n) => n);
  const cells = (values) => places.map((n) => make("td", {
    className: `${witness.before[n] !== witness.after[n] ? "changed" : ""} ${n === witness.query ? "moved" : ""}`,
    textContent: values[n] ?? "–",
  }));
  const notes = [witness.check, `item ${witness.item}`, witness.input && `input ${witness.input}`, ...witness.notes].filter(Boolean);
  return make("div", {},
    make("p", {}, witness.sentence, make("small", { textContent: notes.join(" · ") })),
    make("div", { className: "strip" }, make("table", {},
      make("tr", { className: "index" }, make("th", { textContent: "position" }), ...places.map((n) => make("td", { textContent: n }))),
      make("tr", {}, make("th", { textContent: "one input" }), ...cells(witness.before)),
      make("tr", {}, make("th", { textContent: "the other" }), ...cells(witness.after)))));
}

function drawWitnesses() {
  at("witnesses").hidden = !report.witnesses.length;
  at("witnesses").querySelector("div").append(
    make("p", { className: "key" }, make("span", { className: "changed", textContent: "changed" }), " ", make("span", { className: "moved", textContent: "its output moved" })),
    ...report.witnesses.map(drawWitness));
  // Scroll long inputs to the position that moved.
  for (const strip of at("witnesses").querySelectorAll(".strip")) {
    const moved = strip.querySelector(".moved");
    if (moved) strip.scrollLeft = moved.offsetLeft - strip.clientWidth / 2;
  }
}

function drawProof() {
  const proof = report.proof;
  at("proof").hidden = !proof;
  if (!proof) return;
  at("proof-status").textContent = `${proof.status} · ${proof.seconds.toFixed(2)} s`;
  at("proof-why").textContent = proof.why;
  const parts = [["Conditions", proof.conditions], ["Forbidden positions that may be heard", proof.violations], ["Experiments that contradict it", proof.contradictions], ["Operators without a rule", proof.unknown_ops],
    ["Values that have heard too much and decide what runs", proof.decided_ahead],
    ["Tensor values read by Python code", proof.value_escapes], ["What would settle it", proof.remedy ? [proof.remedy] : []], ["Assumptions", proof.assumptions]];
  at("proof").querySelector("div").className = "more";
  at("proof").querySelector("div").append(...parts.filter(([, texts]) => texts.length)
    .map(([title, texts]) => make("div", {}, make("h3", { textContent: title }), list(texts))));
}

function drawReplay() {
  const lines = ["from rearview.auditing import replay", 'print(replay(model, "witness.npz"))'];
  at("again").querySelector("h2").textContent = report.witnesses.length ? "Reproduce it" : "About this audit";
  at("replay").hidden = !report.witnesses.length;
  at("replay").textContent = ["# report.witness.save(\"witness.npz\"), or rearview audit ... --witness witness.npz", ...lines].join("\n");
  at("facts").textContent = report.facts.join(" · ");
  at("versions").textContent = Object.entries(report.versions).map(([name, version]) => `${name} ${version}`).join(" · ");
}

drawVerdict();
at("places").append(...report.places.map(drawPlace));
drawTree();
drawChecks();
drawWitnesses();
drawProof();
drawReplay();
document.querySelector("main").classList.toggle("single", !hears || (!report.places.length && report.modules.length < 2));
if (hears) beginHeard();
