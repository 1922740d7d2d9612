"""Words that all front ends share: the title of an untitled Trace, and stages without the mask.

>>> from rearview import explain
>>> trace = explain(query=[[1.0]], key=[[1.0]], value=[[1.0]], sinks=[0.5])
>>> without_mask(trace["weights"])[0]
'A = softmax(S, s)'
"""

from __future__ import annotations

from rearview.explanation.trace import Stage

UNTITLED = "One attention, step by step"

# The weights where a learned sink takes part in the softmax.
WITH_SINK = "A = softmax(S + M, s)"

# The formula and the sentence of a stage without the mask, where they differ.
_WITHOUT_MASK = {
    "mask": ("M = 0", "Without the mask nothing is forbidden: M would be 0 everywhere."),
    "masked": ("S + 0 = S", "Without the mask every score goes into the softmax, including the forbidden ones."),
    "weights": (
        "A = softmax(S)",
        "Without the mask: rows still sum to 1, but a part of each goes to forbidden keys.",
    ),
    "output": ("O = A V", "Without the mask: the average includes the values of forbidden keys."),
    "projected": (None, "Without the mask: what the layer would return if every key were heard."),
}
_WITHOUT_MASK_WITH_SINK = (
    "A = softmax(S, s)",
    "Without the mask: rows and their sink still sum to 1, but a part of each goes to forbidden keys.",
)


def without_mask(stage: Stage) -> tuple[str | None, str | None]:
    """The formula and the sentence of a stage without the mask; None where it is the same."""
    if stage.formula == WITH_SINK:
        return _WITHOUT_MASK_WITH_SINK
    return _WITHOUT_MASK.get(stage.key, (None, None))


# The difference: with the mask minus without it.
DIFFERENCE = {
    "weights": (
        "A with the mask − A without",
        "The weight that the mask takes from forbidden keys goes to the others.",
    ),
    "output": ("O with the mask − O without", "The change of the output when the forbidden keys are masked."),
    "projected": (
        "Y with the mask − Y without",
        "The change of the layer's output when the forbidden keys are masked.",
    ),
}
