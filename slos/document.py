"""Read a YAML, JSON or Jsonnet file into plain values that remember their lines.

YAML is read from the parser's events, not through a loader, so that nothing in a file can name a
Python object, grow without bound or be quietly reinterpreted:

- plain words mean what YAML 1.2's core schema says: ``no``, ``on``, ``1:30`` and ``1_000`` are
  text, ``010`` is ten;
- tags, duplicate keys, keys that are not text, merge keys and further documents are refused;
- aliases count as often as they are used, against the same limit as everything else.

JSON is read as YAML.  Jsonnet is evaluated first (:mod:`slos.jsonnet`); its output has no lines.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from slos.errors import InvalidFile, Problem, in_order, quoted
from slos.jsonnet import JsonnetError, evaluate

STDIN = "standard input"
"""The name of the file that is read from standard input."""
MAX_BYTES = 1 << 20
WRITER_SECONDS = 1.0
MAX_DEPTH = 32
MAX_NODES = 50_000
_MAX_DIGITS = 40
JSONNET = frozenset({".jsonnet", ".libsonnet"})

Keys = tuple[str | int, ...]
Value = None | bool | int | float | str | list[Any] | dict[str, Any]

_Event = Any  # PyYAML's events share no typed interface
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# YAML 1.2.2, section 10.3.2: the core schema.
_WORDS: Mapping[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")

# What may not stand in a file as it is: control characters, and the line breaks that YAML 1.1 knows
# but editors do not, as they would shift the line numbers.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_PLAIN_KEY = re.compile(r"[\w./-]{1,60}")

# What libyaml says: what a person can do about it.
_SYNTAX_FIXES = (
    ("found character that cannot start any token", "quote the value, or indent with spaces"),
    ("mapping values are not allowed", 'check the indentation, and quote text that contains ": "'),
    ("could not find expected ':'", 'write "key: value", with a space after the colon'),
    ("found unexpected end of stream", "close the quotes"),
    ("did not find expected ','", "close the bracket, with a comma between entries"),
    ("did not find expected '-'", "check the indentation, and start every entry with a dash"),
    ("escape c", "write a backslash twice, or use single quotes"),
)
_SYNTAX_FIX = "check the indentation and the quotes there"


@dataclass(frozen=True, slots=True)
class Document:
    """The value of a file, and where its parts stand.

    ``lines`` maps the path of a value, such as ``("objectives", 1, "target")``, to the 1-based line
    of its key or list entry; it is empty for Jsonnet.  ``names`` are what the values are called in
    the file where that is not their path: in what was made from another one.  ``aliases`` are the
    paths of values that stand elsewhere already, with their first paths.
    """

    file: str
    value: Value
    lines: Mapping[Keys, int] = field(default_factory=dict)
    names: Mapping[Keys, str] = field(default_factory=dict)
    aliases: Mapping[Keys, Keys] = field(default_factory=dict)

    def line(self, path: Keys) -> int:
        """Return the line of the value at ``path``, 0 if the file has no lines."""
        return self.lines.get(path, 0)

    def name(self, path: Keys) -> str:
        """Return what people call the value at ``path``."""
        known = len(path)
        while known and path[:known] not in self.names:
            known -= 1
        whole = field_name(path[known:])
        base = self.names.get(path[:known], "") if self.names else ""
        return f"{base}.{whole}".strip(".").replace(".[", "[")

    def alias(self, path: Keys) -> tuple[Keys, Keys] | None:
        """Return the alias that brings the value at ``path`` there, and where the value stands."""
        here = next((path[:n] for n in range(len(path) + 1) if path[:n] in self.aliases), None)
        if here is None:
            return None
        stands, known = path, len(path)
        while known:
            if stands[:known] in self.aliases:
                stands = (*self.aliases[stands[:known]], *stands[known:])
                known = len(stands)
            else:
                known -= 1
        return here, stands


def read_document(path: str | Path, libraries: Sequence[Path] = ()) -> Document:
    """Read one file; raises :class:`~slos.errors.InvalidFile` with everything that is wrong.

    The suffix decides: ``.jsonnet`` and ``.libsonnet`` are evaluated, with ``libraries`` as further
    folders to import from; everything else is YAML, of which JSON is a part.
    """
    (document, *more), problems = scan_documents(path, libraries)
    if more:
        message, fix = "a second document starts", "put each document into its own file"
        problems.append(Problem(document.file, more[0].line(()), "", message, fix))
    if problems:
        raise InvalidFile(in_order(problems))
    return document


def scan_documents(
    path: str | Path, libraries: Sequence[Path] = ()
) -> tuple[list[Document], list[Problem]]:
    """Read a file of one or more documents as far as they make sense; return what is wrong besides.

    For callers that check the values too and want to name all problems at once.  Raises
    :class:`~slos.errors.InvalidFile` where nothing can be read.  Empty documents beside others do
    not count.
    """
    file = str(path)
    text = _read_text(Path(path), file)
    if Path(path).suffix in JSONNET:
        return [_from_jsonnet(file, text, libraries)], []
    if odd := _UNPRINTABLE.search(text):
        _refuse(
            file,
            text.count("\n", 0, odd.start()) + 1,
            f"the character U+{ord(odd[0]):04X} cannot stand in YAML",
            'delete it, or write it as an escape such as "\\u001b" in double quotes',
        )
    return _Composer(file).compose(text)


def field_name(path: Iterable[str | int]) -> str:
    """Write a path as people do: ``objectives[1].target``."""
    name = ""
    for key in path:
        if isinstance(key, int):
            name += f"[{key}]"
        elif _PLAIN_KEY.fullmatch(key):
            name += f".{key}" if name else key
        else:
            name += f"[{quoted(key)}]"
    return name


def _refuse(file: str, line: int, message: str, fix: str) -> NoReturn:
    raise InvalidFile([Problem(file, line, "", message, fix)])


def _read_text(path: Path, file: str) -> str:
    try:
        if file == STDIN:
            content, piped = _standard_input(), False
        else:
            with open(path, "rb", opener=_open) as stream:
                content = stream.read(MAX_BYTES + 1)
                piped = stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(file, 0, f"cannot be read: {reason}", "give the path of a file you may read")
    if piped and not content:
        _refuse(file, 0, "is a pipe that nobody writes to", "give a file, or write into the pipe")
    if len(content) > MAX_BYTES:
        _refuse(file, 0, f"is larger than {MAX_BYTES >> 20} MiB", "split it into several files")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        _refuse(file, line, "is not UTF-8 text", "save the file as UTF-8")


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise ValueError("it is closed")
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _open(path: str, flags: int) -> int:
    """Open a file; a named pipe without a writer has a moment to find one, and then is empty."""
    file = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(file, True)
    if stat.S_ISFIFO(os.fstat(file).st_mode):
        ready = select.poll()
        ready.register(file, select.POLLIN)
        ready.poll(WRITER_SECONDS * 1000)
    return file


def _from_jsonnet(file: str, text: str, libraries: Sequence[Path]) -> Document:
    try:
        value = json.loads(evaluate(file, text, libraries))
    except JsonnetError as error:
        message = " ".join(error.message.split()).rstrip(".") or "fails without saying why"
        _refuse(error.file, error.line, message, "correct the Jsonnet")
    except RecursionError:
        _refuse(file, 0, *_TOO_DEEP)
    _count(file, value)
    return Document(file, value)


def _count(file: str, value: Value) -> None:
    """Hold Jsonnet's output, which no composer has counted, to the limits."""
    level, nodes, depth = [value], 0, 0
    while level:
        nodes, depth = nodes + len(level), depth + 1
        if depth > MAX_DEPTH:
            _refuse(file, 0, *_TOO_DEEP)
        if nodes > MAX_NODES:
            _refuse(file, 0, *_TOO_MANY)
        level = [
            child
            for parent in level
            if isinstance(parent, list | dict)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]


