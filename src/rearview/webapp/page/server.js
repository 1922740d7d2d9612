// Requests to the studio: jobs, whose answers are streams of events, and numbers as bytes.

// What the page was told when it was opened; `data` is replaced by what the maps show.
const start = data;
const headers = start.session ? { Authorization: `Bearer ${start.session}` } : {};

// The latest job of each kind: a newer one of the same kind cancels it.
const running = new Map();

// Runs a job and returns its result. `on` has a function for each event that the job may send on the way.
async function ask(task, fields, on = {}) {
  running.get(task)?.abort();
  const control = new AbortController();
  running.set(task, control);
  busy();
  try {
    const answer = await fetch(`/api/jobs/${task}`, {
      method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(fields), signal: control.signal,
    });
    if (!answer.ok) throw new Error((await answer.json()).error);
    for await (const [name, value] of events(answer.body)) {
      if (name === "error") throw new Error(value);
      if (name === "result") return value;
      on[name]?.(value);
    }
    throw new Error("The studio has stopped.");
  } catch (error) {
    if (error.name === "AbortError") throw error;
    tell(error instanceof TypeError ? "The studio does not answer. Is it still running?" : error.message, true);
    throw error;
  } finally {
    if (running.get(task) === control) running.delete(task);
    busy();
  }
}

const stop = (task) => running.get(task)?.abort();

// The events of a stream, as [name, value].
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [name, content] = part.split("\ndata: ");
      yield [name.slice("event: ".length), JSON.parse(content)];
    }
  }
}

// The bytes at an address. A newer request of the same name takes the place of one that is under way.
async function bytes(path, fields = {}, name = path) {
  running.get(name)?.abort();
  const control = new AbortController();
  running.set(name, control);
  const answer = await fetch(`${path}?${new URLSearchParams(fields)}`, { headers, signal: control.signal }).finally(() => {
    if (running.get(name) === control) running.delete(name);
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer.arrayBuffer();
}

// The address of a page in one file. A frame and a download cannot send headers, so in a notebook it has the session.
const pageAddress = (number, fields = {}) => `/api/pages/${number}?${new URLSearchParams({ ...(start.session && { session: start.session }), ...fields })}`;
const savePage = (number) => make("a", { href: pageAddress(number, { save: 1 }), download: "" }).click();
const framedPage = (number, title) => make("iframe", { title, sandbox: "allow-scripts", src: pageAddress(number) });

// A message about an expression has a caret below the place, which needs letters of one width.
function say(element, words) {
  element.textContent = words;
  element.classList.toggle("pointing", /^ *\^$/m.test(words));
}

// A message in the corner: an error stays until the next one or until another view is opened, anything else goes away with the job.
let message = "";
function tell(words, isError = false) {
  message = words;
  say(at("status"), words);
  at("status").classList.toggle("error", isError);
  at("status").hidden = !words;
}

const DOING = { read: "Reading …", open: "Drawing …", save: "Writing the page …", why: "Computing …", steps: "Computing every step …", example: "Computing every step …", mask: "Looking at the mask …", write: "Writing …", cut: "Reading without it …", rank: "Taking away one after the other …", peek: "Auditing …", compare: "Reading twice …", replay: "Reading again …" };
function busy() {
  const names = [...running.keys()].filter((name) => name in DOING);
  document.body.dataset.busy = names.join(" ");
  if (names.length) tell(DOING[names.at(-1)]);
  else if (Object.values(DOING).includes(message) || message.endsWith("…")) tell("");
}

const progress = (words) => ({ done, of: total }) => tell(`${words} ${done} of ${total} …`);
const percent = (x) => share(x);
const readable = (x) => (Math.abs(x) >= 1e4 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(2) : String(Number(x.toPrecision(4)))).replace("-", "−");

// Tokens with their probabilities as bars.
function bars(element, rows) {
  const top = Math.max(...rows.map((row) => Math.max(row.probability ?? row.after, row.before ?? 0)), 1e-9);
  element.replaceChildren(...rows.map(({ label, probability, before, after }) => {
    const [now, lines] = [probability ?? after, make("span")];
    const line = (x, className) => {
      const bar = make("i", { className });
      bar.style.width = `${(100 * x) / top}%`;
      return bar;
    };
    if (before !== undefined) lines.append(line(before, "before"));
    lines.append(line(now, ""));
    return make("li", {}, make("code", { textContent: label, title: label }), lines,
      make("span", { className: "number", textContent: before === undefined ? percent(now) : `${percent(before)} → ${percent(now)}` }));
  }));
}
