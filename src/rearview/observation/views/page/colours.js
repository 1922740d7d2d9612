// Colour scales: linear, logarithmic, without the first key, relative to uniform attention; and changes of either sign.

const SCALES = {
  log: "log",
  linear: "linear",
  without_first: "without the first key",
  expected: "against uniform",
};
const MOST_TIMES = 32;
// The lower end of the logarithmic scale: under uniform attention over the longest row, so that exact weights of a
// long text are not all shown as nothing.
const floor = () => 10 ** -Math.max(4, Math.round(Math.log10(Math.max(...layers.map((one) => one.keys)))) + 1);

// 256 colours between a few stops, as pixels.
const pixel = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;

function table(names) {
  const stops = names.map((name) => channels(colour(name)));
  const shades = new Uint32Array(256);
  for (let n = 0; n < 256; n++) {
    const place = (n / 255) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(place));
    shades[n] = pixel(mixed(stops[low], stops[low + 1], place - low));
  }
  return shades;
}

const RAMP = ["--heat-0", "--heat-1", "--heat-2", "--heat-3", "--heat-4", "--heat-5"];
const SIDES = ["--less-3", "--less-2", "--less-1", "--even", "--more-1", "--more-2", "--more-3"];
let shades;
function mixColours() {
  shades = { ramp: table(RAMP), sides: table(SIDES), forbidden: pixel(channels(colour("--blocked"))) };
}

const twoSided = (scale) => changed || scale === "expected";

// The numbers of a sheet that a scale shows: shares, shares without the first key, or multiples of uniform attention.
function shownNumbers(scale, { map, uniform, first, left: before, columns }) {
  if (scale === "expected") return map.map((x, n) => (uniform[n] ? x / uniform[n] : 0));
  if (scale !== "without_first") return map;
  return map.map((x, n) => {
    const gone = first[Math.floor(n / columns)];
    const left = before || n % columns ? x : Math.max(0, x - gone);
    return gone < 1 ? left / (1 - gone) : 0;
  });
}

// The upper end of the scale. It depends on the head, so that a head with small weights is visible too.
function topOf(scale, values) {
  if (scale === "log" && !changed) return 1;
  if (scale === "expected") return MOST_TIMES;
  return values.reduce((most, x) => Math.max(most, Math.abs(x)), 0) || 1;
}

// A function from a number to the index of its colour, 0 to 255.
function strength(scale, top) {
  const span = Math.log(1 / floor());
  const shade = (x) => within(Math.round(255 * x), 0, 255);
  if (scale === "expected") return (x) => shade(x > 0 ? 0.5 + Math.log(x) / Math.log(MOST_TIMES) / 2 : 0);
  const log = (x) => (x > 0 ? Math.max(0, 1 + Math.log(x / top) / span) : 0);
  if (changed) return (x) => shade(0.5 + (Math.sign(x) * (scale === "log" ? log(Math.abs(x)) : Math.abs(x) / top)) / 2);
  return scale === "log" ? (x) => shade(log(x)) : (x) => shade(x / top);
}

// A sheet as a small picture with one pixel per cell. Forbidden cells have a separate colour.
function pixels(scale, sheet) {
  const { rows, columns, uniform } = sheet;
  const values = shownNumbers(scale, sheet);
  const shade = strength(scale, topOf(scale, values));
  const colours = twoSided(scale) ? shades.sides : shades.ramp;
  const picture = new OffscreenCanvas(columns, rows);
  const image = new ImageData(columns, rows);
  const words = new Uint32Array(image.data.buffer);
  for (let n = 0; n < words.length; n++) words[n] = uniform[n] > 0 || values[n] ? colours[shade(values[n])] : shades.forbidden;
  picture.getContext("2d").putImageData(image, 0, 0);
  return picture;
}

const percents = (x) => `${Number((100 * x).toPrecision(3))} %`;
function drawRamp() {
  const canvas = at("ramp");
  const wide = Math.min(260, at("board-box").clientWidth - 8);
  const pen = paper(canvas, wide, 34);
  const scale = state.scale;
  const colours = twoSided(scale) ? shades.sides : shades.ramp;
  const bar = new ImageData(256, 1);
  new Uint32Array(bar.data.buffer).set(colours);
  const strip = new OffscreenCanvas(256, 1);
  strip.getContext("2d").putImageData(bar, 0, 0);
  pen.drawImage(strip, 0, 0, wide, 12);
  pen.strokeStyle = colour("--line");
  pen.strokeRect(0.5, 0.5, wide - 1, 11);
  const top = topOf(scale, shownNumbers(scale, sheetFor(state.view)));
  const ends = changed ? [signed(-top), "no change", signed(top)]
    : scale === "expected" ? ["1/32 or less", "as uniform", "32 times"]
    : scale === "log" ? [`under ${percents(floor())}`, percents(Math.sqrt(floor())), "100 %"] : ["0", share(top / 2), share(top)];
  pen.fillStyle = colour("--quiet");
  pen.font = `11px ${colour("--sans")}`;
  ends.forEach((text, n) => {
    pen.textAlign = ["left", "center", "right"][n];
    pen.fillText(text, (wide * n) / 2, 28);
  });
  const what = changed ? "change of the share" : scale === "expected" ? "times what uniform attention would give" : "share of a query's attention";
  canvas.ariaLabel = `Colours: ${what}, from ${ends[0]} to ${ends[2]}`;
  at("legend").replaceChildren(make("li", { textContent: what }),
    swatch("forbidden", "may not be heard"));
}
