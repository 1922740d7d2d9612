"""Text to tokens to a loop to checkpoints: training, as an iterator of what happens."""

from rearview.training.batches import Batch, Batches
from rearview.training.checkpoint import NotSaved, best, checkpoints, model_folder, newest, read_checkpoint
from rearview.training.config import TrainConfig
from rearview.training.corpus import Corpus
from rearview.training.data import TextData
from rearview.training.evaluate import Evaluation, evaluate
from rearview.training.events import Event, Finished, Sample, Saved, Started, Step, Stopped, Validation
from rearview.training.loop import train
from rearview.training.metrics import read_metrics
from rearview.training.objectives import HiddenSpans, MaskedTokens, NextToken, Objective, objective_of, specials_for
from rearview.training.pending import Diverged
from rearview.training.samples import sample
from rearview.training.sources import Document, read_texts

__all__ = [
    "train",
    "TrainConfig",
    "TextData",
    "read_texts",
    "Document",
    "Corpus",
    "Batch",
    "Batches",
    "Event",
    "Started",
    "Step",
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
    "checkpoints",
    "newest",
    "best",
    "model_folder",
    "read_checkpoint",
    "read_metrics",
    "Diverged",
    "NotSaved",
]
