"""A step of generation as a CUDA graph: the host launches one graph instead of some hundred kernels.

`CapturedGPT` predicts what `CachedGPT` predicts. Prompts are read as usual; a step of one token per sequence is
captured once, over a cache of fixed shape whose lengths are on the device, and then replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rearview.attention import attend
from rearview.attention.engines import decode
from rearview.attention.static_cache import StaticCache, StepClock
from rearview.generation.predictors import CachedGPT, window_start
from rearview.models import GPT

# Steps before the capture, in which kernels are compiled and libraries reserve memory.
WARM_UP = 2


def can_capture(model: GPT) -> bool:
    """Whether a step of the model can be captured: on an NVIDIA GPU, with masks that the kernel for decoding reads."""
    weight = model.tokens.weight
    if weight.device.type != "cuda" or decode._obstacle(weight.device) is not None:
        return False
    config = model.config
    ranges = all(mask.has_ranges and mask.batch is None for mask in config.masks)
    fits = config.width // config.heads <= decode.LARGEST_DIM and weight.dtype != torch.float64
    return ranges and fits and not model.batch_invariant and not is_watched(model)


def is_watched(model: nn.Module) -> bool:
    """Whether something else looks at the calls of the model's layers, which the replay of a graph does not make."""
    if torch.nn.modules.module._has_any_global_hook():
        return True
    for part in model.modules():
        if part._forward_hooks or part._forward_pre_hooks or getattr(part, "attend", attend) is not attend:
            return True
    return False


class CapturedStep:
    """The logits of one more token per sequence, as a graph over the memory of a cache."""

    def __init__(self, model: GPT, cache: list, lengths: list[int]):
        device = model.tokens.weight.device
        self.clock = StepClock.of(cache[0])
        self.tokens = torch.zeros(len(lengths), 1, dtype=torch.long, device=device)
        self._static = [StaticCache(layer, self.clock) for layer in cache]
        # Nothing advances during the warm-up: its tokens are overwritten by the first step.
        self.clock.set(lengths, [False] * len(lengths))
        self._model, self._graph = model, None
        if device.type != "cuda":
            # Nothing to capture: the step runs as it is.
            return
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._step(model)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self._step(model)

    def _step(self, model: GPT) -> Tensor:
        logits = model(self.tokens, cache=self._static, last_only=True)[:, -1]
        self.clock.advance()
        return logits

    def __call__(self, tokens: Sequence[int]) -> Tensor:
        """The logits after these tokens, one per sequence; valid until the next call."""
        self.tokens.copy_(torch.tensor(tokens).unsqueeze(1))
        if self._graph is None:
            return self._step(self._model)
        self._graph.replay()
        return self._logits


class CapturedGPT(CachedGPT):
    """`CachedGPT` whose steps are replays of a graph. Sequences that end keep their place in the batch."""

    def __init__(self, model: GPT, *, batch: int, max_len: int):
        super().__init__(model, batch=batch, max_len=max_len)
        # The place in the batch of each sequence that continues, and the positions that each place holds.
        self._places, self._held = list(range(batch)), [0] * batch
        self._step: CapturedStep | None = None

    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        if self._step is None and is_watched(self.model):
            return super().logits(sequences)
        starts = [window_start(len(sequence), context=self.model.config.context) for sequence in sequences]
        if unread := [n for n, start in enumerate(starts) if start != self._starts[n]]:
            self._read_prompts(unread, [sequences[n][starts[n] : -1] for n in unread])
            self._starts[:] = starts
        newest = [0] * len(self._held)
        for place, sequence in zip(self._places, sequences, strict=True):
            newest[place] = sequence[-1]
        if self._step is None:
            self._step = CapturedStep(self.model, self._cache, self._held)
            self._set_clock()
        found = self._step(newest)
        for place in self._places:
            self._held[place] += 1
        return found if len(self._places) == len(self._held) else found[self._places]

    def take(self, items: Sequence[int]) -> None:
        self._places = [self._places[item] for item in items]
        self._starts = [self._starts[item] for item in items]
        self._set_clock()

    def _read_prompts(self, items: list[int], rows: Sequence[Sequence[int]]) -> None:
        """Read rows into the places of these sequences."""
        for layer in self._cache:
            layer._hold(list(self._held))
        places = [self._places[item] for item in items]
        starts: list[int | None] = self._starts
        self._starts = [0] * len(self._held)
        self._read(places, rows)
        self._starts = starts
        self._held = self._cache[0].lengths
        self._set_clock()

    def _set_clock(self) -> None:
        if self._step is not None:
            continues = set(self._places)
            # An ended sequence stays at its last position, which there is room for.
            last = [min(held, self._cache[0].max_len - 1) for held in self._held]
            self._step.clock.set(last, [place in continues for place in range(len(last))])
