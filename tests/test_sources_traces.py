"""The endpoint for traces: responses, measurements and forwarding."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from exporter.samples import Distribution, Measurement, Snapshot, SourceError
from exporter.settings import load_settings
from exporter.sockets import Listen
from exporter.sources.factory import configured
from exporter.sources.traces import traces_source
from exporter.sources.traces.forwarding import Forwarder
from exporter.sources.traces.traces_source import TracesSource
from exporter.sources.triton.trace_setting import TraceSetting, read_setting
from exporter.store.store import Store
from promql.http_client import FetchLimits
from slos.errors import InvalidFile
from tests.polling import until
from tests.test_traces import as_protobuf, bodies, changed

ANY = Listen("127.0.0.1", 0)
JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
GZIP = {"Content-Encoding": "gzip"}
HTTP = bodies("http")[0]
SETTING = {"trace_mode": "opentelemetry", "trace_level": ["TIMESTAMPS"], "trace_rate": "1"}


async def post(
    source: TracesSource, body: bytes, headers: Mapping[str, str] = JSON
) -> tuple[int, bytes, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{source.url}/v1/traces", data=body, headers=headers) as response,
    ):
        return response.status, await response.read(), response.content_type


async def counts(source: TracesSource) -> dict[tuple[str, str], float]:
    measurements = (await source.snapshot(time.monotonic())).measurements
    found = {}
    for measurement in measurements:
        (value,) = measurement.samples.values()
        assert isinstance(value, Distribution)
        found[measurement.model, measurement.signal] = value.count
    return found


async def problem(source: TracesSource, part: str = "exports") -> SourceError | None:
    return (await source.snapshot(time.monotonic())).parts[part]


@asynccontextmanager
async def serving(
    path: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# Receiving exports


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (HTTP, JSON),
        (HTTP, {"Content-Type": "application/json; charset=utf-8"}),
        (as_protobuf(HTTP), PROTOBUF),
        (gzip.compress(HTTP), JSON | GZIP),
        (gzip.compress(as_protobuf(HTTP)), PROTOBUF | GZIP),
    ],
)
async def test_export_is_accepted_and_answered_in_its_encoding(
    body: bytes, headers: Mapping[str, str]
) -> None:
    async with TracesSource(ANY) as source:
        kind = headers["Content-Type"].partition(";")[0]
        expected = b"{}" if kind == "application/json" else b""
        assert await post(source, body, headers) == (200, expected, kind)
        assert await problem(source) is None
        assert await counts(source) == {
            ("streaming", "ttft"): 1,
            ("streaming", "itl"): 3,
            ("streaming", "max_gap"): 1,
            ("streaming", "decode"): 1,
            ("streaming", "e2e"): 1,
        }


async def test_halves_are_joined_across_exports() -> None:
    async with TracesSource(ANY) as source:
        for body in bodies("grpc"):
            await post(source, body)
            await post(source, body)  # sent again, as after an answer that was lost
        assert (await counts(source))["streaming", "itl"] == 6


async def test_probes_are_in_no_signal() -> None:
    (probe,) = bodies("http_probe")
    async with TracesSource(ANY) as source:
        await post(source, probe)
        snapshot = await source.snapshot(time.monotonic())
        assert (snapshot.measurements, snapshot.lost_records) == ((), 0)
        await post(source, HTTP)
        await post(source, probe)
        assert (await counts(source))["streaming", "ttft"] == 1


async def test_malformed_spans_are_a_partial_success() -> None:
    body = changed("http", traceId="ab")
    async with TracesSource(ANY) as source:
        status, answer, _ = await post(source, body)
        assert (status, json.loads(answer)) == (
            200,
            {"partialSuccess": {"rejectedSpans": "1", "errorMessage": "spans were malformed"}},
        )
        assert str(await problem(source)) == "malformed spans were rejected: 1"
        _, answer, _ = await post(source, as_protobuf(body), PROTOBUF)
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
        assert (partial.rejected_spans, partial.error_message) == (1, "spans were malformed")


@pytest.mark.parametrize(
    ("body", "headers", "status", "kind"),
    [
        (HTTP[:-1], JSON, 400, "malformed"),
        (b"\xff", PROTOBUF, 400, "malformed"),
        (HTTP, JSON | GZIP, 400, "malformed"),
        (gzip.compress(HTTP)[:-9], JSON | GZIP, 400, "malformed"),
        (gzip.compress(HTTP) + b"more", JSON | GZIP, 400, "malformed"),
        (HTTP, JSON | {"Content-Encoding": "br"}, 415, "encoding"),
        (b"x" * 10_001, JSON, 413, "too_large"),
        (gzip.compress(b" " * 1_000_000), JSON | GZIP, 413, "too_large"),
        (gzip.compress(b" " * 1_000_000), PROTOBUF | GZIP, 413, "too_large"),
    ],
)
async def test_invalid_export_is_refused_without_retry(
    body: bytes, headers: Mapping[str, str], status: int, kind: str
) -> None:
    async with TracesSource(ANY, limits=FetchLimits(max_bytes=10_000)) as source:
        got, answer, content_type = await post(source, body, headers)
        assert (got, content_type) == (status, headers["Content-Type"])
        if content_type == "application/json":
            assert set(json.loads(answer)) == {"code", "message"}
        else:
            assert answer[:1] == b"\x08"
            assert answer[4:].decode().isprintable()
        refused = await problem(source)
        assert refused is not None
        assert refused.kind == kind
        assert await problem(source) is None
        assert (await post(source, HTTP))[0] == 200


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"resourceSpans":[' + b"{}," * 300_000 + b"{}]}", JSON | GZIP),
        (b"\x0a\x00" * 300_000, PROTOBUF | GZIP),
    ],
)
async def test_compressed_export_with_too_many_elements_is_refused(
    body: bytes, headers: Mapping[str, str]
) -> None:
    async with TracesSource(ANY) as source:
        assert (await post(source, gzip.compress(body), headers))[0] == 413
        refused = await problem(source)
        assert refused is not None
        assert refused.kind == "too_large"
        assert "more than 200000 spans, events and attributes" in str(refused)


async def test_a_body_without_a_length_is_bounded_too() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    async with (
        TracesSource(ANY, limits=FetchLimits(max_bytes=10_000)) as source,
        aiohttp.ClientSession() as session,
        session.post(f"{source.url}/v1/traces", data=endless(), headers=JSON) as response,
    ):
        assert response.status == 413


async def test_other_content_other_paths_and_other_methods() -> None:
    async with TracesSource(ANY) as source, aiohttp.ClientSession() as session:
        assert (await post(source, HTTP, {"Content-Type": "text/plain"}))[0] == 415
        refused = await problem(source)
        assert refused is not None
        assert refused.kind == "content_type"
        async with session.get(f"{source.url}/v1/traces") as response:
            assert (response.status, response.headers["Server"]) == (405, "tokenslo")
        async with session.post(f"{source.url}/v1/metrics", json={}) as response:
            assert response.status == 404


async def test_slow_sender_times_out_and_excess_senders_get_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traces_source, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(traces_source, "MAX_CONCURRENT_EXPORTS", 2)
    head = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with TracesSource(ANY) as source:
        port = int(source.url.rpartition(":")[2])
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in slow:
            writer.write(head + b"Content-Length: 100\r\n\r\n{")

        async def is_busy() -> bool:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{source.url}/v1/traces", data=HTTP, headers=JSON) as response,
            ):
                return (response.status, response.headers.get("Retry-After")) == (503, "1")

        await until(is_busy)
        for reader, writer in slow:
            assert (await reader.readline()).split()[1] == b"408"
            writer.close()
        assert (await post(source, HTTP))[0] == 200


async def test_disconnected_sender_holds_no_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with TracesSource(ANY) as source:
        port = int(source.url.rpartition(":")[2])
        for _ in range(2 * traces_source.MAX_CONCURRENT_EXPORTS):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + b"Content-Length: 100\r\n\r\n{")
            await writer.drain()
            writer.close()

        async def is_taken() -> bool:
            return (await post(source, HTTP))[0] == 200

        await until(is_taken)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_port_in_use_names_its_setting() -> None:
    async with TracesSource(ANY) as source:
        port = int(source.url.rpartition(":")[2])
        with pytest.raises(InvalidFile, match=r"otlp-traces.*is in use"):
            await TracesSource(Listen("127.0.0.1", port)).__aenter__()


def test_settings_make_the_source() -> None:
    flags = {"otlp-traces": ["127.0.0.1:4318"]}
    environ = {"TOKENSLO_OTLP_TRACES_FORWARD": "http://user:secret@collector:4318/v1/traces"}
    (source,) = configured(load_settings(flags, environ))
    assert source.where == (
        "traces sent to http://127.0.0.1:4318/v1/traces "
        "(forwarded to http://collector:4318/v1/traces)"
    )
    with pytest.raises(InvalidFile, match="there are no traces to forward"):
        load_settings({"triton": ["http://127.0.0.1:8000"]}, environ)


# Measurements


async def test_models_that_answer_at_once_are_reported_only_when_named() -> None:
    async with TracesSource(ANY) as source, TracesSource(ANY, models=["pl*"]) as named:
        for one in (source, named):
            await post(one, bodies("whole")[0])
        assert await counts(source) == {}
        assert (await counts(named))["plain", "e2e"] == 1


async def test_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_source, "MAX_MODELS", 1)
    async with TracesSource(ANY) as source:
        for scenario in ("http", "ensemble"):
            await post(source, bodies(scenario)[0])
        snapshot = await source.snapshot(0.0)
        assert {measurement.model for measurement in snapshot.measurements} == {"streaming"}
        assert snapshot.lost_records == 1


async def test_thresholds_are_bucket_boundaries() -> None:
    async with TracesSource(ANY, thresholds={"itl": [0.0123]}) as source:
        await post(source, HTTP)
        by_signal = {
            measurement.signal: measurement
            for measurement in (await source.snapshot(0.0)).measurements
        }
        (value,) = by_signal["itl"].samples.values()
        assert isinstance(value, Distribution)
        assert 0.0123 in value.boundaries


async def test_the_first_observations_are_all_shown() -> None:
    """Neither a model's first requests nor its later gaps are taken for what was there before."""
    store = Store(5.0)
    other = Measurement(
        "ttft", "streaming", "1", "triton_first_response", {(): Distribution((1.0, inf), (5, 7), 9)}
    )

    async def shown(source: TracesSource, now: float) -> dict[str, float]:
        store.update(Snapshot("triton", (other,)), now, 0.0)
        store.update(await source.snapshot(now), now, 0.0)
        found = {}
        for state in store.view(now).signals:
            for value in state.samples.values():
                assert isinstance(value, Distribution)
                found[state.signal] = value.count
        return found

    async with TracesSource(ANY) as source:
        assert await shown(source, 1.0) == {"ttft": 0}
        await post(source, bodies("http_one_word")[0])
        assert await shown(source, 2.0) == {
            "ttft": 1,
            "itl": 0,
            "max_gap": 0,
            "decode": 0,
            "e2e": 1,
        }
        await post(source, HTTP)
        assert await shown(source, 3.0) == {
            "ttft": 2,
            "itl": 3,
            "max_gap": 1,
            "decode": 1,
            "e2e": 2,
        }


