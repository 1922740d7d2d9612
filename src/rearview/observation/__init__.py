"""The attention of whole models, at any length, while their own kernels run.

`watching/` attaches to a model and records its calls, `result/` holds what was observed, `views/` draws it.
"""

from rearview.observation.result.diff import ObservationDiff
from rearview.observation.result.layer import Layer, Link
from rearview.observation.result.observation import Observation
from rearview.observation.watching.observer import observe

__all__ = ["Layer", "Link", "Observation", "ObservationDiff", "observe"]
