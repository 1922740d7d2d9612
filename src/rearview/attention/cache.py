"""The keys and values of the past, in memory that is taken once.

>>> import torch
>>> cache = KeyValueCache(batch=1, heads=2, max_len=8, key_dim=4)
>>> keys, values = cache.append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
>>> keys.shape, len(cache)
(torch.Size([1, 2, 3, 4]), 3)
"""

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.frame import whole_number


class KeyValueCache:
    """`append` writes new keys and values behind the old ones and returns views of all so far.

    For inference: what goes into the cache is detached, so no gradient reaches the keys and values in it.
    """

    def __init__(
        self,
        *,
        batch: int,
        heads: int,
        max_len: int,
        key_dim: int,
        value_dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        self.max_len = whole_number(max_len, "max_len", at_least=1)
        self._length = 0
        value_dim = key_dim if value_dim is None else value_dim
        self.keys = torch.empty(batch, heads, self.max_len, key_dim, dtype=dtype, device=device)
        self.values = torch.empty(batch, heads, self.max_len, value_dim, dtype=dtype, device=device)

    def __len__(self) -> int:
        return self._length

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, the new ones last."""
        end = self._length + key.shape[2]
        if end > self.max_len:
            raise BadArgument(
                "cache",
                expected=f"at most {self.max_len} positions",
                came=f"{self._length} held and {key.shape[2]} new",
                advice="Make the cache with a larger max_len, or reset() it.",
            )
        if key.shape[:2] != self.keys.shape[:2] or key.dtype != self.keys.dtype or key.device != self.keys.device:
            raise BadArgument(
                "cache",
                expected=f"keys of batch x heads {list(self.keys.shape[:2])}, {self.keys.dtype} on {self.keys.device}",
                came=f"{list(key.shape[:2])}, {key.dtype} on {key.device}",
                advice="Make the cache with layer.new_cache(batch, max_len) after moving the layer.",
            )
        self.keys[:, :, self._length : end] = key.detach()
        self.values[:, :, self._length : end] = value.detach()
        self._length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reset(self) -> None:
        """Forget everything; the memory stays."""
        self._length = 0
