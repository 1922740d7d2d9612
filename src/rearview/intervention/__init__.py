"""Interventions: run a model with other masks in some of its layers and heads, and measure what that changes."""

from rearview.intervention.mask_override import masked

__all__ = ["masked"]
