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

from tests.truth.client_record import BY_GRPC_STATUS, QUEUE_FULL, ClientRecord
from tests.truth.over_http import FRESH_SECONDS, HOST, PATIENCE_SECONDS, SOON_SECONDS, print_record

Manner = Literal[
    "end",  # read all
    "in turn",  # three on one stream, each after the end of the previous one
    "at once",  # three on one stream, distinguished by id
    "half-close",  # close the client's half at once, and read all
    "cancel early",  # cancel before the first token
    "cancel",  # cancel in the middle
    "die",  # the process is killed in the middle
    "whole",  # ModelInfer
]


@dataclass(frozen=True, slots=True)
class GrpcClientRequest:
    """Requests on one stream, with an empty final response if ``final``."""

    model: str
    tokens: int
    manner: Manner = "end"
    after: int = 0
    final: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)


_next_request = _InferStream._get_request


def _send(stream: _InferStream) -> Any:
    """Record when the package's sender thread sends a request, which is later than the call."""
    request = _next_request(stream)
    if request is not None:
        vars(stream).setdefault("sent", {})[request.id] = time.monotonic()
    return request


_InferStream._get_request = _send


class GrpcStreamClient:
    """A client that opens one stream after the other on one channel."""

    def __init__(self, port: int) -> None:
        self._client = grpc.InferenceServerClient(f"{HOST}:{port}")

    def close(self) -> None:
        """Close the channel."""
        self._client.close()

    def run(self, planned: GrpcClientRequest) -> list[ClientRecord]:
        """Send the requests of a stream; behave by its manner."""
        if planned.manner == "whole":
            return [self._whole(planned)]
        stream = _GrpcStream(self._client, planned)
        match planned.manner:
            case "in turn":
                for _ in range(3):
                    stream.send("")
                    stream.read_all()
            case "at once":
                for request_id in "abc":
                    stream.send(request_id)
                    time.sleep(SOON_SECONDS)
                stream.read_all()
            case "half-close":
                stream.send("")
            case "cancel early":
                stream.send("")
                stream.cancel_early()
            case "cancel" | "die":
                stream.send("")
                stream.cancel_after(planned.after, die=planned.manner == "die")
            case "end":
                stream.send("an id" if planned.final else "")
                stream.read_all()
        return stream.end()

    def _whole(self, planned: GrpcClientRequest) -> ClientRecord:
        seen = ClientRecord(planned.model, planned.manner, streaming=False)
        seen.mark_sent()
        try:
            self._client.infer(
                planned.model, [text(str(planned.more.get("text", "words")), rank=2)]
            )
        except InferenceServerException as error:
            if QUEUE_FULL in str(error.message()):
                return seen.end("shed", "capacity")
            status = (error.status() or "").removeprefix("StatusCode.")
            return seen.end(BY_GRPC_STATUS.get(status, "error"), status)
        return seen.end("ok")


class _GrpcStream:
    """A stream and the records of its requests."""

    def __init__(self, client: grpc.InferenceServerClient, planned: GrpcClientRequest) -> None:
        self._client, self._planned = client, planned
        self._responses: queue.SimpleQueue[tuple[float, Any, Any]] = queue.SimpleQueue()
        self._seen: dict[str, ClientRecord] = {}
        self._every: list[ClientRecord] = []
        self._cancelled = False
        client.start_stream(
            lambda result, error: self._responses.put((time.monotonic(), result, error))
        )
        self._sender = client._stream

    def send(self, request_id: str) -> None:
        """Send a request."""
        planned = self._planned
        seen = self._seen[request_id] = ClientRecord(planned.model, planned.manner)
        self._every.append(seen)
        seen.mark_sent()
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

    def read_all(self) -> None:
        """Read responses until every request has ended."""
        while not all(seen.outcome for seen in self._every):
            self._read()

    def cancel_early(self) -> None:
        """Cancel before the first token, or after it if that is too late."""
        (seen,) = self._every
        time.sleep(2 * SOON_SECONDS)  # the package sends from another thread
        if time.monotonic() - seen.sent < 3 * SOON_SECONDS:
            self.cancel()
        else:
            self.cancel_after(1, die=False)

    def cancel_after(self, count: int, *, die: bool) -> None:
        """Cancel after ``count`` chunks with tokens, when the last has just arrived."""
        (seen,) = self._every
        while len(seen.arrivals) < count and not seen.outcome:
            self._read()
        while not seen.outcome and time.monotonic() - seen.arrivals[-1] > FRESH_SECONDS:
            self._read()
        if die and not seen.outcome:
            print_record(seen.end("client_disconnected"))
            os.kill(os.getpid(), signal.SIGKILL)
        self.cancel()

    def cancel(self) -> None:
        """Cancel the stream."""
        self._cancelled = True
        self._client.stop_stream(cancel_requests=True)

    def end(self) -> list[ClientRecord]:
        """Close the stream, and read its remaining responses."""
        if not self._cancelled:
            self._client.stop_stream()
        while not self._responses.empty():
            self._read()
        for seen in self._every:
            if not seen.outcome:
                seen.end("client_disconnected" if self._cancelled else "ok")
        return self._every

    def _read(self) -> None:
        now, result, error = self._responses.get(timeout=PATIENCE_SECONDS)
        if error:
            if error.status() is None:
                next(iter(self._seen.values())).end("error", "in_band")
            elif not self._cancelled:
                status = error.status().removeprefix("StatusCode.")
                for seen in self._every:
                    if not seen.outcome:
                        seen.end(BY_GRPC_STATUS.get(status, "error"), status)
            return
        answer = result.get_response()
        seen = self._seen[answer.id]
        if answer.outputs and result.as_numpy("text_output").reshape(-1)[0]:
            seen.sent = seen.sent if seen.arrivals else self._sender.sent[answer.id]
            seen.receive(now)
        final = answer.parameters["triton_final_response"].bool_param
        if not seen.outcome and (
            final if self._planned.final else seen.tokens == self._planned.tokens
        ):
            seen.end("ok")


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
        print_record(each)
