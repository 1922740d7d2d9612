"""Attention in its usual forms is proven; each way to get it wrong is not."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from rearview import attend, causal, documents, full, window
from rearview.auditing.proof import prove
from tests.auditing.proof.search import CAUSAL
from tests.native_kernel import needs_native

T, SIZE, HEADS = 7, 8, 2
FUTURE = ~CAUSAL[T]
INF = float("-inf")


class Attention(nn.Module):
    """Projections around a core that gets query, key and value, [batch, heads, time, dim]."""

    def __init__(self, core, key_heads: int = HEADS):
        super().__init__()
        self.core = core
        width = key_heads * SIZE // HEADS
        self.query, self.key, self.value = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, width), nn.Linear(SIZE, width)
        self.out = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        split = lambda y: y.unflatten(-1, (-1, SIZE // HEADS)).transpose(1, 2)  # noqa: E731
        heard = self.core(split(self.query(x)), split(self.key(x)), split(self.value(x)))
        return self.out(heard.transpose(1, 2).flatten(2))


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def eager(mask):
    return lambda q, k, v: mask(scores(q, k)).softmax(dim=-1) @ v


def sdpa(**options):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def additive(fill: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(T, T, dtype=dtype).masked_fill(FUTURE, fill)


def online(q, k, v):
    """Tile by tile with a running maximum, as FlashAttention does."""
    out, total = torch.zeros_like(q), torch.zeros(*q.shape[:-1], 1)
    top = torch.full((*q.shape[:-1], 1), -1e30)
    for start in range(0, T, 3):
        tile = scores(q, k[:, :, start : start + 3]).masked_fill(FUTURE[:, start : start + 3], INF)
        new = torch.maximum(top, tile.amax(-1, keepdim=True))
        weight = torch.exp(tile - new)
        scale = torch.exp(top - new)
        out = out * scale + weight @ v[:, :, start : start + 3]
        total = total * scale + weight.sum(-1, keepdim=True)
        top = new
    return out / total


def row_by_row(q, k, v):
    out = torch.empty_like(q)
    for t in range(T):
        out[:, :, t] = F.scaled_dot_product_attention(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1])[:, :, 0]
    return out


EXACT = {
    "masked_fill -inf": eager(lambda s: s.masked_fill(FUTURE, INF)),
    "additive -inf": eager(lambda s: s + additive(INF)),
    "where -inf": eager(lambda s: torch.where(FUTURE, INF, s)),
    "in place": eager(lambda s: s.masked_fill_(FUTURE, INF)),
    "triu additive": eager(lambda s: s + torch.triu(torch.full((T, T), INF), diagonal=1)),
    "softmax then zeros": lambda q, k, v: (lambda e: (e / e.sum(-1, keepdim=True)) @ v)(
        torch.exp(scores(q, k)) * CAUSAL[T]
    ),
    "sigmoid attention": lambda q, k, v: (torch.sigmoid(scores(q, k)) * CAUSAL[T]) @ v,
    "softcap": eager(lambda s: (torch.tanh(s / 5) * 5).masked_fill(FUTURE, INF)),
    "alibi": eager(lambda s: (s - 0.5 * (torch.arange(T)[:, None] - torch.arange(T)).abs()).masked_fill(FUTURE, INF)),
    "sdpa is_causal": sdpa(is_causal=True),
    "sdpa bool": sdpa(attn_mask=CAUSAL[T]),
    "sdpa float": sdpa(attn_mask=additive(INF)),
    "sdpa dropout": sdpa(is_causal=True, dropout_p=0.5),
    "online": online,
    "row by row": row_by_row,
    "linear attention": lambda q, k, v: (q @ k.transpose(-1, -2)).tril() @ v,
    "linear attention, running state": lambda q, k, v: torch.einsum(
        "bhtd,bhtde->bhte", q, torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
    ),
}


@pytest.mark.parametrize("core", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("batch", [1, 2])
def test_exact_masks_are_proven(core, batch: int):
    proof = prove(Attention(core), torch.randn(batch, T, SIZE))
    assert proof.within(CAUSAL[T])
    assert torch.equal(proof.matrix(), CAUSAL[T]), "and the past is heard"
    assert not proof.conditions or core is online
    assert not proof.unknown_ops
    assert not proof.value_escapes


@pytest.mark.parametrize("context", ["train", "autocast", "inference", "checkpoint"])
def test_modes_do_not_matter(context: str):
    model = nn.Sequential(
        Attention(sdpa(is_causal=True)), nn.Dropout(0.3), Attention(EXACT["masked_fill -inf"])
    ).train()

    def run(x):
        if context == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return model(x)
        if context == "inference":
            with torch.inference_mode():
                return model(x)
        if context == "checkpoint":
            return checkpoint(model, x, use_reentrant=False)
        return model(x)

    proof = prove(run, torch.randn(2, T, SIZE))
    assert torch.equal(proof.matrix(), CAUSAL[T])
    assert proof.isolated
    assert not proof.value_escapes


def test_grouped_queries():
    for core in (
        sdpa(is_causal=True, enable_gqa=True),
        lambda q, k, v: sdpa(is_causal=True)(q, *(y.repeat_interleave(2, 1) for y in (k, v))),
    ):
        assert prove(Attention(core, key_heads=1), torch.randn(2, T, SIZE)).within(CAUSAL[T])


@pytest.mark.parametrize("training", [True, False])
def test_the_layers_of_torch(training: bool):
    """In eval mode they are one fused op."""
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, batch_first=True).train(training)
    attention = nn.MultiheadAttention(SIZE, HEADS, batch_first=True).train(training)
    x = torch.randn(2, T, SIZE)
    proof = prove(lambda x: layer(x, src_mask=FUTURE), x)
    assert torch.equal(proof.matrix(), CAUSAL[T])
    assert proof.isolated
    assert prove(layer, x).matrix().all()
    for need in (True, False):
        proof = prove(lambda x, need=need: attention(x, x, x, attn_mask=FUTURE, need_weights=need)[0], x)
        assert torch.equal(proof.matrix(), CAUSAL[T])
        assert proof.isolated
        assert not proof.unknown_ops
    padded = torch.arange(T) >= torch.tensor([[T], [3]])
    proof = prove(lambda x: attention(x, x, x, key_padding_mask=padded, need_weights=False)[0], x)
    assert not proof.hears[1, :3, 1, 3:].any()
    assert proof.hears[1, :, 1, :3].all()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_by_its_rules():
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, T, T, device="cpu")
    proof = prove(Attention(lambda q, k, v: flex_attention(q, k, v, block_mask=mask)), torch.randn(2, T, SIZE))
    assert torch.equal(proof.matrix(), CAUSAL[T])
    assert "BlockMask" in str(proof.assumptions)
    assert not flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    look_ahead = lambda score, b, h, q, k: torch.where(q + 1 >= k, score, INF)  # noqa: E731
    proof = prove(Attention(lambda q, k, v: flex_attention(q, k, v, score_mod=look_ahead)), torch.randn(1, T, SIZE))
    assert torch.equal(proof.matrix(), torch.ones(T, T).tril(1).bool())


@pytest.mark.parametrize("engine", ["auto", "reference", "sdpa", "blocks"])
def test_our_own_engines(engine: str):
    mask = causal() & window(3)
    attention = Attention(lambda q, k, v: attend(q, k, v, mask=mask, engine=engine))
    assert torch.equal(prove(attention, torch.randn(2, T, SIZE)).matrix(), mask.to_bool(T))


def test_windows_and_prefixes_under_their_own_contract():
    window = CAUSAL[T] & ~torch.ones(T, T).tril(-3).bool()
    assert torch.equal(prove(Attention(sdpa(attn_mask=window)), torch.randn(1, T, SIZE)).matrix(), window)
    prefix = CAUSAL[T] | (torch.arange(T) < 3)
    proof = prove(Attention(sdpa(attn_mask=prefix)), torch.randn(1, T, SIZE))
    assert proof.within(prefix)
    assert not proof.within(CAUSAL[T])


FINITE = {
    "-1e4": eager(lambda s: s.masked_fill(FUTURE, -1e4)),
    "finfo.min added": eager(lambda s: s + additive(torch.finfo(torch.float32).min)),
    "scaled after": eager(lambda s: (s * 3).masked_fill(FUTURE, -1e9) / 3),
    "(1 - m) * -1e9": eager(lambda s: s + (1.0 - CAUSAL[T].float()) * -1e9),
    "clamped": eager(lambda s: torch.max(s + additive(-3e38), torch.tensor(-3e38))),
    "sdpa": sdpa(attn_mask=additive(torch.finfo(torch.float32).min)),
    "exp by hand": lambda q, k, v: (lambda e: e @ v / e.sum(-1, keepdim=True))(
        torch.exp((s := scores(q, k) + additive(-1e9)) - s.amax(-1, keepdim=True))
    ),
}


@pytest.mark.parametrize("core", FINITE.values(), ids=FINITE)
def test_finite_masks_are_proven_on_a_condition(core):
    proof = prove(Attention(core), torch.randn(2, T, SIZE))
    assert torch.equal(proof.matrix(), CAUSAL[T])
    assert proof.conditions
    assert all(condition.margin >= condition.bound for condition in proof.conditions)
    assert "stay at least 104 below" in str(proof.conditions[0])
    assert "Attention" in str(proof.conditions[0])


def test_a_finite_mask_in_double_precision_must_lie_lower():
    """exp(-200) is 0 in float32 only."""

    def scored(x: Tensor) -> Tensor:
        return (x @ x.mT * 0 - 800).masked_fill(FUTURE, -1000).softmax(-1) @ x

    def fused(x: Tensor) -> Tensor:
        bias = torch.full((T, T), -800.0, dtype=x.dtype).masked_fill(FUTURE, -1000)
        return F.scaled_dot_product_attention(x[:, None] * 0, x[:, None], x[:, None], attn_mask=bias)[:, 0]

    for run in (scored, fused):
        assert not prove(run, torch.randn(1, T, SIZE, dtype=torch.float64)).within(CAUSAL[T])
    proof = prove(eager_double, torch.randn(1, T, SIZE, dtype=torch.float64))
    assert proof.within(CAUSAL[T])
    assert "stay at least 746 below" in str(proof.conditions[0])


def eager_double(x: Tensor) -> Tensor:
    return (x @ x.mT).masked_fill(FUTURE, -1e9).softmax(-1) @ x


def test_a_finite_mask_that_hides_nothing_is_not_proven():
    # Scores as low as the mask: the future has weight today.
    low = prove(Attention(eager(lambda s: (s - 9950).masked_fill(FUTURE, -1e4))), torch.randn(1, T, SIZE))
    assert not low.within(CAUSAL[T])
    # -50 is not a mask at all.
    assert not prove(Attention(eager(lambda s: s + additive(-50.0))), torch.randn(1, T, SIZE)).within(CAUSAL[T])


BY_VALUE = {
    "where": lambda s, closed: torch.where(closed, torch.tensor(-1e9), s),
    "masked_fill": lambda s, closed: s.masked_fill(closed, -1e9),
    "product": lambda s, closed: s + closed.float() * torch.tensor(-1e9),
    "product with a number": lambda s, closed: s + closed.float() * -1e9,
    "maximum": lambda s, closed: s + torch.maximum(closed.float() * -1e9, additive(-1e9)),
}


@pytest.mark.parametrize("mask", BY_VALUE.values(), ids=BY_VALUE)
def test_a_mask_that_a_value_could_lift_hides_nothing(mask):
    # Closed for every input that is not huge, as in this run.
    core = lambda q, k, v: mask(scores(q, k), FUTURE & (v.sum(-1).abs() < 1e6).unsqueeze(-2)).softmax(-1) @ v  # noqa: E731
    assert not prove(Attention(core), torch.randn(1, T, SIZE)).within(CAUSAL[T])


def test_a_row_that_is_masked_by_finite_numbers_hears_everyone():
    mask = additive(-1e9)
    mask[2] = -1e9
    proof = prove(Attention(eager(lambda s: s + mask)), torch.randn(1, T, SIZE))
    assert proof.matrix()[2].all()
    assert torch.equal(proof.matrix()[3:], CAUSAL[T][3:])


# Training may change it.
MASK_WEIGHT = nn.Parameter(additive(INF))

WRONG = {
    "no mask": eager(lambda s: s),
    "off by one": eager(lambda s: s.masked_fill(torch.ones(T, T).triu(2).bool(), INF)),
    "multiplied before the softmax": eager(lambda s: s * CAUSAL[T]),
    "softmax over queries": lambda q, k, v: scores(q, k).masked_fill(FUTURE, INF).softmax(-2) @ v,
    "masked after the softmax": lambda q, k, v: (scores(q, k).softmax(-1) * CAUSAL[T]) @ v,
    "inverted for sdpa": sdpa(attn_mask=FUTURE | torch.eye(T).bool()),
    "normaliser over all": lambda q, k, v: ((e := torch.exp(scores(q, k))) * CAUSAL[T] / e.sum(-1, keepdim=True)) @ v,
    "maximum over all": lambda q, k, v: (
        torch.exp((s := scores(q, k)) - s.amax(-1, keepdim=True)).masked_fill(FUTURE, 0.0) @ v
    ),
    "mask is a parameter": eager(lambda s: s + MASK_WEIGHT),
}


@pytest.mark.parametrize("core", WRONG.values(), ids=WRONG)
def test_wrong_masks_are_not_proven(core):
    assert not prove(Attention(core), torch.randn(1, T, SIZE)).within(CAUSAL[T])


def test_padding_that_is_read_from_the_tokens_is_part_of_the_past():
    table = nn.Embedding(9, SIZE)

    def run(tokens):
        x = table(tokens)
        allowed = CAUSAL[T] & (tokens != 0)[:, None, :]
        return torch.where(allowed, x @ x.transpose(1, 2), INF).softmax(-1).nan_to_num() @ x

    proof = prove(run, torch.randint(0, 9, (2, T)))
    assert torch.equal(proof.matrix(), CAUSAL[T])
    assert proof.isolated


def test_masks_in_buffers_are_read_and_named():
    class Masked(nn.Module):
        def __init__(self, persistent: bool):
            super().__init__()
            self.register_buffer("bias", torch.ones(T, T).tril(), persistent=persistent)

        def forward(self, x):
            return (x @ x.transpose(1, 2)).masked_fill(self.bias == 0, INF).softmax(-1) @ x

    for persistent in (True, False):
        proof = prove(nn.Sequential(Masked(persistent)), torch.randn(1, T, SIZE))
        assert proof.within(CAUSAL[T])
        assert "0.bias" in proof.assumptions[-1]


@needs_native
@pytest.mark.parametrize("name", ["causal", "window", "documents", "full", "ahead"])
def test_the_kernel_of_this_package_is_proven_by_its_definition(name: str):
    masks = {
        "causal": causal(),
        "window": causal() & window(2),
        "documents": causal() & documents([0, 0, 1, 1, 1]),
        "full": full(),
        "ahead": window(2, ahead=1),
    }
    mask = masks[name]
    found = prove(lambda x: attend(x, x, x, mask=mask, engine="native"), torch.randn(1, 5, 4))
    assert torch.equal(found.matrix(), mask.to_bool(5))


@needs_native
def test_documents_that_the_model_reads_off_its_input_are_followed():
    def peeks(x):
        # Which document a position is in depends on what comes later.
        ids = (x[0, :, 0].flip(0).cumsum(0).flip(0) > 0).int()
        return attend(x, x, x, mask=causal() & documents(ids), engine="native")

    assert prove(peeks, torch.randn(1, 5, 4)).matrix().triu(1).any()
