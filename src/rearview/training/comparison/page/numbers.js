// What the page carries, and the small things that all of its drawings use.
// The files of this folder are joined into one module: numbers.js, chart.js, scale.js, maps.js, page.js.

const data = JSON.parse(document.getElementById("data").textContent);
const SIDES = ["with", "without"];
const NAMES = { with: "with the mask", without: "without the mask" };
const at = (id) => document.getElementById(id);

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const fixed = (x, digits = 2) => x.toFixed(digits);
const percent = (share, digits = 1) => `${fixed(100 * share, digits)} %`;

// Round numbers between 0 and the top, about as many as asked for.
function ticks(top, count) {
  const rough = top / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, n) => Math.round(n * step * 1e9) / 1e9);
}
