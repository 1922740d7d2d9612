"""Masks: the algebra, ranges and tiles, drawings, and conversions to and from other libraries. See README.md."""

from rearview.masks.diffusion import block_diffusion
from rearview.masks.explicit import ranges
from rearview.masks.families import causal, chunks, full, prefix, window
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask
from rearview.masks.neighbourhoods import grid_window
from rearview.masks.operators import per_head
from rearview.masks.packing import documents, padding
from rearview.masks.paths import along
from rearview.masks.spans import Spans
from rearview.masks.tiles import Tiles
from rearview.masks.trees import shared_prefix, tree
from rearview.masks.unstructured import dense, dilated, where

__all__ = [
    "Frame",
    "Mask",
    "Spans",
    "Tiles",
    "along",
    "block_diffusion",
    "causal",
    "chunks",
    "dense",
    "dilated",
    "documents",
    "full",
    "grid_window",
    "padding",
    "per_head",
    "prefix",
    "ranges",
    "shared_prefix",
    "tree",
    "where",
    "window",
]
