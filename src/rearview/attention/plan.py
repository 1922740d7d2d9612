"""Which engine, why, and why not the others: the rule of `engine="auto"`, in one place.

>>> import torch
>>> from rearview import causal, plan
>>> x = torch.zeros(1, 2, 8, 16)
>>> plan(x, x, x, mask=causal()).engine
'native'
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rearview.attention.bias import Alibi
from rearview.attention.engines import ENGINES, blocks, flex, native, reference, sdpa
from rearview.attention.request import Request
from rearview.errors import BadArgument, Unsupported
from rearview.masks import Mask, causal

# One query of a head with fewer float32 numbers than this leaves most of a vector empty.
NARROW = 32

# Up to this many pairs of one sequence the cost is in the calls, and one fused call beats several exact ones.
SMALL_PAIRS = 128 * 128


def choose(request: Request) -> tuple[str, str]:
    """The rule: (engine, reason). Read from the top; the first that fits is taken."""
    if _native_is_faster(request) and not native.refusals(request):
        return native.name, "the C++ kernel computes the visible pairs only, on all cores"
    if not sdpa.needs_dense_mask(request) and not sdpa.refusals(request):
        return sdpa.name, "the fused kernel says this mask itself, with no dense tensor"
    if request.device.type == "cuda" and not flex.refusals(request):
        return flex.name, "on a GPU a compiled block-sparse kernel does the visible tiles only"
    if _is_small(request) and not sdpa.refusals(request):
        return sdpa.name, "at this size one fused call with a dense mask costs less than several exact ones"
    return blocks.name, "it computes the visible ranges only, forward and backward, and compiles nothing"


def _native_is_faster(request: Request) -> bool:
    """On a CPU, wherever it was measured (`python -m bench native`), short or long, with any mask and option.

    Not under torch.func and forward-mode derivatives, of which it knows a part only. Nor, where PyTorch's kernel needs
    no dense mask: forward alone in bfloat16, if the processor has tiles for it; one query of a very narrow head.
    """
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if not native.library.IS_FAST or request.device.type != "cpu" or transformed:
        return False
    dtype, dim = request.query.dtype, request.query.shape[-1]
    in_tiles = native.library.HAS_TILES and dtype == torch.bfloat16 and not request.needs_grad
    narrow = request.frame.q_len == 1 and dim < NARROW and dtype == torch.float32 and request.queries_per_key_head == 1
    return not (in_tiles or narrow) or sdpa.needs_dense_mask(request) or bool(sdpa.refusals(request))


def _is_small(request: Request) -> bool:
    """Is the work so small that calls cost more than hidden scores? Not with one query: a cut there is one slice."""
    return request.frame.q_len > 1 and request.frame.q_len * request.frame.k_len <= SMALL_PAIRS


@dataclass(frozen=True)
class Plan:
    """What `attend` would do with the same arguments. Print it to read it."""

    engine: str
    reason: str
    request: str
    mask: str
    visible: float | None
    memory: int
    not_taken: dict[str, str]

    def __str__(self) -> str:
        share = "no range form" if self.visible is None else f"{100 * self.visible:.1f} % visible"
        width = max(map(len, self.not_taken), default=0)
        return "\n".join(
            [
                self.request,
                f"mask {self.mask}: {share}",
                f"engine {self.engine}: {self.reason}; about {_bytes(self.memory)} beyond inputs and output",
                "not taken:",
                *(f"  {name:<{width}}  {why}" for name, why in self.not_taken.items()),
            ]
        )


def plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = causal(),
    q_start: int | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    engine: str = "auto",
    return_lse: bool = False,
) -> Plan:
    """What `attend` would do with these arguments, and why. Runs nothing.

    >>> import torch
    >>> from rearview import documents
    >>> x = torch.zeros(1, 8, 512, 64)
    >>> print(plan(x, x, x, mask=causal() & documents([i // 64 for i in range(512)])))    # doctest: +ELLIPSIS
    1 x 8 heads x 512 queries over 512 keys, dim 64, float32, cpu
    mask causal() & documents(<512 ids>): 6.3 % visible
    engine native: the C++ kernel computes the visible pairs only, ...
    not taken:
      reference  ...
    """
    request = Request.of(
        query,
        key,
        value,
        mask=mask,
        q_start=q_start,
        bias=bias,
        scale=scale,
        softcap=softcap,
        dropout=dropout,
        generator=generator,
        return_lse=return_lse,
    )
    taken, reason = resolve(request, engine)
    others = {name: _why_not(name, request, taken, asked=engine) for name in ENGINES if name != taken}
    share = None if request.spans is None else request.spans.share
    return Plan(taken, reason, request.describe(), repr(mask), share, _memory(taken, request), others)


def resolve(request: Request, engine: str) -> tuple[str, str]:
    """The engine for this request: the one that was named, which never falls back, or the choice of the rule."""
    if engine == "auto":
        return choose(request)
    if engine not in ENGINES:
        raise BadArgument("engine", expected="auto, " + ", ".join(ENGINES), came=repr(engine))
    if reasons := ENGINES[engine].refusals(request):
        raise Unsupported(
            f"engine {engine!r} cannot do this exactly",
            reasons,
            advice="engine='auto' chooses one that can; plan(...) says which and why.",
        )
    return engine, "it was asked for"


def _why_not(name: str, request: Request, taken: str, *, asked: str) -> str:
    if reasons := ENGINES[name].refusals(request):
        return "cannot: " + "; ".join(reasons)
    if asked != "auto":
        return "another engine was asked for"
    extra = _bytes(_memory(name, request))
    if name == reference.name:
        return f"the definition, made to be right: {extra} of scores"
    if name == sdpa.name and sdpa.needs_dense_mask(request):
        return f"it would compute every pair, with a dense mask of {extra}"
    if name == flex.name:
        return "it would be compiled at the first call, for seconds"
    if taken == native.name and name == sdpa.name:
        return "it says this mask exactly too, and takes longer"
    if taken == native.name:
        return "it computes the same ranges in many calls of PyTorch, and takes longer"
    if name == native.name:
        return "with the instruction sets of this machine, or under torch.func, the other was not measured to be slower"
    if request.device.type == "cuda" and sdpa.needs_dense_mask(request):
        return "on a GPU its many small calls cost more than one compiled kernel"
    if sdpa.needs_dense_mask(request):
        return "at this size its several calls cost more than one"
    return "the fused kernel is faster where it says the mask itself"


def _memory(name: str, request: Request) -> int:
    """Bytes beyond inputs and output, an estimate: what grows with the length."""
    frame, item = request.frame, torch.finfo(request.work_dtype).bits // 8
    pairs = frame.q_len * frame.k_len
    if name == reference.name:
        return 3 * request.batch * request.heads * pairs * item
    if name == sdpa.name:
        if not sdpa.needs_dense_mask(request):
            return 0
        # A bool for each pair; with a bias, a number in each place where either of the two differs.
        batch, heads, bias = request.mask.batch or 1, request.mask.heads or 1, request.bias
        if bias is None:
            return batch * heads * pairs
        own = (1, len(bias.slopes)) if isinstance(bias, Alibi) else bias.shape[:2]
        return max(batch, own[0]) * max(heads, own[1]) * pairs * item
    if name == flex.name:
        tiles = -(-frame.q_len // flex.BLOCK) * -(-frame.k_len // flex.BLOCK)
        return 0 if request.hears_everything else 16 * (request.mask.batch or 1) * (request.mask.heads or 1) * tiles
    if name == native.name:
        # The log-sum-exp, and for each thread one head's values, and for backward its queries in the forms it reads.
        dims, rows = request.query.shape[-1] + request.value.shape[-1], frame.q_len * request.queries_per_key_head
        a_head = frame.k_len * request.value.shape[-1] + (rows * 3 * dims if request.needs_grad else 0)
        return request.batch * request.heads * frame.q_len * item + torch.get_num_threads() * a_head * item
    tile = min(frame.q_len, blocks.LONG_ROW_STRIP) * min(frame.k_len, blocks.KEYS_PER_TILE)
    return 2 * request.batch * request.heads * tile * item


def _bytes(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
