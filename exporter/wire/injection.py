"""Asks engines for their own timing of each request, and takes it out of the answers again.

This is the only place where bytes of clients are changed, and only where that was asked for
(``--inject perf-metrics``).  Two kinds of servers can be asked:

* Triton's TensorRT-LLM backends, by an input of the model: ``return_perf_metrics`` of the C++
  backend (docs/model_config.md of tensorrtllm_backend), ``sampling_param_return_perf_metrics`` of
  the LLM API's model.  Only models that have such an input are asked, because Triton refuses
  requests with inputs it does not know.
* trtllm-serve of 1.3 and later, by the request header ``X-TRTLLM-return-metrics: 1``, which other
  servers ignore (TensorRT-LLM, openai_server.py).

HTTP/1 only, and only what is plain: a request that is not (chunked, ``Expect``, too large, not
JSON) goes through as it is, and so does its answer.  Whoever asks for the timing by itself keeps
it.  Ambiguous framing is not dealt with here: observers refuse it before.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal
from urllib.parse import unquote

from exporter.wire import kserve, openai

INPUTS = ("return_perf_metrics", "sampling_param_return_perf_metrics")
"""The inputs by which a model can be asked; it has at most one of them."""

OUTPUTS = frozenset(
    {
        *kserve.TIMES,
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

MAX_HEAD = 64 * 1024
MAX_REQUEST = 1024 * 1024
MAX_ANSWER = 8 * 1024 * 1024

Waiting = Generator[None, None, None]
Kind = Literal["as_it_is", "kserve", "openai"]

_KSERVE = re.compile(rb"POST /v2/models/([^/ ?]+)(?:/versions/[^/ ?]+)?/generate(?:_stream)? ")
_OPENAI = re.compile(rb"POST [^ ?]*/v1/(?:chat/)?completions[ ?]")
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request's answer is to be treated like; ``bodiless`` is one to HEAD."""

    kind: Kind
    bodiless: bool = False


class Injection:
    """The two directions of one connection; bytes go in, the bytes to pass on come out.

    ``input_of`` says by which input a model can be asked, an empty text if by none or if nobody
    knows yet.
    """

    def __init__(self, input_of: Callable[[str], str]) -> None:
        self._asked: deque[_Asked] = deque()
        self._requests = _Messages(_Requests(input_of, self._asked))
        self._answers = _Messages(_Answers(self._asked))

    def from_client(self, data: bytes) -> bytes:
        """Return what to send to the server."""
        return self._requests.feed(data)

    def from_server(self, data: bytes) -> bytes:
        """Return what to send to the client."""
        return self._answers.feed(data)

    def client_ended(self) -> bytes:
        """Return what is still held of a direction that has ended."""
        return self._requests.ended()

    def server_ended(self) -> bytes:
        """Return what is still held of a direction that has ended."""
        return self._answers.ended()


