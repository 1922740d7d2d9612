"""Masks for people: drawings in the terminal, pictures, differences and warnings."""
