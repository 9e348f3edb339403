"""The vLLM source."""

from __future__ import annotations

import sys
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.methods import METHODS
from exporter.samples import Distribution, Measurement, Missing, ModelInfo, Snapshot, SourceError
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.exposition.text_parser import ParsedFamily
from exporter.sources.vllm import vllm_metrics
from exporter.sources.vllm.vllm_source import VllmSource
from promql.http_client import FetchLimits
from slos.signals import COMPANIONS, LORA_LABELS, MAIN_SIGNALS
from tests.fake_server import FakeAnswer, fake_server, status
from tests.fake_triton import outcomes

CAPTURE = (Path(__file__).parent / "captures" / "vllm_standalone_by_hand.txt").read_text()
LORA = (Path(__file__).parent / "captures" / "vllm_lora_by_hand.txt").read_text()
CHAT = "example/chat-8b"


def answers(metrics: FakeAnswer = CAPTURE, **more: FakeAnswer) -> dict[str, FakeAnswer]:
    found: dict[str, FakeAnswer] = {
        "/health": "",
        "/version": {"version": "0.33.0"},
        "/metrics": metrics,
    }
    return found | {f"/{name}": by_signal for name, by_signal in more.items()}


async def scrape(server: dict[str, FakeAnswer]) -> Snapshot:
    async with fake_server(server) as fake, VllmSource(fake.url, limits=FetchLimits(5.0)) as source:
        return await source.snapshot(0.0)


def by_signal(snapshot: Snapshot, model: str = CHAT) -> dict[str, Measurement | Missing]:
    found: tuple[Measurement | Missing, ...] = (*snapshot.missing, *snapshot.measurements)
    return {one.signal: one for one in found if one.model == model}


def value(one: Measurement | Missing) -> object:
    assert isinstance(one, Measurement), one
    [sample] = one.samples.values()
    return sample


def series(name: str, *values: float, labels: str = "") -> str:
    """Write one sample for each engine."""
    return "".join(
        f'vllm:{name}{{engine="{number}",{labels}model_name="chat"}} {value}\n'
        for number, value in enumerate(values)
    )


def engines(kind: str, name: str, *values: float, labels: str = "") -> str:
    return f"# TYPE vllm:{name} {kind}\n" + series(name, *values, labels=labels)


def rejections(**counts: int) -> str:
    lines = [
        f'vllm:admission_rejections_total{{model_name="chat",reason="{reason}"}} {count}\n'
        for reason, count in counts.items()
    ]
    return "# TYPE vllm:admission_rejections_total counter\n" + "".join(lines)


async def test_every_signal_is_reported_or_explained() -> None:
    snapshot = await scrape(answers())
    found = by_signal(snapshot)
    assert found.keys() - COMPANIONS == set(MAIN_SIGNALS)
    assert snapshot.models == (ModelInfo(CHAT, "", "vllm 0.33.0", decoupled=True),)
    assert snapshot.ready is True
    reported = {signal for signal, one in found.items() if isinstance(one, Measurement)}
    assert {"ttft", "requests", "kv_utilization", "sequences_active", "preemptions"} <= reported
    for one in found.values():
        assert isinstance(one, Measurement) or (one.reason and one.fix)


async def test_engines_are_added_but_never_their_utilization() -> None:
    metrics = (
        engines("gauge", "num_requests_running", 5, 3)
        + engines("gauge", "kv_cache_usage_perc", 0.9, 0.7)
        + engines("counter", "num_preemptions_total", 1, 2)
        + engines("counter", "request_success_total", 4, 6, labels='finished_reason="stop",')
        + "# TYPE vllm:time_to_first_token_seconds histogram\n"
        + series("time_to_first_token_seconds_sum", 1, 2)
        + series("time_to_first_token_seconds_count", 4, 6)
        + series("time_to_first_token_seconds_bucket", 1, 2, labels='le="0.5",')
        + series("time_to_first_token_seconds_bucket", 4, 6, labels='le="+Inf",')
    )
    found = by_signal(await scrape(answers(metrics)), "chat")
    assert value(found["sequences_active"]) == 8
    assert value(found["kv_utilization"]) == pytest.approx(0.8)
    assert value(found["preemptions"]) == 3
    assert outcomes(found["requests"]) == {"ok": 10}
    assert value(found["ttft"]) == Distribution((0.5, inf), (3, 10), 3)


