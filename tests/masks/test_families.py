"""Every constructor compared with its definition, pair by pair; its repr; its errors."""

import copy
import operator
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rearview import (
    Mask,
    RearviewError,
    along,
    block_diffusion,
    causal,
    chunks,
    dense,
    dilated,
    documents,
    full,
    grid_window,
    padding,
    per_head,
    prefix,
    ranges,
    shared_prefix,
    tree,
    where,
    window,
)
from rearview.errors import BadArgument, NoRangeForm
from rearview.masks import Frame
from rearview.masks.item import item_of
from rearview.masks.lagged import lagged
from rearview.masks.mask import REMEMBERED_FRAMES
from rearview.masks.shifted import shifted

IDS = [3, 3, 0, 0, 0, 3, 7, 7, 7]
PACKED = [[0, 0, 1, 1, 2, 2, 2, 2, 2], [5, 5, 5, 5, 5, 5, 4, 4, 4]]
REAL = [[False, False, True, True, True, True, True, True, True], [True, False, True] * 3]
SQUARE = torch.rand(9, 9, generator=torch.Generator().manual_seed(0)) < 0.5
EACH = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(1)) < 0.5
# So many runs per row that they are not worth being ranges.
RAGGED = (torch.arange(99) + torch.arange(99).unsqueeze(1)) % 2 == torch.zeros(2, 3, 1, 1)