async def test_single_source_explains_missing_signals() -> None:
    async with TracesSource(ANY) as alone, TracesSource(ANY, alone=False) as beside:
        for one in (alone, beside):
            await post(one, HTTP)
        snapshot = await alone.snapshot(0.0)
        fixes = {gap.signal: gap.fix for gap in snapshot.missing}
        assert fixes["requests"] == fixes["kv_utilization"] == traces_source.NEEDS_TRITON
        assert "--tap" in fixes["disconnects"]
        assert [info.model for info in snapshot.models] == ["streaming"]
        snapshot = await beside.snapshot(0.0)
        assert (snapshot.missing, snapshot.models) == ((), ())


@pytest.mark.parametrize(
    ("rate", "method", "note"),
    [
        ("1", "triton_trace", ""),
        (
            "1000",
            "triton_trace_sampled",
            "1 in 1000 requests is traced, and all whose client sends a trace context",
        ),
        (
            "0",
            "triton_trace_sampled",
            "only requests are traced whose client sends a trace context",
        ),
        (
            "many",
            "triton_trace_sampled",
            "the share of traced requests is unknown: set --triton",
        ),
    ],
)
async def test_share_of_traced_requests_is_reported(rate: str, method: str, note: str) -> None:
    async def setting(_: web.Request) -> web.Response:
        return web.json_response(SETTING | {"trace_rate": rate})

    async with (
        serving("/v2/trace/setting", setting) as url,
        TracesSource(ANY, triton=url) as source,
    ):
        await post(source, HTTP)
        snapshot = await source.snapshot(0.0)
        assert {(one.method, one.note) for one in snapshot.measurements} == {(method, note)}
        assert snapshot.parts["setting"] is None


