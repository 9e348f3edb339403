"""Track one HTTP/1 request and its response, from arrival to outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from exporter.outcome_rules import ERROR_BYTES, outcome_of, wanted_headers
from exporter.protocol import openai
from exporter.protocol.decompression import Inflater, supports
from exporter.protocol.endpoints import Target, classify, path_of
from exporter.protocol.events import Listener, ObserverSettings, Stream
from exporter.protocol.http1_framing import (
    BodyCallback,
    BodyFraming,
    Fields,
    RequestHead,
    ResponseHead,
    values,
)
from exporter.protocol.json_scan import JsonScanner, name
from exporter.protocol.prompt_size import PromptScanner
from exporter.protocol.repeated_event import RepeatedEvent
from exporter.protocol.response import KSERVE, ApiFormat, ResponseReader
from exporter.protocol.sse import SseSplitter
from slos.outcomes import Outcome

_NO_HEADERS: Final[Mapping[str, str]] = {}
RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""The bytes of a non-streaming response that are scanned."""


class HttpExchange:
    """Report an inference request to the listener; ``stream`` is None for other requests.

    Its prompt is the hash of its path and its whole body, a request id included.
    """

    __slots__ = (
        "_api",
        "_closing",
        "_compressed",
        "_digest",
        "_ended",
        "_error",
        "_failed_late",
        "_has_body",
        "_headers",
        "_inflater",
        "_listener",
        "_needs_end_marker",
        "_reader",
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
        self._started = self._closing = self._ended = self._has_body = self._needs_end_marker = (
            False
        )
        self._failed_late = self._compressed = False
        self._status = 0
        self._headers: Mapping[str, str] = _NO_HEADERS
        self._error = b""
        self._reader: ResponseReader | None = None
        self._scanner: JsonScanner | None = None
        self._splitter: SseSplitter | None = None
        self._digest: hashlib.blake2b | None = None
        self._inflater: Inflater | None = None
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
        if self.stream:
            self._digest = hashlib.blake2b(path + b"\n", digest_size=8, key=settings.salt[:64])
            self.stream.tenant = _tenant(request, settings)
            new = PromptScanner if settings.measure_prompts else JsonScanner
            self._scanner = new(self._api.request)
            self._inflater = _inflater(self._scanner, _encoding(request.fields))

    @property
    def live(self) -> bool:
        """Whether the request has started and has not ended."""
        return self._started and not self._ended

    @property
    def held(self) -> int:
        """The number of bytes in buffers."""
        parts = (self._scanner, self._splitter, self._reader)
        stream = self.stream
        names = (stream.model, stream.version, stream.tenant, stream.request_id) if stream else ()
        return sum(part.held for part in parts if part) + sum(map(len, names)) + len(self._error)

    @property
    def repeated(self) -> RepeatedEvent | None:
        """The event that the next chunk of the response may repeat, None if unknown."""
        if self._splitter and self._splitter.between and self._reader and not self._compressed:
            return self._reader.repeated
        return None

    def feed_request(self, part: bytes, time: float) -> None:
        """Feed a part of the request's body."""
        if self._scanner and self._digest:
            self._digest.update(part)
            self._has_body = True
            if self._inflater:
                self._inflater.feed(part, time)
            else:
                self._scanner.feed(part)

    def request_complete(self, time: float) -> None:
        """Handle the end of the request."""
        if self.stream and not self._started:
            if self._digest and self._has_body:
                self.stream.prompt = int.from_bytes(self._digest.digest())
            self._start(self.stream, time, time)

    def response_head(
        self, head: ResponseHead, body: BodyFraming, began: float, time: float
    ) -> BodyCallback | None:
        """Handle the head of the response, whose first byte came at ``began``.

        Return the callback for its body, None if the body is of no interest.
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
            # Triton answers 400 also to failures inside a model, but sends a Content-Length only
            # for requests that it refuses (http_server.cc).
            late = head.status == 400 and body in (BodyFraming.CHUNKED, BodyFraming.UNTIL_CLOSE)
            self._failed_late = late and self._api is KSERVE
            self._headers = wanted_headers(
                {name.decode("latin-1"): value.decode("latin-1") for name, value in head.fields}
            )
            encoding = _encoding(head.fields)
            if encoding and not supports(encoding):
                return None
            return Inflater(encoding, self._hold_error).feed if encoding else self._hold_error
        self._reader = ResponseReader(self._api, stream, self._listener)
        kind = b",".join(values(head.fields, b"content-type")).lower()
        stream.streaming = kind.startswith(b"text/event-stream")
        encoding = _encoding(head.fields)
        if encoding and not supports(encoding):
            self._mark_opaque()
            return self._skip
        take: BodyCallback = self._scan
        if stream.streaming:
            self._needs_end_marker = self._api.ends
            self._splitter = SseSplitter(
                self._reader.event, self._reader.long_event, self._api.response
            )
            take = self._splitter.feed
        else:
            self._scanner = JsonScanner(self._api.response, RESPONSE_BYTES)
        self._compressed = bool(encoding)
        return Inflater(encoding, take, self._inflate_failed).feed if encoding else take

    def client_closing(self, time: float) -> None:
        """Handle the FIN of the client."""
        if self.stream and self.live and not self._closing and not self._is_done:
            self._closing = True
            self._listener.closing(self.stream, time)

    def blocked(self) -> None:
        """Mark the client as not reading."""
        if self.stream and self.live:
            self._listener.blocked(self.stream)

    def backpressure(self, seconds: float) -> None:
        """Record the seconds for which the client did not read."""
        if self.stream and self.live:
            self._listener.backpressure(self.stream, seconds)

    def response_complete(self, time: float) -> None:
        """Handle the end of the response."""
        if not self._reader:
            self._end_by_status(time)
        elif self._needs_end_marker and not self._reader.ended:
            self._end_without(time, "response_unended")
        else:
            if self._scanner:
                self._reader.document(self._scanner.found)
            self._end(time, *self._reader.outcome())

    def server_closed(self, time: float, *, reset: bool) -> None:
        """Handle a connection that the server closed or reset before the end of the response."""
        if self._reader and self._reader.ended and (self._is_done or not self._closing):
            self._end(time, *self._reader.outcome())
        elif self._reader or self._closing or not self._status:
            began = "response" if self._reader else "no_response"
            self._end_without(time, f"{began}_{'reset' if reset else 'closed'}")
        else:
            self._end_by_status(time)

    def client_disconnected(self, time: float, stopped: float | None) -> None:
        """Handle the client's disconnect; ``stopped``: when the server last sent after it."""
        if self._reader and self._is_done:
            self._end(time, *self._reader.outcome())
        else:
            self._end(time, "client_disconnected", "", stopped)

    def mark_lost(self, *, gap: bool) -> None:
        """Report the request as lost; with missing bytes (``gap``) even if it has not started."""
        if self.stream and not self._ended and (self._started or gap):
            self._ended = True
            self._listener.lost(self.stream)

    @property
    def _is_done(self) -> bool:
        return self._reader is not None and self._reader.done

    def _start(self, stream: Stream, arrived: float, time: float) -> None:
        if self._scanner:
            fields = self._api.read_request(self._scanner.found)
            stream.model = stream.model or fields.model
            stream.request_id = fields.request_id
            stream.choices = fields.choices
            stream.streaming = stream.streaming or fields.streaming
        if isinstance(self._scanner, PromptScanner):
            stream.prompt_tokens, stream.prompt_bytes = self._scanner.length()
        self._scanner = self._digest = self._inflater = None
        stream.arrived = arrived
        self._started = True
        self._listener.started(stream, time)

    def _end(
        self, time: float, outcome: Outcome, reason: str, stopped: float | None = None
    ) -> None:
        if self.stream and self.live:
            self._ended = True
            self._listener.ended(self.stream, time, outcome, reason, stopped)

    def _end_by_status(self, time: float) -> None:
        """End a request whose response is an error."""
        code = "accepted_400" if self._failed_late else str(self._status)
        self._end(time, *outcome_of(code, self._headers, self._error))

    def _end_without(self, time: float, code: str) -> None:
        """End a response without its terminal event: truncated, unless the client closed first."""
        if self._closing:
            self._end(time, "client_disconnected", "", time)
        else:
            self._end(time, *outcome_of(code))

    def _hold_error(self, part: bytes, time: float) -> None:
        """Hold the start of the body of an error until its outcome is known."""
        if len(self._error) < ERROR_BYTES:
            self._error += part[: ERROR_BYTES - len(self._error)]

    def _scan(self, part: bytes, time: float) -> None:
        if self._scanner:
            self._scanner.feed(part)

    def _skip(self, part: bytes, time: float) -> None:
        """Skip a part of a response that cannot be decompressed."""
        if self.stream:
            self.stream.unread = True

    def _mark_opaque(self) -> None:
        """Skip the rest of a response; its outcome is still observed."""
        self._listener.skipped("compressed")
        self._needs_end_marker = False
        self._scanner = self._splitter = None
        if self.stream:
            self.stream.opaque = True

    def _inflate_failed(self) -> None:
        self._mark_opaque()
        self._skip(b"", 0.0)


def _tenant(request: RequestHead, settings: ObserverSettings) -> str:
    found = values(request.fields, settings.tenant_header.encode())
    return name(found[0].decode("utf-8", "replace")) if found else ""


def _inflater(scanner: JsonScanner, encoding: bytes) -> Inflater | None:
    """Return the decompressor of a request's body, None if it has none or is unsupported."""
    if not supports(encoding):
        return None
    return Inflater(encoding, lambda data, _: scanner.feed(data))


def _encoding(fields: Fields) -> bytes:
    """Return the Content-Encoding of a body, empty if it has none."""
    encoding = b",".join(values(fields, b"content-encoding")).strip().lower()
    return b"" if encoding == b"identity" else encoding
