// A chart of lines over a common axis; the pointer or the arrow keys select values, which are shown.

function chart(figure, { label, axis, lines, dots = [], unit, levels = [] }) {
  const wide = Math.max(280, figure.clientWidth || 480);
  const high = 260;
  const edge = { left: 34, right: 12, top: 12, bottom: 34 };
  const xs = lines.flatMap((line) => line.points.map(([x]) => x));
  const first = Math.min(...xs), last = Math.max(...xs);
  const top = Math.max(...[...lines, ...dots].flatMap((line) => line.points.map(([, y]) => y))) * 1.05;
  const toX = (x) => edge.left + ((x - first) / Math.max(last - first, 1e-9)) * (wide - edge.left - edge.right);
  const toY = (y) => high - edge.bottom - (y / top) * (high - edge.top - edge.bottom);

  const svg = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", tabindex: "0", "aria-label": label });
  for (const y of ticks(0, top, 5)) {
    svg.append(draw("line", { class: "axis", x1: edge.left, x2: wide - edge.right, y1: toY(y), y2: toY(y) }));
    svg.append(draw("text", { x: edge.left - 6, y: toY(y) + 4, "text-anchor": "end" }, String(y)));
  }
  for (const x of ticks(first, last, 5)) {
    svg.append(draw("text", { x: toX(x), y: high - edge.bottom + 16, "text-anchor": "middle" }, String(x)));
  }
  svg.append(draw("text", { x: wide - edge.right, y: high - 2, "text-anchor": "end" }, axis));
  const known = levels.filter(([, y]) => y <= top);
  for (const [, y] of known) svg.append(draw("line", { class: "table", x1: edge.left, x2: wide - edge.right, y1: toY(y), y2: toY(y) }));
  for (const line of lines) {
    const path = line.points.map(([x, y], n) => `${n ? "L" : "M"}${fixed(toX(x))} ${fixed(toY(y))}`).join("");
    svg.append(draw("path", { class: `curve ${line.side}`, d: path }));
  }
  for (const line of dots) {
    for (const [x, y] of line.points) svg.append(draw("circle", { class: `dot ${line.side}`, cx: toX(x), cy: toY(y), r: 3 }));
  }
  for (const [name, y] of known) svg.append(draw("text", { class: "over", x: edge.left + 4, y: toY(y) - 4 }, name));
  const cursor = draw("line", { class: "cursor", y1: edge.top, y2: high - edge.bottom, visibility: "hidden" });
  svg.append(cursor);
  const tip = make("div", { className: "tip", hidden: true });
  tip.setAttribute("aria-live", "polite");
  figure.replaceChildren(svg, tip);

  let chosen = null;
  function choose(n) {
    const points = lines[0].points;
    chosen = Math.max(0, Math.min(points.length - 1, n));
    const x = points[chosen][0];
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, toX(x));
    cursor.setAttribute("visibility", "visible");
    tip.hidden = false;
    tip.replaceChildren(
      make("b", { textContent: `${axis} ${Math.round(x)}` }),
      ...lines.map((line) => make("div", { className: line.side, textContent: `${NAMES[line.side]} ${fixed(line.points[chosen][1], 3)} ${unit}` })),
    );
    const place = (toX(x) / wide) * figure.clientWidth;
    tip.style.left = `${Math.max(0, Math.min(figure.clientWidth - tip.offsetWidth, place + (place > figure.clientWidth / 2 ? -tip.offsetWidth - 10 : 10)))}px`;
  }
  function leave() {
    chosen = null;
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * wide;
    const away = lines[0].points.map(([value]) => Math.abs(toX(value) - x));
    choose(away.indexOf(Math.min(...away)));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const count = lines[0].points.length;
    const to = { ArrowLeft: (chosen ?? count) - 1, ArrowRight: (chosen ?? -1) + 1, Home: 0, End: count - 1 }[event.key];
    if (event.key === "Escape") leave();
    if (to === undefined) return;
    choose(to);
    event.preventDefault();
  });
}
