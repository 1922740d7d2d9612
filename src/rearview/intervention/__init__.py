"""Interventions: `masked` runs a model with other masks in some of its layers and heads."""

from rearview.intervention.mask_override import masked

__all__ = ["masked"]
