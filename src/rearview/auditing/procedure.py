"""audit: run every check that applies, the proof, and the search for the place, and decide on the verdict.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing import audit
>>> report = audit(lambda x: x + x.mean(1, keepdim=True), torch.randn(1, 8), contract=causal())
>>> report.verdict.value, report.witness.query < report.witness.source, report.place.op
('LEAKS', True, 'aten.mean.dim')
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Generic, Literal, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from rearview.auditing.checks import (
    Entry,
    batch_isolation,
    checks_for,
    directed_search,
    reinitialization,
    suffix_swap,
)
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.model.budget import BudgetSpent, TimeBudget
from rearview.auditing.model.decoding import CacheAdapter
from rearview.auditing.model.dispatch import flex_uncompiled
from rearview.auditing.model.fingerprint import fingerprint_of
from rearview.auditing.model.state import preserved_state
from rearview.auditing.model.subject import name_of
from rearview.auditing.model.threads import threads_for
from rearview.auditing.place import find_places
from rearview.auditing.proof.summary import summarize_proof
from rearview.auditing.reporting.report import Check, Cost, Place, ProofSummary, Report, Verdict
from rearview.auditing.reporting.verdict import NEEDED, SELF_TESTS, Decision, decide
from rearview.drawing.cells import counted
from rearview.errors import BadArgument
from rearview.masks import Mask, causal

ModelT = TypeVar("ModelT", bound=Callable[..., object])
InputsT = TypeVar("InputsT", bound=Tensor | Mapping[str, object] | Sequence[object])
Progress = Callable[[str, int, int], None]
Mode = Literal["quick", "full"]
MODES = ("quick", "full")


class AuditOptions(TypedDict, Generic[ModelT], total=False):
    """The keyword arguments of `audit`, for functions that pass them on."""

    mode: Mode
    vary: str | int | None
    vocab: int | None
    time_axis: int
    batch_axis: int
    out_time_axis: int | None
    cache: CacheAdapter | tuple[Callable[..., object], Callable[..., object]] | None
    step: Callable[[ModelT, Tensor], Tensor | float] | None
    loss: Callable[[ModelT, Tensor, Tensor], Tensor] | None
    prove: bool
    budget: float | None
    seed: int
    progress: Progress | None


def audit(
    model: ModelT,
    inputs: InputsT,
    contract: Mask = causal(),
    call: Callable[[ModelT, InputsT], object] | None = None,
    *,
    mode: Mode = "quick",
    vary: str | int | None = None,
    vocab: int | None = None,
    time_axis: int = 1,
    batch_axis: int = 0,
    out_time_axis: int | None = None,
    cache: CacheAdapter | tuple[Callable[..., object], Callable[..., object]] | None = None,
    step: Callable[[ModelT, Tensor], Tensor | float] | None = None,
    loss: Callable[[ModelT, Tensor, Tensor], Tensor] | None = None,
    prove: bool = True,
    budget: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Check that each output of a model hears only the inputs that the contract allows.

    Everything is restored afterwards: modules and attributes of the model, its mode, parameters, buffers and gradients,
    the random generators and the number of threads.

    Args:
        model: An `nn.Module` or any other callable.
        inputs: The inputs of one call: tokens [batch, time], floats [batch, time, features], or a dict or tuple that
            holds such a tensor and further inputs.
        contract: The mask that says which positions each output may hear.
        call: How to call the model, as `call(model, inputs)`. By default `model(inputs)`, `model(**inputs)` for a dict
            and `model(*inputs)` for a tuple.
        mode: `"quick"` runs the checks that find most leaks; `"full"` runs all of them, with more trials.
        vary: The name, or the index, of the input to vary, where there are several.
        vocab: The number of tokens to draw from. By default the size of the embedding that the tokens go into.
        time_axis: The time axis of the varied input.
        batch_axis: The batch axis of the varied input and of the output.
        out_time_axis: The time axis of the output. By default the first that is as long as the input.
        cache: How to decode with the model's own cache, as a `CacheAdapter` or a pair of functions:
            `start(model, batch)` returns an empty cache, `step(model, x, cache)` an output or `(output, cache)`. The
            caches of transformers and of Rearview need none.
        step: One training step, `step(model, tokens) -> loss`, for the random-token canary.
        loss: The training loss, `loss(model, tokens, labels) -> tensor`, for the alignment of labels.
        prove: Whether to try to prove that no input and no weights can break the contract.
        budget: The number of seconds that the audit may take. When they are over, the remaining checks are skipped, and
            the report says which. By default there is no limit.
        seed: The seed of everything that is drawn.
        progress: Called with the name of each check, its number and the number of checks.

    Returns:
        The Report: `report.verdict` and `report.ok`, the checks, witnesses and places. `print(report)` explains it.

    >>> import torch
    >>> audit(lambda x: x.cumsum(1), torch.randn(1, 8)).ok
    True
    """
    if mode not in MODES:
        raise BadArgument("mode", expected="'quick' or 'full'", got=repr(mode))
    if cache is not None and not (isinstance(cache, tuple) and len(cache) == 2 and all(map(callable, cache))):
        raise BadArgument("cache", expected="a pair of functions (start, step)", got=repr(cache))
    if budget is not None and getattr(model, "needs_every_rank", False):
        expected = "no time limit for a model on several ranks, whose clocks would stop them at different checks"
        raise BadArgument("budget", expected=expected, got=repr(budget))
    adapter = None if cache is None else CacheAdapter(*cache)
    started = time.perf_counter()
    device = torch.get_default_device()
    size = max((tensor.shape[:2].numel() for tensor in _tensors_in(inputs)), default=1)
    with (
        preserved_state(model),
        # Checks watch ops with dispatch modes, under which FlexAttention must not call the compiler: it would fail, and
        # keep failing for the rest of the process.
        flex_uncompiled(),
        threads_for(model, positions=size),
        nullcontext() if device.type == "cpu" else torch.device("cpu"),
        TimeBudget(budget) as limit,
    ):
        context = _context_within(
            limit,
            model,
            inputs,
            contract,
            call,
            full=mode == "full",
            vary=vary,
            vocab=vocab,
            time_axis=time_axis,
            batch_axis=batch_axis,
            out_time_axis=out_time_axis,
            cache=adapter,
            step=step,
            loss=loss,
            seed=seed,
            device=device,
            budget=limit,
        )
        refusal = _refusal(context)
        if refusal is not None:
            return _report(context, mode, Decision(Verdict.INCONCLUSIVE, refusal.why), [refusal], started=started)
        entries = checks_for(context)
        checks, leaks = _run_checks(context, entries, progress)
        proof = None
        # A leak that was seen needs no proof.
        if prove and not leaks:
            _tell(progress, "proof", len(entries), len(entries) + 2)
            proof = _proof_within(limit, context)
            if proof.leaves_open:
                more, leaks = _run_harder(context, progress, mode)
                repeated = {check.name for check in more}
                checks = [*(check for check in checks if check.name not in repeated), *more]
        places: tuple[Place, ...] = ()
        if leaks:
            _tell(progress, "the place", len(entries) + 1, len(entries) + 2)
            try:
                places = find_places(context, leaks)
            except BudgetSpent:
                context.conditions.append(f"the place of the leak was not searched for: {limit.why}")
        return _report(context, mode, decide(checks, proof), checks, leaks, places, proof, started=started)


