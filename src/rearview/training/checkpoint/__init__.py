"""A run on the disk: checkpoints that are whole or not there, and how to go on from one.

OUT/
  step-000200/           what transformers and `rearview generate` read, and what training needs besides
    config.json, model.safetensors
    rearview_tokenizer.json, or tokenizer.json and tokenizer_config.json
    optimizer.safetensors
    training.json        the step, the settings, and the size and checksum of every other file
  metrics.jsonl
"""

from rearview.training.checkpoint.folders import best, checkpoints, clean, model_folder, newest, prune
from rearview.training.checkpoint.read import Resumed, read_checkpoint
from rearview.training.checkpoint.record import Record
from rearview.training.checkpoint.write import NotSaved, write_checkpoint

__all__ = [
    "NotSaved",
    "Record",
    "Resumed",
    "best",
    "checkpoints",
    "clean",
    "model_folder",
    "newest",
    "prune",
    "read_checkpoint",
    "write_checkpoint",
]