async def test_disconnects_and_rejections_have_outcomes() -> None:
    metrics = engines("counter", "request_success_total", 2, labels='finished_reason="abort",')
    metrics += rejections(max_num_queued_reqs=3, new_word=4)
    found = by_signal(await scrape(answers(metrics)), "chat")
    assert outcomes(found["requests"]) == {"client_disconnected": 2, "shed": 7}
    failures = found["request_failures"]
    assert isinstance(failures, Measurement)
    assert failures.samples == {
        (("outcome", "client_disconnected"), ("reason", "abort")): 2,
        (("outcome", "shed"), ("reason", "capacity")): 7,
    }
    died = found["requests_without_first_token"]
    assert isinstance(died, Measurement)
    assert died.samples == {(("outcome", "shed"),): 7}


async def test_rejections_alone_are_not_all_requests() -> None:
    found = by_signal(await scrape(answers(rejections(max_num_queued_reqs=3))), "chat")
    assert isinstance(found["requests"], Missing)


async def test_several_models() -> None:
    metrics = engines("gauge", "num_requests_running", 5)
    snapshot = await scrape(answers(metrics + metrics.replace("chat", "other").partition("\n")[2]))
    assert [info.model for info in snapshot.models] == ["chat", "other"]
    assert value(by_signal(snapshot, "other")["sequences_active"]) == 5


async def test_outage_keeps_the_models() -> None:
    async with fake_server(answers()) as fake, VllmSource(fake.url) as source:
        await source.snapshot(0)
        fake.answers["/metrics"] = status(500)
        snapshot = await source.snapshot(1)
    ttft = by_signal(snapshot)["ttft"]
    assert isinstance(ttft, Missing)
    assert ttft.unread


@pytest.mark.parametrize("body", ["", "hello", "\x00", '{"a": 1}', "# TYPE up gauge\nup 1\n"])
async def test_what_is_not_vllm(body: str) -> None:
    snapshot = await scrape(answers(body))
    assert [error.kind for error in snapshot.parts.values() if error] == ["malformed"]
    assert snapshot.models == ()


async def test_unreachable_server_is_an_error() -> None:
    async with fake_server({}) as fake:
        url = fake.url
    async with VllmSource(url) as source:
        with pytest.raises(SourceError, match="refused the connection"):
            await source.snapshot(0)


async def test_not_healthy() -> None:
    snapshot = await scrape(answers(health=status(503)))
    assert snapshot.ready is False
    assert snapshot.models[0].reason == "/health answers 503"


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-5, 5).map(float)
labels = st.dictionaries(
    st.sampled_from(
        ["engine", "model_name", "model", "version", "finished_reason", "reason", "le"]
    ),
    st.sampled_from(["0", "1", "chat", "abort", "0.1", "+Inf", ""]),
)
samples = st.tuples(
    st.sampled_from(sorted(vllm_metrics.FAMILIES)),
    st.sampled_from(["", "_bucket", "_sum", "_count"]),
    labels,
    numbers,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(samples, max_size=20))
def test_any_exposition_gives_valid_measurements(
    found: list[tuple[str, str, dict[str, str], float]],
) -> None:
    families: dict[str, ParsedFamily] = {}
    for name, suffix, labels_of, number in found:
        family = families.setdefault(name, ParsedFamily(name))
        family.samples.append((name + suffix, labels_of, number))
    metrics = FamiliesByModel(families)
    infos = [ModelInfo(*model) for model in metrics.models(*vllm_metrics.FAMILIES)]
    for one in vllm_metrics.interpret(metrics, infos):
        if isinstance(one, Missing):
            continue
        for sample in one.samples.values():
            single = not isinstance(sample, Distribution)
            assert all(0 <= n < inf for n in ([sample] if single else [*sample.counts, sample.sum]))


