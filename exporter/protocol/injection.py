"""Asks engines for their own timing of each request, and takes it out of the answers again.

This is the only place where bytes of clients are changed, and only where that was asked for
(``--tap-inject perf-metrics``).  Two kinds of servers can be asked:

* Triton's TensorRT-LLM backends, by an input of the model: ``return_perf_metrics`` of the C++
  backend (docs/model_config.md of tensorrtllm_backend), ``sampling_param_return_perf_metrics`` of
  the LLM API's model.  Only models that have such an input are asked, because Triton refuses
  requests with inputs it does not know.
* trtllm-serve of 1.3 and later, by the request header ``X-TRTLLM-return-metrics: 1``, which other
  servers ignore (TensorRT-LLM, openai_server.py).

HTTP/1 only, and only what is plain: a request that is not (chunked, ``Expect``, too large, not
JSON) goes through as it is, and so does its answer.  Whoever asks for the timing by itself keeps
it.  What is no HTTP/1 goes through as it is, with all that follows.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from urllib.parse import unquote

from exporter.protocol import kserve_http, openai
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

INPUTS = ("return_perf_metrics", "sampling_param_return_perf_metrics")
"""The inputs by which a model can be asked; it has at most one of them."""

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
"""What a model adds to its answer when asked."""

ASK = b"X-TRTLLM-return-metrics: 1"
HEADERS = frozenset(
    {
        openai.TIMING_HEADER,
        b"x-trtllm-start-end-time",
        b"x-trtllm-step-metrics",
        b"x-trtllm-ctx-chunk-metrics",
    }
)
"""What trtllm-serve adds to the head of an answer when asked; a stream has them in EVENT."""
EVENT = b"event: " + openai.TIMING_EVENT

MAX_REQUEST = 1024 * 1024
MAX_ANSWER = 8 * 1024 * 1024

Kind = Literal["as_it_is", "kserve", "openai"]

_KSERVE = re.compile(rb"POST /v2/models/([^/ ?]+)(?:/versions/[^/ ?]+)?/generate(?:_stream)? ")
_OPENAI = re.compile(rb"POST [^ ?]*/v1/(?:chat/)?completions[ ?]")
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_EVENT_END_BYTES = 4
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request's answer is to be treated like; ``method`` is the request's."""

    kind: Kind
    method: bytes


class Injection:
    """The two directions of one connection; bytes go in, the bytes to pass on come out.

    ``input_of`` says by which input a model can be asked, an empty text if by none or if nobody
    knows yet.
    """

    def __init__(self, input_of: Callable[[str], str]) -> None:
        self._asked: deque[_Asked] = deque()
        self._requests = _Rewriter(_Requests(input_of, self._asked))
        self._answers = _Rewriter(_Answers(self._asked))

    def from_client(self, data: bytes) -> bytes:
        """Return what to send to the server."""
        return self._requests.feed(data)

    def from_server(self, data: bytes) -> bytes:
        """Return what to send to the client."""
        sent = self._answers.feed(data)
        if self._answers.raw:
            self._requests.raw = True
        return sent

    def client_ended(self) -> bytes:
        """Return what is still held of a direction that has ended."""
        return self._requests.ended()

    def server_ended(self) -> bytes:
        """Return what is still held of a direction that has ended."""
        return self._answers.ended()


class _Opaque(Exception):  # noqa: N818 - no error
    """What follows is not HTTP/1, or has no request that it answers."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a message goes on after its head, and what becomes of its body.

    ``head`` is what to pass on, without the blank line.  With ``whole`` the body is held until all
    of it is there and then changed, as its length is told first; with ``changing`` it is changed
    as it comes.
    """

    head: bytes
    framing: Framing
    whole: Callable[[bytes], bytes] | None = None
    changing: _Events | _Document | None = None


