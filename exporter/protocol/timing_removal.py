"""Remove engine timing from responses: headers, events and JSON members."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator

from exporter.protocol import kserve_http, openai

OUTPUTS = frozenset(
    {
        *kserve_http.TIMES,
        "kv_cache_alloc_new_blocks",
        "kv_cache_alloc_total_blocks",
        "kv_cache_reused_blocks",
        "kv_cache_reused_block",  # the LLM API's model writes these two in the singular
        "kv_cache_missed_block",
        "kv_cache_hit_rate",
        "acceptance_rate",
        "total_accepted_draft_tokens",
        "total_draft_tokens",
    }
)
"""The outputs that a model adds to a response with timing."""

HEADERS = frozenset(
    {
        openai.TIMING_HEADER,
        b"x-trtllm-start-end-time",
        b"x-trtllm-step-metrics",
        b"x-trtllm-ctx-chunk-metrics",
    }
)
"""The headers that trtllm-serve adds to a response with timing; a stream has EVENT instead."""
EVENT = b"event: " + openai.TIMING_EVENT

MAX_RESPONSE = 8 * 1024 * 1024
"""The size limit of a buffered body or event; larger ones pass unchanged."""

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_EVENT_END_BYTES = 4
_SPACE = re.compile(r"[ \t\r\n]*")


class EventRewriter:
    """Change each event of a body of server-sent events as it completes."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to forward after the next bytes of the body."""
        held, out = self._held, []
        if not held and data.find(b"\n\n") == len(data) - 2 >= 0 and b"\r" not in data:
            return self._change(data)  # fast path: one complete event
        searched = max(0, len(held) - _EVENT_END_BYTES + 1)
        held += data
        at = 0
        while match := _EVENT_END.search(held, searched):
            out.append(self._change(bytes(held[at : match.end()])))
            at = searched = match.end()
        del held[:at]
        if len(held) > MAX_RESPONSE:
            out.append(self.end())
        return b"".join(out)

    def end(self) -> bytes:
        """Return the buffered bytes at the end of the body."""
        held, self._held = self._held, bytearray()
        return bytes(held)


class DocumentRewriter:
    """Buffer a body and change it once it is complete."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change: Callable[[bytes], bytes] | None = change
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to forward after the next bytes of the body."""
        self._held += data
        if self._change and len(self._held) <= MAX_RESPONSE:
            return b""
        self._change = None  # too large: the rest passes unchanged
        return self.end()

    def end(self) -> bytes:
        """Return the buffered bytes at the end of the body."""
        held, self._held = bytes(self._held), bytearray()
        return self._change(held) if self._change else held


def without_headers(head: bytes, names: Container[bytes]) -> bytes:
    """Remove header fields from a head."""
    first, *lines = head.split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in names]
    return b"\r\n".join([first, *kept])


def with_length(head: bytes, length: int) -> bytes:
    """Set the Content-Length of a head."""
    return without_headers(head, (b"content-length",)) + b"\r\nContent-Length: %d" % length


def without_event_timing(event: bytes) -> bytes:
    """Remove the timing from a generate_stream event; drop an event that holds nothing else.

    Without timing Triton sends no event for an empty last response.
    """
    if b"_time_ns" not in event and b"kv_cache_" not in event:
        return event
    start, end = event.find(b"{"), event.rfind(b"}") + 1
    before = event[start:end]
    after = without_document_timing(before)
    if after == before:
        return event
    if json.loads(after).keys() <= kserve_http.METADATA_MEMBERS:
        return b""
    return event[:start] + after + event[end:]


def without_document_timing(document: bytes) -> bytes:
    """Remove the timing from a generate response; keep every other byte."""
    try:
        text = document.decode()
        members = list(_members(text))
    except (ValueError, RecursionError, IndexError):
        return document
    kept = [text[start:end] for name, start, end in members if name not in OUTPUTS]
    if len(kept) == len(members):
        return document
    return f"{{{','.join(kept)}}}".encode()


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of each member of a JSON object; raises ValueError."""
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    if text[at] != "{":
        raise ValueError("not an object")
    at = _skip(text, at + 1)
    while text[at] != "}":
        start = at
        if text[at] != '"':
            raise ValueError("not a name")
        name, at = decoder.raw_decode(text, at)
        at = _skip(text, at)
        if text[at] != ":":
            raise ValueError("no value")
        _, at = decoder.raw_decode(text, _skip(text, at + 1))
        yield name, start, at
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        elif text[at] != "}":
            raise ValueError("no end")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def without_timing_event(event: bytes) -> bytes:
    """Drop an event of trtllm-serve that is only timing."""
    return b"" if event.startswith(EVENT) else event
