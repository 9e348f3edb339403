"""The trtllm-serve source against a fake server with the endpoints of each release."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path

import pytest
from aiohttp import web

from exporter.methods import METHODS
from exporter.samples import Distribution, Measurement, Missing, Snapshot, SourceError
from exporter.sources.trtllm.trtllm_serve import TrtllmServeSource
from exporter.store.store import Store
from promql.http_client import FetchLimits
from slos.signals import COMPANIONS, MAIN_SIGNALS
from tests.fake_server import FakeAnswer, FakeServer, cut, fake_server, status
from tests.test_sources_request_timing import item
from tests.test_sources_trtllm_prometheus import capture, finished, gauges

IMPATIENT = FetchLimits(timeout=1.0, max_bytes=64 * 1024)


def answers(metrics: FakeAnswer = "", **more: FakeAnswer) -> dict[str, FakeAnswer]:
    found: dict[str, FakeAnswer] = {
        "/health": "",
        "/version": {"version": "1.2.1"},
        "/v1/models": {"object": "list", "data": [{"id": "chat", "object": "model"}]},
        "/prometheus/metrics": metrics,
        "/perf_metrics": [],
    }
    return found | {f"/{name}": by_signal for name, by_signal in more.items()}


def without(*paths: str, metrics: FakeAnswer = "") -> dict[str, FakeAnswer]:
    return {path: by_signal for path, by_signal in answers(metrics).items() if path not in paths}


def by_signal(snapshot: Snapshot) -> dict[str, Measurement | Missing]:
    """Return the signals of a snapshot: the sample of the best rank or the gap."""
    found: dict[str, Measurement | Missing] = {gap.signal: gap for gap in snapshot.missing}
    for measurement in sorted(snapshot.measurements, key=lambda one: -METHODS[one.method].rank):
        found[measurement.signal] = measurement
    return found


def methods(snapshot: Snapshot) -> dict[str, str]:
    return {k: one.method for k, one in by_signal(snapshot).items() if isinstance(one, Measurement)}


def gap(snapshot: Snapshot, signal: str) -> Missing:
    one = by_signal(snapshot)[signal]
    assert isinstance(one, Missing), one
    return one


def counts(snapshot: Snapshot, signal: str, method: str) -> float:
    for measurement in snapshot.measurements:
        if (measurement.signal, measurement.method) == (signal, method):
            [distribution] = measurement.samples.values()
            assert isinstance(distribution, Distribution)
            return distribution.count
    raise AssertionError(f"{signal} is not cache by {method}")


def broken(snapshot: Snapshot) -> dict[str, str]:
    return {name: error.kind for name, error in snapshot.parts.items() if error}


async def scrape(server: dict[str, FakeAnswer], **options: object) -> Snapshot:
    async with fake_server(server) as fake, source(fake, **options) as one:
        return await one.snapshot(0.0)


def source(fake: FakeServer, **options: object) -> TrtllmServeSource:
    options.setdefault("limits", FetchLimits(timeout=5.0))
    return TrtllmServeSource(fake.url, **options)  # type: ignore[arg-type]


class TestReleases:
    async def test_every_signal_is_reported_or_explained(self) -> None:
        for server in (
            answers(capture("1.1")),
            answers(capture("1.4")),
            answers(),
            without("/prometheus/metrics", "/perf_metrics"),
        ):
            snapshot = await scrape(server)
            assert by_signal(snapshot).keys() - COMPANIONS == set(MAIN_SIGNALS)
            for one in by_signal(snapshot).values():
                assert isinstance(one, Measurement) or (one.reason and one.fix)
            assert broken(snapshot) == {}

    async def test_the_model_is_the_served_one_and_the_release_is_shown(self) -> None:
        [info] = (await scrape(answers(capture("1.1")))).models
        assert (info.model, info.version, info.backend) == ("chat", "", "trtllm-serve 1.2.1")

    async def test_without_metrics_the_option_is_named(self) -> None:
        snapshot = await scrape(without("/prometheus/metrics", "/perf_metrics"))
        ttft = gap(snapshot, "ttft")
        assert ttft.reason == "/prometheus/metrics answers 404: the server publishes no metrics"
        assert ttft.fix == "set return_perf_metrics: true (TensorRT-LLM 1.1 or newer)"
        assert "enable_iter_perf_stats: true" in gap(snapshot, "sequences_active").fix
        assert snapshot.lost_records is None

    async def test_before_the_first_request(self) -> None:
        snapshot = await scrape(answers())
        assert gap(snapshot, "ttft").reason == "no request has completed yet"
        assert methods(snapshot) == dict.fromkeys(
            ("requests", "request_failures"), "trtllm_serve_finish_reason"
        )

    async def test_timing_that_was_removed(self) -> None:
        snapshot = await scrape(without("/perf_metrics", metrics=capture("1.1")))
        assert gap(snapshot, "prefill").fix.endswith("(TensorRT-LLM 1.2.1 has no /perf_metrics)")
        assert "perf_metrics_output_dir" in gap(snapshot, "prefill").fix
        assert methods(snapshot)["ttft"] == "trtllm_serve_histogram"

    async def test_health(self) -> None:
        assert (await scrape(answers())).ready is True
        snapshot = await scrape(answers(health=status(503)))
        assert snapshot.ready is False
        assert not snapshot.models[0].ready


class TestTiming:
    async def test_request_timing_replaces_the_histogram(self) -> None:
        async with fake_server(answers(capture("1.1"))) as fake, source(fake) as one:
            assert methods(await one.snapshot(0))["ttft"] == "trtllm_serve_histogram"
            fake.answers["/perf_metrics"] = [item(), item()]
            snapshot = await one.snapshot(1)
            assert methods(snapshot)["ttft"] == "trtllm_request_timing"
            assert methods(snapshot)["tpot"] == "trtllm_serve_histogram"
            assert counts(snapshot, "ttft", "trtllm_request_timing") == 2

    async def test_each_request_is_counted_once_by_the_store_with_exact_edges(self) -> None:
        store = Store(5.0)
        edges = {"ttft": (0.8,)}
        async with fake_server(answers(finished(0))) as fake, source(fake, thresholds=edges) as one:
            for now in range(6):
                if 1 <= now <= 3:
                    fake.answers["/prometheus/metrics"] = finished(now * 2)
                    fake.answers["/perf_metrics"] = [item(), item(prefill=0.4)]
                store.update(await one.snapshot(now), now, 0.1)
        [ttft] = [state for state in store.view(5).signals if state.signal == "ttft"]
        [distribution] = ttft.samples.values()
        assert isinstance(distribution, Distribution)
        assert distribution.count == 6
        assert distribution.counts[distribution.boundaries.index(0.8)] == 3

    async def test_empty_endpoint_names_the_option(self) -> None:
        async with fake_server(answers()) as fake, source(fake) as one:
            for now in range(3):
                fake.answers["/prometheus/metrics"] = finished(now)
                snapshot = await one.snapshot(now)
        assert gap(snapshot, "e2e").fix == (
            "set return_perf_metrics: true and perf_metrics_max_requests: 1000"
        )
        assert gap(snapshot, "e2e").reason.endswith("/perf_metrics stays empty")
        assert snapshot.lost_records == 1

    async def test_competing_reader_falls_back_to_the_histogram(self) -> None:
        text = capture("1.1")
        async with fake_server(answers(text)) as fake, source(fake) as one:
            for now in range(4):
                fake.answers["/prometheus/metrics"] = text.replace("} 6.0", f"}} {6 + 4 * now}")
                fake.answers["/perf_metrics"] = [item(), item()]
                snapshot = await one.snapshot(now)
                if now == 1:
                    assert methods(snapshot)["ttft"] == "trtllm_request_timing"
        assert methods(snapshot)["ttft"] == "trtllm_serve_histogram"
        assert snapshot.lost_records == 2
        assert broken(snapshot) == {"requests": "lost"}

    async def test_complete_items_of_a_cut_body_are_used(self) -> None:
        async with fake_server(answers(finished(0))) as fake, source(fake) as one:
            await one.snapshot(0)
            body = json.dumps([item(), item(), item()]).encode()
            fake.answers["/perf_metrics"] = cut(body[:-30])
            snapshot = await one.snapshot(1)
            assert broken(snapshot) == {"requests": "truncated"}
            fake.answers["/perf_metrics"] = [item()]
            await one.snapshot(2)
            snapshot = await one.snapshot(3)
        assert counts(snapshot, "ttft", "trtllm_request_timing") == 3

    async def test_items_before_a_timeout_are_used(self) -> None:
        async def slow(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(json.dumps([item(), item()]).encode()[:-1])
            await asyncio.sleep(2)  # longer than the time-out
            return response

        server = answers(finished(0))
        async with fake_server(server) as fake, source(fake, limits=IMPATIENT) as one:
            await one.snapshot(0)
            fake.answers["/perf_metrics"] = slow
            assert broken(await one.snapshot(1)) == {"requests": "timeout"}
            fake.answers["/perf_metrics"] = []
            snapshot = await one.snapshot(2)
        assert counts(snapshot, "ttft", "trtllm_request_timing") == 2

    async def test_items_of_the_first_response_belong_to_the_past(self) -> None:
        server = answers(finished(3), perf_metrics=status(500))
        async with fake_server(server) as fake, source(fake) as one:
            assert broken(await one.snapshot(0)) == {"requests": "status"}
            fake.answers["/perf_metrics"] = [item(), item(), item()]
            await one.snapshot(1)
            snapshot = await one.snapshot(2)
        assert counts(snapshot, "ttft", "trtllm_request_timing") == 0

    async def test_truncated_body_is_reported(self) -> None:
        snapshot = await scrape(answers(perf_metrics='[{"perf_metrics": {'))
        assert broken(snapshot) == {"requests": "malformed"}

    async def test_files_where_the_endpoint_was_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "perf_metrics-server-host-1-x.jsonl"
        path.write_text(json.dumps(item()) + "\n")
        server = without("/perf_metrics", metrics=finished(1))
        files = str(tmp_path / "*.jsonl")
        async with fake_server(server) as fake, source(fake, requests=files) as one:
            assert one.where == f"{fake.url} and {tmp_path}/*.jsonl"
            await one.snapshot(0)
            for now in (1, 2):
                with path.open("a") as out:
                    out.write(json.dumps(item(status="complete")) + "\n")
                fake.answers["/prometheus/metrics"] = finished(1 + now)
                snapshot = await one.snapshot(now)
        assert counts(snapshot, "ttft", "trtllm_request_timing") == 2
        assert snapshot.lost_records == 0

    async def test_files_that_never_come(self, tmp_path: Path) -> None:
        server, files = without("/perf_metrics"), str(tmp_path / "*.jsonl")
        async with fake_server(server) as fake, source(fake, requests=files) as one:
            for now in range(13):
                fake.answers["/prometheus/metrics"] = finished(now)
                snapshot = await one.snapshot(now)
        assert snapshot.lost_records == 2
        assert "perf_metrics_output_dir" in gap(snapshot, "ttft").fix


class TestFaults:
    async def test_everything_down_is_an_error(self) -> None:
        async with fake_server({}) as fake:
            url = fake.url
        async with TrtllmServeSource(url) as one:
            with pytest.raises(SourceError, match="refused the connection") as raised:
                await one.snapshot(0)
        assert raised.value.kind == "refused"

    async def test_metrics_outage_is_unread_not_missing(self) -> None:
        snapshot = await scrape(answers(status(500)))
        assert broken(snapshot) == {"metrics": "status"}
        assert gap(snapshot, "ttft").unread
        assert not gap(snapshot, "itl").unread

    async def test_model_name_survives_an_outage(self) -> None:
        async with fake_server(answers(capture("1.1"))) as fake, source(fake) as one:
            await one.snapshot(0)
            fake.answers["/v1/models"] = status(500)
            snapshot = await one.snapshot(1)
        assert {measurement.model for measurement in snapshot.measurements} == {"chat"}

    async def test_nothing_is_drained_before_the_model_has_a_name(self) -> None:
        async with fake_server(answers(models=[], **{"v1/models": "x"})) as fake:
            fake.answers["/perf_metrics"] = [item()]
            async with source(fake) as one:
                snapshot = await one.snapshot(0)
            assert fake.answers["/perf_metrics"] == [item()]
        assert snapshot.measurements == ()
        assert broken(snapshot) == {"models": "malformed"}

    async def test_another_model_starts_over(self) -> None:
        async with fake_server(answers(capture("1.1"))) as fake, source(fake) as one:
            fake.answers["/perf_metrics"] = [item()]
            await one.snapshot(0)
            fake.answers["/v1/models"] = {"data": [{"id": "other"}]}
            snapshot = await one.snapshot(1)
        assert {measurement.model for measurement in snapshot.measurements} == {"other"}
        assert methods(snapshot)["ttft"] == "trtllm_serve_histogram"

    @pytest.mark.parametrize(
        "body",
        [
            "",
            "null",
            "7",
            "[[[[",
            '{"a": 1}',
            "[1, null, true]",
            '[{"perf_metrics": NaN}]',
            '[{"perf_metrics": {"timing_metrics": {"arrival_time": -Infinity}}}]',
            "[" * 100_000,
            '[{"perf_metrics": ' + "9" * 5000 + "}]",
            "\x00\xff",
        ],
    )
    @pytest.mark.parametrize("path", ["v1/models", "perf_metrics", "version", "prometheus/metrics"])
    async def test_invalid_part_affects_only_itself(self, path: str, body: str) -> None:
        async with fake_server(answers(capture("1.1"))) as fake, source(fake) as one:
            await one.snapshot(0)
            fake.answers[f"/{path}"] = body
            snapshot = await one.snapshot(1)
        assert broken(snapshot).keys() <= {
            {"v1/models": "models", "perf_metrics": "requests", "version": "version"}.get(
                path, "metrics"
            )
        }
        assert by_signal(snapshot).keys() - COMPANIONS == set(MAIN_SIGNALS)
        assert "trtllm_request_timing" not in methods(snapshot).values()

    @pytest.mark.parametrize("path", ["/prometheus/metrics", "/perf_metrics"])
    async def test_a_flood_is_bounded(self, path: str) -> None:
        sent = 0

        async def flood(request: web.Request) -> web.StreamResponse:
            nonlocal sent
            response = web.StreamResponse()
            await response.prepare(request)
            line = (b"[" + json.dumps(item()).encode() + b",") * 64
            while sent < 100 * 2**20:
                await response.write(line)
                sent += len(line)
            return response

        limits = FetchLimits(timeout=5.0, max_bytes=2**20)
        async with fake_server(answers()) as fake, source(fake, limits=limits) as one:
            await one.snapshot(0)
            fake.answers[path] = flood
            tracemalloc.start()
            try:
                snapshot = await one.snapshot(1)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert set(broken(snapshot).values()) == {"too_large"}
        assert peak < 16 * 2**20
        assert sent < 100 * 2**20

    @pytest.mark.parametrize("path", ["/health", "/version", "/v1/models", "/prometheus/metrics"])
    async def test_slow_part_affects_only_itself(self, path: str) -> None:
        async def drip(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(20):
                await response.write(b" ")
                await asyncio.sleep(0.1)  # the pace of the server
            return response

        server = answers(capture("1.1"))
        async with fake_server(server) as fake, source(fake, limits=IMPATIENT) as one:
            await one.snapshot(0)
            fake.answers[path] = drip
            snapshot = await one.snapshot(1)
        assert list(broken(snapshot).values()) == ["timeout"]

    async def test_counters_that_fall_are_a_restart(self) -> None:
        store = Store(5.0)
        async with fake_server(answers(finished(0))) as fake, source(fake) as one:
            for now, count in enumerate((0, 10, 3, 5)):
                fake.answers["/prometheus/metrics"] = finished(count)
                store.update(await one.snapshot(now), now, 0.1)
        [requests] = [state for state in store.view(3).signals if state.signal == "requests"]
        assert sum(map(float, requests.samples.values())) == 15

    async def test_gauges_of_dead_processes_are_unavailable(self) -> None:
        text = gauges("1", num_requests_running=1) + gauges("2", num_requests_running=2)
        assert "empty the folder" in gap(await scrape(answers(text)), "sequences_active").fix
