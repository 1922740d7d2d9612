"""Watching a model: finding its attention layers, attaching to them, and recording each of their calls."""
