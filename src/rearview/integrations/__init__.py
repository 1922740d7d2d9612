"""Rearview inside other tools: transformers, pytest."""
