"""`python -m tests.audit.gallery`: write docs/gallery.md from the models, with what the auditor says of them now."""

import contextlib
import inspect
import io
import re
import textwrap
from pathlib import Path
from types import ModuleType

from tests.audit.gallery import cases, parts
from tests.docs.markdown import blocks_of

PAGE = Path(__file__).parents[3] / "docs" / "gallery.md"
GROUPS = {
    "A": "a mask that is missing",
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

Bugs that well-known projects shipped, each rebuilt in a few lines with its fix, and what the auditor says of the two.
They were found by luck: a loss that was too good, odd text, a reader. `rearview.audit` finds them by looking; the
tests run every block of this page. `# here` is the line that the report names.

All use a tiny decoder around one layer that mixes positions:

```python
{parts}
```

```python
from rearview import audit, causal, documents, padding


def told(report):
    print(report.verdict.value)
    if report.place is not None:
        print(f"{{report.place.module or 'the model'}}: {{report.place.hint}}")
```
"""


def title_of(case: ModuleType) -> str:
    return (case.__doc__ or "").strip().splitlines()[0].rstrip(".")


def story_of(case: ModuleType) -> tuple[str, str, str]:
    """Where it happened, the letter of its group, and what went wrong."""
    text = " ".join((case.__doc__ or "").split("\n\n", 1)[1].split())
    found = re.match(r"(\S+#\d+) \((\w)\)\. (.*)", text)
    assert found, case.__name__
    return found[1], found[2], found[3]


def code_of(case: ModuleType) -> str:
    """The models: what stands between the place and the two audits, less the marks."""
    body = inspect.getsource(case).split("\n\n\ndef leaks()")[0]
    body = re.split(r"^PLACE = .*\n(?:LINE = .*\n)?", body, flags=re.MULTILINE)[1].strip()
    return body


def asked(case: ModuleType, name: str) -> str:
    source = inspect.getsource(getattr(case, name))
    return " ".join(source.split("return ", 1)[1].split()).replace("( ", "(").replace(" )", ")").replace(",)", ")")


def session_of(case: ModuleType, namespace: dict[str, object]) -> str:
    """The two audits and what they print, as the tests of the pages run them: one after the other, in one namespace."""
    exec(code_of(case), namespace)
    lines = []
    for name in ("leaks", "fixed"):
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(f"told({asked(case, name)})", namespace)
        lines += [f">>> told({asked(case, name)})", told.getvalue().rstrip()]
    return "\n".join(lines)


def section(case: ModuleType, namespace: dict[str, object]) -> str:
    where, letter, story = story_of(case)
    told = textwrap.fill(f"{story} ({where}; {GROUPS[letter]})", 118, break_long_words=False, break_on_hyphens=False)
    blocks = [f"```python\n{text}\n```" for text in (code_of(case), session_of(case, namespace))]
    return "\n\n".join([f"## {title_of(case)}", told, *blocks]) + "\n"


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
