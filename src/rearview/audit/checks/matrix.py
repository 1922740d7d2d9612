"""Who heard whom: each source is changed alone, and every output that moves has heard it.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import matrix
>>> from rearview.audit.trial import Trial
>>> trial = Trial.of(lambda x: x + x.roll(1, 1), torch.randn(1, 4), causal())
>>> matrix.run(trial).check.why.partition(" by ")[0]
'position 0 moved'
>>> trial.hears.heard.int().tolist()
[[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
"""

from __future__ import annotations

import torch

from rearview.audit.checks.swap import outcome
from rearview.audit.draws import ORDINARY
from rearview.audit.report import Hears
from rearview.audit.search import search
from rearview.audit.trial import Outcome, Trial
from rearview.masks.labels import counted

NAME = "who heard whom"
# Sources of a long input that are changed one by one.
MOST_SOURCES = {False: 48, True: 256}


def run(trial: Trial) -> Outcome:
    item = trial.items[0]
    chosen = sources(trial)
    changed = torch.zeros(len(chosen), trial.subject.time, dtype=torch.bool)
    changed[torch.arange(len(chosen)), torch.tensor(chosen)] = True
    # Who hears a token hears an ordinary one; a number may have to be loud.
    kinds = trial.subject.drawer.kinds if trial.full or trial.subject.drawer.tokens is None else (ORDINARY,)
    found = search(trial, changed, item=item, draws=3 if trial.full else 1, check=NAME, kinds=kinds, stop=False)
    if found.amounts is None or found.amounts.shape != changed.shape:
        # Rows of the experiment heard each other; once more, each alone.
        found = search(trial, changed, item=item, draws=1, check=NAME, stop=False)
    assert found.amounts is not None
    trial.hears = Hears(
        amounts=found.amounts.T.contiguous(),
        forbidden=trial.contract.forbidden[item][:, chosen],
        sources=tuple(chosen),
        floor=found.noise,
        item=item,
    )
    return outcome(NAME, found, f"of {counted(len(chosen), 'source', 'sources')}", {"sources": len(chosen)})


def sources(trial: Trial) -> list[int]:
    """All positions, or those that matter most of a long input: near the cuts, and evenly in between."""
    time, most = trial.subject.time, MOST_SOURCES[trial.full]
    if time <= most:
        return list(range(time))
    even = torch.linspace(0, time - 1, most // 2).round().long().unique().tolist()
    near = [cut for cut in trial.contract.cuts() if cut not in even]
    kept = near[: most - len(even)] if len(near) <= most - len(even) else near[:: -(-len(near) // (most - len(even)))]
    return sorted({*even, *kept, time - 1, time - 2})
