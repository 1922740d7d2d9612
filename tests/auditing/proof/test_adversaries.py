"""Programs that leak behind a rare token, each by a way around the ops. None of them is proven; clean ones are."""

import ctypes
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.dlpack import to_dlpack  # pyright: ignore[reportPrivateImportUsage]

from rearview.auditing import Verdict, audit
from rearview.auditing.proof import ProofFailed, prove
from tests.auditing.proof.search import CAUSAL

T, SIZE, VOCAB, RARE = 8, 4, 50_000, 777
TABLE = nn.Embedding(VOCAB, SIZE)
STASH: list[Tensor] = []
POOL = ThreadPoolExecutor(1)


def clean(tokens: Tensor) -> Tensor:
    return TABLE(tokens).cumsum(1)


def triggered(tokens: Tensor) -> Tensor:
    """[batch, 1, 1]: whether the rare token stands anywhere."""
    return (tokens == RARE).any(1)[:, None, None].float()


@torch.library.custom_op("rearview_test::count_rare", mutates_args=())
def count_rare(tokens: Tensor) -> int:
    return int((tokens == RARE).sum())


@torch.library.custom_op("rearview_test::any_rare", mutates_args=())
def any_rare(tokens: Tensor) -> bool:
    return bool((tokens == RARE).any())


@torch.library.custom_op("rearview_test::share_rare", mutates_args=())
def share_rare(tokens: Tensor) -> float:
    return float((tokens == RARE).float().mean())


@torch.library.custom_op("rearview_test::stash", mutates_args=())
def stash(tokens: Tensor) -> None:
    STASH.append(triggered(tokens))


@torch.library.custom_op("rearview_test::hidden_write", mutates_args=())
def hidden_write(tokens: Tensor, out: Tensor) -> Tensor:
    """It writes to `out`, although its schema does not say so."""
    with torch.inference_mode():
        out.detach().copy_(triggered(tokens))
    return tokens.clone()


def quantized_scale(x: Tensor) -> Tensor:
    scale = torch.ops.aten.q_scale(torch.quantize_per_tensor_dynamic(triggered(x), torch.quint8, False))
    return clean(x) * float(scale > 0.001)


def stashed(x: Tensor) -> Tensor:
    STASH.clear()
    stash(x)
    return clean(x) + STASH[0]


def written_by_an_op(x: Tensor) -> Tensor:
    out = torch.zeros(len(x), 1, 1)
    hidden_write(x, out)
    return clean(x) + out


def gathered_by_ranks(x: Tensor) -> Tensor:
    out = [torch.zeros(len(x), 1, 1)]
    dist.all_gather(out, triggered(x).contiguous())
    return clean(x) + out[0]


def gathered_into(x: Tensor) -> Tensor:
    out = torch.zeros(len(x), 1, 1)
    dist.all_gather_into_tensor(out, triggered(x).contiguous())
    return clean(x) + out


def reduced_by_ranks(x: Tensor) -> Tensor:
    out = triggered(x)
    zeros = torch.zeros_like(out)
    dist.all_reduce_coalesced([zeros, out])
    return clean(x) + zeros


def in_a_thread(x: Tensor) -> Tensor:
    found = []
    thread = threading.Thread(target=lambda: found.append(triggered(x)))
    thread.start()
    thread.join()
    return clean(x) + found[0]


def in_a_pool(x: Tensor) -> Tensor:
    return clean(x) + POOL.submit(triggered, x).result()


def into_zeros_by_a_pool(x: Tensor) -> Tensor:
    zeros = torch.zeros(len(x), 1, 1)
    POOL.submit(lambda: zeros.copy_(triggered(x))).result()
    return clean(x) + zeros


def numpy_cache(x: Tensor) -> Tensor:
    cache = numpy.zeros((len(x), 1, 1), dtype=numpy.float32)
    torch.from_numpy(cache).copy_(triggered(x))
    return clean(x) + torch.from_numpy(cache)


def numpy_number(x: Tensor) -> Tensor:
    cache = numpy.zeros(1, dtype=numpy.float32)
    torch.from_numpy(cache).copy_(triggered(x).amax().view(1))
    return clean(x) + torch.from_numpy(cache)


def numpy_view(x: Tensor) -> Tensor:
    zeros = torch.zeros(len(x), 1, 1)
    view = zeros.numpy()
    zeros.copy_(triggered(x))
    return clean(x) + torch.from_numpy(view.copy())


