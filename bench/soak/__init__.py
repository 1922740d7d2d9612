"""Load and faults: one file per experiment, each of which counts what it tried and what was lost.

make soak
"""
