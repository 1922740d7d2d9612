"""The labels of positions: one list for one sequence, two for an encoder and a decoder.

>>> Labels(["To", "be"], None).own(4)
['To', 'be', '', '']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rearview.errors import BadArgument

if TYPE_CHECKING:
    from rearview.observation.result.layer import Layer
    from rearview.observation.result.observation import Observation


@dataclass(frozen=True)
class Labels:
    """`labels` of the sequence, `source_labels` of an encoder's input; positions without a label have an empty one."""

    labels: Sequence[str] | None
    source_labels: Sequence[str] | None

    def __post_init__(self) -> None:
        for name, given in (("labels", self.labels), ("source_labels", self.source_labels)):
            if given is None:
                continue
            if isinstance(given, str) or not all(isinstance(label, str) for label in given):
                got = repr(given) if isinstance(given, str) else "other values"
                raise BadArgument(name, expected="a list of strings, one per position", got=got)
            object.__setattr__(self, name, tuple(given))

    def own(self, length: int) -> list[str] | None:
        """The labels of the sequence, filled up to its length."""
        return _filled(self.labels, length)

    def queries_of(self, seen: Observation, layer: Layer) -> list[str] | None:
        """The labels of the queries of a layer."""
        is_source = layer.kind == "encoder" and _has_decoder(seen)
        return _filled(self.source_labels if is_source else self.labels, layer.queries)

    def keys_of(self, seen: Observation, layer: Layer) -> list[str] | None:
        """The labels of the keys of a layer."""
        is_source = layer.kind == "cross" or (layer.kind == "encoder" and _has_decoder(seen))
        return _filled(self.source_labels if is_source else self.labels, layer.keys)

    def check(self, seen: Observation) -> None:
        """Refuse more labels than positions: they belong to another run."""
        if not seen.layers:
            return
        source = [layer.keys for layer in seen.layers if layer.kind == "cross"]
        source += [layer.keys for layer in seen.layers if layer.kind == "encoder" and _has_decoder(seen)]
        for name, given, length in (
            ("labels", self.labels, seen.length),
            ("source_labels", self.source_labels, max(source, default=0)),
        ):
            if given is not None and len(given) > length:
                raise BadArgument(name, expected=f"at most one for each of {length} positions", got=len(given))


def _has_decoder(seen: Observation) -> bool:
    return any(layer.kind != "encoder" for layer in seen.layers)


def _filled(labels: Sequence[str] | None, length: int) -> list[str] | None:
    return None if labels is None else [*labels[:length], *[""] * (length - len(labels))]
