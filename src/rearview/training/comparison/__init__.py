"""The same model with the mask and without it: what the loss claims, and what the exam says."""

from rearview.training.comparison.happenings import Found, Halted, Happening, Progress, Trained
from rearview.training.comparison.result import Attention, Comparison, Conditions, Score, Side, Writing
from rearview.training.comparison.run import compare, comparing
from rearview.training.comparison.settings import Settings, short_training
from rearview.training.comparison.verdict import Verdict, verdict_of

__all__ = [
    "compare",
    "comparing",
    "Settings",
    "short_training",
    "Comparison",
    "Side",
    "Score",
    "Writing",
    "Attention",
    "Conditions",
    "Verdict",
    "verdict_of",
    "Happening",
    "Trained",
    "Progress",
    "Halted",
    "Found",
]
