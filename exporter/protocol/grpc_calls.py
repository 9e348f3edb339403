"""Track the requests of a ModelInfer or ModelStreamInfer call, and how each ends.

A ModelStreamInfer call carries many requests.  A response belongs to the oldest request with its
id; an error without a known id to the oldest of all.  A request ends with the first of

* an ``error_message``;
* a response with ``triton_final_response``.  The server sends an empty one only if the request has
  ``triton_enable_empty_final_response``.  Without it, a decoupled model that does not mark its last
  token ends silently (Triton, grpc/stream_infer_handler.cc);
* for a request with a response, while no end has been seen on the call: the next request with its
  id, or a minute of silence.  It has then ended with its last response;
* the end of the call, with its status.  If the client closed its side only after the last response,
  that is when the request ended.

A client that resets the call cancels all of its requests; one that closes its side cancels none.

A call is one state machine, and stays in one file although it has more than 400 lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from operator import attrgetter

from exporter.outcome_rules import outcome_of
from exporter.protocol.events import Endpoint, Listener, ObserverSettings, Stream
from exporter.protocol.grpc import (
    PREFIX_BYTES,
    GrpcMessage,
    GrpcMessageReader,
    MalformedStreamError,
)
from exporter.protocol.kserve_grpc import (
    HeadCache,
    InferRequest,
    InferResponse,
    scan_request,
    scan_response,
)
from exporter.protocol.protobuf import MalformedMessageError
from slos.outcomes import Outcome

MAX_REQUESTS = 4096
"""Concurrent requests of a connection."""
LINGER_SECONDS = 5.0
"""Silence after a client disconnect, after which the server has stopped."""
QUIET_SECONDS = 60.0
"""Silence after which a request that may end silently has ended."""

SERVICE = b"/inference.GRPCInferenceService/"
ENDPOINTS: dict[bytes, Endpoint] = {
    SERVICE + b"ModelInfer": "model_infer",
    SERVICE + b"ModelStreamInfer": "model_stream_infer",
}


@dataclass(slots=True)
class GrpcCallContext:
    """State shared by the calls of a connection: ``live`` counts active, ``held`` all requests."""

    listener: Listener
    settings: ObserverSettings
    head_cache: HeadCache
    live: int = 0
    held: int = 0


@dataclass(slots=True, eq=False)
class _PendingInference:
    """A request of a call.

    ``last`` is the time of its last response, None before the first.  ``closing``: the client may
    have disconnected; ``after`` is the time of the last response since then.  ``over``: it ended by
    an error, and its final response is still to come.
    """

    stream: Stream
    number: int
    wants_final: bool
    last: float | None = None
    closing: bool = False
    after: float | None = None
    over: bool = False


class GrpcCall:
    """A call after its request headers; ``done`` once all of its requests have ended.

    ``encoding`` is the header ``grpc-encoding`` of the requests.
    """

    __slots__ = (
        "_client_done",
        "_closing",
        "_connection",
        "_endpoint",
        "_head_cache",
        "_listener",
        "_marks_final",
        "_number",
        "_requests",
        "_requests_by_id",
        "_reset_at",
        "_responses",
        "_streaming",
        "_tenant",
        "_unmatched_reported",
        "done",
    )

    def __init__(
        self, connection: GrpcCallContext, endpoint: Endpoint, tenant: str, encoding: bytes
    ) -> None:
        self.done = False
        self._connection = connection
        self._listener = connection.listener
        self._endpoint: Endpoint = endpoint
        self._streaming = endpoint == "model_stream_infer"
        self._tenant = tenant
        self._requests = GrpcMessageReader(encoding, self._start_hash)
        self._responses = GrpcMessageReader()
        self._head_cache = connection.head_cache
        self._requests_by_id: dict[str, deque[_PendingInference]] = {}
        self._number = 0
        self._marks_final = False
        self._client_done: float | None = None
        self._closing = False
        self._reset_at: float | None = None
        self._unmatched_reported = False

    # Client

    def feed_request(self, data: bytes, start: int, stop: int, time: float) -> None:
        """Feed the next bytes of request messages."""
        try:
            for message in self._requests.feed(data, start, stop):
                self._handle_request(message, time)
        except MalformedStreamError as error:
            self.forget(str(error))

    def client_done(self, time: float) -> None:
        """Handle the end of the client's side of the call."""
        if self._client_done is None:
            self._client_done = time

    def client_reset(self, time: float) -> None:
        """Handle the client's reset of this call."""
        self.closing(time)
        self._reset_at = time
        for pending in self._all():
            if pending.over:
                self._drop(pending)
        self.done = not self._requests_by_id

    def closing(self, time: float) -> None:
        """Handle the FIN of the client."""
        self._closing = True
        for pending in self._active():
            if not pending.closing:
                pending.closing = True
                self._listener.closing(pending.stream, time)

    # Server

    def set_response_encoding(self, encoding: bytes) -> None:
        """Set the compression of responses."""
        self._responses.encoding = encoding

    def feed_response(self, data: bytes, start: int, stop: int, time: float) -> None:
        """Feed the next bytes of response messages."""
        size = stop - start - PREFIX_BYTES
        if (
            size > 0
            and data[start] == 0
            and int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big") == size
            and not self._responses.in_message
        ):
            head = self._head_cache.lookup(data, start + PREFIX_BYTES, stop)
            if head is not None:
                queue = self._requests_by_id.get(head[0])
                if queue and not queue[0].over:
                    pending = queue[0]
                    if pending.last is None and head[1]:
                        pending.stream.version = head[1]
                    pending.last = time
                    if pending.closing:
                        pending.after = time
                    if head[2]:
                        self._listener.chunk(pending.stream, time, 0)
                    return
        try:
            for message in self._responses.feed(data, start, stop):
                self._handle_response(message, time)
        except MalformedStreamError as error:
            self.forget(str(error))
        except MalformedMessageError:
            self.forget("malformed")

    def completed(self, outcome: Outcome, reason: str, time: float) -> None:
        """Handle the end of the call with a status."""
        self._begin_partial_request(time)
        for pending in self._active():
            if pending.closing and outcome != "ok":
                # Servers of gRPC's C core answer the client's FIN by UNAVAILABLE, "Socket closed".
                self._end(pending, "client_disconnected", "", time, time)
            else:
                self._complete(pending, outcome, reason, self._ended_at(pending, time))
        self._drop_all()

    def server_ended(self, code: str, time: float) -> None:
        """Handle the end of the call or the connection by the server, without a status.

        ``code`` is one of :mod:`exporter.outcome_rules`, or ``closed`` or ``reset``.
        """
        self._begin_partial_request(time)
        for pending in self._active():
            if pending.closing:
                self._end(pending, "client_disconnected", "", time, time)
            elif code in ("closed", "reset"):
                began = "no_response" if pending.last is None else "response"
                self._end(pending, *outcome_of(f"{began}_{code}"), time)
            else:
                self._end(pending, *outcome_of(code), time)
        self._drop_all()

    # Connection

    def aborted(self, time: float) -> None:
        """Handle the client's disconnect."""
        for pending in self._active():
            self._end(pending, "client_disconnected", "", time, pending.after)
        self._drop_all()

    def forget(self, reason: str = "") -> None:
        """Discard the call; its requests count as lost."""
        if reason:
            self._listener.skipped(reason)
        for pending in self._active():
            self._connection.live -= 1
            self._listener.lost(pending.stream)
        self._drop_all()

    def blocked(self) -> None:
        """Mark the client as not reading."""
        for pending in self._active():
            self._listener.blocked(pending.stream)

    def backpressure(self, seconds: float) -> None:
        """Record the seconds for which the client did not read."""
        for pending in self._active():
            self._listener.backpressure(pending.stream, seconds)

    def expire(self, time: float) -> None:
        """End requests after too long a silence."""
        for pending in self._all():
            last_seen = max(self._reset_at or pending.stream.arrived, pending.last or 0.0)
            if self._reset_at is not None:
                if time - last_seen >= LINGER_SECONDS:
                    if not pending.over:
                        self._end(pending, "client_disconnected", "", time, pending.after)
                    self._drop(pending)
            elif time - last_seen >= QUIET_SECONDS and (
                pending.over or self._may_have_ended(pending)
            ):
                self._end_silently(pending)

    # Requests

    def _handle_request(self, message: GrpcMessage, time: float) -> None:
        if not self._streaming and self._number:
            return  # the response came before the complete request
        if self._connection.held >= MAX_REQUESTS:
            self._listener.skipped("requests")
            return
        try:
            measure = self._connection.settings.measure_prompts
            request = scan_request(message.body, whole=message.whole, measure=measure)
        except MalformedMessageError:
            self._listener.skipped("malformed")
            return
        while queue := self._requests_by_id.get(request.request_id):
            if not self._may_have_ended(queue[0]):
                break
            self._end_silently(queue[0])
        hashed = message.hash or (self._hash(message.body, request) if message.whole else None)
        prompt = int.from_bytes(hashed.digest(), "big") or 1 if hashed else 0
        self._begin(request, prompt, time)

    def _start_hash(self, body: bytes) -> blake2b:
        """Start the hash of a request, given its prefix."""
        try:
            return self._hash(body, scan_request(body, whole=False))
        except MalformedMessageError:
            return blake2b()

    def _hash(self, body: bytes, request: InferRequest) -> blake2b:
        """Return a hash of a request message without its id."""
        salt = self._connection.settings.salt[: blake2b.MAX_KEY_SIZE]
        start, stop = request.id_field
        hashed = blake2b(body[:start], key=salt, digest_size=8)
        hashed.update(body[stop:])
        return hashed

    def _begin_partial_request(self, time: float) -> None:
        """Begin a request whose response came before the complete request."""
        answered = self._number and not self._streaming
        if not self._requests.in_message or answered or self._closing:
            return
        try:
            request = scan_request(self._requests.partial_message().body, whole=False)
        except (MalformedStreamError, MalformedMessageError):
            self._listener.skipped("malformed")
            return
        self._begin(request, 0, time)

    def _begin(self, request: InferRequest, prompt: int, time: float) -> None:
        stream = Stream(
            self._endpoint,
            request.model,
            version=request.version,
            tenant=self._tenant,
            request_id=request.request_id,
            streaming=self._streaming,
            prompt=prompt,
            prompt_tokens=request.length.tokens,
            prompt_bytes=request.length.size,
            arrived=time,
            silent_end=self._streaming and not (request.wants_final or self._marks_final),
        )
        self._number += 1
        self._connection.live += 1
        self._connection.held += 1
        pending = _PendingInference(stream, self._number, request.wants_final)
        self._requests_by_id.setdefault(request.request_id, deque()).append(pending)
        self._listener.started(stream, time)

    # Responses

    def _handle_response(self, message: GrpcMessage, time: float) -> None:
        if not self._streaming:
            self._begin_partial_request(time)
        response = scan_response(message.body, streamed=self._streaming, whole=message.whole)
        pending = self._match(response)
        if pending is None:
            if response.outputs and not self._unmatched_reported:
                self._unmatched_reported = True
                self._listener.skipped("unmatched")
            return
        if self._streaming:
            self._head_cache.add(message.body, response)
        pending.last = time
        if pending.closing:
            pending.after = time
        if pending.over:
            if response.final:
                self._drop(pending)
            return
        if response.version:
            pending.stream.version = response.version
        if self._streaming:
            self._stream(pending, response, time)

    def _stream(self, pending: _PendingInference, response: InferResponse, time: float) -> None:
        if response.error:
            self._complete(pending, *outcome_of("in_band", text=response.error), time)
            pending.over = pending.wants_final and not response.final
            if not pending.over:
                self._drop(pending)
            return
        if response.has_text:
            self._listener.chunk(pending.stream, time, 0)
        if response.final:
            self._marks_final |= response.outputs > 0
            self._complete(pending, "ok", "", time)
            self._drop(pending)

    def _match(self, response: InferResponse) -> _PendingInference | None:
        """Return the request that a response belongs to, None if there is none."""
        if not self._streaming:
            return next(iter(self._all()), None)
        queue: Iterable[_PendingInference] = self._requests_by_id.get(response.request_id, ())
        if not (response.outputs or response.error):
            return next(iter(queue), None)
        pending = next((pending for pending in queue if not pending.over), None)
        if response.error and pending is None:
            return next(iter(self._active()), None)
        return pending

    # Ends

    def _may_have_ended(self, pending: _PendingInference) -> bool:
        """Whether a request may have ended silently."""
        return (
            self._streaming
            and pending.last is not None
            and not (pending.wants_final or pending.closing or pending.over or self._marks_final)
        )

    def _ended_at(self, pending: _PendingInference, time: float) -> float:
        """Return the end of a request whose call ended at ``time``."""
        if pending.last is None or not self._may_have_ended(pending):
            return time
        half_closed = self._client_done is not None and self._client_done <= pending.last
        return time if half_closed else pending.last

    def _end_silently(self, pending: _PendingInference) -> None:
        if not pending.over and pending.last is not None:
            self._complete(pending, "ok", "", pending.last)
        self._drop(pending)

    def _complete(
        self, pending: _PendingInference, outcome: Outcome, reason: str, time: float
    ) -> None:
        if self._reset_at is None:
            self._end(pending, outcome, reason, time)
        else:
            self._end(pending, "client_disconnected", "", time, time)

    def _end(
        self,
        pending: _PendingInference,
        outcome: Outcome,
        reason: str,
        time: float,
        stopped: float | None = None,
    ) -> None:
        self._connection.live -= 1
        self._listener.ended(pending.stream, time, outcome, reason, stopped)

    def _drop(self, pending: _PendingInference) -> None:
        queue = self._requests_by_id[pending.stream.request_id]
        queue.remove(pending)
        if not queue:
            del self._requests_by_id[pending.stream.request_id]
        self._connection.held -= 1
        self.done = self._reset_at is not None and not self._requests_by_id

    def _drop_all(self) -> None:
        self._connection.held -= len(self._all())
        self._requests_by_id.clear()
        self.done = True

    def _all(self) -> list[_PendingInference]:
        """Return all requests, oldest first."""
        return sorted(chain(*self._requests_by_id.values()), key=attrgetter("number"))

    def _active(self) -> list[_PendingInference]:
        return [pending for pending in self._all() if not pending.over]
