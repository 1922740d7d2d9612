"""Keys in pages, against keys that lie one after the other: any table, lengths, mask and options."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rearview import Pages, Unsupported, alibi, attend, causal, chunks, dilated, documents, full, plan, prefix, window
from rearview.attention.engines.native import cascade, kernel
from rearview.errors import BadArgument
from tests.native_kernel import NATIVE, needs_native

HEADS, KEY_HEADS, DIM, VALUE_DIM, BLOCKS = 4, 2, 16, 8, 130
MASKS = {
    "causal": causal(),
    "everything": full(),
    "window": causal() & window(5),
    "first keys and a window": causal() & (prefix(2) | window(3)),
    "chunks": causal() & chunks(7),
    "documents": causal() & documents(torch.arange(200) // 9),
}
OPTIONS = {
    "plain": {},
    "softcap": {"softcap": 1.5},
    "ALiBi": {"bias": alibi(HEADS)},
    "sinks": {"sinks": torch.tensor([-torch.inf, -1.0, 0.5, 3.0])},
    "scale": {"scale": -0.3},
}
WINDOW = causal() & window(9)
LENGTHS = {"uneven": [37, 20, 3, 0], "even": [40, 40, 40, 40], "one": [33]}
engines = pytest.mark.parametrize("engine", ["reference", NATIVE, "auto"])
on_a_grid = [
    pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS),
    pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS),
    pytest.mark.parametrize("q_len", [1, 3, 20]),
]


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def pools(block_size: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    key = draw(BLOCKS, KEY_HEADS, block_size, DIM, seed=1, dtype=dtype)
    return key, draw(BLOCKS, KEY_HEADS, block_size, VALUE_DIM, seed=2, dtype=dtype)


def table_for(lengths: list[int], block_size: int, seed: int = 0) -> Tensor:
    """Blocks in any order; entries that are not read mean nothing."""
    width = -(-max(lengths) // block_size) + 1
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed))
    table = order[: len(lengths) * width].view(len(lengths), width).clone()
    for item, length in enumerate(lengths):
        table[item, -(-length // block_size) :] = -1
    return table


def one_by_one(query: Tensor, key: Tensor, value: Tensor, table: Tensor, lengths: list[int], **options) -> Tensor:
    """Each item alone, its keys copied from their blocks position by position, by the definition in float64."""
    size, rows = key.shape[2], []
    options = {name: each.double() if isinstance(each, Tensor) else each for name, each in options.items()}
    for item, length in enumerate(lengths):
        at = [(int(table[item, n // size]), n % size) for n in range(length)]
        own = [
            torch.stack([pool[block, :, place] for block, place in at], 1)[None].double()
            if at
            else pool[:1, :, :0].double()
            for pool in (key, value)
        ]
        rows.append(attend(query[item : item + 1].double(), *own, engine="reference", **options))
    return torch.cat(rows)


def assert_close(got: Tensor, expected: Tensor) -> None:
    limit = {torch.float64: 1e-12, torch.float32: 1e-5}.get(got.dtype, 3e-2)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=limit)


def with_marks(test):
    for mark in on_a_grid:
        test = mark(test)
    return test


@engines
@with_marks
def test_each_item_hears_what_it_hears_alone(engine, lengths, mask, q_len):
    (key, value), table = pools(4), table_for(lengths, 4)
    query = draw(len(lengths), HEADS, q_len, DIM, seed=3)
    got = attend(query, key, value, mask=mask, pages=Pages(table, lengths), engine=engine)
    assert_close(got, one_by_one(query, key, value, table, lengths, mask=mask))


@engines
@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block_size", [1, 3, 16, 128])
def test_options_dtypes_and_block_sizes(engine, option, q_len, dtype, block_size):
    lengths = [37, 20, 3]
    (key, value), table = pools(block_size, dtype), table_for([37, 20, 3], block_size)
    query = draw(3, HEADS, q_len, DIM, seed=3, dtype=dtype)
    out, lse = attend(query, key, value, pages=Pages(table, lengths), engine=engine, return_lse=True, **option)
    assert out.dtype == dtype
    assert_close(out, one_by_one(query, key, value, table, lengths, **option))
    assert lse.isfinite().all()


@engines
def test_a_pool_with_the_heads_inside_its_blocks_is_read_as_it_is(engine):
    (key, value), table, lengths = pools(8), table_for([30, 11], 8), [30, 11]
    strided = [pool.transpose(1, 2).contiguous().transpose(1, 2) for pool in (key, value)]
    query = draw(2, HEADS, 2, DIM, seed=3)
    expected, got = (
        attend(query, *each, pages=Pages(table, lengths), engine=engine) for each in ((key, value), strided)
    )
    assert torch.equal(got, expected)


@engines
@pytest.mark.parametrize("mask", [causal(), causal() & window(5), causal() & (prefix(2) | window(3))], ids=repr)
@pytest.mark.parametrize("q_len", [1, 3, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [HEADS, 16 * KEY_HEADS])
@pytest.mark.parametrize("lengths", [[37, 22], [37, 37]], ids=str)
@pytest.mark.parametrize("invariant", [False, True])
def test_what_no_query_hears_may_hold_anything(engine, mask, q_len, dtype, heads, lengths, invariant):
    if invariant and engine == "reference":
        pytest.skip("it is not batch-invariant")
    (key, value), table = pools(4, dtype), table_for(lengths, 4)
    query, pages = draw(2, heads, q_len, DIM, seed=3, dtype=dtype), Pages(table, lengths)
    options = {"mask": mask, "pages": pages, "batch_invariant": invariant, "engine": engine}
    expected = attend(query, key, value, **options)
    heard = torch.zeros(BLOCKS, 4, dtype=torch.bool)
    for item, length in enumerate(lengths):
        visible = mask.to_bool(q_len, length).any(0)
        for n in range(length):
            heard[table[item, n // 4], n % 4] |= bool(visible[n])
    dirty = [pool.masked_fill(~heard[:, None, :, None], torch.nan) for pool in (key, value)]
    assert dirty[0].isnan().any()
    assert torch.equal(attend(query, *dirty, **options), expected)


@pytest.mark.parametrize("threads", [1, 2])
@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("q_len", [1, 2, 9])
@pytest.mark.parametrize("mask", [causal(), WINDOW, full()], ids=repr)
@pytest.mark.parametrize("sinks", [None, torch.tensor([-1.0, 0.5, 2.0, -torch.inf])], ids=["plain", "sinks"])
def test_a_shared_prefix_is_read_once(monkeypatch, threads, dtype, q_len, mask, sinks):
    monkeypatch.setattr(cascade, "WORTH_SHARING", 1)
    monkeypatch.setattr(kernel, "FEW", 0)
    joined = []
    monkeypatch.setattr(cascade, "_joined", lambda *args, own=cascade._joined: joined.append(args) or own(*args))
    lengths = [37, 22, 30, 16, 40]
    (key, value), table = pools(4, dtype), table_for(lengths, 4)
    # The first two share five blocks, the next two three; the last is alone.
    table[1, :5], table[3, :3] = table[0, :5], table[2, :3]
    query = draw(5, HEADS, q_len, DIM, seed=3, dtype=dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = attend(query, key, value, mask=mask, sinks=sinks, pages=Pages(table, lengths), engine="native")
    finally:
        torch.set_num_threads(before)
    assert [each[2] for each in joined] == [[([0, 1], 20), ([2, 3], 12)]]
    assert_close(got, one_by_one(query, key, value, table, lengths, mask=mask, sinks=sinks))


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("q_len", [1, 2])
def test_what_no_query_hears_of_a_shared_prefix_may_hold_anything(monkeypatch, dtype, q_len):
    monkeypatch.setattr(cascade, "WORTH_SHARING", 1)
    lengths, mask = [24, 22, 23], causal() & window(13)
    (key, value), table = pools(4, dtype), table_for(lengths, 4)
    table[1:, :5] = table[0, :5]
    query, pages = draw(3, HEADS, q_len, DIM, seed=3, dtype=dtype), Pages(table, lengths)
    expected = attend(query, key, value, mask=mask, pages=pages, engine="native")
    first = 22 - q_len + 1 - 13
    for pool in (key, value):
        pool[table[0, : first // 4]] = torch.nan
        pool[table[0, first // 4], :, : first % 4] = torch.nan
    assert torch.equal(attend(query, key, value, mask=mask, pages=pages, engine="native"), expected)


@needs_native
def test_keys_before_every_window_are_no_reason_to_share(monkeypatch):
    joined = []
    monkeypatch.setattr(cascade, "WORTH_SHARING", 40)
    monkeypatch.setattr(cascade, "_joined", lambda *args, own=cascade._joined: joined.append(args) or own(*args))
    lengths = [37, 38, 40]
    (key, value), table = pools(4), table_for(lengths, 4)
    table[1:, :8] = table[0, :8]
    query, pages = draw(3, HEADS, 1, DIM, seed=3), Pages(table, lengths)
    for mask, shares in ((causal(), True), (causal() & window(26), True), (causal() & window(9), False)):
        joined.clear()
        got = attend(query, key, value, mask=mask, pages=pages, engine="native")
        assert bool(joined) == shares
        assert_close(got, one_by_one(query, key, value, table, lengths, mask=mask))


@pytest.mark.parametrize("lengths", [[9, 6], [8, 8]])
def test_gradients_of_the_pools_by_the_definition(lengths):
    (key, value), table = pools(4, torch.float64), torch.tensor([[7, 2, 5], [7, 3, 0]])
    query = draw(2, HEADS, 2, DIM, seed=3, dtype=torch.float64)
    leaves = [each.requires_grad_() for each in (query, key, value)]
    got = torch.autograd.grad(attend(*leaves, pages=Pages(table, lengths)).square().sum(), leaves)
    expected = torch.autograd.grad(one_by_one(query, key, value, table, lengths).square().sum(), leaves)
    for grad, want in zip(got, expected, strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-10, atol=1e-12)
    # Block 7 belongs to both items.
    assert got[1][7].abs().sum() > 0


def test_nothing_to_hear():
    (key, value), query = pools(4), draw(2, HEADS, 1, DIM, seed=3)
    for table in (torch.zeros(2, 0, dtype=torch.int64), torch.tensor([[-1], [99]])):
        out = attend(query, key, value, pages=Pages(table, [0, 0]))
        assert torch.equal(out, torch.zeros(2, HEADS, 1, VALUE_DIM))


def test_a_table_is_copied():
    (key, value), table = pools(4), torch.tensor([[3, 1]])
    pages, query = Pages(table, [6]), draw(1, HEADS, 1, DIM, seed=3)
    expected = attend(query, key, value, pages=pages)
    table.fill_(10**6)
    assert torch.equal(attend(query, key, value, pages=pages), expected)


@given(st.data())
def test_prefixes_that_items_share(data):
    """Groups are items with the same first block, and the whole blocks that all of them share."""
    batch, width, size = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    table = data.draw(
        st.lists(st.lists(st.integers(0, 1), min_size=width, max_size=width), min_size=batch, max_size=batch)
    )
    lengths = data.draw(st.lists(st.integers(0, width * size), min_size=batch, max_size=batch))
    expected = []
    for first in dict.fromkeys(row[0] for row in table):
        items = [item for item in range(batch) if table[item][0] == first]
        whole = min(lengths[item] // size for item in items)
        shared = 0
        while shared < whole and len({table[item][shared] for item in items}) == 1:
            shared += 1
        if len(items) > 1 and shared:
            expected.append((items, shared))
    assert Pages(table, lengths).shared_prefixes(size) == expected


@needs_native
def test_what_the_engines_refuse():
    (key, value), table = pools(4), torch.tensor([[3, 1]])
    query, pages = draw(1, HEADS, 1, DIM, seed=3), Pages(table, [6])
    not_taken = plan(query, key, value, pages=pages).not_taken
    assert not_taken["blocks"] == not_taken["sdpa"] == "cannot: it does not read pages"
    assert "it does not read pages" in not_taken["flex"]
    assert plan(query, key, value, pages=pages).engine == "native"
    with pytest.raises(
        Unsupported, match="engine 'native' cannot do this exactly:\n  - it has no gradients through pages"
    ):
        attend(query, key.clone().requires_grad_(), value, pages=pages, engine="native")
    with pytest.raises(Unsupported, match="the mask has no range form"):
        attend(query, key, value, pages=pages, mask=dilated(2), engine="native")
    assert plan(query, key, value, pages=pages, mask=dilated(2)).engine == "reference"


@needs_native
def test_in_a_compiled_graph_the_kernel_refuses():
    (key, value), query, pages = pools(4), draw(1, HEADS, 1, DIM, seed=3), Pages([[3, 1]], [6])
    run = torch.compile(lambda q: attend(q, key, value, pages=pages, engine="native"), backend="eager")
    with pytest.raises(Unsupported, match="it reads pages of plain tensors only, outside of compiled graphs"):
        run(query)


def test_the_plan_says_how_the_keys_lie():
    (key, value), query = pools(4), draw(2, HEADS, 1, DIM, seed=3)
    made = plan(query, key, value, pages=Pages([[0, 1], [2, 3]], [6, 8]))
    assert made.call == "2 x 4 heads x 1 query over 8 keys in blocks of 4 (2 key heads), dim 16, float32, cpu"


QUERY = torch.zeros(2, HEADS, 1, DIM)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda k, v: Pages(torch.ones(1, 1), [1]), "table: expected an integer tensor [batch, blocks], got a float32"),
        (lambda k, v: Pages(torch.arange(2), [1]), "table: expected an integer tensor [batch, blocks], got an int64"),
        (lambda k, v: Pages([[0], [1]], [1]), "lengths: expected one for each of 2 items, got 1."),
        (lambda k, v: Pages([[0]], [-1]), "lengths: expected an integer of at least 0, got -1."),
        (lambda k, v: Pages([[0]], torch.tensor(1)), "lengths: expected one for each of 1 items, got 1."),
        (
            lambda k, v: attend(QUERY, k, v, pages=torch.zeros(2, 3)),  # type: ignore[arg-type]
            "pages: expected a block table with lengths, got Tensor. Use Pages(table, lengths).",
        ),
        (
            lambda k, v: attend(QUERY, k, v, pages=Pages([[0]], [1])),
            "pages: expected a table for batch 2, as the query, got 1.",
        ),
        (
            lambda k, v: attend(QUERY, k, v, pages=Pages([[0, 1], [2, 3]], [8, 9])),
            "pages: expected at least 3 blocks in the table, for 9 positions in blocks of 4, got 2.",
        ),
        (
            lambda k, v: attend(QUERY, k, v, pages=Pages([[0, 1], [2, BLOCKS]], [8, 5])),
            "pages: expected blocks 0 to 129 of the pool, got 130 for item 1.",
        ),
        (
            lambda k, v: attend(QUERY, k, v, pages=Pages([[0, -1], [2, 3]], [5, 5])),
            "pages: expected blocks 0 to 129 of the pool, got -1 for item 0.",
        ),
        (
            lambda k, v: attend(QUERY, k, v, pages=Pages([[0], [1]], [1, 1]), q_start=0),
            "q_start: expected nothing with pages=, where the queries of an item stand at its last positions, got 0.",
        ),
        (
            lambda k, v: attend(QUERY[0], k[0], v[0], pages=Pages([[0]], [1])),
            "query, key, value: expected query [batch, heads, time, dim] and pools [blocks, key heads, block size,",
        ),
        (
            lambda k, v: attend(QUERY, k, v[:9], pages=Pages([[0], [1]], [1, 1])),
            "value: expected the batch, heads and time of key, got query [2, 4, 1, 16], key [130,",
        ),
        (
            lambda k, v: attend(QUERY, k, v, bias=torch.zeros(1, 1, 1, 9), pages=Pages([[0], [1]], [3, 4])),
            "bias: expected a float tensor that broadcasts to [2, 4, 1, 4], or alibi(...), got [1, 1, 1, 9].",
        ),
    ],
)  # fmt: skip
def test_errors(wrong, message):
    with pytest.raises(BadArgument) as caught:
        wrong(*pools(4))
    assert str(caught.value).startswith(message)
