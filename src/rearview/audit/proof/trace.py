"""Runs the program: every op on real values, and beside it the rule of the op on sets.

>>> import torch
>>> x = torch.rand(1, 2, 3)
>>> trace = Trace(x, time_axis=1, batch_axis=0)
>>> with trace.running():
...     y = x.sum(dim=1)
>>> trace.memory.read(y).int().tolist()      # both positions, no weights
[[[1, 1, 0, 0]]]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from rearview.audit.proof.call import Call, Heard
from rearview.audit.proof.flex import flex, flex_in_the_open, is_flex
from rearview.audit.proof.memory import Memory
from rearview.audit.proof.outside import is_constant
from rearview.audit.proof.own_kernel import ASSUMED, is_own_kernel, own_kernel
from rearview.audit.proof.place import Places, is_harmless, user_line
from rearview.audit.proof.readers import Readers
from rearview.audit.proof.result import Condition, Place, Step
from rearview.audit.proof.routes import STARTS, Routed, follow
from rearview.audit.proof.rules import RULES
from rearview.audit.proof.rules.factories import filled, unset
from rearview.audit.proof.rules.pointwise import chance, dropout, pointwise
from rearview.audit.proof.sets import EXTRA, LOW, WEIGHTS, align, everything, flag, heard, sources
from rearview.audit.proof.steps import by_time

# Even from constants these make something that is not one.
NOT_CONSTANT = (unset, chance, dropout, filled)


class Trace(TorchDispatchMode):
    """One run. Knows what each storage heard, and collects conditions, escapes and ops without a rule."""

    supports_higher_order_operators = True

    def __init__(self, x: Tensor, *, time_axis: int, batch_axis: int | None):
        super().__init__()
        batch = x.shape[batch_axis] if batch_axis is not None else 1
        self.batch, self.time = batch, x.shape[time_axis]
        self.columns = batch * self.time + EXTRA
        self.device = x.device
        self.memory = Memory(columns=self.columns, foreign=self.outside, device=x.device)
        self.places = Places()
        self.numbers_are_constants = True
        self.selections = False
        self.assumed: dict[str, None] = {}
        self.buffers_read: dict[int, None] = {}
        self.conditions: dict[Place, Condition] = {}
        self.escapes: dict[Place, int] = {}
        self.unknown_ops: dict[Place, int] = {}
        self.steps: list[Step] = []
        sets = sources(batch=batch, time=self.time).to(x.device)
        if batch_axis is None or batch_axis > time_axis:
            sets = sets.transpose(0, 1)
        shape = [1] * x.dim() + [self.columns]
        shape[time_axis] = self.time
        if batch_axis is not None:
            shape[batch_axis] = batch
        self.memory.new(x, sets.reshape(shape))

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self.places)
            stack.enter_context(flex_in_the_open())
            stack.enter_context(torch.no_grad())
            stack.enter_context(Readers(self))
            stack.enter_context(self)
            yield

    # What rules ask for.

    def unknown(self, ndim: int) -> Tensor:
        """Sets of something that heard nobody and is no constant."""
        sets = torch.zeros(*[1] * ndim, self.columns, dtype=torch.bool, device=self.device)
        sets[..., WEIGHTS] = True
        return sets

    def marked(self, ndim: int) -> Tensor:
        """The same, with a finite stand-in for -inf in it."""
        sets = self.unknown(ndim)
        sets[..., LOW] = True
        return sets

    def number(self, ndim: int) -> Tensor | None:
        """Sets of a Python number. Once a weight was turned into one, none of them is known to be a constant."""
        return None if self.numbers_are_constants else self.unknown(ndim)

    def place(self, name: str) -> Place:
        return Place(name, self.places.module(), user_line())

    def condition(self, call: Call, *, margin: float, fill: float) -> None:
        place = self.place(call.name)
        old = self.conditions.get(place)
        if old is None:
            self.conditions[place] = Condition(place, fill, margin)
        else:
            self.conditions[place] = Condition(place, max(fill, old.fill), min(margin, old.margin), count=old.count + 1)

    def escape(self, call: Call) -> list[Tensor | None]:
        """A value decides a shape or the way that the program takes. That of a weight, or of a constant, may."""
        if any(heard(item.sets) for item in call.inputs):
            self.escaped(call.name)
        return self.all_of(call)

    def escaped(self, name: str) -> None:
        if is_harmless():
            return
        place = self.place(name)
        self.escapes[place] = self.escapes.get(place, 0) + 1

    def assume(self, what: str) -> None:
        self.assumed[what] = None

    def leaves(self, call: Call) -> list[Tensor | None]:
        """A value becomes a Python number: an escape if it heard someone, a weight if it comes from one."""
        union = [item.sets for item in call.inputs if item.sets is not None]
        if any(heard(sets) for sets in union):
            return self.escape(call)
        unsure = [item for item in call.inputs if not item.is_constant]
        if unsure:
            self.assume("branches that depend on weights or on chance are taken as in this run")
        if any(item.value.dtype is not torch.bool for item in unsure):
            self.numbers_are_constants = False
        return []

    def all_of(self, call: Call) -> list[Tensor | None]:
        """Every output element hears all that any input element heard."""
        union = self.unknown(0)
        for item in call.inputs:
            if item.sets is not None:
                union = union | everything(item.sets)
        union[LOW] = False
        return [union.view(*[1] * out.dim(), -1) for out in tensors(call.out)]

    def outside(self, tensor: Tensor) -> Tensor | None:
        if isinstance(tensor, torch.nn.Parameter):
            return self.unknown(0)
        # All of the storage, whichever part is seen first.
        length = tensor.untyped_storage().nbytes() // tensor.element_size()
        if is_constant(tensor) and is_constant(tensor.detach().as_strided((length,), (1,), 0)):
            if tensor.is_floating_point() or tensor.dtype is torch.bool:
                self.buffers_read[self.memory.key(tensor)] = None
            return None
        return self.unknown(0)

    # The run itself.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self.step(func, args, kwargs or {})

    def step(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        schema = getattr(func, "_schema", None)
        if schema is None and is_flex(func):
            self.assume("a BlockMask leaves out no block that its mask_mod shows, and adds none")
            with self:
                return flex(*args, **kwargs)
        if schema is None:
            return self.opaque(func, args, kwargs)
        if is_own_kernel(func):
            self.assume(ASSUMED)
            with self:
                return own_kernel(*args, **kwargs)
        name = schema.name.split("::")[1]
        written = [formal.name for formal in schema.arguments if formal.alias_info and formal.alias_info.is_write]
        if written and name.endswith("_") and not name.endswith("__"):
            name = name[:-1]
        rule = RULES.get(name) if func.namespace == "aten" else None
        if rule is None and torch.Tag.pointwise in func.tags and func.namespace == "aten":
            rule = pointwise
        if rule is None and not written and func._can_decompose():
            # Made of other ops: those are seen one by one.
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if any(sub.layout is not torch.strided for sub in tensors((args, kwargs))):
            return self.opaque(func, args, kwargs)

        if (
            name == "lift_fresh"
            and args[0].numel() == 1
            and self.numbers_are_constants
            and not self.memory.known(args[0])
        ):
            # torch.tensor(0.5): a number that the program wrote down.
            self.memory.new(args[0], None)
        taken: dict[int, Heard] = {}
        known_args = self.wrap(args, taken)
        known_kwargs = {key: self.wrap(value, taken) for key, value in kwargs.items()}
        call = Call(self, func, name, known_args, known_kwargs, None)
        targets = self.targets(call, written)
        plain = all(item.sets is None for item in taken.values())
        if written and not plain:
            # The rule sees what was there before.
            touched = {self.memory.key(target.value) for target in targets}
            for item in call.inputs if torch.Tag.inplace_view not in func.tags else []:
                if self.memory.key(item.value) in touched:
                    item.value = item.value.clone()
        call.out = out = func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:
            self.relaid(name, args)
            return out
        if plain and self.numbers_are_constants and self.is_function(func, rule):
            self.store(name, out, taken, None)
            return out
        before = dict(self.escapes), dict(self.unknown_ops)
        found = self.apply(rule, call)
        routed = follow(self, call, rule) if self.may_route(call) else None
        if routed is not None:
            # What looked like an escape, or like everyone, is known better.
            self.escapes, self.unknown_ops = before
            pairs = zip(routed, found, strict=True)
            found = [sets if item is None or isinstance(item, Routed) else item for item, sets in pairs]
        if targets:
            self.write(call, targets, args, kwargs, written, found)
        self.store(name, out, taken, found)
        if rule is unset and name.startswith(("empty", "new_empty")) and out.layout is torch.strided:
            self.memory.fill(out)
        if routed is not None:
            for item, tensor in zip(routed, tensors(out), strict=True):
                if isinstance(item, Routed):
                    self.memory.set_tag(tensor, item, selected=not item.route.whole)
        return out

    def may_route(self, call: Call) -> bool:
        return call.name in STARTS or any(item.tag is not None or item.selected for item in call.inputs)

    def wrap(self, value: Any, taken: dict[int, Heard]) -> Any:
        """Arguments with Heard in the place of tensors; `taken` maps storages to one of their tensors."""
        if isinstance(value, Tensor):
            return self.take(value, taken)
        if isinstance(value, (list, tuple)):
            return type(value)(self.wrap(item, taken) for item in value)
        return value

    def take(self, tensor: Tensor, taken: dict[int, Heard]) -> Heard:
        memory = self.memory
        if is_wrapper(tensor):
            # A subclass may hold other tensors, of which nothing is known here.
            self.escaped(type(tensor).__name__)
        if memory.overwritten(tensor):
            self.escaped("a write that no op made")
        item = Heard(tensor, memory.read(tensor), memory.tag(tensor), memory.selected(tensor))
        taken[memory.key(tensor)] = item
        return item

    def is_function(self, func: Any, rule: Any) -> bool:
        """Do constants make constants? Not where chance, uninitialised memory or foreign code has a say."""
        return rule not in NOT_CONSTANT and func.namespace == "aten" and not random(func)

    def targets(self, call: Call, written: list[str]) -> list[Heard]:
        found: list[Heard] = []
        for name in written:
            value = call[name]
            found += [value] if isinstance(value, Heard) else [v for v in value or [] if isinstance(v, Heard)]
        return found

    def apply(self, rule: Any, call: Call) -> list[Tensor | None]:
        """The sets of all output tensors, in order."""
        tags = call.func.tags
        dynamic = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
        if rule is None and dynamic and any(heard(item.sets) for item in call.inputs):
            return self.escape(call)
        if rule is None:
            rule = self.unknown_rule(call)
        found = rule(call)
        outs = tensors(call.out)
        if not self.numbers_are_constants:
            found = self.with_numbers(call, found)
        if not isinstance(found, list):
            found = [found] * len(outs) if len(outs) == 1 or found is None else [found]
        assert len(found) >= len(outs), f"{call.func}: {len(found)} sets for {len(outs)} outputs"
        if random(call.func) and rule not in NOT_CONSTANT:
            found = [self.unknown(0) if sets is None else sets for sets in found]
        return found

    def with_numbers(self, call: Call, found: Any) -> Any:
        """A weight has become a Python number, which may be any of those that ops are given from now on."""
        scalars = [formal.name for formal in call.func._schema.arguments if "number" in str(formal.type)]
        if not any(isinstance(call[name], (int, float)) and not isinstance(call[name], bool) for name in scalars):
            return found
        many = found if isinstance(found, list) else [found]
        many = [self.unknown(0) if sets is None else flag(sets, WEIGHTS, True) for sets in many]
        return many if isinstance(found, list) else many[0]

    def unknown_rule(self, call: Call) -> Any:
        outs = tensors(call.out)
        taken = {self.memory.key(item.value) for item in call.inputs}
        if outs and all(self.memory.key(out) in taken for out in outs) and not call.func._schema.is_mutable:
            # A view that has no rule: its elements are found through the storage.
            return lambda call: [self.memory.read(out) for out in outs]
        if any(heard(item.sets) for item in call.inputs):
            place = self.place(call.name if call.func.namespace == "aten" else str(call.func))
            self.unknown_ops[place] = self.unknown_ops.get(place, 0) + 1
        return self.all_of

    def store(self, name: str, out: Any, taken: dict[int, Heard], found: list[Tensor | None] | None) -> None:
        for i, tensor in enumerate(tensors(out)):
            sets = None if found is None else found[i]
            if sets is not None:
                sets = align(sets, tensor.dim())
            if tensor.layout is not torch.strided:
                continue
            if self.memory.key(tensor) in taken:
                if sets is not None or found is not None:
                    self.memory.view(tensor, sets)
            else:
                self.memory.new(tensor, sets)
            if sets is not None and (relation := by_time(tensor, sets, batch=self.batch, time=self.time)) is not None:
                self.steps.append(Step(self.place(name), relation))

    def write(
        self, call: Call, targets: list[Heard], args: Any, kwargs: Any, written: list[str], found: list[Tensor | None]
    ) -> None:
        """In-place: the outputs are the arguments that were written."""
        real = []
        for formal, value in zip(call.func._schema.arguments, args, strict=False):
            if formal.name in written:
                real += tensors(value)
        for name, value in kwargs.items():
            if name in written:
                real += tensors(value)
        returns = call.func._schema.returns
        returned = bool(returns) and all(r.alias_info is not None and r.alias_info.is_write for r in returns)
        joint = None if returned and len(found) == len(real) else self.all_of_sets(found, call)
        for i, tensor in enumerate(real):
            sets = joint if joint is not None else found[i]
            sets = None if sets is None else align(sets, tensor.dim())
            if tensor.layout is torch.strided:
                self.memory.write(tensor, sets)

    def all_of_sets(self, found: list[Tensor | None], call: Call) -> Tensor:
        union = self.unknown(0)
        for sets in [*found, *(item.sets for item in call.inputs)]:
            if sets is not None:
                union = union | everything(sets)
        return union

    def relaid(self, name: str, args: Any) -> None:
        """In-place changes of shape move nothing. A resize may bring in memory that nobody wrote."""
        if name.startswith("resize"):
            for tensor in tensors(args[:1]):
                union = everything(self.memory.read(tensor))
                sets = self.unknown(0) if union is None else union | self.unknown(0)
                self.memory.new(tensor, sets.view(*[1] * tensor.dim(), -1))

    def opaque(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Not an op on plain tensors: a higher-order operator, a sparse tensor. Nothing is known about it."""
        inputs = [t for t in tensors((args, kwargs)) if t.layout is torch.strided]
        out = func(*args, **kwargs)
        union = self.unknown(0)
        for tensor in inputs:
            sets = everything(self.memory.read(tensor))
            union = union if sets is None else union | sets
        union[LOW] = False
        if heard(union) or len(inputs) < len(tensors((args, kwargs))):
            # It may write what it was given, and a sparse tensor has no sets.
            self.escaped(str(func))
        taken = {self.memory.key(tensor) for tensor in inputs}
        for tensor in tensors(out):
            if tensor.layout is torch.strided and self.memory.key(tensor) not in taken:
                self.memory.new(tensor, union.view(*[1] * tensor.dim(), -1))
        return out


def is_wrapper(tensor: Tensor) -> bool:
    """A tensor subclass with ops of its own. As a parameter it is a weight, whatever it holds."""
    own = getattr(type(tensor), "__torch_dispatch__", None) is not torch._C._disabled_torch_dispatch_impl
    return own and type(tensor) is not Tensor and not isinstance(tensor, torch.nn.Parameter)


def random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def tensors(value: Any) -> list[Tensor]:
    """All tensors in nested outputs; the usual containers are quick, others go by torch's registry."""
    if isinstance(value, Tensor):
        return [value]
    if value is None or isinstance(value, (int, float, str)):
        return []
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    if type(value) is dict:
        return [tensor for item in value.values() for tensor in tensors(item)]
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]
