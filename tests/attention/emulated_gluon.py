"""Gluon kernels as Python threads on CPU tensors: Triton's interpreter does not run them.

    with emulated_kernels(monkeypatch):
        attend(query, key, value, engine="hopper")

Every warpgroup is a thread. What is asynchronous on the GPU happens at the worst moment that the code allows: a product
of the tensor cores reads its operands when it is waited for, and a copy arrives late, into memory that is NaN
until then, or leaves late. So a barrier that is missing, or waited for in the wrong phase, gives wrong numbers or a
deadlock, which is an error after a time. What threads store must be fenced before the tensor cores or copies read it.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import random
import sys
import textwrap
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rearview.attention.engines.hopper.launcher import Tiled

# Longer than any wait that ends, on a busy machine.
PATIENCE_S = 60.0


class Deadlock(Exception):
    """A barrier was waited for in vain."""


class Pointer:
    """An address as Triton knows it: the storage of a tensor and offsets of elements."""

    def __init__(self, tensor: Tensor, offsets: Any = 0):
        self.tensor, self.offsets = tensor, offsets
        # `pointer.dtype.element_ty` is the dtype of the elements.
        self.dtype = types.SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.tensor, self.offsets + other)

    def elements(self) -> Tensor:
        """All elements that an offset may reach."""
        x = self.tensor
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else -1
        return torch.as_strided(x, (last + 1,), (1,), x.storage_offset())


class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes that were announced are there."""

    def __init__(self, world: World):
        self.world, self.count, self.pending, self.bytes, self.phase = world, 0, 0, 0, 0

    def change(self, arrivals: int = 0, expected: int = 0, arrived: int = 0) -> None:
        with self.world.changed:
            assert self.count, "a barrier is used before it is initialised"
            self.bytes += expected - arrived
            self.pending -= arrivals
            assert self.pending >= 0, "more threads arrive at a barrier than it counts"
            if self.pending == 0 and self.bytes == 0:
                self.phase, self.pending = self.phase ^ 1, self.count
                self.world.changed.notify_all()


class Buffer:
    """Shared memory: a NumPy array would do, were it not for what is stored and not yet fenced."""

    def __init__(self, world: World, tensor: Tensor):
        self.world, self.tensor = world, tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def shape(self) -> list[int]:
        return list(self.tensor.shape)

    def index(self, place: Any) -> Any:
        assert 0 <= int(place) < len(self.tensor), f"index {int(place)} of {len(self.tensor)} buffers"
        return Buffer(self.world, self.tensor[int(place)])

    def slice(self, start: int, length: int, dim: int = 0) -> Buffer:
        return Buffer(self.world, self.tensor.narrow(dim, start, length))

    def permute(self, order: Sequence[int]) -> Buffer:
        return Buffer(self.world, self.tensor.permute(*order))

    def reinterpreted(self, dtype: torch.dtype, shape: Sequence[int], layout: Any) -> Buffer:
        return Buffer(self.world, self.tensor.view(-1).view(dtype)[: int(np.prod(shape))].view(*shape))

    def load(self, layout: Any = None) -> Tensor:
        self.world.pause()
        return self.tensor.clone()

    def store(self, value: Any) -> None:
        self.world.pause()
        assert value.dtype == self.tensor.dtype, f"{value.dtype} is stored to memory of {self.tensor.dtype}"
        assert value.shape == self.tensor.shape, f"{value.shape} is stored to memory of {self.tensor.shape}"
        with self.world.changed:
            self.tensor.copy_(value)
            self.world.unfenced.setdefault(threading.get_ident(), []).append(self._span())

    def read_by_copies(self) -> Tensor:
        """What the tensor cores and the copy engine see."""
        low, high = self._span()
        with self.world.changed:
            for spans in self.world.unfenced.values():
                assert all(high <= begin or end <= low for begin, end in spans), "what is read was not fenced"
            return self.tensor.clone()

    def _span(self) -> tuple[int, int]:
        first = self.tensor.data_ptr()
        steps = sum((size - 1) * stride for size, stride in zip(self.tensor.shape, self.tensor.stride(), strict=True))
        return first, first + (steps + 1) * self.tensor.element_size()


class Barriers:
    def __init__(self, world: World, count: int):
        self.all = [Barrier(world) for _ in range(count)]

    def index(self, place: Any) -> Barrier:
        return self.all[int(place)]


