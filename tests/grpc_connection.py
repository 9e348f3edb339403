"""A gRPC connection frame by frame, and an observer of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hpack import Encoder
from tritonclient.grpc import service_pb2 as kserve

from exporter.protocol.detection import PREFACE
from exporter.protocol.events import CLIENT, SERVER, Direction, ObserverSettings
from exporter.protocol.http2 import Http2Observer
from tests.event_log import CAPTURES, Line, WireLog, recorded, show

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x4, 0x8, 0x20
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"

Fields = Mapping[str, str]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def enveloped(message: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(message)) + message


def infer_request(
    request_id: str = "", model: str = "m", text: bytes = b"hi", *, final: bool = False
) -> bytes:
    request = kserve.ModelInferRequest(model_name=model, id=request_id)
    if final:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(struct.pack("<I", len(text)) + text)
    return bytes(request.SerializeToString())


def stream_response(
    request_id: str = "",
    text: bytes | None = b"word",
    *,
    final: bool | None = False,
    error: str = "",
    name: str = "text_output",
) -> bytes:
    answer = kserve.ModelStreamInferResponse(error_message=error)
    inner = answer.infer_response
    inner.model_name, inner.id = "m", request_id
    if final is not None:
        inner.parameters["triton_final_response"].bool_param = final
    if text is not None:
        inner.model_version = "1"
        inner.outputs.add(name=name, datatype="BYTES", shape=[1])
        inner.raw_output_contents.append(struct.pack("<I", len(text)) + text)
    return bytes(answer.SerializeToString())


@dataclass
class GrpcConnection:
    """A connection from its beginning; every step takes a second of the observer's clock."""

    settings: ObserverSettings = field(default_factory=ObserverSettings)
    log: WireLog = field(default_factory=WireLog)
    now: float = 0.0
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.observer = Http2Observer(self.log, self.settings)
        self._encoders = (Encoder(), Encoder())
        self.send(CLIENT, PREFACE + frame(SETTINGS, 0, 0))
        self.send(SERVER, frame(SETTINGS, 0, 0))

    def send(self, direction: Direction, *frames: bytes) -> None:
        self.now += 1.0
        self.lines.append((direction, self.now, b"".join(frames)))
        self.observer.feed(direction, b"".join(frames), self.now)

    def block(self, direction: Direction, fields: Fields) -> bytes:
        return self._encoders[direction].encode(list(fields.items()))

    def headers(
        self, direction: Direction, stream: int, fields: Fields, *, end: bool = False
    ) -> None:
        flags = END_HEADERS | END_STREAM * end
        self.send(direction, frame(HEADERS, flags, stream, self.block(direction, fields)))

    def call(
        self, *messages: bytes, stream: int = 1, path: str = STREAM_INFER, **more: str
    ) -> None:
        """Send the headers of a call and its request messages."""
        fields = {":method": "POST", ":path": path, "content-type": "application/grpc"}
        self.headers(CLIENT, stream, fields | {k.replace("_", "-"): v for k, v in more.items()})
        for message in messages:
            self.send_request(message, stream=stream)

    def send_request(self, message: bytes, *, stream: int = 1, compressed: int = 0) -> None:
        self.send(CLIENT, frame(DATA, 0, stream, enveloped(message, compressed)))

    def respond(self, *messages: bytes, stream: int = 1) -> None:
        for message in messages:
            self.send(SERVER, frame(DATA, 0, stream, enveloped(message)))

    def status(self, code: int = 0, message: str = "", *, stream: int = 1) -> None:
        fields = {"grpc-status": str(code), "grpc-message": message}
        self.headers(SERVER, stream, fields, end=True)

    def reset(self, direction: Direction, code: int = 8, *, stream: int = 1) -> None:
        self.send(direction, frame(RST, 0, stream, struct.pack(">I", code)))


def capture(name: str) -> list[Line]:
    return recorded(f"grpc_{name}")


def captures() -> list[str]:
    return sorted(path.stem[10:] for path in CAPTURES.glob("wire_grpc_*.jsonl"))


def observe_lines(lines: list[Line], settings: ObserverSettings | None = None) -> WireLog:
    log = WireLog()
    show(Http2Observer(log, settings or ObserverSettings()), lines)
    return log


def split(lines: list[Line], cuts: Iterator[int]) -> list[Line]:
    """Return the same bytes in segments of other sizes, each at the time of its last byte."""
    segments: list[Line] = []
    for direction, at, what in lines:
        if not isinstance(what, bytes):
            segments.append((direction, at, what))
            continue
        start = 0
        while start < len(what):
            size = next(cuts)
            segments.append((direction, at, what[start : start + size]))
            start += size
    return segments
