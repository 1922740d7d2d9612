"""A page for each verb of `rearview`, written from its options and its help.

>>> print(page("doctor").splitlines()[0])
# rearview doctor
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from importlib import import_module
from typing import Any

from typer.main import get_command

from rearview.cli.verbs import VERBS

OPTIONS = "Options"


def pages() -> dict[str, str]:
    """The pages of the command line by address, the overview first."""
    return {"cli/index.md": overview(), **{f"cli/{verb}.md": page(verb) for verb in VERBS}}


def overview() -> str:
    rows = "\n".join(f"| [`rearview {verb}`]({verb}.md) | {help} |" for verb, help in VERBS.items())
    return (
        "# The command line\n\n"
        "`pip install 'rearview[terminal]'` adds the command `rearview`. `rearview VERB --help` shows in a terminal "
        "what these pages show, and `rearview --version` the versions.\n\n"
        f"| command | what it does |\n|---|---|\n{rows}\n\n"
        "What was asked for goes to stdout, remarks and errors to stderr. The exit code is 0 for success and 2 for an "
        "error; the pages name the other codes.\n"
    )


def page(verb: str) -> str:
    """The page of one verb; a verb with subcommands has a section for each of them."""
    command = get_command(import_module(f"rearview.cli.{verb}").app)
    parts: dict[str, Any] = getattr(command, "commands", {})
    title = f"# rearview {verb}\n\n"
    if not parts:
        return title + "\n".join(_sections(command, f"rearview {verb}", "##"))
    text = [title, f"{VERBS[verb]}\n"]
    for name, part in parts.items():
        text += [f"## rearview {verb} {name}\n", *_sections(part, f"rearview {verb} {name}", "###")]
    return "\n".join(text)


def _sections(command: Any, name: str, level: str) -> Iterator[str]:
    context = type(command).context_class(command, info_name=name)
    # Every verb has --help, which the overview names.
    parameters = [each for each in command.get_params(context) if not each.hidden and each.name != "help"]
    about, examples = _help_and_examples(command.help)
    first, _, more = about.partition("\n\n")
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"{first}\n"
    yield f"```text\n{usage}\n```\n"
    if more:
        yield f"{more}\n"
    if examples:
        yield f"{level} Examples\n\n```bash\n{examples}\n```\n"
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    if arguments:
        yield f"{level} Arguments\n"
        yield from _table("argument", ((_argument_name(each), each) for each in arguments))
    groups: dict[str, list[Any]] = {}
    for each in parameters:
        if each.param_type_name == "option":
            groups.setdefault(each.rich_help_panel or OPTIONS, []).append(each)
    for heading in sorted(groups, key=lambda heading: heading != OPTIONS):
        words = heading if heading == OPTIONS else f"{OPTIONS}: {heading[0].lower()}{heading[1:]}"
        yield f"{level} {words}\n"
        yield from _table("option", ((_option_name(each, context), each) for each in groups[heading]))


def _help_and_examples(text: str) -> tuple[str, str]:
    about, _, examples = re.sub(r"\n*\bExamples?:\s+", "\n\0", text, count=1).partition("\n\0")
    return about.strip(), examples.strip()


def _table(kind: str, rows: Iterator[tuple[str, Any]]) -> Iterator[str]:
    yield f"| {kind} | meaning |\n|:--|:--|"
    for name, parameter in rows:
        help = escape((parameter.help or "").replace("\n", " "), quote=False).replace("|", "\\|")
        yield f"| {name} | {help}{_default(parameter)} |"
    yield ""


def _argument_name(argument: Any) -> str:
    return _code(argument.metavar or argument.name.upper())


def _option_name(option: Any, context: Any) -> str:
    names = ", ".join(map(_code, [*option.opts, *option.secondary_opts]))
    kind = "" if option.is_flag or option.metavar == "" else option.metavar or option.display_type(context)
    return f"{names} {_code(kind)}" if kind else names


def _default(parameter: Any) -> str:
    if parameter.required:
        return " Required."
    default = parameter.default
    # These say nothing that the help does not say.
    if default is None or default is False or default == "" or isinstance(default, tuple):
        return ""
    return f" Default: {_code('on' if default is True else str(default))}."


def _code(text: str) -> str:
    # HTML, since a | in a code span would end the cell of a table.
    return f"<code>{escape(text).replace('|', '&#124;')}</code>"