class Product:
    """A product of the tensor cores that may not be finished: nothing but a wait makes a tensor of it."""

    def __init__(self, compute: Callable[[], Tensor]):
        self._compute, self.value = compute, None

    def finish(self) -> None:
        self.value = self._compute()

    def done(self) -> Tensor:
        assert self.value is not None, "a product is used before it is waited for"
        return self.value


class Descriptor:
    """A tensor map: tiles of a tensor, zeros beyond its edges."""

    def __init__(self, tiled: Tiled):
        self.tensor, self.tile, self.dtype = tiled.tensor, tiled.tile, tiled.tensor.dtype
        size = int(np.prod(tiled.tile)) * tiled.tensor.element_size()
        self.block_type = types.SimpleNamespace(nbytes=size)

    def _inside(self, place: Sequence[Any]) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
        there, here = [], []
        for first, size, length in zip(place, self.tile, self.tensor.shape, strict=True):
            low, high = max(int(first), 0), min(int(first) + size, length)
            if low >= high:
                return None
            there.append(slice(low, high))
            here.append(slice(low - int(first), high - int(first)))
        return tuple(there), tuple(here)

    def read(self, place: Sequence[Any]) -> Tensor:
        tile = torch.zeros(self.tile, dtype=self.dtype)
        if (inside := self._inside(place)) is not None:
            tile[inside[1]] = self.tensor[inside[0]]
        return tile

    def write(self, place: Sequence[Any], tile: Tensor, *, add: bool) -> None:
        if (inside := self._inside(place)) is not None:
            part = tile.view(self.tile)[inside[1]]
            self.tensor[inside[0]] = self.tensor[inside[0]] + part if add else part


