"""The pages of the reference: one per public package, with every name of its `__all__`.

>>> PACKAGES["masks"].names()[:2]
['rearview.masks.Frame', 'rearview.masks.Mask']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import rearview


@dataclass(frozen=True)
class Package:
    """A page: the module whose `__all__` it has, and names from elsewhere that belong to it."""

    module: str
    about: str
    more: Sequence[str] = ()

    def names(self) -> list[str]:
        """The full names, in the order of the page."""
        own = [f"{self.module}.{name}" for name in import_module(f"rearview.{self.module}").__all__]
        return [f"rearview.{name}" for name in [*own, *self.more]]


PACKAGES = {
    "masks": Package(
        "masks",
        "Who may hear whom: the algebra, ranges and tiles. The guide is [Masks](../masks.md).",
        [
            "masks.inspection.difference.diff",
            "masks.inspection.difference.MaskDiff",
            "masks.inspection.warning.MaskWarning",
            "masks.parser.parse",
            "drawing.text.Drawing",
        ],
    ),
    "exchange": Package(
        "masks.exchange",
        "Masks to and from other libraries. The guide is [Exchange](../exchange.md).",
    ),
    "attention": Package(
        "attention",
        "Masked attention, its plan, the layer with its cache, statistics. The guide is [attend](../attend.md).",
        ["attention.engines.Engine", "attention.engines.ENGINES"],
    ),
    "explanation": Package(
        "explanation",
        "One attention step by step. The guide is [explain](../explain.md).",
        ["explanation.input_file.explain_file", "models.explainer.explain_model"],
    ),
    "auditing": Package("auditing", "Does a model only look back? The guide is [audit](../audit.md)."),
    "testing": Package("testing", "Audits in tests. The guide is [In your tests](../audit.md#in-your-tests)."),
    "observation": Package(
        "observation", "The attention of whole models at any length. The guide is [observe](../observe.md)."
    ),
    "intervention": Package(
        "intervention",
        "Other masks in some layers and heads. The guide is [Cutting from Python](../studio.md#cutting-from-python).",
    ),
    "webapp": Package("webapp", "The studio. The guide is [The studio](../studio.md)."),
    "models": Package(
        "models",
        "GPT, BERT and T5, and their files. The guide is [Models](../models.md).",
        ["models.checkpoint.load", "models.checkpoint.save"],
    ),
    "text": Package("text", "Text to tokens and back. The guide is [Training](../train.md#text)."),
    "generation": Package("generation", "The next tokens. The guide is [Generation](../generate.md)."),
    "training": Package("training", "Training as events, and runs in folders. The guide is [Training](../train.md)."),
    "comparison": Package(
        "comparison", "The same model with and without the mask. The guide is [Compare](../compare.md)."
    ),
    "parallel": Package("parallel", "A sequence over several devices. The guide is [Parallel](../parallel.md)."),
    "transformers": Package(
        "integrations.transformers",
        "Models of transformers on `attend`. The guide is [transformers](../transformers.md).",
    ),
    "errors": Package(
        "errors",
        "Every error says what was expected, what was given, which argument it is about, and what to do.",
    ),
}


def pages() -> dict[str, str]:
    """The pages of the reference by address, the overview first."""
    return {"reference/index.md": overview(), **{f"reference/{name}.md": page(name) for name in PACKAGES}}


def overview() -> str:
    """The names that `rearview` itself exports, and the packages."""
    names = "\n".join(f"| [`{name}`][rearview.{name}] | {_summary(name)} |" for name in rearview.__all__)
    packages = "\n".join(
        f"| [`rearview.{package.module}`]({name}.md) | {package.about} |" for name, package in PACKAGES.items()
    )
    return (
        "# Python reference\n\n"
        "Everything here is public; the [changelog](../project/changelog.md) has what changes. `import rearview` needs "
        "torch only; other packages are imported when they are used.\n\n"
        f"## rearview\n\nThese names are imported from `rearview`.\n\n| name | what it is |\n|:--|:--|\n{names}\n\n"
        f"## Packages\n\n| package | what it has |\n|:--|:--|\n{packages}\n"
    )


def page(name: str) -> str:
    """The page of one package; the docstrings are filled in by mkdocstrings."""
    package = PACKAGES[name]
    blocks = "\n\n".join(f"::: {name}" for name in package.names())
    return f"# rearview.{package.module}\n\n{package.about}\n\n{blocks}\n"


def _summary(name: str) -> str:
    # The first sentence or line of what it says about itself.
    about = " ".join((getattr(rearview, name).__doc__ or "").strip().partition("\n\n")[0].split())
    return about.replace("|", "\\|")
