"""One rule per op, from the sets of its inputs to the sets of its outputs, grouped by what ops do with axes.

>>> len(RULES) > 200
True
"""

# Importing a family registers its rules.
from rearview.auditing.proof.rules import (  # noqa: F401
    attention,
    conv,
    copies,
    factories,
    indexing,
    matmul,
    norms,
    pointwise,
    reduce,
    scan,
    scatter,
    solving,
    views,
)
from rearview.auditing.proof.rules.registry import RULES, Rule, rule

__all__ = ["RULES", "Rule", "rule"]
