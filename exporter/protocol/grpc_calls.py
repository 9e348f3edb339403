"""One call of ModelInfer or ModelStreamInfer: which requests it carries, and how each ends.

A ModelStreamInfer call carries many requests.  A response belongs to the oldest request with its
id; an error without a known id to the oldest of all.  A request ends with the first of

* an ``error_message``;
* a response with ``triton_final_response``, which comes by itself only if the request asks for it
  (``triton_enable_empty_final_response``); otherwise a decoupled model that does not know its last
  token when it sends it leaves no trace of the end (Triton, grpc/stream_infer_handler.cc);
* where no end has been seen on the call yet, once it has been answered: the next request with its
  id, or a minute of silence.  It has then ended with its last response;
* the end of the call, with its status.  If the client closed its side only after the last response,
  that is when the request ended.

A client that resets the call leaves all of its requests; one that closes its side leaves none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from operator import attrgetter

from exporter.protocol.events import Endpoint, Listener, ObserverSettings, Outcome, Stream
from exporter.protocol.grpc import (
    PREFIX_BYTES,
    GrpcMessage,
    GrpcMessageReader,
    MalformedStreamError,
)
from exporter.protocol.kserve_grpc import (
    InferRequest,
    InferResponse,
    Layouts,
    MalformedMessageError,
    scan_request,
    scan_response,
)

MAX_REQUESTS = 4096
"""Of a connection, at a time."""
LINGER_SECONDS = 5.0
"""After this long without a word for a client that left, the server is done."""
QUIET_SECONDS = 60.0
"""After this long without a word, a request whose end may not show has ended."""

SERVICE = b"/inference.GRPCInferenceService/"
ENDPOINTS: dict[bytes, Endpoint] = {
    SERVICE + b"ModelInfer": "model_infer",
    SERVICE + b"ModelStreamInfer": "model_stream_infer",
}


@dataclass(slots=True)
class GrpcConnection:
    """What the calls of a connection share: ``live`` requests are under way, ``held`` are kept."""

    listener: Listener
    settings: ObserverSettings
    layouts: Layouts
    live: int = 0
    held: int = 0


@dataclass(slots=True, eq=False)
class _PendingInference:
    """A request of a call.

    ``last`` is when its last response came, None before the first.  ``closing`` says that its
    client may have left, ``after`` is when a response came after that.  ``over`` says that it has
    ended by an error and that its last response is still to come.
    """

    stream: Stream
    number: int
    asks_for_final: bool
    last: float | None = None
    closing: bool = False
    after: float | None = None
    over: bool = False


class GrpcCall:
    """A call from its headers on; ``done`` when there is nothing more to know of it.

    ``encodings`` are the headers ``grpc-encoding`` of what is asked, and of what is answered once
    that is known.
    """

    __slots__ = (
        "_answers",
        "_asked_by_id",
        "_client_done",
        "_closing",
        "_connection",
        "_endpoint",
        "_ends_show",
        "_layouts",
        "_left",
        "_listener",
        "_number",
        "_questions",
        "_streaming",
        "_tenant",
        "_unmatched",
        "done",
    )

    def __init__(
        self, connection: GrpcConnection, endpoint: Endpoint, tenant: str, encoding: bytes
    ) -> None:
        self.done = False
        self._connection = connection
        self._listener = connection.listener
        self._endpoint: Endpoint = endpoint
        self._streaming = endpoint == "model_stream_infer"
        self._tenant = tenant
        self._questions = GrpcMessageReader(encoding, self._hashed)
        self._answers = GrpcMessageReader()
        self._layouts = connection.layouts
        self._asked_by_id: dict[str, deque[_PendingInference]] = {}
        self._number = 0
        self._ends_show = False
        self._client_done: float | None = None
        self._closing = False
        self._left: float | None = None
        self._unmatched = False

    # What the client does

    def ask(self, data: bytes, start: int, stop: int, time: float) -> None:
        """Take in the next bytes of what is asked."""
        try:
            for message in self._questions.feed(data, start, stop):
                self._ask(message, time)
        except MalformedStreamError as error:
            self.forget(str(error))

    def client_done(self, time: float) -> None:
        """Take in that the client asks no more."""
        if self._client_done is None:
            self._client_done = time

    def client_reset(self, time: float) -> None:
        """Take in that the client has left this call."""
        self.closing(time)
        self._left = time
        for asked in self._all():
            if asked.over:
                self._drop(asked)
        self.done = not self._asked_by_id

    def closing(self, time: float) -> None:
        """Take in that the client closed its half of the connection."""
        self._closing = True
        for asked in self._under_way():
            if not asked.closing:
                asked.closing = True
                self._listener.closing(asked.stream, time)

    # What the server does

    def encoded(self, encoding: bytes) -> None:
        """Take in how the answers are compressed."""
        self._answers.encoding = encoding

    def answer(self, data: bytes, start: int, stop: int, time: float) -> None:
        """Take in the next bytes of what is answered."""
        size = stop - start - PREFIX_BYTES
        if (
            size > 0
            and data[start] == 0
            and int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big") == size
            and not self._answers.begun
        ):
            known = self._layouts.read(data, start + PREFIX_BYTES, stop)
            if known is not None:
                queue = self._asked_by_id.get(known[0])
                if queue and not queue[0].over:
                    asked = queue[0]
                    if asked.last is None and known[1]:
                        asked.stream.version = known[1]
                    asked.last = time
                    if asked.closing:
                        asked.after = time
                    if known[2]:
                        self._listener.chunk(asked.stream, time, 0)
                    return
        try:
            for message in self._answers.feed(data, start, stop):
                self._answer(message, time)
        except MalformedStreamError as error:
            self.forget(str(error))
        except MalformedMessageError:
            self.forget("malformed")

    def completed(self, outcome: Outcome, reason: str, time: float) -> None:
        """Take in the status at the end of the call."""
        self._begin_cut_off(time)
        for asked in self._under_way():
            if asked.closing and outcome != "ok":
                # Servers of gRPC's C core answer the client's FIN by UNAVAILABLE, "Socket closed".
                self._end(asked, "disconnected", "", time, time)
            else:
                self._complete(asked, outcome, reason, self._ended_at(asked, time))
        self._drop_all()

    def broken_off(self, outcome: Outcome, reason: str, time: float) -> None:
        """Take in that the server ended the call or the connection without a status."""
        self._begin_cut_off(time)
        for asked in self._under_way():
            if asked.closing:
                self._end(asked, "disconnected", "", time, time)
            else:
                self._end(asked, outcome, reason, time)
        self._drop_all()

    # What befalls the connection

    def aborted(self, time: float) -> None:
        """Take in that the client is gone."""
        for asked in self._under_way():
            self._end(asked, "disconnected", "", time, asked.after)
        self._drop_all()

    def forget(self, reason: str = "") -> None:
        """Give up on the call: what comes of its requests will never be known."""
        if reason:
            self._listener.skipped(reason)
        for asked in self._under_way():
            self._connection.live -= 1
            self._listener.lost(asked.stream)
        self._drop_all()

    def blocked(self) -> None:
        """Note that the client does not read."""
        for asked in self._under_way():
            self._listener.blocked(asked.stream)

    def backpressure(self, seconds: float) -> None:
        """Take in for how long the client did not read."""
        for asked in self._under_way():
            self._listener.backpressure(asked.stream, seconds)

    def expire(self, time: float) -> None:
        """End what nothing more is heard of."""
        for asked in self._all():
            heard = max(self._left or asked.stream.arrived, asked.last or 0.0)
            if self._left is not None:
                if time - heard >= LINGER_SECONDS:
                    if not asked.over:
                        self._end(asked, "disconnected", "", time, asked.after)
                    self._drop(asked)
            elif time - heard >= QUIET_SECONDS and (asked.over or self._may_be_over(asked)):
                self._end_unseen(asked)

    # Requests

    def _ask(self, message: GrpcMessage, time: float) -> None:
        if not self._streaming and self._number:
            return  # it was answered before it had arrived
        if self._connection.held >= MAX_REQUESTS:
            self._listener.skipped("crowded")
            return
        try:
            request = scan_request(message.body, whole=message.whole)
        except MalformedMessageError:
            self._listener.skipped("malformed")
            return
        while queue := self._asked_by_id.get(request.request_id):
            if not self._may_be_over(queue[0]):
                break
            self._end_unseen(queue[0])
        hashed = message.hash or (self._hash(message.body, request) if message.whole else None)
        prompt = int.from_bytes(hashed.digest(), "big") or 1 if hashed else 0
        self._begin(request, prompt, time)

    def _hashed(self, body: bytes) -> blake2b:
        """Begin the hash of a request from its beginning."""
        try:
            return self._hash(body, scan_request(body, whole=False))
        except MalformedMessageError:
            return blake2b()

    def _hash(self, body: bytes, request: InferRequest) -> blake2b:
        """Return a hash of what is asked: all of the message but its id."""
        salt = self._connection.settings.salt[: blake2b.MAX_KEY_SIZE]
        start, stop = request.id_field
        hashed = blake2b(body[:start], key=salt, digest_size=8)
        hashed.update(body[stop:])
        return hashed

    def _begin_cut_off(self, time: float) -> None:
        """Begin a request that was answered before it had arrived whole."""
        answered = self._number and not self._streaming
        if not self._questions.begun or answered or self._closing:
            return
        try:
            request = scan_request(self._questions.cut_off().body, whole=False)
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
            arrived=time,
            silent_end=self._streaming and not (request.asks_for_final or self._ends_show),
        )
        self._number += 1
        self._connection.live += 1
        self._connection.held += 1
        asked = _PendingInference(stream, self._number, request.asks_for_final)
        self._asked_by_id.setdefault(request.request_id, deque()).append(asked)
        self._listener.started(stream, time)

    # Responses

    def _answer(self, message: GrpcMessage, time: float) -> None:
        if not self._streaming:
            self._begin_cut_off(time)
        response = scan_response(message.body, streamed=self._streaming, whole=message.whole)
        asked = self._asked_for(response)
        if asked is None:
            if response.outputs and not self._unmatched:
                self._unmatched = True
                self._listener.skipped("unmatched")
            return
        if self._streaming:
            self._layouts.learn(message.body, response)
        asked.last = time
        if asked.closing:
            asked.after = time
        if asked.over:
            if response.final:
                self._drop(asked)
            return
        if response.version:
            asked.stream.version = response.version
        if self._streaming:
            self._stream(asked, response, time)

    def _stream(self, asked: _PendingInference, response: InferResponse, time: float) -> None:
        if response.error:
            self._complete(asked, "error", "in_band", time)
            asked.over = asked.asks_for_final and not response.final
            if not asked.over:
                self._drop(asked)
            return
        if response.bearing:
            self._listener.chunk(asked.stream, time, 0)
        if response.final:
            self._ends_show |= response.outputs > 0
            self._complete(asked, "ok", "", time)
            self._drop(asked)

    def _asked_for(self, response: InferResponse) -> _PendingInference | None:
        """Return the request that a response belongs to."""
        if not self._streaming:
            return next(iter(self._all()), None)
        queue: Iterable[_PendingInference] = self._asked_by_id.get(response.request_id, ())
        if not (response.outputs or response.error):
            return next(iter(queue), None)
        asked = next((asked for asked in queue if not asked.over), None)
        if response.error and asked is None:
            return next(iter(self._under_way()), None)
        return asked

    # Ends

    def _may_be_over(self, asked: _PendingInference) -> bool:
        """Whether a request may have ended without a trace."""
        return (
            self._streaming
            and asked.last is not None
            and not (asked.asks_for_final or asked.closing or asked.over or self._ends_show)
        )

    def _ended_at(self, asked: _PendingInference, time: float) -> float:
        """Return when a request ended whose call has ended now."""
        if asked.last is None or not self._may_be_over(asked):
            return time
        half_closed = self._client_done is not None and self._client_done <= asked.last
        return time if half_closed else asked.last

    def _end_unseen(self, asked: _PendingInference) -> None:
        if not asked.over and asked.last is not None:
            self._complete(asked, "ok", "", asked.last)
        self._drop(asked)

    def _complete(
        self, asked: _PendingInference, outcome: Outcome, reason: str, time: float
    ) -> None:
        if self._left is None:
            self._end(asked, outcome, reason, time)
        else:
            self._end(asked, "disconnected", "", time, time)

    def _end(
        self,
        asked: _PendingInference,
        outcome: Outcome,
        reason: str,
        time: float,
        stopped: float | None = None,
    ) -> None:
        self._connection.live -= 1
        self._listener.ended(asked.stream, time, outcome, reason, stopped)

    def _drop(self, asked: _PendingInference) -> None:
        queue = self._asked_by_id[asked.stream.request_id]
        queue.remove(asked)
        if not queue:
            del self._asked_by_id[asked.stream.request_id]
        self._connection.held -= 1
        self.done = self._left is not None and not self._asked_by_id

    def _drop_all(self) -> None:
        self._connection.held -= len(self._all())
        self._asked_by_id.clear()
        self.done = True

    def _all(self) -> list[_PendingInference]:
        """Return the requests that are kept, oldest first."""
        return sorted(chain(*self._asked_by_id.values()), key=attrgetter("number"))

    def _under_way(self) -> list[_PendingInference]:
        return [asked for asked in self._all() if not asked.over]
