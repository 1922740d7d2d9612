"""One attention, step by step, as a Trace that every front end draws."""

from rearview.explain.build import explain
from rearview.explain.positions import Rotary, sinusoidal
from rearview.explain.reading import Reading, Received
from rearview.explain.trace import Stage, Trace

__all__ = ["Reading", "Received", "Rotary", "Stage", "Trace", "explain", "sinusoidal"]
