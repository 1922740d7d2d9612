"""parse: what it accepts, and its errors. Nothing is ever evaluated."""

import contextlib
import subprocess
import sys

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rearview import Mask, RearviewError, causal, chunks, dense, documents, full, padding, per_head, prefix, window
from rearview.errors import BadArgument, BadExpression
from rearview.masks.parser import ALLOWED, LONGEST_TEXT, parse
from tests.masks.strategies import LENGTH, masks_with_heads


@given(masks_with_heads)
@settings(deadline=None)
@example(documents([-1, 2**63 - 1, 0, 0, 0, 0, 0, 0, 0]))
def test_the_repr_of_a_mask_is_parsed(mask):
    again = parse(repr(mask))
    assert repr(again) == repr(mask)
    assert again.equals(mask, LENGTH)
    assert (again.batch, again.heads) == (mask.batch, mask.heads)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("causal()", causal()),
        ("  causal()\n  & window(3)\t", causal() & window(3)),
        ("window(n=3, ahead=2)", window(3, ahead=2)),
        ("causal() | prefix(2) & chunks(2)", causal() | (prefix(2) & chunks(2))),
        ("~(causal() & ~window(1))", ~(causal() & ~window(1))),
        ("documents((0, 0, 1, 1))", documents([0, 0, 1, 1])),
        ("padding([2, 4])", padding([2, 4])),
        ("padding([[True, False, True, True]])", padding([[True, False, True, True]])),
        ("per_head([causal(), full()])", per_head([causal(), full()])),
        ("window(1_0)", window(10)),
        ("dense([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]])",
         dense(torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]]).bool())),
        ("dense([[True, True, True, False]])", dense(torch.tensor([[True, True, True, False]]))),
    ],
)  # fmt: skip
def test_what_is_read(text: str, mask):
    q_len = 1 if "dense([[True" in text else 4
    assert parse(text).equals(mask, q_len, 4)


@pytest.mark.parametrize(
    ("text", "why", "column"),
    [
        ("causal() and window(3)", "`and` asks each mask for one truth value; between masks write `&`", 9),
        ("causal() or window(3)", "`or` asks each mask for one truth value; between masks write `|`", 9),
        ("not causal()", "`not` asks a mask for one truth value; write `~`", 0),
        ("causal", "`causal` must be called: write causal()", 0),
        ("causal() & windw(3)", "there is no mask `windw`; did you mean window(n) or window(n, ahead=m)?", 11),
        ("Causal()", "there is no mask `Causal`; did you mean causal()?", 0),
        ("x", "there is no mask `x`", 0),
        ("full() & where(f)", "`where` takes a function, which text cannot hold; use it from Python", 9),
        ("__import__('os').system('true')", "attributes are not allowed in a mask expression", 16),
        ("__import__('os')", "there is no mask `__import__`", 0),
        ("causal().__class__", "attributes are not allowed in a mask expression", 8),
        ("causal().show(3)", "attributes are not allowed in a mask expression", 8),
        ("causal()()", "this is not part of a mask expression", 0),
        ("causal() + full()", "arithmetic is not allowed; masks are joined by `&`, `|` and `~`", 0),
        ("causal() ^ full()", "arithmetic is not allowed; masks are joined by `&`, `|` and `~`", 0),
        ("documents([0] * 99)", "arithmetic is not allowed; masks are joined by `&`, `|` and `~`", 10),
        ("window(2 ** 9)", "arithmetic is not allowed; masks are joined by `&`, `|` and `~`", 7),
        ("window(3.0)", "float values are not allowed here", 7),
        ("window('3')", "str values are not allowed here", 7),
        ("window(None)", "NoneType values are not allowed here", 7),
        ("window(...)", "ellipsis values are not allowed here", 7),
        ("causal() & 3", "`&`, `|` and `~` join masks, and this is not a mask", 11),
        ("~[causal()]", "`&`, `|` and `~` join masks, and this is not a mask", 1),
        ("causal(3)", "causal(): too many positional arguments; write causal()", 0),
        ("window()", "window(): missing a required argument: 'n'; write window(n) or window(n, ahead=m)", 0),
        ("window(3, behind=2)", "window(): got an unexpected keyword argument 'behind'; "
         "write window(n) or window(n, ahead=m)", 0),
        ("window(n=3, n=4)", "n is given twice", 14),
        ("window(*[3])", "`*` is not allowed; write the values out", 7),
        ("window(**{})", "`**` is not allowed; write the values out", 9),
        ("dense([[0, 2]])", "dense takes rows of equal length, of 0 and 1 or of True and False", 0),
        ("dense([[0], [0, 1]])", "dense takes rows of equal length, of 0 and 1 or of True and False", 0),
        ("[causal() for _ in [1]]", "this is not part of a mask expression", 0),
        ("causal() if 1 else full()", "this is not part of a mask expression", 0),
        ("lambda: causal()", "this is not part of a mask expression", 0),
        ("causal() < full()", "this is not part of a mask expression", 0),
        ("f'{causal()}'", "this is not part of a mask expression", 0),
        ("causal() # & window(3)", "a comment is not part of a mask expression", 9),
        ("causal() &", "this cannot be read: invalid syntax", 10),
        ("causal(); full()", "this cannot be read: invalid syntax", 8),
        ("documents(<64 ids>)", "this cannot be read: invalid syntax; "
         "`<...>` summarises values that were too many to print", 10),
        ("window(99999999999999999999)", "the number is too large", 7),
        ("per_head([window(1), 寿司()])", "there is no mask `寿司`", 21),
    ],
)  # fmt: skip
def test_what_is_refused_and_where(text: str, why: str, column: int):
    with pytest.raises(BadExpression) as caught:
        parse(text)
    assert str(caught.value) == f"{why}\n  {text}\n  {' ' * column}^\n{ALLOWED}"


