"""Guards: the `try` and `with` statements of the program that are running, which may catch an exception.

>>> from rearview.auditing.proof.guards import active_guards
>>> def program():
...     try:
...         return len(active_guards())
...     finally:
...         pass
>>> program() - len(active_guards())
1

A guard is found in the exception table of the code of each frame. Code of torch and of the auditor has guards too, but
they pass exceptions on.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType

from rearview.auditing.user_code import frames_of_program

# A function, and where the handler of the guard is in its bytecode.
Guard = tuple[CodeType, int]


def active_guards() -> tuple[Guard, ...]:
    """The guards around the line of the program that is running, innermost first."""
    found: list[Guard] = []
    for frame in frames_of_program():
        found += [
            (frame.f_code, handler)
            for start, end, handler in _guarded_ranges(frame.f_code)
            if start <= frame.f_lasti < end
        ]
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _guarded_ranges(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """(start, end, handler) of each part of the bytecode whose exceptions a `try` or a `with` gets."""
    if not code.co_exceptiontable:
        return ()
    bytecode = dis.Bytecode(code)
    entries = bytecode.exception_entries  # pyright: ignore[reportAttributeAccessIssue]
    # The other handlers are the interpreter's own: they clean up after a handler, and raise again.
    handlers = {instruction.offset for instruction in bytecode if instruction.opname == "PUSH_EXC_INFO"}
    return tuple((entry.start, entry.end, entry.target) for entry in entries if entry.target in handlers)
