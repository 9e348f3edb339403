"""Read YAML (of one or more documents) or JSON into plain values whose texts know their lines.

Neither format is given to a loader: YAML is read from its events and JSON by the scanner of the
standard library, so that a file can neither name an object nor grow beyond its own size.  An alias
of YAML counts as often as it is used.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from json import decoder as json_decoder
from json import scanner as json_scanner
from pathlib import Path
from typing import Any

import yaml

STANDARD_INPUT = "-"
SUFFIXES = (".json", ".yaml", ".yml")
MAX_BYTES = 16 << 20
MAX_NODES = 500_000
MAX_DEPTH = 64

Value = Any  # None, bool, int, float, Text, list or dict with text keys

_scan_string: Any = json_decoder.scanstring  # type: ignore[attr-defined]
_make_scanner: Any = json_scanner.py_make_scanner  # type: ignore[attr-defined]
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Unreadable(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """A file that cannot be read at all; ``line`` is 1-based, 0 for the file as a whole."""

    def __init__(self, line: int, message: str, fix: str) -> None:
        self.line, self.message, self.fix = line, message, fix
        super().__init__(message)


class OfOthers(Unreadable):
    """A file that holds something else than queries."""


class Text(str):
    """A text of a file: ``line`` is where it begins.

    ``block`` tells that its lines are lines of the file, as in a literal block of YAML.
    """

    __slots__ = ("block", "line")
    line: int
    block: bool

    def __new__(cls, text: str, line: int, block: bool = False) -> Text:
        """Make a text of what stands at ``line``."""
        made = super().__new__(cls, text)
        made.line, made.block = line, block
        return made


def below(folder: Path) -> list[Path]:
    """Return the JSON and YAML files of a folder and its folders, but for hidden ones."""
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
    """Return the documents of a file, "-" for standard input; raises :class:`Unreadable`."""
    try:
        with sys.stdin.buffer if file == STANDARD_INPUT else Path(file).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise Unreadable(
            0, f"cannot be read: {reason}", "give the path of a file you may read"
        ) from error
    if len(content) > MAX_BYTES:
        raise Unreadable(0, f"is larger than {MAX_BYTES >> 20} MiB", "split it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unreadable(line, "is not UTF-8 text", "save the file as UTF-8") from error
    return parse(text)


def parse(text: str) -> list[Value]:
    """Return the documents of a text; what begins with a brace (not two) is JSON."""
    begin = text.lstrip()[:2]
    return [_json(text)] if begin[:1] == "{" and begin != "{{" else list(_yaml(text))


def _json(text: str) -> Value:
    # Offsets come in order, so each line is counted once.
    line, counted, nodes = 1, 0, 0

    def string(source: str, begin: int, strict: bool = True) -> tuple[Text, int]:
        nonlocal line, counted, nodes
        nodes += 1
        if nodes > MAX_NODES:
            raise Unreadable(line, *_TOO_MANY)
        value, end = _scan_string(source, begin, strict)
        line += source.count("\n", counted, begin)
        counted = begin
        return Text(value, line), end

    # The scanner that is written in Python, unlike the one in C, lets texts be made by others.
    decoder: Any = json.JSONDecoder(parse_int=_integer)
    decoder.parse_string = string
    decoder.scan_once = _make_scanner(decoder)
    try:
        return decoder.decode(text)
    except RecursionError:
        raise Unreadable(0, *_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        raise Unreadable(error.lineno, f"is not JSON: {error.msg}", "correct it") from None


def _integer(digits: str) -> float:
    """Read an integer of any length: what a dashboard means is never that exact."""
    return int(digits) if len(digits) < 20 else float(digits)


_TOO_DEEP = ("is nested too deeply", "give a dashboard or rule file")
_TOO_MANY = (f"has more than {MAX_NODES} values", "split it into several files")


def _yaml(text: str) -> Iterator[Value]:
    composer = _Composer()
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.DocumentEndEvent):
                yield composer.finish()
            else:
                composer.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        fix = "correct it; of a Helm chart, give the output of `helm template`"
        raise Unreadable(
            mark.line + 1 if mark else 0, f"is not YAML: {error.problem or error.context}", fix
        ) from None
    except yaml.YAMLError as error:  # characters that YAML does not allow
        line = text.count("\n", 0, getattr(error, "position", 0) or 0) + 1
        raise Unreadable(line, "holds characters that YAML does not allow", "remove them") from None


class _Composer:
    """Builds the values of one document after the other."""

    def __init__(self) -> None:
        self._open: list[Value] = []
        self._keys: list[Text | None] = []  # of each open mapping, the key that waits for its value
        self._anchors: dict[str, tuple[Value, int]] = {}
        self._starts: list[tuple[str | None, int]] = []
        self._nodes = 0
        self._root: Value = None

    def finish(self) -> Value:
        """Return the document that has ended, and be ready for the next."""
        root, self._root = self._root, None
        self._anchors.clear()
        return root

    def take(self, event: Any) -> None:
        """Take in one event of the parser."""
        match event:
            case yaml.ScalarEvent():
                self._count(1, event)
                value = _scalar(event)
                if event.anchor:
                    self._anchors[event.anchor] = value, 1
                self._put(value)
            case yaml.AliasEvent():
                if event.anchor not in self._anchors:
                    raise Unreadable(_line(event), f"has no anchor &{event.anchor}", "define it")
                value, size = self._anchors[event.anchor]
                self._count(size, event)
                self._put(value)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._count(1, event)
                if len(self._open) >= MAX_DEPTH:
                    raise Unreadable(_line(event), *_TOO_DEEP)
                self._open.append({} if isinstance(event, yaml.MappingStartEvent) else [])
                self._keys.append(None)
                self._starts.append((event.anchor, self._nodes))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                value = self._open.pop()
                self._keys.pop()
                anchor, before = self._starts.pop()
                if anchor:
                    self._anchors[anchor] = value, self._nodes - before + 1
                self._put(value)

    def _count(self, nodes: int, event: Any) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise Unreadable(_line(event), *_TOO_MANY)

    def _put(self, value: Value) -> None:
        if not self._open:
            self._root = value
            return
        holder = self._open[-1]
        if isinstance(holder, list):
            holder.append(value)
        elif self._keys[-1] is None:
            self._keys[-1] = value if isinstance(value, Text) else Text(repr(value)[:60], 0)
        else:
            holder[self._keys[-1]] = value
            self._keys[-1] = None


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _scalar(event: Any) -> Text:
    """Return a scalar as text: that is all that rules and dashboards are asked for."""
    below = event.style in ("|", ">")
    return Text(event.value, _line(event) + below, event.style == "|")
