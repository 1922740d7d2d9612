"""The learning rate: up in a line, down in half a cosine.

>>> [round(learning_rate(step, steps=100, peak=1.0, warmup=10, floor=0.1), 3) for step in (1, 5, 10, 55, 100)]
[0.1, 0.5, 1.0, 0.55, 0.1]
"""

import math


def learning_rate(step: int, *, steps: int, peak: float, warmup: int, floor: float) -> float:
    """Of the step from 1 to `steps`: `peak` is reached at `warmup`, `floor` x peak at the last."""
    if step < warmup:
        return peak * step / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))
