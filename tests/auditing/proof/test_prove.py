"""prove itself: axes, batches, escapes, ops without a rule, memory that is shared, where a dependence came in."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rearview.auditing import Verdict, audit
from rearview.auditing.proof import ProofFailed, prove
from rearview.auditing.proof.rules import RULES
from rearview.errors import BadArgument, RearviewError
from tests.auditing.proof.search import CAUSAL

T = 5


@torch.library.custom_op("rearview_test::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("rearview_test::write_mean", mutates_args=("out",))
def write_mean(x: Tensor, out: Tensor) -> None:
    out.copy_(x.mean() + 0 * out)


def test_sources_are_positions_of_each_batch_item():
    proof = prove(lambda x: x + x.flip(0), torch.randn(3, T, 2))
    assert not proof.isolated
    assert proof.within(torch.eye(T).bool(), isolated=False)
    assert not proof.within(torch.eye(T).bool())
    assert (0, 1, 2, 1) in proof.violations(torch.eye(T).bool())
    assert prove(lambda x: x.view(-1).roll(1).view(x.shape), torch.randn(2, T)).hears[1, 0, 0, -1]


@pytest.mark.parametrize("tokens", [True, False])
def test_tokens_and_features(tokens: bool):
    x = torch.randint(0, 9, (2, T)) if tokens else torch.randn(2, T, 3)
    table = nn.Embedding(9, 3)
    proof = prove(lambda x: (table(x) if tokens else x).cumsum(1), x)
    assert torch.equal(proof.matrix(), CAUSAL[T])


def test_axes():
    x = torch.randn(T, 2, 3)
    proof = prove(lambda x: x.cumsum(0), x, time_axis=0, batch_axis=1, out_time_axis=0)
    assert torch.equal(proof.matrix(), CAUSAL[T])
    assert proof.isolated
    assert torch.equal(
        prove(lambda x: x.cumsum(-1), torch.randn(2, 3, T), time_axis=-1, out_time_axis=-1).matrix(), CAUSAL[T]
    )
    assert torch.equal(
        prove(lambda x: x.cumsum(0), torch.randn(T, 2), time_axis=0, batch_axis=None, out_time_axis=0).matrix(),
        CAUSAL[T],
    )


def test_a_closure_over_the_input_is_heard():
    x = torch.randn(1, T, 2)
    assert prove(lambda _: x.mean(1, keepdim=True).expand(1, T, 2), x).hears.all()


def test_several_outputs_are_joined():
    proof = prove(lambda x: {"a": x, "b": [x.cumsum(1)]}, torch.randn(1, T, 2))
    assert torch.equal(proof.matrix(), CAUSAL[T])


def test_the_input_is_left_alone():
    x = torch.randn(1, T, 2)
    before = x.clone()
    prove(lambda x: x.zero_(), x)
    assert torch.equal(x, before)
    assert not torch.nn.modules.module._global_forward_hooks


def test_escapes_forbid_a_proof_and_are_named():
    def run(x):
        if x[0, -1].sum() > 100:
            return x * 2
        return x

    proof = prove(run, torch.randn(1, T, 2))
    (escape,) = proof.value_escapes
    assert re.search(r"test_prove\.py:\d+", escape.place.line)
    assert not proof.within(torch.ones(T, T).tril().bool())
    assert proof.traced.sum() == T, "what happened along this path is still there to look at"


HIDDEN = {
    "nonzero": lambda x: x[:, : x.sum().long().abs().clamp(max=0) + T],
    "unique": lambda x: x * torch.unique(x).numel(),
    "masked_select": lambda x: x + x.masked_select(x > 0).sum(),
    "equal": lambda x: x * torch.equal(x, x),
    "in a range": lambda x: x * len(range(int(x[0, -1, 0] * 10) % 3)),
    "numpy": lambda x: x + torch.from_numpy(x.numpy().cumsum(axis=1)),
    "cut by values": lambda x: torch.tensor_split(x, (x[0, 0, :1] > 9).long(), dim=1)[1],
    "data pointer": lambda x: x * (x.data_ptr() > 0),
    "applied": lambda x: x.clone().apply_(lambda v: v + 1),
    "counts": lambda x: torch.bincount((x > 0).long().flatten(), minlength=2)[0] * x,
    "length of a selection": lambda x: x * (x > 0).nonzero().shape[0],
    "len of a selection": lambda x: x * len(x[x > 0]),
    "size of a selection by an op": lambda x: x * torch.ops.aten.size.int((x > 0).nonzero(), 0),
    "symbolic size of a selection": lambda x: x * torch.ops.aten.sym_size.int((x > 0).nonzero(), 0),
    "a layout that depends on a length": lambda x: x * x[x[..., 0] > 0][:, :1].is_contiguous(),
    "the same by an op": lambda x: x * torch.ops.aten.is_contiguous.default(x[x[..., 0] > 0][:, :1]),
}


@pytest.mark.parametrize("run", HIDDEN.values(), ids=HIDDEN)
def test_every_way_out_of_the_tensors_is_seen(run):
    proof = prove(run, torch.randn(1, T, 2))
    assert proof.value_escapes
    assert proof.hears.all()


def test_values_of_masks_may_decide():
    mask = torch.tensor([1, 1, 1, 0, 0])

    def run(x):
        if (mask == 0).any():
            return x[:, : int(mask.sum())]
        return x

    proof = prove(run, torch.randn(1, T, 2))
    assert not proof.value_escapes
    assert proof.hears.shape == (1, 3, 1, T)


def test_chance_may_decide_a_branch():
    """A layer that is dropped in training does not make every later number uncertain."""

    def run(x):
        if torch.rand([]) < 0.0:
            x = x.flip(1)
        return (x @ x.transpose(1, 2)).masked_fill(~CAUSAL[T], float("-inf")).softmax(-1) @ x

    proof = prove(run, torch.randn(1, T, 2))
    assert torch.equal(proof.matrix(), CAUSAL[T])
    assert "branches and sizes that depend on weights or on random numbers are as in this run" in str(proof.assumptions)
    assert "random numbers are the same in every run, draw by draw" in proof.assumptions


class Gated(nn.Module):
    """A path from the future that a weight closes, or a state, with the value that it has now."""

    steps: Tensor

    def __init__(self, gate: Callable[[nn.Module], Tensor | float]):
        super().__init__()
        self.weight, self.gate = nn.Parameter(torch.tensor([0.0, 1.0])), gate
        self.view = self.weight.data[:1]
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.count = torch.zeros((), dtype=torch.long)

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1) + x.mean(1, keepdim=True) * self.gate(self)


WEIGHTS = {
    "data": lambda m: m.weight.data[0],
    "a view from before": lambda m: m.view[0],
    "numpy": lambda m: torch.from_numpy(m.weight.detach().numpy())[0],
    "computed by numpy": lambda m: torch.from_numpy(m.weight.detach().numpy() > 0.5)[0],
    "a list": lambda m: torch.tensor(m.weight.tolist())[0],
    "a number": lambda m: m.weight.tolist()[0],
}


@pytest.mark.parametrize("gate", WEIGHTS.values(), ids=WEIGHTS)
def test_a_weight_is_no_mask_however_it_is_read(gate):
    proof = prove(Gated(gate), torch.randn(1, T, 2))
    assert not proof.value_escapes
    assert not proof.within(CAUSAL[T])


STEPS = torch.zeros((), dtype=torch.long)


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        (lambda m: (m.steps > 100).float(), "buffers read as constants: steps"),
        (lambda m: (m.count > 100).float(), "buffers read as constants: count"),
        (lambda m: (STEPS > 100).float(), "other tensors read as constants: a tensor [] at "),
    ],
)
def test_state_that_is_taken_for_a_constant_is_named(gate, said: str):
    proof = prove(Gated(gate), torch.randn(1, T, 2))
    assert proof.within(CAUSAL[T])
    assert said in proof.assumptions[-1]


@pytest.mark.parametrize("read", [lambda w: w.tolist()[0], lambda w: w.detach().numpy()[0], lambda w: w[0].item()])
def test_a_branch_on_a_weight_is_said(read):
    weight = nn.Parameter(torch.zeros(1))
    proof = prove(lambda x: x.flip(1) if read(weight) > 0.5 else x.cumsum(1), torch.randn(1, T, 2))
    assert proof.within(CAUSAL[T])
    assert "branches and sizes that depend on weights or on random numbers are as in this run" in proof.assumptions


def test_a_program_may_read_its_weights_without_an_op():
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    for read in (lambda: sum(weight.tolist()), lambda: float(weight.detach().numpy().sum())):
        assert torch.equal(prove(lambda x, read=read: x.cumsum(1) * read(), torch.randn(1, T, 2)).matrix(), CAUSAL[T])


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_gradients_in_forward_mode():
    """They use zeros without memory, on which an op would crash."""

    def run(x):
        return torch.func.jvp(lambda x: x.cumsum(1) * 2, (x,), (torch.ones_like(x),))[0]

    assert torch.equal(prove(run, torch.randn(1, T, 2)).matrix(), CAUSAL[T])


def test_a_write_that_no_op_made_is_seen():
    def run(x):
        out = torch.empty(1, T, 2)
        # As a C extension would: torch does not know.
        out.numpy()[:] = x.flip(1).numpy()
        return out

    assert prove(run, torch.randn(1, T, 2)).value_escapes


def test_an_op_without_a_rule_hears_all_of_its_inputs():
    proof = prove(lambda x: torch.special.i1e(x[:, :2]).renorm(2, 0, 1).sum() + x, torch.randn(1, T, 2))
    (unknown,) = proof.unknown_ops
    assert unknown.place.op == "renorm"
    assert proof.matrix()[:, :2].all()
    assert not proof.hears[0, 0, 0, 2:].any()


def test_an_op_from_elsewhere_may_do_anything():
    proof = prove(lambda x: double(x[:, :2]).sum() + x, torch.randn(1, T, 2))
    (unknown,) = proof.unknown_ops
    assert "rearview_test.double" in unknown.place.op
    assert proof.hears.all()


def test_an_op_without_a_rule_that_writes():
    def run(x):
        out = torch.zeros(1, T, 2)
        write_mean(x, out)
        return out

    proof = prove(run, torch.randn(1, T, 2))
    assert proof.hears.all()


def test_memory_is_shared():
    def run(x):
        base = torch.zeros(1, T + 2, 2)
        window, late = base[:, 1:-1], base[:, 3:]
        window.copy_(x)
        late += 1
        base.transpose(0, 1)[1].zero_()
        return torch.cat([base.detach()[:, :1], base.data[:, 1:T]], 1)

    found = prove(run, torch.randn(1, T, 2)).matrix()
    wanted = torch.zeros(T, T).bool()
    wanted[2:, 1:-1] = torch.eye(T)[:3, :3].bool()
    assert torch.equal(found, wanted)


def test_memory_that_grows_or_changes_type():
    def run(x):
        out = torch.empty(0)
        torch.cumsum(x, 1, out=out)
        halves = out.view(torch.int32).view(torch.int16)
        halves[:, :1] = 0
        return out

    proof = prove(run, torch.randn(1, T, 2))
    assert proof.matrix()[CAUSAL[T]].all()


def test_a_tensor_subclass_is_not_trusted():
    class Box(Tensor):
        @staticmethod
        def __new__(cls, inner):
            return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {}))

    assert prove(lambda x: x[:, :1] + Box(x.mean(1, keepdim=True)), torch.randn(1, T, 2)).hears.all()


def test_state_that_heard_the_input_is_heard_later():
    norm = nn.BatchNorm1d(2)

    def run(x):
        norm.train()(x.transpose(1, 2))
        return x[:, :1] * 0 + norm.running_mean

    assert prove(run, torch.randn(1, T, 2)).hears.all()


def test_origin_names_module_and_line():
    class Pool(nn.Module):
        def forward(self, x):
            y = x.cumsum(1)
            return y + y.mean(1, keepdim=True)

    model = nn.Sequential(nn.LayerNorm(3), Pool(), nn.Linear(3, 3))
    proof = prove(model, torch.randn(1, T, 3))
    place = proof.origin(0, T - 1)
    assert place is not None
    assert place.op == "add"
    assert place.module == "1 (Pool)"
    assert "test_prove.py" in place.line
    assert str(proof.origin(T - 1, 0)).startswith("cumsum, in 1 (Pool)")


def test_a_broken_part_of_the_package_is_not_a_failed_proof(monkeypatch: pytest.MonkeyPatch):
    def broken(call):
        raise ImportError("cannot import name 'x'", name="rearview.auditing.proof.sets")

    monkeypatch.setitem(RULES, "flip", broken)
    with pytest.raises(ImportError, match="cannot import name 'x'"):
        prove(lambda x: x.flip(1), torch.randn(2, T))
    with pytest.raises(ImportError, match="cannot import name 'x'"):
        audit(lambda x: x.flip(1).flip(1).cumsum(1), torch.randn(2, T))


def test_a_missing_feature_of_torch_is_said(monkeypatch: pytest.MonkeyPatch):
    def missing(call):
        raise ImportError("cannot import name 'y'", name="torch._higher_order_ops")

    monkeypatch.setitem(RULES, "flip", missing)
    report = audit(lambda x: x.flip(1).flip(1).cumsum(1), torch.randn(2, T))
    assert report.verdict is Verdict.HELD
    assert report.proof is not None
    assert report.proof.status == "failed"
    assert "the program stopped with ImportError: cannot import name 'y'" in report.why


def test_bad_arguments():
    with pytest.raises(BadArgument, match=r"x: expected a tensor \[batch, time\]"):
        prove(lambda x: x, torch.randn(T))
    with pytest.raises(BadArgument, match="time_axis: expected an axis other than batch_axis, got 0"):
        prove(lambda x: x, torch.randn(2, T), time_axis=0)
    with pytest.raises(BadArgument, match="axes of a tensor"):
        prove(lambda x: x, torch.randn(2, T), time_axis=4)
    with pytest.raises(BadArgument, match="at least one position"):
        prove(lambda x: x, torch.randn(2, 0, 3))
    with pytest.raises(BadArgument, match="run: expected a function that returns one or more tensors, got NoneType"):
        prove(lambda x: None, torch.randn(2, T))
    with pytest.raises(BadArgument, match="run: expected an output with 2 items in axis 0 and time in axis 1"):
        prove(lambda x: x[0], torch.randn(2, T, 3))
    with pytest.raises(BadArgument, match="run: expected outputs with the same batch and time"):
        prove(lambda x: (x, x[:, 1:]), torch.randn(2, T, 3))
    with pytest.raises(BadArgument, match="visible"):
        prove(lambda x: x, torch.randn(1, T)).within(torch.ones(T, T))


def test_a_program_that_fails_is_no_proof():
    with pytest.raises(ProofFailed, match="ZeroDivisionError") as failure:
        prove(lambda x: x / (1 // 0), torch.randn(1, T))
    assert isinstance(failure.value, RearviewError)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
