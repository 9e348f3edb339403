"""Compose YAML or JSON text into nodes that carry line numbers.

YAML is read from the parser's events, not through a loader, so that a text can neither name a
Python object nor grow without bound: an alias counts as often as it is used.  JSON becomes the same
events.  :class:`~documents.nodes.ComposeOptions` sets how strict the composer is, and what becomes
of a scalar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import yaml

from documents.files import Flaw, UnreadableText, quoted
from documents.nodes import ComposeOptions, Node, RefusedScalar, Scalar, too_deep, too_many

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Event = Any  # PyYAML's events share no typed interface

# Characters that YAML forbids, and the line breaks of YAML 1.1 that editors ignore, as they would
# shift the line numbers.
_UNPRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)

# Fixes by parts of libyaml's messages.
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


def compose_yaml(text: str, options: ComposeOptions) -> tuple[list[tuple[int, Node]], list[Flaw]]:
    """Return line and root of each YAML document, and the flaws that did not stop the composer.

    Raises :class:`~documents.files.UnreadableText` for the others.
    """
    if options.strict and (found := _unprintable(text)):
        raise UnreadableText(found)
    composer = _Composer(options)
    try:
        roots = list(composer.documents(yaml.parse(text, Loader=_LOADER)))
    except yaml.MarkedYAMLError as error:
        raise UnreadableText(*composer.flaws, _syntax_flaw(error, options)) from None
    except yaml.YAMLError as error:
        message = f"is not valid YAML: {' '.join(str(error).split())}"
        flaw = _unprintable(text) or Flaw(0, message, options.syntax_fix or _SYNTAX_FIX)
        raise UnreadableText(flaw) from None
    return roots, composer.flaws


def compose_json(text: str, options: ComposeOptions) -> Node:
    """Return the root of a JSON text; raises :class:`~documents.files.UnreadableText`.

    ``reading.scalar`` is given the text of strings, in the style ``"``; other scalars are values.
    """
    try:
        json.loads(text, parse_int=_integer)
    except RecursionError:
        raise UnreadableText(Flaw(0, *too_deep(options.max_depth))) from None
    except json.JSONDecodeError as error:
        flaw = Flaw(error.lineno, f"is not valid JSON: {error.msg}", "correct it")
        raise UnreadableText(flaw) from None
    ((_, root),) = _Composer(options).documents(_json_events(text))
    return root


def _unprintable(text: str) -> Flaw | None:
    if not (found := _UNPRINTABLE.search(text)):
        return None
    return Flaw(
        text.count("\n", 0, found.start()) + 1,
        f"the character U+{ord(found[0]):04X} is not allowed in YAML",
        'delete it, or write it as an escape such as "\\u001b" in double quotes',
    )


def _syntax_flaw(error: yaml.MarkedYAMLError, options: ComposeOptions) -> Flaw:
    problem = error.problem or error.context or "unreadable"
    mark: Any = error.problem_mark or error.context_mark
    # Of an unclosed bracket or quote, the start says more than the end of the file.
    if "expected ','" in problem or "end of stream" in problem:
        mark = error.context_mark or mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    fix = next((fix for part, fix in _SYNTAX_FIXES if part in problem), _SYNTAX_FIX)
    message = f"is not valid YAML: {problem} at column {column}"
    return Flaw(line, message, options.syntax_fix or fix)


# JSON as events of YAML

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]]|[^\s{}\[\]:,"]+')
_LONGEST_INTEGER = 20


def _integer(digits: str) -> float:
    """Read an integer of any length; long ones as floats, which take no quadratic time."""
    return int(digits) if len(digits) < _LONGEST_INTEGER else float(digits)


def _json_events(text: str) -> Iterator[_Event]:
    """Yield the events of a valid JSON text; scalars that are not text carry their value."""
    yield yaml.StreamStartEvent()
    yield yaml.DocumentStartEvent()
    line, counted = 0, 0
    for token in _JSON_TOKEN.finditer(text):
        line += text.count("\n", counted, token.start())
        counted = token.start()
        mark = yaml.Mark("", counted, line, 0, None, 0)
        match token[0][0]:
            case "{":
                yield yaml.MappingStartEvent(None, None, True, mark)
            case "[":
                yield yaml.SequenceStartEvent(None, None, True, mark)
            case "}":
                yield yaml.MappingEndEvent(mark)
            case "]":
                yield yaml.SequenceEndEvent(mark)
            case quote:
                value = json.loads(token[0], parse_int=_integer)
                style = quote if quote == '"' else None
                yield yaml.ScalarEvent(None, None, (True, True), value, mark, style=style)
    yield yaml.DocumentEndEvent()
    yield yaml.StreamEndEvent()


_OPEN = Node(size=0)
"""The node of an anchor whose value is incomplete."""


class _Composer:
    """Compose nodes from the parser's events, and collect flaws."""

    def __init__(self, options: ComposeOptions) -> None:
        self.options = options
        self.flaws: list[Flaw] = []
        self.anchors: dict[str, Node] = {}
        self.nodes = 0

    def documents(self, events: Iterable[_Event]) -> Iterator[tuple[int, Node]]:
        """Yield line and root of each document."""
        self.events = iter(events)
        self._next()  # the stream starts
        while isinstance(self._next(), yaml.DocumentStartEvent):
            first = self._next()
            self.anchors.clear()
            yield _line(first), self._node(first, 1)
            self._next()  # the document ends

    def _next(self) -> _Event:
        return next(self.events)

    def _flaw(self, event: _Event, message: str, fix: str) -> None:
        self.flaws.append(Flaw(_line(event), message, fix))

    def _fatal(self, event: _Event, message: str, fix: str) -> NoReturn:
        self._flaw(event, message, fix)
        raise UnreadableText(*self.flaws)

    def _node(self, event: _Event, depth: int) -> Node:
        """Compose the value that ``event`` starts."""
        if isinstance(event, yaml.AliasEvent):
            node = self._anchored(event)
            self._check_limits(event, node.size, depth + node.height - 1)
            return node
        self._check_limits(event, 1, depth)
        if event.tag is not None and self.options.strict:
            self._flaw(event, f"the tag {_tag(event.tag)} is not allowed", "delete it")
        anchor = event.anchor
        if anchor is not None:
            self.anchors[anchor] = _OPEN
        before = self.nodes
        if isinstance(event, yaml.MappingStartEvent):
            node = self._mapping(depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(depth)
        else:
            node = Node(self._scalar(event))
        node.size = self.nodes - before + 1
        node.height = 1 + max((child.height for _, child in _children(node)), default=0)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def _check_limits(self, event: _Event, size: int, depth: int) -> None:
        """Add a value of ``size`` nodes, the lowest at ``depth``."""
        self.nodes += size
        if self.nodes > self.options.max_nodes:
            self._fatal(event, *too_many(self.options.max_nodes))
        if depth > self.options.max_depth:
            self._fatal(event, *too_deep(self.options.max_depth))

    def _anchored(self, event: _Event) -> Node:
        name = str(event.anchor)
        node = self.anchors.get(name)
        if node is _OPEN:
            self._fatal(event, f"the alias *{name} is inside its own value", "remove it")
        if node is None:
            self._fatal(event, f"the alias *{name} has no value", f"write &{name} at its value")
        return node

    def _sequence(self, depth: int) -> Node:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append((_line(event), self._node(event, depth + 1)))
        return Node(items=items)

    def _mapping(self, depth: int) -> Node:
        entries: dict[str, tuple[int, Node]] = {}
        merged: list[tuple[str, tuple[int, Node]]] = []
        strict = self.options.strict
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key, line = self._node(event, depth + 1), _line(event)
            value = self._node(self._next(), depth + 1)
            name = key.value
            if not strict:
                entries[name if isinstance(name, str) else repr(key.plain())[:60]] = (line, value)
            elif not isinstance(name, str):
                self._flaw(event, "a key is not text", "quote the key")
            elif name == "<<" and not getattr(event, "style", None):
                self._flaw(event, "merge keys are not supported", "write the keys out")
                merged += _merged(value)
            elif name in entries:
                message = f"the key {quoted(name)} is defined on line {entries[name][0]} already"
                self._flaw(event, message, "delete one of them")
            else:
                entries[name] = (line, value)
        # Keys from a refused merge are not reported as missing.
        return Node(entries={**dict(reversed(merged)), **entries})

    def _scalar(self, event: _Event) -> object:
        if not isinstance(event.value, str):
            return event.value
        try:
            return self.options.scalar(Scalar(event.value, _line(event), event.style or ""))
        except RefusedScalar as refused:
            self._flaw(event, refused.message, refused.fix)
            return event.value


def _line(event: _Event) -> int:
    return int(event.start_mark.line) + 1


def _children(node: Node) -> Iterable[tuple[int, Node]]:
    return node.items or (node.entries or {}).values()


def _merged(value: Node) -> list[tuple[str, tuple[int, Node]]]:
    """Return the entries of a merge key, in order of precedence."""
    parts = [value, *(part for _, part in value.items or ())]
    return [entry for part in parts for entry in (part.entries or {}).items()]


def _tag(tag: str) -> str:
    return quoted(tag.replace("tag:yaml.org,2002:", "!!"))
