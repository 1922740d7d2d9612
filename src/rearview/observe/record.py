"""The calls of a layer, stitched: a call that continues the sequence is joined, any other begins a new one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from rearview.attention.statistics import Links, Statistics
from rearview.errors import Unsupported
from rearview.observe.glance import Glance
from rearview.observe.kept import AUTO_BYTES, Kept, cost
from rearview.observe.layer import Layer
from rearview.observe.seen import Seen

# Tokens that speculative decoding reads ahead. Longer calls are parts of a prompt, and are not held to be taken back.
LONGEST_GUESS = 64


@dataclass
class Budget:
    """Bytes for queries and keys, of all layers together. `limit` None: no limit, 0: nothing is kept."""

    limit: int | None
    spent: int = 0

    @classmethod
    def of(cls, keep: str | bool | int | None) -> Budget:
        if keep == "auto":
            return cls(AUTO_BYTES)
        return cls(None if keep is True else 0 if keep in (None, False) else int(keep))

    def take(self, amount: int) -> bool:
        """Is there room? If so it is taken."""
        if self.limit is not None and self.spent + amount > self.limit:
            return False
        self.spent += amount
        return True


@dataclass(frozen=True)
class _State:
    """What is known of a sequence so far: also the last key of each item, which tells when items change places."""

    statistics: Statistics | None = None
    kept: Kept | None = None
    why_not_kept: str = ""
    last_key: Tensor | None = None


@dataclass
class Recorder:
    """Puts what one layer does into `seen`."""

    seen: Seen
    name: str
    kind: str
    index: int
    # None watches all heads.
    heads: tuple[int, ...] | None
    map_size: int | None
    links: int
    budget: Budget
    runs: int = 0
    _state: _State = field(default_factory=_State)
    # The latest call, and what was known before it, where the call may be taken back.
    _guess: tuple[Glance, _State] | None = None

    def see(self, glance: Glance) -> None:
        """Take in one call. It changes nothing that the model computes, and no random numbers are drawn."""
        # What a model makes in inference mode could not be worked with afterwards.
        with torch.inference_mode(False), torch.no_grad():
            self._take_back(glance)
            if not self._continues(glance):
                self._begin()
            is_guess = glance.q_start > 0 and 1 < glance.query.shape[2] <= LONGEST_GUESS
            self._guess = (glance, self._state) if is_guess else None
            self._add(glance)
        count = glance.query.shape[1]
        heads = tuple(range(count)) if self.heads is None else self.heads
        now = self._state
        assert now.statistics is not None
        self.seen._put(Layer(self.name, self.kind, self.index, heads, now.statistics, now.kept, now.why_not_kept))
        self.seen.runs = max(self.seen.runs, self.runs)

    def finish(self) -> None:
        """Bring what was seen to the CPU, where it is looked at."""
        self._guess = None
        layer = self.seen._layers.get(self.name)
        if layer is not None and layer.statistics.lse.device.type != "cpu":
            self.seen._put(replace(layer, statistics=_on_cpu(layer.statistics)))

    def _take_back(self, glance: Glance) -> None:
        """Forget what was seen of the position where this call begins, and behind it, if it goes on from there.

        Speculative decoding reads several tokens ahead and takes back those that were wrong; a prompt that is kept in
        a cache is continued in several ways.
        """
        at, now = glance.q_start, self._state
        if now.statistics is None or not now.statistics.frame.q_start < at < now.statistics.frame.q_end:
            return
        if self._guess is not None and self._guess[0].q_start <= at:
            last, before = self._guess
            calls = [last] if last.q_start < at else []
        elif now.kept is not None:
            before, calls = _State(), [call for call in now.kept.calls() if call.q_start < at]
            last = calls[-1]
        else:
            return
        own_keys = self.kind != "cross"
        held = at - 1 if own_keys else 0
        known, now_there = _key_at(last, held).to(glance.key), _key_at(glance, held)
        # Another sequence begins anew. Of a mask without ranges no part can be cut out.
        is_the_same = known.numel() > 0 and torch.equal(known, now_there)
        if not is_the_same or not all(call.mask.has_ranges for call in calls):
            return
        self.budget.spent -= _bytes(now) - _bytes(before)
        self._state = before
        for call in calls:
            self._add(call.until(min(at, call.q_end), own_keys=own_keys).to(glance.query.device))

    def _continues(self, glance: Glance) -> bool:
        earlier = self._state.statistics
        if earlier is None or glance.q_start == 0 or glance.q_start != earlier.frame.q_end:
            return False
        batch, last = earlier.lse.shape[0], self._state.last_key
        if batch != glance.query.shape[0]:
            raise Unsupported(
                f"A batch that goes from {batch} to {glance.query.shape[0]} sequences cannot be watched",
                ["what was seen of the earlier tokens belongs to other sequences"],
                advice="Watch sequences that end together, or one at a time.",
            )
        if last is not None and _changed_places(last, _key_at(glance, glance.q_start - 1)):
            raise Unsupported(
                "Beam search cannot be watched",
                ["sequences of the batch changed places: what was seen of the earlier tokens belongs to others"],
                advice="Generate with num_beams=1; or generate first, and watch the model over what it said.",
            )
        return True

    def _begin(self) -> None:
        self.budget.spent -= _bytes(self._state)
        self.runs += 1
        self._state = _State()

    def _add(self, glance: Glance) -> None:
        kept, why_not = self._keep(glance)
        statistics = glance.statistics(self._state.statistics, map_size=self.map_size, links=self.links)
        is_several = self.kind == "self" and glance.query.shape[0] > 1
        last_key = _key_at(glance, glance.q_end - 1).clone() if is_several else None
        self._state = _State(statistics, kept, why_not, last_key)

    def _keep(self, glance: Glance) -> tuple[Kept | None, str]:
        """The queries and keys so far with this call, or why they are not kept."""
        if self.budget.limit == 0:
            return None, "queries and keys were not kept: keep=None"
        held, why_not = self._state.kept, self._state.why_not_kept
        if why_not:
            return None, why_not
        new = glance if held is None else replace(glance, key=glance.key[:, :, held.k_len :])
        if self.budget.take(cost(new)):
            return (Kept((glance,)) if held is None else held.and_then(glance)), ""
        self.budget.spent -= _bytes(self._state)
        assert self.budget.limit is not None
        return None, f"queries and keys were more than keep allows, {self.budget.limit / 2**20:,.0f} MiB in all"


def _bytes(state: _State) -> int:
    return 0 if state.kept is None else state.kept.bytes


def _key_at(glance: Glance, position: int) -> Tensor:
    """[batch, key heads, 1, dim]; empty where there are fewer keys."""
    return glance.key[:, :, position : position + 1]


def _changed_places(before: Tensor, now: Tensor) -> bool:
    """Has an item the key that another had? One that is merely different may have been stored in fewer digits."""
    same = (now.unsqueeze(1) == before.unsqueeze(0)).flatten(2).all(-1)
    return bool((same.any(1) & ~same.diagonal()).any())


def _on_cpu(found: Statistics) -> Statistics:
    links = Links(*(getattr(found.links, each.name).cpu() for each in fields(found.links)))
    moved = {each.name: getattr(found, each.name) for each in fields(found)}
    tensors = {name: value.cpu() for name, value in moved.items() if isinstance(value, Tensor)}
    return replace(found, links=links, **tensors)
