// Write: tokens as they are generated, with the attention of each on the text, and what else it might have been.

function beginWrite() {
  at("write").onclick = () => writeAll().catch(() => {});
  at("write-stop").onclick = () => { stop("write"); };
  at("write-layer").append(make("option", { value: "mean", textContent: "all layers, mean" }));
}

async function writeAll() {
  const beside = at("beside").checked;
  const both = beside ? [false, true] : [false];
  const sheets = both.map((without) => sheetOfPaper(without));
  at("write-empty").hidden = true;
  at("pages").replaceChildren(...sheets.map((each) => each.element));
  at("write").disabled = true;
  at("write-stop").disabled = false;
  try {
    for (const [n, without_mask] of both.entries()) await writeOne(sheets[n], without_mask);
  } finally {
    if (!sheets[0].tokens.length) forgetWriting();
    at("write").disabled = false;
    at("write-stop").disabled = true;
  }
}

function forgetWriting() {
  at("pages").replaceChildren();
  at("write-note").textContent = "";
  at("write-empty").hidden = false;
}

function sheetOfPaper(without) {
  const [words, told, likely] = [make("p", { className: "tokens", textContent: "…" }), make("p", { className: "said" }), make("ol", { className: "bars" })];
  words.setAttribute("aria-live", "off");
  const element = make("div", { className: "page" }, make("h3", { textContent: without ? "without the mask" : "with the mask" }), words, told, likely);
  return { element, words, told, likely, prompt: [], tokens: [] };
}

async function writeOne(sheet, without_mask) {
  const topK = Number(at("top-k").value);
  const fields = {
    ...settings(), without_mask, temperature: at("temperature").valueAsNumber, tokens: at("new-tokens").valueAsNumber,
    seed: at("seed").valueAsNumber, stop: at("stop-text").value, ...(topK ? { top_k: topK } : {}),
  };
  const began = performance.now();
  const result = await ask("write", fields, {
    prompt: ({ labels, before, remark }) => {
      sheet.prompt = labels;
      at("write-note").textContent = [remark, before && `the last ${grouped(labels.length)} of ${grouped(before + labels.length)} tokens of the text are shown`].filter(Boolean).join(" · ");
      sheet.words.replaceChildren(...labels.map((textContent) => make("button", { type: "button", textContent, tabIndex: -1 })));
    },
    token: (token) => addToken(sheet, token),
  });
  const seconds = (performance.now() - began) / 1000;
  sheet.told.textContent = `${plural(result.tokens, "token", "tokens")} in ${seconds.toFixed(1)} s (${(result.tokens / seconds).toFixed(0)} per second); it ended by ${result.why}. Point at a token to see what it attended to, and what else it might have been.`;
}

function addToken(sheet, token) {
  const n = sheet.tokens.length;
  const numbers = Uint8Array.from(atob(token.attention), (letter) => letter.charCodeAt(0));
  token.rows = new Float32Array(numbers.buffer);
  sheet.tokens.push(token);
  const show = () => shadeBy(sheet, n);
  const button = make("button", { type: "button", className: "new", textContent: token.label, title: percent(token.probability), onclick: show, onpointerenter: show, onfocus: show });
  sheet.words.append(button);
  if (at("write-layer").options.length !== token.layers + 1) {
    at("write-layer").replaceChildren(make("option", { value: "mean", textContent: "all layers, mean" }), ...Array.from({ length: token.layers }, (_, l) => make("option", { value: l, textContent: `layer ${l}` })));
  }
  shadeBy(sheet, n);
}

// Shades the text by what token n attended to when it was chosen.
function shadeBy(sheet, n) {
  const token = sheet.tokens[n];
  const keys = token.rows.length / token.layers;
  const chosen = at("write-layer").value;
  const weight = (key) => (chosen === "mean" ? sum(Array.from({ length: token.layers }, (_, l) => token.rows[l * keys + key])) / token.layers : token.rows[Number(chosen) * keys + key]);
  const weights = Array.from({ length: keys }, (_, key) => weight(key));
  // The first token often takes nearly everything.
  const top = Math.max(...weights.slice(1), 1e-6);
  const teal = channels(colour("--teal"));
  const first = sheet.prompt.length + n - keys;
  [...sheet.words.children].forEach((button, position) => {
    const x = weights[position - Math.max(0, first)] ?? 0;
    button.style.backgroundColor = `rgb(${teal.join(" ")} / ${DEEPEST * Math.min(1, x / top)})`;
    button.classList.toggle("chosen", position === sheet.prompt.length + n);
  });
  sheet.told.textContent = `“${token.label}” had a probability of ${percent(token.probability)}.`;
  bars(sheet.likely, token.alternatives);
}
