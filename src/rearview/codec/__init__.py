"""Dataclasses as plain data in .json and .npz files, and back. Nothing is evaluated and nothing is pickled.

>>> from dataclasses import dataclass
>>> from rearview.codec import Reader, json_text, parse_json, plain
>>> @dataclass
... class Score:
...     name: str
...     loss: float
>>> text = json_text(plain(Score("baseline", float("inf"))))
>>> Reader("score.json").read(Score, parse_json(text, "score.json"))
Score(name='baseline', loss=inf)
>>> Reader("score.json").read(Score, {"name": "baseline", "loss": "low"})
Traceback (most recent call last):
rearview.errors.BadFile: score.json: loss: expected a number, got "low"
"""

from rearview.codec.documents import check_regular, json_text, parse_json, read_archive, read_bytes, write_archive
from rearview.codec.values import Reader, brief, plain

__all__ = [
    "Reader",
    "brief",
    "check_regular",
    "json_text",
    "parse_json",
    "plain",
    "read_archive",
    "read_bytes",
    "write_archive",
]
