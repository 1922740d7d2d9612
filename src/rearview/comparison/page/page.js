// The whole page: the charts, redrawn when the size changes, and the maps.

function drawCharts() {
  scale(at("scale"));
  const lines = (points) => data.sides.map((side, n) => ({ side: SIDES[n], points: points(side) }));
  chart(at("loss"), {
    label: "Training loss of both models by step",
    axis: "step",
    unit: "nats",
    lines: lines((side) => side.training),
    dots: lines((side) => side.validation),
  });
  chart(at("prefix"), {
    label: "Bits per character in the exam, by the length of the prefix",
    axis: "prefix",
    unit: "bits",
    lines: lines((side) => side.byPrefix.map((bits, n) => [n + 1, bits])),
    levels: data.baselines,
  });
}

drawCharts();
beginMaps();
onChange(() => {
  drawCharts();
  drawHeard();
}, drawHeard);
