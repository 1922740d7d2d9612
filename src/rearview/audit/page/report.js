// The report as the page has it, and small tools to make elements. Texts become text, never markup.

const report = JSON.parse(document.getElementById("report").textContent);
const at = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const { dataset, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const list = (texts) => make("ul", {}, ...texts.map((text) => make("li", { textContent: text })));
const plural = (count, one, many) => `${count} ${count === 1 ? one : many}`;
