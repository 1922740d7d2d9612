// The studio as a whole: its views, the address that restores them, and the keyboard.

const VIEWS = { read: "Read", mask: "Mask", write: "Write", cut: "Cut", peek: "Peek?", compare: "Compare", learn: "Learn" };
let view = "read";

function openView(name) {
  view = name in VIEWS ? name : "read";
  for (const each of Object.keys(VIEWS)) {
    at(`view-${each}`).hidden = each !== view;
    const tab = at(`tab-${each}`);
    tab.ariaSelected = String(each === view);
    tab.tabIndex = each === view ? 0 : -1;
  }
  at("source").hidden = view === "mask" || view === "learn";
  if (view === "read") {
    at("maps-home").append(at("maps"));
    // A difference belongs to its own view.
    if (run && changed) refresh();
    else if (run) redraw();
  }
  if (view === "mask") lookAtMask();
  if (view === "cut" || view === "peek") {
    if (run && changed) refresh();
    else writeTokenTexts();
  }
  rememberAll();
}

function writeTokenTexts() {
  if (view === "cut") showCutChoices();
  if (view === "peek") showPeekText();
}

// The address restores the view, the model, the head and the text, unless it is long.
const LONGEST = 2000;
function rememberAll() {
  const words = at("input").value;
  remember({
    view, model: at("model").value, ...(words.length <= LONGEST && { text: words }),
    ...(run && { layer: state.layer, head: head().head, scale: state.scale }),
    ...(view === "mask" && { mask: at("expression").value, length: at("mask-length").value }),
  });
}

function begin() {
  const place = recalled();
  at("tabs").append(...Object.entries(VIEWS).map(([name, textContent]) => make("li", {}, make("button", {
    type: "button", id: `tab-${name}`, role: "tab", textContent, onclick: () => openView(name),
  }))));
  for (const name of Object.keys(VIEWS)) at(`tab-${name}`).setAttribute("aria-controls", `view-${name}`);
  at("tabs").addEventListener("keydown", (event) => {
    const by = ARROWS[event.key]?.[1];
    if (!by) return;
    event.preventDefault();
    const names = Object.keys(VIEWS);
    openView(names[(names.indexOf(view) + by + names.length) % names.length]);
    at(`tab-${view}`).focus();
  });
  at("model").append(...start.models.map(({ name }) => make("option", { value: name, textContent: name })));
  if (start.models.some(({ name }) => name === place.get("model"))) at("model").value = place.get("model");
  at("model").onchange = () => { if (view === "mask") lookAtMask(); refresh(); };
  at("link").onclick = async () => {
    rememberAll();
    await navigator.clipboard.writeText(location.href).then(() => tell("The address of this view was copied."), () => tell(location.href));
  };
  beginRead();
  beginMaps();
  beginWhy();
  beginMask();
  beginWrite();
  beginCut();
  beginPeek();
  beginCompare();
  beginLearn();
  if (place.has("text")) at("input").value = place.get("text");
  if (place.has("mask")) at("expression").value = place.get("mask");
  if (place.has("length")) at("mask-length").value = place.get("length");
  const wanted = place.get("view") ?? "read";
  // The maps read the head from the address when they are first shown.
  read().then(() => {}, () => {}).finally(() => {
    openView(wanted);
    document.body.dataset.ready = "";
  });
}

rememberHead = rememberAll;
onKeys({
  ...Object.fromEntries(Object.keys(VIEWS).map((name, n) => [String(n + 1), () => openView(name)])),
  Escape: closeWhy,
});

begin();