# The definition of each: may the query at position i hear the key at position j, in batch item b and head h?
Rule = Callable[[int, int, int, int], bool]
DEFINITIONS: dict[str, tuple[Mask, Rule]] = {
    "causal()": (causal(), lambda b, h, i, j: j <= i),
    "full()": (full(), lambda b, h, i, j: True),
    "window(1)": (window(1), lambda b, h, i, j: j == i),
    "window(3)": (window(3), lambda b, h, i, j: i - 3 < j <= i),
    "window(2, ahead=2)": (window(2, ahead=2), lambda b, h, i, j: i - 2 < j <= i + 2),
    "prefix(0)": (prefix(0), lambda b, h, i, j: False),
    "prefix(2)": (prefix(2), lambda b, h, i, j: j < 2),
    "prefix([0, 3])": (prefix([0, 3]), lambda b, h, i, j: j < [0, 3][b]),
    "documents([3, 3, 0, 0, 0, 3, 7, 7, 7])": (documents(IDS), lambda b, h, i, j: i >= 0 and IDS[i] == IDS[j]),
    f"documents({PACKED})": (documents(PACKED), lambda b, h, i, j: i >= 0 and PACKED[b][i] == PACKED[b][j]),
    "padding([2, 0, 9])": (padding([2, 0, 9]), lambda b, h, i, j: j < [2, 0, 9][b]),
    f"padding({REAL})": (padding(REAL), lambda b, h, i, j: REAL[b][j]),
    "chunks(3)": (chunks(3), lambda b, h, i, j: i // 3 == j // 3),
    "dilated(2)": (dilated(2), lambda b, h, i, j: (i - j) % 2 == 0),
    "per_head([causal(), window(2)])": (
        per_head([causal(), window(2)]),
        lambda b, h, i, j: j <= i and (h == 0 or j > i - 2),
    ),
    "(causal() & window(3)) | prefix(1)": (
        causal() & window(3) | prefix(1),
        lambda b, h, i, j: i - 3 < j <= i or j < 1,
    ),
    "~(causal() | chunks(2))": (~(causal() | chunks(2)), lambda b, h, i, j: not (j <= i or i // 2 == j // 2)),
    "causal() & ~window(2)": (causal() & ~window(2), lambda b, h, i, j: j <= i - 2),
}
STARTS, ENDS = (
    [[0, 4], [1, 1], [2, 0], [-3, 9], [5, 2], [0, 0], [3, 5], [1, 2], [8, 0]],
    [[3, 5], [0, 3], [1, 4], [1, 20], [7, 9], [9, 2], [3, 5], [6, 4], [9, 3]],
)
PARENTS = [-1, 0, 1, 1, 3, -1, 5, 0, 7]
TWO_TREES = [PARENTS, [-1, -1, 0, 1, 2, 3, 4, 5, 6]]


def ancestors(parents: list[int], node: int) -> list[int]:
    """The path from a node to its root, the node first."""
    return [node, *ancestors(parents, parents[node])] if node >= 0 else []


def depth(parents: list[int], node: int) -> int:
    return len(ancestors(parents, node)) - 1


def place(ids: list[int], i: int) -> int:
    """The position of i in its own document."""
    return ids[:i].count(ids[i])


def near(shape: tuple[int, ...], size: tuple[int, ...], i: int, j: int, *, inside: bool = False) -> bool:
    """Whether the cells i and j of a grid are near: coordinate by coordinate, from the last axis on."""
    for cells, width in zip(reversed(shape), reversed(size), strict=True):
        one, other = i % cells, j % cells
        i, j = i // cells, j // cells
        first = one - width // 2
        if inside:
            first = max(0, min(first, cells - width))
        if not first <= other < first + width:
            return False
    return i == j == 0


def diffused(length: int, n: int, i: int, j: int) -> bool:
    if not (0 <= i < 2 * length and j < 2 * length):
        return False
    block = [position % length // n for position in (i, j)]
    if i < length and j < length:
        return block[0] == block[1]
    if i < length:
        return block[1] < block[0]
    return j >= length and block[1] <= block[0]


DEFINITIONS |= {
    f"ranges({[0, 2, 1, 0, 0, 5, 2, 1, 8]}, {[1, 2, 5, 9, 3, 2, 7, 7, 9]})": (
        ranges([0, 2, 1, 0, 0, 5, 2, 1, 8], [1, 2, 5, 9, 3, 2, 7, 7, 9]),
        lambda b, h, i, j: i >= 0 and [0, 2, 1, 0, 0, 5, 2, 1, 8][i] <= j < [1, 2, 5, 9, 3, 2, 7, 7, 9][i],
    ),
    f"ranges({[[max(0, a) for a in row] for row in STARTS]}, {ENDS})": (
        ranges(STARTS, ENDS),
        lambda b, h, i, j: i >= 0 and any(s <= j < e for s, e in zip(STARTS[i], ENDS[i], strict=True)),
    ),
    f"tree({PARENTS})": (tree(PARENTS), lambda b, h, i, j: j in ancestors(PARENTS, i)),
    f"tree({TWO_TREES})": (tree(TWO_TREES), lambda b, h, i, j: j in ancestors(TWO_TREES[b], i)),
    "tree([-1, 0, 1, 2, 2, 1, 1, 6, 7])": (
        tree([-1, 0, 0, -1, -1, 4, 5], after=2),
        lambda b, h, i, j: j in ancestors([-1, 0, 1, 2, 2, 1, 1, 6, 7], i),
    ),
    "shared_prefix([2, 1], [[2, 0, 1, 2], [0, 1]])": (
        shared_prefix([2, 1], [[2, 0, 1, 2], [0, 1]]),
        lambda b, h, i, j: j in ancestors([-1, 0, 1, 2, 1, 1, 5, -1, 7], i),
    ),
    f"along(tree({TWO_TREES}), window(2))": (
        along(tree(TWO_TREES), window(2)),
        lambda b, h, i, j: j in ancestors(TWO_TREES[b], i)[:2],
    ),
    f"along(tree({PARENTS}), chunks(2))": (
        along(tree(PARENTS), chunks(2)),
        lambda b, h, i, j: j in ancestors(PARENTS, i) and depth(PARENTS, i) // 2 == depth(PARENTS, j) // 2,
    ),
    f"along(documents({IDS}), prefix(1) | window(2, ahead=1))": (
        along(documents(IDS), prefix(1) | window(2, ahead=1)),
        lambda b, h, i, j: (
            i >= 0 and IDS[i] == IDS[j] and (place(IDS, j) == 0 or -1 <= place(IDS, i) - place(IDS, j) < 2)
        ),
    ),
    f"along(documents({PACKED}), chunks(2))": (
        chunks(2, within=PACKED),
        lambda b, h, i, j: (
            i >= 0 and PACKED[b][i] == PACKED[b][j] and place(PACKED[b], i) // 2 == place(PACKED[b], j) // 2
        ),
    ),
    "grid_window([3, 3], [3, 3])": (grid_window([3, 3], 3), lambda b, h, i, j: i >= 0 and near((3, 3), (3, 3), i, j)),
    "grid_window([2, 2, 2], [1, 2, 3], start=1)": (
        grid_window([2, 2, 2], [1, 2, 3], start=1),
        lambda b, h, i, j: i >= 1 and j >= 1 and near((2, 2, 2), (1, 2, 3), i - 1, j - 1),
    ),
    "grid_window([3, 3], [2, 3], inside=True)": (
        grid_window((3, 3), (2, 3), inside=True),
        lambda b, h, i, j: i >= 0 and near((3, 3), (2, 3), i, j, inside=True),
    ),
    "block_diffusion(4, 3)": (block_diffusion(4, 3), lambda b, h, i, j: diffused(4, 3, i, j)),
    "block_diffusion(3, 1)": (block_diffusion(3, 1), lambda b, h, i, j: diffused(3, 1, i, j)),
}
FRAMES = [
    Frame.of(6),
    Frame.of(1),
    Frame.of(1, 6),
    Frame.of(3, 6),
    Frame.of(8, 5),
    Frame.of(3, 6, q_start=1),
    Frame.of(4, 3, q_start=5),
    Frame.of(0, 4),
    Frame.of(4, 0),
]

definitions = pytest.mark.parametrize("text", DEFINITIONS)


def by_hand(rule: Rule, batch: int, heads: int, frame: Frame) -> list[Any]:
    queries, keys = range(frame.q_start, frame.q_end), range(frame.k_len)
    return [
        [[[rule(b, h, i, j) for j in keys] for i in queries] for h in range(heads)] for b in range(batch)
    ]  # fmt: skip


@definitions
@pytest.mark.parametrize("frame", FRAMES, ids=str)
def test_the_definition(text: str, frame: Frame):
    mask, rule = DEFINITIONS[text]
    expected = by_hand(rule, mask.batch or 1, mask.heads or 1, frame)
    assert mask.visible_in(frame, torch.device("cpu")).tolist() == expected
    if mask.has_ranges:
        assert mask.spans_in(frame, torch.device("cpu")).to_bool().tolist() == expected


@definitions
def test_some_rows_alone(text: str):
    mask, rule = DEFINITIONS[text]
    whole = torch.tensor(by_hand(rule, mask.batch or 1, mask.heads or 1, Frame.of(6)))
    chosen = mask.visible_in(Frame.of(6), torch.device("cpu"), rows=torch.tensor([4, 0, 4]))
    assert chosen.tolist() == whole[:, :, [4, 0, 4]].tolist()


@definitions
def test_it_prints_as_the_expression_that_made_it(text: str):
    assert repr(DEFINITIONS[text][0]) == text


def test_long_data_is_summarised():
    assert repr(documents(range(1000))) == "documents(<1000 ids>)"
    assert repr(padding(torch.ones(4, 512, dtype=torch.bool))) == "padding(<4 x 512 keys>)"
    assert repr(dense(RAGGED)) == "dense(<2 x 3 x 99 x 99 bool>)"
    assert repr(dense(EACH)) == "dense(<2 x 3 x 9 x 9 bool, at most 4 ranges per row>)"
    assert repr(where(operator.ge)) == "where(ge)"


def test_data_that_cannot_be_read_is_summarised():
    absent = torch.zeros(2, 3, dtype=torch.long, device="meta")
    assert repr(documents(absent)) == "documents(<2 x 3 ids>)"
    assert repr(tree(absent)) == "tree(<2 x 3 parents>)"
    assert repr(ranges(absent, absent)) == "ranges(<2 x 3 ranges>)"


def test_data_may_come_as_arrays():
    numpy = pytest.importorskip("numpy")
    backwards = numpy.array([1, 0, 0])[::-1]
    assert repr(documents(backwards)) == "documents([0, 0, 1])"
    assert repr(chunks(1, within=backwards)) == "along(documents([0, 0, 1]), chunks(1))"
    assert repr(prefix(backwards)) == "prefix([0, 0, 1])"
    assert repr(prefix(numpy.int64(2))) == "prefix(2)"
    assert repr(shared_prefix(numpy.int64(1), backwards)) == repr(shared_prefix(1, [0, 0, 1]))
    assert repr(shared_prefix(backwards, [[1], numpy.array([2]), [3]])) == repr(
        shared_prefix([0, 0, 1], [[1], [2], [3]])
    )


@pytest.mark.parametrize("inside", [False, True])
def test_a_window_larger_than_the_grid_takes_no_more_ranges_than_the_grid_has_rows(inside: bool):
    mask = grid_window([3, 4, 5], 2**30 - 1, inside=inside)
    assert mask.has_ranges
    assert mask.spans(60).rows() == [[(0, 60)]] * 60


@pytest.mark.parametrize(("q_len", "k_len"), [(9, 9), (9, 6), (1, 7), (3, 7)])
def test_a_dense_square_serves_every_step(q_len: int, k_len: int):
    start = max(0, k_len - q_len)
    rows = slice(start, start + q_len)
    assert torch.equal(dense(SQUARE).to_bool(q_len, k_len, q_start=start), SQUARE[rows, :k_len])
    assert torch.equal(dense(EACH).to_bool(q_len, k_len, q_start=start), EACH[:, :, rows, :k_len])


def test_a_dense_rectangle_stands_at_its_last_columns():
    assert torch.equal(dense(SQUARE[5:]).to_bool(4, 9), SQUARE[5:])
    assert torch.equal(dense(SQUARE[5:]).to_bool(2, 8), SQUARE[6:8, :8])


def test_where_takes_positions_or_indices_too():
    assert where(lambda i, j: j * 2 <= i).to_bool(2, 4).int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
    rule = where(lambda b, h, i, j: j <= i - b - h, batch=2, heads=2)
    assert (rule.batch, rule.heads) == (2, 2)
    assert rule.to_bool(3).sum((-1, -2)).tolist() == [[6, 3], [3, 1]]
    # Declared for the batch alone; the rule does not look at the head.
    assert where(lambda b, h, i, j: j < i - b, batch=2).to_bool(3).sum((-1, -2)).tolist() == [[3], [1]]


def test_where_works_with_a_table():
    table = torch.tensor([[True, False, True], [False, True, True]])
    mask = where(lambda b, h, i, j: table[b, j], batch=2)
    assert mask.to_bool(1, 3)[:, 0, 0].tolist() == table.tolist()


TABLE = torch.ones(2, 9, dtype=torch.bool)


@pytest.mark.parametrize(
    "rule",
    [
        lambda b, h, i, j: b == 0,
        lambda b, h, i, j: (j <= i) & (b > 0),
        lambda b, h, i, j: i + b < j,
        lambda b, h, i, j: b % 2 == i,
        lambda b, h, i, j: -b <= i,
        lambda b, h, i, j: b / 2 <= i,
        lambda b, h, i, j: (b & 1) == i,
        lambda b, h, i, j: TABLE[b, i],
        lambda b, h, i, j: TABLE[b],
        lambda b, h, i, j: [j <= i, j > i][b],
        lambda b, h, i, j: {0: j <= i}[b],
        lambda b, h, i, j: j <= i if b else j > i,
        lambda b, h, i, j: torch.where(b, j <= i, j > i),
        lambda b, h, i, j: b.bool() & (j <= i),
    ],
)
def test_a_rule_that_looks_at_an_axis_must_declare_it(rule):
    with pytest.raises(BadArgument, match=r"^where\(rule\): .* where\(rule, batch=...\), got a rule that uses"):
        where(rule).to_bool(3)
    with pytest.raises(BadArgument, match=r"where\(rule, heads=...\)"):
        where(lambda b, h, i, j: rule(h, b, i, j), batch=2).to_bool(3)


# Values.


@pytest.mark.parametrize("mask", [causal(), window(3), documents(IDS), padding([3]), causal() & window(2), ~causal()])
def test_a_mask_never_changes(mask: Mask):
    for name in ("back", "ids", "parts", "anything"):
        with pytest.raises(AttributeError, match=f"a mask is immutable; make a new one instead of setting '{name}'"):
            setattr(mask, name, 1)


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (documents, torch.tensor([0, 0, 1])),
        (padding, torch.tensor([3, 1])),
        (padding, torch.tensor([[True, False, True]])),
        (prefix, torch.tensor([0, 2])),
        (dense, torch.ones(3, 3, dtype=torch.bool).tril()),
    ],
)
def test_later_changes_of_the_data_have_no_effect(make, given: torch.Tensor):
    mask = make(given)
    before, printed = mask.to_bool(3).clone(), repr(mask)
    given.zero_()
    assert not torch.equal(make(given).to_bool(3), before)
    assert torch.equal(mask.to_bool(3), before)
    assert repr(mask) == printed


@definitions
def test_a_copy_and_a_pickle_mean_the_same(text: str):
    mask = DEFINITIONS[text][0]
    mask.to_bool(6)
    assert copy.deepcopy(mask) is mask
    assert copy.copy(mask) is mask
    again = pickle.loads(pickle.dumps(mask))
    assert repr(again) == text
    assert torch.equal(again.to_bool(6), mask.to_bool(6))


@definitions
def test_to_a_device_means_the_same(text: str):
    mask = DEFINITIONS[text][0]
    moved = mask.to("cpu")
    assert repr(moved) == text
    assert (moved.batch, moved.heads) == (mask.batch, mask.heads)
    assert torch.equal(moved.to_bool(6), mask.to_bool(6))


WITH_DATA = [
    ranges(STARTS, ENDS),
    tree(PARENTS),
    along(tree(PARENTS), window(2)),
    chunks(2, within=IDS),
    documents(IDS),
    padding([3]),
    padding(REAL),
    prefix([1]),
    dense(SQUARE),
    ~documents(IDS) & prefix([1]),
    per_head([causal(), documents(IDS)]),
    lagged(documents(IDS), [2, 0]),
    shifted(documents(IDS), queries=1, keys=1, heads=None),
    item_of(padding([3, 1]), batch=1, head=0),
    ~item_of(per_head([causal(), documents(IDS)]), batch=0, head=1),
]


@pytest.mark.parametrize("mask", WITH_DATA, ids=repr)
def test_to_a_device_brings_the_data(mask: Mask):
    def devices(mask: Mask) -> set[str]:
        values = [value for part in mask.walk() for value in part._flatten()]
        return {value.device.type for value in values if isinstance(value, torch.Tensor)}

    assert devices(mask) == {"cpu"}
    moved = mask.to("meta")
    assert devices(moved) == {"meta"}
    assert devices(mask) == {"cpu"}
    assert (type(moved), moved.batch, moved.heads, moved.has_ranges) == (
        type(mask), mask.batch, mask.heads, mask.has_ranges,
    )  # fmt: skip
    # Nothing to move, so no new mask.
    assert mask.to("cpu") is mask


@pytest.mark.parametrize("mask", WITH_DATA, ids=repr)
def test_every_nested_mask_is_walked(mask: Mask):
    inner = lagged(mask, [1]) if mask.batch is None else mask
    around = per_head([full() | ~item_of(inner, batch=0, head=0), causal()])
    assert inner in list(around.walk())
    assert [type(part).__name__ for part in around.walk()][:4] == ["PerHead", "Or", "Full", "Not"]


@pytest.mark.parametrize("mask", WITH_DATA, ids=repr)
def test_wrapping_a_mask_keeps_its_checks(mask: Mask):
    short, message = documents([0, 0, 1]), r"^documents\(ids\): expected an id for each of the \d+ positions, got 3 ids"
    for around in (~short, lagged(short, [1]), shifted(short, queries=1, keys=1, heads=None), ~(short & mask)):
        with pytest.raises(BadArgument, match=message):
            around.to_bool(8)


def test_threads_may_share_a_mask():
    mask = causal() & documents(torch.arange(64) // 7)
    interval = sys.getswitchinterval()
    wrong: list[str] = []

    def ask() -> None:
        for n in range(200):
            length = 1 + n % 12
            try:
                if mask.spans(length).k_len != length:
                    wrong.append(f"the spans of another length than {length}")
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert len(mask._remembered) <= REMEMBERED_FRAMES


# Refusals.


# What is called, with what, and what the message says.
WRONG: list[tuple[Callable[..., object], tuple[Any, ...], str]] = [
    (
        window,
        (0,),
        r"^window\(n\): expected an integer of at least 1, got 0\. A window counts the query itself",
    ),
    (window, (True,), r"^window\(n\): expected an integer of at least 1, got True"),
    (window, (2.5,), r"^window\(n\): expected an integer of at least 1, got 2\.5"),
    (window, ("3",), r"^window\(n\): expected an integer of at least 1, got '3'"),
    (window, (2**30,), r"^window\(n\): expected an integer of at most 2\*\*30 - 1 .*, got 1,073,741,824"),
    (lambda n: window(3, ahead=n), (-1,), r"^ahead: expected an integer of at least 0, got -1"),
    (prefix, (-1,), r"^prefix\(n\): expected an integer of at least 0, got -1"),
    (prefix, (True,), r"^prefix\(n\): expected an integer of at least 0, got True"),
    (prefix, (1.5,), r"^prefix\(n\): expected an integer of at least 0, got 1\.5"),
    (prefix, ([1, -2],), r"^prefix\(n\): expected integers of at least 0, .*, got a minimum of -2"),
    (prefix, ([],), r"^prefix\(n\): expected integers of at least 0, .*, got .* of shape \[0\]"),
    (chunks, (0,), r"^chunks\(n\): expected an integer of at least 1, got 0"),
    (dilated, (0,), r"^dilated\(step\): expected an integer of at least 1, got 0"),
    (documents, ([0.5, 1.0],), r"^documents\(ids\): expected integer ids .*, got a float32 tensor of shape \[2\]"),
    (documents, (torch.zeros(2, 2, 2).long(),), r"^documents\(ids\): .*\[T\] or \[batch, T\].*\[2, 2, 2\]"),
    (documents, (torch.tensor(1),), r"^documents\(ids\): .*, got an int64 tensor of shape \[\]"),
    (documents, ([],), r"^documents\(ids\): expected .*, at least one, got .* of shape \[0\]"),
    (documents, ([[0, 1], [0]],), r"^documents\(ids\): expected integer ids .*, got \[\[0, 1\], \[0\]\]"),
    (documents, ("ab",), r"^documents\(ids\): expected integer ids .*, got 'ab'"),
    (padding, ([2, -1],), r"^padding\(lengths\): expected integers of at least 0, .*, got a minimum of -1"),
    (padding, ([1.5],), r"^padding\(lengths\): expected integers .*, got a float32 tensor"),
    (padding, ([[2, 3]],), r"^padding\(lengths\): .* one for each batch item, got an int64 tensor of shape \[1, 2\]"),
    (padding, (torch.ones(1, 2, 3).bool(),), r"^padding\(real\): .* bool tensor \[batch, T\], got .*\[1, 2, 3\]"),
    (padding, ([True, False],), r"^padding\(real\): .*, got a bool tensor of shape \[2\]"),
    (where, (lambda i, j, k: i,), r"^where\(rule\): expected 2 or 4 parameters, got 3\. Write lambda i, j: "),
    (where, (3,), r"^where\(rule\): expected a function, got 3"),
    (lambda rule: where(rule, batch=2), (operator.ge,), r"^where\(rule\): expected rule\(b, h, i, j\) when batch"),
    (lambda n: where(lambda b, h, i, j: h == i, heads=n), (0,), "^heads: expected an integer of at least 1, got 0"),
    (lambda f: where(f).to_bool(2), (lambda i, j: i * 0.5,), r"^where\(rule\): .* a bool tensor, got torch\.float32"),
    (lambda f: where(f).to_bool(2), (lambda i, j: True,), r"^where\(rule\): .* returns a bool tensor, got bool"),
    (dense, (torch.zeros(2, 2),), r"^dense\(tensor\): expected a bool .*, got a float32 tensor .* from_additive"),
    (dense, ([[True]],), r"^dense\(tensor\): expected a bool tensor, True = may be heard, got list"),
    (dense, (SQUARE[None],), r"^dense\(tensor\): expected shape .*, got \[1, 9, 9\]\. .*padding\(tensor\)"),
    (dense, (SQUARE[:0],), r"^dense\(tensor\): expected .* none of them 0, got \[0, 9\]"),
    (per_head, ([],), r"^per_head\(masks\): expected a list of masks, one per head, got \[\]"),
    (per_head, ([causal(), 3],), r"^per_head\(masks\): expected a list of masks, .*, got \[causal\(\), 3\]"),
    (per_head, ([per_head([causal()])],), r"^per_head\(masks\): expected masks that are the same for every head"),
    (ranges, ([0, 1], [1]), r"^ranges\(starts, ends\): expected two tensors of one shape, got \[2\] and \[1\]\.$"),
    (ranges, ([0.5], [1]), r"^ranges\(starts, ends\): expected integers \[T\], \[T, ranges\].*, got a float32 tensor"),
    (ranges, ([True], [True]), r"^ranges\(starts, ends\): expected integers .*, got a bool tensor of shape \[1\]"),
    (ranges, ([], []), r"^ranges\(starts, ends\): expected .*, at least one, got .* of shape \[0\]"),
    (ranges, ("a", "b"), r"^ranges\(starts, ends\): expected integers .*, got 'a'"),
    (
        ranges,
        (torch.zeros(1, 1, 1, 1, 1).int(), torch.zeros(1, 1, 1, 1, 1).int()),
        r"^ranges\(starts, ends\): .* got an int32 tensor of shape \[1, 1, 1, 1, 1\]\. One range per query and",
    ),
    (
        tree,
        ([-1, 2, 0],),
        r"^tree\(parents\): expected -1 for a root, or a position before the node's own, got 2 at position 1\. Order",
    ),
    (tree, ([-1, -2],), r"^tree\(parents\): .*, got -2 at position 1"),
    (tree, ([[-1, 0], [-1, 1]],), r"^tree\(parents\): .*, got 1 at position 1"),
    (tree, ([0],), r"^tree\(parents\): .*, got 0 at position 0"),
    (tree, ([],), r"^tree\(parents\): expected integer parents \[T\] or \[batch, T\], at least one, got .* \[0\]"),
    (tree, ([0.5],), r"^tree\(parents\): expected integer parents .*, got a float32 tensor"),
    (lambda n: tree([-1], after=n), (-1,), r"^after: expected an integer of at least 0, got -1"),
    (shared_prefix, (-1, [2]), r"^shared_prefix\(prompt_length\): expected an integer of at least 0, got -1"),
    (shared_prefix, (2, [2, 0.5]), r"^shared_prefix\(answer_lengths\): expected an integer of at least 0, got 0\.5"),
    (shared_prefix, (2, 3), r"^shared_prefix\(answer_lengths\): expected the answer lengths of each prompt.*, got 3"),
    (shared_prefix, ([2, 2], [[1]]), r"^shared_prefix\(answer_lengths\): expected .* of each prompt.*, got \[\[1\]\]"),
    (
        shared_prefix,
        (0, [0]),
        r"^shared_prefix\(prompt_length\): expected from one token in all to 2\*\*30 - 1 .*, got 0",
    ),
    (
        shared_prefix,
        (2**29, [2**29, 2]),
        r"^shared_prefix\(prompt_length\): expected from one token .*, got 1,073,741,826",
    ),
    (shared_prefix, ("a", [1]), r"^shared_prefix\(prompt_length\): expected an integer of at least 0, got 'a'"),
    (
        along,
        (causal(), window(2)),
        r"^along\(paths\): expected documents\(ids\), tree\(parents\) or .* got causal\(",
    ),
    (along, (tree([-1]), 3), r"^along\(mask\): expected a mask, such as window\(2\), got 3"),
    (lambda ids: chunks(2, within=ids), ([0.5],), r"^chunks\(within\): expected integer ids .*, got a float32 tensor"),
    (
        documents,
        (torch.tensor([1]).to_sparse(),),
        r"^documents\(ids\): .*, got a sparse_coo int64 tensor.* \.to_dense\(\)",
    ),
    (documents, ([*range(1000), None],), r"^documents\(ids\): .*, got \[0, 1, 2, 3, 4, 5, \.\.\.\]\.$"),
    (
        dense,
        (torch.eye(2).bool().to_sparse(),),
        r"^dense\(tensor\): .*, got a sparse_coo bool tensor .* \.to_dense\(\)",
    ),
    (
        lambda f: (causal() & where(f)).to_bool(2),
        (lambda i, j: torch.ones(7, dtype=torch.bool),),
        r"^where\(rule\): expected an answer for each pair, .* broadcasts to \[1, 1, 2, 2\], got \[7\]",
    ),
    (grid_window, (4, 2), r"^grid_window\(shape\): expected integers, one for each axis, such as \[4, 6\], got 4"),
    (grid_window, ([], 2), r"^grid_window\(shape\): expected integers, one for each axis, .*, got \[\]"),
    (grid_window, ([0, 2], 2), r"^grid_window\(shape\): expected an integer of at least 1, got 0"),
    (grid_window, ([4, 4], 0), r"^grid_window\(size\): expected an integer of at least 1, got 0"),
    (grid_window, ([4, 4], [3]), r"^grid_window\(size\): expected one size, or one for each of the 2 axes of the grid"),
    (grid_window, ([2**15, 2**15], 3), r"^grid_window\(shape\): expected fewer than 2\*\*30 positions, got"),
    (lambda n: grid_window([2], 2, inside=n), (1,), r"^inside: expected True or False, got 1"),
    (lambda n: grid_window([2], 2, start=n), (-1,), r"^start: expected an integer of at least 0, got -1"),
    (block_diffusion, (0, 2), r"^block_diffusion\(length\): expected an integer of at least 1, got 0"),
    (block_diffusion, (2, 0), r"^block_diffusion\(n\): expected an integer of at least 1, got 0"),
    (bool, (causal(),), r"^mask: expected `&`, `\|` and `~` between masks, got `and`, `or`.*Write causal\(\) & window"),
    (operator.and_, (padding([1, 2]), padding([1, 2, 3])), "^mask: expected masks for one batch size, got 2 and 3"),
    (operator.or_, (padding([1, 2]), documents([[1]])), "^mask: expected masks for one batch size, got 1 and 2"),
    (operator.and_, (per_head([full()] * 2), per_head([full()] * 3)), "^mask: .* for one number of heads, got 2 and 3"),
    (per_head, ([padding([1]), padding([1, 2])],), "^mask: expected masks for one batch size, got 1 and 2"),
]


@pytest.mark.parametrize(("call", "arguments", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_refusals(call, arguments: tuple[Any, ...], message: str):
    with pytest.raises(RearviewError, match=message):
        call(*arguments)


@pytest.mark.parametrize(
    ("mask", "frame", "message"),
    [
        (
            documents([0, 0, 1]),
            (4,),
            r"^documents\(ids\): expected an id for each of the 4 positions, got 3 ids\. ",
        ),
        (documents([0, 0, 1]), (1, 2, 3), r"^documents\(ids\): expected an id for each of the 4 positions"),
        (causal() & ~documents([0]), (2,), r"^documents\(ids\): expected an id for each of the 2 positions"),
        (per_head([causal(), documents([0])]), (2,), r"^documents\(ids\): expected an id"),
        (
            ranges([0, 0], [1, 2]),
            (3,),
            r"^ranges\(starts, ends\): expected a row for each of the 3 query positions",
        ),
        (
            tree([-1, 0]),
            (3,),
            r"^tree\(parents\): expected a parent for each of the 3 positions, got 2 parents",
        ),
        (along(tree([-1, 0]), window(1)), (1, 3), r"^tree\(parents\): expected a parent for each of the 3 positions"),
        (along(tree([-1, 0]), documents([0])), (2,), r"^documents\(ids\): expected an id for each of the 2 positions"),
        (padding([[True, True]]), (1, 3), r"^padding\(real\): expected .* covers the 3 keys, got T = 2\. Append True"),
        (dense(SQUARE), (1, 10), r"^dense\(tensor\): expected queries at 9\.\.9 over 10 keys, got .* at 0\.\.8 over 9"),
        (dense(SQUARE[5:]), (5, 9), r"^dense\(tensor\): expected queries at 4\.\.8 .*, got .* at 5\.\.8 over 9 keys"),
        (dense(SQUARE), (9, 8), r"^dense\(tensor\): expected queries at -1\.\.7"),
    ],
)
def test_data_that_does_not_cover_the_frame(mask: Mask, frame: tuple[int, ...], message: str):
    q_len, k_len, q_start = (*frame, None, None)[:3]
    assert q_len is not None
    for lower in (mask.to_bool, mask.tiles, mask.spans) if mask.has_ranges else (mask.to_bool, mask.tiles):
        with pytest.raises(BadArgument, match=message):
            lower(q_len, k_len, q_start=q_start)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"q_len": -1}, "^q_len: expected an integer of at least 0, got -1"),
        ({"q_len": 2.0}, r"^q_len: expected an integer of at least 0, got 2\.0"),
        ({"q_len": 2, "k_len": -1}, "^k_len: expected an integer of at least 0, got -1"),
        ({"q_len": 2, "q_start": -1}, "^q_start: expected an integer of at least 0, got -1"),
        ({"q_len": 2, "q_start": 2**30 - 2}, r"^q_start \+ q_len: expected an integer of at most 2\*\*30 - 1"),
    ],
)
def test_invalid_frames(frame: dict[str, Any], message: str):
    with pytest.raises(BadArgument, match=message):
        causal().to_bool(**frame)


@pytest.mark.parametrize("mask", [dilated(2), where(lambda i, j: j <= i), dense(RAGGED), causal() & ~dilated(3)])
def test_no_range_form_says_what_to_use_instead(mask: Mask):
    assert not mask.has_ranges
    with pytest.raises(NoRangeForm, match=r"has no range form:\n  - .*not a few ranges\nUse to_bool"):
        mask.spans(4)


@pytest.mark.parametrize("other", [None, True, torch.ones(2, 2, dtype=torch.bool)])
def test_only_masks_join(other: Any):
    for join in (lambda: causal() & other, lambda: causal() | other, lambda: other & causal()):
        with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for"):
            join()


def test_the_largest_numbers_are_still_exact():
    most = 2**30 - 1
    far = window(most, ahead=most)
    assert far.spans(1, 8, q_start=most - 1).rows() == [[(0, 8)]]
    assert chunks(most).spans(1, 8, q_start=most - 1).rows() == [[(0, 8)]]
    assert far.to_bool(1, 8, q_start=most - 1).all()
