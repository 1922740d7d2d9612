"""Trees against the definition: walk from each node to its root."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rearview import Mask, along, causal, chunks, documents, full, prefix, shared_prefix, tree, window
from rearview.errors import BadArgument
from rearview.masks import Frame
from rearview.masks.encoding import decode, encode
from rearview.masks.lagged import lagged
from rearview.masks.parser import parse
from tests.masks.test_spans import assert_canonical

CPU = torch.device("cpu")
quick = settings(deadline=None, max_examples=150)


def path(parents: list[int], node: int) -> list[int]:
    """A node and its ancestors up to the root."""
    found = []
    while node >= 0:
        found.append(node)
        node = parents[node]
    return found


def by_hand(parents: list[int]) -> Tensor:
    visible = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        visible[node, path(parents, node)] = True
    return visible


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    """Any topological order: paths, brooms, bushes, several trees."""
    length = draw(st.integers(1, 24))
    follows = draw(st.integers(0, 3))
    return [
        node - 1 if draw(st.integers(0, 3)) < follows else draw(st.integers(-1, node - 1)) for node in range(length)
    ]


@given(forests())
@quick
def test_a_node_hears_its_ancestors_and_itself(parents: list[int]):
    mask, expected = tree(parents), by_hand(parents)
    length = len(parents)
    spans = mask.spans(length)
    assert torch.equal(mask.to_bool(length), expected)
    assert torch.equal(spans.to_bool()[0, 0], expected)
    assert_canonical(spans)
    assert mask.positions.tolist() == [len(path(parents, node)) - 1 for node in range(length)]
    assert mask.warnings(length) == ()
    # A tree that has grown so far, and one node of it.
    for position in range(length):
        assert torch.equal(mask.spans(1, position + 1).to_bool()[0, 0, 0], expected[position, : position + 1])
    again = decode(*encode(mask))
    assert repr(again) == repr(mask)
    assert again.equals(mask, length)


@given(forests(), forests())
@quick
def test_items_differ(one: list[int], other: list[int]):
    length = min(len(one), len(other))
    mask = tree([one[:length], other[:length]])
    expected = torch.stack([by_hand(one[:length]), by_hand(other[:length])]).unsqueeze(1)
    assert mask.batch == 2
    assert torch.equal(mask.to_bool(length), expected)
    assert torch.equal(mask.spans(length).to_bool(), expected)
    assert mask.positions.tolist() == [[len(path(p, n)) - 1 for n in range(length)] for p in (one, other)]
    behind = lagged(mask, [0, length // 2]).spans(1, length).to_bool()
    assert torch.equal(behind[0, 0, 0], expected[0, 0, -1])
    assert torch.equal(behind[1, 0, 0], expected[1, 0, length - 1 - length // 2])


INNER = {
    "full": (full(), lambda i, j: True),
    "window": (window(3), lambda i, j: i - 3 < j <= i),
    "sinks and window": (causal() & (window(2) | prefix(1)), lambda i, j: i - 2 < j <= i or j == 0),
    "chunks": (chunks(3), lambda i, j: i // 3 == j // 3),
    "not chunks": (~chunks(2), lambda i, j: i // 2 != j // 2),
}


@given(forests(), st.sampled_from(sorted(INNER)))
@quick
def test_a_mask_along_the_tree_counts_depths(parents: list[int], name: str):
    mask, rule = INNER[name]
    length = len(parents)
    expected = by_hand(parents)
    depth = [len(path(parents, node)) - 1 for node in range(length)]
    for i in range(length):
        for j in range(length):
            expected[i, j] &= rule(depth[i], depth[j])
    found = along(tree(parents), mask)
    assert torch.equal(found.to_bool(length), expected)
    assert torch.equal(found.spans(length).to_bool()[0, 0], expected)
    assert_canonical(found.spans(length))
    assert torch.equal(found.spans(1, length).to_bool()[0, 0, 0], expected[-1])


@given(forests(), st.sampled_from(sorted(INNER)))
@quick
def test_each_path_is_what_the_mask_gives_it_alone(parents: list[int], name: str):
    """What prefix trees are for: one row in place of one row per leaf."""
    mask, _ = INNER[name]
    packed = along(tree(parents), mask).to_bool(len(parents))
    for leaf in set(range(len(parents))) - set(parents):
        nodes = path(parents, leaf)[::-1]
        alone = (mask & causal()).to_bool(len(nodes))
        assert torch.equal(packed[nodes][:, nodes], alone)
        assert packed[leaf].sum() == alone[-1].sum()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=14), st.sampled_from(sorted(INNER)))
@quick
def test_each_document_is_what_the_mask_gives_it_alone(ids: list[int], name: str):
    mask, _ = INNER[name]
    packed = along(documents(ids), mask)
    visible = packed.to_bool(len(ids))
    assert torch.equal(packed.spans(len(ids)).to_bool()[0, 0], visible)
    place = documents(ids).positions.tolist()
    for each in set(ids):
        tokens = [n for n, name in enumerate(ids) if name == each]
        assert [place[n] for n in tokens] == list(range(len(tokens)))
        assert torch.equal(visible[tokens][:, tokens], mask.to_bool(len(tokens)))
        assert visible[tokens].sum() == mask.to_bool(len(tokens)).sum()


def test_a_tree_over_a_cache():
    """A speculative step: the nodes of the draft follow on the text, and ask from the end of the cache."""
    draft = [-1, 0, 0, 1, -1]
    mask = tree(draft, after=100)
    assert mask.own_length == 105
    spans = mask.spans(5, 105)
    assert spans.rows() == [
        [(0, 101)],
        [(0, 102)],
        [(0, 101), (102, 103)],
        [(0, 102), (103, 104)],
        [(0, 100), (104, 105)],
    ]
    assert mask.positions[100:].tolist() == [100, 101, 101, 102, 100]
    assert tree([draft, draft], after=3).spans(5, 8).batch == 2
    assert mask.spans(100).equals(causal().spans(100))


def test_shared_prefixes():
    mask = shared_prefix(3, [2, 1])
    assert mask.spans(6).rows() == [[(0, 1)], [(0, 2)], [(0, 3)], [(0, 4)], [(0, 5)], [(0, 3), (5, 6)]]
    assert mask.positions.tolist() == [0, 1, 2, 3, 4, 3]
    several = shared_prefix([1, 2], [[2, 2], [1]])
    assert several.positions.tolist() == [0, 1, 2, 1, 2, 0, 1, 2]
    assert several.spans(8).rows()[3:6] == [[(0, 1), (3, 4)], [(0, 1), (3, 5)], [(5, 6)]]
    assert repr(shared_prefix(torch.tensor(1), torch.tensor([1, 1]))) == "shared_prefix(1, [1, 1])"
    # Without a prompt, the answers are documents.
    alone = shared_prefix(0, [2, 0, 3])
    assert alone.equals(causal() & documents([0, 0, 1, 1, 1]), 5)
    assert parse("shared_prefix([1, 2], [[2, 2], [1]])").equals(several, 8)
    assert parse("tree([-1, -1, 0], after=2)").equals(tree([-1, 0, 1, 1, 2]), 5)


@pytest.mark.parametrize(
    ("mask", "written"),
    [
        (shared_prefix(2, [3, 1]), "shared_prefix(2, [3, 1])"),
        (shared_prefix([2, 0, 1], [[3, 1], [2], []]), "shared_prefix([2, 0, 1], [[3, 1], [2], []])"),
        (shared_prefix(4, [2] * 100), "shared_prefix(<1 prompt, 100 answers>)"),
        (shared_prefix([1] * 30, [[1, 1]] * 30), "shared_prefix(<30 prompts, 60 answers>)"),
    ],
)
def test_a_shared_prefix_prints_as_it_was_written(mask: Mask, written: str):
    assert repr(mask) == written
    again = decode(*encode(mask))
    assert repr(again) == written
    assert again.equals(mask, mask.own_length or 0)
    assert repr(mask.to("meta")) == written
    if "<" not in written:
        assert repr(parse(written)) == written


def test_a_caller_may_change_its_parents_later():
    parents = torch.tensor([-1, 0, 1])
    mask = tree(parents)
    parents[2] = 0
    assert mask.spans(3).rows() == [[(0, 1)], [(0, 2)], [(0, 3)]]


LARGE = 200_000


def large_trees() -> dict[str, Tensor]:
    node = torch.arange(LARGE)
    generator = torch.Generator().manual_seed(0)
    anywhere = (torch.rand(LARGE, generator=generator) * node).long()
    branches = torch.rand(LARGE, generator=generator) < 0.01
    return {
        "path": node - 1,
        "star": torch.where(node == 0, -1, 0),
        "heap": torch.where(node == 0, -1, (node - 1) // 2),
        "prefix tree": torch.where(branches & (node > 0), anywhere, node - 1),
        "roots only": torch.full_like(node, -1),
    }


@pytest.mark.parametrize("name", large_trees())
def test_large_trees_stay_small(name: str):
    parents = large_trees()[name]
    mask = tree(parents)
    assert mask.has_ranges
    spans = mask.spans(LARGE)
    assert spans.starts.numel() == LARGE * spans.most_ranges
    most = {"path": 1, "star": 2, "heap": 18, "roots only": 1}
    assert spans.most_ranges == most.get(name, spans.most_ranges)
    assert spans.most_ranges < 40
    rows = parents.tolist()
    for node in [*range(0, LARGE, LARGE // 7), LARGE - 1]:
        ancestors = torch.tensor(path(rows, node))
        visible = torch.zeros(LARGE, dtype=torch.bool)
        visible[ancestors] = True
        assert int(mask.positions[node]) == len(ancestors) - 1
        one = mask.spans(1, LARGE, q_start=node).to_bool()[0, 0, 0]
        assert torch.equal(one, visible)
        assert torch.equal(mask.visible_in(Frame(1, LARGE, node), CPU)[0, 0, 0], visible)


def test_a_tree_of_interleaved_paths_has_no_ranges():
    node = torch.arange(3000)
    mask = tree(torch.where(node < 2, -1, node - 2))
    assert not mask.has_ranges
    assert mask.range_obstacle == "the ancestors of one position lie in 1,500 separate runs"
    assert mask.equals(causal() & documents(node % 2), 3000)
    # Asked for by name, the ranges are exact all the same.
    assert mask.spans(1, 7).rows() == [[(0, 1), (2, 3), (4, 5), (6, 7)]]


def test_only_paths_have_positions_and_sequences():
    with pytest.raises(BadArgument, match=r"^along\(paths\): expected documents\(ids\), tree\(parents\) or shared"):
        along(causal() & documents([0]), window(2))
    assert not hasattr(causal(), "positions")
