"""Speculative decoding: the attention of one step over a long cache, and tokens per second with a draft and without.

The step is what a model of several layers does with a tree of 60 nodes over a cache of 4096 tokens: make the mask once,
since every step has another tree, and attend once per layer.

The draft is the first layer of the model. The weights are random, and the other layers are scaled down so that the two
models often agree; the acceptance that results is in the table. Every contestant must generate the same tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.harness import Case, Contestant, Outcome, Ready, Report, Suite, Target, Task, any_wrong, outcomes_of
from bench.suites.generation import CONFIG, fault
from bench.table import Table, ratio
from rearview import attend, tree
from rearview.generation import LookupDraft, ModelDraft, generate
from rearview.models import GPT

NODES, HELD, LAYERS, HEADS, DIM = 60, 4096, 6, 8, 64
OURS, DENSE = "rearview, tree(parents)", "SDPA, dense mask"
STEP_TARGETS = (Target(OURS, DENSE, 1.0),)
STEP_ROUNDS, TEXT_ROUNDS, QUICK_ROUNDS = 15, 5, 2

PLAIN, LOOKUP = "rearview, no draft", "rearview, lookup of 10"
CHAIN, TREE = "rearview, chain of 5", "rearview, tree of 12 with 3 branches"
PROMPT, TOKENS, QUICK_TOKENS = [1, 2, 3, 4], 240, 40
# How much of each later layer is left, relative to the first.
AGREEMENT = 0.15

Step = Callable[[], Tensor]


def step_contestants() -> list[Contestant]:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, HEADS, length, DIM, generator=generator) for length in (NODES, HELD + NODES, HELD + NODES)
    )
    parents = [-1] + [int(torch.randint(max(0, n - 12), n, (), generator=generator)) for n in range(1, NODES)]
    right = attend(query.double(), key.double(), value.double(), mask=tree(parents, after=HELD), engine="reference")

    def ours() -> Tensor:
        mask = tree(parents, after=HELD)
        return [attend(query, key, value, mask=mask) for _ in range(LAYERS)][-1]

    def dense() -> Tensor:
        mask = torch.cat([torch.ones(NODES, HELD, dtype=torch.bool), ancestors(parents)], dim=1)
        sdpa = F.scaled_dot_product_attention
        return [sdpa(query, key, value, attn_mask=mask) for _ in range(LAYERS)][-1]

    def prepare(step: Step) -> Ready:
        def wrong() -> str:
            error = float((step().double() - right).abs().max() / right.abs().max())
            return "" if error < 1e-4 else f"the output is off by {error:.1e}"

        return Ready(torch.no_grad()(step), wrong)

    return [Contestant(name, partial(prepare, step)) for name, step in ((OURS, ours), (DENSE, dense))]


def ancestors(parents: Sequence[int]) -> Tensor:
    """Bool [nodes, nodes]: which nodes are on the path to each node.

    >>> ancestors([-1, 0, 0]).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    heard = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            heard[node] |= heard[parent]
    return heard


def new_models() -> tuple[GPT, GPT]:
    """A model, and a draft that is its first layer."""
    torch.manual_seed(0)
    model, draft = GPT(CONFIG).eval(), GPT(replace(CONFIG, layers=1)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
        for block in list(model.blocks)[1:]:
            for out in (block.attention.out, block.forward_part.out):
                out.weight.mul_(AGREEMENT)
    own = draft.state_dict()
    draft.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if name in own})
    return model, draft


def text_contestants(tokens: int) -> list[Contestant]:
    model, small = new_models()
    drafts = {
        PLAIN: None,
        CHAIN: ModelDraft(small, tokens=5),
        TREE: ModelDraft(small, tokens=12, branches=3),
        LOOKUP: LookupDraft(tokens=10),
    }

    def speak(name: str):
        return generate(model, PROMPT, max_new_tokens=tokens, temperature=0, draft=drafts[name]).finish()

    truth = speak(PLAIN).tokens[0]

    def prepare(name: str) -> Ready:
        figures = speak(name).figures
        note = f"{figures.tokens_per_pass:.2f} tokens per pass"
        if figures.drafted:
            note += f", {100 * figures.acceptance_rate:.0f} % of drafted tokens accepted"
        return Ready(partial(speak, name), lambda: fault(speak(name).tokens[0], truth), note)

    return [Contestant(name, partial(prepare, name)) for name in drafts]


def step_table(outcome: Outcome) -> Table:
    rows = [
        (row.name, f"{row.median:.2f}", ratio(outcome.times_faster(OURS, than=row.name)), row.note)
        if row.samples
        else (row.name, "-", "-", row.note)
        for row in outcome.rows
    ]
    return Table(("step", "ms", "ours is faster", "note"), rows, last_is_words=True)


def text_table(outcome: Outcome, tokens: int) -> Table:
    rows = []
    for row in outcome.rows:
        if not row.samples:
            rows.append((row.name, "-", "-", row.note))
            continue
        faster = ratio(outcome.times_faster(row.name, than=PLAIN))
        rows.append((row.name, f"{1000 * tokens / row.median:.0f}", faster, row.note))
    return Table(("draft", "tokens/s", "times as fast as no draft", "note"), rows, last_is_words=True)


class SpeculationSuite(Suite):
    name, title, suffix = "speculation", "Speculative decoding", "-speculation"

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        def rounds(usual: int) -> int:
            return args.rounds or (QUICK_ROUNDS if args.quick else usual)

        texts = partial(text_contestants, self._tokens(args))
        return [
            Case("one step", step_contestants, "attention", STEP_TARGETS, rounds(STEP_ROUNDS)),
            Case("a text", texts, "generation", rounds=rounds(TEXT_ROUNDS), sample_ms=0.0),
        ]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        outcomes, tokens = outcomes_of(results), self._tokens(args)
        verdicts = [text for each in outcomes for text in each.verdicts()]
        tables = [("", step_table(each)) for each in outcomes_of(results, "attention")]
        tables += [("", text_table(each, tokens)) for each in outcomes_of(results, "generation")]
        facts = [
            f"step: {NODES} nodes over {HELD} cached tokens, {LAYERS} layers, {HEADS} heads of {DIM}, float32",
            f"text: {tokens} greedy tokens, batch 1, float32, 6 layers of width 384; the draft is 1 layer",
        ]
        return Report(facts, tables, verdicts, is_wrong=any_wrong(outcomes))

    def _tokens(self, args: argparse.Namespace) -> int:
        return QUICK_TOKENS if args.quick else TOKENS


SUITES = (SpeculationSuite(),)
