"""audit: every check that applies, the proof, the witness, the place, the verdict.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit import audit
>>> report = audit(lambda x: x + x.mean(1, keepdim=True), torch.randn(1, 8), contract=causal())
>>> report.verdict.value, report.witness.query < report.witness.source, report.place.op
('LEAKS', True, 'aten.mean.dim')
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rearview.audit.checks import Entry, batch, checks_for, redrawn, swap
from rearview.audit.decoding import InSteps
from rearview.audit.leak import Leak
from rearview.audit.noise import brief
from rearview.audit.report import Check, Cost, Place, ProofSummary, Report, Verdict
from rearview.audit.state import kept
from rearview.audit.subject import Subject, name_of
from rearview.audit.trial import Outcome, Trial
from rearview.audit.verdict import decide
from rearview.audit.witness import Witness
from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.masks.labels import counted

Progress = Callable[[str, int, int], None]
MODES = ("quick", "full")


def audit(
    model: Any,
    inputs: Any,
    contract: Mask = causal(),
    call: Callable[[Any, Any], Any] | None = None,
    *,
    mode: Literal["quick", "full"] = "quick",
    vary: str | int | None = None,
    vocab: int | None = None,
    time_axis: int = 1,
    batch_axis: int = 0,
    out_time_axis: int | None = None,
    step: Callable[[Any, Tensor], Any] | None = None,
    loss: Callable[..., Any] | None = None,
    prove: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Does each output hear only what the contract allows?

    `inputs` are what the model takes: tokens [batch, time], floats [batch, time, features], or a dict or tuple of
    tensors of which `vary` is audited. `call` is for other signatures. `step(model, tokens) -> loss` is one training
    step, for the canary; `loss(model, tokens, labels) -> tensor` the loss, for the alignment of labels. `progress` is
    told the name of each check, its number and how many there are. The model is as it was afterwards.

    >>> import torch
    >>> audit(lambda x: x.cumsum(1), torch.randn(1, 8)).ok
    True
    """
    if mode not in MODES:
        raise BadArgument("mode", expected="'quick' or 'full'", came=repr(mode))
    started = time.perf_counter()
    device = torch.get_default_device()
    with kept(model), nullcontext() if device.type == "cpu" else torch.device("cpu"):
        trial = Trial.of(
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
            step=step,
            loss=loss,
            seed=seed,
            device=device,
        )
        refusal = _unfit(trial)
        if refusal is not None:
            return _report(trial, mode, [refusal], [], (), None, started)
        entries = checks_for(trial)
        checks, leaks = _asked(trial, entries, progress)
        # A leak that was seen needs no proof.
        proof = _proof(trial, progress, len(entries)) if prove and not leaks else None
        if proof is not None and mode == "quick" and _leaves_open(proof):
            more, found = _pursued(trial, progress)
            again = {check.name for check in more}
            checks, leaks = [*(check for check in checks if check.name not in again), *more], [*leaks, *found]
        places: tuple[Place, ...] = ()
        if leaks:
            _tell(progress, "the place", len(entries) + 1, len(entries) + 2)
            places = _places(trial, leaks)
        return _report(trial, mode, checks, leaks, places, proof, started)


def estimate(model: Any, inputs: Any, *, mode: Literal["quick", "full"] = "quick") -> str:
    """What an audit will cost, in a sentence, before it starts.

    >>> import torch
    >>> estimate(torch.nn.Linear(4, 4), torch.zeros(1, 16, 4))
    'about 130 sequences of 16 positions through 20 parameters: 83.2 thousand multiplications and additions'
    """
    x = next(t for t in _tensors_in(inputs) if t.ndim >= 2)
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


def _tensors_in(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, Tensor):
        return [inputs]
    values = inputs.values() if hasattr(inputs, "values") else inputs
    return [value for value in values if isinstance(value, Tensor)]


def _tell(progress: Progress | None, name: str, number: int, total: int) -> None:
    if progress is not None:
        progress(name, number, total)


def _unfit(trial: Trial) -> Check | None:
    """Why nothing can be compared, if so."""
    if not trial.deterministic:
        why = (
            f"two runs of the same input with the same seed differ by {trial.repeated:.3g}: the model keeps something "
            "from call to call, or draws from a generator of its own, so that no difference could be told from that"
        )
        return Check("repeatability", "inconclusive", why, {"largest": trial.repeated})
    if not trial.finite:
        where = (~trial.baseline.isfinite().all(-1).cpu() & trial.subject.real).nonzero()[0].tolist()
        why = f"the output is NaN or infinite, first at item {where[0]}, position {where[1]}: nothing can be compared"
        return Check("finite outputs", "inconclusive", why)
    return None


def _asked(trial: Trial, entries: Sequence[Entry], progress: Progress | None) -> tuple[list[Check], list[Leak]]:
    checks: list[Check] = []
    leaks: list[Leak] = []
    for number, entry in enumerate(entries):
        _tell(progress, entry.NAME, number, len(entries) + 2)
        started = time.perf_counter()
        try:
            outcome = entry.run(trial)
        except Exception as error:
            # What ran before may fail in another form; that is no pass, and no reason to lose the other answers.
            outcome = Outcome(Check(entry.NAME, "inconclusive", f"it stopped: {brief(error)}"))
        checks.append(replace(outcome.check, seconds=round(time.perf_counter() - started, 4)))
        if outcome.leak is not None:
            leaks.append(outcome.leak)
    return checks, leaks


