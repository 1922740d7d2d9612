"""Recording the calls of a layer: a call that continues the sequence is joined to it, any other begins a new one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.call_slices import on_device, until
from rearview.attention.stats import Links, Statistics
from rearview.errors import BadArgument, Unsupported
from rearview.observation.result.layer import Layer
from rearview.observation.result.observation import Observation
from rearview.observation.watching.retained_calls import AUTO_BYTES, RetainedCalls, cost, extended

# The most tokens that speculative decoding reads ahead. A longer call is part of a prompt and is not taken back.
LONGEST_GUESS = 64


@dataclass
class MemoryBudget:
    """The bytes for queries and keys, of all layers together. `limit` None means no limit, 0 that nothing is kept."""

    limit: int | None
    spent: int = 0

    @classmethod
    def of(cls, keep: Literal["auto"] | bool | int | None) -> MemoryBudget:
        """The budget that `observe(keep=)` asks for."""
        is_size = isinstance(keep, int) and keep >= 0
        if keep is not None and keep != "auto" and not is_size:
            expected = 'a number of bytes, "auto", True for everything or None for nothing'
            raise BadArgument("keep", expected=expected, got=repr(keep))
        if keep == "auto":
            return cls(AUTO_BYTES)
        return cls(None if keep is True else 0 if keep in (None, False) else int(keep))

    def take(self, amount: int) -> bool:
        """Reserve this many bytes; False where they do not fit."""
        if self.limit is not None and self.spent + amount > self.limit:
            return False
        self.spent += amount
        return True


@dataclass(frozen=True)
class _State:
    """What is known of a sequence so far, and the last key of each item, by which reordered items are detected."""

    statistics: Statistics | None = None
    retained: RetainedCalls | None = None
    why_not_retained: str = ""
    last_key: Tensor | None = None


@dataclass
class Recorder:
    """Adds the calls of one layer to an observation. Their positions are those of the whole sequence."""

    observation: Observation
    name: str
    kind: str
    index: int
    # None for all heads.
    heads: tuple[int, ...] | None
    map_size: int | None
    links: int
    budget: MemoryBudget
    runs: int = 0
    _state: _State = field(default_factory=_State)
    # The latest call, and what was known before it, where the call may be taken back.
    _guess: tuple[Call, _State] | None = None

    def record(self, call: Call) -> None:
        """Record one call. This changes nothing that the model computes, and draws no random numbers."""
        if call.frame.q_start > 0 and any(part.is_branching for part in call.mask.walk()):
            raise Unsupported(
                "The tree of a draft cannot be watched",
                ["its nodes are alternatives, which are not positions of one sequence"],
                advice="Draft a chain (branches=1), or generate first and then watch the model over the text.",
            )
        # Tensors made in inference mode could not be used afterwards.
        with torch.inference_mode(False), torch.no_grad():
            self._take_back(call)
            if not self._continues(call):
                self._begin()
            is_guess = call.frame.q_start > 0 and 1 < call.frame.q_len <= LONGEST_GUESS
            self._guess = (call, self._state) if is_guess else None
            self._add(call)
        heads = tuple(range(call.heads)) if self.heads is None else self.heads
        now = self._state
        assert now.statistics is not None
        layer = Layer(self.name, self.kind, self.index, heads, now.statistics, now.retained, now.why_not_retained)
        self.observation._put(layer)
        self.observation.runs = max(self.observation.runs, self.runs)

    def finish(self) -> None:
        """Move the statistics to the CPU."""
        self._guess = None
        layer = self.observation._layers.get(self.name)
        if layer is not None and layer.statistics.lse.device.type != "cpu":
            self.observation._put(replace(layer, statistics=_on_cpu(layer.statistics)))

    def _take_back(self, call: Call) -> None:
        """Forget the positions from the first query of this call on, if the call continues the sequence before it.

        Speculative decoding reads several tokens ahead and takes back those that were wrong; a prompt that is held in
        a cache is continued in several ways.
        """
        start, now = call.frame.q_start, self._state
        if now.statistics is None or not now.statistics.frame.q_start < start < now.statistics.frame.q_end:
            return
        if self._guess is not None and self._guess[0].frame.q_start <= start:
            last, before = self._guess
            earlier = [last] if last.frame.q_start < start else []
        elif now.retained is not None:
            before, earlier = _State(), [each for each in now.retained.calls() if each.frame.q_start < start]
            last = earlier[-1]
        else:
            return
        own_keys = self.kind != "cross"
        held = start - 1 if own_keys else 0
        known, now_there = _key_at(last, held).to(call.key), _key_at(call, held)
        # Otherwise it is a new sequence, or a mask without ranges, which cannot be cut.
        is_the_same = known.numel() > 0 and torch.equal(known, now_there)
        if not is_the_same or not all(each.mask.has_ranges for each in earlier):
            return
        self.budget.spent -= _bytes(now) - _bytes(before)
        self._state = before
        for each in earlier:
            self._add(on_device(until(each, min(start, each.frame.q_end), own_keys=own_keys), call.device))

    def _continues(self, call: Call) -> bool:
        """Whether the call continues the sequence that was recorded."""
        earlier, start = self._state.statistics, call.frame.q_start
        if earlier is None or start == 0 or start != earlier.frame.q_end:
            return False
        batch, last = earlier.lse.shape[0], self._state.last_key
        if batch != call.batch:
            raise Unsupported(
                f"A batch that changes from {batch} to {call.batch} sequences cannot be watched",
                ["what was observed of the earlier tokens belongs to other sequences"],
                advice="Watch sequences that end together, or one at a time.",
            )
        if last is not None and _changed_places(last, _key_at(call, start - 1)):
            raise Unsupported(
                "Beam search cannot be watched",
                ["sequences of the batch changed places: what was observed of the earlier tokens belongs to others"],
                advice="Generate with num_beams=1, or generate first and watch the model over the generated text.",
            )
        return True

    def _begin(self) -> None:
        self.budget.spent -= _bytes(self._state)
        self.runs += 1
        self._state = _State()

    def _add(self, call: Call) -> None:
        retained, why_not = self._retain(call)
        statistics = extended(self._state.statistics, call, map_size=self.map_size, links=self.links)
        is_several = self.kind == "self" and call.batch > 1
        last_key = _key_at(call, call.frame.q_end - 1).clone() if is_several else None
        self._state = _State(statistics, retained, why_not, last_key)

    def _retain(self, call: Call) -> tuple[RetainedCalls | None, str]:
        """The calls so far and this one, or why they are not kept."""
        if self.budget.limit == 0:
            return None, "queries and keys were not kept: keep=None"
        held, why_not = self._state.retained, self._state.why_not_retained
        if why_not:
            return None, why_not
        if self.budget.take(cost(call, call.key if held is None else held.new_keys(call))):
            return (RetainedCalls.of(call) if held is None else held.and_then(call)), ""
        self.budget.spent -= _bytes(self._state)
        assert self.budget.limit is not None
        return None, f"queries and keys took more than keep allows, {self.budget.limit / 2**20:,.0f} MiB in all"


def _bytes(state: _State) -> int:
    return 0 if state.retained is None else state.retained.bytes


def _key_at(call: Call, position: int) -> Tensor:
    """[batch, key heads, 1, dim]; empty where there are fewer keys."""
    return call.key[:, :, position : position + 1]


def _changed_places(before: Tensor, now: Tensor) -> bool:
    """Whether an item has the key that another had. A key that only differs may have been stored in fewer digits."""
    same = (now.unsqueeze(1) == before.unsqueeze(0)).flatten(2).all(-1)
    return bool((same.any(1) & ~same.diagonal()).any())


def _on_cpu(found: Statistics) -> Statistics:
    links = Links(*(getattr(found.links, each.name).cpu() for each in fields(found.links)))
    moved = {each.name: getattr(found, each.name) for each in fields(found)}
    tensors = {name: value.cpu() for name, value in moved.items() if isinstance(value, Tensor)}
    return replace(found, links=links, **tensors)
