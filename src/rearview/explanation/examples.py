"""Worked examples that are small enough to check by hand.

>>> from rearview.explanation.examples import EXAMPLES
>>> list(EXAMPLES)
['restaurant', 'love', 'five-tokens']
>>> EXAMPLES["restaurant"].trace().readings()[1].sentence
'Emma — 98.2 % Frank, 1.8 % herself'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rearview.explanation.explainer import explain
from rearview.explanation.trace import Trace
from rearview.masks import Mask


@dataclass(frozen=True)
class Example:
    """An example: its name, its title and the arguments of `explain`."""

    name: str
    title: str
    labels: tuple[str, ...]
    """The speaker or token at each position."""
    arguments: Mapping[str, Any]

    def trace(self, *, mask: Mask | None = None) -> Trace:
        """Every step. Default mask: causal()."""
        return explain(**self.arguments, labels=self.labels, title=self.title, mask=mask)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each float64 [time, dim].

        >>> from rearview import attend
        >>> query, key, value = FOUR_SPEAKERS.tensors()
        >>> [round(number, 3) for number in attend(query, key, value)[0].tolist()]    # Frank hears only himself
        [3.963, 2.121, 1.743]
        """
        trace = self.trace()
        return trace["q"].matrix[0], trace["k"].matrix[0], trace["v"].matrix[0]


FOUR_SPEAKERS = Example(
    name="restaurant",
    title="Four people recommend a restaurant, one after the other",
    labels=("Frank", "Emma", "Daniel", "Alex"),
    arguments={
        "reflexives": ("himself", "herself", "himself", "himself"),
        "query": ((5.319, 1.716), (1.293, 1.210), (0.742, 1.921), (2.589, 1.589)),
        "key": ((5.271, 1.703), (1.260, 1.338), (0.701, 2.796), (2.565, 1.577)),
        "value": ((3.963, 2.121, 1.743), (2.308, 1.114, 2.427), (1.626, 0.577, 3.115), (2.290, 0.798, 1.635)),
        "query_features": ("street-stall", "upscale"),
        "key_features": ("knows-street-stall", "knows-upscale"),
        "value_features": ("info-sichuan", "info-budget", "info-upscale"),
    },
)

# The numbers are chosen: one feature per word, one for the position, and a blank that both words would attend to if
# they could. The blank's value has its own column, which shows whether any of it leaks.
I_LOVE = Example(
    name="love",
    title="I love ___: no word hears the blank that comes after it (the numbers are chosen)",
    labels=("I", "love", "___"),
    arguments={
        "x": ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)),
        "positions": ((0, 0, 0, 0), (0, 0, 0, 0.5), (0, 0, 0, 1)),
        "w_q": ((0, 1), (1, 1), (1, 2), (0, 0)),
        "w_k": ((2, 0), (0, 2), (1, 1), (0, 0.5)),
        "w_v": ((1, 0, 0), (0.5, 2, 0), (0, 0, 1), (0, 0, 0)),
        "features": ("person", "feeling", "blank", "place"),
        "query_features": ("seeks-person", "seeks-feeling"),
        "key_features": ("is-person", "is-feeling"),
        "value_features": ("person", "feeling", "blank"),
    },
)

# The session prints scores, weights and output, but not the random x. This x fits all of them best (least squares,
# weighted by the last printed digit), and reproduces every printed digit.
_X = (
    (0.4919871, 0.2532914, -1.3494196, 0.2833073),
    (-0.7398957, -0.8168276, -2.5135927, -0.2859620),
    (0.8564807, -1.7614272, -0.2821192, -1.2320185),
    (-0.6442036, 1.2032265, 0.2613953, 0.7749073),
    (-0.0579556, 0.1795860, 0.0071465, 0.9181171),
)
FIVE_TOKENS = Example(
    name="five-tokens",
    title="Five tokens of four random features, used as query, key and value alike",
    labels=("token 0", "token 1", "token 2", "token 3", "token 4"),
    arguments={"query": _X, "key": _X, "value": _X},
)

EXAMPLES: dict[str, Example] = {example.name: example for example in (FOUR_SPEAKERS, I_LOVE, FIVE_TOKENS)}
