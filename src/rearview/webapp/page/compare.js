// Compare: two models, checkpoints or masks over the same text.

function beginCompare() {
  for (const id of ["compare-first", "compare-second"]) at(id).append(...start.models.map(({ name }) => make("option", { value: name, textContent: name })));
  at("compare").onclick = () => compareModels().catch(() => {});
  const steps = start.models.filter((each) => each.step !== null);
  at("steps-row").hidden = steps.length < 2;
  at("steps").max = Math.max(0, steps.length - 1);
  at("steps").value = at("steps").max;
  const show = () => { at("step-name").textContent = steps.length ? `${grouped(steps[at("steps").value].step)}, compared with the first checkpoint` : ""; };
  at("steps").addEventListener("input", show);
  at("steps").addEventListener("change", () => {
    at("compare-first").value = steps[0].name;
    at("compare-second").value = steps[at("steps").value].name;
    compareModels().catch(() => {});
  });
  show();
}

async function compareModels() {
  const fields = {
    text: at("input").value, model: at("compare-first").value, other: at("compare-second").value,
    mask: at("compare-first-mask").value, other_mask: at("compare-second-mask").value, replace: at("compare-replace").checked,
  };
  const answer = await ask("compare", fields, { progress: progress("Reading") });
  at("compare-maps").append(at("maps"));
  await showRun(answer);
  const { first, second } = answer;
  const line = (name, one) => make("li", {}, make("b", { textContent: one.name }), one.loss === undefined ? "" : ` · loss ${one.loss.toFixed(4)}`, one.next ? ` · next: ${one.next.slice(0, 4).map(({ label, probability }) => `“${label}” ${percent(probability)}`).join(", ")}` : "");
  at("compared-said").replaceChildren(make("ul", {}, line("First", first), line("Second", second)), make("p", { className: "sub", textContent: answer.remark }));
}
