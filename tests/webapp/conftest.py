"""A running studio with a small model in memory, and requests to it as a browser or a stranger would make them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rearview.models import GPT, GPTConfig
from rearview.text import ByteTokenizer
from rearview.text_model import TextModel
from rearview.webapp import Studio
from rearview.webapp.limits import Limits

LIMITS = Limits(body=200_000, body_seconds=0.6, queue=4, connections=32, tokens=4096, new_tokens=300, runs=4)


def model(context: int = 256, layers: int = 2) -> TextModel:
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=257, context=context, layers=layers, heads=2, width=16, positions="rotary")
    return TextModel("little", GPT(config).eval(), ByteTokenizer())


@pytest.fixture(scope="module")
def running() -> Iterator[Studio]:
    with Studio([model()], [], text="I love sushi. Emma loves street food.", limits=LIMITS) as running:
        yield running


class Client:
    """Requests with or without what the page sends."""

    def __init__(self, running: Studio):
        self.running = running
        self.host = f"127.0.0.1:{running.port}"
        self.origin = f"http://{self.host}"
        status, headers, _ = self.send("GET", running.url.removeprefix(self.origin), {})
        assert status == 303
        self.cookie = headers["set-cookie"].partition(";")[0]

    def send(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.running.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers={"Host": self.host, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    @property
    def trusted(self) -> dict[str, str]:
        return {"Cookie": self.cookie, "Origin": self.origin}

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return self.send("GET", path, {"Cookie": self.cookie})

    def job(self, task: str, **fields: Any) -> list[tuple[str, Any]]:
        """The events of a job."""
        status, headers, body = self.send("POST", f"/api/jobs/{task}", self.trusted, json.dumps(fields).encode())
        assert status == 200, body
        assert headers["content-type"].startswith("text/event-stream")
        parts = [part.split("\ndata: ") for part in body.decode().strip().split("\n\n")]
        return [(name.removeprefix("event: "), json.loads(value)) for name, value in parts]

    def result(self, task: str, **fields: Any) -> Any:
        name, value = self.job(task, **fields)[-1]
        assert name == "result", value
        return value

    def error(self, task: str, **fields: Any) -> str:
        name, value = self.job(task, **fields)[-1]
        assert name == "error"
        return value


@pytest.fixture(scope="module")
def client(running: Studio) -> Client:
    return Client(running)
