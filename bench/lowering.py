"""What it costs to turn a mask into ranges, or into FlexAttention's block lists.

Each measurement has a process of its own (`python -m bench.lowering ranges 1000000` prints it as JSON): memory that
one has taken from the system and keeps would hide what the next one takes.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from rearview import Mask, causal, prefix, window

MASK = "(causal() & window(4096)) | prefix(4)"
REPEATS = 5


@dataclass(frozen=True)
class Lowered:
    what: str
    length: int
    seconds: float
    # None where the system does not tell.
    peak_bytes: int | None


WHAT = {"ranges": "rearview ranges", "ours": "rearview BlockMask", "torch": "torch create_block_mask"}


def measure_all() -> list[Lowered]:
    sizes = {"ranges": 1_000_000, "ours": 16_384, "torch": 16_384}
    return [_in_own_process(what, length) for what, length in sizes.items()]


def _in_own_process(what: str, length: int) -> Lowered:
    command = [sys.executable, "-m", "bench.lowering", what, str(length)]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True)
    return Lowered(WHAT[what], length, **json.loads(done.stdout))


def _mask() -> Mask:
    return (causal() & window(4096)) | prefix(4)


def _rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((k <= q) & (q - k < 4096)) | (k < 4)


def _ranges(length: int) -> object:
    return _mask().spans(length)


def _ours(length: int) -> object:
    from rearview.masks.exchange import to_block_mask

    return to_block_mask(_mask(), length)


def _torch(length: int) -> object:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(_rule, None, None, length, length, device="cpu")


def measured(lower: Callable[[int], object], length: int) -> dict[str, float | int | None]:
    """Median seconds of a few, and how far above its start the process grew in the first."""
    # What is imported and set up at a first call is not the mask's.
    lower(256)
    _forget_peak()
    before = _status("VmRSS")
    seconds, peak = [], None
    for _ in range(REPEATS):
        start = time.perf_counter()
        lower(length)
        seconds.append(time.perf_counter() - start)
        if peak is None:
            peak = _status("VmHWM")
    grown = None if before is None or peak is None else max(0, peak - before)
    return {"seconds": statistics.median(seconds), "peak_bytes": grown}


def _forget_peak() -> None:
    # Linux: 5 sets the peak back to what is in use now.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> int | None:
    """A line of /proc/self/status in bytes, where there is one."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


if __name__ == "__main__":
    how = {"ranges": _ranges, "ours": _ours, "torch": _torch}[sys.argv[1]]
    print(json.dumps(measured(how, int(sys.argv[2]))))
