"""`rearview doctor`: what works on this machine, what is missing, and how to get it."""

import typer

from rearview.cli.commands import Command

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def doctor() -> None:
    """Show what works on this machine, what is missing, and how to get it."""
    from rearview.cli.doctor_run import lines

    print("\n".join(lines()))
