// The two models, SVG elements and the format of numbers.

const SIDES = ["with", "without"];
const NAMES = { with: "with the mask", without: "without the mask" };

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const fixed = (x, digits = 2) => x.toFixed(digits);
const percent = (share, digits = 1) => `${fixed(100 * share, digits)} %`;
