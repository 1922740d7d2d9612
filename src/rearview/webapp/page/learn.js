// Learn: the story of masked attention in steps. A card above the view tells it, and the live page does what it says.

const FOUR = ["Frank", "Emma", "Daniel", "Alex"];
// Each step with its title, its words, what the page does, and further things to try.
const TOUR = [
  ["Only look back", "Four friends recommend a restaurant, one after the other. Emma has heard Frank; Frank could not hear Emma, because he spoke first. In a decoder such as GPT every word is such a friend: a position may use those before it and itself, and no others. The grid shows who may hear whom.",
    () => showMask("causal()", 4, FOUR)],
  ["What each one hears", "The same four, with numbers: queries and keys give scores, the mask adds −∞ where nobody has spoken yet, the softmax makes shares of them, and each one's output is a blend of what was heard. Frank hears only himself; Emma listens to Frank with 98.2 %. Go through the steps, and take the mask off.",
    () => showExample("restaurant")],
  ["“I love ___”", "To predict the third word, a model may use “I” and “love”. If it could see the third word, there would be nothing left to predict. Here the chosen model reads “I love ”: every row of a map is one token and shows what it attends to, and “What comes next” is its prediction.",
    () => showText("I love ")],
  ["Five tokens, five rows", "With five tokens there are 25 pairs, and 15 of them remain: 1 + 2 + 3 + 4 + 5. The last token may hear all five, the first only itself.",
    () => showMask("causal()", 5, ["I", "love", "sushi", "very", "much"])],
  ["Why minus infinity?", "A forbidden score becomes −∞ before the softmax, because exp(−∞) is exactly 0. Setting weights to 0 after the softmax would be too late: the sum below the fraction has already heard the future. Below is the arithmetic of a pair that is forbidden: uncheck “with the mask” to see what its weight would have been.",
    () => showWhy()],
  ["GPT, BERT and T5 by their masks", "The same block is a GPT with causal(), which continues a text; a BERT with full(), which fills gaps; and a T5 with full() in its encoder and causal() in its decoder. In a prefix model the prompt hears itself in both directions.",
    () => showMask("causal()", 12), [["GPT", () => showMask("causal()", 12)], ["BERT, and the encoder of T5", () => showMask("full()", 12)], ["A prefix model", () => showMask("causal() | prefix(4)", 12)]]],
  ["Nearby words only", "A window keeps the cost from growing with the square of the length: each word hears the few before it, and perhaps the first one. Run the model under it to see what it loses.",
    () => showMask("causal() & (window(4) | prefix(1))", 16), [["With the first word", () => showMask("causal() & (window(4) | prefix(1))", 16)], ["Window only", () => showMask("causal() & window(4)", 16)], ["Chunks", () => showMask("causal() & chunks(4)", 16)]]],
  ["Without the mask", "A model that was trained to look back, and may suddenly look ahead, has never learned what to do with it. Here it writes the same prompt twice: with its mask, and without.",
    () => showWriting()],
  ["Does it peek?", "One wrong line is enough to let the future in, and the loss looks better for it. The audit tries inputs on the real kernels, runs the program on sets of who heard whom, and names the line.",
    () => { openView("peek"); at("peek").click(); }],
];
// The step of the tour that is told; null outside of it.
let step = null;

function beginLearn() {
  at("tour").append(...TOUR.map(([title, words], n) => make("li", {}, make("h3", { textContent: title }), make("p", { textContent: words.split(/(?<=\.) /)[0] }),
    make("p", {}, make("button", { type: "button", textContent: "Show it", ariaLabel: `Show step ${n + 1}: ${title}`, onclick: () => openStep(n) })))));
  at("tour-start").onclick = () => openStep(0);
  at("guide-back").onclick = () => (step ? openStep(step - 1) : leaveTour());
  at("guide-next").onclick = () => (step < TOUR.length - 1 ? openStep(step + 1) : leaveTour());
  at("guide-close").onclick = () => {
    setStep(null);
    rememberAll();
  };
}

function leaveTour() {
  setStep(null);
  openView("learn");
}

function setStep(n) {
  step = n;
  at("why-card").classList.remove("told");
  showGuide();
}

async function openStep(n) {
  setStep(within(Number.isInteger(n) ? n : 0, 0, TOUR.length - 1));
  scrollTo({ top: 0 });
  await TOUR[step][2]();
}

function showGuide() {
  at("guide").hidden = step === null;
  if (step === null) return;
  const [title, words, , more = []] = TOUR[step];
  at("h-guide").replaceChildren(make("small", { textContent: `${step + 1} of ${TOUR.length}` }), " ", title);
  at("guide-words").textContent = words;
  at("guide-more").hidden = !more.length;
  at("guide-more").replaceChildren(...more.map(([textContent, act]) => make("button", { type: "button", textContent, onclick: act })));
  at("guide-back").textContent = step ? "Back" : "All steps";
  at("guide-next").textContent = step < TOUR.length - 1 ? "Next" : "Done";
}

// The list of steps, or the page of the worked example.
function showTour() {
  const worked = step !== null && TOUR[step][0] === "What each one hears";
  at("tour-card").hidden = worked;
  at("example-card").hidden = !worked;
}

async function showExample(name) {
  openView("learn");
  const { page, title } = await ask("example", { name });
  at("h-example").textContent = title;
  at("example-save").onclick = () => savePage(page);
  at("example-frame").replaceChildren(framedPage(page, title));
}

function showMask(expression, length, names = null) {
  at("expression").value = expression;
  at("mask-length").value = length;
  [maskNames, maskCell] = [names, null];
  openView("mask");
}

async function showText(words) {
  at("input").value = words;
  openView("read");
  await refresh();
}

// The last token but one is a query that may not hear the last. Its arithmetic stands above the maps.
async function showWhy() {
  openView("read");
  if (!at("input").value) at("input").value = "I love sushi";
  if (!isRead()) await refresh();
  const one = layer();
  const query = Math.max(one.start, one.start + one.queries - 2);
  at("why-card").classList.add("told");
  goTo(query, Math.min(one.keys - 1, query + 1));
  await asked;
}

function showWriting() {
  at("beside").checked = true;
  openView("write");
  at("write").click();
}