class _Requests:
    def __init__(self, input_of: Callable[[str], str], asked: deque[_Asked]) -> None:
        self._input_of = input_of
        self._asked = asked

    def plan(self, head: bytes) -> _Plan:
        found = request(head)
        framing = body_of_request(found)
        names = {name for name, _ in found.fields}
        whole = None
        kind: Kind = "as_it_is"
        if match := _KSERVE.match(head):
            name = self._input_of(unquote(match[1].decode("latin-1")))
            held = framing.body is BodyFraming.LENGTH and framing.length <= MAX_REQUEST
            if name and held and b"expect" not in names:
                kind, whole = "kserve", partial(_asking, name=name)
        elif _OPENAI.match(head) and b"x-trtllm-return-metrics" not in names:
            kind, head = "openai", b"%b\r\n%b" % (head, ASK)
        self._asked.append(_Asked(kind, found.method))
        return _Plan(head, framing, whole)

    def done(self, changed: bool) -> None:
        """Note whether the body of the last request asks now."""
        if not changed:
            self._asked[-1] = replace(self._asked[-1], kind="as_it_is")


class _Answers:
    def __init__(self, asked: deque[_Asked]) -> None:
        self._asked = asked

    def plan(self, head: bytes) -> _Plan:
        found = response(head)
        framing = body_of_response(found, self._asked[0].method) if self._asked else None
        if framing is None:
            raise _Opaque
        if framing.interim:
            return _Plan(head, framing)
        asked = self._asked.popleft()
        if framing.body is BodyFraming.NONE and asked.kind == "kserve":
            return _Plan(head, framing)
        kind = b",".join(values(found.fields, b"content-type"))
        events = kind.startswith(b"text/event-stream")
        is_sized = framing.body is BodyFraming.LENGTH
        whole: Callable[[bytes], bytes] | None = None
        changing: _Events | _Document | None = None
        if asked.kind == "openai":
            head = _without(head, HEADERS)
            changing = _Events(_without_timing) if events and not is_sized else None
        elif asked.kind == "kserve" and is_sized:
            whole = _untimed_document if framing.length <= MAX_ANSWER else None
        elif asked.kind == "kserve":
            changing = _Events(_untimed_event) if events else _Document(_untimed_document)
        return _Plan(head, framing, whole, changing)

    def done(self, changed: bool) -> None:
        """Take note of nothing: no direction follows this one."""


class _Rewriter:
    """One direction: the messages of the parser, with some of their bodies changed.

    ``raw`` says that everything passes as it is, as what came is not HTTP/1.  ``_begun`` and
    ``_pieces`` are held until the rest of them is there: a head whose body is to be changed, or the
    line before a chunk, and what follows.
    """

    def __init__(self, side: _Requests | _Answers) -> None:
        self.raw = False
        self._side = side
        self._messages = MessageParser(self._head, self._pass, self._end, self._framed)
        self._plan: _Plan | None = None
        self._changing: _Events | _Document | None = None
        self._chunked = False
        self._begun = b""
        self._pieces: list[bytes] = []
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
        return self._taken()

    def ended(self) -> bytes:
        """Give back what is held, as it came: cut off, but not to be read as anything else."""
        self._flush()
        self._out.append(self._messages.pending)
        self._messages = MessageParser(self._head, self._pass, self._end)
        return self._taken()

    def _taken(self) -> bytes:
        out = b"".join(self._out)
        self._out.clear()
        return out

    def _head(self, head: bytes, began: float, time: float) -> Framing:
        plan = self._side.plan(head)
        self._unparsed -= len(head) + 4
        self._plan, self._changing = plan, plan.changing
        self._chunked = plan.framing.body is BodyFraming.CHUNKED
        if plan.whole:
            self._begun = plan.head + b"\r\n\r\n"
        else:
            self._out.append(plan.head + b"\r\n\r\n")
        held = plan.whole or (plan.changing and self._chunked)
        self._messages.take_body = self._hold if held else self._pass
        return plan.framing

    def _pass(self, piece: bytes, time: float) -> None:
        self._unparsed -= len(piece)
        self._out.append(self._changing.feed(piece) if self._changing else piece)

    def _hold(self, piece: bytes, time: float) -> None:
        self._unparsed -= len(piece)
        self._pieces.append(piece)

    def _framed(self, data: bytes) -> None:
        """Take a line of a chunk's size, the end of a chunk, or what is about no chunk."""
        self._unparsed -= len(data)
        changing = self._changing if self._chunked else None
        if changing is None:
            self._out.append(data)
        elif self._begun:
            self._chunk(changing.feed(b"".join(self._pieces)))
            self._begun = b""
            self._pieces.clear()
        elif 0 < int(data.partition(b";")[0], 16) <= MAX_ANSWER:
            self._begun = data
        else:  # the last chunk, or one that is too large: as it is, with all that follows
            self._flush()
            self._changing = None
            self._messages.take_body = self._pass
            self._out.append(data)

    def _end(self, time: float) -> None:
        if self._plan and self._plan.whole:
            before = b"".join(self._pieces)
            after = self._plan.whole(before)
            self._side.done(before != after)
            self._out.append(_with_length(self._plan.head, len(after)) + b"\r\n\r\n" + after)
            self._begun = b""
            self._pieces.clear()
        self._plan = self._changing = None

    def _flush(self) -> None:
        """Pass on what is held."""
        if self._changing and (rest := self._changing.end()):
            if self._chunked:
                self._chunk(rest)
            else:
                self._out.append(rest)
        self._out += (self._begun, *self._pieces)
        self._begun = b""
        self._pieces.clear()

    def _chunk(self, data: bytes) -> None:
        if data:
            self._out.append(b"%x\r\n%b\r\n" % (len(data), data))


