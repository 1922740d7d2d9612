"""Worked examples, small enough to check by hand.

>>> from rearview import attend
>>> from rearview.examples import FOUR_SPEAKERS
>>> query, key, value = FOUR_SPEAKERS.tensors()
>>> [round(number, 3) for number in attend(query, key, value)[0].tolist()]    # Frank hears only himself
[3.963, 2.121, 1.743]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Example:
    """Queries, keys and values with names for their rows and columns."""

    name: str
    title: str
    labels: tuple[str, ...]
    """Who speaks at each position."""
    reflexives: tuple[str, ...]
    """How each is called when they hear themselves."""
    query: Rows
    key: Rows
    value: Rows
    query_features: tuple[str, ...]
    key_features: tuple[str, ...]
    value_features: tuple[str, ...]

    def __post_init__(self) -> None:
        matrices = {"query": self.query, "key": self.key, "value": self.value}
        features = {"query": self.query_features, "key": self.key_features, "value": self.value_features}
        for name, rows in matrices.items():
            assert len(rows) == len(self.labels) == len(self.reflexives), f"{name}: one row a label"
            assert all(len(row) == len(features[name]) for row in rows), f"{name}: one column a feature"

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each [time, dim]."""
        query, key, value = (torch.tensor(rows, dtype=dtype) for rows in (self.query, self.key, self.value))
        return query, key, value


FOUR_SPEAKERS = Example(
    name="speakers",
    title="Four people recommend a restaurant, one after the other",
    labels=("Frank", "Emma", "Daniel", "Alex"),
    reflexives=("himself", "herself", "himself", "himself"),
    query=((5.319, 1.716), (1.293, 1.210), (0.742, 1.921), (2.589, 1.589)),
    key=((5.271, 1.703), (1.260, 1.338), (0.701, 2.796), (2.565, 1.577)),
    value=((3.963, 2.121, 1.743), (2.308, 1.114, 2.427), (1.626, 0.577, 3.115), (2.290, 0.798, 1.635)),
    query_features=("street-stall", "upscale"),
    key_features=("knows-street-stall", "knows-upscale"),
    value_features=("info-sichuan", "info-budget", "info-upscale"),
)
