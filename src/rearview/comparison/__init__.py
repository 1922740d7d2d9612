"""The same model trained with the mask and without it: their losses, and their exams."""

from rearview.comparison.conclusion import Conclusion, conclusion_of
from rearview.comparison.events import (
    ComparisonEvent,
    ComparisonFinished,
    ComparisonStopped,
    ExamProgress,
    SideEvent,
)
from rearview.comparison.experiment import compare, comparing
from rearview.comparison.folder import load, save
from rearview.comparison.result import Attention, Comparison, Conditions, Score, Side, Writing
from rearview.comparison.run import ComparisonRun
from rearview.comparison.settings import ComparisonConfig, Settings

__all__ = [
    "compare",
    "comparing",
    "Settings",
    "ComparisonRun",
    "ComparisonConfig",
    "save",
    "load",
    "Comparison",
    "Side",
    "Score",
    "Writing",
    "Attention",
    "Conditions",
    "Conclusion",
    "conclusion_of",
    "ComparisonEvent",
    "SideEvent",
    "ExamProgress",
    "ComparisonStopped",
    "ComparisonFinished",
]
