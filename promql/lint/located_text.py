"""Read dashboards and rule files, YAML or JSON, into values whose texts carry line numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from documents.composer import compose_json, compose_yaml
from documents.files import Flaw, UnreadableText, read_text
from documents.nodes import ComposeOptions, Scalar

STANDARD_INPUT = "-"
SUFFIXES = (".json", ".yaml", ".yml")
MAX_BYTES = 16 << 20
MAX_NODES = 500_000
MAX_DEPTH = 64

Value = Any  # None, bool, int, float, LocatedText, list or dict with text keys


class UnreadableFile(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """A file cannot be linted; ``line`` is 1-based, 0 for the file as a whole."""

    def __init__(self, line: int, message: str, fix: str) -> None:
        self.line, self.message, self.fix = line, message, fix
        super().__init__(message)


class NoQueries(UnreadableFile):
    """A file is neither a dashboard nor a rule file."""


class LocatedText(str):
    """A text and its first line in the file.

    ``block`` marks a literal block of YAML, whose lines are lines of the file.
    """

    __slots__ = ("block", "line")
    line: int
    block: bool

    def __new__(cls, text: str, line: int, block: bool = False) -> LocatedText:
        """Create a text that starts at ``line``."""
        made = super().__new__(cls, text)
        made.line, made.block = line, block
        return made


def files_below(folder: Path) -> list[Path]:
    """Return the JSON and YAML files of a folder and its subfolders, without hidden ones."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += (
            Path(place, name)
            for name in sorted(names)
            if name.endswith(SUFFIXES) and not name.startswith(".")
        )
    return found


def read(file: str) -> list[Value]:
    """Return the documents of a file, "-" for standard input; raises :class:`UnreadableFile`."""
    try:
        text = read_text(None if file == STANDARD_INPUT else Path(file), MAX_BYTES)
    except UnreadableText as unreadable:
        raise _first(unreadable.flaws) from None
    return parse(text)


def parse(text: str) -> list[Value]:
    """Return the documents of a text; one that begins with a single brace is JSON."""
    begin = text.lstrip()[:2]
    try:
        if begin[:1] == "{" and begin != "{{":
            return [compose_json(text, _OPTIONS).plain()]
        roots, _ = compose_yaml(text, _OPTIONS)
    except UnreadableText as unreadable:
        raise _first(unreadable.flaws) from None
    return [root.plain() for _, root in roots]


def _first(flaws: tuple[Flaw, ...]) -> UnreadableFile:
    return UnreadableFile(*flaws[0])


def _located(scalar: Scalar) -> LocatedText:
    """Return a scalar as text: rules and dashboards have queries, names and labels."""
    in_block = scalar.style in ("|", ">")
    return LocatedText(scalar.text, scalar.line + in_block, scalar.style == "|")


_OPTIONS = ComposeOptions(
    _located,
    MAX_NODES,
    MAX_DEPTH,
    strict=False,
    syntax_fix="correct it; of a Helm chart, give the output of `helm template`",
)
