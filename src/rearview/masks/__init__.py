"""Who may be heard: the mask algebra, its ranges and tiles, pictures, exchange with other libraries."""

from rearview.masks.combine import per_head
from rearview.masks.families import causal, chunks, full, prefix, window
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask
from rearview.masks.packing import documents, padding
from rearview.masks.spans import Spans
from rearview.masks.tiles import Tiles
from rearview.masks.unstructured import dense, dilated, where

__all__ = [
    "Frame",
    "Mask",
    "Spans",
    "Tiles",
    "causal",
    "chunks",
    "dense",
    "dilated",
    "documents",
    "full",
    "padding",
    "per_head",
    "prefix",
    "where",
    "window",
]
