"""A mask from its text. The text is parsed, never evaluated: only mask constructors, `& | ~`, numbers and lists.

>>> from rearview.masks.parser import parse
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
from typing import NoReturn

from rearview.drawing.cells import printable, width, wrapped
from rearview.errors import BadExpression

# The package imports every family, and so fills CONSTRUCTORS.
from rearview.masks import Mask
from rearview.masks.constructors import CONSTRUCTORS

LONGEST_TEXT = 100_000
DEEPEST = 100
# Document ids may be any int64; the constructors check numbers of positions more strictly.
LARGEST_NUMBER = 2**63 - 1
# Characters of the text that an error shows on either side of the place.
CONTEXT = 36
LINE = 100

ALLOWED = (
    "\n".join(wrapped(f"Allowed: {', '.join(CONSTRUCTORS)};", LINE)) + "\n"
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
    # On one line, so that a column is a place in it. Strings, which this could change, are not allowed anyway.
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
        hint = "; `<...>` summarises values that were too many to print" if summarised else ""
        reader.refuse_at(column, f"this cannot be read: {error.msg}{hint}")
    except (RecursionError, MemoryError):
        raise BadExpression(f"the expression is nested too deeply; at most {DEEPEST} levels are read") from None
    except ValueError as error:
        raise BadExpression(f"the expression cannot be read: {error}") from None


class _Reader:
    def __init__(self, text: str):
        self.text = text

    def read(self, node: ast.expr, depth: int) -> object:
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
            self.refuse(node, "`&`, `|` and `~` join masks, and this is not a mask")
        return found

    def call(self, node: ast.Call, depth: int) -> Mask:
        if not isinstance(node.func, ast.Name):
            self.explain(node.func)
        name = node.func.id
        if name not in CONSTRUCTORS:
            self.explain_name(node.func)
        constructor = CONSTRUCTORS[name]
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
            bound = inspect.signature(constructor.make).bind(*values, **named)  # type: ignore[arg-type]
        except TypeError as error:
            self.refuse(node, f"{name}(): {error}; write {constructor.form}")
        if constructor.read is not None:
            try:
                bound.arguments = {key: constructor.read(value) for key, value in bound.arguments.items()}
            except ValueError as error:
                self.refuse(node, str(error))
        return constructor.make(*bound.args, **bound.kwargs)

    # Errors: each one names what to write instead.

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
                self.refuse_at(self.column(node.value, end=True), "attributes are not allowed in a mask expression")
            case ast.Constant():
                self.refuse(node, f"{type(node.value).__name__} values are not allowed here")
            case ast.BinOp() | ast.UnaryOp():
                self.refuse(node, "arithmetic is not allowed; masks are joined by `&`, `|` and `~`")
            case _:
                self.refuse(node, "this is not part of a mask expression")

    def explain_name(self, node: ast.Name) -> NoReturn:
        name = node.id
        if name in CONSTRUCTORS:
            self.refuse(node, f"`{name}` must be called: write {CONSTRUCTORS[name].form}")
        if name == "where":
            self.refuse(node, "`where` takes a function, which text cannot hold; use it from Python")
        close = difflib.get_close_matches(name.lower(), CONSTRUCTORS, n=1)
        hint = f"; did you mean {CONSTRUCTORS[close[0]].form}?" if close else ""
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
    """The text around a column, safe to print, and the number of terminal cells before that column."""
    first, end = max(0, column - CONTEXT), min(len(text), column + CONTEXT)
    before = ("…" if first else "") + printable(text[first:column])
    return before + printable(text[column:end]) + ("…" if end < len(text) else ""), width(before)
