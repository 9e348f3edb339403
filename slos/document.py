"""Read a YAML, JSON or Jsonnet file into plain values with line numbers.

:mod:`documents` composes YAML strictly: it refuses tags, duplicate keys, keys that are not text and
merge keys, and counts an alias as often as it is used.  Scalars have the values of YAML 1.2's core
schema: ``no``, ``on``, ``1:30`` and ``1_000`` are text, ``010`` is ten.

JSON is read as YAML.  Jsonnet is evaluated first (:mod:`slos.jsonnet`); its output has no lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from documents.files import Flaw, UnreadableText, printable, quoted, read_text
from documents.nodes import (
    ComposeOptions,
    Node,
    RefusedScalar,
    Scalar,
    too_deep,
    too_many,
)
from slos.errors import InvalidFile, Problem, in_order
from slos.jsonnet import JsonnetError, evaluate

STDIN = "standard input"
"""The name of the file that is read from standard input."""
MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 50_000
_MAX_DIGITS = 40
JSONNET = frozenset({".jsonnet", ".libsonnet"})

Keys = tuple[str | int, ...]
Value = None | bool | int | float | str | list[Any] | dict[str, Any]

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

_PLAIN_KEY = re.compile(r"[\w./-]{1,60}")


@dataclass(frozen=True, slots=True)
class Document:
    """The value of a file, and the places of its parts.

    ``lines`` maps the path of a value, such as ``("objectives", 1, "target")``, to the 1-based line
    of its key or list entry; it is empty for Jsonnet.  ``names`` are names of values in a file of
    another tool, where they differ from the path.  ``aliases`` map the paths of aliases to the
    paths of their anchors.
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
        """Return the name of the value at ``path`` for messages."""
        known = len(path)
        while known and path[:known] not in self.names:
            known -= 1
        whole = field_name(path[known:])
        base = self.names.get(path[:known], "") if self.names else ""
        return f"{base}.{whole}".strip(".").replace(".[", "[")

    def alias(self, path: Keys) -> tuple[Keys, Keys] | None:
        """Return the alias that contains the value at ``path``, and the path at its anchor."""
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
    """Read one file; raises :class:`~slos.errors.InvalidFile` with all problems.

    ``.jsonnet`` and ``.libsonnet`` are evaluated, with ``libraries`` as further folders to import
    from; any other suffix is YAML, which includes JSON.
    """
    document, problems = scan_document(path, libraries)
    if problems:
        raise InvalidFile(in_order(problems))
    return document


def scan_document(
    path: str | Path, libraries: Sequence[Path] = ()
) -> tuple[Document, list[Problem]]:
    """Read the only document of a file, and return it with the problems found on the way.

    A second document is a problem.  Raises as :func:`scan_documents`.
    """
    (document, *more), problems = scan_documents(path, libraries)
    if more:
        message, fix = "a second document starts", "put each document into its own file"
        problems.append(Problem(document.file, more[0].line(()), "", message, fix))
    return document, problems


def scan_documents(
    path: str | Path, libraries: Sequence[Path] = ()
) -> tuple[list[Document], list[Problem]]:
    """Read all documents of a file, and return them with the problems found on the way.

    For callers that also check the values, and report all problems at once.  Raises
    :class:`~slos.errors.InvalidFile` if nothing can be read.  Empty documents next to others are
    left out.
    """
    from documents.composer import compose_yaml  # PyYAML's memory is for those who read files

    file = str(path)
    try:
        text = read_text(None if file == STDIN else Path(path), MAX_BYTES)
        if Path(path).suffix in JSONNET:
            return [_from_jsonnet(file, text, libraries)], []
        roots, flaws = compose_yaml(text, ComposeOptions(_scalar, MAX_NODES, MAX_DEPTH))
    except UnreadableText as unreadable:
        raise InvalidFile(_problems(file, unreadable.flaws)) from None
    if not roots:
        _refuse(file, 0, "is empty", "write the settings into it")
    documents = [_document(file, line, root) for line, root in roots]
    filled = [document for document in documents if document.value is not None]
    return filled or documents[:1], _problems(file, flaws)


def _problems(file: str, flaws: Iterable[Flaw]) -> list[Problem]:
    return [Problem(file, flaw.line, "", flaw.message, flaw.fix) for flaw in flaws]


def _scalar(scalar: Scalar) -> Value:
    """Return the value of a scalar in YAML 1.2's core schema."""
    text = scalar.text
    if scalar.style:  # quoted, or a block of text
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise RefusedScalar(f"{quoted(text)} is too long a number", "put it in quotes")
        return int(text, 10 if text[1:2] not in ("o", "x") else 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def field_name(path: Iterable[str | int]) -> str:
    """Write a path as ``objectives[1].target``."""
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


def _from_jsonnet(file: str, text: str, libraries: Sequence[Path]) -> Document:
    try:
        value = json.loads(evaluate(file, text, libraries))
    except JsonnetError as error:
        message = printable(" ".join(error.message.split())).rstrip(".")
        message = message or "fails without saying why"
        _refuse(error.file, error.line, message, "correct the Jsonnet")
    except RecursionError:
        _refuse(file, 0, *too_deep(MAX_DEPTH))
    _count(file, value)
    return Document(file, value)


def _count(file: str, value: Value) -> None:
    """Check the limits on Jsonnet's output."""
    level, nodes, depth = [value], 0, 0
    while level:
        nodes, depth = nodes + len(level), depth + 1
        if depth > MAX_DEPTH:
            _refuse(file, 0, *too_deep(MAX_DEPTH))
        if nodes > MAX_NODES:
            _refuse(file, 0, *too_many(MAX_NODES))
        level = [
            child
            for parent in level
            if isinstance(parent, list | dict)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]


def _document(file: str, line: int, root: Node) -> Document:
    builder = _ValueBuilder({(): line})
    value = builder.plain(root, ())
    return Document(file, value, builder.lines, aliases=builder.aliases)


@dataclass(slots=True)
class _ValueBuilder:
    """Builds plain values from nodes, with the lines and the aliases."""

    lines: dict[Keys, int]
    aliases: dict[Keys, Keys] = field(default_factory=dict)
    first: dict[int, Keys] = field(default_factory=dict)

    def plain(self, node: Node, path: Keys) -> Value:
        """Return the value of the node at ``path``."""
        before = self.first.setdefault(id(node), path)
        if before != path:
            self.aliases[path] = before
        if node.items is not None:
            return [self._child(*child, (*path, i)) for i, child in enumerate(node.items)]
        if node.entries is not None:
            return {key: self._child(*child, (*path, key)) for key, child in node.entries.items()}
        value: Value = node.value  # type: ignore[assignment]  # made by _scalar
        return value

    def _child(self, line: int, node: Node, path: Keys) -> Value:
        self.lines[path] = line
        return self.plain(node, path)
