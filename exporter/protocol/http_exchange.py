"""One request over HTTP/1 and its answer: told from its arrival to its end."""

from __future__ import annotations

import hashlib
from typing import Final

from exporter.protocol import openai
from exporter.protocol.decompression import Inflater, supports
from exporter.protocol.endpoints import Target, classify, path_of
from exporter.protocol.events import Listener, ObserverSettings, Outcome, Stream
from exporter.protocol.http1_framing import (
    BodyFraming,
    Fields,
    RequestHead,
    ResponseHead,
    TakeBody,
    values,
)
from exporter.protocol.json_scan import JsonScanner, name
from exporter.protocol.response import KSERVE, ApiFormat, ResponseReader, of_status
from exporter.protocol.sse import SseSplitter

ANSWER_BYTES: Final = 16 * 1024 * 1024
"""So much of an answer that is no stream is looked through."""


class HttpExchange:
    """Tells of a request if it asks for tokens; ``stream`` is None if it does not.

    Its prompt is the hash of its path and its body, with all that is in there: an ``id`` that
    differs makes another prompt.
    """

    __slots__ = (
        "_answer",
        "_api",
        "_closing",
        "_digest",
        "_ended",
        "_failed_late",
        "_has_body",
        "_inflater",
        "_listener",
        "_marked",
        "_scanner",
        "_splitter",
        "_started",
        "_status",
        "method",
        "stream",
    )

    def __init__(
        self, request: RequestHead, listener: Listener, settings: ObserverSettings
    ) -> None:
        self.method = request.method
        self._listener = listener
        self._started = self._closing = self._ended = self._has_body = self._marked = False
        self._failed_late = False
        self._status = 0
        self._answer: ResponseReader | None = None
        self._scanner: JsonScanner | None = None
        self._splitter: SseSplitter | None = None
        path = path_of(request.target)
        target = classify(request.method, path)
        self.stream: Stream | None = None
        self._api: ApiFormat = KSERVE
        if isinstance(target, Target):
            self._api = target.api
            self.stream = Stream(
                target.endpoint,
                target.model,
                target.version,
                streaming=target.endpoint == "generate_stream",
            )
        elif target:
            listener.skipped(target)
        self._digest = hashlib.blake2b(path + b"\n", digest_size=8, key=settings.salt[:64])
        if self.stream:
            self.stream.tenant = _tenant(request, settings)
            self._scanner = JsonScanner(self._api.request)
            self._inflater = _inflater(self._scanner, _encoding(request.fields))

    @property
    def live(self) -> bool:
        """Whether it was told and has not ended."""
        return self._started and not self._ended

    @property
    def held(self) -> int:
        """How many bytes of what passed by are held."""
        parts = (self._scanner, self._splitter, self._answer)
        stream = self.stream
        names = (stream.model, stream.version, stream.tenant, stream.request_id) if stream else ()
        return sum(part.held for part in parts if part) + sum(map(len, names))

    def asks(self, piece: bytes, time: float) -> None:
        """Take in a piece of the request's body."""
        if self._scanner and not self._started:
            self._digest.update(piece)
            self._has_body = True
            if self._inflater:
                self._inflater.feed(piece, time)
            else:
                self._scanner.feed(piece)

    def arrived(self, time: float) -> None:
        """Take in that the request has arrived whole."""
        if self.stream and not self._started:
            if self._has_body:
                self.stream.prompt = int.from_bytes(self._digest.digest())
            self._start(self.stream, time, time)

    def answers(
        self, head: ResponseHead, body: BodyFraming, began: float, time: float
    ) -> TakeBody | None:
        """Take in the head of the answer, which began to come at ``began``.

        Returns what takes its body, None if that says nothing.
        """
        stream = self.stream
        if not stream:
            return None
        if not self._started:
            self._start(stream, began, time)
        self._status = head.status
        timing = values(head.fields, openai.TIMING_HEADER)
        stream.stages = openai.stages(b",".join(timing)) or stream.stages
        if not 200 <= head.status < 300:
            # Triton says 400 for whatever goes wrong in a model too, but only of requests that it
            # refuses it knows the length of what it has to say (http_server.cc).
            late = head.status == 400 and body in (BodyFraming.CHUNKED, BodyFraming.UNTIL_CLOSE)
            self._failed_late = late and self._api is KSERVE
            return None
        self._answer = ResponseReader(self._api, stream, self._listener)
        kind = b",".join(values(head.fields, b"content-type")).lower()
        stream.streaming = kind.startswith(b"text/event-stream")
        encoding = _encoding(head.fields)
        if encoding and not supports(encoding):
            self._read_no_more()
            return self._skip
        take: TakeBody = self._scan
        if stream.streaming:
            self._marked = body is BodyFraming.UNTIL_CLOSE and self._api.ends
            self._splitter = SseSplitter(self._answer.event, self._answer.found, self._api.answer)
            take = self._splitter.feed
        else:
            self._scanner = JsonScanner(self._api.answer, ANSWER_BYTES)
        return Inflater(encoding, take, self._cannot_inflate).feed if encoding else take

    def leave(self, time: float) -> None:
        """Take in that the client sends no more."""
        if self.stream and self.live and not self._closing and not self._is_done:
            self._closing = True
            self._listener.closing(self.stream, time)

    def blocked(self) -> None:
        """Note that the client does not read."""
        if self.stream and self.live:
            self._listener.blocked(self.stream)

    def backpressure(self, seconds: float) -> None:
        """Take in for how long the client did not read."""
        if self.stream and self.live:
            self._listener.backpressure(self.stream, seconds)

    def complete(self, time: float) -> None:
        """Take in the end of the answer."""
        if not self._answer:
            outcome = "error" if self._failed_late else of_status(self._status)
            self._end(time, outcome, str(self._status))
        elif self._marked and not self._answer.done:
            self.broken_off(time, "truncated")
        else:
            if self._scanner:
                self._answer.whole(self._scanner.found)
            self._end(time, *self._answer.outcome(self._status))

    def broken_off(self, time: float, word: str) -> None:
        """Take in that the server ended the connection before the answer was complete."""
        if self._answer and self._is_done:
            self._end(time, *self._answer.outcome(self._status))
        elif self._closing:
            self._end(time, "disconnected", "", time)
        else:
            failed = self._answer and self._answer.failed
            self._end(time, "error", "in_band" if failed else word)

    def left(self, time: float, stopped: float | None) -> None:
        """Take in that the client is gone; ``stopped``: when the server was seen after that."""
        if self._answer and self._is_done:
            self._end(time, *self._answer.outcome(self._status))
        else:
            self._end(time, "disconnected", "", stopped)

    def lose(self, *, gap: bool) -> None:
        """Take in that it cannot be followed, after a ``gap`` even if it has not started."""
        if self.stream and not self._ended and (self._started or gap):
            self._ended = True
            self._listener.lost(self.stream)

    @property
    def _is_done(self) -> bool:
        return self._answer is not None and self._answer.done

    def _start(self, stream: Stream, arrived: float, time: float) -> None:
        if self._scanner:
            asked = self._api.asked(self._scanner.found)
            stream.model = stream.model or asked.model
            stream.request_id = asked.request_id
            stream.choices = asked.choices
            stream.streaming = stream.streaming or asked.streaming
        self._scanner = None
        stream.arrived = arrived
        self._started = True
        self._listener.started(stream, time)

    def _end(
        self, time: float, outcome: Outcome, reason: str, stopped: float | None = None
    ) -> None:
        if self.stream and self.live:
            self._ended = True
            self._listener.ended(self.stream, time, outcome, reason, stopped)

    def _scan(self, piece: bytes, time: float) -> None:
        if self._scanner:
            self._scanner.feed(piece)

    def _skip(self, piece: bytes, time: float) -> None:
        """Pass over a piece of an answer that cannot be read."""
        if self.stream:
            self.stream.unread = True

    def _read_no_more(self) -> None:
        """Give up on the rest of an answer: its outcome shows, its tokens do not."""
        self._listener.skipped("compressed")
        self._marked = False
        self._scanner = self._splitter = None
        if self.stream:
            self.stream.opaque = True

    def _cannot_inflate(self) -> None:
        self._read_no_more()
        self._skip(b"", 0.0)


def _tenant(request: RequestHead, settings: ObserverSettings) -> str:
    found = values(request.fields, settings.tenant_header.encode())
    return name(found[0].decode("utf-8", "replace")) if found else ""


def _inflater(scanner: JsonScanner, encoding: bytes) -> Inflater | None:
    """Return what decompresses a request's body for a scanner, None if nothing can or must."""
    if not supports(encoding):
        return None
    return Inflater(encoding, lambda data, _: scanner.feed(data))


def _encoding(fields: Fields) -> bytes:
    """Return how a body is compressed, empty if it is not."""
    encoding = b",".join(values(fields, b"content-encoding")).strip().lower()
    return b"" if encoding == b"identity" else encoding
