// Learn: the story of masked attention in steps, each of which is shown on the live page.

const TOUR = [
  ["Only look back", "Four friends order dinner, one after the other. Emma has heard Frank; Frank could not hear Emma, because he spoke first. In a decoder such as GPT every word is such a friend: position i may use the positions up to i, and no others. The grid shows who may hear whom.", "Show the mask", () => showMask("causal()", 4)],
  ["“I love ___”", "To predict the third word, the model may use “I” and “love”. If it could see the third word, there would be nothing left to predict. The model below reads these words; every row of a map is one word and shows which words it attends to.", "Read it", () => showText("I love ")],
  ["Five tokens, five rows", "With five tokens there are 25 pairs, and 15 of them remain: 1 + 2 + 3 + 4 + 5. The last token may hear all five, the first only itself.", "Show five tokens", () => showMask("causal()", 5)],
  ["Why minus infinity?", "A forbidden score becomes −∞ before the softmax, because exp(−∞) is exactly 0. A mask after the softmax would be too late: the sum below the fraction has already heard the future. Click a cell of a map to see the arithmetic, then take the check off “with the mask”.", "Show the arithmetic", () => showWhy()],
  ["GPT, BERT and T5 by their masks", "The same block is a GPT with causal(), a BERT with full(), and a T5 with full() in its encoder and causal() in its decoder. A prefix language model is in between: the prompt hears itself in both directions.", "Show a prefix", () => showMask("causal() | prefix(4)", 12)],
  ["Nearby words only", "A window keeps the cost from growing with the square of the length: each word hears the few before it, and perhaps the first one.", "Show a window", () => showMask("causal() & (window(4) | prefix(1))", 16)],
  ["Without the mask", "A model that was trained to look back, and is then allowed to look ahead, has never learned what to do with it. Watch it write with its mask, and without.", "Let it write", () => showWriting()],
  ["Does it peek?", "One wrong line is enough to let the future in, and the loss looks better for it. The audit tries inputs on the real kernels, runs the program on sets of who heard whom, and names the line.", "Audit the model", () => { openView("peek"); at("peek").click(); }],
];

function beginLearn() {
  at("tour").append(...TOUR.map(([title, words, action, act], n) => {
    const item = make("li", {}, make("h3", { textContent: title }), make("p", { textContent: words }), make("p", {}, make("button", { type: "button", textContent: action, onclick: () => { mark(n); act(); } })));
    return item;
  }));
}

const mark = (n) => [...at("tour").children].forEach((item, k) => item.classList.toggle("now", k === n));

function showMask(expression, length) {
  at("expression").value = expression;
  at("mask-length").value = length;
  openView("mask");
}

async function showText(words) {
  at("input").value = words;
  openView("read");
  await refresh();
}

async function showWhy() {
  openView("read");
  if (!run || changed) await refresh();
  const one = layer();
  const query = one.start + one.queries - 1;
  goTo(query, Math.max(0, query - 1));
  at("why-card").scrollIntoView({ block: "start" });
}

function showWriting() {
  at("beside").checked = true;
  openView("write");
  at("write").click();
}
