"""OTLP export: names, attributes, values and times; and receivers that fail."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.metrics.export import HistogramDataPoint, Metric, Sum

from exporter.genai import OPERATIONS, PROFILES, GenAiSeries
from exporter.protocol.events import Endpoint
from exporter.samples import Distribution, ModelInfo
from exporter.store.view import View
from exporter.web.otlp_export import (
    OtlpExport,
    Push,
    StartTimes,
    endpoint,
    genai_metrics,
    metrics,
    resource,
    server_attributes,
)
from exporter.web.otlp_genai import from_engines
from exporter.web.view_families import families
from slos.own_metrics import OWN_METRICS
from slos.signals import SIGNALS
from tests.polling import until
from tests.views import FIRST_TOKEN, busy, measured, view

BEGAN, NOW = 1_000, 5_000
SERVER = {"server.address": "10.0.0.1", "server.port": 8000}
PROFILE = PROFILES["1.41"]
VARIABLES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def pushed(shown: View, starts: StartTimes | None = None, now: int = NOW) -> dict[str, Metric]:
    starts = starts or StartTimes(BEGAN)
    starts.begin(now)
    push = Push(tuple, shown.models, from_engines(shown, PROFILE))
    found = [
        *metrics(families(shown, "1.2.3"), starts, now),
        *genai_metrics(push, PROFILE, SERVER, starts, now),
    ]
    starts.exported(now)
    return {metric.name: metric for metric in found}


def genai(*series: GenAiSeries, models: tuple[ModelInfo, ...] = ()) -> dict[str, Metric]:
    found = genai_metrics(Push(tuple, models, series), PROFILE, {}, StartTimes(BEGAN), NOW)
    return {metric.name: metric for metric in found}


def requests(endpoint: str, count: float, signal: str = "e2e", error: str = "") -> GenAiSeries:
    bounds = PROFILE.metrics[signal].bounds
    counts = (0.0,) * len(bounds) + (count,)
    return GenAiSeries(
        signal, "llama", "", Distribution((*bounds, inf), counts, 100 * count), endpoint, error
    )


def point(metric: Metric) -> Any:
    [only] = metric.data.data_points
    return only


# Names, attributes and values


def test_latencies_have_the_names_and_attributes_of_the_genai_conventions() -> None:
    metric = pushed(busy())["gen_ai.server.time_to_first_token"]
    assert metric.unit == "s"
    found = point(metric)
    assert found.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "nvidia.triton",
        "gen_ai.request.model": "llama",
        "gen_ai.response.model": "llama",
        "tokenslo.model.version": "1",
        "server.address": "10.0.0.1",
        "server.port": 8000,
    }
    assert (found.explicit_bounds, found.bucket_counts) == ([0.1, 0.5, 0.8, 2.0], [1, 3, 3, 2, 1])
    assert (found.count, found.sum, found.min, found.max) == (10, 6.5, None, None)
    assert (found.start_time_unix_nano, found.time_unix_nano) == (BEGAN, NOW)


def test_operations_are_those_of_the_endpoints_and_add_up() -> None:
    endpoints = {"chat": 1, "responses": 2, "messages": 4, "completions": 8, "generate_stream": 16}
    found = genai(*(requests(endpoint, count) for endpoint, count in endpoints.items()))
    points = found["gen_ai.server.request.duration"].data.data_points
    assert {
        (p.attributes["gen_ai.operation.name"], p.attributes["gen_ai.provider.name"]): p.count
        for p in points
    } == {
        ("chat", "_OTHER"): 7,
        ("text_completion", "_OTHER"): 8,
        ("text_completion", "nvidia.triton"): 16,
    }
    assert set(get_args(Endpoint)) == set(OPERATIONS)


def test_durations_of_failed_requests_have_their_error_type() -> None:
    found = genai(requests("chat", 3), requests("chat", 2, error="timeout"))
    points = found["gen_ai.server.request.duration"].data.data_points
    assert {p.attributes.get("error.type"): p.count for p in points} == {None: 3, "timeout": 2}


def test_requests_that_a_tap_saw_have_the_boundaries_of_the_conventions() -> None:
    found = genai(*(requests("chat", 1, signal) for signal in PROFILE.metrics))
    bounds = {name: point(metric).explicit_bounds for name, metric in found.items()}
    assert bounds == {
        "gen_ai.server.request.duration": [
            *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96),
            81.92,
        ],
        "gen_ai.server.time_to_first_token": [
            *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0),
            *(7.5, 10.0),
        ],
        "gen_ai.server.time_per_output_token": [
            *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
        ],
    }


def test_signals_that_a_tap_measures_are_exported_once() -> None:
    shown = view(measured("ttft", FIRST_TOKEN, "wire"), measured("e2e", FIRST_TOKEN))
    assert [one.signal for one in from_engines(shown, PROFILE)] == ["e2e"]


def test_metrics_without_a_convention_keep_their_names_and_labels() -> None:
    found = pushed(busy())
    assert point(found["llm.time_to_first_token"]).attributes == {"model": "llama", "version": "1"}
    assert found["llm.requests"].unit == "{request}"
    counted = found["llm.requests"].data
    assert counted.is_monotonic
    assert {tuple(p.attributes.items()): p.value for p in counted.data_points} == {
        (("model", "llama"), ("version", "1"), ("outcome", "ok")): 981.0,
        (("model", "llama"), ("version", "1"), ("outcome", "error")): 9.0,
    }
    utilization = found["llm.kv_cache_utilization"]
    assert (utilization.unit, point(utilization).value) == ("1", 0.5)
    assert point(utilization).start_time_unix_nano == 0
    assert found["tokenslo.source_age"].unit == "s"
    only_mean = point(found["llm.request_queue"])
    assert (only_mean.explicit_bounds, only_mean.bucket_counts, only_mean.sum) == ([], [10], 0.25)


def test_signals_of_streams_keep_their_names_and_have_the_tenant() -> None:
    streams = (("outcome", "ok"), ("phase", "complete"), ("tenant", "acme"))
    found = pushed(
        view(
            measured("streams", {streams: 3.0}),
            measured("live_streams", 2.0),
            measured("client_backpressure", 1.5),
            measured("disconnect_age", FIRST_TOKEN),
            measured("itl_normalized", FIRST_TOKEN),
        )
    )
    assert point(found["llm.streams"]).attributes == {
        "model": "llama",
        "version": "1",
        **dict(streams),
    }
    assert found["llm.streams"].data.is_monotonic
    assert (found["llm.live_streams"].unit, point(found["llm.live_streams"]).value) == (
        "{stream}",
        2.0,
    )
    waited = found["llm.client_backpressure"]
    assert (waited.unit, point(waited).value, waited.data.is_monotonic) == ("s", 1.5, True)
    for name in ("llm.disconnect_age", "llm.inter_token_latency_normalized"):
        assert (found[name].unit, point(found[name]).count) == ("s", 10)


def test_no_two_metrics_share_a_name_and_gen_ai_is_not_squatted() -> None:
    states = [
        measured(key, FIRST_TOKEN if signal.kind == "histogram" else 1.0)
        for key, signal in SIGNALS.items()
    ]
    found = pushed(view(*states))
    names = [
        metric.name for metric in metrics(families(view(*states), "1"), StartTimes(BEGAN), NOW)
    ]
    names += [name for name in found if name.startswith("gen_ai")]
    assert len(names) == len({*names})
    assert len({*OWN_METRICS}) == len({name.replace("_", ".", 1) for name in OWN_METRICS})
    counters = [metric for metric in found.values() if isinstance(metric.data, Sum)]
    assert [metric.name for metric in counters if not metric.unit] == []
    assert sorted(name for name in names if name.startswith("gen_ai")) == [
        "gen_ai.server.request.duration",
        "gen_ai.server.time_per_output_token",
        "gen_ai.server.time_to_first_token",
    ]


@pytest.mark.parametrize(
    ("info", "provider"),
    [
        (ModelInfo("llama", "1", "vllm"), "nvidia.triton"),
        (ModelInfo("llama", "", "vllm 0.33.0"), "vllm"),
        (ModelInfo("llama", "", "trtllm-serve 1.4.0"), "nvidia.tensorrt_llm"),
        (ModelInfo("llama", ""), "_OTHER"),
    ],
)
def test_the_provider_is_the_server_and_not_the_backend(info: ModelInfo, provider: str) -> None:
    state = measured("ttft", FIRST_TOKEN)
    shown = view(
        type(state)("ttft", "llama", info.version, state.method, "exact", state.samples),
        models=(info,),
    )
    found = point(pushed(shown)["gen_ai.server.time_to_first_token"])
    assert found.attributes["gen_ai.provider.name"] == provider


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_buckets_add_up_even_where_counts_are_weights(added: list[float]) -> None:
    edges = (*(float(number) for number in range(1, len(added))), float("inf"))
    counts = tuple(sum(added[: position + 1]) for position in range(len(added)))
    shown = view(measured("itl", Distribution(edges, counts, 1.0)))
    found: HistogramDataPoint = point(pushed(shown)["llm.inter_token_latency"])
    assert sum(found.bucket_counts) == found.count == round(counts[-1])
    assert all(count >= 0 for count in found.bucket_counts)
    assert len(found.bucket_counts) == len(found.explicit_bounds) + 1


@pytest.mark.parametrize(
    ("given_", "posted"),
    [
        ("http://c:4318", "http://c:4318/v1/metrics"),
        ("http://c:4318/", "http://c:4318/v1/metrics"),
        ("http://c/opentelemetry", "http://c/opentelemetry/v1/metrics"),
        ("http://c/opentelemetry/v1/metrics", "http://c/opentelemetry/v1/metrics"),
        ("https://u:p@c/x?tenant=1", "https://u:p@c/x/v1/metrics?tenant=1"),
    ],
)
def test_the_path_of_the_protocol_is_added(given_: str, posted: str) -> None:
    assert endpoint(given_) == posted


def test_the_server_is_named_where_there_is_one() -> None:
    assert server_attributes(["http://u:p@triton:8000", ""]) == {
        "server.address": "triton",
        "server.port": 8000,
    }
    assert server_attributes(["https://triton"]) == {"server.address": "triton"}
    assert server_attributes(["http://a:1", "http://b:1"]) == {}
    assert server_attributes([""]) == {}


def test_resource_attributes_come_from_the_standard_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert resource("1.2.3").attributes["service.name"] == "tokenslo"
    assert resource("1.2.3").attributes["service.version"] == "1.2.3"
    assert resource("1.2.3").attributes["service.instance.id"] == socket.gethostname()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-7,k8s.pod.name=a%20b")
    chosen = resource("1.2.3").attributes
    assert (chosen["service.name"], chosen["service.instance.id"]) == ("chat", "pod-7")
    assert chosen["k8s.pod.name"] == "a b"


# Start times


def starts_of(starts: StartTimes, count: float, now: int, **more: View) -> int:
    shown = view(measured("requests", {(("outcome", "ok"),): count}))
    return int(point(pushed(shown, starts, now)["llm.requests"]).start_time_unix_nano)


def test_a_series_that_only_grows_keeps_its_start() -> None:
    starts = StartTimes(100)
    assert [starts_of(starts, count, at) for count, at in ((1, 200), (1, 300), (5, 400))] == [
        100, 100, 100
    ]  # fmt: skip


def test_after_a_backward_clock_step_points_still_end_after_they_start() -> None:
    second, hour = 10**9, 3600 * 10**9
    ticks = iter(range(0, 10 * second, second))
    starts = StartTimes(10 * hour, clock=lambda: next(ticks))
    assert starts_of(starts, 5, 10 * hour + second) == 10 * hour
    assert starts_of(starts, 7, 9 * hour + 2 * second) == 9 * hour, "an hour back, and a second on"
    assert starts_of(starts, 9, 9 * hour + 3 * second) == 9 * hour, "the start stays"
    assert starts_of(starts, 1, 9 * hour + 4 * second) == 9 * hour + 3 * second, "a reset"
    assert starts_of(starts, 2, 8 * hour) < 8 * hour


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=20))
def test_no_clock_makes_a_point_end_before_it_starts(steps: list[int]) -> None:
    now, ticks = 10**18, 0
    starts = StartTimes(now, clock=lambda: ticks)
    for count, step in enumerate(steps):
        ticks += 10**9
        now += step
        assert starts_of(starts, count % 3, now) < now


def test_a_series_that_fell_starts_after_the_export_before() -> None:
    starts = StartTimes(100)
    assert [starts_of(starts, count, at) for count, at in ((9, 200), (2, 300), (3, 400))] == [
        100, 200, 200
    ]  # fmt: skip


def test_a_series_that_is_new_starts_after_the_export_before() -> None:
    starts = StartTimes(100)
    pushed(view(), starts, 200)
    assert starts_of(starts, 4, 300) == 200


def test_a_histogram_with_other_boundaries_has_a_new_start() -> None:
    starts = StartTimes(100)
    for at, edges, start in ((200, (0.1, float("inf")), 100), (300, (0.2, float("inf")), 200)):
        shown = view(measured("itl", Distribution(edges, (1.0, 2.0), 1.0)))
        found = point(pushed(shown, starts, at)["llm.inter_token_latency"])
        assert found.start_time_unix_nano == start


def test_start_times_of_series_absent_for_an_hour_are_forgotten() -> None:
    hour = 3600 * 10**9
    starts = StartTimes(100)
    assert starts_of(starts, 5, 200) == 100
    pushed(view(), starts, 200 + hour)
    assert starts_of(starts, 5, 300 + hour) == 200 + hour


# Receivers


@contextmanager
def receiver(
    answer: Callable[[BaseHTTPRequestHandler], None],
) -> Iterator[tuple[str, list[ExportMetricsServiceRequest]]]:
    got: list[ExportMetricsServiceRequest] = []

    class ReceiverHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(ExportMetricsServiceRequest.FromString(body))
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), ReceiverHandler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status(code: int) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def busy_push() -> Push:
    shown = busy()
    return Push(lambda: families(shown, "1.2.3"), shown.models, from_engines(shown, PROFILE))


def offer(export: OtlpExport) -> None:
    export.offer(busy_push())


def results(export: OtlpExport) -> dict[str, float]:
    return {labels["result"]: float(n) for labels, n in export.family().series}  # type: ignore[arg-type]


async def settled(export: OtlpExport, count: int) -> None:
    """Wait until at least ``count`` exports have succeeded or failed."""
    await until(lambda: sum(results(export).get(kind, 0) for kind in ("ok", "failed")) >= count)


async def close(export: OtlpExport) -> None:
    await export.close(busy_push())


async def test_a_receiver_gets_all_metrics_and_a_last_export_on_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with receiver(status(200)) as (url, got):
        export = OtlpExport(url, "1.2.3", SERVER, PROFILE)
        offer(export)
        await settled(export, 1)
        await close(export)
    assert results(export) == {"ok": 2.0}
    assert caplog.messages == []
    for request in got:
        [from_us] = request.resource_metrics
        own, conventions = from_us.scope_metrics
        for scope, name in ((own, "tokenslo"), (conventions, "tokenslo.gen_ai")):
            assert (scope.scope.name, scope.scope.version) == (name, "1.2.3")
        assert own.schema_url == ""
        assert conventions.schema_url == "https://opentelemetry.io/schemas/1.41.0"
        assert own.metrics[0].name == "llm.time_to_first_token"
        assert [metric.name for metric in conventions.metrics] == [
            "gen_ai.server.time_to_first_token"
        ]
        first_token = conventions.metrics[0].histogram
        assert first_token.aggregation_temporality == 2  # cumulative
        assert not first_token.data_points[0].HasField("min")


async def test_failures_are_logged_once_and_so_is_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    codes = iter([400, 401, 200])
    with receiver(lambda request: status(next(codes, 200))(request)) as (url, _):
        export = OtlpExport(url.replace("//", "//me:secret@"), "1.2.3", SERVER)
        for count in (1, 2, 3):
            offer(export)
            await settled(export, count)
        await close(export)
    assert results(export) == {"failed": 2.0, "ok": 2.0}
    assert [message.partition("; ")[0] for message in caplog.messages] == [
        f"sending metrics to {url}/v1/metrics: "
        "Failed to export metrics batch code: 400, reason: Bad Request",
        f"sending metrics to {url}/v1/metrics: works again",
    ]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("code", [301, 302, 307, 308])
@pytest.mark.parametrize("location", ["", "/elsewhere"])
async def test_a_redirect_is_no_delivery(
    caplog: pytest.LogCaptureFixture, code: int, location: str
) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code if request.path == "/v1/metrics" else 200)
        if location:
            request.send_header("Location", location)
        request.send_header("Content-Length", "0")
        request.end_headers()

    with receiver(answer) as (url, got):
        export = OtlpExport(url, "1.2.3", SERVER)
        offer(export)
        await settled(export, 1)
        await close(export)
    assert results(export) == {"failed": 2.0}
    assert len(got) == 2, "nothing was sent elsewhere"
    assert f"the receiver responded {code}; give its final address" in caplog.messages[0]


async def test_an_endless_response_is_not_read() -> None:
    sent = threading.Semaphore(0)

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        with suppress(OSError):
            while True:
                request.wfile.write(bytes(2**20))
                sent.release()

    with receiver(answer) as (url, _):
        export = OtlpExport(url, "1.2.3", SERVER)
        offer(export)
        await settled(export, 1)
        await close(export)
    assert results(export) == {"ok": 2.0}
    taken = 0
    while sent.acquire(blocking=False):
        taken += 1
    assert taken <= 64, "more than what kernels hold was read"


async def test_close_does_not_wait_for_a_receiver_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        export = OtlpExport(f"http://127.0.0.1:{silent.getsockname()[1]}", "1.2.3", SERVER)
        for _ in range(100):
            offer(export)
        assert results(export)["skipped"] >= 98
        await asyncio.wait_for(close(export), 60)


async def test_close_does_not_wait_for_a_missing_receiver() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    export = OtlpExport(url, "1.2.3", SERVER)
    offer(export)
    await asyncio.wait_for(close(export), 60)
    assert "ok" not in results(export)


async def test_a_defect_is_logged_and_the_next_export_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with receiver(status(200)) as (url, _):
        export = OtlpExport(url, "1.2.3", SERVER)
        export.offer(Push(lambda: 1 // 0))  # type: ignore[arg-type, return-value]
        await settled(export, 1)
        offer(export)
        await settled(export, 2)
        await close(export)
    assert results(export)["failed"] == 1.0
    assert results(export)["ok"] >= 1.0
    # The thread of an earlier export may log while it ends.
    assert any("internal error, please report it" in message for message in caplog.messages)
