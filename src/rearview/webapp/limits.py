"""How much one request to the studio may ask for.

>>> Limits().body
4000000
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What is refused, with an answer that says so, rather than tried.

    Args:
        body: bytes of a request.
        body_seconds: the time in which the body of a request must arrive.
        tokens: tokens of a text.
        new_tokens: tokens that one request may generate.
        queue: jobs that wait for the worker.
        connections: requests that are answered at the same time.
        job_seconds: the time that a job may run.
        runs: observations that are held; the oldest is dropped.
        held: the memory of all observations that are held; the oldest is dropped, but never the latest.
        models: models that are kept in memory; the one that was used the longest ago is dropped.
        kept_bytes: the memory for the queries and keys of one observation.
        cells: cells of a mask that are drawn.
        mask_rows: rows of a mask that is looked at: its length, times the heads and batch items that differ in it.
    """

    body: int = 4_000_000
    body_seconds: float = 10.0
    tokens: int = 131_072
    new_tokens: int = 2_000
    queue: int = 16
    connections: int = 64
    job_seconds: float = 600.0
    runs: int = 8
    held: int = 2 << 30
    models: int = 3
    kept_bytes: int = 1 << 30
    cells: int = 96
    mask_rows: int = 1 << 20
