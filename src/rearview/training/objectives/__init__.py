"""Training objectives: the next token (GPT), masked tokens (BERT), hidden spans (T5)."""

from rearview.training.objectives.masked import MaskedTokens
from rearview.training.objectives.next_token import NextToken
from rearview.training.objectives.objective import DivisibleObjective, Objective, Question, objective_of, specials_for
from rearview.training.objectives.spans import HiddenSpans

__all__ = [
    "DivisibleObjective",
    "HiddenSpans",
    "MaskedTokens",
    "NextToken",
    "Objective",
    "Question",
    "objective_of",
    "specials_for",
]
