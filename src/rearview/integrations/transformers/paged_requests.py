"""Continuous batching of transformers on `attend`: all requests of a step in one call on ranges.

    >>> from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    >>> from transformers.generation import ContinuousBatchingConfig
    >>> config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                      num_attention_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    >>> model = LlamaForCausalLM(config).eval()
    >>> cache = ContinuousBatchingConfig(num_blocks=16, page_size=16, max_batch_tokens=32)
    >>> with continuous_batching(model):
    ...     found = model.generate_batch([[5, 6, 7], [8]], GenerationConfig(max_new_tokens=4, eos_token_id=-1), cache)
    >>> [len(each.generated_tokens) for each in found.values()]
    [4, 4]

transformers keeps the keys of all requests in pages and copies those of a step into one row, a request after the other.
Its SDPA then computes every pair of that row, with a dense mask. Here each query has one range, the part of its own
request that it may hear, so the pairs of other requests are not computed.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rearview.attention.call import Call
from rearview.attention.functional import run
from rearview.errors import BadArgument, Unsupported
from rearview.integrations.transformers.function_slots import Function, replaced, slots_of
from rearview.integrations.transformers.registration import check_release
from rearview.integrations.transformers.unsupported_arguments import refuse_unsupported
from rearview.integrations.transformers.watcher import attention_modules, is_watched
from rearview.masks import Mask, ranges

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# What `PagedAttentionCache.update` takes in the releases whose calls can be read here.
ARGUMENTS_OF_UPDATE = ["self", "key_states", "value_states", "layer_idx", "kwargs"]
# Arguments that describe a step: the mask is made from them, or they concern the pages or the logits.
OF_THE_STEP = frozenset(
    [
        *("cu_seq_lens_q", "cu_seq_lens_k", "sliding_window"),
        *("read_index", "write_index", "logits_indices", "logits_processor_args"),
    ]
)

_modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@contextmanager
def continuous_batching(model: PreTrainedModel) -> Iterator[None]:
    """Within the context, continuous batching of this model (`generate_batch` and its managers) runs on `attend`.

    transformers accepts only its own names for continuous batching, so the model has one of these while the context
    lasts, and its attention modules are served by Rearview. Calls outside of continuous batching are not affected.
    """
    modules = _checked_modules(model)
    before = _implementations(model.config)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "paged|eager")
    _modules.update(modules)
    try:
        with replaced((slot for kind in set(map(type, modules)) for slot in slots_of(kind)), _attention):
            yield
    finally:
        _modules.difference_update(modules)
        model.set_attn_implementation(before)


def _implementations(config: PreTrainedConfig) -> dict[str, Any]:
    """The implementation of a model and of its parts, as `set_attn_implementation` takes them."""
    parts = {name: getattr(config, name) for name in config.sub_configs}
    own = {"": config._attn_implementation}
    return own | {name: _implementations(part) for name, part in parts.items() if part is not None}


def _checked_modules(model: PreTrainedModel) -> list[nn.Module]:
    check_release("continuous_batching()")
    from transformers import PreTrainedModel, __version__
    from transformers.generation import continuous_batching as theirs

    if not isinstance(model, PreTrainedModel):
        raise BadArgument("model", expected="a model of transformers", got=type(model).__name__)
    modules = [module for _, module in attention_modules(model)]
    reasons = []
    update = getattr(getattr(theirs, "PagedAttentionCache", None), "update", None)
    if update is None or list(inspect.signature(update).parameters) != ARGUMENTS_OF_UPDATE:
        reasons.append(f"transformers {__version__} passes its pages in another way than 5.22")
    if not modules:
        reasons.append("the model has attention classes of its own, which do not use the attention interface")
    if is_watched(model):
        reasons.append("the model is being watched, and observe() cannot read pages")
    if reasons:
        raise Unsupported(f"continuous_batching({type(model).__name__})", reasons)
    return modules


def _attention(original: Function, name: str) -> Function:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **options: Any
    ) -> Any:
        if module in _modules and options.get("cache") is not None:
            return paged_attention(module, query, key, value, **options)
        return original(module, query, key, value, attention_mask, *args, **options)

    return attention


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cache: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    dropout: float = 0.0,
    block_table: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The output [1, query, heads, dim] of a step of continuous batching, whose keys and values join the cache.

    `query`, `key` and `value` [1, heads, time, dim] hold the new tokens of all requests, one request after the other.
    """
    if block_table is not None:
        raise Unsupported(
            f"continuous batching of {type(module).__name__} with a block table",
            ["transformers then leaves reading and writing the pages to FlashAttention's own kernel"],
            advice="Pass ContinuousBatchingConfig(max_blocks_per_request=0).",
        )
    if dropout and module.training:
        raise Unsupported(f"continuous batching of {type(module).__name__} in training mode", ["it has dropout"])
    # It writes the new keys, returns those of all requests, and replaces their lengths by those of this kind of layer.
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=others)
    q_ends, k_ends = others["cu_seq_lens_q"], others["cu_seq_lens_k"]
    rest = {name: given for name, given in others.items() if name not in OF_THE_STEP}
    refuse_unsupported(module, query, key, None, rest, ours=True)
    window = getattr(cache.layer_to_allocator[module.layer_idx], "sliding_window", None)
    mask = requests_mask(q_ends, k_ends, q_len=query.shape[2], window=window)
    call = Call.of(query, key, value, mask=mask, q_start=0, scale=scaling, softcap=softcap, sinks=s_aux)
    out, _ = run(call)
    return out.transpose(1, 2).contiguous(), None


def requests_mask(q_ends: Tensor, k_ends: Tensor, *, q_len: int, window: int | None = None) -> Mask:
    """Each query hears the keys of its own request up to itself, with a window the most recent of them.

    `q_ends` and `k_ends` are cumulative lengths that begin with 0. The new tokens of a request are the last of its
    keys. Rows after the last request, which only fill up a fixed size, hear nothing.

    >>> requests_mask(torch.tensor([0, 2, 3]), torch.tensor([0, 5, 9]), q_len=3).spans(3, 9, q_start=0).rows()
    [[(0, 4)], [(0, 5)], [(5, 9)]]
    """
    q_ends, k_ends = q_ends.long(), k_ends.long()
    row = torch.arange(q_len, device=q_ends.device)
    request = torch.bucketize(row, q_ends[1:], right=True).clamp(max=len(q_ends) - 2)
    ends = k_ends[request + 1] - (q_ends[request + 1] - 1 - row)
    starts = k_ends[request] if window is None else torch.maximum(k_ends[request], ends - window)
    is_filler = row >= q_ends[-1]
    return ranges(starts.masked_fill(is_filler, 0), ends.masked_fill(is_filler, 0))
