"""Rearview inside other tools: pytest."""