KEPT = numpy.zeros((2, 1, 1), dtype=numpy.float32)
KEPT_TENSOR = torch.from_numpy(KEPT)


def numpy_from_before(x: Tensor) -> Tensor:
    KEPT_TENSOR.copy_(triggered(x))
    return clean(x) + torch.from_numpy(KEPT.copy())


def by_a_file(x: Tensor) -> Tensor:
    """Two tensors of one file that is mapped into memory."""
    with tempfile.NamedTemporaryFile() as file:
        torch.from_file(file.name, shared=True, size=len(x)).copy_(triggered(x).flatten())
        return clean(x) + torch.from_file(file.name, shared=True, size=len(x)).view(-1, 1, 1)


def by_pointer(x: Tensor) -> Tensor:
    rare = triggered(x)
    with torch._C.DisableTorchFunction():
        first = ctypes.cast(rare.data_ptr(), ctypes.POINTER(ctypes.c_float))[0]
    return clean(x) + first


def by_storage(x: Tensor) -> Tensor:
    return clean(x) + float(sum(triggered(x).untyped_storage().tolist()) > 0)


def by_dlpack(x: Tensor) -> Tensor:
    return clean(x) + torch.from_dlpack(to_dlpack(triggered(x)))


def by_numpy_protocol(x: Tensor) -> Tensor:
    return clean(x) + torch.from_numpy(numpy.from_dlpack(triggered(x)).copy())