def estimate(
    model: Callable[..., object], inputs: Tensor | Mapping[str, object] | Sequence[object], *, mode: Mode = "quick"
) -> str:
    """Estimate the cost of an audit before it starts, as a phrase.

    >>> import torch
    >>> estimate(torch.nn.Linear(4, 4), torch.zeros(1, 16, 4))
    'about 130 sequences of 16 positions through 20 parameters: 83.2 thousand multiplications and additions'
    """
    x = next(tensor for tensor in _tensors_in(inputs) if tensor.ndim >= 2)
    length = x.shape[1]
    parameters = sum(p.numel() for p in model.parameters()) if isinstance(model, nn.Module) else 0
    rows = (2 * (min(length, 48) + 4 * 24) if length > 48 else 2 * (length + 49)) * (1 if mode == "quick" else 6)
    operations = 2 * max(1, parameters) * rows * length
    return (
        f"about {rows:,} sequences of {length:,} positions through {parameters:,} parameters: "
        f"{_large(operations)} multiplications and additions"
    )


def _large(number: float) -> str:
    for word in ("", " thousand", " million", " billion", " trillion"):
        if number < 1000:
            return f"{number:.3g}{word}"
        number /= 1000
    return f"{number:.3g} quadrillion"


def _tensors_in(inputs: Tensor | Mapping[str, object] | Sequence[object]) -> list[Tensor]:
    if isinstance(inputs, Tensor):
        return [inputs]
    values: Iterable[object] = inputs.values() if isinstance(inputs, Mapping) else inputs
    return [value for value in values if isinstance(value, Tensor)]


def _tell(progress: Progress | None, name: str, number: int, total: int) -> None:
    if progress is not None:
        progress(name, number, total)


def _refusal(context: AuditContext) -> Check | None:
    """Why no runs of this model can be compared; None where they can."""
    if not context.deterministic:
        why = (
            f"two runs of the same input with the same seed differ by {context.repeated:.3g}: the model keeps state "
            "between calls, or draws from a random generator of its own, so no difference can be traced to an input"
        )
        return Check("repeatability", "inconclusive", why, {"largest": context.repeated})
    if not context.finite:
        where = (~context.baseline.isfinite().all(-1).cpu() & context.subject.real).nonzero()[0].tolist()
        why = (
            f"the output is NaN or infinite, first at item {where[0]}, position {where[1]}, so nothing can be compared"
        )
        return Check("finite outputs", "inconclusive", why)
    return None


