"""Read protobuf's text format (``config.pbtxt``) into nodes with line numbers, without a schema.

Unquoted ``${name}`` of NVIDIA's templates is a scalar too, so that a template can be checked.
A repeated field becomes a list; a field that occurs once keeps its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from documents.files import Flaw, UnreadableText, quoted
from documents.nodes import Node

MAX_DEPTH = 64
MAX_TOKENS = 500_000
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>(?:[\w.+-]|\$\{[^}\n]*\})+)
    |(?P<mark>[{}<>\[\]:,;/])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CLOSING = {"{": "}", "<": ">"}
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class _ProtoToken:
    kind: str
    text: str
    line: int


def parse_text_proto(text: str) -> Node:
    """Return the message of a text; raises :class:`~documents.files.UnreadableText`."""
    reader = _TextProtoReader(_tokens(text))
    return reader.message("", 1)


def _tokens(text: str) -> Iterator[_ProtoToken]:
    """Yield tokens, then one of kind ``end``."""
    position, line = 0, 1
    count = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            shown = quoted(text[position : position + 20].split("\n")[0])
            fix = "close the quotes, or delete the character"
            raise UnreadableText(Flaw(line, f"is not protobuf text format at {shown}", fix))
        kind = found.lastgroup or ""
        if kind != "space":
            count += 1
            if count > MAX_TOKENS:
                raise UnreadableText(Flaw(line, f"has more than {MAX_TOKENS:,} tokens", "split it"))
            yield _ProtoToken(kind, found[0], line)
        line += found[0].count("\n")
        position = found.end()
    yield _ProtoToken("end", "", line)


class _TextProtoReader:
    """A recursive-descent reader with one token of lookahead."""

    def __init__(self, tokens: Iterator[_ProtoToken]) -> None:
        self.tokens = tokens
        self.next = next(tokens)

    def message(self, closing: str, depth: int) -> Node:
        """Read fields until ``closing``, which is consumed; empty means the end of the text."""
        if depth > MAX_DEPTH:
            raise self._flaw(f"is nested deeper than {MAX_DEPTH} levels", "flatten it")
        fields: dict[str, list[tuple[int, Node]]] = {}
        while True:
            token = self._take()
            if token.text == closing and token.kind != "text":
                return _message(fields)
            name = self._name(token, closing)
            values = self._values(depth)
            fields.setdefault(name, []).extend((line or token.line, node) for line, node in values)
            if self.next.text in (",", ";") and self.next.kind == "mark":
                self._take()

    def _take(self) -> _ProtoToken:
        token = self.next
        if token.kind != "end":
            self.next = next(self.tokens)
        return token

    def _name(self, token: _ProtoToken, closing: str) -> str:
        if token.text == "[" and token.kind == "mark":
            name = ""
            while (part := self._take()).text != "]":
                if part.kind != "word" and part.text != "/":
                    raise self._flaw("has an extension name that does not end", 'write "]"', part)
                name += part.text
            return f"[{name}]"
        if token.kind == "word" and _NAME.fullmatch(token.text):
            return token.text
        if token.kind == "end":
            raise self._flaw(f'ends inside a message: "{closing}" is missing', f'add "{closing}"')
        fix = "write name: value, or name { … }"
        raise self._flaw(f"{quoted(token.text)} is not the name of a field", fix, token)

    def _values(self, depth: int) -> list[tuple[int, Node]]:
        """Read what follows a name: a scalar, a message or a list of either."""
        colon = self.next.text == ":" and self.next.kind == "mark"
        if colon:
            self._take()
        if self.next.kind != "mark":
            if not colon:
                raise self._flaw("has a field without a value", 'write a ":" before the value')
            return [self._value(depth)]
        if self.next.text != "[":
            return [self._value(depth)]
        self._take()
        found: list[tuple[int, Node]] = []
        while not (self.next.text == "]" and self.next.kind == "mark"):
            found.append(self._value(depth))
            if self.next.text == "," and self.next.kind == "mark":
                self._take()
            elif self.next.text != "]":
                raise self._flaw("has a list without a comma or an end", 'write "," or "]"')
        self._take()
        return found

    def _value(self, depth: int) -> tuple[int, Node]:
        token = self._take()
        if token.kind == "mark" and token.text in _CLOSING:
            return token.line, self.message(_CLOSING[token.text], depth + 1)
        if token.kind == "text":
            parts = [token.text]
            while self.next.kind == "text":
                parts.append(self._take().text)
            return token.line, Node("".join(map(_unquoted, parts)))
        if token.kind == "word":
            if token.text == "-" and self.next.kind == "word":
                return token.line, Node(f"-{self._take().text}")
            return token.line, Node(token.text)
        raise self._flaw("has a field without a value", "write the value after the name", token)

    def _flaw(self, message: str, fix: str, token: _ProtoToken | None = None) -> UnreadableText:
        return UnreadableText(Flaw((token or self.next).line, message, fix))


def _message(fields: dict[str, list[tuple[int, Node]]]) -> Node:
    entries = {}
    for name, values in fields.items():
        if len(values) == 1:
            entries[name] = values[0]
        else:
            entries[name] = (values[0][0] if values else 0, Node(items=values))
    return Node(entries=entries)


def _unquoted(literal: str) -> str:
    return _ESCAPE.sub(_character, literal[1:-1])


def _character(found: re.Match[str]) -> str:
    hexadecimal, octal, four, eight, other = found.groups()
    if octal:
        return chr(int(octal, 8) & 0xFF)
    if digits := hexadecimal or four or eight:
        code = int(digits, 16)
        return chr(code) if code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else "\ufffd"
    return _ESCAPES.get(other, other)
