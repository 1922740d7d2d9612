"""A mask from its text. The text is parsed, never evaluated: only mask constructors, `& | ~`, numbers and lists.

>>> from rearview.masks.parse import parse
>>> parse("(causal() & window(3)) | prefix(1)")
(causal() & window(3)) | prefix(1)
>>> parse("causal() and window(3)")    # doctest: +IGNORE_EXCEPTION_DETAIL
Traceback (most recent call last):
rearview.errors.BadExpression: `and` asks each mask for one truth value; between masks write `&`
  causal() and window(3)
           ^
"""

import ast
import difflib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from rearview.errors import BadExpression
from rearview.masks.combine import per_head
from rearview.masks.families import causal, chunks, full, prefix, window
from rearview.masks.labels import printable, width
from rearview.masks.mask import Mask
from rearview.masks.packing import documents, padding
from rearview.masks.unstructured import dense, dilated

LONGEST_TEXT = 100_000
DEEPEST = 100
# Document ids may be any int64; what counts positions is held to less by the constructors.
LARGEST_NUMBER = 2**63 - 1
# Characters of the text that an error shows on either side of the place it means.
CONTEXT = 36

CONSTRUCTORS: dict[str, tuple[str, Callable[..., Mask]]] = {
    "causal": ("causal()", causal),
    "full": ("full()", full),
    "window": ("window(n) or window(n, ahead=m)", window),
    "prefix": ("prefix(n)", prefix),
    "documents": ("documents([0, 0, 1, 1])", documents),
    "padding": ("padding([3, 5])", padding),
    "chunks": ("chunks(n)", chunks),
    "dilated": ("dilated(step)", dilated),
    "dense": ("dense([[1, 0], [1, 1]])", lambda tensor: dense(tensor)),
    "per_head": ("per_head([causal(), window(2)])", lambda masks: per_head(masks)),
}
ALLOWED = (
    f"Allowed: {', '.join(CONSTRUCTORS)};\n"
    "joined by & | ~ and parentheses; with whole numbers, True, False and lists as arguments."
)


def parse(text: str) -> Mask:
    """The mask that a text describes, as `repr` prints it.

    >>> parse("causal() & documents([0, 0, 1])").spans(3).rows()
    [[(0, 1)], [(0, 2)], [(2, 3)]]
    """
    if not isinstance(text, str):
        raise BadExpression(f"expected the text of a mask expression, got {type(text).__name__}")
    if len(text) > LONGEST_TEXT:
        raise BadExpression(f"the expression has {len(text):,} characters; at most {LONGEST_TEXT:,} are read")
    # On one line, so that a column is a place in it; no string may occur that this could change.
    text = " ".join(text.split())
    if not text:
        raise BadExpression(f"the expression is empty.\n{ALLOWED}")
    reader = _Reader(text)
    if "#" in text:
        reader.refuse_at(text.index("#"), "a comment is not part of a mask expression")
    found = reader.read(_tree(text, reader), 0)
    if not isinstance(found, Mask):
        raise BadExpression(f"`{_excerpt(text, 0)[0]}` is not a mask.\n{ALLOWED}")
    return found


def _tree(text: str, reader: "_Reader") -> ast.expr:
    try:
        with warnings.catch_warnings():
            # Python warns about odd literals; they are refused below anyway.
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        # Python gives offset 0 when the text ends too early.
        column = min(error.offset - 1, len(text)) if error.offset else len(text)
        if "integer string conversion" in error.msg:
            reader.refuse_at(column, "the number is too large")
        summarised = "<" in text and ">" in text
        hint = "; `<...>` stands for values that were too many to print" if summarised else ""
        reader.refuse_at(column, f"this cannot be read: {error.msg}{hint}")
    except (RecursionError, MemoryError):
        raise BadExpression(f"the expression is nested too deeply; at most {DEEPEST} levels are read") from None
    except ValueError as error:
        raise BadExpression(f"the expression cannot be read: {error}") from None


