"""GPT, BERT and T5: one transformer block with three masks."""

from rearview.models.bert import BERT, BERTConfig
from rearview.models.gpt import GPT, GPTConfig
from rearview.models.t5 import T5, T5Config

__all__ = ["BERT", "BERTConfig", "GPT", "GPTConfig", "T5", "T5Config"]
