"""Random mask expressions for the property tests: every constructor that prints in full, joined at will."""

from hypothesis import strategies as st

from rearview import Mask, causal, chunks, dilated, documents, full, padding, per_head, prefix, window
from rearview.masks import Frame

LENGTH = 9
BATCH = 2

_ids = st.lists(st.integers(-3, 2**63 - 1) | st.integers(0, 2), min_size=LENGTH, max_size=LENGTH)
_bits = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH)

with_ranges: st.SearchStrategy[Mask] = st.one_of(
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
