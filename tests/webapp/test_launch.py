"""The studio is started from Python and from the command line: addresses, errors, the model that it brings, the end."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rearview import studio
from rearview.errors import BadArgument, RearviewError
from rearview.models import GPT, GPTConfig
from rearview.text import ByteTokenizer
from rearview.text_model import load_text_model
from rearview.webapp import Studio, starter
from tests.webapp.conftest import Client, model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "tiny"
    GPT(GPTConfig(vocab_size=257, context=64, layers=1, heads=2, width=16)).eval().save_pretrained(path)
    ByteTokenizer().save(path)
    return path


def status(running: Studio, host: str, path: str = "/") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    connection.request("GET", path, headers={"Host": host})
    found = connection.getresponse().status
    connection.close()
    return found


def test_models_in_memory_and_in_folders(folder: Path):
    inner = model()
    with studio(inner.model, inner.tokenizer, open_browser=False) as running:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", running.url)
        assert repr(running) == f"Studio(http://127.0.0.1:{running.port}/)"
        assert running._repr_html_().startswith('<iframe title="Rearview studio" src="http://127.0.0.1:')
        assert Client(running).result("read", model="GPT", text="I love")["contents"]["title"] == "GPT"
    with studio(folder, open_browser=False) as running:
        assert Client(running).result("read", model="tiny", text="I love")["contents"]["title"] == "tiny"


def test_wrong_arguments(folder: Path, tmp_path: Path):
    with pytest.raises(BadArgument, match="tokenizer: expected a tokenizer such as"):
        studio(model().model)
    with pytest.raises(BadArgument, match="tokenizer: expected none with a folder, which has its own"):
        studio(folder, ByteTokenizer())
    with pytest.raises(
        BadArgument, match=r"MODEL_DIR: expected a folder with a model, got .*, which has no config.json"
    ):
        studio(tmp_path)
    with pytest.raises(BadArgument, match="models: expected at least one model"):
        Studio([], [])
    with pytest.raises(BadArgument, match="port: expected a number from 0 to 65535, got 70000"):
        studio(folder, port=70000)
    with pytest.raises(RearviewError, match=r"cannot listen on 192\.0\.2\.1:0: .* Choose an address of this machine"):
        Studio([model()], [], host="192.0.2.1")


def test_every_address_of_the_machine_still_needs_the_token():
    with Studio([model()], [], host="0.0.0.0") as running:
        name = socket.gethostname().lower()
        assert running.url.startswith(f"http://{name}:{running.port}/?token=")
        path = "/?token=" + running.url.partition("token=")[2]
        for host in (name, "127.0.0.1", "localhost"):
            assert status(running, f"{host}:{running.port}") == 401
            assert status(running, f"{host}:{running.port}", path) == 303
        assert status(running, f"0.0.0.0:{running.port}", path) == 421


def test_another_loopback_address():
    try:
        running = Studio([model()], [], host="::1")
    except RearviewError:
        pytest.skip("this machine has no IPv6")
    with running:
        assert running.url.startswith(f"http://[::1]:{running.port}/?token=")
        connection = http.client.HTTPConnection("::1", running.port, timeout=10)
        connection.request("GET", "/?token=" + running.url.partition("token=")[2])
        assert connection.getresponse().status == 303
        connection.close()


def test_the_starter_keeps_early_checkpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tiny = replace(
        starter.CONFIG, context=16, layers=1, heads=1, width=8, steps=4, batch=2, warmup=1, eval_every=4, save_every=1
    )
    monkeypatch.setattr(starter, "CONFIG", tiny)
    monkeypatch.setattr(starter, "KEPT", (1, 2, 4))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = starter.starter_folder()
    assert (folder.name, starter.is_ready(folder)) == ("starter", False)
    events = starter.train_starter(folder)
    for event in events:
        if getattr(event, "step", 0) == 3:
            break
    events.close()
    assert not starter.is_ready(folder)
    # It goes on where it was interrupted.
    steps = [event.step for event in starter.train_starter(folder) if type(event).__name__ == "TrainingStep"]
    assert steps[-1] == 4
    assert starter.is_ready(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000001", "step-000002", "step-000004"]
    assert not (folder / "step-000004" / "optimizer.safetensors").exists()
    assert not folder.with_name("training").exists()
    assert load_text_model(folder).model.training is False


def test_a_cache_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RearviewError, match=r"The studio's own model cannot be kept in .* Name a MODEL_DIR."):
        list(starter.train_starter(tmp_path / "file" / "starter"))


def command(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    code = "from rearview.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "studio", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": "true", **environment},
    )


def test_the_command_serves_until_it_is_interrupted(folder: Path, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("A secret text.")
    process = command(folder, "--text", text, "--no-browser")
    assert process.stdout is not None
    address = process.stdout.readline().removeprefix("The studio is at ").strip()
    assert process.stdout.readline() == "Ctrl-C stops it.\n"
    port = int(address.split(":")[2].partition("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/api/jobs/read", b'{"text": "A secret text."}', {"Origin": f"http://127.0.0.1:{port}"})
    assert connection.getresponse().status == 401
    connection.close()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "\nStopped.\n")
    # The log has no text.
    assert errors == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "MODEL_DIR: expected a folder with a model, got nowhere, which does not exist."),
        (["{folder}", "--text", "nowhere"], "--text: expected a file of text, got nowhere: No such file or directory."),
        (["{folder}", "--text", "/dev/zero"], "/dev/zero: this is a pipe or a device, not a file"),
        (["{folder}", "--port", "99999"], "port: expected a number from 0 to 65535, got 99999."),
    ],
)
def test_the_command_says_what_is_wrong(folder: Path, arguments: list[str], message: str):
    process = command(*(each.format(folder=folder) for each in arguments), "--no-browser")
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (2, "", f"rearview: {message}\n")


def test_an_address_is_refused_before_a_model_is_trained(tmp_path: Path):
    process = command("--port", "99999", "--no-browser", XDG_CACHE_HOME=str(tmp_path))
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert errors == "rearview: port: expected a number from 0 to 65535, got 99999.\n"
    assert not any(tmp_path.iterdir())
