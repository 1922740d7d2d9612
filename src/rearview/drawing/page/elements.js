// What every page uses: its data, elements, colours, canvases, keys and the address. The scripts of a page are joined
// into one module that begins with this file.

const at = (id) => document.getElementById(id);
// A page that can load other data assigns it here.
let data = JSON.parse(at("data").textContent);

// Text from the data is set as textContent, never as markup.
function make(tag, properties = {}, ...children) {
  const { dataset, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const list = (texts) => make("ul", {}, ...texts.map((textContent) => make("li", { textContent })));
const swatch = (kind, text) => make("li", {}, make("i", { className: `swatch ${kind}` }), text);
const plural = (count, one, many) => `${count} ${count === 1 ? one : many}`;
const sum = (numbers) => numbers.reduce((total, x) => total + x, 0);
const within = (x, low, high) => Math.max(low, Math.min(high, x));

// The colours of palette.py, cached because a canvas needs them for every stroke.
const palette = new Map();
function colour(name) {
  if (!palette.has(name)) palette.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return palette.get(name);
}
const channels = (hex) => [1, 3, 5].map((n) => parseInt(hex.slice(n, n + 2), 16));
// The colour between two others, as red, green and blue: `share` is 0 for the first and 1 for the second.
const mixed = (from, to, share) => from.map((x, n) => Math.round(x + (to[n] - x) * share));

// The context of a canvas that is resized to this size in CSS pixels, at the resolution of the screen.
function paper(canvas, wide, high) {
  const sharp = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.round(wide * sharp), height: Math.round(high * sharp) });
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  const pen = canvas.getContext("2d");
  pen.scale(sharp, sharp);
  pen.imageSmoothingEnabled = false;
  return pen;
}

// Calls resized() when the width of the page changes, and recoloured() when the theme changes between light and dark,
// because a canvas keeps its old pixels.
function onChange(resized, recoloured = resized) {
  let width = document.body.clientWidth;
  window.addEventListener("resize", () => {
    // The toolbars of a phone's browser change only the height.
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    resized();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    palette.clear();
    recoloured();
  });
}

// Calls actions[key]() for a key that is pressed anywhere on the page, unless an element has handled it, it is typed
// into a form field, or it has a modifier.
function onKeys(actions) {
  document.addEventListener("keydown", (event) => {
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("select, input, textarea") || !Object.hasOwn(actions, key)) return;
    event.preventDefault();
    actions[key]();
  });
}

// The state of the page is in its address, so that it can be shared: #step=weights&head=1
const recalled = () => new URLSearchParams(location.hash.slice(1));
function remember(fields) {
  // A frame in a notebook has no address.
  if (location.protocol !== "about:") history.replaceState(null, "", `#${new URLSearchParams(fields)}`);
}

// About `count` round numbers from low to high.
function ticks(low, high, count, least = 0) {
  const rough = Math.max((high - low) / Math.max(1, count), least, Number.MIN_VALUE);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? 10 * power;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - first + 1) }, (_, n) => Math.round((first + n) * step * 1e9) / 1e9);
}
