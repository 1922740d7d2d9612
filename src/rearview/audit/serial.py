"""A Report as JSON and back; tensors are lists with their dtype, and nothing is pickled.

>>> import torch
>>> from rearview.audit import Report, audit
>>> report = audit(lambda x: x.flip(1), torch.randn(1, 8))
>>> again = Report.from_json(report.to_json())
>>> again.verdict, again.place == report.place, torch.equal(again.hears.amounts, report.hears.amounts)
(<Verdict.LEAKS: 'LEAKS'>, True, True)
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rearview.audit.report import Check, Cost, Hears, Place, ProofSummary, Report, Verdict
from rearview.audit.witness import Witness
from rearview.errors import BadArgument

FORMAT, VERSION = "rearview-audit", 1


def to_json(report: Report) -> str:
    """See `Report.to_json`."""
    fields = {field.name: _plain(getattr(report, field.name)) for field in dataclasses.fields(report)}
    fields["witnesses"] = [_witness(witness) for witness in report.witnesses]
    whole = {"format": FORMAT, "version": VERSION, "exit_code": report.exit_code, **fields}
    return json.dumps(whole, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, Verdict):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, Witness)):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return None if isinstance(value, Witness) else value


def _tensor(tensor: Tensor) -> dict[str, Any]:
    values = tensor.detach().cpu()
    flat = values.flatten().double().tolist() if values.is_floating_point() else values.flatten().tolist()
    if not values.is_complex():
        flat = [str(x) if isinstance(x, float) and not math.isfinite(x) else x for x in flat]
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "values": flat}


def _witness(witness: Witness) -> dict[str, Any]:
    sides = {side: {n: _tensor(t) for n, t in getattr(witness, side).items()} for side in ("clean", "other")}
    return {**_plain(witness.facts()), **sides, "sentence": witness.sentence}


def from_json(text: str) -> Report:
    """See `Report.from_json`."""
    try:
        whole = json.loads(text)
    except (TypeError, ValueError) as error:
        raise BadArgument("JSON", expected="the JSON of a Report", came=str(error)) from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT or whole.get("version") != VERSION:
        came = f"{whole.get('format')!r} {whole.get('version')!r}" if isinstance(whole, dict) else type(whole).__name__
        raise BadArgument("format", expected=f"{FORMAT!r} version {VERSION}", came=came)
    try:
        return _report(whole)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise BadArgument("JSON", expected="the JSON of a Report", came=f"{type(error).__name__}: {error}") from error


def _report(whole: dict[str, Any]) -> Report:
    hears, proof = whole["hears"], whole["proof"]
    return Report(
        verdict=Verdict(whole["verdict"]),
        why=whole["why"],
        contract=whole["contract"],
        subject=whole["subject"],
        sizes=whole["sizes"],
        mode=whole["mode"],
        conditions=tuple(whole["conditions"]),
        checks=tuple(Check(**{**check, "numbers": _numbers(check["numbers"])}) for check in whole["checks"]),
        witnesses=tuple(_read_witness(witness) for witness in whole["witnesses"]),
        places=tuple(Place(**{**place, "also": tuple(place["also"])}) for place in whole["places"]),
        hears=None if hears is None else _hears(hears),
        proof=None if proof is None else ProofSummary(**_tupled(proof)),
        modules=tuple((path, kind) for path, kind in whole["modules"]),
        cost=Cost(**whole["cost"]),
        seed=whole["seed"],
        versions=whole["versions"],
    )


def _hears(hears: dict[str, Any]) -> Hears:
    tensors = {name: _read_tensor(hears[name]) for name in ("amounts", "forbidden")}
    return Hears(**{**hears, **tensors, "sources": tuple(hears["sources"])})


def _numbers(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: float(value) if value in ("inf", "-inf", "nan") else value for name, value in numbers.items()}


def _tupled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _read_witness(facts: dict[str, Any]) -> Witness:
    clean, other = ({n: _read_tensor(t) for n, t in facts[side].items()} for side in ("clean", "other"))
    return Witness.of_facts({**facts, "amount": float(facts["amount"])}, clean, other)


def _read_tensor(plain: dict[str, Any]) -> Tensor:
    dtype = getattr(torch, plain["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype {plain['dtype']!r}")
    values = [float(x) if isinstance(x, str) else x for x in plain["values"]]
    return torch.tensor(values, dtype=dtype).reshape(plain["shape"])


def save(report: Report, path: str | os.PathLike[str]) -> None:
    """See `Report.save`."""
    match Path(path).suffix:
        case ".json":
            text = to_json(report)
        case ".txt":
            text = f"{report.show()}\n"
        case ".html":
            from rearview.audit.html import to_html

            text = to_html(report)
        case ending:
            raise BadArgument("path", expected="a name that ends in .html, .json or .txt", came=ending or str(path))
    Path(path).write_text(text, encoding="utf-8")
