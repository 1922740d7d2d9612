"""Generating: tokens from a GPT or a T5 one at a time, and what a BERT puts into a gap."""

from rearview.generation.fill import Candidate, Gap, fill
from rearview.generation.generate import Generation, generate
from rearview.generation.sampling import Sampling
from rearview.generation.step import Reason, Step
from rearview.generation.text import Completion, Piece, TextGeneration, complete, stream_text

__all__ = [
    "generate",
    "Generation",
    "Step",
    "Reason",
    "Sampling",
    "stream_text",
    "TextGeneration",
    "Piece",
    "complete",
    "Completion",
    "fill",
    "Gap",
    "Candidate",
]
