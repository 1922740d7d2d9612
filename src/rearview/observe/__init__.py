"""The attention of whole models, at any length, with their own kernels on.

`watch.py` is the way in; `seen.py` what one looks at; `own.py` and `theirs.py` know how layers are watched; `record.py`
stitches the calls of a layer together.
"""

from rearview.observe.diff import SeenDiff
from rearview.observe.layer import Layer, Link
from rearview.observe.seen import Seen
from rearview.observe.watch import observe

__all__ = ["Layer", "Link", "Seen", "SeenDiff", "observe"]
