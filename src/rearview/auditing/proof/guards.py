"""Guards: the `try` and `with` statements of the program that are running, and that may catch an exception.

>>> from rearview.auditing.proof.guards import active_guards
>>> def guarded():
...     try:
...         return len(active_guards())
...     except IndexError:
...         return 0
>>> guarded() - len(active_guards())
1
>>> def restoring():
...     try:
...         return len(active_guards())
...     finally:
...         print("always raises again")
>>> restoring() - len(active_guards())
always raises again
0

A guard is found in the exception table of the code of each frame. A handler from which every path of its bytecode ends
in a `raise` is not a guard. Code of torch and of the auditor has guards too, but they pass exceptions on.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Sequence
from types import CodeType

from rearview.auditing.user_code import frames_of_program

# A function, and where the handler of the guard is in its bytecode.
Guard = tuple[CodeType, int]

# Special methods whose exceptions Python passes on.
CALLED_BY_NAME = ("__call__", "__init__", "__new__", "__torch_function__", "__enter__", "__exit__")


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


def call_path() -> tuple[CodeType | int, ...]:
    """The functions of the program that are running, innermost first.

    Python itself ends a loop over `__getitem__` at an IndexError, and ignores the exceptions of `__del__`. Where such a
    method is running, the lines are given as well.
    """
    frames = list(frames_of_program())
    is_called_by_python = any(
        frame.f_code.co_name.startswith("__") and frame.f_code.co_name not in CALLED_BY_NAME for frame in frames
    )
    codes = [frame.f_code for frame in frames]
    return (*codes, *(frame.f_lineno for frame in frames)) if is_called_by_python else tuple(codes)


@functools.lru_cache(maxsize=4096)
def _guarded_ranges(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """(start, end, handler) of each part of the bytecode whose exceptions a `try` or a `with` may catch."""
    if not code.co_exceptiontable:
        return ()
    bytecode = dis.Bytecode(code)
    entries = bytecode.exception_entries  # pyright: ignore[reportAttributeAccessIssue]
    instructions = list(bytecode)
    # The other handlers are the interpreter's own: they clean up after a handler, and raise again.
    handlers = {instruction.offset for instruction in instructions if instruction.opname == "PUSH_EXC_INFO"}
    catching = {handler for handler in handlers if not _always_raises(instructions, handler)}
    return tuple((entry.start, entry.end, entry.target) for entry in entries if entry.target in catching)


def _always_raises(instructions: Sequence[dis.Instruction], handler: int) -> bool:
    """Whether every path from a handler ends in a `raise`, as that of a `finally` without a `return` does."""
    numbers = {instruction.offset: number for number, instruction in enumerate(instructions)}
    ahead, seen = [numbers[handler]], set()
    while ahead:
        number = ahead.pop()
        if number in seen or number >= len(instructions):
            continue
        seen.add(number)
        instruction = instructions[number]
        name = instruction.opname
        if name in ("RERAISE", "RAISE_VARARGS"):
            continue
        if name.startswith(("POP_EXCEPT", "RETURN", "YIELD", "WITH_EXCEPT", "SEND")):
            return False
        jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
        if jumps:
            ahead.append(numbers[instruction.argval])
        if not (jumps and name.startswith("JUMP") and "_IF_" not in name):
            ahead.append(number + 1)
    return True
