"""What a gate needs: a budget that is kept, hashes of what was audited, annotations, the difference of two reports."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from rearview import causal, window
from rearview.auditing import CacheAdapter, Report, Verdict, audit, compare_reports, replay
from rearview.auditing.model.budget import BudgetSpent, TimeBudget
from rearview.auditing.model.fingerprint import fingerprint_of
from rearview.auditing.model.threads import threads_for
from rearview.errors import BadArgument
from tests.auditing.zoo import DIM, LM, TIME, VOCAB, Causal, NoMask, tokens


class Slow(nn.Module):
    """Each call of it takes a while."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds, self.mixer = seconds, LM(Causal())

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return self.mixer(x)


def test_a_budget_cuts_the_checks_and_says_which():
    report = audit(Slow(0.1), tokens(), budget=2)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "the time budget of 2 s was spent" in report.why
    cut = [check.name for check in report.checks if check.why == "the time budget of 2 s was spent"]
    assert f"the time budget of 2 s was spent before these checks: {', '.join(cut)}" in report.conditions
    # Without the budget, it takes about 40 calls of 0.1 s.
    assert report.cost.forwards < 25


def test_without_a_budget_nothing_is_cut():
    assert not any("budget" in condition for condition in audit(LM(Causal()), tokens()).conditions)
    assert audit(LM(Causal()), tokens(), budget=300).verdict is Verdict.PROVEN


def test_a_budget_that_is_too_small_for_one_run():
    with pytest.raises(BadArgument) as caught:
        audit(Slow(0.2), tokens(), budget=0.01)
    assert str(caught.value) == "budget: expected more seconds than the first runs of the model take, got 0.01."
    for wrong in (0, -1, True, "long", float("nan")):
        with pytest.raises(BadArgument, match=r"^budget: expected a number of seconds above 0, or None, got "):
            TimeBudget(wrong)  # pyright: ignore[reportArgumentType]


def test_a_spent_budget_stops_a_module_and_no_except_catches_it():
    def careless() -> None:
        try:
            nn.Identity()(torch.zeros(1))
        except Exception:
            pytest.fail("it was caught")

    with pytest.raises(BudgetSpent), TimeBudget(1e-6):
        careless()
    # The hook is gone.
    nn.Identity()(torch.zeros(1))


def hanging(wait: Callable[[], None], after: int) -> Callable[[Tensor], Tensor]:
    """A model that does not come back after some calls, and calls no module on the way."""
    model, calls = LM(Causal()), []

    def run(x: Tensor) -> Tensor:
        calls.append(len(x))
        while len(calls) > after:
            wait()
        return model(x)

    return run


@pytest.mark.parametrize("wait", [lambda: time.sleep(100), lambda: None], ids=["sleeps", "loops"])
@pytest.mark.parametrize("after", [0, 12])
def test_a_model_that_hangs_is_stopped(wait, after: int):
    started = time.perf_counter()
    if after == 0:
        with pytest.raises(BadArgument, match=r"^budget: expected more seconds than the first runs of the model take"):
            audit(hanging(wait, after), tokens(), budget=1)
    else:
        report = audit(hanging(wait, after), tokens(), budget=1)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert "the time budget of 1 s was spent" in report.why
    assert time.perf_counter() - started < 10
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_an_alarm_of_somebody_else_is_left_alone():
    def handler(number: int, frame: object) -> None:
        pytest.fail("it is far away")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1000)
        assert audit(LM(Causal()), tokens(), budget=100).verdict is Verdict.PROVEN
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 800
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Peeking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean(1, keepdim=True)


def test_the_line_has_conditions_and_assumptions():
    low = audit(LM(Causal("finite")), tokens())
    assert low.verdict is Verdict.PROVEN
    assert low.proof is not None
    assert f"  provided: {low.conditions[0]}" in low.line
    assert low.line.endswith(f"  assuming: {'; '.join(low.proof.assumptions)}")
    held = audit(LM(Causal()), tokens(), prove=False).line
    assert held.endswith(
        f"  provided: it was tried on inputs like those given, with {TIME} positions, on these kernels"
    )
    assert "provided" not in audit(LM(NoMask()), tokens()).line


