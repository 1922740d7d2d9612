"""What `rearview studio` does: find or train a model, start the server, open the page, and wait for Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rearview.cli.progress import shown
from rearview.cli.terminal import note
from rearview.cli.text_file import read_text_file
from rearview.webapp import Studio
from rearview.webapp.launch import check_address, is_loopback, needs_server, open_page
from rearview.webapp.starter import CONFIG, TEXT, is_ready, starter_folder, train_starter


def run_studio(models: Sequence[str], *, text: Path | None, host: str, port: int, no_browser: bool) -> None:
    """Serve the studio until it is interrupted."""
    # Before anything is trained.
    needs_server()
    check_address(host, port)
    content = TEXT if text is None else read_text_file(text)
    folders = [*models]
    if not folders:
        folder = starter_folder()
        if not is_ready(folder):
            note("training a small model for the studio, once; this takes under a minute")
            for _ in shown(train_starter(folder), tokens_per_step=CONFIG.rows * CONFIG.context):
                pass
        folders = [str(folder)]
    with Studio([], folders, text=content, host=host, port=port) as running:
        try:
            if not is_loopback(host):
                note(
                    f"{host} can be reached from other machines: whoever has the address with its token can use the "
                    "studio"
                )
            print(f"The studio is at {running.url}\nCtrl-C stops it.", flush=True)
            if not no_browser and not open_page(running.url):
                note("no browser could be opened; open the address yourself")
            running.wait()
        except KeyboardInterrupt:
            print("\nStopped.")
