"""Match events against a template, to avoid parsing the JSON of every event.

Most events of a stream differ from the one before only in their text.  A parsed event becomes the
template of later ones: the bytes before and after its only text.  An event with the same prefix and
suffix, and only a JSON string between them, is the same document except for that string.  A final
``usage`` may differ too, and so may a ``sequence_number`` after the text.

A template holds names and numbers, never text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from exporter.protocol.json_scan import Found, loaded
from exporter.protocol.payloads import ResponsePart

MAX_BYTES = 2048
"""The size limit of an event that becomes a template."""

_STRING = re.compile(rb'"((?:[^"\\]|\\.)*+)"(\s*:)?', re.DOTALL)
_BODY = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_BACKSLASH = b"\\"[0]
_NUMBER = re.compile(rb'(?<="sequence_number":)[0-9]{1,18}(?=[,}])')
_DIGITS = re.compile(rb"[0-9]{1,18}+")
_USAGE = re.compile(rb'"usage"\s*:\s*')
# Members whose strings are names and not text, at any depth.
_NAMES = frozenset(
    (
        *(b"id", b"object", b"model", b"role", b"type", b"finish_reason", b"system_fingerprint"),
        *(b"service_tier", b"model_name", b"model_version", b"item_id"),
    )
)


class EventTemplate(NamedTuple):
    """The bytes before and after the text, and the offset where the text starts.

    With ``usage``, the value of that member follows and ends the document.  With ``tail``, a number
    and then ``tail`` follow.
    """

    before: bytes
    after: bytes
    start: int
    usage: bool
    tail: bytes = b""

    def match(self, data: bytes) -> int:
        """Return the offset where ``after`` ends in a matching event, -1 in any other."""
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


def template_of(
    data: bytes, part: ResponsePart, read: Callable[[Mapping[str, Found]], ResponsePart]
) -> EventTemplate | None:
    """Return the template of an event that ``read`` parses as ``part``; None if it has none.

    An event has a template if only one of its strings may be text, and if the event without that
    string parses the same except for ``has_text``.
    """
    if not part.has_text or len(data) > MAX_BYTES:
        return None
    span = _text(data)
    if not span:
        return None
    start, end = span
    without = loaded(data[:start] + data[end:])
    if without is None or read(without) != part._replace(has_text=False):
        return None
    if part.usage is None and (number := _NUMBER.search(data, end)):
        after, tail = data[end : number.start()], data[number.end() :]
        return EventTemplate(data[:start], after, start, usage=False, tail=tail)
    if part.usage is None:
        return EventTemplate(data[:start], data[end:], start, usage=False)
    ends = [member.end() for member in _USAGE.finditer(data, end)]
    if not ends or usage_at(data, ends[-1]) != without.get("usage"):
        return None
    return EventTemplate(data[:start], data[end : ends[-1]], start, usage=True)


def usage_at(data: bytes, at: int) -> Found:
    """Return the JSON value between an offset and the last brace, None if there is none."""
    if not data.endswith(b"}"):
        return None
    try:
        value: Found = json.loads(data[at:-1].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value


def _text(data: bytes) -> tuple[int, int] | None:
    """Return the offsets of the only string that may be text, without its quotes."""
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
