// The page as a whole: the charts, again when the room changes, and the maps.

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
    label: "Bits a character in the exam, by the length of the prefix",
    axis: "prefix",
    unit: "bits",
    lines: lines((side) => side.byPrefix.map((bits, n) => [n + 1, bits])),
    levels: data.baselines,
  });
}

let room = document.body.clientWidth;
window.addEventListener("resize", () => {
  // A phone's bars come and go: only another width is another room.
  if (document.body.clientWidth === room) return;
  room = document.body.clientWidth;
  drawCharts();
});
// Canvases have no style: in another light they are painted again.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawHeard);
drawCharts();
beginMaps();
