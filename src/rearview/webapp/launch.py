"""studio(): start the studio for models in memory or in folders, and open it in a browser or in a notebook.

>>> from rearview import studio    # doctest: +SKIP
>>> studio(model, tokenizer)    # doctest: +SKIP
"""

from __future__ import annotations

import errno
import html
import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from rearview.errors import BadArgument, MissingExtra, RearviewError
from rearview.text import Tokenizer
from rearview.text_model import TextModel
from rearview.webapp.limits import Limits

if TYPE_CHECKING:
    import uvicorn

LOOPBACK = ("127.0.0.1", "localhost")


class Studio:
    """A running studio. `url` opens it; `stop()` ends it; `wait()` waits until it is stopped."""

    def __init__(
        self,
        models: Sequence[TextModel],
        folders: Sequence[str | os.PathLike[str]],
        *,
        text: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
    ):
        needs_server()
        import uvicorn

        from rearview.webapp.guard import Access, Guard
        from rearview.webapp.routes import application
        from rearview.webapp.worker import Worker
        from rearview.webapp.workspace import Workspace

        limits = limits or Limits()
        self._workspace = workspace = Workspace(limits)
        for model in models:
            workspace.add(model)
        for folder in folders:
            workspace.add_folder(Path(folder))
        if not workspace.entries():
            raise BadArgument("models", expected="at least one model, or a folder with one", got="none")
        self._socket = _listening(host, port)
        self.host, self.port = host, self._socket.getsockname()[1]
        self._name = socket.gethostname().lower() if _is_every_address(host) else _shown(host)
        names = {*(LOOPBACK if is_loopback(host) or _is_every_address(host) else ()), self._name}
        self._access = Access(frozenset(f"{name}:{self.port}" for name in names), self.port)
        self._worker = Worker(limits)
        start = {"text": text, "limits": {"tokens": limits.tokens, "newTokens": limits.new_tokens}}
        app = Guard(application(workspace, self._worker, self._access, start), self._access, limits)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", ws="none", server_header=False,
            date_header=False, timeout_keep_alive=5, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server: uvicorn.Server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="rearview-studio-server", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)

    @property
    def url(self) -> str:
        """The address to open: it has the token of this run."""
        return f"http://{self._name}:{self.port}/?token={self._access.token}"

    def wait(self) -> None:
        """Wait until the studio is stopped, by Ctrl-C for example."""
        while self._thread.is_alive():
            self._thread.join(0.2)

    def stop(self) -> None:
        """Stop the server and the job that is running."""
        self._server.should_exit = True
        self._worker.stop()
        self._thread.join(timeout=10)

    def __enter__(self) -> Studio:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Studio(http://{self._name}:{self.port}/)"

    def _repr_html_(self) -> str:
        address = html.escape(f"{self.url}&frame=1")
        return f'<iframe title="Rearview studio" src="{address}" width="100%" height="900" style="border: 0"></iframe>'

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


def studio(
    model: nn.Module | str | os.PathLike[str],
    tokenizer: Tokenizer | None = None,
    *,
    text: str = "",
    port: int = 0,
    open_browser: bool | None = None,
) -> Studio:
    """Open a model in the studio: see it attend, ask why, change its mask, ask whether it peeks, watch it write.

    Args:
        model: a model of Rearview or of transformers, or a folder with one.
        tokenizer: the tokenizer of a model in memory: one of `rearview.text`.
        text: the text that the page starts with.
        port: the port on 127.0.0.1; 0 takes a free one.
        open_browser: whether to open the page in a browser. By default it is opened, except in a notebook, which shows
            the page below the cell.

    Returns:
        The running `Studio`. It runs in threads of this process until `stop()` is called or the process ends.

    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.text import ByteTokenizer
    >>> model = GPT(GPTConfig(vocab_size=257, context=64, layers=1, heads=2, width=8))
    >>> running = studio(model, ByteTokenizer(), open_browser=False)
    >>> running.url.startswith("http://127.0.0.1:")
    True
    >>> running.stop()
    """
    if isinstance(model, nn.Module):
        if not isinstance(tokenizer, Tokenizer):
            expected = "a tokenizer such as rearview.text.load_tokenizer(folder)"
            raise BadArgument("tokenizer", expected=expected, got=type(tokenizer).__name__)
        running = Studio([TextModel(type(model).__name__, model.eval(), tokenizer)], [], text=text, port=port)
    elif tokenizer is not None:
        raise BadArgument("tokenizer", expected="none with a folder, which has its own", got=type(tokenizer).__name__)
    else:
        running = Studio([], [model], text=text, port=port)
    if open_browser if open_browser is not None else not _in_notebook():
        open_page(running.url)
    return running


def open_page(url: str) -> bool:
    """Open an address in the browser of this machine, if there is one."""
    import webbrowser

    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_every_address(host: str) -> bool:
    """Whether a host stands for all addresses of this machine, which is then reached by its name."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _shown(host: str) -> str:
    """A host as it is written in an address, and in the Host header."""
    return f"[{host.lower()}]" if ":" in host else host.lower()


def check_address(host: str, port: int) -> None:
    """Raise if the studio cannot listen there."""
    _listening(host, port).close()


def _listening(host: str, port: int) -> socket.socket:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 65536:
        raise BadArgument("port", expected="a number from 0 to 65535", got=repr(port))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        why = error.strerror or str(error)
        unknown = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        advice = "Choose an address of this machine as --host." if unknown else "Choose another --port."
        raise RearviewError(f"The studio cannot listen on {_shown(host)}:{port}: {why}. {advice}") from error
    return found


def _in_notebook() -> bool:
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def needs_server() -> None:
    """Raise if the packages of the server are not installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        missing = (error.name or "starlette").partition(".")[0]
        raise MissingExtra(missing, extra="studio", needed_for="The studio") from error
