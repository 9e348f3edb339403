"""All fuzz targets; here those of bytes on connections, of statistics and of files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path

from admission.capacity_file import load_capacity
from exporter.protocol import kserve_grpc
from exporter.protocol.detection import observe
from exporter.protocol.events import CLIENT, SERVER, Direction, ObserverSettings
from exporter.protocol.grpc import GrpcMessageReader, MalformedStreamError
from exporter.protocol.injection import Injection
from exporter.protocol.protobuf import MalformedMessageError
from exporter.samples import Distribution
from exporter.settings import load_settings
from exporter.sources.exposition.incremental_reader import ExpositionReader
from exporter.sources.exposition.text_parser import ExpositionError
from exporter.sources.traces import otlp_json, otlp_protobuf
from exporter.sources.traces.spans import ExportTooLargeError, MalformedExportError
from exporter.sources.trtllm.iterations.engine import EngineState
from exporter.sources.trtllm.iterations.json_splitter import JsonSplitter
from exporter.sources.trtllm.iterations.records import read_record
from exporter.sources.trtllm.iterations.report import report
from exporter.sources.trtllm.request_timing import RequestTimings
from exporter.taps.capture.packets import Segment, parse_segment
from exporter.web_config.reader import read_web_config
from promql.lexer import InvalidPromQL
from promql.parse import parse
from promql.tree import Expr, walk
from slos.errors import InvalidFile, Problem
from slos.http_client_config import read_http_client_config
from slos.load import load_file
from tests.event_log import RECORDED, Line, WireLog, recorded, show
from tests.fuzz.message_targets import MESSAGE_TARGETS
from tests.fuzz.target import CAPTURES, FuzzTarget
from tests.fuzz.target import captures as captured
from tests.grpc_connection import capture, captures, enveloped, infer_request
from tests.test_protocol_json_scan import scanned
from tests.test_protocol_sse import literally, split
from tests.test_text_parser import agrees_or_refuses
from tests.test_traces import as_protobuf

_SETTINGS = ObserverSettings(tenant_header="x-team", salt=b"salt", measure_prompts=True)


# Connections are written as segments: a byte for what happens, two for the length, and the bytes.

_KINDS: Sequence[tuple[Direction, bytes | bool | None]] = (
    *((CLIENT, b""), (SERVER, b"")),
    *((CLIENT, None), (SERVER, None), (CLIENT, False), (SERVER, False)),
)


def encoded(lines: Sequence[Line]) -> bytes:
    """Return a connection as bytes."""
    found = bytearray()
    for direction, _, what in lines:
        data = what if isinstance(what, bytes) else b""
        kind = next(
            number
            for number, (side, kind) in enumerate(_KINDS)
            if side == direction and type(kind) is type(what)
        )
        for at in range(0, max(1, len(data)), 0xFFFF):
            part = data[at : at + 0xFFFF]
            found += bytes([kind]) + len(part).to_bytes(2, "big") + part
    return bytes(found)


def decoded(data: bytes) -> Iterator[Line]:
    """Yield the segments of a connection, whatever the bytes are."""
    at = 0
    while at < len(data):
        direction, what = _KINDS[data[at] % len(_KINDS)]
        size = int.from_bytes(data[at + 1 : at + 3], "big")
        yield direction, at / 100, data[at + 3 : at + 3 + size] if what == b"" else what
        at += 3 + (size if what == b"" else 0)


def _connection(data: bytes) -> None:
    log = WireLog()
    observer = observe(log, _SETTINGS)
    for line in decoded(data):
        show(observer, [line])
    observer.gap(CLIENT, 1e4)
    observer.expire(2e4)
    observer.aborted(3e4)
    under_way: set[int] = set()
    for event in log.events:
        if event[0] == "started":
            under_way.add(event[1])
        elif event[0] in ("ended", "lost") and event != ("lost", -1):
            under_way.remove(event[1])
    assert not under_way, "a stream has no end"
    assert observer.live == 0


def _http1() -> list[bytes]:
    return [encoded(recorded(name)) for name in RECORDED]


def _http2() -> list[bytes]:
    return [encoded(capture(name)) for name in captures()]


def _grpc(data: bytes) -> None:
    for encoding in (b"", b"gzip"):
        reader = GrpcMessageReader(encoding)
        with suppress(MalformedStreamError):
            for message in reader.feed(data, 0, len(data)):
                _grpc_message(message.body, message.whole)
            if reader.in_message:
                reader.partial_message()
    _grpc_message(data, True)


def _grpc_message(body: bytes, whole: bool) -> None:
    with suppress(MalformedMessageError):
        kserve_grpc.scan_request(body, whole=whole)
    for streamed in (False, True):
        with suppress(MalformedMessageError):
            kserve_grpc.scan_response(body, streamed=streamed, whole=whole)


def _grpc_seeds() -> list[bytes]:
    return [enveloped(infer_request("m")), infer_request("m")]


def _sse(data: bytes) -> None:
    wanted = literally(data)
    assert split(data) == (wanted, [])
    assert split(data, [1] * len(data)) == (wanted, [])


def _json(data: bytes) -> None:
    assert scanned(data) == scanned(data, [1] * len(data))


def _injection(data: bytes) -> None:
    half = len(data) // 2
    sent = []
    for parts in ([data], [data[:half], data[half:]]):
        injection = Injection(lambda _: "return_perf_metrics")
        client = b"".join(map(injection.from_client, parts)) + injection.client_ended()
        server = b"".join(map(injection.from_server, parts)) + injection.server_ended()
        sent.append((client, server))
    assert sent[0] == sent[1], "the segmentation changes the forwarded bytes"


def _http_messages() -> list[bytes]:
    return [
        b"".join(what for side, _, what in recorded(name) if side == CLIENT and what)
        for name in RECORDED
    ]


def _exposition(data: bytes) -> None:
    agrees_or_refuses(data)


def _incremental(data: bytes) -> None:
    reader = ExpositionReader(["llm_requests", "nv_inference_request_success", "vllm:x"])
    first, second = (_read(reader, part) for part in (data, data))
    assert first == second, "reading the same body twice differs"


def _read(reader: ExpositionReader, data: bytes) -> object:
    try:
        return repr({name: list(family.samples) for name, family in reader.read(data).items()})
    except ExpositionError as error:
        return str(error)


def _expositions() -> list[bytes]:
    without_samples = b"# HELP nv_inference_request_success x\n# TYPE y gauge\ny 1.0\n"
    return [*captured("*.txt"), without_samples]


def _iterations(data: bytes) -> None:
    splitter = JsonSplitter()
    objects = [*splitter.feed(data), *splitter.end()]
    engine = EngineState({"itl": [0.05]})
    for value in objects:
        if record := read_record(value):
            engine.add(record)
    measurements, _ = report(engine, 1.0, 5.0, "chat", "1")
    for measurement in measurements:
        for sample in measurement.samples.values():
            number = sample.count if isinstance(sample, Distribution) else sample
            assert 0 <= number < inf
    timings = RequestTimings("chat", {"ttft": [0.8]})
    timings.add(objects)
    for measurement in timings.measurements():
        for sample in measurement.samples.values():
            assert isinstance(sample, Distribution)
            assert 0 <= sample.sum < inf


def _otlp_json(data: bytes) -> None:
    with suppress(MalformedExportError, ExportTooLargeError):
        otlp_json.decode(data)


def _otlp_protobuf(data: bytes) -> None:
    with suppress(MalformedExportError, ExportTooLargeError):
        otlp_protobuf.decode(data)


@cache
def _traces() -> list[bytes]:
    return [
        line.encode()
        for file in sorted(CAPTURES.glob("traces_*.jsonl"))
        for line in file.read_text().splitlines()
    ][:20]


def _packet(data: bytes) -> None:
    around = b"\xff" * 64
    found = parse_segment(around + data, 64, 64 + len(data))
    if isinstance(found, Segment):
        assert 64 <= found.start <= found.end <= 64 + len(data)


def _promql(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with suppress(InvalidPromQL):
        _check_tree(parse(text), text)


def _check_tree(tree: Expr, text: str) -> None:
    for node, _ in walk(tree):
        assert 0 <= node.start <= node.end <= len(text)
    assert parse(str(tree)) == tree, "printing changes the expression"


# Files


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="tokenslo-fuzz-"))


def _file(name: str, read: Callable[[str], object]) -> Callable[[bytes], None]:
    """Return a target that reads a file with this content."""

    def run(data: bytes) -> None:
        path = _folder() / name
        path.write_bytes(data)
        lines = [str(problem) for problem in _problems(read, str(path))]
        assert all(line.isprintable() and ". Fix: " in line for line in lines)

    return run


def _problems(read: Callable[[str], object], path: str) -> tuple[Problem, ...]:
    try:
        read(path)
    except InvalidFile as refused:
        return refused.problems
    return ()


def _settings(path: str) -> object:
    return load_settings({}, {}, path)


TARGETS = (
    FuzzTarget("http1", _connection, _http1),
    FuzzTarget("http2", _connection, _http2),
    FuzzTarget("grpc", _grpc, _grpc_seeds),
    FuzzTarget("sse", _sse),
    FuzzTarget("json", _json),
    FuzzTarget("injection", _injection, _http_messages),
    FuzzTarget("exposition", _exposition, _expositions),
    FuzzTarget("exposition-again", _incremental, _expositions),
    FuzzTarget("iterations", _iterations),
    FuzzTarget("otlp-json", _otlp_json, _traces),
    FuzzTarget("otlp-protobuf", _otlp_protobuf, lambda: [as_protobuf(one) for one in _traces()]),
    FuzzTarget("packet", _packet),
    FuzzTarget("promql", _promql),
    FuzzTarget("slo-yaml", _file("slo.yaml", load_file)),
    FuzzTarget("slo-jsonnet", _file("slo.jsonnet", load_file), examples=10),
    FuzzTarget("web-config", _file("web.yaml", read_web_config)),
    FuzzTarget("http-config", _file("http.yaml", read_http_client_config)),
    FuzzTarget("load-report", _file("load.json", load_capacity)),
    FuzzTarget("settings", _file("tokenslo.yaml", _settings)),
    *MESSAGE_TARGETS,
)
BY_NAME = {target.name: target for target in TARGETS}
