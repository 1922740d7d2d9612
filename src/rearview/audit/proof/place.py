"""Where in the program an op stands: the module that is running, and the line of the user's own source.

>>> import torch
>>> class Talks(torch.nn.Module):
...     def forward(self, x):
...         print(places.module())
>>> places = Places()
>>> with places:
...     torch.nn.Sequential(torch.nn.ReLU(), Talks())(torch.rand(2))
1 (Talks)
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from rearview.audit.source import shown

OURS = str(Path(__file__).parent)
TORCH = str(Path(torch.__file__).parent)


def user_line() -> str:
    """`path/to/model.py:42`: the innermost line that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((OURS, TORCH, "<frozen")):
            return f"{shown(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


# Functions that read values and change nothing: they warn, or look whether numbers are finite, as a proof assumes.
HARMLESS = {
    ("transformers/modeling_utils.py", "warn_if_padding_and_no_attention_mask"),
    ("rearview/attention/engines/sdpa.py", "_stays_in_range"),
    ("rearview/attention/engines/sdpa.py", "_all_finite"),
}


def is_harmless() -> bool:
    """Is the innermost line of the user's in a function that is known to look and do nothing?"""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((OURS, TORCH, "<")):
            return any(name.endswith(file) and frame.f_code.co_name == function for file, function in HARMLESS)
        frame = frame.f_back
    return False


class Places:
    """Knows the modules that are being called, by hooks on all modules while it is entered."""

    def __init__(self) -> None:
        self.stack: list[nn.Module] = []
        self.names: dict[int, str] = {}
        self.roots: list[nn.Module] = []
        self.handles: list[Any] = []

    def __enter__(self) -> Self:
        def enter(module: nn.Module, args: Any) -> None:
            if id(module) not in self.names:
                self.roots.append(module)
                for name, child in module.named_modules():
                    self.names.setdefault(id(child), name)
            self.stack.append(module)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            # A call that raised has left its module on the stack.
            while self.stack and self.stack.pop() is not module:
                pass

        self.handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        return self

    def __exit__(self, *failure: object) -> None:
        for handle in self.handles:
            handle.remove()
        self.stack.clear()

    def module(self) -> str:
        """`layers.0.attention (Attention)`, or nothing outside of all modules."""
        if not self.stack:
            return ""
        module = self.stack[-1]
        name = self.names.get(id(module), "")
        return f"{name} ({type(module).__name__})" if name else type(module).__name__

    def buffers(self) -> dict[int, str]:
        """Names of buffers by the storage that they live in."""
        return {
            buffer.untyped_storage()._cdata: name
            for root in self.roots
            for name, buffer in root.named_buffers()
            if buffer.layout is torch.strided
        }
