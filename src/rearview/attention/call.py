"""A checked call of `attend`: what the planner, the engines, statistics, observation and auditing receive.

>>> import torch
>>> from rearview import causal
>>> from rearview.attention.call import Call
>>> q = torch.zeros(1, 8, 16, 64)
>>> k = torch.zeros(1, 2, 16, 64)
>>> call = Call.of(q, k, k, mask=causal())
>>> call.queries_per_key_head
4

A call is immutable; `dataclasses.replace(call, dropout=0.0)` returns a changed copy.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, TypeVar, Unpack

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rearview.attention.arguments import (
    as_autocast,
    check_mask,
    check_tensors,
    checked_bias,
    checked_lengths,
    checked_pages,
    checked_sinks,
    finite_number,
    read_lengths,
    refuse_on_shard,
)
from rearview.attention.bias import Alibi
from rearview.attention.graph_break import outside_graphs
from rearview.attention.pages import Pages
from rearview.attention.sequence_shard import SequenceShard, active_shard, refuse_shard
from rearview.errors import BadArgument
from rearview.masks import Frame, Mask, Spans, causal, padding
from rearview.masks.data import true_or_false
from rearview.masks.lagged import lagged

# Up to this number of ranges are cut out of the keys for a single query; with more pieces, a mask is cheaper.
FEW_RANGES = 4
NOTHING = torch.empty(0, device="cpu")

Function = TypeVar("Function", bound=Callable)


class ScoreOptions(TypedDict, total=False):
    """The options that decide the weights: keyword arguments of `weights`, `statistics` and `weights_tile`."""

    mask: Mask
    q_start: int | None
    bias: Tensor | Alibi | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None


class CallOptions(ScoreOptions, total=False):
    """The options of a call: keyword arguments of `attend` and `plan`. Their defaults are in `Call.of`."""

    dropout: float
    generator: torch.Generator | None
    pages: Pages | None
    lengths: Tensor | None
    batch_invariant: bool


@dataclass(frozen=True, eq=False)
class Call:
    """`query` [batch, heads, q_len, dim]; `key` and `value` [batch, key heads, k_len, dim]; `sinks` [heads].

    With `pages`, key and value are pools [blocks, key heads, block size, dim], and k_len is that of the longest item.
    With `lengths`, which are on the device and are not read, the positions of the queries are not known here. Engines
    that do not read lengths themselves receive `settled()`.
    With `shard`, the three tensors hold this rank's rows, and mask and frame are those of the whole sequence; `run`
    exchanges keys first, so no engine sees such a call.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    frame: Frame
    bias: Tensor | Alibi | None
    scale: float
    softcap: float | None
    sinks: Tensor | None
    dropout: float
    generator: torch.Generator | None
    return_lse: bool
    # Drawn from the generator by engines whose backward pass has to repeat the dropout.
    seed: Tensor | None = None
    pages: Pages | None = None
    batch_invariant: bool = False
    # int [batch] on the device: the keys that each item holds. The queries of an item stand at its last positions.
    lengths: Tensor | None = None
    shard: SequenceShard | None = None
    # The mask with the queries of each item at their own positions, where the pages of items are unequally long.
    placed: Mask = field(init=False)
    # The same without parts that have no effect in this frame: `causal() & window(4096)` over 8 keys is causal.
    simplified: Mask = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "placed", self.mask if self.pages is None else self.pages.placed(self.mask))
        known = self.lengths is None
        object.__setattr__(self, "simplified", self.placed._simplify(self.frame) if known else self.placed)

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Mask = causal(),
        q_start: int | None = None,
        bias: Tensor | Alibi | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        pages: Pages | None = None,
        lengths: Tensor | None = None,
        batch_invariant: bool = False,
        return_lse: bool = False,
        **unknown: object,
    ) -> Call:
        """The call with these arguments, checked. `attend` documents them."""
        if unknown:
            raise _unknown_option(next(iter(unknown)), CallOptions)
        check_tensors(query, key, value, paged=pages is not None)
        true_or_false(batch_invariant, "batch_invariant")
        true_or_false(return_lse, "return_lse")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise BadArgument("generator", expected="a torch.Generator", got=type(generator).__name__)
        query, key, value = as_autocast(query, key, value)
        # Two axes are one sequence with one head, three are a batch with one head.
        if query.ndim < 4:
            query, key, value = (t[None, None] if t.ndim == 2 else t.unsqueeze(1) for t in (query, key, value))
        if pages is not None:
            pages = checked_pages(pages, query, key, q_start)
        if lengths is not None:
            lengths = checked_lengths(lengths, query, q_start=q_start, paged=pages is not None)
        shard = active_shard()
        if shard is None:
            frame = Frame.of(query.shape[2], key.shape[2] if pages is None else pages.k_len, q_start)
        else:
            refuse_on_shard(
                shard,
                query,
                key,
                q_start=q_start,
                dropout=dropout,
                pages=pages,
                lengths=lengths,
                batch_invariant=batch_invariant,
            )
            frame = Frame(shard.length, shard.length, 0)
            mask = shard.narrowed(mask) if isinstance(mask, Mask) else mask
        check_mask(mask, frame, batch=query.shape[0], heads=query.shape[1])
        return cls(
            query,
            key,
            value,
            mask,
            frame,
            checked_bias(bias, query, frame.k_len),
            1 / math.sqrt(query.shape[-1]) if scale is None else finite_number(scale, "scale"),
            None if softcap is None else finite_number(softcap, "softcap", above=0.0),
            None if sinks is None else checked_sinks(sinks, query),
            finite_number(dropout, "dropout", at_least=0.0, below=1.0),
            generator,
            return_lse,
            pages=pages,
            batch_invariant=batch_invariant,
            lengths=lengths,
            shard=shard,
        )

    @classmethod
    def of_scores(cls, query: Tensor, key: Tensor, **options: Unpack[ScoreOptions]) -> Call:
        """A call for weights only; the keys take the place of the values."""
        for name in options.keys() - ScoreOptions.__annotations__.keys():
            raise _unknown_option(name, ScoreOptions)
        refuse_shard("weights and statistics of attention", advice="Compute them before or after the layout is active.")
        return cls.of(query, key, key, **options)

    @property
    def score_options(self) -> ScoreOptions:
        """The keyword arguments that `weights` and `statistics` take."""
        frame = self.frame
        return {
            "mask": self.mask,
            # None is the default: queries at the last positions of the keys, where q_start may be negative.
            "q_start": None if frame.q_start == frame.k_len - frame.q_len else frame.q_start,
            "bias": self.bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": self.sinks,
        }

    @property
    def options(self) -> CallOptions:
        """The keyword arguments that `attend` and `plan` take."""
        own: CallOptions = {
            "dropout": self.dropout,
            "generator": self.generator,
            "pages": self.pages,
            "lengths": self.lengths,
            "batch_invariant": self.batch_invariant,
        }
        return {**self.score_options, **own}

    def gathered(self) -> Call:
        """The call with the pages of each item copied into one tensor of keys and one of values."""
        if self.pages is None:
            return self
        pages, bias = self.pages, self.bias
        if not pages.is_even:
            bias = self._bias_at(pages.lengths)
        return replace(
            self, key=pages.gather(self.key), value=pages.gather(self.value), mask=self.placed, bias=bias, pages=None
        )

    def settled(self) -> Call:
        """The call with its lengths read from the device, which waits for it, and stated by the mask."""
        if self.lengths is None:
            return self
        if "_settled" not in self.__dict__:
            counts = read_lengths(self.lengths, q_len=self.frame.q_len, k_len=self.frame.k_len)
            bias = self.bias
            mask = self.mask
            if any(count != self.frame.k_len for count in counts):
                mask = lagged(mask, [self.frame.k_len - count for count in counts]) & padding(counts)
                bias = self._bias_at(counts)
            object.__setattr__(self, "_settled", replace(self, mask=mask, bias=bias, lengths=None))
        return self.__dict__["_settled"]

    def _bias_at(self, lengths: Sequence[int]) -> Tensor | Alibi | None:
        """The bias where the queries of each item stand at the last of so many positions, which ALiBi cannot tell."""
        if not isinstance(self.bias, Alibi):
            return self.bias
        bias, keys = self.bias, torch.arange(self.frame.k_len, device=self.device)
        starts = [length - self.frame.q_len for length in lengths]
        queries = [torch.arange(start, start + self.frame.q_len, device=self.device) for start in starts]
        return torch.stack([bias.tile(positions, keys, self.work_dtype) for positions in queries])

    def exchanged(self) -> Call:
        """The call over the keys that this rank's queries hear, where a sequence is spread over several ranks."""
        if self.shard is None:
            return self
        exchange = self.shard.exchanged
        # Which rows travel depends on values that a graph cannot read.
        return outside_graphs(exchange)(self) if torch.compiler.is_compiling() else exchange(self)

    def without_tensors(self) -> Call:
        """The call for a backward pass, which must keep activations alive as saved tensors only.

        Its tensors are empty, and its bias is None unless it is ALiBi.
        """
        # A plain copy: `replace` would simplify the mask again, in every training step.
        kept = object.__new__(Call)
        changes = {"query": NOTHING, "key": NOTHING, "value": NOTHING, "bias": self.alibi, "sinks": None}
        kept.__dict__.update(self.__dict__, **changes)
        return kept

    def drawn_seed(self) -> Tensor | None:
        """A random number for the dropout, from the generator; None without dropout."""
        if not self.dropout:
            return None
        device = torch.device("cpu") if self.generator is None else self.generator.device
        return torch.randint(2**48, (), generator=self.generator, device=device)

    @property
    def batch(self) -> int:
        return self.query.shape[0]

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def key_heads(self) -> int:
        return self.key.shape[1]

    @property
    def queries_per_key_head(self) -> int:
        return self.heads // self.key_heads

    @property
    def device(self) -> torch.device:
        return self.query.device

    @property
    def alibi(self) -> Alibi | None:
        return self.bias if isinstance(self.bias, Alibi) else None

    @property
    def bias_tensor(self) -> Tensor | None:
        return self.bias if isinstance(self.bias, Tensor) else None

    @property
    def needs_grad(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        if self.query.requires_grad or self.key.requires_grad or self.value.requires_grad:
            return True
        return any(isinstance(each, Tensor) and each.requires_grad for each in (self.bias, self.sinks))

    @property
    def has_tangents(self) -> bool:
        """Whether forward-mode derivatives are taken of it: `torch.func.jvp`, `hessian`, `forward_ad`."""
        if forward_ad._current_level < 0:
            return False
        # In torch.func a tangent may lie below another transform, where it does not show.
        if torch._C._are_functorch_transforms_active():
            return True
        given = [self.query, self.key, self.value, self.bias_tensor, self.sinks]
        return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in given)

    @property
    def needs_lse(self) -> bool:
        """Whether the engine must return the log-sum-exp: it was requested, or the sinks need it."""
        return self.return_lse or self.sinks is not None

    @property
    def work_dtype(self) -> torch.dtype:
        """The dtype of scores and sums."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def hears_everything(self) -> bool:
        return self.simplified.is_full

    @property
    def spans(self) -> Spans | None:
        """The ranges of the mask on the CPU, where engines plan; None if it has none.

        Also None inside a compiled graph, which cannot read the values that the number of ranges depends on.
        """
        if torch.compiler.is_compiling() or not self.mask.has_ranges:
            return None
        return self.placed.spans_in(self.frame, torch.device("cpu"))

    @property
    def heard_ranges(self) -> tuple[tuple[slice, ...], ...] | None:
        """The keys that a single query hears, as slices per batch item (one entry if all items are equal).

        In a step with a cache, the keys are cut to these slices and no mask is needed. None where heads differ, where
        there are many ranges, or where nothing is heard.
        """
        if self.frame.q_len != 1 or self.mask.heads is not None:
            return None
        spans = self.spans
        if spans is None or spans.most_ranges > FEW_RANGES or spans.some_row_empty:
            return None
        return spans.first_rows

    @property
    def is_causal_from_zero(self) -> bool:
        """Whether the mask is the triangle that starts at the first query and the first key."""
        return self.simplified.is_causal and self.frame.q_start == 0 and self.frame.q_len <= self.frame.k_len

    @property
    def needs_dense_mask(self) -> bool:
        """Whether a kernel that has "no mask" and "causal" only would need a dense mask, or has a bias to add."""
        if self.bias is not None:
            return True
        return not (self.hears_everything or self.is_causal_from_zero or self.heard_ranges is not None)

    def visible(self, rows: Tensor | None = None) -> Tensor:
        """The dense mask on the device: bool [batch or 1, heads or 1, rows, k_len]."""
        return self.placed.visible_in(self.frame, self.device, rows)

    @property
    def heard_keys(self) -> Tensor | None:
        """Bool [batch or 1, key heads or 1, k_len], or None when every key is heard by some query."""
        if self.hears_everything and self.frame.q_len:
            return None
        spans = self.spans
        if spans is not None:
            if not spans.some_key_unheard:
                return None
            heard = spans.heard_keys.to(self.device)
        else:
            # Strips limit the memory; a compiled graph uses one dense tensor, which it fuses.
            step = self.frame.q_len if torch.compiler.is_compiling() else 1024
            rows = torch.arange(self.frame.q_len, device=self.device).split(max(1, step))
            heard = torch.stack([self.visible(strip).any(-2) for strip in rows]).any(0)
        if heard.shape[1] > 1:
            heard = heard.unflatten(1, (self.key_heads, self.queries_per_key_head)).any(2)
        return heard

    def shielded(self) -> tuple[Tensor, Tensor]:
        """Key and value with zeros at keys that no query may hear, which may hold NaN: 0 x NaN is NaN."""
        heard = self.heard_keys
        if heard is None:
            return self.key, self.value
        unheard = ~heard.unsqueeze(-1)
        return self.key.masked_fill(unheard, 0), self.value.masked_fill(unheard, 0)

    def dense_bias(self) -> Tensor | None:
        """The bias as a tensor that broadcasts to [batch, heads, q_len, k_len]."""
        if isinstance(self.bias, Alibi):
            queries = torch.arange(self.frame.q_start, self.frame.q_end, device=self.device)
            keys = torch.arange(self.frame.k_len, device=self.device)
            return self.bias.tile(queries, keys, self.work_dtype).unsqueeze(0)
        return self.bias

    def describe(self) -> str:
        dtype = str(self.query.dtype).removeprefix("torch.")
        queries = f"{self.frame.q_len} {'query' if self.frame.q_len == 1 else 'queries'}"
        shape = f"{self.batch} x {self.heads} heads x {queries}"
        paged = "" if self.pages is None else f" in blocks of {self.key.shape[2]}"
        grouped = f" ({self.key_heads} key heads)" if self.key_heads != self.heads else ""
        keys = f"{self.frame.k_len} keys{paged}{grouped}"
        return f"{shape} over {keys}, dim {self.query.shape[-1]}, {dtype}, {self.device.type}"


def shows_options(function: Function) -> Function:
    """Decorator: `help(function)` shows the options of `Call.of` instead of `**options`."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = CallOptions if "value" in signature.parameters else ScoreOptions
    every = inspect.signature(Call.of).parameters
    shared = [every[name] for name in every if name in kind.__annotations__]
    first = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    parameters = [*first, *shared, *own[len(first) :]]
    function.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _unknown_option(name: str, options: type[ScoreOptions]) -> BadArgument:
    own = ["engine", "return_lse"] if options is CallOptions else []
    known = [*options.__annotations__, *own]
    similar = difflib.get_close_matches(name, known, n=1)
    advice = f"Did you mean {similar[0]}=?" if similar else ""
    return BadArgument(name, expected=f"one of the keywords {', '.join(known)}", got=f"{name!r}", advice=advice)
