"""The fuzz targets of responses of servers, of requests to the sidecar, of packets and of lines."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from diagnosis.sidecar_status import parse_sidecar_status
from exporter.doctor.sidecar_client import MalformedReportError, parse_report
from exporter.protocol.detection import PREFACE, observe
from exporter.protocol.events import ObserverSettings
from exporter.protocol.injection import INPUTS
from exporter.samples import SourceError
from exporter.sources.fetch import parse_json
from exporter.sources.file_tailer import FileTailer
from exporter.sources.server_detection import detect_server
from exporter.sources.triton import model_repository, statistics_api, trace_setting
from exporter.sources.trtllm.iterations_source import served_model
from exporter.taps.capture.connection_table import ConnectionTable
from exporter.taps.capture.packets import Segment, parse_segment
from exporter.taps.proxy.local_responses import UnavailableGrpcServer
from exporter.taps.proxy.model_inputs import input_name
from exporter.taps.proxy.request_heads import FirstHead
from exporter.web_config.basic_auth import BasicAuth
from promql.client import PrometheusError, read_matrix, read_vector
from promql.http_client import HttpResponse
from promql.lint.catalogue import Catalogue
from promql.lint.linting import lint
from promql.lint.report import FORMATS
from slos.catalogues.named import everything
from tests.event_log import WireLog
from tests.fuzz.target import FuzzTarget, captures
from tests.tcp_segments import (
    ACK,
    CLIENT_ADDRESS,
    CLIENT_PORT,
    FIN,
    SERVER_ADDRESS,
    SERVER_PORT,
    SYN,
    ipv4,
    tcp,
)
from top.filters import Selection
from top.frame import FrameOptions, frame
from top.rows import Scrape, sidecar_rows

_SETTINGS = ObserverSettings(tenant_header="x-team", salt=b"salt")


def _json_of(data: bytes) -> object:
    with suppress(SourceError):
        return parse_json(HttpResponse(200, data), "http://server")
    return None


# Responses of servers


def _prometheus(data: bytes) -> None:
    for status in (200, 503):
        response = HttpResponse(status, data)
        with suppress(PrometheusError):
            for sample in read_vector(response, "http://prometheus", "up"):
                assert isinstance(sample.value, float)
        with suppress(PrometheusError):
            for series in read_matrix(response, "http://prometheus"):
                assert all(isinstance(value, float) for value in series.values.values())


def _sidecar_status(data: bytes) -> None:
    found = parse_sidecar_status("http://sidecar", data)
    texts = (*found.sources_down.values(), *found.unavailable.values(), *found.unready)
    assert all(isinstance(text, str) for text in (found.error, *texts))


def _sidecar(data: bytes) -> None:
    """Read the status page before the first empty line, and the metrics after it."""
    page, _, metrics = data.partition(b"\n\n")
    status = _json_of(page)
    if isinstance(status, dict) and isinstance(status.get("tokenslo"), str):
        with suppress(MalformedReportError):
            scrape = Scrape(1.0, parse_report(status, metrics))
            rows = sidecar_rows("sidecar", scrape, Scrape(2.0, scrape.report))
            lines = frame([rows], Selection(reasons=True), FrameOptions(100))
            assert all(line.plain.isprintable() for line in lines)


def _server(data: bytes) -> None:
    response = HttpResponse(200, data)

    async def get(_: str) -> HttpResponse | None:
        return response

    found = asyncio.run(detect_server("http://server", get))
    assert found.what.isprintable()
    assert served_model(_json_of(data)) != ""


def _triton(data: bytes) -> None:
    document = _json_of(data)
    for tally in statistics_api.tallies(statistics_api.parse(document), {}).values():
        assert all(number >= 0 for number in (tally.ok, *tally.failures.values()))
    configs = {"": model_repository.config(document) or model_repository.ModelConfig("", False)}
    assert len(model_repository.steps_of(configs, "")) <= len(data)
    assert all(isinstance(entry.name, str) for entry in model_repository.index(document))
    with suppress(SourceError):
        trace_setting.read_setting(document)


def _model_config(data: bytes) -> None:
    with suppress(ValueError):
        assert input_name(data) in ("", *INPUTS)


def _model_configs() -> list[bytes]:
    files = captures("triton_config_*.json")
    return [b"HTTP/1.0 200 OK\r\n\r\n" + text for text in files]


# Requests


def _first_head(data: bytes) -> None:
    head, received, found = FirstHead(), bytearray(), ""
    for number, byte in enumerate(data):
        received.append(byte)
        if found := head.protocol(received):
            assert head.size <= number + 1
            break
    assert FirstHead().protocol(received) == found, "the segmentation changes the protocol"
    whole, parts = UnavailableGrpcServer(), UnavailableGrpcServer()
    whole.receive(data)
    for byte in data:
        parts.receive(bytes([byte]))
    assert whole.response() == parts.response(), "the segmentation changes the response"


def _first_heads() -> list[bytes]:
    headers = b"\0\0\x05\x01\x05\0\0\0\x01\x82\x86\x84\x41\x00"
    return [b"\r\nPOST /v1 HTTP/1.1\r\n\r\n", PREFACE + b"\0\0\0\x04\0\0\0\0\0" + headers]


@cache
def _auth() -> BasicAuth:
    # A hash of the least cost.
    return BasicAuth({"me": "$2b$04$abcdefghijklmnopqrstuuWD/T3gZlVAZsmfJVZ2FLKZ45zCWVLQe"})


def _authorization(data: bytes) -> None:
    verdict = asyncio.run(_auth().check(data.decode("utf-8", "surrogateescape")))
    assert verdict == "refused"


# Packets and files


def _packets(data: bytes) -> None:
    """Each packet follows its length in two bytes."""
    log = WireLog()
    table = ConnectionTable([SERVER_PORT], lambda: observe(log, _SETTINGS), lambda _: None)
    at, number = 0, 0
    while at + 2 < len(data):
        start, number = at + 2, number + 1
        at = start + int.from_bytes(data[at:start], "big")
        end = min(at, len(data))
        found = parse_segment(data, start, end)
        if isinstance(found, Segment):
            table.handle_segment(found, data[found.start : found.end], number / 10)
    table.sweep(1e3)
    table.forget_all(2e3)
    assert (table.watched, table.live, table.capture_state.held) == (0, 0, 0)


def _connections() -> list[bytes]:
    request = b"GET /v2/models/m/generate HTTP/1.1\r\nHost: x\r\n\r\n"
    client = (CLIENT_ADDRESS, SERVER_ADDRESS, CLIENT_PORT, SERVER_PORT)
    server = (SERVER_ADDRESS, CLIENT_ADDRESS, SERVER_PORT, CLIENT_PORT)
    sent = [
        (client, 100, 0, SYN, b""),
        (server, 900, 101, SYN | ACK, b""),
        (client, 101, 901, ACK, request),
        (server, 911, 101 + len(request), ACK, b" OK\r\n\r\n"),
        (server, 901, 101 + len(request), ACK, b"HTTP/1.1 2"),
        (server, 918, 101 + len(request), ACK | FIN, b""),
    ]
    packets = [
        ipv4(tcp(source, target, seq=seq, ack=ack, flags=flags, data=data), one, other)
        for (one, other, source, target), seq, ack, flags, data in sent
    ]
    return [b"".join(len(packet).to_bytes(2, "big") + packet for packet in packets)]


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="tokenslo-fuzz-"))


def _lines(data: bytes) -> None:
    path = _folder() / "records.jsonl"
    path.write_bytes(b"")
    tailer = FileTailer(str(path), 1 << 20)
    assert list(tailer.read()) == []
    with path.open("ab") as file:
        file.write(data)
    found = [*tailer.read()]
    tailer.close()
    complete = data.splitlines()
    assert len(found) + tailer.malformed <= len(complete)


@cache
def _known() -> Catalogue:
    return everything()


def _linted(data: bytes) -> None:
    path = _folder() / "file"
    path.write_bytes(data)
    report = lint([str(path)], _known())
    for write in FORMATS.values():
        assert write(report, "0")


def _dashboards() -> list[bytes]:
    examples = Path(__file__).parents[2] / "examples/chat"
    files = [*(examples / "dashboards").glob("*.json"), *(examples / "alerts").glob("*.yaml")]
    return [min(files, key=lambda file: file.stat().st_size).read_bytes()]


def _examples(name: str) -> Callable[[], list[bytes]]:
    return lambda: captures(name)


MESSAGE_TARGETS = (
    FuzzTarget("prometheus", _prometheus),
    FuzzTarget("sidecar-status", _sidecar_status),
    FuzzTarget("sidecar", _sidecar),
    FuzzTarget("server", _server, _examples("triton_server.json"), examples=50),
    FuzzTarget("triton", _triton, lambda: [*captures("*_stats.json"), *captures("*_index.json")]),
    FuzzTarget("model-config", _model_config, _model_configs),
    FuzzTarget("first-head", _first_head, _first_heads),
    FuzzTarget("authorization", _authorization, examples=50),
    FuzzTarget("packets", _packets, _connections),
    FuzzTarget("lines", _lines),
    FuzzTarget("lint", _linted, _dashboards, examples=20),
)
