// The page on paper: every step of the chosen head under each other, with the mask and, where it differs, without it.

function onPaper(stage) {
  const views = [["with", stage.without ? "with the mask" : ""], ...(stage.without ? [["without", "without the mask"]] : [])];
  return make("section", {},
    make("h2", { className: stage.key === "mask" ? "code" : "" }, ...(stage.key === "mask" ? [stage.with.formula] : formula(stage.with.formula))),
    make("p", { textContent: stage.with.sentence }),
    make("div", { className: "views" }, ...views.map(([which, caption]) => tableOnPaper(stage, matrixOf(stage.key, which), caption))));
}

function tableOnPaper(stage, matrix, caption) {
  const write = writerOf(matrix, shown);
  const heading = (scope) => (textContent) => make("th", { scope, textContent });
  const line = (row, i) => make("tr", {}, heading("row")(stage.rows[i]), ...row.map((x) => make("td", { textContent: write(x) })));
  return make("table", {}, make("caption", { textContent: caption }),
    make("thead", {}, make("tr", {}, make("td"), ...stage.columns.map(heading("col")))),
    make("tbody", {}, ...matrix.map(line)));
}

const writePaper = () => at("paper").replaceChildren(...trace.stages.map(onPaper));
const clearPaper = () => at("paper").replaceChildren();
