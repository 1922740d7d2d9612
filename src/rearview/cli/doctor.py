"""`rearview doctor`: what works on this machine, what is missing, and how to get it."""

import typer

from rearview.cli.commands import Command

app = typer.Typer(add_completion=False)


@app.command(cls=Command)
def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON, for programs and bug reports."),
) -> None:
    """Show what works on this machine, what is missing, and how to get it."""
    from rearview.cli.bare import print_findings

    print_findings(as_json=as_json)
