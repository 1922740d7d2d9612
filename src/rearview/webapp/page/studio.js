// The studio as a whole: its views, the address that restores them, and the keyboard.

// Each view with its name, and the controls that the address remembers.
const VIEWS = {
  read: ["Read", ["surprise"]],
  mask: ["Mask", ["expression", "mask-length", "mask-layer", "mask-replace"]],
  write: ["Write", ["temperature", "top-k", "new-tokens", "seed", "stop-text", "beside"]],
  cut: ["Cut", []],
  peek: ["Peek?", ["contract"]],
  compare: ["Compare", ["compare-first", "compare-first-mask", "compare-second", "compare-second-mask", "compare-replace"]],
  learn: ["Learn", []],
};
let view = "read";

function openView(name) {
  view = name in VIEWS ? name : "read";
  for (const each of Object.keys(VIEWS)) {
    at(`view-${each}`).hidden = each !== view;
    const tab = at(`tab-${each}`);
    tab.ariaSelected = String(each === view);
    tab.tabIndex = each === view ? 0 : -1;
  }
  // On a phone, the row of tabs can be scrolled.
  const { offsetLeft, offsetWidth } = at(`tab-${view}`);
  at("tabs").scrollLeft = offsetLeft - at("tabs").offsetLeft - (at("tabs").clientWidth - offsetWidth) / 2;
  at("source").hidden = view === "mask" || view === "learn";
  at("why-go").hidden = true;
  if (view === "read") {
    at("maps-home").append(at("maps"));
    if (elsewhere) refresh();
    else if (run) redraw();
  }
  if (view === "mask") {
    showMaskLayers();
    lookAtMask();
  }
  if (view === "cut" || view === "peek") {
    if (elsewhere) refresh();
    else writeTokenTexts();
  }
  if (view === "learn") showTour();
  rememberAll();
}

// A view that a person opens; what went wrong in the view before is no longer shown.
function goToView(name) {
  tell("");
  busy();
  openView(name);
}

function writeTokenTexts() {
  if (view === "cut") showCutChoices();
  if (view === "peek") showPeekText();
}

// The value of a control, and the one that it has when the page opens.
const valueOf = (control) => (control.type === "checkbox" ? (control.checked ? "1" : "") : control.value);
const firstValueOf = (control) => (control.type === "checkbox" ? (control.defaultChecked ? "1" : "")
  : control.options ? ([...control.options].find((option) => option.defaultSelected) ?? control.options[0])?.value : control.defaultValue);

// The address restores the view, what was chosen in it, the model, the head and the text, unless it is long.
const LONGEST = 2000;
let opened = false;
function rememberAll() {
  if (!opened) return;
  const words = at("input").value;
  const controls = VIEWS[view][1].map(at).filter((control) => valueOf(control) !== firstValueOf(control));
  remember({
    view, model: at("model").value, ...(words.length <= LONGEST && { text: words }),
    ...(run && { layer: state.layer, head: head().head, scale: state.scale }),
    ...(view === "read" && run && placeInMap()),
    ...cutFields(),
    ...(view === "compare" && compared && { compared: side }),
    ...(step !== null && { step: step + 1 }),
    ...Object.fromEntries(controls.map((control) => [control.id, valueOf(control)])),
  });
}

let remembering = null;
function rememberSoon() {
  clearTimeout(remembering);
  remembering = setTimeout(rememberAll, 300);
}

function recallControls(place) {
  for (const control of VIEWS[place.get("view") ?? "read"]?.[1].map(at) ?? []) {
    if (!place.has(control.id)) continue;
    if (control.type === "checkbox") control.checked = place.get(control.id) === "1";
    else control.value = place.get(control.id);
  }
}

// Shows what an address asks for, after the text was read.
async function recallView(place) {
  const wanted = place.get("view") ?? "read";
  if (place.has("step")) return openStep(Number(place.get("step")) - 1);
  openView(wanted);
  if (view === "read" && run) recallPlace(place);
  if (view === "cut" && run?.next) await recallCuts(place);
  if (view === "compare" && place.has("compared")) {
    side = place.get("compared");
    await compareModels();
  }
}

async function begin() {
  const place = recalled();
  at("tabs").append(...Object.entries(VIEWS).map(([name, [textContent]]) => make("button", {
    type: "button", id: `tab-${name}`, role: "tab", textContent, onclick: () => goToView(name),
  })));
  for (const name of Object.keys(VIEWS)) at(`tab-${name}`).setAttribute("aria-controls", `view-${name}`);
  at("tabs").addEventListener("keydown", (event) => {
    const by = ARROWS[event.key]?.[1];
    if (!by) return;
    event.preventDefault();
    const names = Object.keys(VIEWS);
    goToView(names[(names.indexOf(view) + by + names.length) % names.length]);
    at(`tab-${view}`).focus();
  });
  // A plain link would put itself into the address.
  at("skip").onclick = (event) => {
    event.preventDefault();
    at("main").focus();
  };
  at("model").append(...start.models.map(({ name }) => make("option", { value: name, textContent: name })));
  if (start.models.some(({ name }) => name === place.get("model"))) at("model").value = place.get("model");
  at("model").onchange = () => {
    if (view === "mask") lookAtMask();
    forgetWriting();
    refresh().then(() => view === "mask" && showMaskLayers());
  };
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
  recallControls(place);
  document.addEventListener("change", rememberSoon);
  // The maps read the head from the address when they are first shown.
  await read().catch(() => {});
  opened = true;
  await recallView(place)?.catch(() => {});
  document.body.dataset.ready = "";
}

rememberHead = rememberAll;
onKeys(Object.fromEntries(Object.keys(VIEWS).map((name, n) => [String(n + 1), () => goToView(name)])));

begin();