def test_values_whose_sum_is_infinite_are_unusable() -> None:
    name = "vllm:num_requests_running"
    samples = [
        (name, {"engine": engine, "model_name": "chat"}, sys.float_info.max) for engine in "01"
    ]
    metrics = FamiliesByModel({name: ParsedFamily(name, samples=samples)})
    assert metrics.total(name) == {}


async def test_histogram_with_a_negative_boundary_is_left_out() -> None:
    name = "time_to_first_token_seconds"
    buckets = "".join(
        f'vllm:{name}_bucket{{engine="0",le="{edge}",model_name="chat"}} 1\n'
        for edge in ("-1.0", "0.5", "+Inf")
    )
    text = f"# TYPE vllm:{name} histogram\n" + buckets
    text += series(f"{name}_sum", 1.0) + series(f"{name}_count", 1.0)
    running = engines("gauge", "num_requests_running", 1.0)
    snapshot = await scrape(answers(running + text))
    assert isinstance(by_signal(snapshot, "chat")["ttft"], Missing)
    good = await scrape(answers(running + text.replace("-1.0", "0.1")))
    assert isinstance(by_signal(good, "chat")["ttft"], Measurement)


def histogram(name: str, edges: dict[str, float], total: float, engine: int = 0) -> str:
    labels = f'engine="{engine}",model_name="chat"'
    return "".join(
        f'vllm:{name}_bucket{{{labels},le="{edge}"}} {count}\n' for edge, count in edges.items()
    ) + "".join(
        f"vllm:{name}_{suffix}{{{labels}}} {value}\n"
        for suffix, value in (("sum", total), ("count", edges["+Inf"]))
    )


def declared(name: str, *histograms: str) -> str:
    return f"# TYPE vllm:{name} histogram\n" + "".join(histograms)


TPOT, LENGTHS = "request_time_per_output_token_seconds", "request_generation_tokens"


def finished(slow: int, single: int) -> str:
    """Return vLLM's histograms of ``slow`` requests at 20 ms per token and ``single`` of one."""
    every = slow + single
    return declared(
        TPOT, histogram(TPOT, {"0.01": single, "0.025": every, "+Inf": every}, slow * 0.02)
    ) + declared(LENGTHS, histogram(LENGTHS, {"1.0": single, "2.0": single, "+Inf": every}, 1.0))


class TestTimePerOutputToken:
    async def test_requests_of_one_token_are_left_out(self) -> None:
        reported = by_signal(await scrape(answers(finished(slow=44, single=10))), "chat")["tpot"]
        distribution = value(reported)
        assert isinstance(distribution, Distribution)
        assert distribution == Distribution((0.01, 0.025, inf), (0, 44, 44), 0.88)
        assert distribution.sum / distribution.count == 0.02
        assert isinstance(reported, Measurement)
        assert (reported.method, METHODS[reported.method].quality) == ("vllm_tpot", "exact")

    @pytest.mark.parametrize("other", ["", finished(44, 10).replace("1.0", "8.0")])
    async def test_without_their_number_it_is_an_estimate(self, other: str) -> None:
        tpot = declared(TPOT, histogram(TPOT, {"0.01": 10, "+Inf": 54}, 0.88))
        reported = by_signal(await scrape(answers(other or tpot)), "chat")["tpot"]
        assert isinstance(reported, Measurement)
        assert METHODS[reported.method].quality == "estimate"
        assert "0 s" in METHODS[reported.method].description

    async def test_a_count_that_lags_looks_like_no_reset(self) -> None:
        """The two histograms of a request are not read in one moment."""
        server = answers(finished(slow=44, single=10))
        async with fake_server(server) as fake, VllmSource(fake.url) as source:
            ahead = finished(slow=44, single=10).replace(" 54", " 55")
            counts = []
            for metrics in (ahead, finished(slow=44, single=11), finished(slow=3, single=1)):
                server["/metrics"] = metrics
                reported = value(by_signal(await source.snapshot(0.0), "chat")["tpot"])
                assert isinstance(reported, Distribution)
                counts.append(reported.count)
        assert counts == [45, 45, 3]


