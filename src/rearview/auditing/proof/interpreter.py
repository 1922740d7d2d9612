"""Runs a program: every op on its values, then the rule of the op on the sets of what the values have heard.

>>> import torch
>>> x = torch.rand(1, 2, 3)
>>> interpreter = Interpreter(ProofState(x, time_axis=1, batch_axis=0))
>>> with interpreter.running():
...     y = x.sum(dim=1)
>>> interpreter.state.memory.read(y).int().tolist()      # both positions of the item, no weights
[[[1, 1, 1, 0, 0]]]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from rearview.auditing.model.dispatch import OpMode, flex_uncompiled
from rearview.auditing.proof import spectra
from rearview.auditing.proof.faults import RENAMES, may_fail
from rearview.auditing.proof.kernels import definition_of, plain_biases
from rearview.auditing.proof.memory import overlap_partly, overlaps_itself
from rearview.auditing.proof.op_call import Heard, OpCall, tensors
from rearview.auditing.proof.processes import watching_forks
from rearview.auditing.proof.readers import Readers
from rearview.auditing.proof.result import OpRelation, relation_by_time
from rearview.auditing.proof.routes import STARTS, Routed, follow
from rearview.auditing.proof.rules import RULES
from rearview.auditing.proof.rules.factories import filled, uninitialized, unset
from rearview.auditing.proof.rules.pointwise import chance, dropout, pointwise
from rearview.auditing.proof.sealed import SealedSelection, SealedTensor, is_of_layout, unsealed
from rearview.auditing.proof.sets import LOW, WEIGHTS, align, everything, fits, flag, heard
from rearview.auditing.proof.state import ProofState, is_of_numpy, reads_as_constant

# The ops of torch itself, whose schemas say what they write to. Any other op may do anything with what it is given.
TRUSTED = ("aten", "prims")
# Ops that return a number, and read only shapes.
SHAPES = {"is_same_size", "_has_same_storage_numel", "is_set_to"}
# The types of arguments that may be a size.
SIZES = {"int", "number", "List[int]", "Optional[int]", "Optional[List[int]]"}
# Ops that tell 0 from -0 by a finite number.
SIGNS = {"copysign", "signbit", "atan2", "angle", "nextafter"}
# What these rules describe is not constant, even where all inputs are.
NOT_CONSTANT = (uninitialized, unset, chance, dropout, filled)


class Interpreter(OpMode):
    """The dispatch mode that sees every op of the run, and keeps the state up to date."""

    def __init__(self, state: ProofState):
        super().__init__()
        self.state = state
        self.readers = Readers(state, self.step)
        self.is_running = False
        self.ops: list[Any] = []
        """The ops that the program called, without those that they consist of, and without other names for a tensor."""
        self._inside = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self.state.modules)
            stack.enter_context(flex_uncompiled())
            stack.enter_context(plain_biases())
            stack.enter_context(torch.no_grad())
            stack.enter_context(watching_forks(lambda: self.state.escaped("a process that is forked")))
            stack.enter_context(self.readers)
            stack.enter_context(self)
            self.is_running = True
            try:
                yield
            finally:
                self.is_running = False
                self.unseal_modules()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_of_layout(func):
            # C++ code asks for the size of a selection.
            if func.overloadpacket is not torch.ops.aten.dim:
                self.readers.has_length = True
                self.reads_length(str(func))
            return func(*unsealed(args), **unsealed(kwargs or {}))
        if not self._inside and func not in RENAMES:
            self.ops.append(func)
        with torch._C.DisableTorchFunction():
            return self.step(func, args, kwargs or {})

    @contextmanager
    def by_parts(self) -> Iterator[None]:
        """See the ops that an op consists of."""
        self._inside += 1
        try:
            with self:
                yield
        finally:
            self._inside -= 1

    def step(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        definition = definition_of(func)
        if definition is not None:
            if definition.assumption:
                self.state.assume(definition.assumption)
            with self.by_parts():
                return definition.run(*args, **kwargs)
        schema = getattr(func, "_schema", None)
        if schema is None:
            return self.seal(self.opaque(func, unsealed(args), unsealed(kwargs)), (args, kwargs))
        name = schema.name.split("::")[1]
        written = [formal.name for formal in schema.arguments if formal.alias_info and formal.alias_info.is_write]
        if written and name.endswith("_") and not name.endswith("__"):
            name = name[:-1]
        rule = RULES.get(name) if func.namespace == "aten" else None
        if rule is None and torch.Tag.pointwise in func.tags and func.namespace == "aten":
            rule = pointwise
        if rule is None and not written and func._can_decompose():
            # It consists of other ops, which are seen one by one.
            with self.by_parts():
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        given, args, kwargs = (args, kwargs), unsealed(args), unsealed(kwargs)
        if func.namespace not in TRUSTED or any(t.layout is not torch.strided for t in tensors((args, kwargs))):
            return self.seal(self.opaque(func, args, kwargs), given)
        return self.seal(self.known(func, name, rule, written, args, kwargs), given)

    def known(
        self, func: Any, name: str, rule: Any, written: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an op of torch on values, and its rule on their sets."""
        if name == "lift_fresh" and not self.state.memory.known(args[0]):
            self.literal(args[0])
        taken: dict[int, Heard] = {}
        known_args = self.wrap(args, taken)
        known_kwargs = {key: self.wrap(value, taken) for key, value in kwargs.items()}
        call = OpCall(self.state, func, name, known_args, known_kwargs, None)
        if self.readers.has_length and takes_size(call) and not any(item.selected for item in call.inputs):
            # A function of torch knows the length of a selection, and makes something else as long: expand_as.
            self.state.escaped(name)
        targets = self.targets(call, written)
        plain = all(item.sets is None for item in taken.values())
        if written and not plain:
            # The rule sees the values from before the write.
            touched = {self.state.memory.key(target.value) for target in targets}
            for item in call.inputs if torch.Tag.inplace_view not in func.tags else []:
                if self.state.memory.key(item.value) in touched:
                    item.value = item.value.clone()
        if sees_sign_of_zero(call):
            self.state.escaped(f"{name}, which sees the sign of a zero")
        if rule is None or may_fail(call):
            self.state.fallible(call, len(self.ops) - 1)
        try:
            call.out = out = func(*args, **kwargs)
        except Exception:
            if any(heard(item.sets) for item in call.inputs):
                # The program may catch it, and go another way.
                self.state.escaped(name)
            raise
        if random(func) and call["dropout_p"] != 0:
            self.state.assume("random numbers are the same in every run, draw by draw")
        if torch.Tag.inplace_view in func.tags:
            self.resized(name, args)
            return out
        if plain and self.state.numbers_are_constants and self.is_function(func, rule):
            self.store(name, out, taken, None)
            return out
        before = dict(self.state.escapes), dict(self.state.unknown_ops)
        found = self.apply(rule, call)
        routed = follow(self.state, call, rule) if self.may_route(call) else None
        if routed is not None:
            # The route knows more precisely what looked like an escape, or like hearing everything.
            self.state.escapes, self.state.unknown_ops = before
            pairs = zip(routed, found, strict=True)
            found = [sets if item is None or isinstance(item, Routed) else item for item, sets in pairs]
        spectrum = None if targets else spectra.follow(call)
        if isinstance(spectrum, Tensor):
            found = [spectrum]
        if targets:
            self.write(call, targets, args, kwargs, written, found)
        self.store(name, out, taken, found)
        if isinstance(spectrum, spectra.Spectrum):
            spectra.keep(self.state.memory, out, spectrum)
        if routed is not None:
            for item, tensor in zip(routed, tensors(out), strict=True):
                if isinstance(item, Routed):
                    self.state.memory.set_tag(tensor, item, selected=not item.route.whole)
        return out

    def literal(self, tensor: Tensor) -> None:
        """torch.tensor(...): numbers in the source of the program. Only the result refers to this memory."""
        if is_of_numpy(tensor):
            return
        constant = self.state.numbers_are_constants and (tensor.numel() == 1 or reads_as_constant(tensor))
        self.state.memory.new(tensor, None if constant else self.state.unknown(tensor.dim()))

    def may_route(self, call: OpCall) -> bool:
        return call.name in STARTS or any(item.tag is not None or item.selected for item in call.inputs)

    def wrap(self, value: Any, taken: dict[int, Heard]) -> Any:
        """Arguments with a Heard in place of each tensor; `taken` maps storages to one of their tensors."""
        if isinstance(value, Tensor):
            return self.take(value, taken)
        if isinstance(value, (list, tuple)):
            return type(value)(self.wrap(item, taken) for item in value)
        return value

    def take(self, tensor: Tensor, taken: dict[int, Heard]) -> Heard:
        memory = self.state.memory
        if is_wrapper(tensor):
            # A subclass may hold other tensors, about which nothing is known.
            self.state.escaped(type(tensor).__name__)
        item = Heard(tensor, memory.read(tensor), memory.tag(tensor), memory.selected(tensor))
        taken[memory.key(tensor)] = item
        return item

    def is_function(self, func: Any, rule: Any) -> bool:
        """Whether constants give constants: not with random numbers, uninitialized memory or foreign code."""
        return rule not in NOT_CONSTANT and func.namespace == "aten" and not random(func)

    def targets(self, call: OpCall, written: list[str]) -> list[Heard]:
        found: list[Heard] = []
        for name in written:
            value = call[name]
            found += [value] if isinstance(value, Heard) else [v for v in value or [] if isinstance(v, Heard)]
        return found

    def apply(self, rule: Any, call: OpCall) -> list[Tensor | None]:
        """The sets of all output tensors, in order."""
        tags = call.func.tags
        dynamic = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
        if rule is None and dynamic and any(heard(item.sets) for item in call.inputs):
            return self.state.escape(call)
        if rule is None and any("Tensor" not in str(returned.type) for returned in call.func._schema.returns):
            if call.name not in SHAPES or any(item.selected for item in call.inputs):
                # It returns a Python number.
                self.state.leaves(call)
            return []
        if rule is None:
            rule = self.unknown_rule(call)
        found = rule(call)
        outs = tensors(call.out)
        if not self.state.numbers_are_constants:
            found = self.with_numbers(call, found)
        if not isinstance(found, list):
            found = [found] * len(outs) if len(outs) == 1 or found is None else [found]
        assert len(found) >= len(outs), f"{call.func}: {len(found)} sets for {len(outs)} outputs"
        if not all(fits(sets, out.shape, self.state.columns) for sets, out in zip(found, outs, strict=False)):
            # The rule does not know this form of the op.
            self.state.without_rule(call.name)
            return self.state.all_of(call)
        if random(call.func) and rule not in NOT_CONSTANT:
            found = [self.state.unknown(0) if sets is None else sets for sets in found]
        return found

    def with_numbers(self, call: OpCall, found: Any) -> Any:
        """After a weight became a Python number, any number that an op is given may depend on it."""
        scalars = [formal.name for formal in call.func._schema.arguments if "number" in str(formal.type)]
        if not any(isinstance(call[name], (int, float)) and not isinstance(call[name], bool) for name in scalars):
            return found
        many = found if isinstance(found, list) else [found]
        many = [self.state.unknown(0) if sets is None else flag(sets, WEIGHTS, True) for sets in many]
        return many if isinstance(found, list) else many[0]

    def unknown_rule(self, call: OpCall) -> Any:
        outs = tensors(call.out)
        taken = {self.state.memory.key(item.value) for item in call.inputs}
        if (
            outs
            and all(dense(out) and self.state.memory.key(out) in taken for out in outs)
            and not call.func._schema.is_mutable
        ):
            # A view without a rule: its sets are read from the storage.
            return lambda call: [self.state.memory.read(out) for out in outs]
        if any(heard(item.sets) for item in call.inputs):
            self.state.without_rule(call.name)
        return self.state.all_of

    def store(self, name: str, out: Any, taken: dict[int, Heard], found: list[Tensor | None] | None) -> None:
        for i, tensor in enumerate(tensors(out)):
            sets = None if found is None else found[i]
            if sets is not None:
                sets = align(sets, tensor.dim())
            if tensor.layout is not torch.strided:
                continue
            if self.state.memory.key(tensor) in taken:
                if sets is not None or found is not None:
                    self.state.memory.view(tensor, sets)
            else:
                self.state.memory.new(tensor, sets)
                if is_of_numpy(tensor):
                    # As torch.from_file: the program can reach the same memory by another name.
                    self.state.memory.record(tensor).exposed = True
            if (
                sets is not None
                and self.state.origins
                and (relation := relation_by_time(tensor, sets, batch=self.state.batch, time=self.state.time))
                is not None
            ):
                self.state.relations.append(OpRelation(self.state.place(name), relation))

    def write(
        self, call: OpCall, targets: list[Heard], args: Any, kwargs: Any, written: list[str], found: list[Tensor | None]
    ) -> None:
        """Store the sets of arguments that were written in place."""
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
        if any(map(overlaps_itself, real)) or self.reads_what_it_writes(real, tensors((args, kwargs))):
            joint = self.all_of_sets(found, call)
            found[:] = [joint] * len(found)
        for i, tensor in enumerate(real):
            sets = joint if joint is not None else found[i]
            sets = None if sets is None else align(sets, tensor.dim())
            if tensor.layout is torch.strided:
                self.state.write(tensor, sets)

    def reads_what_it_writes(self, written: list[Tensor], given: list[Tensor]) -> bool:
        """Whether an op may read elements after it has written to them, as in x[1:] = x[:-1]."""
        key = self.state.memory.key
        pairs = ((target, other) for target in written for other in given if other is not target)
        return any(
            dense(other) and key(target) == key(other) and overlap_partly(target, other) for target, other in pairs
        )

    def all_of_sets(self, found: list[Tensor | None], call: OpCall) -> Tensor:
        union = self.state.unknown(0)
        for sets in [*found, *(item.sets for item in call.inputs)]:
            if sets is not None:
                union = union | everything(sets)
        return union

    def resized(self, name: str, args: Any) -> None:
        """In-place changes of shape move nothing. A resize may add uninitialized memory."""
        if name.startswith("resize"):
            for tensor in tensors(args[:1]):
                selected = any(self.state.memory.selected(other) for other in tensors(args))
                self.state.memory.new(tensor, self.state.uninitialized(tensor.dim()))
                self.state.memory.record(tensor).selected = selected

    def opaque(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run something that is not an op of torch on dense tensors. It may write to what it is given, or keep it."""
        inputs = [t for t in tensors((args, kwargs)) if t.layout is torch.strided]
        union = self.state.unknown(0)
        for tensor in inputs:
            sets = everything(self.state.memory.read(tensor))
            union = union if sets is None else union | sets
        union[LOW] = False
        foreign = getattr(func, "namespace", "") not in TRUSTED
        if heard(union) or len(inputs) < len(tensors((args, kwargs))):
            # It may put what it heard anywhere, and a sparse tensor has no sets.
            self.state.escaped(str(func))
            if foreign:
                self.state.without_rule(str(func))
        taken = {self.state.memory.key(tensor) for tensor in inputs}
        for tensor in inputs if foreign else ():
            self.state.memory.taint(tensor, union)
        out = func(*args, **kwargs)
        for tensor in tensors(out):
            if tensor.layout is torch.strided and self.state.memory.key(tensor) not in taken:
                self.state.memory.new(tensor, union.view(*[1] * tensor.dim(), -1))
        return out

    def seal(self, out: Any, given: Any) -> Any:
        """What the program gets: sealed tensors, except for views of memory from outside of the run."""
        sealed = {id(tensor.value): tensor for tensor in tensors(given) if isinstance(tensor, SealedTensor)}
        for tensor in sealed.values():
            tensor.fit()

        def each(value: Any) -> Any:
            if isinstance(value, Tensor):
                return sealed[id(value)] if id(value) in sealed else self.sealed(value)
            if isinstance(value, (list, tuple)):
                made = [each(item) for item in value]
                return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
            return value

        return each(out)

    def sealed(self, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or isinstance(tensor, SealedTensor):
            return tensor
        record = self.state.memory.record(tensor)
        if record.exposed:
            return tensor
        return (SealedSelection if record.selected else SealedTensor)(tensor, self)

    def unseal_modules(self) -> None:
        """Give modules the values of the sealed tensors that they have kept."""
        for root in self.state.modules.roots:
            for module in root.modules():
                for kept in (vars(module), module._buffers):
                    for name, tensor in list(kept.items()):
                        if isinstance(tensor, SealedTensor):
                            kept[name] = tensor.value

    def elsewhere(self, func: Any, args: Any, kwargs: Any) -> Any:
        """See `Owner`. After the run a sealed tensor that the program has kept is like any other."""
        if self.is_running:
            self.state.escaped(f"{func}, in another thread or without dispatch modes")
        found = tensors((args, kwargs))
        out = func(*unsealed(args), **unsealed(kwargs))
        values = {id(tensor.value): tensor for tensor in found if isinstance(tensor, SealedTensor)}
        for tensor in values.values():
            tensor.fit()
        return values.get(id(out), out)

    def reads(self, name: str, value: Tensor) -> None:
        """See `Owner`."""
        if self.is_running:
            self.readers.read(name, value)

    def takes_shape(self, value: Tensor) -> None:
        """See `Owner`. The shape of a tensor that is not a SealedSelection is read without being seen."""
        if self.is_running and value.layout is torch.strided and self.state.memory.selected(value):
            self.state.escaped("a selection that is written into another tensor")

    def reads_length(self, name: str) -> None:
        """See `Owner`. What a function of torch does with a length is seen op by op."""
        if self.is_running and not self.readers.depth:
            self.state.escaped(name)


def takes_size(call: OpCall) -> bool:
    """Whether an op is given a number that may be a size."""
    kinds = ((formal.name, str(formal.type)) for formal in call.func._schema.arguments)
    return any(kind in SIZES and "dim" not in name and call[name] is not None for name, kind in kinds)


def sees_sign_of_zero(call: OpCall) -> bool:
    """Whether an op tells 0 from -0, and gets one of a product with 0, which has heard the sign of the other factor."""
    bits = call.name == "view" and call.func._overloadname == "dtype" and not call["dtype"].is_floating_point
    if not call.state.has_silenced or not (bits or call.name in SIGNS):
        return False
    return any(not is_whole(item.value) and item.equal_to(0) is not None for item in call.inputs)


def is_whole(tensor: Tensor) -> bool:
    """Whether it holds integers or booleans."""
    return not tensor.is_floating_point() and not tensor.is_complex()


def dense(tensor: Tensor) -> bool:
    """Whether a tensor has a storage."""
    return tensor.layout is torch.strided


def is_wrapper(tensor: Tensor) -> bool:
    """Whether a tensor subclass has ops of its own. As a parameter it is a weight, whatever it holds."""
    own = getattr(type(tensor), "__torch_dispatch__", None) is not torch._C._disabled_torch_dispatch_impl
    return own and type(tensor) is not Tensor and not isinstance(tensor, torch.nn.Parameter)


def random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags
