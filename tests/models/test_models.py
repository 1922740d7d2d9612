"""GPT, BERT and T5: what each may hear, their options, their errors."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rearview import Mask, PagedCache, causal, chunks, documents, full, padding, prefix, tree, window
from rearview.attention.positions import rotation_at
from rearview.errors import BadArgument, BadFile, RearviewError, Unsupported
from rearview.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config
from rearview.models.checkpoint import load

SMALL: dict[str, Any] = {"vocab_size": 31, "layers": 2, "heads": 4, "width": 32}
SINKS = causal() & (window(4) | prefix(2))


def gpt(**options: Any) -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(**{**SMALL, "context": 24, **options}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def tokens(batch: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(31, (batch, length), generator=torch.Generator().manual_seed(seed))


def hears(model: GPT, length: int) -> Tensor:
    """Which outputs change when one token changes: bool [output position, changed position]."""
    x = tokens(1, length)
    rows = x.repeat(length, 1)
    rows[torch.arange(length), torch.arange(length)] = (x[0] + 7) % 31
    with torch.no_grad():
        # One sequence at a time: another test checks the items of a batch.
        before = model(x)
        after = torch.cat([model(row.unsqueeze(0)) for row in rows])
    return (after != before).any(-1).T


OPTIONS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rotary": {"positions": "rotary"},
    "grouped": {"kv_heads": 2},
    "one key head, rotary, no bias": {"kv_heads": 1, "positions": "rotary", "bias": False, "tied": False},
    "window": {"mask": causal() & window(3)},
    "sinks": {"mask": SINKS, "positions": "rotary"},
    "chunks": {"mask": causal() & chunks(5)},
    "one mask per layer": {"mask": (causal() & window(2), causal())},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_gpt_hears_what_its_masks_allow(options: dict[str, Any]):
    model = gpt(**options)
    length = 12
    first, second = (mask.to_bool(length) for mask in model.config.masks)
    # With two layers, hearing is transitive; the residual stream adds each position itself.
    itself = torch.eye(length, dtype=torch.bool)
    reach = ((second | itself).float() @ (first | itself).float()) > 0
    assert torch.equal(hears(model, length), reach)


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("steps", [[24], [1] * 24, [7, 1, 9, 2, 5]], ids=["at once", "one by one", "in chunks"])
def test_cached_equals_uncached(options: dict[str, Any], steps: list[int]):
    model = gpt(**options)
    x = tokens(2, 24)
    cache = model.new_cache(2)
    pieces = [model(piece, cache=cache) for piece in x.split(steps, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(x), atol=2e-5, rtol=1e-5)


@torch.no_grad()
def test_a_cache_in_pages_is_shared_by_answers_to_one_prompt():
    model = gpt(kv_heads=2)
    prompt, answers = tokens(1, 10), tokens(3, 5)
    cache = model.new_cache(1, block_size=4, num_blocks=20)
    first = model(prompt, cache=cache)
    for layer in cache:
        layer.take([0, 0, 0])
    pieces = [first[:, -1:].expand(3, -1, -1), *(model(answers[:, n : n + 1], cache=cache) for n in range(5))]
    whole = model(torch.cat([prompt.expand(3, -1), answers], dim=1))
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole[:, 9:], atol=1e-5, rtol=1e-5)
    # Two full blocks of the prompt are shared; each answer has two of its own.
    assert [layer.blocks_in_use for layer in cache if isinstance(layer, PagedCache)] == [2 + 3 * 2] * 2
    with pytest.raises(BadArgument, match=r"^num_blocks: expected block_size= as well, got num_blocks=20 alone"):
        model.new_cache(1, num_blocks=20)


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_unequal_lengths_in_one_cache(options: dict[str, Any]):
    """Items of a batch that hold different numbers of tokens give the logits that each gives alone."""
    model = gpt(**options)
    lengths = [5, 11, 1]
    x = tokens(3, 24)
    cache = model.new_cache(3)
    model(x[:, :11], cache=cache)
    for layer in cache:
        layer.keep(lengths)
    follow = torch.stack([row[length : length + 6] for row, length in zip(x, lengths, strict=True)])
    pieces = torch.cat([model(follow[:, :1], cache=cache), model(follow[:, 1:], cache=cache)], dim=1)
    for n, length in enumerate(lengths):
        alone = model(x[n : n + 1, : length + 6])[:, length:]
        torch.testing.assert_close(pieces[n : n + 1], alone, atol=2e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_packed_documents_give_the_logits_of_each_alone(options: dict[str, Any]):
    if options.get("mask") is SINKS or (isinstance(options.get("mask"), Mask) and "chunks" in repr(options["mask"])):
        pytest.skip("these masks speak of positions in the row, where a document does not start at 0")
    model = gpt(**options)
    parts = [tokens(1, n, seed=n) for n in (9, 1, 14)]
    ids = torch.repeat_interleave(torch.arange(3), torch.tensor([9, 1, 14]))
    positions = torch.cat([torch.arange(part.shape[1]) for part in parts])
    packed = model(torch.cat(parts, dim=1), mask=documents(ids), positions=positions)
    alone = torch.cat([model(part) for part in parts], dim=1)
    torch.testing.assert_close(packed, alone, atol=2e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_paths_give_every_mask_the_positions_of_each_document(options: dict[str, Any]):
    model = gpt(**options)
    parts = [tokens(1, n, seed=n) for n in (9, 1, 14)]
    ids = torch.repeat_interleave(torch.arange(3), torch.tensor([9, 1, 14]))
    packed = model(torch.cat(parts, dim=1), paths=documents(ids))
    alone = torch.cat([model(part) for part in parts], dim=1)
    torch.testing.assert_close(packed, alone, atol=2e-5, rtol=1e-5)


PARENTS = [-1, 0, 1, 2, 2, 4, 1, -1, 7, 6]


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_each_path_of_a_tree_reads_as_if_it_were_alone(options: dict[str, Any]):
    model = gpt(**options)
    x = tokens(2, len(PARENTS))
    together = model(x, paths=tree(PARENTS))
    cache = model.new_cache(len(x))
    parts = [model(part, paths=tree(PARENTS), cache=cache) for part in x.split([3, 4, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), together, atol=2e-5, rtol=1e-5)
    for node in range(len(PARENTS)):
        path, at = [], node
        while at >= 0:
            path.insert(0, at)
            at = PARENTS[at]
        torch.testing.assert_close(together[:, node], model(x[:, path])[:, -1], atol=2e-5, rtol=1e-5)


@torch.no_grad()
def test_a_tree_may_have_more_nodes_than_the_context_has_positions():
    model = gpt()
    count = model.config.context
    x = tokens(1, count + 1)
    # Two answers of one token follow on a prompt that leaves one position free.
    branches = model(x, paths=tree([*range(-1, count - 1), count - 2]))
    other = torch.cat([x[:, :-2], x[:, -1:]], dim=1)
    torch.testing.assert_close(branches[:, -1], model(other)[:, -1], atol=2e-5, rtol=1e-5)
    with pytest.raises(BadArgument, match=f"tokens: expected at most {count} positions, the model's context"):
        model(x, paths=tree(list(range(-1, count))))


def test_paths_that_do_not_fit():
    with pytest.raises(BadArgument) as caught:
        gpt()(tokens(1, 5), paths=tree([-1, 0, 0]))
    expected = "paths: expected sequences of all 5 positions, including those in the cache, got 3 positions."
    assert str(caught.value) == expected
    with pytest.raises(BadArgument) as caught:
        gpt()(tokens(1, 5), paths=causal())  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == ("paths: expected tree(parents), shared_prefix(...) or documents(ids), got causal().")


def test_bert_hears_all_positions_and_the_t5_decoder_looks_back():
    torch.manual_seed(0)
    x, y = tokens(1, 8), tokens(1, 6, seed=2)
    bert = BERT(BERTConfig(**SMALL)).eval()
    changed = x.clone()
    changed[0, -1] = (x[0, -1] + 1) % 31
    assert bool((bert(x) != bert(changed)).any(-1).all())
    t5 = T5(T5Config(**SMALL)).eval()
    assert bool((t5(x, y) != t5(changed, y)).any(-1).all())
    later = y.clone()
    later[0, 3] = (y[0, 3] + 1) % 31
    differs = (t5(x, y) != t5(x, later)).any(-1)[0]
    assert differs.tolist() == [False] * 3 + [True] * 3


@torch.no_grad()
def test_t5_decodes_with_a_cache():
    torch.manual_seed(0)
    model = T5(T5Config(**SMALL)).eval()
    x, y = tokens(2, 9), tokens(2, 12, seed=2)
    mask = padding([9, 4])
    memory = model.encode(x, mask=mask)
    cache = model.new_cache(2, 12)
    pieces = [model.decode(piece, memory, cache=cache) for piece in y.split([1, 1, 4, 6], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(x, y, mask=mask), atol=1e-5, rtol=1e-5)


def models() -> list[tuple[Any, tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    x, y = tokens(2, 10), tokens(2, 7, seed=2)
    return [
        (gpt(positions="rotary", kv_heads=2), (x,)),
        (gpt(mask=causal() & window(3)), (x,)),
        (BERT(BERTConfig(**SMALL)), (x,)),
        (T5(T5Config(**SMALL)), (x, y)),
    ]


@pytest.mark.parametrize("n", range(4), ids=["GPT", "windowed GPT", "BERT", "T5"])
def test_gradient_checkpointing_changes_nothing(n: int):
    model, inputs = models()[n]
    model.train()
    twin = copy.deepcopy(model)
    twin.gradient_checkpointing = True
    for one in (model, twin):
        F.cross_entropy(one(*inputs).flatten(0, 1), inputs[-1].flatten()).backward()
    for (name, parameter), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert parameter.grad is not None, name
        assert torch.equal(parameter.grad, other.grad), name


def test_gradient_checkpointing_stores_less():
    kept: dict[bool, int] = {}
    for on in (False, True):
        model = gpt(layers=6).train()
        model.gradient_checkpointing = on
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(tokens(2, 24))
        kept[on] = count
    assert kept[True] < kept[False] / 4


@torch.no_grad()
@pytest.mark.parametrize("n", range(4), ids=["GPT", "windowed GPT", "BERT", "T5"])
def test_bfloat16_is_close(n: int):
    model, inputs = models()[n]
    model.eval()
    exact = model(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(*inputs)
    assert cast.dtype == torch.bfloat16
    assert float((cast.float() - exact).norm() / exact.norm()) < 0.03
    half = copy.deepcopy(model).to(torch.bfloat16)(*inputs)
    assert float((half.float() - exact).norm() / exact.norm()) < 0.03


# The compiler looks at .grad of tensors that are not leaves, in a process that has compiled other models before.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_models_give_the_same_logits():
    model, inputs = models()[0]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), model(*inputs))
    compiled(*inputs).sum().backward()


def test_dropout_acts_in_training_only():
    model = gpt(dropout=0.5)
    x = tokens(1, 8)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_rotary_scores_depend_on_distances_only():
    model = gpt(positions="rotary")
    x = tokens(1, 8)
    torch.testing.assert_close(model(x, positions=torch.arange(100, 108)), model(x), atol=1e-4, rtol=1e-4)
    q = torch.randn(1, 1, 3, 8)
    assert torch.allclose(rotation_at(torch.arange(3), head_dim=8, base=10000.0)(q).norm(dim=-1), q.norm(dim=-1))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_gpt_is_loaded_as_it_was_saved(tmp_path: Path, options: dict[str, Any]):
    model = gpt(**options)
    model.save_pretrained(tmp_path)
    same = load(tmp_path)
    assert isinstance(same, GPT)
    x = tokens(2, 24)
    assert torch.equal(same(x), model(x))
    assert (json.loads((tmp_path / "config.json").read_text())["model_type"] == "gpt2") == (options in ({},))


def test_a_mask_with_data_cannot_be_saved(tmp_path: Path):
    model = gpt(mask=causal() & documents(torch.arange(100) // 8))
    with pytest.raises(Unsupported, match="cannot be written as an expression"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


BAD_CONFIGS = [
    (GPTConfig, {"width": 30}, "width: expected a multiple of heads = 4, got 30"),
    (GPTConfig, {"kv_heads": 3}, "heads: expected a multiple of kv_heads = 3, got 4"),
    (GPTConfig, {"layers": 0}, "layers: expected an integer of at least 1, got 0"),
    (GPTConfig, {"positions": "absolute"}, 'positions: expected "learned" or "rotary", got \'absolute\''),
    (
        GPTConfig,
        {"positions": "rotary", "width": 36},
        "width / heads: expected an even number of features per head, got 36 / 4 = 9.",
    ),
    (GPTConfig, {"mask": (causal(),)}, "mask: expected a tuple of 2 masks, one per layer, got 1."),
    (GPTConfig, {"mask": "causal()"}, "mask: expected a Mask such as causal()"),
    (GPTConfig, {"dropout": 1.0}, "dropout: expected a number of at least 0 and below 1, got 1.0."),
    (GPTConfig, {"activation": "tanh"}, "activation: expected one of gelu, gelu_tanh, relu, silu, got 'tanh'"),
    (BERTConfig, {"segments": 0}, "segments: expected an integer of at least 1"),
    (T5Config, {"width": 30}, "width: expected a multiple of heads = 4, got 30"),
]


@pytest.mark.parametrize(("config", "options", "message"), BAD_CONFIGS, ids=lambda value: str(value)[:30])
def test_bad_configs_are_refused(config: type, options: dict[str, Any], message: str):
    with pytest.raises(BadArgument) as refused:
        config(**{**SMALL, **options})
    assert message in str(refused.value)


def test_batches_are_checked():
    model = gpt()
    for bad, message in [
        (torch.zeros(1, 3), "tokens: expected a tensor of integers [batch, time], got torch.float32"),
        (tokens(1, 3)[0], "tokens: expected shape [batch, time] with at least one position, got [3]."),
        (torch.tensor([[1, 31]]), "tokens: expected ids from 0 to 30, got 31"),
        (torch.tensor([[-1]]), "tokens: expected ids from 0 to 30, got -1"),
        (tokens(1, 25), "tokens: expected at most 24 positions, the model's context, got 25"),
    ]:
        with pytest.raises(BadArgument) as refused:
            model(bad)
        assert message in str(refused.value)
    cache = model.new_cache(1)
    model(tokens(1, 20), cache=cache)
    with pytest.raises(BadArgument, match=r"got 25 \(20 of them in the cache\)"):
        model(tokens(1, 5), cache=cache)
    with pytest.raises(BadArgument, match="mask: expected a Mask"):
        model(tokens(1, 5), mask=torch.ones(5, 5))  # type: ignore[arg-type]


def test_folders_are_checked(tmp_path: Path):
    def refused(kind: type[RearviewError], message: str, asked: Any = None) -> None:
        with pytest.raises(kind) as error:
            load(tmp_path / "model", *([asked] if asked else []))
        assert message in str(error.value)

    folder = tmp_path / "model"
    refused(
        BadArgument, f"folder: expected a folder with config.json and safetensors, got {folder}, which is not a folder."
    )
    folder.mkdir()
    refused(BadArgument, "without config.json")
    (folder / "config.json").write_text("{")
    refused(BadFile, "config.json: line 1, column 2: this is not JSON")
    (folder / "config.json").write_text("[]")
    refused(BadFile, "expected one JSON object, got []")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    refused(Unsupported, 'its model_type is "llama"; supported are gpt2, rearview_gpt, bert, t5')
    (folder / "config.json").write_text('{"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true}')
    (folder / "pytorch_model.bin").write_bytes(b"")
    refused(
        BadArgument,
        "pytorch_model.bin is a pickle, which can run code and is never loaded; save the model as safetensors.",
    )
    gpt().save_pretrained(folder)
    refused(BadArgument, "folder: expected a BERT, got 'gpt2', a GPT", BERT)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    refused(BadFile, "is damaged or not a safetensors file: ")
    weights.write_bytes(whole)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_embd": 64}))
    refused(BadFile, "the config requires tokens.weight of shape [31, 64], the file has [31, 32]")
    (folder / "config.json").write_text(json.dumps({**config, "n_layer": 3}))
    refused(BadFile, "has no tensor transformer.h.2.ln_1.weight, which its config.json requires")
    (folder / "config.json").write_text(json.dumps({**config, "scale_attn_by_inverse_layer_idx": True}))
    refused(Unsupported, "scale_attn_by_inverse_layer_idx is True")
    weights.unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../other.safetensors"}}')
    refused(BadFile, 'expected the name of a file in this folder, got "../other.safetensors"')
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    refused(BadFile, "is listed in the index of shards and does not exist")


def test_a_gpt_with_full_attention():
    assert hears(gpt(mask=full(), layers=1), 6).all()
