"""Masks as words, numbers and tensors, which a compiled graph can carry."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from rearview import (
    Mask,
    along,
    attend,
    block_diffusion,
    causal,
    chunks,
    dense,
    dilated,
    documents,
    grid_window,
    padding,
    prefix,
    ranges,
    tree,
    where,
    window,
)
from rearview.errors import BadArgument, Unsupported
from rearview.masks import Frame
from rearview.masks.encoding import can_encode, decode, encode
from rearview.masks.item import item_of
from rearview.masks.lagged import lagged
from rearview.masks.mask import FAMILIES as BY_WORD
from rearview.masks.shifted import shifted
from tests.mask_families import FAMILIES
from tests.masks.strategies import frames, range_masks
from tests.native_kernel import needs_native

BATCH, HEADS, LENGTH = 2, 4, 13
CPU = torch.device("cpu")
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


@families
def test_a_mask_that_has_ranges_is_decoded_as_it_was(family):
    mask: Mask = family(BATCH, HEADS, LENGTH)
    assert can_encode(mask) == mask.has_ranges
    if can_encode(mask):
        again = decode(*encode(mask))
        assert repr(again) == repr(mask)
        assert (again.batch, again.heads) == (mask.batch, mask.heads)
        assert again.equals(mask, LENGTH)


def test_every_word_is_used_once_and_is_one_word():
    assert all(kind.word == word and word.isidentifier() for word, kind in BY_WORD.items())
    assert len({kind for kind in BY_WORD.values()}) == len(BY_WORD)


def test_the_words_show_the_fields():
    text, numbers, tensors = encode((causal() & window(3, ahead=1)) | ~documents([0, 1]) | prefix([1, 2]))
    assert text == "causal window:nn and:mm documents:t not:m prefixes:t or:mmm"
    assert numbers == [3, 1]
    assert [tensor.tolist() for tensor in tensors] == [[0, 1], [1, 2]]


def test_nested_masks_keep_their_order():
    mask = lagged(window(5) & lagged(documents(range(9)), [1, 0]) & prefix(2), [0, 3])
    text, numbers, tensors = encode(mask)
    assert text == "window:nn documents:t lagged:mtn prefix:n and:mmm lagged:mtn"
    assert repr(decode(text, numbers, tensors)) == repr(mask)


@pytest.mark.parametrize(
    "mask",
    [
        dilated(2),
        where(lambda i, j: i >= j),
        item_of(padding([1, 2]), batch=0, head=0),
        shifted(causal(), queries=1, keys=1, heads=None),
    ],
    ids=repr,
)
def test_a_family_without_a_word_is_refused(mask: Mask):
    assert not can_encode(mask)
    assert not can_encode(causal() & ~mask)
    with pytest.raises(Unsupported) as caught:
        encode(causal() & mask)
    assert str(caught.value).startswith(
        f"{mask!r} as an operator's argument:\n  - its family has no encoding for compiled graphs"
    )


@families
@pytest.mark.parametrize("k_len", [1, 2, LENGTH])
def test_one_range_is_what_the_only_query_hears(family, k_len):
    mask: Mask = family(BATCH, HEADS, LENGTH)
    frame = Frame.of(1, k_len)
    for one in (mask, mask._simplify(frame)):
        if (found := one.one_range(frame)) is not None:
            start, end = found
            expected = torch.zeros(k_len, dtype=torch.bool)
            expected[start:end] = True
            assert torch.equal(mask.visible_in(frame, CPU), expected.expand_as(mask.visible_in(frame, CPU)))


@given(range_masks, frames)
@settings(deadline=None)
def test_one_range_agrees_with_the_ranges(mask: Mask, frame: Frame):
    one = Frame(1, frame.k_len, frame.q_start)
    if (found := mask.one_range(one)) is not None:
        spans = mask.spans_in(one, CPU)
        for batch in range(spans.batch):
            for head in range(spans.heads):
                assert spans.rows(batch, head) == [[found]]


@pytest.mark.parametrize(
    ("family", "expected"),
    [("full", (0, 12)), ("causal", (0, 12)), ("window", (5, 12)), ("window ahead", (9, 12)), ("chunks", (0, 12))],
)
def test_families_that_know_their_range(family, expected):
    assert FAMILIES[family](BATCH, HEADS, 12).one_range(Frame.of(1, 12)) == expected
    assert (causal() & FAMILIES[family](BATCH, HEADS, 12)).one_range(Frame.of(1, 12)) == expected


def test_no_range_where_nothing_is_heard_or_it_is_not_one():
    frame = Frame.of(1, 12)
    assert prefix(0).one_range(frame) is None
    assert (window(2) & prefix(3)).one_range(frame) is None
    assert (causal() | window(2)).one_range(frame) is None
    assert (causal() & padding([3])).one_range(frame) is None


PARENTS = torch.tensor([-1, 0, 1, 1, 3, -1, 5, 0, 7])
# Made inside the graph from a tensor that it is given, and made before it.
IN_GRAPH: dict[str, Callable[[Tensor], Mask]] = {
    "tree": lambda parents: tree(parents),
    "along": lambda parents: along(tree(parents), window(2) | prefix(1)),
    "along, with data": lambda parents: along(tree(parents), documents([0, 0, 1, 1, 1])),
    "chunks": lambda parents: causal() & chunks(2, within=(parents + 1) // 4),
    "ranges": lambda parents: ranges(parents.clamp(min=0), parents + 3),
    "grid window": lambda parents: grid_window([3, 3], 3),
    "block diffusion": lambda parents: block_diffusion(5, 2),
    "dense made before": lambda parents: LOOKS_BACK,
    "tree made before": lambda parents: BRANCHES,
    "trees of two items, one along the other": lambda parents: along(
        tree(parents.expand(2, -1)), tree([[-1, 0, 0, 1], [-1, -1, 0, 2]])
    ),
    "documents made before": lambda parents: along(PACKED, window(2)),
}
LOOKS_BACK, BRANCHES = dense(causal().to_bool(9)), tree(PARENTS)
PACKED = documents(PARENTS.clamp(max=2))


@pytest.mark.parametrize("engine", [pytest.param("native", marks=needs_native), "reference"])
@pytest.mark.parametrize("name", IN_GRAPH)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
def test_a_compiled_graph_carries_it(name: str, engine: str):
    torch.compiler.reset()
    make = IN_GRAPH[name]
    x = torch.randn(2, 2, 9, 8, generator=torch.Generator().manual_seed(0))

    def run(x: Tensor, parents: Tensor) -> Tensor:
        return attend(x, x, x, mask=make(parents), engine=engine)

    found = torch.compile(run, backend="aot_eager", fullgraph=True)(x, PARENTS)
    torch.testing.assert_close(found, attend(x, x, x, mask=make(PARENTS), engine="blocks"))


@needs_native
def test_a_compiled_graph_finds_data_that_are_too_short_when_it_runs():
    torch.compiler.reset()
    x = torch.randn(1, 2, 9, 8)

    def run(x: Tensor, parents: Tensor) -> Tensor:
        return attend(x, x, x, mask=along(tree(parents), documents([0, 0, 1])), engine="native")

    with pytest.raises(BadArgument, match=r"^documents\(ids\): expected an id for each of the 4 positions, got 3 ids"):
        torch.compile(run, backend="aot_eager", fullgraph=True)(x, PARENTS)
