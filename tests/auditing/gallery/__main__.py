"""`python -m tests.auditing.gallery` writes docs/gallery.md from the models, with the current output of the auditor."""

import contextlib
import inspect
import io
import re
import textwrap
from pathlib import Path
from types import ModuleType

from tests.auditing.gallery import cases, parts
from tests.docs.markdown import blocks_of

PAGE = Path(__file__).parents[3] / "docs" / "gallery.md"
GROUPS = {
    "A": "a missing mask",
    "B": "polarity",
    "C": "alignment",
    "D": "a finite mask",
    "E": "the wrong axis",
    "F": "statistics over time",
    "G": "convolutions and filters",
    "H": "shifts",
    "I": "routing and pooling",
    "J": "recurrence and chunks",
    "K": "kernels",
    "L": "packed documents",
    "M": "padding",
    "N": "cache and length",
    "O": "labels",
}
INTRODUCTION = """# Gallery of leaks

Bugs that well-known projects shipped. Each is rebuilt in a few lines, with its fix and with what the auditor says about
both. They were found by chance: by a loss that was too good, by odd text, by a reader of the code. The auditor finds
them by experiment. The tests run every block of this page. `# here` marks the line that the report names.

All of them use a tiny decoder around one layer that mixes positions:

```python
{parts}
```

```python
from rearview import audit, causal, documents, padding


def show(report):
    print(report.verdict.value)
    if report.place is not None:
        print(f"{{report.place.module or 'the model'}}: {{report.place.hint}}")
```
"""


def title_of(case: ModuleType) -> str:
    return (case.__doc__ or "").strip().splitlines()[0].rstrip(".")


def story_of(case: ModuleType) -> tuple[str, str, str]:
    """The issue, the letter of the group, and what went wrong."""
    text = " ".join((case.__doc__ or "").split("\n\n", 1)[1].split())
    found = re.match(r"(\S+#\d+) \((\w)\)\. (.*)", text)
    assert found, case.__name__
    return found[1], found[2], found[3]


def code_of(case: ModuleType) -> str:
    """The source of the models, without the constants before it and the audits after it."""
    body = inspect.getsource(case).split("\n\n\ndef leaks()")[0]
    body = re.split(r"^PLACE = .*\n(?:LINE = .*\n)?", body, flags=re.MULTILINE)[1].strip()
    return body


def audit_call_of(case: ModuleType, name: str) -> str:
    source = inspect.getsource(getattr(case, name))
    return " ".join(source.split("return ", 1)[1].split()).replace("( ", "(").replace(" )", ")").replace(",)", ")")


def session_of(case: ModuleType, namespace: dict[str, object]) -> str:
    """The two audits and what they print; the tests of the documentation run all of them in one namespace."""
    exec(code_of(case), namespace)
    lines = []
    for name in ("leaks", "fixed"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(f"show({audit_call_of(case, name)})", namespace)
        lines += [f">>> show({audit_call_of(case, name)})", printed.getvalue().rstrip()]
    return "\n".join(lines)


def section(case: ModuleType, namespace: dict[str, object]) -> str:
    where, letter, story = story_of(case)
    paragraph = textwrap.fill(
        f"{story} ({where}; {GROUPS[letter]})", 118, break_long_words=False, break_on_hyphens=False
    )
    blocks = [f"```python\n{text}\n```" for text in (code_of(case), session_of(case, namespace))]
    return "\n\n".join([f"## {title_of(case)}", paragraph, *blocks]) + "\n"


def introduction() -> str:
    return INTRODUCTION.format(parts=inspect.getsource(parts).split('"""\n\n', 1)[1].strip())


def write() -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(introduction()):
        exec(block.text, namespace)
    PAGE.write_text("\n".join([introduction(), *(section(case, namespace) for case in cases())]), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    write()
