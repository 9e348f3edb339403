"""Request engine timing for each request, and remove it from the responses again.

Only this module and :mod:`exporter.protocol.timing_removal` change bytes of clients, and only with
``--tap-inject perf-metrics``.  Two kinds of servers support it:

* Triton's TensorRT-LLM backends, by a model input: ``return_perf_metrics`` of the C++ backend
  (docs/model_config.md of tensorrtllm_backend), ``sampling_param_return_perf_metrics`` of the LLM
  API's model.  Only requests to models with such an input are changed, because Triton refuses
  requests with unknown inputs.
* trtllm-serve of 1.3 and later, by the request header ``X-TRTLLM-return-metrics: 1``, which other
  servers ignore (TensorRT-LLM, openai_server.py).

Requests that are not plain HTTP/1 (chunked, ``Expect``, too large, not JSON) pass unchanged, and so
do their responses.  A client that itself requests the timing receives it.  After bytes that are not
HTTP/1, the whole connection passes unchanged.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from urllib.parse import unquote

from exporter.protocol.http1_framing import (
    BodyFraming,
    Framing,
    MalformedMessage,
    MessageParser,
    body_of_request,
    body_of_response,
    request,
    response,
    values,
)
from exporter.protocol.timing_removal import (
    HEADERS,
    MAX_RESPONSE,
    DocumentRewriter,
    EventRewriter,
    with_length,
    without_document_timing,
    without_event_timing,
    without_headers,
    without_timing_event,
)

INPUTS = ("return_perf_metrics", "sampling_param_return_perf_metrics")
"""Model inputs that request timing; a model has at most one of them."""

RETURN_METRICS_HEADER = b"X-TRTLLM-return-metrics: 1"

MAX_REQUEST = 1024 * 1024

Kind = Literal["unchanged", "kserve", "openai"]

_KSERVE = re.compile(rb"POST /v2/models/([^/ ?]+)(?:/versions/[^/ ?]+)?/generate(?:_stream)? ")
_OPENAI = re.compile(rb"POST [^ ?]*/v1/(?:chat/)?completions[ ?]")


@dataclass(frozen=True, slots=True)
class _PendingResponse:
    """How to treat the response of a request; ``method`` is the request's."""

    kind: Kind
    method: bytes


class Injection:
    """Rewrite the two directions of a connection: bytes in, bytes to forward out.

    ``input_of`` returns the input by which a model reports timing, empty if it has none or if that
    is unknown yet.
    """

    def __init__(self, input_of: Callable[[str], str]) -> None:
        self._pending: deque[_PendingResponse] = deque()
        self._requests = _Rewriter(_RequestPlanner(input_of, self._pending))
        self._responses = _Rewriter(_ResponsePlanner(self._pending))

    def from_client(self, data: bytes) -> bytes:
        """Return the bytes to send to the server."""
        return self._requests.feed(data)

    def from_server(self, data: bytes) -> bytes:
        """Return the bytes to send to the client."""
        sent = self._responses.feed(data)
        if self._responses.raw:
            self._requests.raw = True
        return sent

    def client_ended(self) -> bytes:
        """Return the bytes still buffered when the client's direction ends."""
        return self._requests.ended()

    def server_ended(self) -> bytes:
        """Return the bytes still buffered when the server's direction ends."""
        return self._responses.ended()


class _Opaque(Exception):  # noqa: N818 - no error
    """The next bytes are not HTTP/1, or are a response without a request."""


@dataclass(frozen=True, slots=True)
class _RewritePlan:
    """How to rewrite a message.

    ``head`` is the head to forward, without the empty line.  ``whole`` changes a complete body,
    which is buffered because its length comes first.  ``changing`` changes a body incrementally.
    """

    head: bytes
    framing: Framing
    whole: Callable[[bytes], bytes] | None = None
    changing: EventRewriter | DocumentRewriter | None = None


class _RequestPlanner:
    def __init__(self, input_of: Callable[[str], str], pending: deque[_PendingResponse]) -> None:
        self._input_of = input_of
        self._pending = pending

    def plan(self, head: bytes) -> _RewritePlan:
        found = request(head)
        framing = body_of_request(found)
        names = {name for name, _ in found.fields}
        whole = None
        kind: Kind = "unchanged"
        if match := _KSERVE.match(head):
            name = self._input_of(unquote(match[1].decode("latin-1")))
            held = framing.body is BodyFraming.LENGTH and framing.length <= MAX_REQUEST
            if name and held and b"expect" not in names:
                kind, whole = "kserve", partial(_with_timing_input, name=name)
        elif _OPENAI.match(head) and b"x-trtllm-return-metrics" not in names:
            kind, head = "openai", b"%b\r\n%b" % (head, RETURN_METRICS_HEADER)
        self._pending.append(_PendingResponse(kind, found.method))
        return _RewritePlan(head, framing, whole)

    def done(self, changed: bool) -> None:
        """Record whether the body of the last request was changed."""
        if not changed:
            self._pending[-1] = replace(self._pending[-1], kind="unchanged")