Body = Literal["none", "length", "chunked", "rest"]


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a message goes on after its head, and what becomes of its body.

    ``head`` is what to pass on, without the blank line.  With ``whole`` the body is held until all
    of it is there and then changed, as its length is told first; with ``changing`` it is changed
    as it comes.
    """

    head: bytes
    body: Body
    length: int = 0
    whole: Callable[[bytes], bytes] | None = None
    changing: _Events | _Document | None = None


class _Requests:
    def __init__(self, input_of: Callable[[str], str], asked: deque[_Asked]) -> None:
        self._input_of = input_of
        self._asked = asked

    def plan(self, head: bytes) -> _Plan:
        fields = _fields(head)
        body, length = _framing(fields)
        whole = None
        kind: Kind = "as_it_is"
        if match := _KSERVE.match(head):
            name = self._input_of(unquote(match[1].decode("latin-1")))
            if name and body == "length" and length <= MAX_REQUEST and b"expect" not in fields:
                kind, whole = "kserve", partial(_asking, name=name)
        elif _OPENAI.match(head) and b"x-trtllm-return-metrics" not in fields:
            kind, head = "openai", b"%b\r\n%b" % (head, ASK)
        self._asked.append(_Asked(kind, head.startswith(b"HEAD ")))
        if b"upgrade" in fields or head.startswith(b"CONNECT "):
            body = "rest"
        return _Plan(head, body, length, whole)

    def done(self, changed: bool) -> None:
        """Note whether the body of the last request asks now."""
        if not changed:
            self._asked[-1] = _Asked("as_it_is")


class _Answers:
    def __init__(self, asked: deque[_Asked]) -> None:
        self._asked = asked

    def plan(self, head: bytes) -> _Plan:
        status = head[9:12]
        if not self._asked or status == b"101":
            return _Plan(head, "rest")
        if status.startswith(b"1"):
            return _Plan(head, "none")
        asked = self._asked.popleft()
        fields = _fields(head)
        body, length = _framing(fields, until_close=True)
        if asked.bodiless or status in (b"204", b"304"):
            return _Plan(head, "none")
        events = fields.get(b"content-type", b"").startswith(b"text/event-stream")
        whole: Callable[[bytes], bytes] | None = None
        changing: _Events | _Document | None = None
        if asked.kind == "openai":
            head = _without(head, HEADERS)
            changing = _Events(_without_timing) if events and body != "length" else None
        elif asked.kind == "kserve" and body == "length":
            whole = _untimed_document if length <= MAX_ANSWER else None
        elif asked.kind == "kserve":
            changing = _Events(_untimed_event) if events else _Document(_untimed_document)
        return _Plan(head, body, length, whole, changing)

    def done(self, changed: bool) -> None:
        """Take note of nothing: no direction follows this one."""


class _Messages:
    """One direction: heads and bodies one after the other.

    The work runs as far as the bytes reach, and waits for more of them at each ``yield``.
    ``_begun`` is what it has taken and will pass on once more is there: a head whose body is to be
    changed, or the line before a chunk.
    """

    def __init__(self, side: _Requests | _Answers) -> None:
        self._side = side
        self._held = bytearray()
        self._begun = b""
        self._changing: _Events | _Document | None = None
        self._changing_chunks: _Events | _Document | None = None
        self._out: list[bytes] = []
        self._work = self._run()
        next(self._work)

    def feed(self, data: bytes) -> bytes:
        self._held += data
        next(self._work)
        out = b"".join(self._out)
        self._out.clear()
        return out

    def ended(self) -> bytes:
        """Give back what is held, as it came: cut off, but not to be read as anything else."""
        if self._changing_chunks:
            self._chunk(self._changing_chunks.end())
        elif self._changing:
            self._out.append(self._changing.end())
        return b"".join((*self._out, self._begun, self._take(len(self._held))))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken

    def _run(self) -> Waiting:
        while True:
            while (end := self._head_end()) < 0:
                if len(self._held) > MAX_HEAD:
                    yield from self._rest()
                yield
            plan = self._side.plan(self._take(end + 4)[:-4])
            if plan.whole:
                yield from self._whole(plan, plan.whole)
                continue
            self._out.append(plan.head + b"\r\n\r\n")
            if plan.body == "length":
                yield from self._passed(plan.length)
            elif plan.body == "chunked":
                yield from self._chunks(plan.changing)
            elif plan.body == "rest":
                self._changing = plan.changing
                yield from self._rest()

    def _head_end(self) -> int:
        """Return where the head ends that comes next, -1 if it is not whole."""
        while self._held.startswith(b"\r\n"):  # empty lines before it (RFC 9112, section 2.2)
            self._out.append(self._take(2))
        return self._held.find(b"\r\n\r\n")

    def _rest(self) -> Waiting:
        while True:
            held = self._take(len(self._held))
            self._out.append(self._changing.feed(held) if self._changing else held)
            yield

    def _whole(self, plan: _Plan, change: Callable[[bytes], bytes]) -> Waiting:
        self._begun = plan.head + b"\r\n\r\n"
        while len(self._held) < plan.length:
            yield
        self._begun = b""
        before = self._take(plan.length)
        after = change(before)
        self._side.done(before != after)
        self._out.append(_with_length(plan.head, len(after)) + b"\r\n\r\n" + after)

    def _passed(self, length: int) -> Waiting:
        while length:
            part = self._take(length)
            self._out.append(part)
            length -= len(part)
            if length:
                yield

    def _line(self) -> Generator[None, None, bytes]:
        while (end := self._held.find(b"\r\n")) < 0:
            if len(self._held) > MAX_HEAD:
                yield from self._rest()
            yield
        return self._take(end + 2)

    def _chunks(self, changing: _Events | _Document | None) -> Waiting:
        self._changing_chunks = changing
        while True:
            line = yield from self._line()
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:  # not for us to judge: whoever reads it will
                if changing:
                    self._chunk(changing.end())
                self._out.append(line)
                yield from self._rest()
            if not size:
                break
            if changing and size <= MAX_ANSWER:
                self._begun = line
                while len(self._held) < size + 2:
                    yield
                self._begun = b""
                self._chunk(changing.feed(self._take(size + 2)[:-2]))
            else:
                self._out.append(line)
                yield from self._passed(size + 2)
        if changing:
            self._chunk(changing.end())
        self._changing_chunks = None
        while True:
            self._out.append(line)
            if line == b"\r\n":
                return
            line = yield from self._line()

    def _chunk(self, data: bytes) -> None:
        if data:
            self._out.append(b"%x\r\n%b\r\n" % (len(data), data))


class _Events:
    """A body of server-sent events, each of which is changed when it is there."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        held, out, at = self._held + data, [], 0
        for match in _EVENT_END.finditer(held):
            out.append(self._change(held[at : match.end()]))
            at = match.end()
        self._held = held[at:]
        if len(self._held) > MAX_ANSWER:
            out.append(self.end())
        return b"".join(out)

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return held


class _Document:
    """A body that is changed once all of it is there."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change: Callable[[bytes], bytes] | None = change
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        held, self._held = self._held + data, b""
        if self._change and len(held) <= MAX_ANSWER:
            self._held = held
            return b""
        self._change = None  # too large: as it is, with all that follows
        return held

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return self._change(held) if self._change else held


# Heads


def _fields(head: bytes) -> dict[bytes, bytes]:
    """Return the header fields by lower-case name; of several the first."""
    fields: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        fields.setdefault(name.strip().lower(), value.strip())
    return fields


def _framing(fields: dict[bytes, bytes], *, until_close: bool = False) -> tuple[Body, int]:
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        return "chunked", 0
    length = fields.get(b"content-length", b"")
    if length.isdigit():
        return "length", int(length)
    return ("rest" if until_close else "none"), 0


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
    if json.loads(after).keys() <= kserve.BESIDE_OUTPUTS:
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
