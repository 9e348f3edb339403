"""Knows an event again that differs from an earlier one only in its text.

Nearly all events of a stream do: what they say is then known without reading their JSON.  An event
that was read in full becomes the likeness of those after it: what stands before and after the one
text in it.  An event with the same before and after, and nothing but a JSON string between them, is
the same document but for that string.  ``usage`` may differ too where it comes last, and so may a
``sequence_number`` after the text, which counts events.

Of the earlier event only names and numbers are kept, never the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from exporter.protocol.json_scan import Found, loaded
from exporter.protocol.payloads import ResponsePart

MAX_BYTES = 2048
"""What is longer is read in full every time."""

_STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)"(\s*:)?', re.DOTALL)
_BODY = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_BACKSLASH = b"\\"[0]
_NUMBER = re.compile(rb'(?<="sequence_number":)[0-9]{1,18}(?=[,}])')
_DIGITS = re.compile(rb"[0-9]{1,18}+")
_USAGE = re.compile(rb'"usage"\s*:\s*')
# The members whose strings are names and no text, wherever they stand.
_NAMES = frozenset(
    (
        *(b"id", b"object", b"model", b"role", b"type", b"finish_reason", b"system_fingerprint"),
        *(b"service_tier", b"model_name", b"model_version", b"item_id"),
    )
)


class EventTemplate(NamedTuple):
    """What stands before and after the text, and where that starts.

    With ``usage`` that member's value follows, and the end of the document.  With ``tail`` a number
    and that follow.
    """

    before: bytes
    after: bytes
    start: int
    usage: bool
    tail: bytes = b""

    def match(self, data: bytes) -> int:
        """Return where ``after`` ends in an event that is like this, -1 in any other."""
        before, after, start, usage, tail = self
        if not data.startswith(before):
            return -1
        end = data.find(b'"', start)
        if data[end - 1] == _BACKSLASH and (body := _BODY.match(data, start)):
            end = body.end()
        if end < 0 or not data.startswith(after, end):
            return -1
        end += len(after)
        if tail:
            digits = _DIGITS.match(data, end)
            return digits.end() if digits and data[digits.end() :] == tail else -1
        return end if usage or end == len(data) else -1


def likeness(
    data: bytes, piece: ResponsePart, read: Callable[[Mapping[str, Found]], ResponsePart]
) -> EventTemplate | None:
    """Return the likeness of an event that says ``piece``, as ``read`` finds; None if it has none.

    It has one if a single string in it may be text, and the event without that says the same but
    bears none.
    """
    if not piece.bears or len(data) > MAX_BYTES:
        return None
    span = _text(data)
    if not span:
        return None
    start, end = span
    without = loaded(data[:start] + data[end:])
    if without is None or read(without) != piece._replace(bears=False):
        return None
    if piece.usage is None and (number := _NUMBER.search(data, end)):
        after, tail = data[end : number.start()], data[number.end() :]
        return EventTemplate(data[:start], after, start, usage=False, tail=tail)
    if piece.usage is None:
        return EventTemplate(data[:start], data[end:], start, usage=False)
    ends = [member.end() for member in _USAGE.finditer(data, end)]
    if not ends or usage_at(data, ends[-1]) != without.get("usage"):
        return None
    return EventTemplate(data[:start], data[end : ends[-1]], start, usage=True)


def usage_at(data: bytes, at: int) -> Found:
    """Return the value that ends a document at its last brace, None if there is none."""
    if not data.endswith(b"}"):
        return None
    try:
        value: Found = json.loads(data[at:-1].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value


def _text(data: bytes) -> tuple[int, int] | None:
    """Return where the one string stands that may be text, without its quotes."""
    found, key = None, b""
    for string in _STRING.finditer(data):
        if string[2] is not None:
            key = string[1]
            continue
        if string[1] and key not in _NAMES:
            if found:
                return None
            found = string.span(1)
        key = b""
    return found
