"""Loops that go on for long: generation, and requests to the studio. The memory of the process stays flat.

The resident set is read after every trial. It may grow while caches fill, so the first half is not judged; the end of
the second half is compared with its beginning.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.soak.experiment import Experiment, Session, Tally
from rearview.generation import complete
from rearview.models import GPT, GPTConfig
from rearview.text import ByteTokenizer
from rearview.text_model import TextModel
from rearview.webapp import Studio
from rearview.webapp.limits import Limits

# Pages and pools of memory come and go in steps of some megabytes.
MOST_GROWTH = 24 << 20
TEXT = "I love sushi. Emma loves street food. "
MASKS = ("", "causal()", "causal() & window(4)", "full()", "causal(", "documents([0, 1])", "prefix(3) | causal()")
BUSY = 503


def resident() -> int:
    """The bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth_of(samples: list[int]) -> int:
    """How much the second half grew, in bytes: the median of its last third less that of its first.

    >>> growth_of([0, 90, 100, 100, 100, 100, 100, 100, 101, 100, 101, 101])
    1
    """
    later = samples[len(samples) // 2 :]
    third = max(1, len(later) // 3)
    return int(statistics.median(later[-third:]) - statistics.median(later[:third]))


def looped(tally: Tally, session: Session, trial: Callable[[], None]) -> None:
    samples: list[int] = []
    try:
        while session.goes_on(tally):
            trial()
            samples.append(resident())
    finally:
        if samples:
            growth = growth_of(samples)
            tally.found["MiB in use at the end"] = samples[-1] >> 20
            tally.found["KiB that the second half grew"] = max(0, growth >> 10)
            if growth > MOST_GROWTH:
                tally.fail(f"the memory grew by {growth >> 20} MiB in {len(samples) // 2:,} trials")


def small_model(context: int) -> TextModel:
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=257, context=context, layers=2, heads=2, width=16, positions="rotary")
    return TextModel("little", GPT(config).eval(), ByteTokenizer())


def generate_for_long(tally: Tally, session: Session) -> None:
    draw, little = session.draw, small_model(64)
    assert isinstance(little.model, GPT)
    model: GPT = little.model

    def trial() -> None:
        prompts = [TEXT[: draw.randint(1, len(TEXT))] for _ in range(draw.randint(1, 3))]
        found = complete(
            model,
            little.tokenizer,
            prompts,
            # Beyond the context, so that the oldest tokens slide out of it.
            max_new_tokens=draw.randint(1, 100),
            temperature=draw.choice([0.0, 0.7, 1.0]),
            top_k=draw.choice([None, 5]),
            stop=draw.choice([[], ["\n"]]),
            seed=draw.getrandbits(31),
        )
        tally.tried["generations"] += 1
        tally.tried["tokens"] += sum(len(each.tokens) for each in found)

    looped(tally, session, trial)


class Visitor:
    """Requests as the page makes them, and some that it would not make."""

    def __init__(self, studio: Studio, draw: random.Random):
        self.port, self.draw = studio.port, draw
        self.host = f"127.0.0.1:{studio.port}"
        status, headers, _ = self.send("GET", studio.url.removeprefix(f"http://{self.host}"), trusted=False)
        assert status == 303, status
        self.cookie = headers["set-cookie"].partition(";")[0]
        self.run = ""

    def send(
        self, method: str, path: str, body: bytes | None = None, *, trusted: bool = True
    ) -> tuple[int, dict[str, str], bytes]:
        headers = {"Host": self.host}
        if trusted:
            headers |= {"Cookie": self.cookie, "Origin": f"http://{self.host}"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def job(self, task: str, **fields: Any) -> tuple[int, dict[str, str], bytes]:
        return self.send("POST", f"/api/jobs/{task}", json.dumps({"model": "little", **fields}).encode())

    def visit(self) -> tuple[str, int, bytes]:
        """One request: what it is, the status, the answer."""
        draw, length = self.draw, len(TEXT) - 1
        layer, head, query = draw.randint(0, 1), draw.randint(0, 1), draw.randint(0, length)
        kind = draw.choice(
            ["page", "read", "why", "mask", "write", "cut", "tile", "tile", "row", "steps", "block", "junk", "stranger"]
        )
        if not self.run or kind == "read":
            found = self.job("read", text=TEXT, mask=draw.choice(["", "", *MASKS]))
            event = found[2].decode().strip().split("\n\n")[-1]
            if event.startswith("event: result"):
                self.run = json.loads(event.split("\ndata: ")[1])["run"]
            return "read", found[0], found[2]
        place = {"run": self.run, "layer": layer, "head": head, "query": query}
        match kind:
            case "page":
                answer = self.send("GET", "/")
            case "why":
                answer = self.job("why", **place, key=draw.randint(0, length))
            case "mask":
                answer = self.job("mask", mask=draw.choice(MASKS), length=draw.randint(0, 60))
            case "write":
                answer = self.job("write", text=TEXT[:query], tokens=draw.randint(1, 20), temperature=1, seed=query)
            case "cut":
                answer = self.job("cut", run=self.run, position=query, cuts=[{"layer": layer, "head": head}])
            case "tile":
                left, top = draw.randint(0, 30), draw.randint(0, 30)
                area = f"left={left}&right={left + 8}&top={top}&bottom={top + 8}&bin={draw.choice([1, 2, 0])}"
                answer = self.send("GET", f"/api/runs/{self.run}/tile?layer={layer}&row={head}&{area}")
            case "row" | "steps":
                answer = self.send("GET", f"/api/runs/{self.run}/{kind}?layer={layer}&row={head}&query={query}")
            case "block":
                answer = self.send("GET", f"/api/runs/{self.run}/block")
            case "junk":
                body = draw.choice([b"", b"[", b"{" * 50_000, b"null", b'{"model": 5}', b"\xff", draw.randbytes(50)])
                answer = self.send("POST", f"/api/jobs/{draw.choice(['read', 'why', 'nothing', '%00'])}", body)
            case _:
                answer = self.send("GET", draw.choice(["/", "/api/pages/x", "/../etc/passwd"]), trusted=False)
        return kind, answer[0], answer[2]


def visit_the_studio(tally: Tally, session: Session) -> None:
    limits = Limits(body=200_000, body_seconds=10, queue=4, connections=32, tokens=4096, new_tokens=300)
    with Studio([small_model(256)], [], text=TEXT, limits=limits) as studio:
        visitor = Visitor(studio, session.draw)

        def trial() -> None:
            kind, status, answer = visitor.visit()
            tally.tried["requests"] += 1
            tally.found[f"status {status}"] += 1
            if status >= 500 and status != BUSY:
                tally.fail(f"{kind}: status {status}: {answer[:200]!r}")
            if kind == "stranger" and status == 200:
                tally.fail(f"a request without the cookie was answered: {answer[:100]!r}")
            if b"Traceback" in answer:
                tally.fail(f"{kind}: a traceback in the answer")

        looped(tally, session, trial)


def missing() -> str:
    return "" if Path("/proc/self/statm").exists() else "the memory of a process is read from /proc"


GENERATION = Experiment(
    "generation", "The memory of a process that generates stays flat.", generate_for_long, quick=6, missing=missing
)
STUDIO = Experiment(
    "studio",
    "The studio answers every request or says why not; its memory stays flat.",
    visit_the_studio,
    quick=30,
    missing=missing,
)
