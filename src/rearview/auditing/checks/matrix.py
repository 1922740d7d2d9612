"""Who heard whom: change one source at a time; every output that moves has heard it.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import matrix
>>> from rearview.auditing.context import AuditContext
>>> context = AuditContext.of(lambda x: x + x.roll(1, 1), torch.randn(1, 4), causal())
>>> matrix.run(context).check.why.partition(" by ")[0]
'position 0 moved'
>>> context.hears.heard.int().tolist()
[[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
"""

from __future__ import annotations

import torch

from rearview.auditing.checks.suffix_swap import outcome
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.search import search
from rearview.auditing.reporting.report import Hears
from rearview.drawing.cells import counted

NAME = "who heard whom"
# The most sources of a long input that are changed.
MOST_SOURCES = {False: 48, True: 256}


def run(context: AuditContext) -> Outcome:
    item = context.items[0]
    chosen = sources(context)
    changed = torch.zeros(len(chosen), context.subject.time, dtype=torch.bool)
    changed[torch.arange(len(chosen)), torch.tensor(chosen)] = True
    # An ordinary draw of a token is enough to be heard; a float may have to be large.
    sampler = context.subject.sampler
    kinds = sampler.draws if context.full or sampler.tokens is None else ("ordinary",)
    found = search(context, changed, item=item, draws=3 if context.full else 1, check=NAME, kinds=kinds, stop=False)
    if found.amounts is None or found.amounts.shape != changed.shape:
        # Rows of the experiment heard each other; run each alone.
        found = search(context, changed, item=item, draws=1, check=NAME, stop=False)
    assert found.amounts is not None
    context.hears = Hears(
        amounts=found.amounts.T.contiguous(),
        forbidden=context.contract.forbidden[item][:, chosen],
        sources=tuple(chosen),
        floor=found.noise,
        item=item,
    )
    return outcome(NAME, found, f"of {counted(len(chosen), 'source', 'sources')}", {"sources": len(chosen)})


def sources(context: AuditContext) -> list[int]:
    """All positions; of a long input those near the cuts, and others evenly in between."""
    time, most = context.subject.time, MOST_SOURCES[context.full]
    if time <= most:
        return list(range(time))
    even = torch.linspace(0, time - 1, most // 2).round().long().unique().tolist()
    near = [cut for cut in context.contract.cuts() if cut not in even]
    kept = near[: most - len(even)] if len(near) <= most - len(even) else near[:: -(-len(near) // (most - len(even)))]
    return sorted({*even, *kept, time - 1, time - 2})