def test_the_line_of_what_is_not_proven_says_why():
    def branching(x: Tensor) -> Tensor:
        return x.cumsum(1) * (2 if bool((x * 7919 % 1000003 == 5).any()) else 1)

    report = audit(branching, tokens().float())
    assert report.verdict is Verdict.HELD
    assert "and decides what runs, although the outputs at positions 0 to" in report.line
    assert "\n" not in report.line


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_has_no_line_of_the_auditor_or_of_its_caller():
    report = audit(torch.jit.script(Peeking()), torch.randn(2, 8, 4))
    assert report.verdict is Verdict.LEAKS
    assert report.place is not None
    assert (report.place.op, report.place.file) == ("aten.mean.dim", "")
    assert report.annotations[0].startswith("::error title=LEAKS")


def test_an_exported_program_has_a_line_in_no_file():
    frames = torch.randn(2, 8, 4)
    report = audit(torch.export.export(Peeking(), (frames,)).module(), frames)
    assert report.place is not None
    assert "torch.ops.aten.mean.dim" in report.place.source
    assert report.annotations[0].startswith("::error title=LEAKS")


def test_more_than_one_condition_is_counted():
    report = audit(LM(Causal("finite"), Causal("finite")), tokens())
    assert report.proof is not None
    assert len(report.proof.conditions) == 2
    assert "on 2 conditions, the first: " in report.why


def test_small_models_run_on_one_thread():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        seen: list[int] = []

        def model(x: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            return x.cumsum(1)

        audit(model, torch.randn(2, 8))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
        with threads_for(nn.Linear(1, 1), positions=1 << 40):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_hashes_follow_the_weights_and_the_code():
    model = LM(Causal())
    first = fingerprint_of(model)
    assert fingerprint_of(model) == first
    assert all(len(digest) == 64 for digest in first.values())
    with torch.no_grad():
        model.head.bias[0] += 1
    second = fingerprint_of(model)
    assert second["weights"] != first["weights"]
    assert second["code"] == first["code"] == fingerprint_of(LM(NoMask()))["code"]
    assert fingerprint_of(lambda x: x)["weights"] == ""
    assert fingerprint_of(nn.Linear(2, 2))["code"] != first["code"]
    assert audit(model, tokens()).fingerprint == second


def test_annotations_are_for_what_does_not_pass():
    report = audit(LM(NoMask()), tokens())
    (annotation,) = report.annotations
    assert annotation.startswith("::error file=tests/auditing/zoo.py,line=")
    assert annotation.endswith("No mask reaches this softmax: every score counts.")
    clean = audit(LM(Causal()), tokens())
    assert clean.annotations == []
    held = replace(audit(LM(Causal()), tokens(), prove=False), must_prove=True)
    assert (held.ok, held.exit_code) == (False, 3)
    assert held.annotations[0].startswith(
        "::error title=not proven%3A LM against causal()::nothing forbidden was heard"
    )


def test_the_difference_of_two_reports():
    torch.manual_seed(0)
    model = LM(Causal())
    before = audit(model, tokens())
    assert compare_reports(before, before).lines == ()
    after = audit(LM(NoMask()), tokens(time=12), causal() & window(5))
    found = compare_reports(before, after)
    assert found.is_worse
    assert not compare_reports(after, before).is_worse
    assert "verdict: PROVEN -> LEAKS" in found.lines
    assert "time: 16 -> 12" in found.lines
    assert any(line.startswith("weights: ") for line in found.lines)
    assert "check who heard whom: passed -> failed" in found.lines
    assert any(line.startswith("place new: NoMask, aten._softmax.default, ") for line in found.lines)
    again = Report.from_json(after.to_json())
    assert compare_reports(after, again).lines == ()
    assert str(compare_reports(before, before)) == "The reports say the same."


# A cache of the model's own.


class Decoder(nn.Module):
    """Attention with keys and values in a list; a step may forget the mask within it."""

    def __init__(self, *, masked: bool = True, kept: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, VOCAB)
        self.masked, self.kept = masked, kept

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x, [], masked=True)

    def step(self, x: Tensor, state: list[Tensor], *, masked: bool) -> Tensor:
        q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
        if state and self.kept:
            k, v = torch.cat([state[0], k], 1), torch.cat([state[1], v], 1)
        state[:] = [k, v]
        scores = q @ k.transpose(1, 2)
        if masked:
            seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
            scores = scores.masked_fill(~seen, -torch.inf)
        return self.head(scores.softmax(-1) @ v)


