"""The Triton source against a fake server: outages, reloads and invalid responses."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.methods import METHODS
from exporter.samples import Distribution, Measurement, Missing, Snapshot, SourceError
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.exposition.text_parser import ParsedFamily
from exporter.sources.triton import model_repository, statistics_api, trtllm_backend
from exporter.sources.triton.interpretation import TritonScrape, interpret
from exporter.sources.triton.model_selection import ModelSelection
from exporter.sources.triton.triton_source import (
    ENGINE_FAMILIES,
    FAMILIES,
    LOADED_MODEL_FAMILIES,
    TritonSource,
    default_metrics_url,
)
from exporter.sources.triton.unavailable_signals import UNAVAILABLE
from exporter.sources.unavailable import TAP_SIGNALS
from exporter.store.store import Store
from promql.http_client import FetchLimits
from slos.signals import COMPANIONS, MAIN_SIGNALS
from tests.fake_triton import (
    Handler,
    config,
    core,
    ensemble,
    fake_triton,
    found,
    outcomes,
    ready,
    scrape,
    stats,
)

GAUGES = """\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="chat",request_type="active",version="1"} 2
nv_trt_llm_request_metrics{model="chat",request_type="max",version="1"} 512
"""
CHAT = {"chat": config("tensorrtllm")}
IMPATIENT = {"limits": FetchLimits(timeout=0.3)}


def answers(status: int, body: str = "") -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body)

    return handler


async def hangs(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(5)  # longer than any time-out here
    return web.Response()


def broken(snapshot: Snapshot) -> dict[str, str]:
    return {name: error.kind for name, error in snapshot.parts.items() if error}


class TestParts:
    async def test_healthy_server_has_every_part(self) -> None:
        snapshot = await scrape(metrics=core(ok=3) + GAUGES, configs=CHAT)
        assert snapshot.ready is True
        assert snapshot.parts == dict.fromkeys(
            ("health", "repository", "statistics", "configurations", "metrics", "series")
        )

    async def test_not_ready(self) -> None:
        snapshot = await scrape(instead={"/v2/health/ready": answers(400)}, metrics=core())
        assert snapshot.ready is False
        assert broken(snapshot) == {}

    async def test_statistics_down_costs_only_their_methods(self) -> None:
        snapshot = await scrape(
            metrics=core(ok=3) + GAUGES,
            configs=CHAT,
            instead={"/v2/models/stats": hangs},
            options=IMPATIENT,
        )
        assert broken(snapshot) == {"statistics": "timeout"}
        by_signal = found(snapshot, "chat")
        assert outcomes(by_signal["requests"])["ok"] == 3
        assert by_signal["sequences_active"].samples == {(): 2}  # type: ignore[union-attr]

    async def test_metrics_outage_keeps_the_statistics(self) -> None:
        snapshot = await scrape(
            metrics=core(),
            configs=CHAT,
            stats=[stats("chat", ok=4)],
            instead={"/metrics": hangs},
            options=IMPATIENT,
        )
        assert broken(snapshot) == {"metrics": "timeout"}
        by_signal = found(snapshot, "chat")
        assert outcomes(by_signal["requests"]) == {"ok": 4}
        assert snapshot.engine_stats_age == {}
        gauge = by_signal["sequences_active"]
        assert isinstance(gauge, Missing)
        assert gauge.unread
        assert gauge.reason.startswith("the metrics could not be read: http://127.0.0.1:")
        never = by_signal["itl"]
        assert isinstance(never, Missing)
        assert not never.unread

    async def test_counts_wait_for_the_configuration(self) -> None:
        snapshot = await scrape(
            metrics=core(ok=3) + GAUGES,
            configs=CHAT,
            instead={"/v2/models/chat/config": answers(500)},
        )
        assert broken(snapshot) == {"configurations": "status"}
        by_signal = found(snapshot, "chat")
        requests = by_signal["requests"]
        assert isinstance(requests, Missing)
        assert requests.unread
        assert "answered 500" in requests.reason
        assert by_signal["sequences_active"].samples == {(): 2}  # type: ignore[union-attr]

    async def test_configuration_survives_an_api_outage(self) -> None:
        async with fake_triton(metrics=core(ok=3), configs=CHAT) as fake, fake.source() as source:
            await source.snapshot(0)
            for path in ("/v2/repository/index", "/v2/models/chat/config", "/v2/models/stats"):
                fake.instead[path] = answers(503)
            snapshot = await source.snapshot(1000)
        assert broken(snapshot) == {"repository": "status", "statistics": "status"}
        assert outcomes(found(snapshot, "chat")["requests"])["ok"] == 3

    async def test_everything_down_is_an_error(self) -> None:
        async with fake_triton() as fake:
            url = fake.url
        async with TritonSource(url, f"{url}/metrics") as source:
            with pytest.raises(SourceError, match="refused the connection") as raised:
                await source.snapshot(0)
        assert raised.value.kind == "refused"

    async def test_a_wrong_path_of_the_metrics_port_names_the_right_one(self) -> None:
        """Triton answers 200 with nothing to any path but /metrics."""
        async with fake_triton(instead={"/metric": answers(200)}) as fake:
            async with TritonSource(None, f"{fake.url}/metric") as source:
                with pytest.raises(SourceError) as raised:
                    await source.snapshot(0)
            assert raised.value.kind == "empty"
            assert str(raised.value) == (
                f"{fake.url}/metric answered with nothing: Triton's metrics are at "
                f"{fake.url}/metrics"
            )

    async def test_empty_metrics_at_the_right_path_suggest_no_other_path(self) -> None:
        async with (
            fake_triton(instead={"/metrics": answers(200)}) as fake,
            TritonSource(None, f"{fake.url}/metrics") as source,
        ):
            with pytest.raises(SourceError) as raised:
                await source.snapshot(0)
        assert str(raised.value) == f"{fake.url}/metrics answered with nothing: this is no Triton"

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("<html></html>\n", "did not answer with Prometheus metrics (line 1: "),
            ("# TYPE up gauge\nup 1\n", "these are not the metrics of a Triton server"),
        ],
    )
    async def test_what_is_not_triton(self, body: str, words: str) -> None:
        snapshot = await scrape(metrics=body)
        assert broken(snapshot) == {"metrics": "malformed"}
        assert words in str(snapshot.parts["metrics"])

    async def test_a_server_without_a_loaded_model_is_a_triton(self) -> None:
        body = "# TYPE nv_pinned_memory_pool_used_bytes gauge\nnv_pinned_memory_pool_used_bytes 0\n"
        assert broken(await scrape(metrics=body)) == {}

    @pytest.mark.parametrize("body", ["{}", "nonsense", '{"error": "no"}'])
    async def test_an_index_that_is_no_list(self, body: str) -> None:
        snapshot = await scrape(instead={"/v2/repository/index": answers(200, body)})
        assert broken(snapshot) == {"repository": "malformed"}


class TestAddresses:
    def test_one_of_them_is_needed(self) -> None:
        with pytest.raises(ValueError, match="needs the address"):
            TritonSource()

    @pytest.mark.parametrize(
        ("url", "metrics"),
        [
            ("http://triton:8000", "http://triton:8002/metrics"),
            ("https://user:pw@10.0.0.1:9000/prefix", "https://10.0.0.1:8002/metrics"),
            ("http://[::1]:8000", "http://[::1]:8002/metrics"),
        ],
    )
    def test_metrics_default_to_tritons_port(self, url: str, metrics: str) -> None:
        assert default_metrics_url(url) == metrics

    async def test_without_the_api_only_engine_metrics_are_used(self) -> None:
        async with fake_triton(metrics=core(ok=3) + core("plain", ok=5) + GAUGES) as fake:
            async with TritonSource(None, f"{fake.url}/metrics") as source:
                snapshot = await source.snapshot(0)
            assert fake.requested == ["/metrics"]
        assert snapshot.ready is None
        by_signal = found(snapshot, "chat")
        assert by_signal["sequences_active"].samples == {(): 2}  # type: ignore[union-attr]
        assert by_signal["requests"] == Missing(
            "requests",
            "chat",
            "1",
            "the meaning of Triton's counters depends on the backend, and this model's backend is "
            "not known",
            "give the sidecar --triton URL, the address of Triton's HTTP API",
        )
        assert {info.model: info.excluded for info in snapshot.models} == {
            "chat": "",
            "plain": "it publishes no engine metrics, and without --triton its configuration is "
            "not known",
        }


class TestModels:
    async def test_configurations_are_read_once_until_something_changes(self) -> None:
        async with fake_triton(metrics=core(), configs=CHAT) as fake, fake.source() as source:

            async def reads(now: float) -> int:
                fake.requested.clear()
                await source.snapshot(now)
                return fake.requested.count("/v2/models/chat/config")

            fake.stats = [stats("chat", ok=5)]
            assert [await reads(now) for now in (0, 1, 2)] == [1, 0, 0]
            fake.index = ready("chat") + ready("chat", version="2")
            assert [await reads(now) for now in (3, 4)] == [1, 0]
            fake.stats = [stats("chat", ok=2)]
            assert [await reads(now) for now in (5, 6)] == [1, 0], "counts fell: reloaded"
            assert [await reads(now) for now in (60, 70, 71)] == [0, 1, 0], "old"

    async def test_a_reload_as_another_backend_changes_the_rules(self) -> None:
        configs: dict[str, object] = dict(CHAT)
        async with (
            fake_triton(metrics=core(ok=3), configs=configs) as fake,
            fake.source() as source,
        ):
            before = await source.snapshot(0)
            fake.configs["chat"] = config("python")
            fake.index = ready("chat", version="2")
            fake.metrics = core(version="2")
            after = await source.snapshot(1)
        assert isinstance(found(before, "chat")["requests"], Measurement)
        assert isinstance(found(after, "chat", "2")["requests"], Missing)

    async def test_unloaded_model_is_unavailable_although_its_failures_remain(self) -> None:
        store = Store(10)
        configs, before = dict(CHAT), core(ok=30, backend=2)
        async with fake_triton(metrics=before, configs=configs) as fake, fake.source() as source:
            store.update(await source.snapshot(0), 0, 0.01)
            fake.metrics = (
                "\n".join(
                    line
                    for line in before.splitlines()
                    if "failure" in line or line.startswith("#")
                )
                + "\n"
            )
            fake.index = [
                {"name": "chat", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
            ]
            snapshot = await source.snapshot(1)
            store.update(snapshot, 1, 0.01)
            assert snapshot.measurements == ()
            assert {gap.reason for gap in snapshot.missing} == {
                "the model is not loaded (UNAVAILABLE: unloaded)"
            }
            fake.index, fake.metrics = ready("chat"), core(ok=4, backend=2)
            store.update(await source.snapshot(2), 2, 0.01)
        (requests,) = [one for one in store.view(2).signals if one.signal == "requests"]
        assert requests.samples[(("outcome", "ok"),)] == 4
        assert requests.samples[(("outcome", "error"),)] == 0

    async def test_a_version_unloaded_beside_a_ready_one_is_excluded(self) -> None:
        metrics = core(ok=3) + core(version="2", ok=1)
        async with fake_triton(metrics=metrics, configs=CHAT) as fake, fake.source() as source:
            fake.index = ready("chat") + ready("chat", version="2")
            await source.snapshot(0)
            unloaded = {
                "name": "chat", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded",
            }  # fmt: skip
            fake.metrics = core(version="2", ok=2)
            fake.index = [{**unloaded, "reason": "out of memory"}, *ready("chat", version="2")]
            failed = await source.snapshot(1)
            fake.index = [unloaded, *ready("chat", version="2")]
            planned = await source.snapshot(2)
        assert [info.excluded for info in planned.models] == [
            "it is unloaded, and version 2 is ready",
            "",
        ]
        assert {gap.version for gap in planned.missing} == {"2"}
        assert [(info.ready, info.excluded) for info in failed.models] == [(False, ""), (True, "")]

    async def test_a_model_reported_for_its_metrics_stays_while_they_are_silent(self) -> None:
        configs: dict[str, object] = {"chat": config("python", decoupled=False)}
        metrics = core() + GAUGES
        async with fake_triton(metrics=metrics, configs=configs) as fake, fake.source() as source:
            await source.snapshot(0)
            fake.instead["/metrics"] = answers(500)
            (silent,) = (await source.snapshot(1)).models
            del fake.instead["/metrics"]
            fake.metrics = core()
            (changed,) = (await source.snapshot(2)).models
        assert silent.excluded == ""
        assert changed.excluded.startswith("not decoupled and without engine metrics")

    async def test_a_namespaced_model_keeps_its_name_while_the_metrics_are_silent(self) -> None:
        metrics = core(labels='namespace="blue",')
        async with fake_triton(metrics=metrics, configs=CHAT) as fake, fake.source() as source:
            await source.snapshot(0)
            fake.instead["/metrics"] = answers(500)
            (info,) = (await source.snapshot(1)).models
        assert info.model == "blue/chat"

    async def test_a_name_in_two_namespaces_is_two_models_and_no_third(self) -> None:
        metrics = "".join(core(labels=f'namespace="{color}",') for color in ("blue", "green"))
        index = [{"name": "chat", "version": "1", "state": "UNLOADING"}]
        snapshot = await scrape(metrics=metrics, configs=CHAT, index=index)
        assert [info.model for info in snapshot.models] == ["blue/chat", "green/chat"]
        # The index does not say which of the two it means.
        assert [info.ready for info in snapshot.models] == [True, True]

    async def test_an_unloaded_model_may_still_count_while_the_metrics_are_silent(self) -> None:
        async with fake_triton(metrics=core(ok=3), configs=CHAT) as fake, fake.source() as source:
            await source.snapshot(0)
            fake.index = [{"name": "chat", "version": "1", "state": "UNLOADING"}]
            fake.instead["/metrics"] = answers(500)
            snapshot = await source.snapshot(1)
        assert all(gap.unread for gap in snapshot.missing)
        assert {gap.reason for gap in snapshot.missing} == {"the model is not loaded (UNLOADING)"}

    async def test_unloading_model_is_reported_to_its_last_series(self) -> None:
        index = [{"name": "chat", "version": "1", "state": "UNLOADING"}]
        snapshot = await scrape(metrics=core(ok=3) + GAUGES, index=index, configs=CHAT)
        assert found(snapshot, "chat")["sequences_active"].samples == {(): 2}  # type: ignore[union-attr]
        (info,) = snapshot.models
        assert (info.ready, info.reason) == (False, "UNLOADING")

    async def test_models_never_loaded_are_excluded(self) -> None:
        snapshot = await scrape(index=[{"name": "draft"}])
        (info,) = snapshot.models
        assert (info.ready, info.excluded) == (False, "it is not loaded (not loaded)")
        assert snapshot.missing == ()

    async def test_names_are_quoted(self) -> None:
        name = "a/b c?"
        snapshot = await scrape(metrics=core(name), configs={name: config("python")})
        assert [info.backend for info in snapshot.models] == ["python"]

    async def test_ensembles_that_contain_each_other_end(self) -> None:
        configs = {"a": ensemble("b"), "b": ensemble("a")}
        snapshot = await scrape(metrics=core("a") + core("b"), configs=configs)
        assert [info.decoupled for info in snapshot.models] == [False, False]


def many(
    count: int,
    *,
    decoupled: bool = True,
    reported: AbstractSet[tuple[str, str]] = frozenset(),
) -> ModelSelection:
    """Return a server with ``count`` models, half of them steps of the other half."""
    names = [f"m{index:05}" for index in range(count)]
    steps: list[tuple[str, ...]] = [
        () if index % 2 else (names[index - 1],) for index in range(count)
    ]
    return ModelSelection(
        names={f"blue/{name}": name for name in names},
        silent=False,
        index=[model_repository.RepositoryEntry(name, "1", "READY", "") for name in names],
        configs={
            name: model_repository.ModelConfig("python", decoupled, behind)
            for name, behind in zip(names, steps, strict=True)
        },
        unread={},
        globs=(),
        publishing=frozenset(),
        counted={(f"blue/{name}", "1") for name in names},
        reported_before=reported,
    )


class TestManyModels:
    def test_models_above_the_limit_are_excluded_with_a_reason(self) -> None:
        infos = many(300).models()
        assert len(infos) == 300
        assert {info.excluded for info in infos[:256]} == {""}
        assert {info.excluded for info in infos[256:]} == {
            "more than 256 models of this server are reported on already"
        }

    def test_reported_models_stay_within_the_limit(self) -> None:
        last = ("blue/m00299", "1")
        infos = {info.model: info for info in many(300, reported={last}).models()}
        assert infos[last[0]].excluded == ""
        assert infos["blue/m00255"].excluded != ""

    def test_models_that_are_not_ready_give_way_first(self) -> None:
        ready = many(300)
        assert isinstance(ready.index, list)
        gone = [replace(entry, state="UNAVAILABLE") for entry in ready.index[:200]]
        before = frozenset((f"blue/m{index:05}", "1") for index in range(200))
        selection = replace(ready, index=gone + ready.index[200:], reported_before=before)
        infos = selection.models()
        assert sum(not info.excluded for info in infos) == 256
        assert {info.excluded for info in infos if info.ready} == {""}

    def test_the_time_for_a_model_does_not_grow_with_the_number_of_models(self) -> None:
        began = time.process_time()
        infos = many(10_000, decoupled=False).models()
        assert time.process_time() - began < 1, "quadratic, it takes many seconds"
        assert infos[1].excluded.startswith("a step of the ensemble m00002, not decoupled")

    def test_time_for_counts_by_api_name_does_not_grow_with_the_models(self) -> None:
        names = {f"blue/m{index}": f"m{index}" for index in range(20_000)}
        document = {"model_stats": [stats("m7", ok=1)]}
        began = time.process_time()
        parsed = statistics_api.parse(document)
        assert list(statistics_api.tallies(parsed, names)) == [("blue/m7", "1")]
        assert time.process_time() - began < 1, "quadratic, it takes ten seconds"


def test_every_unavailable_signal_of_every_kind_of_model_has_reason_and_fix() -> None:
    for entries in UNAVAILABLE.values():
        assert entries.keys() - COMPANIONS == set(MAIN_SIGNALS)
        assert all(entry.reason and entry.fix for entry in entries.values())


def test_signals_of_streams_have_the_tap_as_fix() -> None:
    for entries in UNAVAILABLE.values():
        for signal in (*TAP_SIGNALS, "tpot", "max_gap", "cached_input_tokens"):
            assert "--tap proxy=:9000=127.0.0.1:8000" in entries[signal].fix
            assert "--tap capture=eth0:8000" in entries[signal].fix
            assert entries[signal].never, "no scrape of Triton can provide it"
    assert {signal for signal in MAIN_SIGNALS if "stream" in signal or "disconnect" in signal} <= {
        *TAP_SIGNALS
    }


@pytest.mark.parametrize(
    "answered",
    [config("tensorrtllm"), config("python"), config("vllm"), config("x", decoupled=False),
     ensemble("step"), None],
    ids=["tensorrtllm", "python", "vllm", "unary", "ensemble", "unknown"],
)  # fmt: skip
async def test_every_signal_is_given_or_explained_once(answered: object) -> None:
    configs = {"chat": answered} if answered else {}
    snapshot = await scrape(metrics=core(ok=1) + GAUGES, configs=configs, index=ready("chat"))
    given = {one.signal for one in snapshot.measurements}
    explained = [one.signal for one in snapshot.missing]
    assert sorted({*given, *explained} - COMPANIONS) == sorted(MAIN_SIGNALS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["name", "version", "state", "reason", "model_stats", "inference_stats", "success",
             "fail", "queue", "count", "ns", "backend", "platform", "ensemble_scheduling", "step",
             "model_name", "model_transaction_policy", "decoupled"]
        ),
        inner | st.sampled_from(["chat", "1", "READY", "ensemble", "python", "tensorrtllm"]),
        max_size=6,
    ),
    max_leaves=20,
)  # fmt: skip
WORDS = ("chat", "1", "active", "max", "used", "free", "timestamp", "REJECTED", "0.5", "+Inf", "")
LABELS = st.dictionaries(
    st.sampled_from(
        ["model", "version", "namespace", "reason", "le", "quantile", "request_type",
         "kv_cache_block_type", "general_type", "finished_reason", "model_name"]
    ),
    st.sampled_from(WORDS),
    max_size=5,
)  # fmt: skip


@st.composite
def families(draw: st.DrawFn) -> dict[str, ParsedFamily]:
    chosen = draw(st.lists(st.sampled_from(sorted(FAMILIES)), max_size=12, unique=True))
    found = {}
    for name in chosen:
        sample = st.tuples(
            st.sampled_from([name, f"{name}_count", f"{name}_sum", f"{name}_bucket"]),
            LABELS,
            st.floats(),
        )
        found[name] = ParsedFamily(name, samples=draw(st.lists(sample, max_size=8)))
    return found


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(families(), min_size=1, max_size=3), JSON, JSON, JSON)
def test_invalid_responses_give_consistent_snapshots(
    scrapes: list[dict[str, ParsedFamily]], index: object, configuration: object, statistics: object
) -> None:
    """Whatever a server says: every signal once, sane values, and a store that takes it."""
    store = Store(10)
    engines: dict[tuple[str, str], trtllm_backend.EngineProgress] = {}
    known: set[tuple[str, str]] = set()
    answered = model_repository.config(configuration)
    for now, by_signal in enumerate(scrapes):
        metrics = FamiliesByModel(by_signal)
        tallies = statistics_api.tallies(statistics_api.parse(statistics), metrics.names)
        selection = ModelSelection(
            names=metrics.names,
            silent=False,
            index=model_repository.index(index),
            configs={"chat": answered} if answered else {},
            unread={},
            globs=("*",),
            publishing=metrics.models(*ENGINE_FAMILIES),
            counted=metrics.models(*LOADED_MODEL_FAMILIES) | tallies.keys(),
            reported_before=frozenset(),
        )
        models = [info for info in selection.models() if not info.excluded]
        engines = trtllm_backend.update_progress(metrics, models, engines, now)
        triton_scrape = TritonScrape(metrics, None, tallies, None)
        measurements, missing = interpret(triton_scrape, selection, models, engines, now, 1.0)
        for measurement in measurements:
            assert measurement.method in METHODS
            for value in measurement.samples.values():
                if isinstance(value, Distribution):
                    assert list(value.counts) == sorted(value.counts)
                    assert value.boundaries[-1] == float("inf")
                    value = value.sum
                assert 0 <= value < float("inf")
        keys = {
            (one.model, one.version, one.signal)
            for one in (*measurements, *missing)
            if one.signal not in COMPANIONS
        }
        assert len(keys) == len(models) * len(MAIN_SIGNALS)
        snapshot = Snapshot("triton", tuple(measurements), tuple(missing), tuple(models))
        store.update(snapshot, now, 0.0)
        shown = {(one.model, one.version, one.signal) for one in store.view(now).signals}
        known |= {(info.model, info.version) for info in models}
        versions: dict[str, list[str]] = {}
        for model, version in sorted(known):
            if version:
                versions.setdefault(model, []).append(version)
        # The store joins a model without a version with its version, if it has exactly one.
        only = {model: found[0] for model, found in versions.items() if len(found) == 1}
        joined = {(model, version or only.get(model, ""), one) for model, version, one in keys}
        assert joined <= shown


async def test_the_work_for_a_model_does_not_grow_with_the_number_of_models() -> None:
    async def steps(models: int) -> int:
        """Count the calls that one snapshot takes."""
        lines = [
            f'{{model="m{index}",version="1",request_type="active"}} 1' for index in range(models)
        ]
        metrics = "\n".join(
            [
                "# TYPE nv_inference_request_success counter",
                *(f"nv_inference_request_success{line}" for line in lines),
                "# TYPE nv_trt_llm_request_metrics gauge",
                *(f"nv_trt_llm_request_metrics{line}" for line in lines),
            ]
        )
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        async with fake_triton(metrics=metrics + "\n") as fake, fake.source() as source:
            await source.snapshot(0)
            sys.setprofile(count)
            try:
                await source.snapshot(1)
            finally:
                sys.setprofile(None)
        return calls

    assert await steps(400) < 5 * await steps(100)


async def test_a_lone_surrogate_in_a_name_fails_one_configuration_at_most() -> None:
    bad = "chat\ud800"
    index = [*ready("chat"), *ready(bad)]
    snapshot = await scrape(
        metrics=core(ok=3),
        configs=CHAT,
        index=index,
        stats=[stats("chat", ok=3), stats(bad, ok=1)],
    )
    assert isinstance(found(snapshot, "chat")["requests"], Measurement)
    problem = snapshot.parts["configurations"]
    assert problem is not None
    assert problem.kind == "status"
    assert all(one.model.isascii() for one in snapshot.models)


async def test_models_above_the_limit_are_left_out() -> None:
    lines = core(ok=1).splitlines(keepends=True)
    many = "".join(
        line if line.startswith("#") else line.replace('"chat"', f'"m{number:05}"')
        for line in lines[:2]
        for number in (range(1) if line.startswith("#") else range(20_000))
    )
    snapshot = await scrape(metrics=many)
    assert len(snapshot.models) == 1024
    assert str(snapshot.parts["series"]) == (
        "the server has 20,000 models, and only 1,024 are read"
    )
