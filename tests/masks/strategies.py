"""Random mask expressions for the property tests: every constructor that prints in full, joined at will."""

from hypothesis import strategies as st

from rearview import (
    Mask,
    along,
    block_diffusion,
    causal,
    chunks,
    dilated,
    documents,
    full,
    grid_window,
    padding,
    per_head,
    prefix,
    shared_prefix,
    tree,
    window,
)
from rearview import (
    ranges as explicit_ranges,
)
from rearview.masks import Frame

LENGTH = 9
BATCH = 2

_ids = st.lists(st.integers(-3, 2**63 - 1) | st.integers(0, 2), min_size=LENGTH, max_size=LENGTH)
_bits = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH)

_few_ids = st.lists(st.integers(0, 2), min_size=LENGTH, max_size=LENGTH)
_edge = st.integers(-2, LENGTH + 2)
_pair = st.tuples(_edge, _edge)


def _explicit(rows: list[list[tuple[int, int]]]) -> Mask:
    return explicit_ranges([[a for a, _ in row] for row in rows], [[b for _, b in row] for row in rows])


_parents = st.tuples(*[st.integers(-1, n - 1) | st.just(n - 1) for n in range(LENGTH)]).map(list)
_trees = st.builds(tree, _parents) | st.builds(lambda a, b: tree([a, b]), _parents, _parents)
_paths = st.one_of(
    _trees,
    st.builds(documents, _few_ids),
    st.builds(lambda a, b: documents([a, b]), _few_ids, _few_ids),
    st.builds(lambda n, a, b: shared_prefix(n, [a, LENGTH - n - a, b]), *[st.integers(0, 4)] * 3),
)
_counting: st.SearchStrategy[Mask] = st.one_of(
    st.just(causal()),
    st.builds(lambda n, ahead: window(n, ahead=ahead), st.integers(1, 5), st.integers(0, 3)),
    st.builds(prefix, st.integers(0, 5)),
    st.builds(chunks, st.integers(1, 5)),
    st.builds(lambda n: causal() & (window(n) | prefix(1)), st.integers(1, 4)),
    st.builds(lambda n: ~window(n), st.integers(1, 4)),
    st.builds(documents, _few_ids),
)
_axes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def _grids(draw: st.DrawFn) -> Mask:
    shape = draw(_axes)
    size = draw(st.integers(1, 4) | st.lists(st.integers(1, 5), min_size=len(shape), max_size=len(shape)))
    return grid_window(shape, size, start=draw(st.integers(0, 2)), inside=draw(st.booleans()))


with_ranges: st.SearchStrategy[Mask] = st.one_of(
    st.builds(
        _explicit,
        st.integers(1, 3).flatmap(
            lambda n: st.lists(st.lists(_pair, min_size=n, max_size=n), min_size=LENGTH, max_size=LENGTH)
        ),
    ),
    _trees,
    st.builds(along, _paths, _counting),
    st.builds(lambda n, ids: chunks(n, within=ids), st.integers(1, 4), _few_ids),
    _grids(),
    st.builds(block_diffusion, st.integers(1, 6), st.integers(1, 4)),
    st.just(causal()),
    st.just(full()),
    st.builds(lambda n, ahead: window(n, ahead=ahead), st.integers(1, 12), st.integers(0, 3)),
    st.builds(prefix, st.integers(0, 12) | st.lists(st.integers(0, 12), min_size=BATCH, max_size=BATCH)),
    st.builds(documents, _ids),
    st.builds(lambda a, b: documents([a, b]), *[st.lists(st.integers(0, 2), min_size=LENGTH, max_size=LENGTH)] * 2),
    st.builds(padding, st.lists(st.integers(0, 12), min_size=BATCH, max_size=BATCH)),
    st.builds(lambda a, b: padding([a, b]), _bits, _bits),
    st.builds(chunks, st.integers(1, 12)),
)
leaves = with_ranges | st.builds(dilated, st.integers(1, 5))


def joined(parts: st.SearchStrategy[Mask]) -> st.SearchStrategy[Mask]:
    return st.recursive(
        parts,
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
        ),
        max_leaves=4,
    )


masks = joined(leaves)
masks_with_heads = masks | st.builds(lambda a, b: per_head([a, b]), masks, masks)

ranges = joined(with_ranges)
range_masks = ranges | st.builds(lambda a, b: per_head([a, b]), ranges, ranges)


def _frame(q_len: int, k_len: int, q_start: int | None) -> Frame:
    # Positions stay below LENGTH, which is as far as documents and padding reach.
    return Frame.of(q_len, k_len, None if q_start is None else min(q_start, LENGTH - q_len))


_lengths = st.integers(0, LENGTH)
frames = st.builds(_frame, _lengths, _lengths, st.none() | _lengths)
