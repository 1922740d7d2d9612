"""Convolutions by Fourier transform: what a spectrum is the transform of, until it is transformed back.

Every number of a spectrum hears the whole axis. But the product of two spectra is the spectrum of a convolution, and
where both signals are padded with zeros its elements hear few positions. A `Spectrum` keeps the sets of the signal
behind a tensor of frequencies. Products, sums and scaling give the spectrum of another signal, the inverse transform
gives its sets back, and any other op falls back to its own rule, which hears everything.

This is exact up to rounding, which a Fourier transform spreads over all positions: the proof says that it assumes so.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> kernel = torch.nn.Parameter(torch.randn(3, 4))
>>> def convolve(x):
...     spectrum = torch.fft.rfft(x, n=6, dim=1) * torch.fft.rfft(kernel, n=6, dim=0)
...     return torch.fft.irfft(spectrum, n=6, dim=1)[:, :3]
>>> prove(convolve, torch.randn(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 1]]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from rearview.auditing.proof.memory import Memory
from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.sets import WEIGHTS, align, flag, forget, join, regroup, unmark

ASSUMPTION = "what the rounding of a Fourier transform carries from one position to another is no information"
KEY = "spectrum"

TRANSFORMS = ("_fft_r2c", "_fft_c2r", "_fft_c2c")
COPIES = ("clone", "detach", "alias", "_neg_view", "neg")
CONJUGATES = ("_conj", "_conj_physical", "conj_physical")
SCALES = ("mul", "div", "true_divide")


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The transform, up to a factor, of a signal of `length` elements along the axis `dim`."""

    dim: int
    length: int
    onesided: bool
    """Whether only half of the frequencies are there, because the signal is real."""
    sets: Tensor
    """Of the signal, with all its axes; each has its size or 1."""
    live: Tensor
    """Which elements of the signal are not certainly 0: the same axes, without columns."""

    def reversed(self) -> Spectrum:
        """That of the complex conjugate: the signal read backwards, from element 0 on."""
        back = -torch.arange(self.length, device=self.live.device) % self.length
        return replace(self, sets=read(self.sets, self.dim, back), live=read(self.live, self.dim, back))

    def shaped(self, change: Callable[[Tensor], Tensor], dim: int) -> Spectrum:
        """With other axes; `change` takes sets and returns them."""
        return replace(self, dim=dim, sets=change(self.sets), live=change(self.live.unsqueeze(-1)).squeeze(-1))

    def matches(self, other: Spectrum) -> bool:
        return (self.length, self.onesided) == (other.length, other.onesided)


def read(tensor: Tensor, dim: int, index: Tensor) -> Tensor:
    return tensor if tensor.shape[dim] == 1 else tensor.index_select(dim, index)


def spectrum_of(memory: Memory, tensor: Tensor) -> Spectrum | None:
    """What is known of a tensor; a lazy conjugate shares the memory of its original."""
    found = memory.routes(tensor).get(KEY) if tensor.is_complex() else None
    return found.reversed() if found is not None and tensor.is_conj() else found


def keep(memory: Memory, tensor: Tensor, spectrum: Spectrum) -> None:
    memory.routes(tensor)[KEY] = spectrum.reversed() if tensor.is_conj() else spectrum


def follow(call: OpCall) -> Spectrum | Tensor | None:
    """The spectrum of the output, or the sets of a signal that was transformed back; None where neither is known."""
    out = call.out
    if not isinstance(out, Tensor) or not (out.is_complex() or call.name == "_fft_c2r"):
        return None
    if not call.state.numbers_are_constants or any(item.tag is not None or item.selected for item in call.inputs):
        return None
    known = [(item, spectrum_of(call.state.memory, item.value)) for item in call.inputs]
    spectra = [spectrum for _, spectrum in known if spectrum is not None]
    if call.name in TRANSFORMS:
        return transformed(call, spectra[0] if spectra else None)
    if not spectra:
        return None
    if len(spectra) == 2 and len(known) == 2 and spectra[0].matches(spectra[1]):
        return together(call, spectra, out.dim())
    if len(spectra) > 1:
        return None
    item, spectrum = next(pair for pair in known if pair[1] is not None)
    assert spectrum is not None
    if (call.name in SCALES and item is call.args[0]) or (call.name == "mul" and item is call.args[1]):
        return scaled(call, spectrum)
    if call.name in CONJUGATES:
        return spectrum.reversed()
    return spectrum if call.name in COPIES else viewed(call, item, spectrum)


def transformed(call: OpCall, spectrum: Spectrum | None) -> Spectrum | Tensor | None:
    item = call.args[0]
    dims = call.dims(call["dim"], item.ndim)
    if len(dims) != 1 or item.ndim == 0:
        return None
    dim = dims[0]
    forward = call.name == "_fft_r2c" or (call.name == "_fft_c2c" and call["forward"])
    if forward:
        if spectrum is not None or item.sets is None:
            return None
        shape = [1] * item.ndim
        shape[dim] = item.shape[dim]
        zero = item.equal_to(0)
        live = torch.ones(shape, dtype=torch.bool, device=item.value.device) if zero is None else ~zero
        onesided = call.name == "_fft_r2c" and bool(call["onesided"])
        sets = unmark(align(item.sets, item.ndim))
        sets = sets.expand(*sets.shape[:dim], item.shape[dim], *sets.shape[dim + 1 :])
        return Spectrum(dim, item.shape[dim], onesided, sets, live)
    if spectrum is None or spectrum.dim != dim or spectrum.onesided != (call.name == "_fft_c2r"):
        return None
    if call.out.shape[dim] != spectrum.length:
        return None
    call.state.assume(ASSUMPTION)
    # Rounding leaves no constant, not even where all terms are certainly 0.
    return flag(forget(spectrum.sets, ~spectrum.live), WEIGHTS, True)


