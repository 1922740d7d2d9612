"""Settings of every test: uninitialised memory is NaN, the seed is fixed, and Ctrl-C can be sent."""

import signal
import threading
import warnings

import pytest
import torch
from torch.utils import deterministic

# A shell starts background jobs with SIGINT ignored, and children inherit that; some tests send SIGINT to a child.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def gpu_is_awake():
    if torch.cuda.is_available():
        # The first product in the backward thread warns about a missing context.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = torch.ones(1, 1, device="cuda", requires_grad=True)
            one.mm(one).sum().backward()


@pytest.fixture(autouse=True)
def poison():
    """`torch.empty` returns NaN (for integers the largest value), so that reads of unwritten memory are detected."""
    # Without a GPU, torch.manual_seed formats the stack of every call, for a GPU that may be found later.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)
    deterministic.fill_uninitialized_memory = True  # pyright: ignore[reportAttributeAccessIssue]
    torch.use_deterministic_algorithms(torch.get_default_device().type == "cpu" and not torch.cuda.is_available())
    yield
    torch.use_deterministic_algorithms(False)
