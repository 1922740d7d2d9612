"""A Comparison as a page: one file that needs no network.

Text and tables are part of the page, so that they can be read and printed without scripts; scripts draw the curves and
the maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from rearview.comparison.conclusion import CLAIM, OUTCOMES, conclusion_of
from rearview.comparison.result import Comparison, Side
from rearview.drawing.cells import counted, harmless
from rearview.drawing.html import as_text, seal

TITLE = "With the mask, and without it"
SCRIPTS = ("numbers.js", "chart.js", "scale.js", "maps.js", "page.js")
# The most points of a curve; each is the mean over equally many steps.
POINTS = 300


def to_html(comparison: Comparison) -> str:
    """The page as text."""
    conclusion = conclusion_of(comparison)
    slots = {
        "headline": _text(conclusion.headline),
        "claim": _text(CLAIM),
        "outcome": _text(OUTCOMES[conclusion.claim]),
        "kind": conclusion.claim.replace(" ", "-"),
        "loss": _text(conclusion.loss),
        "exam": _text(conclusion.exam),
        "writing": _text(conclusion.writing),
        "attention": _text(conclusion.attention),
        "table": _table(comparison),
        "samples": _samples(comparison),
        "conditions": _conditions(comparison),
        "command": _text(comparison.conditions.command),
        "check": f"{comparison.self_check:.1g}",
        "windows": f"{comparison.conditions.exam_windows}",
        "token": comparison.conditions.token,
    }
    package = "rearview.comparison"
    return seal(package, scripts=SCRIPTS, title=TITLE, data=page_data(comparison), slots=slots)


def page_data(comparison: Comparison) -> dict[str, object]:
    """The data that the scripts draw."""
    known = comparison.baselines
    tables = [["table of pairs", known.pairs], ["single " + comparison.conditions.token + "s", known.singles]]
    return {
        "token": comparison.conditions.token,
        "steps": comparison.with_mask.training[-1][0],
        "sides": [_side(comparison.with_mask), _side(comparison.without_mask)],
        "baselines": [[name, bits] for name, bits in [*tables, ["uniform guessing", known.even]] if bits is not None],
        "shown": list(comparison.shown),
    }


def thinned(points: Sequence[tuple[int, float]], most: int = POINTS) -> list[tuple[float, float]]:
    """At most `most` points, each the mean of equally many.

    >>> thinned([(1, 4.0), (2, 2.0), (3, 1.0), (4, 0.0)], 2)
    [(1.5, 3.0), (3.5, 0.5)]
    """
    count = min(most, len(points))
    edges = [n * len(points) // count for n in range(count + 1)]
    groups = [points[a:b] for a, b in pairwise(edges)]
    return [(_mean([step for step, _ in group]), _mean([loss for _, loss in group])) for group in groups]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _side(side: Side) -> dict[str, object]:
    return {
        "training": thinned(side.training),
        "validation": side.validation,
        "atOnce": side.at_once.bits,
        "exam": side.exam.bits,
        "byPrefix": side.exam_by_prefix,
        "weights": side.attention.weights,
        "toAnswer": side.attention.to_answer,
    }


def _table(comparison: Comparison) -> str:
    token = comparison.conditions.token
    rows: list[tuple[str, str, Callable[[Side], float | None], str]] = [
        ("Final training loss", "nats per token", lambda side: side.final_loss, ".3f"),
        ("Held-out text, read at once", "bits per character", lambda side: side.at_once.bits, ".3f"),
        ("Exam: from the prefix alone", "bits per character", lambda side: side.exam.bits, ".3f"),
        (f"Next {token} predicted, text read at once", "", lambda side: side.at_once.right, "%"),
        (f"Next {token} predicted, in the exam", "", lambda side: side.exam.right, "%"),
        ("Generated words that occur in the training text", "", lambda side: side.writing.known_words, "%"),
        ("Repetition in the generated text", "", lambda side: side.writing.repeated, "%"),
        (f"Attention to the next {token}", "", lambda side: side.attention.mean_to_answer, "%"),
    ]
    lines = []
    for name, unit, value, form in rows:
        cells = "".join(
            f"<td>{_number(value(side), form)}</td>" for side in (comparison.with_mask, comparison.without_mask)
        )
        small = f" <small>{unit}</small>" if unit else ""
        mark = ' class="mark"' if name.startswith("Exam") else ""
        lines.append(f'<tr{mark}><th scope="row">{_text(name)}{small}</th>{cells}</tr>')
    return "\n".join(lines)


def _samples(comparison: Comparison) -> str:
    ours, theirs = comparison.with_mask.writing.texts, comparison.without_mask.writing.texts
    real = comparison.continuations.texts
    blocks = []
    for prompt, *texts in zip(comparison.prompts, ours, theirs, real, strict=True):
        names = ("with the mask", "without the mask", "the real continuation")
        kinds = ("with", "without", "real")
        columns = "".join(
            f'<div class="{kind}"><h3>{name}</h3><p class="text"><b>{_text(prompt)}</b>{_text(text)}</p></div>'
            for kind, name, text in zip(kinds, names, texts, strict=True)
        )
        blocks.append(f'<div class="sample">{columns}</div>')
    return "\n".join(blocks)


def _conditions(comparison: Comparison) -> str:
    known = comparison.conditions
    settings = known.settings
    size = f"{counted(settings.layers, 'layer', 'layers')}, {counted(settings.heads, 'head', 'heads')}"
    rows = {
        "Text": f"{known.text}: {known.characters:,} characters in {counted(known.documents, 'document', 'documents')} "
        f"(SHA-256 {known.fingerprint[:12]})",
        "Tokens": f"{known.tokenizer}, {known.vocab_size:,} different ones",
        "Model": f"GPT, {known.parameters:,} parameters: {size}, width {settings.width}, context "
        f"{settings.context}, {settings.positions} positions",
        "Masks": f"{comparison.with_mask.mask} and {comparison.without_mask.mask}; the first weights and the "
        "batches are the same",
        "Training": f"{settings.steps:,} steps of {settings.rows} rows, AdamW, learning rate {settings.lr:g}, "
        f"seed {settings.seed}, {known.precision}, {counted(known.threads, 'thread', 'threads')}",
        "Exam": f"{known.exam_windows} windows of {settings.context} tokens, float32; the standard error of the "
        f"difference is {comparison.exam_error:.2f} bits per character",
        "Generation": f"one token at a time, temperature {settings.temperature:g}, the same seeds for both",
        "Versions": ", ".join(f"{name} {version}" for name, version in known.versions.items()),
    }
    return "\n".join(f"<dt>{name}</dt><dd>{_text(value)}</dd>" for name, value in rows.items())


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "no words"
    if form == "%":
        return f"{100 * value:.1f} %" if value else "0"
    return f"{value:{form}}"


def _text(text: str) -> str:
    # A number and its sign stay together.
    return as_text(harmless(text, keep="\n\t").replace(" %", "\N{NO-BREAK SPACE}%"))
