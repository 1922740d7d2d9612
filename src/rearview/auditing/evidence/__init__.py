"""Experiments on a model: what is changed, which outputs move, and how rounding is told from a leak."""