class TestEngines:
    async def test_a_partial_reset_adds_only_what_is_new(self) -> None:
        server = answers()

        def metrics(first: float, second: float) -> str:
            name = "time_to_first_token_seconds"
            ttft = [
                histogram(name, {"0.5": count / 2, "+Inf": count}, count / 10, engine)
                for engine, count in enumerate((first, second))
            ]
            return engines("counter", "generation_tokens_total", first, second) + declared(
                name, *ttft
            )

        tokens, requests, seconds = [], [], []
        async with fake_server(server) as fake, VllmSource(fake.url) as source:
            for first, second in ((4000, 300), (4000, 100), (4050, 150), (20, 200)):
                server["/metrics"] = metrics(first, second)
                found = by_signal(await source.snapshot(0.0), "chat")
                tokens.append(value(found["output_tokens"]))
                ttft = value(found["ttft"])
                assert isinstance(ttft, Distribution)
                requests.append(ttft.count)
                seconds.append(ttft.sum)
        assert tokens == requests == [4300, 4400, 4500, 4570]
        assert seconds == pytest.approx([430, 440, 450, 457])

    async def test_removed_engine_keeps_its_counts(self) -> None:
        server = answers()
        reported = []
        async with fake_server(server) as fake, VllmSource(fake.url) as source:
            for counts in ((40, 30), (41,), (42, 1)):
                server["/metrics"] = engines("counter", "generation_tokens_total", *counts)
                reported.append(
                    value(by_signal(await source.snapshot(0.0), "chat")["output_tokens"])
                )
        assert reported == [70, 71, 73]


class TestCache:
    CONFIG = (
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0\n'
        'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000"} 1.0\n'
    )

    async def test_blocks_come_from_the_configuration(self) -> None:
        usage = engines("gauge", "kv_cache_usage_perc", 0.5, 0.25)
        found = by_signal(await scrape(answers(usage + self.CONFIG)), "chat")
        assert {
            signal: value(found[signal])
            for signal in ("kv_blocks_max", "kv_block_tokens", "kv_blocks_used", "kv_blocks_free")
        } == {
            "kv_blocks_max": 2000,
            "kv_block_tokens": 16,
            "kv_blocks_used": 750,
            "kv_blocks_free": 1250,
        }

    @pytest.mark.parametrize("blocks", ["None", "", "-1", "1e9", "9" * 400])
    async def test_invalid_number_of_blocks_is_ignored(self, blocks: str) -> None:
        usage = engines("gauge", "kv_cache_usage_perc", 0.5)
        found = by_signal(
            await scrape(answers(usage + self.CONFIG.replace("1000", blocks))), "chat"
        )
        assert isinstance(found["kv_blocks_max"], Missing)
        assert value(found["kv_utilization"]) == 0.5

    async def test_blocks_of_several_models_are_unavailable(self) -> None:
        usage = engines("gauge", "kv_cache_usage_perc", 0.5)
        two = usage + usage.replace("chat", "other").partition("\n")[2] + self.CONFIG
        assert isinstance(by_signal(await scrape(answers(two)), "chat")["kv_blocks_max"], Missing)

    async def test_a_utilization_above_one_is_refused(self) -> None:
        usage = engines("gauge", "kv_cache_usage_perc", 1e9)
        reported = by_signal(await scrape(answers(usage)), "chat")["kv_utilization"]
        assert isinstance(reported, Missing)
        assert reported.reason == "vLLM reports a KV-cache utilization of 1e+09, more than 1"


async def test_duplicate_series_is_reported_and_counted_once() -> None:
    twice = engines("counter", "generation_tokens_total", 5) + series("generation_tokens_total", 7)
    snapshot = await scrape(answers(twice))
    assert value(by_signal(snapshot, "chat")["output_tokens"]) == 5
    problem = snapshot.parts["series"]
    assert problem is not None
    assert problem.kind == "duplicate"
    assert 'vllm:generation_tokens_total{engine="0",model_name="chat"}' in str(problem)


