"""Shrink a configuration in width and depth, to one layer of each kind, and in nothing else.

>>> config = {"hidden_size": 4096, "num_hidden_layers": 4, "layer_types": ["sliding", "sliding", "sliding", "full"],
...           "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 512}
>>> small, changes = shrink(config)
>>> small["hidden_size"], small["num_hidden_layers"], small["layer_types"], small["sliding_window"]
(64, 2, ['sliding', 'full'], 512)
>>> changes[:2]
['num_key_value_heads 8 -> 2', 'hidden_size 4096 -> 64']

Windows, chunks, prefixes, rotary settings and all other settings stay: another value could select another mask, and
hide a fault.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from rearview.auditing.loading.small_sizes import (
    COUNTS,
    DEPTHS,
    HEADS,
    KEY_HEADS,
    LAYERS,
    QUERY_HEADS,
    STATE_SPACES,
    VOCAB,
    WIDTHS,
)


def shrink(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The small configuration, and the changes in words."""
    changes: list[str] = []
    return _small(config, "", changes), changes


def _small(config: Mapping[str, Any], path: str, changes: list[str]) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for name, value in config.items():
        inner = isinstance(value, Mapping) and (name.endswith("_config") or name == "decoder" or name == "encoder")
        small[name] = _small(value, f"{path}{name}.", changes) if inner else copy.deepcopy(value)

    def put(name: str, value: Any) -> None:
        if small[name] != value:
            told = f"{small[name]} -> {value}" if isinstance(value, int) else f"kept at {len(value)} layers"
            changes.append(f"{path}{name} {told}")
            small[name] = value

    wider = _quotient(small.get("attention_hidden_size"), small.get("hidden_size"))
    rotary_heads = small.get("head_dim") == small.get("qk_rope_head_dim")
    _keep_shares(small, put)
    for name, width in WIDTHS.items():
        if _is_number(small.get(name)) and small[name] > width:
            put(name, width)
        elif isinstance(small.get(name), (list, tuple)) and small[name]:
            small[name] = [min(value, width) for value in small[name]]
    if _is_number(small.get("head_dim")) and rotary_heads:
        put("head_dim", small["qk_rope_head_dim"])
    if wider:
        put("attention_hidden_size", wider * small["hidden_size"])
        if _is_number(small.get("attention_head_dim")):
            put("attention_head_dim", wider * small["hidden_size"] // small["num_attention_heads"])
    _state_space(small, put)
    _depth(small, put)
    for name, value in small.items():
        if name.endswith(("_token_id", "_token_index", "_token")) and _is_number(value) and value >= VOCAB:
            small[name] = VOCAB - 1 - len(name) % 8
        elif name.endswith("_token_id") and isinstance(value, list):
            small[name] = [min(token, VOCAB - 1) for token in value]
    return small


def _keep_shares(small: dict[str, Any], put: Callable[[str, Any], None]) -> None:
    heads = next((small[name] for name in QUERY_HEADS if _is_number(small.get(name))), 0)
    for name in KEY_HEADS:
        if _is_number(small.get(name)) and heads > HEADS:
            put(name, HEADS if small[name] >= heads else 1 if small[name] == 1 else HEADS // 2)


def _state_space(small: dict[str, Any], put: Callable[[str, Any], None]) -> None:
    """Set the number of heads of a state space, which divide its expanded width among them."""
    for expand, heads, dim in STATE_SPACES:
        if all(_is_number(small.get(name)) for name in (expand, heads, dim, "hidden_size")):
            put(heads, small[expand] * small["hidden_size"] // small[dim])


def _depth(small: dict[str, Any], put: Callable[[str, Any], None]) -> None:
    depth = next((small[name] for name in DEPTHS if _is_number(small.get(name))), 0)
    lists = {
        name: value
        for name, value in small.items()
        if isinstance(value, (list, tuple)) and len(value) == depth > 1 and not _numbers_layers(name, value)
    }
    kept = kept_layers(lists, depth)
    for name, value in lists.items():
        put(name, [value[layer] for layer in kept])
    if isinstance(of_layer := small.get("per_layer_config"), Mapping):
        small["per_layer_config"] = {
            str(kept.index(int(layer))): _small(value, "", [])
            for layer, value in of_layer.items()
            if int(layer) in kept
        }
    for name in DEPTHS:
        if _is_number(small.get(name)):
            put(name, min(small[name], max(LAYERS, len(kept))))
    for name, value in COUNTS.items():
        if _is_number(small.get(name)) and small[name] > value:
            put(name, value)
    for name, value in small.items():
        if isinstance(value, (list, tuple)) and name not in lists and _numbers_layers(name, value):
            put(name, [kept.index(layer) for layer in value if layer in kept])


def _numbers_layers(name: str, value: Any) -> bool:
    """Whether the values are numbers of layers."""
    ending = name.endswith(("_layers", "_layer_ids", "_idxs", "_layer_indices", "_layers_indices", "_indexes"))
    return ending and bool(value) and all(map(_is_number, value)) and len(set(value)) == len(value)


def kept_layers(lists: Mapping[str, Any], depth: int) -> list[int]:
    """The first layer of each kind, and at least two layers.

    >>> kept_layers({"layer_types": ["a", "a", "b", "b"], "mlp_layer_types": ["x", "y", "y", "y"]}, 4)
    [0, 1, 2]
    """
    named = [value for value in lists.values() if all(isinstance(part, (str, int)) for part in value)]
    kinds: dict[tuple[Any, ...], int] = {}
    for layer in range(depth):
        kinds.setdefault(tuple(value[layer] for value in named), layer)
    kept = sorted(kinds.values())
    return sorted({*kept, *range(min(depth, LAYERS))}) if len(kept) < LAYERS else kept


def _quotient(one: Any, other: Any) -> int:
    """The integer quotient; 0 where they are not numbers."""
    return one // other if _is_number(one) and _is_number(other) and other else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
