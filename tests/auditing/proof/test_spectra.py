"""Convolutions by Fourier transform against brute force: exact where zeros keep the ends apart, never too narrow."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview import audit
from rearview.auditing import Verdict
from rearview.auditing.proof import prove
from tests.auditing.proof.search import CAUSAL, heard_by

B, T, SIZE = 2, 6, 3
FFT = torch.fft


def weight(*shape: int, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3)))


KERNEL, SHORT, SCALE = weight(T, SIZE), weight(3, SIZE), weight(SIZE)
TURN = weight(SIZE, dtype=torch.complex128)
FILTER = weight(T + 1, SIZE, dtype=torch.complex128)


def spectrum(x: Tensor, n: int = 2 * T) -> Tensor:
    return FFT.rfft(x, n=n, dim=-2)


def signal(s: Tensor, n: int = 2 * T) -> Tensor:
    return FFT.irfft(s, n=n, dim=-2)[:, :T]


def hyena(x: Tensor) -> Tensor:
    """With time last, a normalized kernel, and another axis."""
    n = 2 * T
    kernel = (FFT.rfft(KERNEL.t(), n=n) / n).unsqueeze(0)
    return FFT.irfft(FFT.rfft(x.transpose(1, 2), n=n) * kernel, n=n, norm="forward")[..., :T].transpose(1, 2)


def both_ways(x: Tensor) -> Tensor:
    kernel = spectrum(KERNEL) + spectrum(SHORT).conj()
    return signal(spectrum(x) * kernel)


def in_heads(x: Tensor) -> Tensor:
    s = spectrum(F.pad(x, (0, 1))).view(B, T + 1, 2, 2).permute(0, 2, 1, 3)
    kernel = spectrum(F.pad(KERNEL, (0, 1))).view(T + 1, 2, 2).transpose(0, 1)
    mixed = (s * kernel[None].expand(B, -1, -1, -1)).transpose(1, 2).reshape(B, T + 1, 4)
    return signal(mixed)


def complex_transform(x: Tensor) -> Tensor:
    n = 16
    return FFT.ifft(FFT.fft(x, n=n, dim=1) * FFT.fft(KERNEL, n=n, dim=0) * TURN, dim=1).real[:, :T]


EXACT = {
    "padded": lambda x: signal(spectrum(x) * spectrum(KERNEL)),
    "as Hyena does it": hyena,
    "both ways": both_ways,
    "in heads": in_heads,
    "complex": complex_transform,
    "around the end": lambda x: signal(spectrum(x, T) * spectrum(SHORT, T), T),
    "a kernel of three": lambda x: signal(spectrum(x, T + 2) * spectrum(SHORT, T + 2), T + 2),
    "one too short": lambda x: signal(spectrum(x, T + 1) * spectrum(SHORT, T + 1), T + 1),
    "correlation": lambda x: signal(spectrum(x) * spectrum(KERNEL).conj()),
    "physical conjugate": lambda x: signal(spectrum(x) * spectrum(SHORT).conj_physical()),
    "a conjugate of a conjugate": lambda x: signal(spectrum(x).conj().clone().conj() * spectrum(SHORT)),
    "a sum, scaled": lambda x: signal((2 * spectrum(x) - spectrum(x) * spectrum(SHORT) / 3) * SCALE),
    "two kernels": lambda x: signal(spectrum(x, 16) * spectrum(SHORT, 16) * spectrum(SHORT, 16), 16),
    "squared": lambda x: signal(spectrum(x) * spectrum(x)),
}

WIDER = {
    "a learned filter": lambda x: signal(spectrum(x) * FILTER),
    "half of the frequencies, turned": lambda x: signal(spectrum(x) * spectrum(SHORT) * TURN),
    "half of the frequencies, times i": lambda x: signal(spectrum(x) * spectrum(SHORT) * 1j),
    "plus i times another": lambda x: signal(torch.add(spectrum(x), spectrum(x), alpha=1j)),
    "another length": lambda x: signal(spectrum(x) * spectrum(KERNEL), 2 * T - 1),
    "an offset": lambda x: signal(spectrum(x) * spectrum(KERNEL) + 1 * spectrum(x).abs()),
    "written to": lambda x: signal((spectrum(x) * spectrum(KERNEL)).mul_(FILTER)),
    "written to as real numbers": lambda x: signal(written(spectrum(x) * spectrum(KERNEL))),
    "some frequencies": lambda x: signal(torch.cat([spectrum(x)[:, :3], spectrum(x)[:, 3:] * 0.5], 1)),
    "the magnitude": lambda x: signal(spectrum(x).abs() + 0j),
    "a spectrum as a divisor": lambda x: signal(spectrum(KERNEL) / (spectrum(x) + 40)),
    "over the features": lambda x: FFT.irfft(FFT.rfft(x, n=6, dim=2) * FFT.rfft(KERNEL, n=6, dim=1), n=6, dim=2),
}


def written(s: Tensor) -> Tensor:
    torch.view_as_real(s)[:, 0] = 0.0
    return s


def example() -> Tensor:
    return torch.randn(B, T, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def brute_force(run) -> Tensor:
    with torch.no_grad():
        return heard_by(lambda x, _: run(x), example(), seed=0, draws=3)


@pytest.mark.parametrize("run", EXACT.values(), ids=EXACT)
def test_what_a_convolution_hears(run):
    proof = prove(run, example())
    assert not proof.value_escapes
    assert torch.equal(proof.hears, brute_force(run))
    assert "what the rounding of a Fourier transform carries from one position to another" in str(proof.assumptions)


@pytest.mark.parametrize("run", WIDER.values(), ids=WIDER)
def test_what_is_no_convolution_hears_at_least_what_it_does(run):
    found = brute_force(run)
    assert found.any()
    assert not (found & ~prove(run, example()).hears).any()


class LongConvolution(nn.Module):
    """A kernel as long as the sequence, by Fourier transform; `factor` 2 keeps the ends apart."""

    def __init__(self, factor: int):
        super().__init__()
        torch.manual_seed(0)
        self.factor, self.kernel = factor, nn.Parameter(torch.randn(64, SIZE))

    def forward(self, x: Tensor) -> Tensor:
        time = x.shape[1]
        n = self.factor * time
        mixed = FFT.rfft(x, n=n, dim=1) * FFT.rfft(self.kernel[:time], n=n, dim=0)
        return FFT.irfft(mixed, n=n, dim=1)[:, :time]


def test_a_long_convolution_is_proven_and_one_around_the_end_leaks():
    x = torch.randn(2, 12, SIZE)
    proven = audit(LongConvolution(2), x, mode="full")
    assert proven.verdict is Verdict.PROVEN
    assert "rounding of a Fourier transform" in str(proven)
    assert audit(LongConvolution(1), x).verdict is Verdict.LEAKS


def test_the_order_of_time_is_causal():
    assert torch.equal(prove(hyena, example()).matrix(), CAUSAL[T])
