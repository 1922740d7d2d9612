// The report as the page has it, and small tools of its own.

const report = JSON.parse(document.getElementById("report").textContent);
const at = (id) => document.getElementById(id);

const list = (texts) => make("ul", {}, ...texts.map((text) => make("li", { textContent: text })));
const plural = (count, one, many) => `${count} ${count === 1 ? one : many}`;