async def test_models_above_the_limit_are_left_out() -> None:
    many = "# TYPE vllm:num_requests_running gauge\n" + "".join(
        f'vllm:num_requests_running{{model_name="m{number:05}"}} 1\n' for number in range(40_000)
    )
    snapshot = await scrape(answers(many))
    assert len(snapshot.models) == 256
    assert len({one.model for one in snapshot.measurements}) == 256
    assert str(snapshot.parts["series"]) == ("the server has 40,000 models, and only 256 are read")


def lora(running: str, waiting: str = "", updated: float = 1795213791.5, more: str = "") -> str:
    """Return an exposition with one series of the LoRA gauge."""
    return (
        engines("gauge", "num_requests_running", 1)
        + "# TYPE vllm:lora_requests_info gauge\n"
        + f'vllm:lora_requests_info{{max_lora="2",{more}running_lora_adapters="{running}",'
        + f'waiting_lora_adapters="{waiting}"}} {updated}\n'
    )


def adapters(one: Measurement | Missing) -> list[str]:
    assert isinstance(one, Measurement), one
    [labels] = one.samples
    assert [name for name, _ in labels] == [*LORA_LABELS]
    return [text for _, text in labels]


class TestLoraAdapters:
    async def test_the_latest_series_is_read_with_its_time_and_its_names_sorted(self) -> None:
        one = by_signal(await scrape(answers(LORA)))["lora_adapters"]
        assert adapters(one) == ["2", "law,sql", "chat"]
        assert value(one) == 1795213791.418207
        assert isinstance(one, Measurement)
        assert (one.method, one.note) == ("vllm_lora", "")

    async def test_without_the_gauge_there_is_a_reason(self) -> None:
        one = by_signal(await scrape(answers()))["lora_adapters"]
        assert isinstance(one, Missing)
        assert "vllm:lora_requests_info" in one.reason
        assert "--enable-lora" in one.fix

    async def test_of_several_models_an_unnamed_series_is_left_out(self) -> None:
        other = engines("gauge", "num_requests_running", 1).replace("chat", "other")
        metrics = lora("sql") + other.partition("\n")[2]
        found = by_signal(await scrape(answers(metrics)), "chat")
        assert isinstance(found["lora_adapters"], Missing)
        named = lora("sql", more='model_name="other",') + other.partition("\n")[2]
        snapshot = await scrape(answers(named))
        assert adapters(by_signal(snapshot, "other")["lora_adapters"]) == ["2", "sql", ""]
        assert isinstance(by_signal(snapshot, "chat")["lora_adapters"], Missing)

    async def test_summed_times_of_update_are_refused(self) -> None:
        one = by_signal(await scrape(answers(lora("sql", updated=2 * 1795213791.5))), "chat")
        refused = one["lora_adapters"]
        assert isinstance(refused, Missing)
        assert refused.fix == "set --api-server-count 1"

    @pytest.mark.parametrize("updated", ["NaN", "-1", "+Inf"])
    async def test_invalid_time_is_left_out(self, updated: str) -> None:
        found = by_signal(
            await scrape(answers(lora("sql").replace("1795213791.5", updated))), "chat"
        )
        assert isinstance(found["lora_adapters"], Missing)

    async def test_names_are_bounded_in_number_and_length_and_the_rest_is_counted(self) -> None:
        running = ",".join(f"adapter-{number:03}" for number in range(70))
        one = by_signal(await scrape(answers(lora(running, f"{'x' * 129},{'y' * 128}"))), "chat")
        read = one["lora_adapters"]
        most, run, waiting = adapters(read)
        assert most == "2"
        assert run.split(",") == [f"adapter-{number:03}" for number in range(64)]
        assert waiting == "y" * 128
        assert isinstance(read, Measurement)
        assert read.note == (
            "left out: 7 adapters, beyond 64 in a list or with a name of more than 128 characters"
        )

    async def test_a_maximum_that_is_no_number_is_empty(self) -> None:
        metrics = lora("sql").replace('max_lora="2"', 'max_lora="many"')
        found = by_signal(await scrape(answers(metrics)), "chat")
        assert adapters(found["lora_adapters"]) == ["", "sql", ""]