def _places(trial: Trial, leaks: Sequence[Leak]) -> tuple[Place, ...]:
    from rearview.audit.place import find_places

    return find_places(trial, leaks)


def _proof(trial: Trial, progress: Progress | None, number: int) -> ProofSummary | None:
    _tell(progress, "proof", number, number + 2)
    try:
        from rearview.audit.proving import proven
    except ImportError:
        return None
    return proven(trial)


def _leaves_open(proof: ProofSummary) -> bool:
    """Does the structure allow a leak that no trial showed? Then other weights are tried."""
    return bool(proof.violations) and not proof.unknown_ops and not proof.value_escapes


def _pursued(trial: Trial, progress: Progress | None) -> tuple[list[Check], list[Leak]]:
    """What the structure allows may need a rare draw or other weights: both are tried harder."""
    trial.full = True
    entries = [Entry(batch.NAME, batch.run), Entry(swap.NAME, swap.run), Entry(redrawn.NAME_ALL, redrawn.run_all)]
    try:
        return _asked(trial, entries, progress)
    finally:
        trial.full = False


def _witness(leak: Leak) -> Witness:
    subject = leak.subject
    clean = _named(subject.inputs)
    varied = "" if subject.varied is None else str(subject.varied)
    axes = (subject.batch_axis, subject.time_axis)
    other = {varied: leak.other.movedim((0, 1), axes)}
    if leak.clean.shape[1] != leak.other.shape[1]:
        from rearview.audit import companions

        fitted = companions.fit(
            subject.inputs, subject.varied, leak.other, items=None, batch=subject.batch, time=subject.time
        )
        other = {**_named(fitted), **other}
    steps = subject.call if isinstance(subject.call, InSteps) else None
    output = subject.output if steps is None else steps.output
    return Witness(
        check=leak.check,
        kind=leak.kind,
        query=leak.query,
        sources=leak.sources,
        item=leak.item,
        amount=leak.amount,
        clean=clean,
        other=other,
        training=leak.subject.training,
        weights=leak.weights,
        seed=subject.seed,
        output=(*output.path, output.batch_axis, output.time_axis),
        steps=() if steps is None else steps.steps,
        constants=_constants(subject.inputs),
        batch_axis=subject.batch_axis,
        time_axis=subject.time_axis,
    )


def _named(inputs: Any) -> dict[str, Tensor]:
    if isinstance(inputs, Tensor):
        return {"": inputs}
    pairs = inputs.items() if isinstance(inputs, dict) else ((str(n), value) for n, value in enumerate(inputs))
    return {name: value for name, value in pairs if isinstance(value, Tensor)}


def _constants(inputs: Any) -> dict[str, Any]:
    pairs = inputs.items() if isinstance(inputs, dict) else enumerate(inputs) if isinstance(inputs, tuple) else ()
    return {str(name): value for name, value in pairs if value is None or isinstance(value, (bool, int, float, str))}


def _conditions(trial: Trial, checks: Sequence[Check], proof: ProofSummary | None, verdict: Verdict) -> tuple[str, ...]:
    found = [*(proof.conditions if proof is not None and verdict is Verdict.PROVEN else ()), *trial.conditions]
    if verdict is Verdict.HELD:
        found.append(
            f"at inputs like those given: {counted(trial.subject.time, 'position', 'positions')}, these kernels"
        )
    for check in checks:
        if check.name == "liveness" and check.status == "inconclusive" and check.numbers.get("near"):
            found.append(check.why)
        if verdict.ok and check.numbers.get("noise floor"):
            found.append(f"{check.name}: differences up to {check.numbers['noise floor']:.2g} are taken for rounding")
    return tuple(found)


def _report(
    trial: Trial,
    mode: str,
    checks: Sequence[Check],
    leaks: Sequence[Leak],
    places: tuple[Place, ...],
    proof: ProofSummary | None,
    started: float,
) -> Report:
    subject: Subject = trial.subject
    verdict, why = decide(checks, proof)
    if len(checks) == 1:
        verdict, why = Verdict.INCONCLUSIVE, checks[0].why
    # One source and one query say more than a whole suffix.
    ordered = sorted(leaks, key=lambda leak: (leak.kind != "time", len(leak.sources) > 1))
    sizes = {"batch": subject.batch, "time": subject.time}
    if subject.drawer.vocab is not None:
        sizes["vocab"] = subject.drawer.vocab
    tree = list(subject.model.named_modules()) if isinstance(subject.model, nn.Module) else []
    return Report(
        verdict=verdict,
        why=why,
        contract=repr(trial.contract.mask),
        subject=name_of(subject.model),
        sizes=sizes,
        mode=mode,
        conditions=_conditions(trial, checks, proof, verdict),
        checks=tuple(checks),
        witnesses=tuple(_witness(leak) for leak in ordered),
        places=places,
        hears=trial.hears,
        proof=proof,
        modules=tuple((path, type(module).__name__) for path, module in tree),
        cost=Cost(
            round(time.perf_counter() - started, 4), subject.meter.forwards, subject.meter.positions, subject.parameters
        ),
        seed=subject.seed,
        versions={"torch": torch.__version__, "python": platform.python_version(), "device": str(subject.x.device)},
    )
