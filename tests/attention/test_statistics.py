"""Every number of `statistics` is that of the full matrix, for every mask, frame, dtype and option."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from rearview import alibi, causal, documents, full, padding, prefix, window
from rearview.attention import Links, Statistics, attend, statistics
from rearview.attention.engines import native
from rearview.attention.stats import native as native_pass
from rearview.attention.stats import strips
from rearview.errors import BadArgument
from tests.attention.full_matrix import FullMatrix
from tests.mask_families import FAMILIES
from tests.native_kernel import needs_native

families = pytest.mark.parametrize("family", FAMILIES)

# The pass: the C++ kernel, or strips with these numbers of rows and of scores at a time: one strip for all queries;
# many strips with one or two heads at a time; strips of 3 rows.
CUTS = {"one strip": (128, 2**20), "strips": (16, 2**11), "thin strips": (3, 1)}
KERNEL = pytest.param("kernel", marks=needs_native)


@pytest.fixture(autouse=True, params=["one strip", KERNEL])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernel":
        monkeypatch.setattr(native.library, "IS_FAST", True)
        return
    rows, pairs = CUTS[request.param]
    monkeypatch.setattr(native_pass, "suits", lambda call: False)
    monkeypatch.setattr(strips, "MOST_ROWS", {"cpu": rows, "cuda": rows})
    monkeypatch.setattr(strips, "FEWEST_ROWS", rows)
    monkeypatch.setattr(strips, "PAIRS_AT_ONCE", {"cpu": pairs, "cuda": pairs})


every_cut = pytest.mark.parametrize("way", [*CUTS, KERNEL], indirect=True)


def inputs(
    batch: int = 2,
    heads: int = 4,
    key_heads: int = 4,
    q_len: int = 70,
    k_len: int | None = None,
    dtype: torch.dtype = torch.float64,
    spread: float = 2.0,
) -> tuple[Tensor, Tensor]:
    query = spread * torch.randn(batch, heads, q_len, 8, dtype=torch.float64)
    key = torch.randn(batch, key_heads, q_len if k_len is None else k_len, 8, dtype=torch.float64)
    return query.to(dtype), key.to(dtype)


@families
@pytest.mark.parametrize("key_heads", [4, 2])
@every_cut
def test_every_mask(family: str, key_heads: int):
    query, key = inputs(key_heads=key_heads)
    mask = FAMILIES[family](2, 4, 70)
    FullMatrix(query, key, mask).check(statistics(query, key, mask=mask, map_size=9, links=5), within=1e-10)


@families
@pytest.mark.parametrize(("q_len", "q_start"), [(1, None), (13, None), (1, 20), (30, 7), (70, 0)])
def test_every_frame(family: str, q_len: int, q_start: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strips, "MOST_ROWS", {"cpu": 8, "cuda": 8})
    monkeypatch.setattr(strips, "FEWEST_ROWS", 8)
    query, key = inputs(key_heads=2, q_len=q_len, k_len=70)
    mask = FAMILIES[family](2, 4, 70)
    seen = statistics(query, key, mask=mask, q_start=q_start, map_size=16)
    FullMatrix(query, key, mask, q_start=q_start).check(seen, within=1e-10)


@pytest.mark.parametrize("mask", [causal(), full(), window(5)])
def test_more_queries_than_keys(mask):
    # The first queries are before position 0, where a mask that looks back hears nothing.
    query, key = inputs(q_len=40, k_len=11)
    FullMatrix(query, key, mask).check(statistics(query, key, mask=mask, map_size=7), within=1e-10)


@pytest.mark.parametrize(("q_len", "q_start"), [(5, 100), (40, 11), (1, 11)])
def test_queries_after_all_keys(q_len: int, q_start: int):
    query, key = inputs(q_len=q_len, k_len=11)
    for mask in (full(), causal(), window(6)):
        seen = statistics(query, key, mask=mask, q_start=q_start, map_size=7)
        FullMatrix(query, key, mask, q_start=q_start).check(seen, within=1e-10)


OPTIONS = {
    "scale": lambda: {"scale": 0.1},
    "softcap": lambda: {"softcap": 1.5},
    "alibi": lambda: {"bias": alibi(4)},
    "bias": lambda: {"bias": torch.randn(2, 4, 70, 70, dtype=torch.float64)},
    "bias of a head": lambda: {"bias": torch.randn(4, 1, 70, dtype=torch.float64)},
    "bias that hides": lambda: {"bias": torch.randn(70, 70).masked_fill_(torch.rand(70, 70) < 0.5, -torch.inf)},
    "sinks": lambda: {"sinks": torch.tensor([-torch.inf, -1.0, 0.5, 4.0], dtype=torch.float64)},
    "all": lambda: {"scale": 0.5, "softcap": 3.0, "bias": alibi(4), "sinks": torch.ones(4, dtype=torch.float64)},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("family", ["causal", "sinks and window", "padding left", "where", "per head"])
@every_cut
def test_every_option(option: str, family: str):
    query, key = inputs(key_heads=2)
    mask, options = FAMILIES[family](2, 4, 70), OPTIONS[option]()
    seen = statistics(query, key, mask=mask, **options, map_size=10, links=7)
    FullMatrix(query, key, mask, **options).check(seen, within=1e-10)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-5), (torch.float16, 2e-5)])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype, within: float):
    query, key = inputs(q_len=300, dtype=dtype)
    seen = statistics(query, key)
    assert {seen.lse.dtype, seen.received.dtype, seen.expected.dtype, seen.links.weight.dtype} == {torch.float32}
    FullMatrix(query, key, causal()).check(seen, within=within)


def test_the_entropy_of_large_scores_is_accurate():
    query, key = inputs(q_len=200, dtype=torch.float32, spread=300.0)
    FullMatrix(query, key, causal()).check(statistics(query, key, softcap=None), within=5e-4)


@families
@pytest.mark.parametrize("length", [1, 2, 65])
def test_lengths(family: str, length: int):
    query, key = inputs(q_len=length)
    mask = FAMILIES[family](2, 4, length)
    FullMatrix(query, key, mask).check(statistics(query, key, mask=mask), within=1e-10)


def test_the_log_sum_exp_of_attend():
    query, key = inputs()
    _, lse = attend(query, key, key, mask=window(9), return_lse=True)
    torch.testing.assert_close(statistics(query, key, mask=window(9)).lse, lse)


@pytest.mark.parametrize(
    ("mask", "unheard"),
    [
        (causal() & padding([50, 70]), (0, slice(50, None))),
        (prefix(3), (slice(None), slice(3, None))),
        (full() & padding((torch.arange(70) % 5 > 0).expand(2, -1)), (slice(None), slice(0, None, 5))),
    ],
)
@every_cut
def test_keys_that_no_query_hears_have_no_effect(mask, unheard):
    query, key = inputs()
    clean = statistics(query, key, mask=mask)
    item, positions = unheard
    for poison in (torch.nan, torch.inf, 1e300):
        key[item, :, positions] = poison
        FullMatrix(query, key.nan_to_num(0, 0, 0).clamp(-1e3, 1e3), mask).check(clean, within=1e-10)
        for name in ("lse", "entropy", "received", "first", "distance", "histogram", "map"):
            torch.testing.assert_close(getattr(statistics(query, key, mask=mask), name), getattr(clean, name))
        again = statistics(query, key, mask=mask).links
        torch.testing.assert_close(again.weight, clean.links.weight)


def test_pooled_rows_sum_to_1_and_a_sink_keeps_its_height():
    query, key = inputs(batch=1, q_len=200)
    key[:, :, 0] = 0
    key[:, :, 0, 0] = 40
    query[..., 0] = 1.0
    seen = statistics(query, key, map_size=10)
    pooled = seen.pooled()
    torch.testing.assert_close(pooled.sum(-1), torch.ones(1, 4, 10, dtype=torch.float64))
    assert float(pooled[..., 0].min()) > 0.99
    assert seen.bin_width == 20
    torch.testing.assert_close(seen.expected_pooled().sum(-1), torch.ones(1, 1, 10, dtype=torch.float64))


def test_pooled_rows_that_hear_nothing_are_0():
    query, key = inputs(q_len=40)
    seen = statistics(query, key, mask=padding([0, 40]), map_size=4)
    assert bool((seen.pooled()[0] == 0).all())
    assert bool((seen.expected_pooled()[0] == 0).all())
    torch.testing.assert_close(seen.pooled()[1].sum(-1), torch.ones(4, 4, dtype=torch.float64))


def test_the_map_and_the_links_can_be_switched_off():
    query, key = inputs()
    seen = statistics(query, key, map_size=None, links=0)
    assert seen.map is None
    assert seen.rows_heard is None
    assert seen.expected_map is None
    assert seen.bin_width == 0
    assert seen.links.weight.shape == seen.links.key.shape == (2, 4, 0)
    FullMatrix(query, key, causal()).check(seen, within=1e-10)
    with pytest.raises(
        BadArgument, match=r"^map_size: expected statistics with a map, got statistics without one. Pass map_size=64.$"
    ):
        seen.pooled()
    assert repr(seen) == "Statistics(2 x 4 heads x 70 queries over 70 keys, no map, 0 links per head)"


@pytest.mark.parametrize(("q_len", "k_len"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_hear(q_len: int, k_len: int):
    seen = statistics(torch.zeros(1, 2, q_len, 8), torch.zeros(1, 2, k_len, 8), mask=full(), q_start=0)
    assert bool((seen.lse == -torch.inf).all())
    assert float(seen.received.sum()) == 0
    assert seen.received.shape == (1, 2, k_len)
    assert seen.entropy.shape == (1, 2, q_len)
    assert seen.links.weight.shape[-1] == 0
    assert seen.map is not None
    assert float(seen.map.sum()) == 0


def test_fewer_axes():
    query, key = inputs(batch=1, heads=1, key_heads=1)
    whole = statistics(query, key)
    for seen in (statistics(query[0], key[0]), statistics(query[0, 0], key[0, 0])):
        assert seen.lse.shape == (1, 1, 70)
        torch.testing.assert_close(seen.received, whole.received)


def test_ties_take_the_earlier_query():
    zeros = torch.zeros(1, 1, 12, 4)
    seen = statistics(zeros, zeros, mask=causal() & documents(torch.arange(12) // 2), links=3)
    assert seen.links.weight.tolist() == [[[1.0, 1.0, 1.0]]]
    assert seen.links.query.tolist() == seen.links.key.tolist() == [[[0, 2, 4]]]


def test_no_gradients_and_no_autocast():
    query, key = inputs(dtype=torch.float32)
    seen = statistics(query.requires_grad_(), key)
    assert not seen.lse.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        cast = statistics(query, key)
    assert cast.lse.dtype == torch.float32
    FullMatrix(query.detach().bfloat16(), key.bfloat16(), causal()).check(cast, within=2e-5)


def test_bin_width_doubles_until_the_map_fits():
    query, key = inputs(q_len=100)
    assert statistics(query, key, map_size=10, bin_width=12).bin_width == 12
    assert statistics(query, key, map_size=10, bin_width=3).bin_width == 12
    FullMatrix(query, key, causal()).check(statistics(query, key, map_size=10, bin_width=3), within=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"links": -1}, "links: expected an integer of at least 0, got -1"),
        ({"map_size": 0}, "map_size: expected an integer of at least 1, got 0. Pass None for no map."),
        ({"bin_width": 0}, "bin_width: expected an integer of at least 1, got 0"),
        (
            {"bin_width": 4, "map_size": None},
            "bin_width: expected None, since there is no map, got 4. Pass map_size=64.",
        ),
        ({"sinks": [0.0]}, r"sinks: expected a float tensor \[4\], one logit per query head, got list"),
        ({"sinks": torch.zeros(3)}, r"sinks: expected a float tensor \[4\].*, got torch.float32 of shape \[3\]"),
        ({"sinks": torch.zeros(4).int()}, r"got torch.int32 of shape \[4\]"),
        ({"mask": torch.ones(70, 70)}, "mask: expected a Mask such as causal"),
        ({"q_start": -1}, "q_start: expected an integer of at least 0"),
    ],
)
def test_wrong_arguments(options: dict, message: str):
    query, key = inputs()
    with pytest.raises(BadArgument, match=message):
        statistics(query, key, **options)


def test_wrong_shapes():
    with pytest.raises(BadArgument, match="key: expected head dim 8, as the query, got 6"):
        statistics(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 6))


def test_repr():
    query, key = inputs()
    seen = statistics(query, key)
    assert isinstance(seen, Statistics)
    assert (
        repr(seen) == "Statistics(2 x 4 heads x 70 queries over 70 keys, map 35 x 35 in bins of 2, 32 links per head)"
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@families
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-4), (torch.bfloat16, 1e-4)])
def test_on_a_gpu(family: str, dtype: torch.dtype, within: float):
    query, key = inputs(key_heads=2, q_len=300, dtype=dtype)
    mask, bias = FAMILIES[family](2, 4, 300), alibi(4)
    sinks = torch.tensor([-torch.inf, -1.0, 0.5, 4.0])
    seen = statistics(query.cuda(), key.cuda(), mask=mask, bias=bias, sinks=sinks.cuda())
    assert seen.lse.is_cuda
    assert seen.expected.is_cuda
    assert seen.links.key.is_cuda
    values = {name: getattr(seen, name) for name in Statistics.__dataclass_fields__}
    on_cpu = {name: value.cpu() for name, value in values.items() if isinstance(value, Tensor)}
    links = Links(seen.links.weight.cpu(), seen.links.query.cpu(), seen.links.key.cpu())
    moved = dataclasses.replace(seen, links=links, **on_cpu)
    FullMatrix(query, key, mask, bias=bias, sinks=sinks).check(moved, within=within)