class World:
    """One launch: its clock, its copies under way, and the state of each thread."""

    def __init__(self, seed: int):
        self.changed = threading.Condition(threading.RLock())
        self.random = random.Random(seed)
        self.own = threading.local()
        self.unfenced: dict[int, list[tuple[int, int]]] = {}
        self.copies: list[tuple[Callable[[], None], threading.Event]] = []
        self.failure: BaseException | None = None
        self.is_over = False

    def pause(self) -> None:
        # Another thread runs first, sometimes.
        if self.random.random() < 0.3:
            threading.Event().wait(0.0 if self.random.random() < 0.5 else 1e-4 * self.random.random())
        if self.failure is not None:
            raise Deadlock("another thread has failed")

    def wait_until(self, is_true: Callable[[], bool], what: str) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: is_true() or self.failure is not None, PATIENCE_S):
                raise Deadlock(what)
            if self.failure is not None:
                raise Deadlock("another thread has failed")

    def copy_later(self, copy: Callable[[], None]) -> threading.Event:
        arrived = threading.Event()
        with self.changed:
            self.copies.append((copy, arrived))
            self.changed.notify_all()
        return arrived

    @torch.no_grad()
    def run_copies(self) -> None:
        """The copy engine: copies arrive in any order."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: bool(self.copies) or self.is_over)
                if not self.copies:
                    return
                copy, arrived = self.copies.pop(self.random.randrange(min(4, len(self.copies))))
            if self.random.random() < 0.3:
                threading.Event().wait(2e-4 * self.random.random())
            try:
                copy()
            except BaseException as failure:
                self.fail(failure)
            arrived.set()

    def fail(self, failure: BaseException) -> None:
        with self.changed:
            if self.failure is None or isinstance(self.failure, Deadlock):
                self.failure = failure
            self.changed.notify_all()

    def thread(self, run: Callable[[], None], program: Any, grid: Any) -> threading.Thread:
        def guarded() -> None:
            self.own.program, self.own.grid = program, grid
            self.own.products, self.own.stores = deque(), []
            try:
                # Whether gradients are recorded is a setting of each thread.
                with torch.no_grad():
                    run()
            except BaseException as failure:
                self.fail(failure)

        return threading.Thread(target=guarded, daemon=True)


_world: World | None = None


def world() -> World:
    assert _world is not None, "a kernel runs outside of a launch"
    return _world


def number(value: Any) -> Any:
    """Numbers of a kernel as tensors without axes, so that they have the methods of tensors."""
    if isinstance(value, bool | Tensor):
        return value
    return torch.tensor(value, dtype=torch.int32 if isinstance(value, int) else torch.float32)


class Mbarrier:
    MBarrierLayout = staticmethod(lambda: "barriers")

    @staticmethod
    def init(barrier: Any, count: int) -> None:
        barrier = _one(barrier)
        barrier.count = barrier.pending = count

    @staticmethod
    def expect(barrier: Any, size: int, pred: Any = True) -> None:
        world().pause()
        if bool(pred):
            _one(barrier).change(arrivals=1, expected=int(size))

    @staticmethod
    def arrive(barrier: Any, count: int = 1, pred: Any = True) -> None:
        world().pause()
        if bool(pred):
            _one(barrier).change(arrivals=count)

    @staticmethod
    def wait(barrier: Any, phase: Any, pred: Any = True) -> None:
        world().pause()
        own, phase = _one(barrier), int(phase)
        if bool(pred):
            world().wait_until(lambda: own.phase != phase, f"a barrier stays in phase {phase}")


def _one(barrier: Any) -> Barrier:
    return barrier.index(0) if isinstance(barrier, Barriers) else barrier


def load_tile(descriptor: Descriptor, place: Sequence[Any], barrier: Any, to: Buffer, pred: Any = True) -> None:
    world().pause()
    if not bool(pred):
        return
    place = [int(each) for each in place]
    if to.tensor.is_floating_point():
        to.tensor.fill_(torch.nan)
    else:
        to.tensor.fill_(1 << 29)

    def arrive() -> None:
        to.tensor.copy_(descriptor.read(place).view(to.tensor.shape))
        _one(barrier).change(arrived=descriptor.block_type.nbytes)

    world().copy_later(arrive)


def store_tile(descriptor: Descriptor, place: Sequence[Any], tile: Buffer, *, add: bool = False) -> None:
    world().pause()
    place = [int(each) for each in place]
    tile.read_by_copies()

    def leave() -> None:
        with world().changed:
            descriptor.write(place, tile.read_by_copies(), add=add)

    world().own.stores.append(world().copy_later(leave))


def add_tile(descriptor: Descriptor, place: Sequence[Any], tile: Buffer) -> None:
    store_tile(descriptor, place, tile, add=True)


def wait_for_stores(pending: int) -> None:
    stores = world().own.stores
    while len(stores) > pending:
        if not stores.pop(0).wait(PATIENCE_S):
            raise Deadlock("a copy does not leave")


def fence_async_shared() -> None:
    with world().changed:
        world().unfenced.pop(threading.get_ident(), None)


def warpgroup_mma(a: Any, b: Buffer, acc: Any, *, use_acc: Any = True, is_async: bool = False) -> Any:
    world().pause()
    assert not isinstance(a, Tensor) or a.dtype == b.dtype, "the operands of a product are of two dtypes"

    def compute() -> Tensor:
        x = (a if isinstance(a, Tensor) else a.read_by_copies()).float() @ b.read_by_copies().float()
        return x + (acc.done() if isinstance(acc, Product) else acc) if bool(use_acc) else x

    product = Product(compute)
    world().own.products.append(product)
    return product if is_async else warpgroup_mma_wait(0, [product])


def warpgroup_mma_wait(pending: int, deps: Sequence[Any]) -> Any:
    products = world().own.products
    while len(products) > pending:
        products.popleft().finish()
    found = [each.value if isinstance(each, Product) and each.value is not None else each for each in deps]
    return found[0] if len(found) == 1 else tuple(found)


class Language:
    """`gl` and `tl`: the functions that the kernels use, on CPU tensors."""

    int32, int64, float32, bfloat16, float16 = torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.float16
    uint32 = "uint32"
    constexpr = staticmethod(lambda value: value)
    static_range = range
    exp2, log2 = staticmethod(torch.exp2), staticmethod(torch.log2)
    NVMMADistributedLayout = NVMMASharedLayout = SliceLayout = DotOperandLayout = BlockedLayout = staticmethod(
        lambda *args, **named: "layout"
    )
    SwizzledSharedLayout = NVMMASharedLayout

    @staticmethod
    def range(*bounds: Any, **options: Any) -> range:
        return range(*(int(each) for each in bounds))

    @staticmethod
    def program_id(axis: int) -> Tensor:
        return number(world().own.program[axis])

    @staticmethod
    def num_programs(axis: int) -> Tensor:
        return number(world().own.grid[axis])

    @staticmethod
    def arange(start: int, end: int, layout: Any = None) -> Tensor:
        return torch.arange(start, end, dtype=torch.int32)

    @staticmethod
    def full(shape: Sequence[int], value: Any, dtype: torch.dtype, layout: Any = None) -> Tensor:
        return torch.full(list(shape), float(value) if dtype.is_floating_point else int(value), dtype=dtype)

    @staticmethod
    def zeros(shape: Sequence[int], dtype: torch.dtype, layout: Any = None) -> Tensor:
        return torch.zeros(list(shape), dtype=dtype)

    @staticmethod
    def convert_layout(x: Tensor, layout: Any, **options: Any) -> Tensor:
        assert isinstance(x, Tensor), "a product is used before it is waited for"
        return x

    split = staticmethod(lambda x: x.unbind(-1))
    permute, reshape = staticmethod(torch.permute), staticmethod(torch.reshape)
    expand_dims = staticmethod(lambda x, axis: x.unsqueeze(axis))
    max = staticmethod(lambda x, axis: x.amax(axis))
    min = staticmethod(lambda x, axis: x.amin(axis))
    sum = staticmethod(lambda x, axis: x.sum(axis, dtype=x.dtype))
    cumsum = staticmethod(lambda x, axis: x.cumsum(axis, dtype=x.dtype))
    maximum = staticmethod(lambda a, b: torch.maximum(*_alike(a, b)))
    minimum = staticmethod(lambda a, b: torch.minimum(*_alike(a, b)))

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        if not isinstance(condition, Tensor):
            return yes if condition else no
        return torch.where(condition, *_alike(yes, no))

    @staticmethod
    def load(pointer: Pointer, mask: Any = None, other: Any = None) -> Tensor:
        elements, offsets = pointer.elements(), torch.as_tensor(pointer.offsets).long()
        there = torch.as_tensor(True if mask is None else mask).expand(
            torch.broadcast_shapes(offsets.shape, torch.as_tensor(True if mask is None else mask).shape)
        )
        offsets = offsets.expand(there.shape)
        read = offsets[there]
        assert bool(((read >= 0) & (read < len(elements))).all()), "a load is out of bounds"
        filler = torch.full_like(offsets, 0 if other is None else other, dtype=elements.dtype)
        found = filler.clone()
        found[there] = elements[read]
        return found

    @staticmethod
    def store(pointer: Pointer, value: Any, mask: Any = None) -> None:
        elements, offsets = pointer.elements(), torch.as_tensor(pointer.offsets).long()
        value = torch.as_tensor(value)
        shape = torch.broadcast_shapes(offsets.shape, value.shape)
        there = torch.as_tensor(True if mask is None else mask).expand(shape)
        to = offsets.expand(shape)[there]
        assert bool(((to >= 0) & (to < len(elements))).all()), "a store is out of bounds"
        elements[to] = value.expand(shape)[there].to(elements.dtype)

    @staticmethod
    def atomic_add(pointer: Pointer, value: int) -> Tensor:
        with world().changed:
            elements = pointer.elements()
            before = elements[int(pointer.offsets)].clone()
            elements[int(pointer.offsets)] += value
        return before

    @staticmethod
    def atomic_xchg(pointer: Pointer, value: int) -> None:
        with world().changed:
            pointer.elements()[int(pointer.offsets)] = value

    @staticmethod
    def allocate_shared_memory(dtype: torch.dtype, shape: Sequence[int], layout: Any) -> Any:
        if layout == "barriers":
            return Barriers(world(), shape[0])
        filler = torch.nan if dtype.is_floating_point else 1 << 29
        return Buffer(world(), torch.full(list(shape), filler, dtype=dtype))

    @staticmethod
    def warp_specialize(parts: Sequence[tuple[Callable[..., None], tuple]], warps: Any, registers: Any) -> None:
        here, program, grid = world(), world().own.program, world().own.grid
        threads = [
            here.thread(lambda run=run, arguments=arguments: run(*arguments), program, grid) for run, arguments in parts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _alike(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    if isinstance(a, Tensor) and not isinstance(b, Tensor):
        return a, torch.as_tensor(b, dtype=a.dtype)
    if isinstance(b, Tensor) and not isinstance(a, Tensor):
        return torch.as_tensor(a, dtype=b.dtype), b
    return number(a), number(b)


def kept_factor(row: Tensor, key: Tensor, seed_low: int, seed_high: int, limit: int, kept: float) -> Tensor:
    """The one of kernels/tile.py, in int64: torch has no arithmetic of uint32."""
    word = 0xFFFFFFFF

    def mixed(x: Tensor) -> Tensor:
        x = x ^ (x >> 16)
        x = (x * 0x7FEB352D) & word
        x = x ^ (x >> 15)
        x = (x * 0x846CA68B) & word
        return x ^ (x >> 16)

    row_hash = mixed((seed_low & word) ^ mixed(row.long() & word))
    row_hash = mixed(row_hash ^ (seed_high & word) ^ mixed(torch.tensor(0x9E3779B9)))
    salt = mixed((key.long() * 0x9E3779B1 + 1) & word)
    return torch.where((mixed(row_hash ^ salt) >> 8) < limit, 0.0, kept)


# What stands for a name wherever a module of kernels has it.
STAND_INS: dict[str, Any] = {
    "gl": Language, "tl": Language, "mbarrier": Mbarrier, "warpgroup_mma": warpgroup_mma,
    "warpgroup_mma_wait": warpgroup_mma_wait, "fence_async_shared": fence_async_shared, "load_tile": load_tile,
    "store_tile": store_tile, "add_tile": add_tile, "wait_for_stores": wait_for_stores, "kept_factor": kept_factor,
    "reinterpreted": Buffer.reinterpreted,
}  # fmt: skip

_emulated: dict[Any, Callable[..., Any]] = {}


def emulated(kernel: Any) -> Callable[..., Any]:
    """The Python function of a kernel, in a world where all that it calls is emulated too."""
    function = kernel.fn
    if function not in _emulated:
        tree = NewValues().visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
        tree.body[0].decorator_list = []
        names: dict[str, Any] = {"gl": Language, "tl": Language}
        exec(compile(ast.fix_missing_locations(tree), inspect.getfile(function), "exec"), names)
        _emulated[function] = names[function.__name__]
        for name in _names_of(function.__code__):
            if name in STAND_INS:
                names[name] = STAND_INS[name]
            elif name in function.__globals__:
                value = function.__globals__[name]
                names[name] = emulated(value) if hasattr(value, "fn") else getattr(value, "value", value)
    return _emulated[function]


class NewValues(ast.NodeTransformer):
    """`x += y` makes a new value in a kernel, and would change a tensor of torch."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.Assign:
        read = ast.Name(node.target.id, ast.Load()) if isinstance(node.target, ast.Name) else node.target
        return ast.Assign([node.target], ast.BinOp(read, node.op, node.value))


