"""The learning rate: a linear warmup, then a cosine decay.

>>> [round(learning_rate(step, steps=100, peak=1.0, warmup=10, floor=0.1), 3) for step in (1, 5, 10, 55, 100)]
[0.1, 0.5, 1.0, 0.55, 0.1]
"""

import math


def learning_rate(step: int, *, steps: int, peak: float, warmup: int, floor: float) -> float:
    """The learning rate of a step from 1 to `steps`: `peak` at step `warmup`, `floor * peak` at the last step."""
    if step < warmup:
        return peak * step / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))