class _ResponsePlanner:
    def __init__(self, pending: deque[_PendingResponse]) -> None:
        self._pending = pending

    def plan(self, head: bytes) -> _RewritePlan:
        found = response(head)
        framing = body_of_response(found, self._pending[0].method) if self._pending else None
        if framing is None:
            raise _Opaque
        if framing.interim:
            return _RewritePlan(head, framing)
        pending = self._pending.popleft()
        if framing.body is BodyFraming.NONE and pending.kind == "kserve":
            return _RewritePlan(head, framing)
        kind = b",".join(values(found.fields, b"content-type"))
        events = kind.startswith(b"text/event-stream")
        is_sized = framing.body is BodyFraming.LENGTH
        whole: Callable[[bytes], bytes] | None = None
        changing: EventRewriter | DocumentRewriter | None = None
        if pending.kind == "openai":
            head = without_headers(head, HEADERS)
            changing = EventRewriter(without_timing_event) if events and not is_sized else None
        elif pending.kind == "kserve" and is_sized:
            whole = without_document_timing if framing.length <= MAX_RESPONSE else None
        elif pending.kind == "kserve":
            changing = (
                EventRewriter(without_event_timing)
                if events
                else DocumentRewriter(without_document_timing)
            )
        return _RewritePlan(head, framing, whole, changing)

    def done(self, changed: bool) -> None:
        """Do nothing: no message depends on a response."""


class _Rewriter:
    """Rewrite the messages of one direction.

    ``raw``: everything passes unchanged, because the bytes are not HTTP/1.  ``_held_start`` and
    ``_held_parts`` are buffered until they are complete: a head whose body is to be changed, or a
    chunk size line, and the bytes after it.
    """

    def __init__(self, side: _RequestPlanner | _ResponsePlanner) -> None:
        self.raw = False
        self._side = side
        self._messages = MessageParser(self._head, self._pass, self._end, self._framed)
        self._plan: _RewritePlan | None = None
        self._changing: EventRewriter | DocumentRewriter | None = None
        self._chunked = False
        self._held_start = b""
        self._held_parts: list[bytes] = []
        self._out: list[bytes] = []
        self._unparsed = 0

    def feed(self, data: bytes) -> bytes:
        if self.raw:
            return self.ended() + data
        before = self._messages.pending
        self._unparsed += len(data)
        try:
            self._messages.feed(data, 0.0)
        except (MalformedMessage, _Opaque):
            self.raw = True
            self._flush()
            both = before + data
            self._out.append(both[len(both) - self._unparsed :])
            self._messages = MessageParser(self._head, self._pass, self._end)
        return self._take_output()

    def ended(self) -> bytes:
        """Return the buffered bytes of a truncated message unchanged."""
        self._flush()
        self._out.append(self._messages.pending)
        self._messages = MessageParser(self._head, self._pass, self._end)
        return self._take_output()

    def _take_output(self) -> bytes:
        out = b"".join(self._out)
        self._out.clear()
        return out

    def _head(self, head: bytes, began: float, time: float) -> Framing:
        plan = self._side.plan(head)
        self._unparsed -= len(head) + 4
        self._plan, self._changing = plan, plan.changing
        self._chunked = plan.framing.body is BodyFraming.CHUNKED
        if plan.whole:
            self._held_start = plan.head + b"\r\n\r\n"
        else:
            self._out.append(plan.head + b"\r\n\r\n")
        held = plan.whole or (plan.changing and self._chunked)
        self._messages.on_body = self._hold if held else self._pass
        return plan.framing

    def _pass(self, part: bytes, time: float) -> None:
        self._unparsed -= len(part)
        self._out.append(self._changing.feed(part) if self._changing else part)

    def _hold(self, part: bytes, time: float) -> None:
        self._unparsed -= len(part)
        self._held_parts.append(part)

    def _framed(self, data: bytes) -> None:
        """Handle a chunk size line, the end of a chunk, or other body framing."""
        self._unparsed -= len(data)
        changing = self._changing if self._chunked else None
        if changing is None:
            self._out.append(data)
        elif self._held_start:
            self._chunk(changing.feed(b"".join(self._held_parts)))
            self._held_start = b""
            self._held_parts.clear()
        elif 0 < int(data.partition(b";")[0], 16) <= MAX_RESPONSE:
            self._held_start = data
        else:  # the last chunk, or one that is too large: the rest passes unchanged
            self._flush()
            self._changing = None
            self._messages.on_body = self._pass
            self._out.append(data)

    def _end(self, time: float) -> None:
        if self._plan and self._plan.whole:
            before = b"".join(self._held_parts)
            after = self._plan.whole(before)
            self._side.done(before != after)
            self._out.append(with_length(self._plan.head, len(after)) + b"\r\n\r\n" + after)
            self._held_start = b""
            self._held_parts.clear()
        self._plan = self._changing = None

    def _flush(self) -> None:
        """Forward the buffered bytes."""
        if self._changing and (rest := self._changing.end()):
            if self._chunked:
                self._chunk(rest)
            else:
                self._out.append(rest)
        self._out += (self._held_start, *self._held_parts)
        self._held_start = b""
        self._held_parts.clear()

    def _chunk(self, data: bytes) -> None:
        if data:
            self._out.append(b"%x\r\n%b\r\n" % (len(data), data))


def _with_timing_input(document: bytes, name: str) -> bytes:
    """Add the timing input to a request, unless it is not an object or has that input."""
    try:
        fields = json.loads(document)
    except (ValueError, RecursionError):
        return document
    if not isinstance(fields, dict) or not fields or name in fields:
        return document
    start = document.index(b"{") + 1
    return b'%b"%b":true,%b' % (document[:start], name.encode(), document[start:])