def _names_of(code: types.CodeType) -> set[str]:
    inner = (_names_of(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*inner)


def launch(
    kernel: Any,
    programs: tuple[int, ...],
    arguments: Sequence[Any],
    constants: Mapping[str, object],
    *,
    warps: int = 4,
    seed: int = 0,
) -> None:
    """What `launcher.launch` does, on CPU tensors."""
    global _world
    _world = here = World(seed)
    given = [
        Descriptor(each) if isinstance(each, Tiled) else Pointer(each) if isinstance(each, Tensor) else each
        for each in arguments
    ]
    run = emulated(kernel)
    engine = threading.Thread(target=here.run_copies, daemon=True)
    engine.start()
    places = list(itertools.product(*(range(size) for size in programs)))
    together = places if len(places) <= MOST_AT_ONCE else None
    threads = [here.thread(lambda: run(*given, **constants), place, programs) for place in places]
    for batch in (threads,) if together else ((each,) for each in threads):
        for each in batch:
            each.start()
        for each in batch:
            each.join()
    with here.changed:
        here.is_over = True
        here.changed.notify_all()
    engine.join()
    if here.failure is not None:
        raise here.failure


# Programs that run at the same time; a kernel with more of them has no barriers between its programs.
MOST_AT_ONCE = 4


@contextmanager
def emulated_kernels(monkeypatch: Any, *, processors: int = 2, seed: int = 0) -> Iterator[None]:
    """The engine `hopper` on CPU tensors, as on a GPU with so many processors."""
    from rearview.attention.engines.hopper import backward, kernel, recording, schedule

    seeds = itertools.count(1000 * seed)

    def emulated_launch(*arguments: Any, **options: Any) -> None:
        launch(*arguments, **options, seed=next(seeds))

    interval = sys.getswitchinterval()
    with monkeypatch.context() as patch:
        for module in (recording, schedule):
            patch.setattr(module, "launch", emulated_launch)
        for module in (kernel, backward):
            patch.setattr(module, "counter", lambda tensor: torch.zeros(1, dtype=torch.int32))
            patch.setattr(module, "processors", lambda device: processors)
        sys.setswitchinterval(1e-4)
        yield
        sys.setswitchinterval(interval)