_TOO_DEEP = (f"is nested deeper than {MAX_DEPTH} levels", "flatten it")
_TOO_MANY = (
    f"holds more than {MAX_NODES:,} values, aliases counted",
    "split it into several files",
)


@dataclass(slots=True)
class _Node:
    """A composed value: a scalar, or children by key, each with the line where it starts."""

    scalar: Value = None
    items: list[tuple[int, _Node]] | None = None
    entries: dict[str, tuple[int, _Node]] | None = None
    size: int = 1
    height: int = 1


_OPEN = _Node(size=0)
"""Stands for an anchor whose value is still being read."""


class _Composer:
    """Builds one value from the parser's events and collects what is wrong on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.anchors: dict[str, _Node] = {}
        self.nodes = 0

    def compose(self, text: str) -> tuple[list[Document], list[Problem]]:
        try:
            roots = list(self._documents(yaml.parse(text, Loader=_Loader)))
        except yaml.MarkedYAMLError as error:
            self._syntax(error)
        except yaml.YAMLError as error:
            _refuse(self.file, 0, f"is not valid YAML: {' '.join(str(error).split())}", _SYNTAX_FIX)
        if not roots:
            _refuse(self.file, 0, "is empty", "write the settings into it")
        documents = []
        for root, line in roots:
            spread = _Spread({(): line})
            value = spread.plain(root, ())
            documents.append(Document(self.file, value, spread.lines, aliases=spread.aliases))
        filled = [document for document in documents if document.value is not None]
        return filled or documents[:1], self.problems

    def _documents(self, events: Iterable[_Event]) -> Iterator[tuple[_Node, int]]:
        self.events = iter(events)
        self._next()  # the stream starts
        while isinstance(self._next(), yaml.DocumentStartEvent):
            first = self._next()
            self.anchors.clear()
            yield self._node(first, 1), self._line(first)
            self._next()  # the document ends

    def _next(self) -> _Event:
        return next(self.events)

    @staticmethod
    def _line(event: _Event) -> int:
        return int(event.start_mark.line) + 1

    def _problem(self, event: _Event, message: str, fix: str) -> None:
        self.problems.append(Problem(self.file, self._line(event), "", message, fix))

    def _fatal(self, event: _Event, message: str, fix: str) -> NoReturn:
        self._problem(event, message, fix)
        raise InvalidFile(self.problems)

    def _syntax(self, error: yaml.MarkedYAMLError) -> NoReturn:
        said = error.problem or "unreadable"
        mark: Any = error.problem_mark or error.context_mark
        # Where something was never closed, its start says more than the end of the file.
        if "expected ','" in said or "end of stream" in said:
            mark = error.context_mark or mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        fix = next((fix for part, fix in _SYNTAX_FIXES if part in said), _SYNTAX_FIX)
        message = f"is not valid YAML: {said} at column {column}"
        raise InvalidFile([*self.problems, Problem(self.file, line, "", message, fix)]) from None

    def _node(self, event: _Event, depth: int) -> _Node:
        """Compose the value that ``event`` starts."""
        if isinstance(event, yaml.AliasEvent):
            node = self._anchored(event)
            self._hold(event, node.size, depth + node.height - 1)
            return node
        self._hold(event, 1, depth)
        if event.tag is not None:
            self._problem(event, f"the tag {_tag(event.tag)} is not allowed", "delete it")
        anchor = event.anchor
        if anchor is not None:
            self.anchors[anchor] = _OPEN
        before = self.nodes
        if isinstance(event, yaml.MappingStartEvent):
            node = self._mapping(depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(depth)
        else:
            node = _Node(self._scalar(event))
        node.size = self.nodes - before + 1
        node.height = 1 + max((child.height for _, child in _children(node)), default=0)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def _hold(self, event: _Event, size: int, depth: int) -> None:
        """Hold a value of ``size`` nodes, the lowest at ``depth``, to the limits."""
        self.nodes += size
        if self.nodes > MAX_NODES:
            self._fatal(event, *_TOO_MANY)
        if depth > MAX_DEPTH:
            self._fatal(event, *_TOO_DEEP)

    def _anchored(self, event: _Event) -> _Node:
        name = str(event.anchor)
        node = self.anchors.get(name)
        if node is _OPEN:
            self._fatal(event, f"the alias *{name} stands inside of its own value", "remove it")
        if node is None:
            self._fatal(event, f"the alias *{name} has no value", f"write &{name} at its value")
        return node

    def _sequence(self, depth: int) -> _Node:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append((self._line(event), self._node(event, depth + 1)))
        return _Node(items=items)

    def _mapping(self, depth: int) -> _Node:
        entries: dict[str, tuple[int, _Node]] = {}
        merged: list[tuple[str, tuple[int, _Node]]] = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key, line = self._node(event, depth + 1), self._line(event)
            value = self._node(self._next(), depth + 1)
            name = key.scalar
            if not isinstance(name, str):
                self._problem(event, "a key is not text", "quote the key")
            elif name == "<<" and not getattr(event, "style", None):
                self._problem(event, "merge keys are not supported", "write the keys out")
                merged += _merged(value)
            elif name in entries:
                self._problem(
                    event,
                    f"the key {quoted(name)} stands on line {entries[name][0]} already",
                    "delete one of them",
                )
            else:
                entries[name] = (line, value)
        # What was refused is not missed as well.
        return _Node(entries={**dict(reversed(merged)), **entries})

    def _scalar(self, event: _Event) -> Value:
        text = str(event.value)
        if event.style:  # quoted, or a block of text
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            if len(text) > _MAX_DIGITS:
                self._problem(event, f"{quoted(text)} is too long a number", "put it in quotes")
                return text
            return int(text, 10 if text[1:2] not in ("o", "x") else 0)
        return float(text) if _FLOAT.fullmatch(text) else text


def _children(node: _Node) -> Iterable[tuple[int, _Node]]:
    return node.items or (node.entries or {}).values()


def _merged(value: _Node) -> list[tuple[str, tuple[int, _Node]]]:
    """Return the entries that a merge key means, the stronger ones first."""
    parts = [value, *(part for _, part in value.items or ())]
    return [entry for part in parts for entry in (part.entries or {}).items()]


def _tag(tag: str) -> str:
    return quoted(tag.replace("tag:yaml.org,2002:", "!!"))


@dataclass(slots=True)
class _Spread:
    """Spreads nodes out into plain values, noting the line of each and which are aliases."""

    lines: dict[Keys, int]
    aliases: dict[Keys, Keys] = field(default_factory=dict)
    first: dict[int, Keys] = field(default_factory=dict)

    def plain(self, node: _Node, path: Keys) -> Value:
        """Return the value of the node at ``path``."""
        before = self.first.setdefault(id(node), path)
        if before != path:
            self.aliases[path] = before
        if node.items is not None:
            return [self._child(*child, (*path, i)) for i, child in enumerate(node.items)]
        if node.entries is not None:
            return {key: self._child(*child, (*path, key)) for key, child in node.entries.items()}
        return node.scalar

    def _child(self, line: int, node: _Node, path: Keys) -> Value:
        self.lines[path] = line
        return self.plain(node, path)