class _Reader:
    def __init__(self, text: str):
        self.text = text

    def read(self, node: ast.expr, depth: int) -> Any:
        """A mask, a number, a bool or a list of those."""
        if depth > DEEPEST:
            self.refuse(node, f"the expression is nested too deeply; at most {DEEPEST} levels are read")
        match node:
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                left, right = self.mask(node.left, depth), self.mask(node.right, depth)
                return left & right if isinstance(node.op, ast.BitAnd) else left | right
            case ast.UnaryOp(op=ast.Invert()):
                return ~self.mask(node.operand, depth)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)) if type(number) is int:
                return -number
            case ast.Call():
                return self.call(node, depth)
            case ast.List() | ast.Tuple():
                return [self.read(element, depth + 1) for element in node.elts]
            case ast.Constant(value=bool() | int() as value):
                if value > LARGEST_NUMBER:
                    self.refuse(node, "the number is too large")
                return value
        self.explain(node)

    def mask(self, node: ast.expr, depth: int) -> Mask:
        found = self.read(node, depth + 1)
        if not isinstance(found, Mask):
            self.refuse(node, "`&`, `|` and `~` stand between masks, and this is not one")
        return found

    def call(self, node: ast.Call, depth: int) -> Mask:
        if not isinstance(node.func, ast.Name):
            self.explain(node.func)
        name = node.func.id
        if name not in CONSTRUCTORS:
            self.explain_name(node.func)
        form, constructor = CONSTRUCTORS[name]
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self.refuse(argument, "`*` is not allowed; write the values out")
        for n, keyword in enumerate(node.keywords):
            if keyword.arg is None:
                self.refuse(keyword.value, "`**` is not allowed; write the values out")
            if keyword.arg in [earlier.arg for earlier in node.keywords[:n]]:
                self.refuse(keyword.value, f"{keyword.arg} is given twice")
        values = [self.read(argument, depth + 1) for argument in node.args]
        named = {keyword.arg: self.read(keyword.value, depth + 1) for keyword in node.keywords}
        try:
            bound = inspect.signature(constructor).bind(*values, **named)  # type: ignore[arg-type]
        except TypeError as error:
            self.refuse(node, f"{name}(): {error}; write {form}")
        if name == "dense":
            bound.arguments["tensor"] = self.bits(node, bound.arguments["tensor"])
        return constructor(*bound.args, **bound.kwargs)

    def bits(self, node: ast.Call, rows: Any) -> torch.Tensor:
        try:
            tensor = torch.tensor(rows)
        except (TypeError, ValueError, RuntimeError):
            tensor = torch.tensor([2])
        if tensor.is_floating_point() or not bool(((tensor == 0) | (tensor == 1)).all()):
            self.refuse(node, "dense takes rows of equal length, of 0 and 1 or of True and False")
        return tensor.bool()

    # Refusals: each says what to write instead.

    def explain(self, node: ast.expr) -> NoReturn:
        match node:
            case ast.BoolOp():
                word, sign = ("and", "&") if isinstance(node.op, ast.And) else ("or", "|")
                column = self.text.find(word, self.column(node.values[0], end=True))
                self.refuse_at(column, f"`{word}` asks each mask for one truth value; between masks write `{sign}`")
            case ast.UnaryOp(op=ast.Not()):
                self.refuse(node, "`not` asks a mask for one truth value; write `~`")
            case ast.Name():
                self.explain_name(node)
            case ast.Attribute():
                self.refuse_at(self.column(node.value, end=True), "nothing of a mask can be reached with `.` here")
            case ast.Constant():
                self.refuse(node, f"{type(node.value).__name__} values are not allowed here")
            case ast.BinOp() | ast.UnaryOp():
                self.refuse(node, "there is no arithmetic here; masks are joined by `&`, `|` and `~`")
            case _:
                self.refuse(node, "this is not part of a mask expression")

    def explain_name(self, node: ast.Name) -> NoReturn:
        name = node.id
        if name in CONSTRUCTORS:
            self.refuse(node, f"`{name}` is called: write {CONSTRUCTORS[name][0]}")
        if name == "where":
            self.refuse(node, "`where` takes a function, and text cannot bring one; use it from Python")
        close = difflib.get_close_matches(name.lower(), CONSTRUCTORS, n=1)
        hint = f"; did you mean {CONSTRUCTORS[close[0]][0]}?" if close else ""
        self.refuse(node, f"there is no mask `{_excerpt(name, 0)[0]}`{hint}")

    def refuse(self, node: ast.expr, why: str) -> NoReturn:
        self.refuse_at(self.column(node), why)

    def refuse_at(self, column: int, why: str) -> NoReturn:
        shown, before = _excerpt(self.text, column)
        raise BadExpression(f"{why}\n  {shown}\n  {' ' * before}^\n{ALLOWED}")

    def column(self, node: ast.expr, *, end: bool = False) -> int:
        # ast counts bytes of UTF-8; a reader counts characters.
        offset = (node.end_col_offset or 0) if end else node.col_offset
        return len(self.text.encode()[:offset].decode(errors="ignore"))


def _excerpt(text: str, column: int) -> tuple[str, int]:
    """The text around a column, safe to print, and the cells before that column."""
    first, end = max(0, column - CONTEXT), min(len(text), column + CONTEXT)
    before = ("…" if first else "") + printable(text[first:column])
    return before + printable(text[column:end]) + ("…" if end < len(text) else ""), width(before)