class _Events:
    """A body of server-sent events, each of which is changed when it is there."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        held, out = self._held, []
        if not held and data.find(b"\n\n") == len(data) - 2 >= 0 and b"\r" not in data:
            return self._change(data)  # a whole event, as most pieces are
        searched = max(0, len(held) - _EVENT_END_BYTES + 1)
        held += data
        at = 0
        while match := _EVENT_END.search(held, searched):
            out.append(self._change(bytes(held[at : match.end()])))
            at = searched = match.end()
        del held[:at]
        if len(held) > MAX_ANSWER:
            out.append(self.end())
        return b"".join(out)

    def end(self) -> bytes:
        held, self._held = self._held, bytearray()
        return bytes(held)


class _Document:
    """A body that is changed once all of it is there."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change: Callable[[bytes], bytes] | None = change
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        self._held += data
        if self._change and len(self._held) <= MAX_ANSWER:
            return b""
        self._change = None  # too large: as it is, with all that follows
        return self.end()

    def end(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
        return self._change(held) if self._change else held


# Heads


def _without(head: bytes, names: Container[bytes]) -> bytes:
    first, *lines = head.split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in names]
    return b"\r\n".join([first, *kept])


def _with_length(head: bytes, length: int) -> bytes:
    return _without(head, (b"content-length",)) + b"\r\nContent-Length: %d" % length


# Bodies


def _asking(document: bytes, name: str) -> bytes:
    """Add the input to a request; leave alone what is no object, or asks already."""
    try:
        fields = json.loads(document)
    except (ValueError, RecursionError):
        return document
    if not isinstance(fields, dict) or not fields or name in fields:
        return document
    start = document.index(b"{") + 1
    return b'%b"%b":true,%b' % (document[:start], name.encode(), document[start:])


def _untimed_event(event: bytes) -> bytes:
    """Take the timing out of an event of generate_stream; nothing is left of one that was only it.

    Without timing Triton sends no event for an empty last response.
    """
    if b"_time_ns" not in event and b"kv_cache_" not in event:
        return event
    start, end = event.find(b"{"), event.rfind(b"}") + 1
    before = event[start:end]
    after = _untimed_document(before)
    if after == before:
        return event
    if json.loads(after).keys() <= kserve_http.BESIDE_OUTPUTS:
        return b""
    return event[:start] + after + event[end:]


def _untimed_document(document: bytes) -> bytes:
    """Take the timing out of an answer of generate, and leave every other byte as it is."""
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


def _without_timing(event: bytes) -> bytes:
    return b"" if event.startswith(EVENT) else event
