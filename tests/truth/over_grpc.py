"""Clients by tritonclient: ModelStreamInfer with one request or several, and ModelInfer."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.grpc._infer_stream import _InferStream
from tritonclient.utils import InferenceServerException

from tests.truth.over_http import FRESH_SECONDS, HOST, PATIENCE_SECONDS, SOON_SECONDS, tell
from tests.truth.seen import BY_GRPC_STATUS, Seen

Manner = Literal[
    "end",  # take all
    "in turn",  # three on one stream, each when the one before it has ended
    "at once",  # three on one stream, distinguished by id
    "half-close",  # close the stream's half at once, and take all
    "cancel early",  # cancel before the first token
    "cancel",  # cancel in the middle
    "die",  # be killed in the middle
    "whole",  # ModelInfer
]


@dataclass(frozen=True, slots=True)
class GrpcClientRequest:
    """Requests on one stream; with ``final`` they ask for a mark of their end."""

    model: str
    tokens: int
    manner: Manner = "end"
    after: int = 0
    final: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)


_next_request = _InferStream._get_request


def _send(stream: _InferStream) -> Any:
    """Note when the package's own thread, which sends, has a request: that is not at once."""
    request = _next_request(stream)
    if request is not None:
        vars(stream).setdefault("sent", {})[request.id] = time.monotonic()
    return request


_InferStream._get_request = _send


class GrpcStreamClient:
    """One after the other, streams on one channel."""

    def __init__(self, port: int) -> None:
        self._client = grpc.InferenceServerClient(f"{HOST}:{port}")

    def close(self) -> None:
        """Close the channel."""
        self._client.close()

    def run(self, planned: GrpcClientRequest) -> list[Seen]:
        """Ask, and do as it is to do."""
        if planned.manner == "whole":
            return [self._whole(planned)]
        stream = _GrpcStream(self._client, planned)
        match planned.manner:
            case "in turn":
                for _ in range(3):
                    stream.planned("")
                    stream.take_all()
            case "at once":
                for request_id in "abc":
                    stream.planned(request_id)
                    time.sleep(SOON_SECONDS)
                stream.take_all()
            case "half-close":
                stream.planned("")
            case "cancel early":
                stream.planned("")
                stream.leave_early()
            case "cancel" | "die":
                stream.planned("")
                stream.leave_after(planned.after, die=planned.manner == "die")
            case "end":
                stream.planned("an id" if planned.final else "")
                stream.take_all()
        return stream.end()

    def _whole(self, planned: GrpcClientRequest) -> Seen:
        seen = Seen(planned.model, planned.manner, streaming=False)
        seen.send_now()
        try:
            self._client.infer(
                planned.model, [text(str(planned.more.get("text", "words")), rank=2)]
            )
        except InferenceServerException as error:
            status = (error.status() or "").removeprefix("StatusCode.")
            return seen.ends(BY_GRPC_STATUS.get(status, "error"), status)
        return seen.ends("ok")


class _GrpcStream:
    """A stream from its beginning to its end, and what came of the requests on it."""

    def __init__(self, client: grpc.InferenceServerClient, planned: GrpcClientRequest) -> None:
        self._client, self._planned = client, planned
        self._came: queue.SimpleQueue[tuple[float, Any, Any]] = queue.SimpleQueue()
        self._seen: dict[str, Seen] = {}
        self._every: list[Seen] = []
        self._left = False
        client.start_stream(lambda result, error: self._came.put((time.monotonic(), result, error)))
        self._sender = client._stream

    def planned(self, request_id: str) -> None:
        """Send a request."""
        planned = self._planned
        seen = self._seen[request_id] = Seen(planned.model, planned.manner)
        self._every.append(seen)
        seen.send_now()
        self._client.async_stream_infer(
            planned.model,
            [
                text("one two three four"),
                _tensor("max_tokens", "INT32", np.int32, [planned.tokens]),
                _tensor("stream", "BOOL", np.bool_, [True]),
            ],
            request_id=request_id,
            enable_empty_final_response=planned.final,
            parameters=dict(planned.more),
        )

    def take_all(self) -> None:
        """Take answers until every request has ended."""
        while not all(seen.outcome for seen in self._every):
            self._take()

    def leave_early(self) -> None:
        """Leave before the first token, or after it if it is too late for that."""
        (seen,) = self._every
        time.sleep(2 * SOON_SECONDS)  # the package sends from another thread
        if time.monotonic() - seen.sent < 3 * SOON_SECONDS:
            self.leave()
        else:
            self.leave_after(1, die=False)

    def leave_after(self, count: int, *, die: bool) -> None:
        """Disconnect after ``tokens`` tokens, when the last has just arrived."""
        (seen,) = self._every
        while len(seen.arrivals) < count and not seen.outcome:
            self._take()
        while not seen.outcome and time.monotonic() - seen.arrivals[-1] > FRESH_SECONDS:
            self._take()
        if die and not seen.outcome:
            tell(seen.ends("disconnected"))
            os.kill(os.getpid(), signal.SIGKILL)
        self.leave()

    def leave(self) -> None:
        """Cancel the stream."""
        self._left = True
        self._client.stop_stream(cancel_requests=True)

    def end(self) -> list[Seen]:
        """Close the stream, and take what it still brings."""
        if not self._left:
            self._client.stop_stream()
        while not self._came.empty():
            self._take()
        for seen in self._every:
            if not seen.outcome:
                seen.ends("disconnected" if self._left else "ok")
        return self._every

    def _take(self) -> None:
        now, result, error = self._came.get(timeout=PATIENCE_SECONDS)
        if error:
            if error.status() is None:
                next(iter(self._seen.values())).ends("error", "in_band")
            elif not self._left:
                status = error.status().removeprefix("StatusCode.")
                for seen in self._every:
                    if not seen.outcome:
                        seen.ends(BY_GRPC_STATUS.get(status, "error"), status)
            return
        answer = result.get_response()
        seen = self._seen[answer.id]
        if answer.outputs and result.as_numpy("text_output").reshape(-1)[0]:
            seen.sent = seen.sent if seen.arrivals else self._sender.sent[answer.id]
            seen.takes(now)
        final = answer.parameters["triton_final_response"].bool_param
        if not seen.outcome and (
            final if self._planned.final else seen.tokens == self._planned.tokens
        ):
            seen.ends("ok")


def text(words: str, rank: int = 1) -> grpc.InferInput:
    """Return the input that every model has."""
    shape: Sequence[Any] = [words.encode()] if rank == 1 else [[words.encode()]]
    return _tensor("text_input", "BYTES", np.object_, shape)


def _tensor(name: str, kind: str, of: Any, value: Sequence[Any]) -> grpc.InferInput:
    array = np.array(value, of)
    tensor = grpc.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor


if __name__ == "__main__":
    for each in GrpcStreamClient(int(sys.argv[1])).run(
        GrpcClientRequest(**json.loads(sys.argv[2]))
    ):
        tell(each)
