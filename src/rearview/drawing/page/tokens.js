// The most opaque shade behind a token: it can still be read, in a light and in a dark theme.
const DEEPEST = 0.5;

// A text as buttons, one per token. The text is one stop of the Tab key, and arrow keys move from token to token.
// `choose(n)` is called for a click or a key, and `point(n)` for the mouse over a token.
function tokenText(element, tokens, { choose, title, point = null }) {
  const buttons = tokens.map((textContent, n) => make("button", {
    type: "button", textContent, title: title(n), tabIndex: n ? -1 : 0, onclick: () => choose(n), ...(point && { onpointerenter: (event) => { if (event.pointerType === "mouse") point(n); } }),
  }));
  element.replaceChildren(...buttons);
  element.onkeydown = (event) => {
    const here = buttons.indexOf(event.target);
    if (!(event.key in ARROWS) || here < 0) return;
    event.preventDefault();
    const next = within(here + sum(ARROWS[event.key]), 0, buttons.length - 1);
    stopAt(next);
    buttons[next].focus();
    choose(next);
  };

  // The token that the Tab key leads to.
  function stopAt(position) {
    buttons.forEach((button, n) => { button.tabIndex = n === position ? 0 : -1; });
  }

  // `background(n)` is a colour, and `marks(n)` names the classes of token n, such as { query: true }.
  function shade(background, marks) {
    buttons.forEach((button, n) => {
      button.style.backgroundColor = background(n);
      for (const [name, on] of Object.entries(marks(n))) button.classList.toggle(name, on);
    });
  }
  return { count: buttons.length, shade, stopAt };
}
