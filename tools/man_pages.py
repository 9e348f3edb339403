"""Write the manual pages of the command line: ``python -m tools.man_pages FOLDER``.

Everything in them comes from the commands; there is no date, so the same commands give the same
pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from tokenslo.cli import COMMANDS, cli

_EXIT_STATUS = (
    ("0", "Success."),
    ("1", "A check failed: findings, files that are not current, a lost part of an objective."),
    ("2", "Invalid input or usage, or a library that is not installed. Nothing is written."),
    ("130", "Interrupted."),
)
_HELP = ("-h, --help", "Show this message and exit.")


def pages() -> dict[str, str]:
    """Return the text of every page by file name."""
    context = click.Context(cli, info_name="tokenslo", **cli.context_settings)
    commands = {name: cli.get_command(context, name) for name in COMMANDS}
    made = {"tokenslo.1": _overview(context)}
    for name, command in commands.items():
        if command:
            inner = click.Context(command, info_name=name, parent=context)
            made[f"tokenslo-{name}.1"] = _page(name, command, inner)
    return made


def _overview(context: click.Context) -> str:
    lines = [
        *_head("tokenslo", cli.help or "", ["[-h] [--version] COMMAND [ARGS]..."]),
        *_section("COMMANDS"),
    ]
    for name, (_, about) in COMMANDS.items():
        lines += [".TP", rf".BR {_text(f'tokenslo-{name}')} (1)", _text(about)]
    lines += _options(cli, context)
    lines += _section("EXIT STATUS")
    for code, meaning in _EXIT_STATUS:
        lines += [".TP", rf"\fB{code}\fR", _text(meaning)]
    return _finished(lines)


def _page(name: str, command: click.Command, context: click.Context) -> str:
    first, *others = _paragraphs(f"{command.help}\n\n{command.epilog or ''}".strip())
    lines = _head(f"tokenslo-{name}", COMMANDS[name][1], command.collect_usage_pieces(context))
    lines += [*_section("DESCRIPTION"), _text(first)]
    for paragraph in others:
        lines += [".PP", _text(paragraph)]
    lines += _options(command, context)
    lines += [*_section("SEE ALSO"), ".BR tokenslo (1)"]
    return _finished(lines)


def _head(name: str, about: str, usage: list[str]) -> list[str]:
    return [
        f'.TH {name.upper()} 1 "" "tokenslo {version("tokenslo")}" "tokenslo manual"',
        ".nh",
        ".ad l",
        *_section("NAME"),
        rf"{_text(name)} \- {_text(about.rstrip('.'))}",
        *_section("SYNOPSIS"),
        rf"\fB{_text(name.replace('-', ' ', 1))}\fR {_text(' '.join(usage))}",
    ]


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    yield from _section("OPTIONS")
    records = [
        parameter.get_help_record(context)
        for parameter in command.params
        if isinstance(parameter, click.Option)
    ]
    for record in (*records, _HELP):
        if record:
            names, meaning = record
            yield from (".TP", rf"\fB{_text(names)}\fR", _text(" ".join(meaning.split())))


def _section(title: str) -> list[str]:
    return [f".SH {title}"]


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n")]


def _text(text: str) -> str:
    """Escape text: no character has a meaning of roff, and hyphens can be copied."""
    escaped = text.replace("\\", r"\(rs").replace("-", r"\-").replace("`", r"\(ga")
    return re.sub(r"^(?=[.'])", r"\&", escaped).replace("'", r"\(aq")


def _finished(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def main(folder: str) -> None:
    """Write the pages, and remove those of commands that no longer exist."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in target.glob("*.1"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (target / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
