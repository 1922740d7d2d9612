"""One attention, step by step: `explain` returns a Trace, and every front end draws it."""

from rearview.explanation.explainer import explain
from rearview.explanation.positions import Rotary, sinusoidal
from rearview.explanation.reading import Reading, Received
from rearview.explanation.trace import Stage, Trace

__all__ = ["Reading", "Received", "Rotary", "Stage", "Trace", "explain", "sinusoidal"]
