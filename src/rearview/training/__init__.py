"""Training: text to tokens, batches, a loop that yields events, and checkpoints; see README.md."""

from rearview.training.batches import Batch, Batches
from rearview.training.checkpoint import (
    Checkpoint,
    NotSaved,
    best,
    checkpoints,
    model_folder,
    newest,
    read_checkpoint,
)
from rearview.training.config import TrainConfig
from rearview.training.corpus import Corpus
from rearview.training.data import TextData
from rearview.training.evaluation import Evaluation, evaluate
from rearview.training.events import Event, Finished, Sample, Saved, Started, Stopped, TrainingStep, Validation
from rearview.training.lock import FolderInUse
from rearview.training.loop import Diverged, train
from rearview.training.metrics import read_metrics
from rearview.training.objectives import HiddenSpans, MaskedTokens, NextToken, Objective, objective_of, specials_for
from rearview.training.run import Run
from rearview.training.run_config import RunConfig
from rearview.training.samples import sample
from rearview.training.sources import Document, read_texts

__all__ = [
    "train",
    "TrainConfig",
    "Run",
    "RunConfig",
    "TextData",
    "read_texts",
    "Document",
    "Corpus",
    "Batch",
    "Batches",
    "Event",
    "Started",
    "TrainingStep",
    "Validation",
    "Sample",
    "Saved",
    "Stopped",
    "Finished",
    "Objective",
    "NextToken",
    "MaskedTokens",
    "HiddenSpans",
    "objective_of",
    "specials_for",
    "evaluate",
    "Evaluation",
    "sample",
    "Checkpoint",
    "checkpoints",
    "newest",
    "best",
    "model_folder",
    "read_checkpoint",
    "read_metrics",
    "Diverged",
    "FolderInUse",
    "NotSaved",
]
