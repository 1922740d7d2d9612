"""Which rule answers for which op. A rule takes a Call and returns the sets of its output, or a list of them.

>>> from rearview.audit.proof.rules import RULES
>>> RULES["softmax"] is RULES["_softmax"], "cumsum" in RULES
(True, True)
"""

from collections.abc import Callable
from typing import Any

from rearview.audit.proof.call import Call

Rule = Callable[[Call], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register for ops by name, without namespace and overload; in-place and `out=` forms share the rule."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return register
