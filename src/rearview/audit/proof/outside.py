"""Tensors that were made before the run: which of them are constants, and which are weights whose values may change.

A proof must hold for all weights, so the value of a parameter is never used. A mask in a buffer must be used, or no
mask in a buffer could be trusted; the proof says which buffers it read.

>>> import torch
>>> is_constant(torch.tril(torch.ones(3, 3))), is_constant(torch.nn.Parameter(torch.tril(torch.ones(3, 3))))
(True, False)
>>> is_constant(torch.zeros(3)), is_constant(torch.arange(3)), is_constant(torch.tensor([0.0, float("-inf")]))
(False, True, True)
"""

import torch
from torch import Tensor, nn

from rearview.audit.proof.call import STAND_IN

# Quantised weights live in these.
SMALL_INTEGERS = (torch.int8, torch.uint8)


def is_constant(tensor: Tensor) -> bool:
    """Booleans, positions and lengths are; so are numbers that can only be a mask: 0, 1, -inf, very low."""
    if isinstance(tensor, nn.Parameter) or tensor.requires_grad:
        return False
    if tensor.dtype is torch.bool:
        return True
    if tensor.numel() == 0:
        return True
    if not tensor.is_floating_point() and not tensor.is_complex():
        return tensor.dtype not in SMALL_INTEGERS or bool(((tensor == 0) | (tensor == 1)).all())
    if tensor.is_complex():
        return False
    low = tensor <= STAND_IN
    zero, one = tensor == 0, tensor == 1
    if not bool((low | zero | one).all()):
        return False
    # All zeros, or all ones, is what state and weights are initialised to.
    return bool(low.any()) or (bool(zero.any()) and bool(one.any()))