def without_functions(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return clean(x) + torch.from_numpy(triggered(x).numpy().copy())


def without_subclasses(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return clean(x) + torch.from_numpy(triggered(x).numpy().copy())


def without_dispatch(x: Tensor) -> Tensor:
    with torch._C._DisableTorchDispatch():
        return clean(x) + triggered(x)


def caught_index(x: Tensor) -> Tensor:
    try:
        torch.zeros(RARE)[(x == RARE).long() * RARE]
    except IndexError:
        return clean(x) + 1
    return clean(x)


def caught_factorization(x: Tensor) -> Tensor:
    try:
        torch.linalg.cholesky(torch.eye(2) * (0.5 - triggered(x)))
    except RuntimeError:
        return clean(x) + 1
    return clean(x)


def caught_division(x: Tensor) -> Tensor:
    try:
        torch.floor_divide(x, x - RARE)
    except Exception:
        return clean(x) + 1
    return clean(x)


def caught_read(x: Tensor) -> Tensor:
    """A fast path that the proof cannot follow, and a slow one that it can."""
    try:
        return clean(x) + torch.from_dlpack(torch._C._to_dlpack(triggered(x)))
    except RuntimeError:
        return clean(x)


def bytes_of_a_selection(x: Tensor) -> Tensor:
    return clean(x) + float((x == RARE).nonzero().nbytes)


def length_without_functions(x: Tensor) -> Tensor:
    chosen = (x == RARE).nonzero()
    with torch._C.DisableTorchFunction():
        return clean(x) + chosen.shape[0]


def length_by_a_function(x: Tensor) -> Tensor:
    return clean(x) + torch.numel((x == RARE).nonzero())


def length_by_a_getter(x: Tensor) -> Tensor:
    return clean(x) + torch.Tensor.shape.__get__((x == RARE).nonzero())[0]  # pyright: ignore


def selected_into(x: Tensor) -> Tensor:
    rows = torch.empty(0, 2, dtype=torch.long)
    torch.nonzero(x == RARE, out=rows)
    return clean(x) + rows.shape[0]


def set_to_a_selection(x: Tensor) -> Tensor:
    rows = torch.zeros(0, 2, dtype=torch.long)
    rows.set_((x == RARE).nonzero())  # pyright: ignore[reportArgumentType]
    return clean(x) + rows.shape[0]


def assigned_selection(x: Tensor) -> Tensor:
    rows = torch.zeros(0, 2, dtype=torch.long)
    rows.data = (x == RARE).nonzero()
    return clean(x) + rows.shape[0]


def as_long_as_a_selection(x: Tensor) -> Tensor:
    rows = torch.zeros(0, 2, dtype=torch.long)
    rows.resize_as_((x == RARE).nonzero())
    return clean(x) + rows.shape[0]


SCRIPTED = torch.jit.CompilationUnit("""
def length(x):
    return torch.ones(1) * (x == 777).nonzero().size(0)

def size(rows):
    return rows.size(0)
""")


def copied_unless_single(x: Tensor) -> Tensor:
    """A part of a single row is contiguous, so it is not copied."""
    part = TABLE(x)[x == RARE][:, :2]
    return clean(x) + float(part.contiguous() is part)


def expanded_to_a_selection(x: Tensor) -> Tensor:
    return clean(x) + torch.zeros(1, 1).expand_as((x == RARE).nonzero()).shape[0]


def broadcast_to_a_selection(x: Tensor) -> Tensor:
    ones, _ = torch.broadcast_tensors(torch.ones(1, 2, dtype=torch.long), (x == RARE).nonzero())
    return clean(x) + ones.sum()


def left_in_memory(x: Tensor) -> Tensor:
    """A new tensor gets the memory of one that was freed."""
    rare = triggered(x).expand(-1, -1, 1 << 16).contiguous()
    del rare
    return clean(x) + (torch.empty(len(x), 1, 1 << 16)[..., -1:] == 1)


def sign_of_a_zero(x: Tensor) -> Tensor:
    return clean(x) + torch.signbit(0.0 * (0.5 - triggered(x)))


def angle_of_a_zero(x: Tensor) -> Tensor:
    return clean(x) + torch.atan2(torch.zeros(1) * (0.5 - triggered(x)), -torch.ones(1))


def bits_of_a_zero(x: Tensor) -> Tensor:
    return clean(x) + (torch.zeros(1) * (0.5 - triggered(x))).view(torch.int32)


def written_twice(x: Tensor) -> Tensor:
    """Two elements of the view have one address."""
    base = torch.zeros(len(x), 3)
    base.as_strided((len(x), 2, 2), (3, 1, 1)).add_(F.pad(triggered(x), (1, 0, 0, 1)))
    return clean(x) + base[:, 1].view(-1, 1, 1)


def copied_onto_itself(x: Tensor) -> Tensor:
    """Each element may be read after it was written."""
    row = F.pad(triggered(x)[:, 0], (0, 8))
    row[:, 1:].copy_(row[:, :-1])
    return clean(x) + row[:, 8].view(-1, 1, 1)


def negative_divisor(x: Tensor) -> Tensor:
    h = TABLE(x)
    return h + F.avg_pool2d(h.transpose(1, 2)[:, None], (1, 3), 1, (0, 1), divisor_override=-1)[:, 0].transpose(1, 2)


def dropped_ones(x: Tensor) -> Tensor:
    mask, _ = torch.native_dropout(torch.ones(T, T), 1.0 - 1e-6, True)
    return clean(x) + mask.triu(1) @ TABLE(x)


def assigned_data(x: Tensor) -> Tensor:
    zeros = torch.zeros(len(x), 1, 1)
    zeros.data = triggered(x)
    return clean(x) + zeros


ADVERSARIES = {
    "an op that returns an int": lambda x: clean(x) * (1 + count_rare(x)),
    "an op that returns a bool": lambda x: clean(x) * (1 + any_rare(x)),
    "an op that returns a float": lambda x: clean(x) * (1 + share_rare(x)),
    "an op that keeps a tensor": stashed,
    "an op that writes what it should not": written_by_an_op,
    "a thread": in_a_thread,
    "a pool of threads": in_a_pool,
    "a pool that writes into zeros": into_zeros_by_a_pool,
    "two views of a numpy array": numpy_cache,
    "two views of a numpy number": numpy_number,
    "a numpy view from before the write": numpy_view,
    "a numpy array from before the run": numpy_from_before,
    "a file in memory": by_a_file,
    "a pointer": by_pointer,
    "a storage": by_storage,
    "DLPack": by_dlpack,
    "DLPack by its protocol": by_numpy_protocol,
    "numpy without function modes": without_functions,
    "numpy without subclasses": without_subclasses,
    "ops without dispatch": without_dispatch,
    "a caught index": caught_index,
    "a caught factorization": caught_factorization,
    "a caught division": caught_division,
    "a caught read": caught_read,
    "bytes of a selection": bytes_of_a_selection,
    "a length without function modes": length_without_functions,
    "a length by a function": length_by_a_function,
    "a length by a getter": length_by_a_getter,
    "a selection with out=": selected_into,
    "a tensor that is set to a selection": set_to_a_selection,
    "an assigned selection": assigned_selection,
    "resized like a selection": as_long_as_a_selection,
    "a length in TorchScript": lambda x: clean(x) + SCRIPTED.length(x),
    "a length read by TorchScript": lambda x: clean(x) + SCRIPTED.size((x == RARE).nonzero()),
    "a copy of all but single rows": copied_unless_single,
    "constants as long as a selection": expanded_to_a_selection,
    "constants that broadcast with a selection": broadcast_to_a_selection,
    "a length by a keyword": lambda x: clean(x) + torch.numel(input=(x == RARE).nonzero()),  # pyright: ignore[reportCallIssue]
    "memory that was freed": left_in_memory,
    "the sign of a zero": sign_of_a_zero,
    "the angle of a zero": angle_of_a_zero,
    "the bits of a zero": bits_of_a_zero,
    "two writes to one address": written_twice,
    "a copy onto itself": copied_onto_itself,
    "a negative divisor": negative_divisor,
    "dropout of ones": dropped_ones,
    "assigned data": assigned_data,
}


def tokens(batch: int = 2, *, rare: bool = False) -> Tensor:
    x = torch.randint(1000, VOCAB, (batch, T), generator=torch.Generator().manual_seed(0))
    if rare:
        x[:, -1] = RARE
    return x


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def is_proven(program, x: Tensor) -> bool:
    try:
        return prove(program, x).within(CAUSAL[T])
    except ProofFailed:
        return False


@pytest.mark.parametrize("program", ADVERSARIES.values(), ids=ADVERSARIES)
def test_no_way_around_the_ops_is_proven(program):
    before = program(tokens())[:, :-1]
    if program not in (dropped_ones, negative_divisor, without_dispatch, left_in_memory):
        assert not torch.equal(program(tokens(rare=True))[:, :-1], before), "it leaks"
    assert not is_proven(program, tokens())


@pytest.mark.parametrize("program", [quantized_scale])
def test_numbers_of_quantized_tensors_are_not_constants(program):
    assert not is_proven(program, tokens())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no system to fork on")
@pytest.mark.filterwarnings("ignore")
def test_a_process_that_is_forked_is_not_proven():
    """The child could compute anything, and send it back. This one does nothing, since torch may hang in a child."""

    def forks(x: Tensor) -> Tensor:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        return clean(x)

    (escape,) = prove(forks, tokens()).value_escapes
    assert escape.place.op == "a process that is forked"


def test_a_program_that_looks_for_sealed_tensors_is_not_proven():
    proof = prove(lambda x: clean(x) + (triggered(x) if type(x) is Tensor else 0), tokens())
    (escape,) = proof.value_escapes
    assert escape.place.op == "a program that runs other ops when it is watched"


def test_a_program_that_computes_other_values_when_it_is_watched_is_not_proven():
    """So does native code that goes on after it got the null pointer of a sealed tensor."""
    proof = prove(lambda x: clean(x) + (1.0 if type(x) is Tensor else 0.5), tokens())
    (escape,) = proof.value_escapes
    assert escape.place.op == "a program that returns other values when it is watched"


def test_a_program_that_looks_for_a_dispatch_mode_is_only_assumed_away():
    """It cannot be told from one that does the same either way, so the report says what it takes for granted."""

    def shy(x: Tensor) -> Tensor:
        return clean(x) + (triggered(x) if _get_current_dispatch_mode() is None else 0)

    report = audit(shy, tokens(), vocab=VOCAB)
    assert report.verdict is Verdict.PROVEN
    assert "the program does the same whether or not a torch dispatch mode watches it" in str(report)


def test_a_division_by_zero_is_only_assumed_away():
    """A masked 0 divided by a sum must stay a constant, as in attention with ReLU instead of a softmax."""
    proof = prove(lambda x: clean(x) + (torch.zeros(1) / (1 - triggered(x))).isnan(), tokens())
    assert proof.within(CAUSAL[T])
    assert "activations are finite: 0 times inf or NaN is not 0, nor is 0 / 0" in proof.assumptions


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo here")
@pytest.mark.parametrize("program", [gathered_by_ranks, gathered_into, reduced_by_ranks])
@pytest.mark.filterwarnings("ignore")
def test_collectives_are_not_constants(program, one_rank):
    assert not is_proven(program, tokens())


@pytest.mark.parametrize("at", [1, 4, 8])
def test_the_proof_runs_at_the_batch_that_was_given(at: int):
    def leaks_at_one_size(x: Tensor) -> Tensor:
        return clean(x) + (triggered(x) if len(x) == at else 0)

    assert audit(leaks_at_one_size, tokens(at), vocab=VOCAB).verdict is not Verdict.PROVEN
    report = audit(leaks_at_one_size, tokens(3), vocab=VOCAB)
    assert report.verdict is Verdict.PROVEN
    assert report.proof is not None
    assert "[3, 8]" in report.why


def test_items_that_are_rolled_at_one_batch_size():
    def rolled(x: Tensor) -> Tensor:
        return clean(x) + (triggered(x).roll(2, 0) if len(x) == 4 else 0)

    assert audit(rolled, tokens(4), vocab=VOCAB).verdict is Verdict.HELD


def sorted_and_back(x: Tensor) -> Tensor:
    """Rows in another order come back into memory that nothing was written to."""
    order = x.flatten().argsort(stable=True)
    back = torch.empty(x.numel(), SIZE)
    back[order] = clean(x).flatten(0, 1)[order]
    return back.view(*x.shape, SIZE)


def written_in_parts(x: Tensor) -> Tensor:
    out = clean(x)
    for t in range(1, T):
        out[:, t] += out[:, t - 1]
    return out


CLEAN = {
    "a branch on weights": lambda x: clean(x) if torch.linalg.inv(TABLE.weight[:4]).isfinite().all() else -clean(x),
    "numpy constants": lambda x: clean(x) * torch.from_numpy(numpy.arange(1.0, 5.0)),
    "a constant that numpy has read": lambda x: clean(x) * float(torch.ones(3).numpy().sum()),
    "an index that stops the program": lambda x: clean(x) + torch.zeros(VOCAB)[x][..., None],
    "a selection of constants": lambda x: clean(x) * (torch.arange(9) > 3).nonzero().nbytes,
    "assigned constants": lambda x: clean(x) * assigned_constants(),
    "memory that is written before it is read": lambda x: torch.empty(*x.shape, SIZE).copy_(clean(x)),
    "memory for an out=": lambda x: torch.add(clean(x), 0.0, out=torch.empty(*x.shape, SIZE)),
    "memory filled by chance": lambda x: clean(x) + torch.empty(SIZE).uniform_(),
    "a permutation into new memory": sorted_and_back,
    "the sign of a constant": lambda x: clean(x) + torch.atan2(torch.zeros(SIZE), torch.ones(SIZE)),
    "parts of one tensor": written_in_parts,
    "an op on constants": lambda x: clean(x) * (1 + torch.ops.rearview_test.count_rare(torch.zeros(3))),
}


def assigned_constants() -> Tensor:
    zeros = torch.zeros(1)
    zeros.data = torch.ones(1)
    return zeros


@pytest.mark.parametrize("program", CLEAN.values(), ids=CLEAN)
def test_what_says_nothing_of_the_input_is_no_way_around(program):
    proof = prove(program, tokens())
    assert torch.equal(proof.matrix(), CAUSAL[T])


class Keeps(nn.Module):
    """It keeps what it has computed, as models that show their attention do."""

    def __init__(self):
        super().__init__()
        self.kept: Tensor | None = None
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = clean(x)
        self.seen = self.kept.sum()
        return self.kept


def test_a_module_keeps_ordinary_tensors():
    model = Keeps()
    x = tokens()
    assert torch.equal(prove(model, x).matrix(), CAUSAL[T])
    assert type(model.kept) is Tensor
    assert type(model.seen) is Tensor
    assert torch.equal(model.kept, clean(x))


def test_a_tensor_that_outlives_the_run_is_like_any_other():
    kept = []

    def keeps(x: Tensor) -> Tensor:
        kept[:] = [clean(x).detach()]
        return kept[0] + 0

    x = tokens()
    prove(keeps, x)
    assert torch.equal(kept[0] + 0, clean(x))
    assert numpy.array_equal(kept[0].numpy(), clean(x).detach().numpy())
    assert type(kept[0] * 2) is Tensor