async def test_traces_without_a_server_are_a_sample() -> None:
    async with TracesSource(ANY) as source, TracesSource(ANY, triton="http://127.0.0.1:1") as deaf:
        for one in (source, deaf):
            await post(one, HTTP)
            methods = {measurement.method for measurement in (await one.snapshot(0.0)).measurements}
            assert methods == {"triton_trace_sampled"}
        refused = (await deaf.snapshot(1.0)).parts["setting"]
        assert refused is not None
        assert refused.kind == "refused"


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ([], "malformed"),
        (SETTING | {"trace_mode": "triton"}, "setting"),
        (SETTING | {"trace_level": ["OFF"]}, "setting"),
        ({}, "setting"),
    ],
)
def test_settings_that_prevent_traces_are_a_problem(document: object, kind: str) -> None:
    with pytest.raises(SourceError) as error:
        read_setting(document)
    assert error.value.kind == kind


def test_settings() -> None:
    assert read_setting(SETTING) == TraceSetting(1)
    assert read_setting(SETTING | {"trace_rate": "9" * 40}) == TraceSetting(None)


# Forwarding


@dataclass
class FakeCollector:
    """Answers with the given statuses, the last one from then on, and keeps what it took."""

    statuses: list[int]
    tried: int = 0
    tries: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    taken: list[tuple[bytes, str, str]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        status = self.statuses[min(self.tried, len(self.statuses) - 1)]
        self.tried += 1
        self.tries.release()
        body = await request.read()
        if status == 200:
            encoding = request.headers.get("Content-Encoding", "")
            self.taken.append((body, request.content_type, encoding))
        return web.Response(status=status)

    async def wait(self, tries: int) -> None:
        async with asyncio.timeout(10):
            for _ in range(tries):
                await self.tries.acquire()


async def forwarded(source: TracesSource) -> None:
    """Wait until the collector's last answer was a success."""

    async def is_so() -> bool:
        return await problem(source, "forward") is None

    await until(is_so)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.sources.traces.forwarding.MIN_PAUSE", 0.01)


async def test_exports_are_forwarded_byte_for_byte() -> None:
    collector = FakeCollector([200])
    packed = gzip.compress(as_protobuf(HTTP))
    async with (
        serving("/v1/traces", collector.take) as url,
        TracesSource(ANY, f"{url}/v1/traces") as source,
    ):
        await post(source, HTTP)
        await post(source, packed, PROTOBUF | GZIP)
        await post(source, HTTP[:-1])
        await collector.wait(2)
        await forwarded(source)
    assert collector.taken == [
        (HTTP, "application/json", ""),
        (packed, "application/x-protobuf", "gzip"),
    ]


async def test_busy_collector_is_retried_in_order() -> None:
    collector = FakeCollector([503, 429, 502, 504, 200])
    sent = [bodies(scenario)[0] for scenario in ("http", "called", "ensemble")]
    async with (
        serving("/v1/traces", collector.take) as url,
        TracesSource(ANY, f"{url}/v1/traces") as source,
    ):
        for body in sent:
            await post(source, body)
        await collector.wait(7)
        await forwarded(source)
    assert [body for body, _, _ in collector.taken] == sent


async def test_refused_exports_are_dropped_and_logged() -> None:
    collector = FakeCollector([400, 200])
    async with (
        serving("/v1/traces", collector.take) as url,
        TracesSource(ANY, f"{url}/v1/traces") as source,
    ):
        await post(source, HTTP)
        await post(source, bodies("called")[0])
        await collector.wait(2)
        dropped = await problem(source, "forward")
        assert dropped is not None
        assert dropped.kind == "dropped"
        assert str(dropped).startswith("export requests dropped: 1")
        await forwarded(source)
    assert len(collector.taken) == 1


async def test_unreachable_collector_delays_no_sender_and_bounds_memory() -> None:
    async with TracesSource(
        ANY,
        "http://user:secret@127.0.0.1:1/v1/traces",
        limits=FetchLimits(max_bytes=3 * len(HTTP)),
    ) as source:
        for _ in range(10):
            assert (await post(source, HTTP))[0] == 200
        dropped = await problem(source, "forward")
        assert str(dropped) == (
            "export requests dropped: 7; http://127.0.0.1:1/v1/traces cannot be reached "
            "(ClientConnectorError)"
        )
        assert "secret" not in source.where


async def test_exports_that_wait_too_long_are_dropped_and_make_room() -> None:
    address = "http://127.0.0.1:1/v1/traces"
    forwarder = Forwarder(address, timeout=1.0, max_bytes=len(HTTP), give_up_after=0.05)

    def drops() -> list[str]:
        return [str(found) for found in (forwarder.problem(),) if found and found.kind == "dropped"]

    async def is_dropped() -> bool:
        return drops() == [
            f"export requests dropped: 1; {address} cannot be reached (ClientConnectorError)"
        ]

    forwarder.offer(HTTP, JSON)
    assert drops() == []
    forwarder.offer(HTTP, JSON)
    assert drops() == ["export requests dropped: 1"]  # the queue is full
    running = asyncio.create_task(forwarder.run())
    try:
        await until(is_dropped)
        forwarder.offer(HTTP, JSON)
        assert drops() == []
    finally:
        running.cancel()
        await asyncio.wait([running])
