"""The kernels as two operators of torch: what a compiled or exported graph holds.

>>> import torch
>>> torch.ops.rearview.hopper_attention.default.name()
'rearview::hopper_attention'

Plain eager calls do not come this way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.call import Call
from rearview.attention.engines.hopper import kernel
from rearview.attention.engines.hopper.backward import backward
from rearview.attention.engines.hopper.scores import Tensors
from rearview.attention.sequence_shard import local_keys
from rearview.masks.encoding import decode, encode
from rearview.masks.mask import Mask

# slopes: of ALiBi, one per head; seed: of the dropout; mask, numbers, data: the encoded mask.
OPTIONS = (
    "Tensor? slopes, Tensor? seed, str mask, SymInt[] numbers, Tensor[] data, SymInt q_start, "
    "float scale, float softcap, float dropout, bool batch_invariant"
)
_library = torch.library.Library("rearview", "FRAGMENT")
_library.define(
    f"hopper_attention(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? sinks, {OPTIONS}) "
    "-> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "hopper_attention_backward(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? sinks, Tensor out, "
    f"Tensor lse, Tensor d_out, Tensor? d_lse, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    """(query, key, value, bias, sinks, *options) -> (out, lse), through the dispatcher."""
    return torch.ops.rearview.hopper_attention(*arguments)


def options_of(call: Call, seed: Tensor | None) -> tuple[Any, ...]:
    """What follows the tensors in the arguments of both operators."""
    slopes = None if call.alibi is None else call.alibi.slopes
    numbers = (call.frame.q_start, call.scale, call.softcap or 0.0, call.dropout, call.batch_invariant)
    return slopes, seed, *encode(call.mask), *numbers


# The layers of a compiled model ask with the same mask one after another, and so does backward.
REMEMBERED = 16
_masks: dict[tuple[Any, ...], Mask] = {}
_calls: dict[tuple[Any, ...], tuple[Call, kernel.Repetitions]] = {}


def _remembered(answers: dict, asked: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """What was made for the same question, of which the last few are known."""
    found = answers.pop(asked, None)
    if found is None:
        found = make()
    answers[asked] = found
    while len(answers) > REMEMBERED:
        # Another thread, that of a backward pass, may do the same.
        answers.pop(next(iter(answers)), None)
    return found


def _words_of(text: str, numbers: Sequence[int], data: Sequence[Tensor]) -> tuple[Any, ...]:
    """What says which mask this is: a mask keeps its data alive, so that no other tensor gets their memory."""
    # Inside a graph the tensors of a mask are its inputs, and those of its constants: the same memory every time.
    return (text, tuple(numbers), *((each.data_ptr(), each.shape, each._version) for each in data))


def _mask_of(text: str, numbers: Sequence[int], data: Sequence[Tensor]) -> Mask:
    """The mask of these words. A mask whose data were not written to since is the same object, with its schedule."""
    return _remembered(_masks, _words_of(text, numbers, data), lambda: decode(text, numbers, data))


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    slopes: Tensor | None,
    seed: Tensor | None,
    mask: str,
    numbers: Sequence[int],
    data: Sequence[Tensor],
    q_start: int,
    scale: float,
    softcap: float,
    dropout: float,
    batch_invariant: bool,
) -> tuple[Tensors, Call, kernel.Repetitions | None]:
    tensors = (query, key, value, bias, sinks)

    def made() -> Call:
        # The keys are those that were exchanged already, where the sequence is spread over ranks.
        with local_keys():
            return Call.of(
                query,
                key,
                value,
                mask=_mask_of(mask, numbers, data),
                q_start=None if q_start == key.shape[2] - query.shape[2] else q_start,
                bias=bias if slopes is None else Alibi(slopes),
                scale=scale,
                softcap=softcap or None,
                sinks=sinks,
                dropout=dropout,
                batch_invariant=batch_invariant,
            )

    if bias is not None or slopes is not None or dropout:
        call = made()
        return tensors, replace(call, seed=seed) if dropout else call, None
    kinds = tuple((each.shape, each.stride(), each.dtype, each.device) for each in (query, key, value))
    own = None if sinks is None else (sinks.shape, sinks.stride(), sinks.dtype)
    options = (q_start, scale, softcap, batch_invariant)
    asked = (*_words_of(mask, numbers, data), *kinds, own, *options)
    return tensors, *_remembered(_calls, asked, lambda: (made().without_tensors(), kernel.Repetitions()))


def _attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    tensors, call, known = _call(*arguments)
    # Contiguous as the graph was told, whatever the query turns out to be.
    return kernel.forward(tensors, call, contiguous=True, known=known)


def _attention_backward(*arguments: Any) -> tuple[Tensor, ...]:
    tensors, (out, lse, d_out, d_lse), rest = arguments[:5], arguments[5:9], arguments[9:]
    tensors, call, known = _call(*tensors, *rest)
    grads = backward(tensors, call, out, lse, d_out, d_lse, contiguous=True, known=known)
    # An operator returns tensors: none is an empty one.
    return tuple(tensors[0].new_empty(0) if grad is None else grad for grad in grads)


_library.impl("hopper_attention", _attention, "CUDA")
_library.impl("hopper_attention_backward", _attention_backward, "CUDA")


@torch.library.register_fake("rearview::hopper_attention", lib=_library)
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    return query.new_empty(query.shape[:3] + value.shape[3:]), lse


@torch.library.register_fake("rearview::hopper_attention_backward", lib=_library)
def _(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, sinks: Tensor | None, *rest: Any) -> tuple:
    wanted = (query, key, value, sinks)
    return tuple(query.new_empty(0) if each is None else each.new_empty(each.shape) for each in wanted)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, bias, sinks, slopes, seed, mask, numbers, data, *rest = inputs
    ctx.save_for_backward(query, key, value, bias, sinks, *output, slopes, seed, *data)
    ctx.words, ctx.rest = (mask, numbers), rest


def _pull_back(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Any, ...]:
    query, key, value, bias, sinks, out, lse, slopes, seed, *data = ctx.saved_tensors
    rest = (slopes, seed, *ctx.words, data, *ctx.rest)
    grads = torch.ops.rearview.hopper_attention_backward(
        query, key, value, bias, sinks, out, lse, d_out, d_lse, *rest
    )  # fmt: skip
    # torch wants a list back for a list of tensors, and takes an empty list of numbers for one.
    nothing = (None, None, None, None if ctx.words[1] else [], [None] * len(data), None, None, None, None, None)
    return *grads[:3], None, None if sinks is None else grads[3], *nothing


torch.library.register_autograd("rearview::hopper_attention", _pull_back, setup_context=_keep, lib=_library)
