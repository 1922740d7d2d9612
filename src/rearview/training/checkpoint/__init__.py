"""Checkpoints on the disk: each is complete or absent, and a run can be resumed from any of them.

OUT/
  step-000200/           what transformers and `rearview generate` read, and what training needs in addition
    config.json, model.safetensors
    rearview_tokenizer.json, or tokenizer.json and tokenizer_config.json
    optimizer.safetensors, or state/ with a shard from each of several processes
    training.json        the step, the settings, and the size and checksum of every other file
  metrics.jsonl
"""

from rearview.training.checkpoint.folders import best, checkpoints, clean, model_folder, newest, prune
from rearview.training.checkpoint.reader import Checkpoint, read_checkpoint
from rearview.training.checkpoint.record import Record
from rearview.training.checkpoint.writer import NotSaved, write_checkpoint

__all__ = [
    "Checkpoint",
    "NotSaved",
    "Record",
    "best",
    "checkpoints",
    "clean",
    "model_folder",
    "newest",
    "prune",
    "read_checkpoint",
    "write_checkpoint",
]
