// The result in one picture: the loss of each model (a ring), and its exam (a dot).

function scale(figure) {
  const wide = Math.max(300, figure.clientWidth || 900);
  const narrow = wide < 560;
  const left = narrow ? 10 : 150, right = 24, row = narrow ? 84 : 64, above = 66;
  const high = above + 2 * row + 30;
  const top = Math.max(...data.sides.flatMap((side) => [side.exam, side.atOnce]), ...data.baselines.map(([, bits]) => bits)) * 1.04;
  const toX = (bits) => left + (bits / top) * (wide - left - right);
  const said = data.sides.map((side, n) => `${NAMES[SIDES[n]]}: loss ${fixed(side.atOnce)}, exam ${fixed(side.exam)}`);
  const tables = data.baselines.map(([name, bits]) => `${name} ${fixed(bits)}`);
  const svg = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `Bits per character. ${said.join("; ")}. Baselines: ${tables.join(", ")}.` });

  const axis = above + 2 * row;
  svg.append(draw("line", { class: "axis", x1: left, x2: wide - right, y1: axis, y2: axis }));
  for (const bits of ticks(0, top, narrow ? 5 : 10)) {
    svg.append(draw("line", { class: "axis", x1: toX(bits), x2: toX(bits), y1: axis, y2: axis + 5 }));
    svg.append(draw("text", { x: toX(bits), y: axis + 19, "text-anchor": "middle" }, String(bits)));
  }
  // Names one below the other: the baselines may be close together.
  data.baselines.forEach(([name, bits], n) => {
    const y = 14 + 17 * n;
    svg.append(draw("line", { class: "table", x1: toX(bits), x2: toX(bits), y1: y + 5, y2: axis }));
    const end = toX(bits) < 130;
    svg.append(draw("text", { class: "over", x: toX(bits) + (end ? -4 : 5), y, "text-anchor": end ? "start" : "end" }, `${name} ${fixed(bits)}`));
  });
  data.sides.forEach((side, n) => {
    const y = above + row * (n + 1) - 30;
    const group = draw("g", { class: SIDES[n] });
    group.append(draw("text", { class: "name over", x: narrow ? left : left - 14, y: narrow ? y - 33 : y + 5, "text-anchor": narrow ? "start" : "end" }, NAMES[SIDES[n]]));
    const from = toX(side.atOnce), to = toX(side.exam), way = Math.sign(to - from);
    if (Math.abs(to - from) > 26) {
      group.append(draw("path", { class: "arrow", d: `M${from + 8 * way} ${y}H${to - 9 * way}m${-8 * way} -6l${8 * way} 6l${-8 * way} 6` }));
    }
    const apart = Math.abs(to - from) > 60;
    group.append(draw("circle", { class: "dot", cx: to, cy: y, r: 7 }));
    group.append(draw("circle", { class: "hollow", cx: from, cy: y, r: apart ? 6 : 3 }));
    // Near an edge a label starts, or ends, at the edge instead of running over it.
    function tell(x, text) {
      const half = 4.4 * text.length;
      const anchor = x + half > wide ? "end" : x - half < 0 ? "start" : "middle";
      const place = { end: wide - 2, start: 2, middle: x }[anchor];
      group.append(draw("text", { class: "value over", x: place, y: y - 13, "text-anchor": anchor }, text));
    }
    if (apart) {
      tell(from, `loss ${fixed(side.atOnce)}`);
      tell(to, `exam ${fixed(side.exam)}`);
    } else tell(to, `loss ${fixed(side.atOnce)}, exam ${fixed(side.exam)}`);
    svg.append(group);
  });
  figure.replaceChildren(svg);
}
