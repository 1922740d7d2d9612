"""Generation: the next tokens of a GPT or a T5, and the masked tokens of a BERT.

`generate` (decoding) returns an iterator of steps (steps). Its tokens come from a source: a predictor computes logits,
with a cache or without, and a sampler picks a token per sequence (single_tokens); or a draft proposes tokens, and the
model accepts some of them (speculation). `stream_text` and `complete` (completion) put a tokenizer around it. `fill`
(infilling) is for BERT.
"""

from rearview.generation.completion import Completion, TextChunk, TextGeneration, complete, stream_text
from rearview.generation.decoding import GenerateOptions, generate
from rearview.generation.drafts import LookupDraft, ModelDraft
from rearview.generation.figures import GenerationFigures
from rearview.generation.infilling import Candidate, Gap, fill
from rearview.generation.sampling import Sampling
from rearview.generation.steps import Generation, GenerationStep, Reason

__all__ = [
    "generate",
    "GenerateOptions",
    "Generation",
    "GenerationFigures",
    "GenerationStep",
    "Reason",
    "Sampling",
    "ModelDraft",
    "LookupDraft",
    "stream_text",
    "TextGeneration",
    "TextChunk",
    "complete",
    "Completion",
    "fill",
    "Gap",
    "Candidate",
]