def together(call: OpCall, spectra: list[Spectrum], ndim: int) -> Spectrum | None:
    """The sum or the product of two spectra, whose axes broadcast."""
    one, other = (
        spectrum.shaped(lambda sets: align(sets, ndim), spectrum.dim + ndim - (spectrum.live.dim()))
        for spectrum in spectra
    )
    if one.dim != other.dim:
        return None
    if call.name in ("add", "sub"):
        if one.onesided and isinstance(call["alpha"], complex):
            return None
        sets = join(ndim, one.sets, other.sets)
        assert sets is not None
        return replace(one, sets=sets, live=one.live | other.live)
    return convolved(one, other, ndim) if call.name == "mul" else None


def convolved(one: Spectrum, other: Spectrum, ndim: int) -> Spectrum:
    """Element t of the signal is the sum over i of one[i] times other[t - i], around the end."""
    dim, length = one.dim, one.length
    steps = torch.arange(length, device=one.live.device)
    shift = (steps[:, None] - steps) % length
    # [..., i], the convolved axis last
    live_one, live_other = (spectrum.live.movedim(dim, -1).expand_as(_at_length(spectrum)) for spectrum in (one, other))
    # [..., t, i]: which products there are
    pairs = live_other[..., shift] & live_one.unsqueeze(-2)
    back = live_one[..., shift] & live_other.unsqueeze(-2)
    heard = join(ndim, _spread(one, pairs), _spread(other, back))
    assert heard is not None
    return Spectrum(dim, length, one.onesided, heard.movedim(-2, dim), pairs.any(-1).movedim(-1, dim))


def _at_length(spectrum: Spectrum) -> Tensor:
    """The shape of `live` with the convolved axis last, at its full length."""
    live = spectrum.live.movedim(spectrum.dim, -1)
    return live.expand(*live.shape[:-1], spectrum.length)


def _spread(spectrum: Spectrum, pairs: Tensor) -> Tensor:
    """[..., t, columns]: what element t hears through the products [..., t, i] with elements i of this signal."""
    sets = spectrum.sets.movedim(spectrum.dim, -2)
    sets = sets.expand(*sets.shape[:-2], spectrum.length, sets.shape[-1])
    return torch.matmul(pairs.float(), sets.float()) > 0


def scaled(call: OpCall, spectrum: Spectrum) -> Spectrum | None:
    """Times a number, or a tensor that is the same for all frequencies. It must be real where half of them are left."""
    one, factor = call.args[:2]
    if not isinstance(one, Heard) or spectrum_of(call.state.memory, one.value) is None:
        one, factor = factor, one
    ndim = call.out.dim()
    dim = spectrum.dim + ndim - one.ndim
    wide = spectrum.shaped(lambda sets: align(sets, ndim), dim)
    if not isinstance(factor, Heard):
        return None if isinstance(factor, complex) and spectrum.onesided else wide
    at = dim - ndim + factor.ndim
    if (factor.value.is_complex() and spectrum.onesided) or (at >= 0 and factor.shape[at] != 1):
        return None
    sets = join(ndim, wide.sets, None if factor.sets is None else unmark(factor.sets))
    assert sets is not None
    return replace(wide, sets=sets)


def viewed(call: OpCall, item: Heard, spectrum: Spectrum) -> Spectrum | None:
    """The same numbers with other axes, of which one is still that of the frequencies."""
    ndim, dim, out = item.ndim, spectrum.dim, call.out
    if call.name in ("transpose", "permute", "t"):
        order = list(range(ndim))
        if call.name == "permute":
            order = [axis % ndim for axis in call["dims"]]
        elif ndim > 1:
            a, b = (0, 1) if call.name == "t" else (call["dim0"] % ndim, call["dim1"] % ndim)
            order[a], order[b] = order[b], order[a]
        return spectrum.shaped(lambda sets: align(sets, ndim).permute(*order, ndim), order.index(dim))
    if call.name == "expand":
        wider = out.dim() - ndim
        same = out.shape[dim + wider] == item.shape[dim]
        return spectrum.shaped(lambda sets: align(sets, out.dim()), dim + wider) if same else None
    if call.name not in ("unsqueeze", "squeeze", "view", "_unsafe_view", "reshape", "_reshape_alias"):
        return None
    # The axis with the same number of elements before it and after it.
    before, size = prod(item.shape[:dim]), item.shape[dim]
    there = [at for at in range(out.dim()) if out.shape[at] == size and prod(out.shape[:at]) == before]
    if not there or size == 1 or call.func._overloadname == "dtype":
        return None
    old, new = list(item.shape), list(out.shape)
    old[dim], new[there[0]] = spectrum.length, spectrum.length
    return spectrum.shaped(lambda sets: regroup(sets, old, new), there[0])