def _run_checks(
    context: AuditContext, entries: Sequence[Entry], progress: Progress | None
) -> tuple[list[Check], list[Leak]]:
    checks: list[Check] = []
    leaks: list[Leak] = []
    for number, entry in enumerate(entries):
        _tell(progress, entry.NAME, number, len(entries) + 2)
        started = time.perf_counter()
        try:
            context.budget.check()
            outcome = entry.run(context)
        except BudgetSpent as spent:
            # What the verdict needs is missing then; without the others it can be given.
            status = "inconclusive" if entry.NAME in (*NEEDED, *SELF_TESTS) else "skipped"
            outcome = Outcome(Check(entry.NAME, status, str(spent)))
        except Exception as error:
            # A model may raise anything in a form that the check tries. That is not a pass, and the report says so;
            # the answers of the other checks are kept.
            outcome = Outcome(Check(entry.NAME, "inconclusive", f"the check stopped with {brief(error)}"))
        checks.append(replace(outcome.check, seconds=round(time.perf_counter() - started, 4)))
        if outcome.leak is not None:
            leaks.append(outcome.leak)
    return checks, leaks


def _context_within(limit: TimeBudget, *arguments: Any, **options: Any) -> AuditContext:
    try:
        return AuditContext.of(*arguments, **options)
    except BudgetSpent:
        expected, got = "more seconds than the first runs of the model take", f"{limit.seconds:g}"
        raise BadArgument("budget", expected=expected, got=got) from None


def _proof_within(limit: TimeBudget, context: AuditContext) -> ProofSummary:
    try:
        limit.check()
        return summarize_proof(context)
    except BudgetSpent:
        return ProofSummary("failed", limit.why)


def _run_harder(context: AuditContext, progress: Progress | None, mode: Mode) -> tuple[list[Check], list[Leak]]:
    """Search for what the structure allows: it may take an input made for it, a rare draw, or other weights."""
    entries = [Entry(directed_search.NAME, directed_search.run)]
    if mode == "quick":
        # A full audit has run these already.
        entries += [
            Entry(batch_isolation.NAME, batch_isolation.run),
            Entry(suffix_swap.NAME, suffix_swap.run),
            Entry(reinitialization.NAME_ALL, reinitialization.run_all),
        ]
    context.full = True
    try:
        return _run_checks(context, entries, progress)
    finally:
        context.full = mode == "full"


def _conditions(
    context: AuditContext, checks: Sequence[Check], proof: ProofSummary | None, verdict: Verdict
) -> tuple[str, ...]:
    found = [*(proof.conditions if proof is not None and verdict is Verdict.PROVEN else ()), *context.conditions]
    state = context.subject.state
    changed = [] if state is None else list(dict.fromkeys([*state.undone, *state.changed]))
    if changed:
        names = f"{', '.join(changed[:3])}{f' and {len(changed) - 3} more' if len(changed) > 3 else ''}"
        found.append(f"the model changes {names} as it runs; the audit restored it")
    cut = [check.name for check in checks if check.why == context.budget.why]
    if cut:
        found.append(f"{context.budget.why} before these checks: {', '.join(cut)}")
    if verdict is Verdict.HELD:
        positions = counted(context.subject.time, "position", "positions")
        found.append(f"it was tried on inputs like those given, with {positions}, on these kernels")
    for check in checks:
        if check.name == "liveness" and check.status == "inconclusive" and check.numbers.get("near"):
            found.append(check.why)
        if check.numbers.get("by chance"):
            chance = check.numbers["by chance"]
            found.append(
                f"{check.name}: the number of random draws depends on the data, which moves outputs by up to "
                f"{chance:.2g}; with draws fixed for each line nothing moves"
            )
        if verdict.ok and check.numbers.get("noise floor"):
            found.append(f"{check.name}: differences up to {check.numbers['noise floor']:.2g} are taken for rounding")
    return tuple(found)


def _report(
    context: AuditContext,
    mode: Mode,
    decision: Decision,
    checks: Sequence[Check],
    leaks: Sequence[Leak] = (),
    places: tuple[Place, ...] = (),
    proof: ProofSummary | None = None,
    *,
    started: float,
) -> Report:
    subject = context.subject
    # A leak with a single source says more than one with a whole suffix.
    ordered = sorted(leaks, key=lambda leak: (leak.kind != "time", len(leak.sources) > 1))
    sizes = {"batch": subject.batch, "time": subject.time}
    if subject.sampler.vocab is not None:
        sizes["vocab"] = subject.sampler.vocab
    tree = list(subject.model.named_modules()) if isinstance(subject.model, nn.Module) else []
    seconds = round(time.perf_counter() - started, 4)
    return Report(
        verdict=decision.verdict,
        why=decision.why,
        contract=repr(context.contract.mask),
        subject=name_of(subject.model),
        sizes=sizes,
        mode=mode,
        conditions=_conditions(context, checks, proof, decision.verdict),
        checks=tuple(checks),
        witnesses=tuple(leak.witness() for leak in ordered),
        places=places,
        hears=context.hears,
        proof=proof,
        modules=tuple((path, type(module).__name__) for path, module in tree),
        cost=Cost(seconds, subject.meter.forwards, subject.meter.positions, subject.parameters),
        seed=subject.seed,
        fingerprint=fingerprint_of(subject.model, subject.call),
        versions={"torch": torch.__version__, "python": platform.python_version(), "device": str(subject.x.device)},
    )