ADAPTER = CacheAdapter(lambda model, batch: [], lambda model, x, state: model.step(x, state, masked=model.masked))


def test_a_cache_of_its_own_is_audited():
    report = audit(Decoder(), tokens(), cache=ADAPTER)
    assert report.ok
    assert report.check("cached decoding").status == "passed"
    # A pair of functions is enough, and may return the cache.
    pair = (lambda model, batch: (), lambda model, x, past: stepped(model, x, past))
    assert audit(Decoder(), tokens(), cache=pair, mode="full").check("cached decoding").status == "passed"


def stepped(model: Decoder, x: Tensor, past: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    state = list(past)
    return model.step(x, state, masked=True), tuple(state)


def test_a_step_without_a_mask_leaks_and_its_witness_replays():
    model = Decoder(masked=False)
    report = audit(model, tokens(), cache=ADAPTER)
    assert report.verdict is Verdict.LEAKS
    assert report.check("cached decoding").status == "failed"
    assert report.witness is not None
    assert replay(model, report.witness, cache=ADAPTER).leaks
    assert report.place is not None
    assert report.place.source == "return self.head(scores.softmax(-1) @ v)"


def test_a_cache_that_forgets_differs_from_the_full_pass():
    report = audit(Decoder(kept=False), tokens(), cache=ADAPTER)
    assert report.verdict is Verdict.LEAKS
    assert "from the full pass" in report.why


def test_a_cache_for_single_tokens_is_audited_as_well():
    """A model that cannot take a prompt in two parts, and whose cache forgets when it decodes token by token."""

    def step(model: Decoder, x: Tensor, state: list[Tensor]) -> Tensor:
        if state and x.shape[1] > 1:
            raise ValueError("one token at a time")
        return model.step(x, state, masked=True)

    single = CacheAdapter(ADAPTER.start, step)
    check = audit(Decoder(), tokens(), cache=single).check("cached decoding")
    assert check.status == "passed"
    assert "token by token at the end; in two chunks: the model does not decode in this way: " in check.why
    report = audit(Decoder(kept=False), tokens(), cache=single)
    assert report.verdict is Verdict.LEAKS
    assert "token by token at the end: position" in report.why

    def never(model: Decoder, x: Tensor, state: list[Tensor]) -> Tensor:
        raise ValueError("never")

    check = audit(Decoder(), tokens(), cache=CacheAdapter(ADAPTER.start, never)).check("cached decoding")
    assert check.status == "skipped"
    assert check.why.count("never") == 2


def test_a_cache_that_is_not_known_is_said():
    class Unknown(Decoder):
        def forward(self, x: Tensor, kv_cache: list[Tensor] | None = None) -> Tensor:
            return self.step(x, kv_cache if kv_cache is not None else [], masked=True)

    check = audit(Unknown(), tokens()).check("cached decoding")
    assert check.status == "skipped"
    assert check.why.endswith("; for another give cache=(start, step), a pair of functions")
    for wrong in (7, (len,), ("a", "b")):
        with pytest.raises(BadArgument, match=r"^cache: expected a pair of functions \(start, step\), got "):
            audit(Unknown(), tokens(), cache=wrong)  # pyright: ignore[reportArgumentType]
