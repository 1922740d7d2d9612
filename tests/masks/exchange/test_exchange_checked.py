"""What is not a mask is refused by every function that exports one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rearview.errors import BadArgument
from rearview.masks import exchange

EXPORTS: dict[str, Callable[[Any], object]] = {
    "to_sdpa": lambda mask: exchange.to_sdpa(mask, 4),
    "to_mask_mod": lambda mask: exchange.to_mask_mod(mask, 4),
    "to_block_mask": lambda mask: exchange.to_block_mask(mask, 4),
    "to_flash": lambda mask: exchange.to_flash(mask, 4),
    "to_cu_seqlens": lambda mask: exchange.to_cu_seqlens(mask, 4),
    "to_flashmask": lambda mask: exchange.to_flashmask(mask, 4),
    "to_magi": lambda mask: exchange.to_magi(mask, 4),
    "to_huggingface": lambda mask: exchange.to_huggingface(mask, 4, implementation="sdpa"),
    "to_mask_function": lambda mask: exchange.to_mask_function(mask, length=4),
}


def test_every_export_is_here():
    assert set(EXPORTS) == {name for name in exchange.__all__ if name.startswith("to_")} - {"to_additive"}


@pytest.mark.parametrize("name", EXPORTS)
def test_only_masks_are_exported(name: str):
    with pytest.raises(BadArgument, match=r"^mask: expected a mask, such as causal\(\), got int\.$"):
        EXPORTS[name](3)
    with pytest.raises(
        BadArgument, match=r"^mask: .*, got Tensor\. Convert a tensor with dense\(tensor\) or from_bool"
    ):
        EXPORTS[name](torch.ones(4, 4, dtype=torch.bool))
