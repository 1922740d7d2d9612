"""The table of rules by op. A rule takes an OpCall and returns the sets of its output, or a list of them.

>>> from rearview.auditing.proof.rules import RULES
>>> RULES["softmax"] is RULES["_softmax"], "cumsum" in RULES
(True, True)
"""

from collections.abc import Callable
from typing import Any

from rearview.auditing.proof.op_call import OpCall

Rule = Callable[[OpCall], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops by name, without namespace and overload; in-place and `out=` forms share it."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return register