def test_the_caret_counts_terminal_cells():
    with pytest.raises(BadExpression) as caught:
        parse("documents(寿司)  &  x")
    assert str(caught.value).splitlines()[2] == " " * 12 + "^"
    with pytest.raises(BadExpression) as caught:
        parse("full() & causal('寿司') | ｃausal('')")
    assert "str values" in str(caught.value)


def test_errors_of_constructors_are_passed_on():
    with pytest.raises(BadArgument, match=r"^window\(n\): expected an integer of at least 1, got -2\."):
        parse("causal() & window(-2)")
    with pytest.raises(BadArgument, match=r"^window\(n\): expected an integer of at most 2\*\*30"):
        parse("window(99999999999)")
    with pytest.raises(BadArgument, match="masks for one batch size"):
        parse("padding([1]) & padding([1, 2])")


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_an_empty_text_is_not_a_mask(text: str):
    with pytest.raises(BadExpression, match="the expression is empty"):
        parse(text)


@pytest.mark.parametrize("text", ["3", "[causal()]", "True", "()"])
def test_a_value_is_not_a_mask(text: str):
    with pytest.raises(BadExpression, match="is not a mask"):
        parse(text)


@pytest.mark.parametrize("text", [None, 3, causal(), b"causal()"])
def test_only_text_is_read(text):
    with pytest.raises(BadExpression, match="expected the text of a mask expression, got"):
        parse(text)


N = LONGEST_TEXT - 10
HOSTILE = {
    "tildes": "~" * N,
    "minuses": "window(" + "-" * (N - 10) + "1)",
    "parentheses": "(" * N,
    "closed parentheses": "(" * 180 + "causal()" + ")" * 180 + "x",
    "brackets": "[" * N,
    "calls": "causal" + "()" * (N // 2),
    "attributes": "causal()" + ".a" * (N // 2 - 5),
    "chain": " & ".join(["full()"] * (N // 9)),
    "chain that just parses": " & ".join(["full()"] * 400),
    "nested calls": "per_head([" * 80 + "]" * 80,
    "nots": "not " * (N // 4),
    "lambdas": "lambda:" * (N // 7),
    "powers": "9**" * (N // 3) + "9",
    "digits": "window(" + "9" * 5000 + ")",
    "too long": "a" * 1_000_000,
    "one long name": "a" * N,
    "null": "causal()\0",
    "surrogate": "causal\ud800()",
    "escape codes": "\x1b[2Jcausal()\x07",
    "right to left": "\u202ecausal()",
    "odd literal": "window(0x_f)and 1",
    "warning literal": "1is causal()",
    "bad escape": "'\\d'",
    "walrus": "(x := causal())",
    "await": "await causal()",
    "yield": "(yield)",
    "dictionary": "{1: causal()}",
    "set": "{causal()}",
    "slice": "causal()[1:2]",
    "starred": "*causal()",
    "semicolon": "causal();__import__('os')",
    "newline": "causal()\n__import__('os')",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_gets_a_message(name: str):
    with pytest.raises(RearviewError) as caught:
        parse(HOSTILE[name])
    message = str(caught.value)
    assert len(message) < 600
    assert all(c.isprintable() or c == "\n" for c in message)
    assert all(len(line) <= 110 for line in message.splitlines()[1:])


@settings(deadline=None)
@given(st.text(max_size=40) | st.text("causlfwindo()[]&|~,0123 .=*", max_size=40))
def test_any_text_gives_a_mask_or_a_message(text: str):
    with contextlib.suppress(RearviewError):
        assert isinstance(parse(text), Mask)


def test_nothing_is_evaluated(tmp_path):
    witness = tmp_path / "evaluated"
    for text in (
        f"open('{witness}', 'w')",
        f"__import__('pathlib').Path('{witness}').touch()",
        "exit()",
        "causal(exit())",
    ):
        with pytest.raises(BadExpression):
            parse(text)
    assert not witness.exists()


def test_deep_stacks_do_not_crash_the_interpreter():
    # In a process of its own: a crash of the parser would take the test run with it.
    code = "from rearview.masks.parser import parse\nfrom tests.masks.test_parser import HOSTILE\n"
    code += "for text in HOSTILE.values():\n    try: parse(text)\n    except ValueError: pass\nprint('alive')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "alive\n", done.stderr
