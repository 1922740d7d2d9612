"""Which engine computes a call, why, and why not the others.

>>> import torch
>>> from rearview import causal, plan
>>> x = torch.zeros(1, 2, 8, 16)
>>> plan(x, x, x, mask=causal()).engine
'native'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from torch import Tensor

from rearview.attention.call import Call, CallOptions, shows_options
from rearview.attention.engines import ENGINES, decode, gpu_choice
from rearview.drawing.cells import in_bytes
from rearview.errors import BadArgument, Unsupported


@dataclass(frozen=True)
class Plan:
    """What `attend` would do with the same arguments. Print it to read it."""

    engine: str
    reason: str
    call: str
    mask: str
    visible: float | None
    # Why the mask has no ranges, where it has none.
    range_obstacle: str | None
    memory: int
    not_taken: dict[str, str]

    def __str__(self) -> str:
        share = (
            f"{100 * self.visible:.1f} % visible" if self.visible is not None else f"no ranges, {self.range_obstacle}"
        )
        width = max(map(len, self.not_taken), default=0)
        return "\n".join(
            [
                self.call,
                f"mask {self.mask}: {share}",
                f"engine {self.engine}: {self.reason}; about {in_bytes(self.memory)} beyond inputs and output",
                "not taken:",
                *(f"  {name:<{width}}  {why}" for name, why in self.not_taken.items()),
            ]
        )

    def _repr_html_(self) -> str:
        from rearview.drawing.html import preformatted

        return preformatted(str(self))


@shows_options
def plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    engine: str = "auto",
    return_lse: bool = False,
    **options: Unpack[CallOptions],
) -> Plan:
    """What `attend` would do with these arguments, and why. Runs nothing.

    >>> import torch
    >>> from rearview import causal, documents
    >>> x = torch.zeros(1, 8, 512, 64)
    >>> print(plan(x, x, x, mask=causal() & documents([i // 64 for i in range(512)])))    # doctest: +ELLIPSIS
    1 x 8 heads x 512 queries over 512 keys, dim 64, float32, cpu
    mask causal() & documents(<512 ids>): 6.3 % visible
    engine native: the C++ kernel computes the visible pairs only, ...
    not taken:
      hopper     ...
    """
    call = Call.of(query, key, value, return_lse=return_lse, **options)
    call = call if call.shard is None else call.shard.planned(call)
    taken, reason = resolve(call, engine)
    settled = call.settled()
    others = {name: _reason_not_taken(name, call, taken, asked=engine) for name in ENGINES if name != taken}
    return Plan(
        engine=taken,
        reason=reason,
        call=call.describe(),
        mask=repr(call.mask),
        visible=None if settled.spans is None else settled.spans.share,
        range_obstacle=call.mask.range_obstacle,
        memory=ENGINES[taken].memory(read_by(taken, call)),
        not_taken=others,
    )


def resolve(call: Call, engine: str) -> tuple[str, str]:
    """The engine for this call and the reason: the named one, which never falls back, or the first that takes it."""
    if not isinstance(engine, str) or engine not in ("auto", *ENGINES):
        raise BadArgument("engine", expected="auto, " + ", ".join(ENGINES), got=repr(engine))
    if engine == "auto":
        if call.device.type == "cuda":
            for name in gpu_choice.fastest_first(call):
                if name in ENGINES and not refusals_of(name, call):
                    return name, gpu_choice.REASONS[name]
        for name, each in ENGINES.items():
            reason = each.reason_to_take(read_by(name, call))
            if reason is not None and not refusals_of(name, call):
                return name, reason
        reasons = [f"{name}: {reason}" for name in ENGINES for reason in refusals_of(name, call)]
        raise Unsupported("no engine can do this exactly", reasons)
    if reasons := refusals_of(engine, call):
        raise Unsupported(
            f"engine {engine!r} cannot do this exactly",
            reasons,
            advice="engine='auto' chooses one that can; plan(...) says which and why.",
        )
    return engine, "it was asked for"


def read_by(name: str, call: Call) -> Call:
    """The call as an engine receives it: only `decode` reads lengths that are on the device."""
    return call if name == decode.name else call.settled()


def refusals_of(name: str, call: Call) -> list[str]:
    """Why an engine cannot compute a call exactly."""
    return ENGINES[name].refusals(read_by(name, call))


def _reason_not_taken(name: str, call: Call, taken: str, *, asked: str) -> str:
    if reasons := refusals_of(name, call):
        return "cannot: " + "; ".join(reasons)
    return (
        "another engine was asked for"
        if asked != "auto"
        else ENGINES[name].reason_not_taken(read_by(name, call), taken)
    )
