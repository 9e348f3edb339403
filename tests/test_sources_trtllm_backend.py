"""TensorRT-LLM's gauges: meaning, staleness and invalid values."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from exporter.methods import METHODS
from exporter.samples import Distribution, Measurement, Missing, ModelInfo, Snapshot
from exporter.sources.triton.trtllm_backend import AT_REST, GAUGES
from tests.fake_triton import FakeTriton, config, core, fake_triton, found, scrape

CPP = {"chat": config("tensorrtllm")}
WORDS = {
    "nv_trt_llm_request_metrics": "request_type",
    "nv_trt_llm_runtime_memory_metrics": "memory_type",
    "nv_trt_llm_kv_cache_block_metrics": "kv_cache_block_type",
    "nv_trt_llm_inflight_batcher_metrics": "inflight_batcher_specific_metric",
    "nv_trt_llm_general_metrics": "general_type",
    "nv_trt_llm_v1_metrics": "v1_specific_metric",
}
BUSY: dict[str, dict[str, float]] = {
    "nv_trt_llm_request_metrics": {
        "active": 14, "max": 64, "scheduled": 12, "context": 1, "waiting": 2,
    },
    "nv_trt_llm_runtime_memory_metrics": {"cpu": 68172, "gpu": 36100332423, "pinned": 0},
    "nv_trt_llm_kv_cache_block_metrics": {
        "max": 6239, "free": 3197, "used": 3042, "tokens_per": 64, "reused": 118,
        "fraction": 0.487578,
    },
    "nv_trt_llm_inflight_batcher_metrics": {
        "total_context_tokens": 512, "generation_requests": 11, "micro_batch_id": 0,
        "paused_requests": 3,
    },
    "nv_trt_llm_general_metrics": {
        "timestamp": 1795204800123456, "iteration_counter": 48211,
    },
}  # fmt: skip


def published(**changes: dict[str, float] | None) -> str:
    """Return Triton's text with families changed, by the middle of their names; None removes.

    A value of -1 removes a series.
    """
    groups = {family: dict(series) for family, series in BUSY.items()}
    for middle, series in changes.items():
        (family,) = [name for name in WORDS if middle in name]
        if series is None:
            del groups[family]
        else:
            groups[family] = groups.get(family, {}) | series
    lines = []
    for family, values in groups.items():
        lines.append(f"# TYPE {family} gauge")
        lines += [
            f'{family}{{model="chat",{WORDS[family]}="{word}",version="1"}} {value}'
            for word, value in values.items()
            if value != -1
        ]
    return core() + "\n".join(lines) + "\n"


def values(snapshot: Snapshot) -> dict[str, object]:
    """Return what is cache of each gauge: its value, or the reason why there is none."""
    return {
        signal: one.samples[()] if isinstance(one, Measurement) else one.reason
        for signal, one in found(snapshot, "chat").items()
        if signal in GAUGES or signal == "kv_reused_blocks"
    }


async def test_every_gauge_of_the_cpp_backend() -> None:
    snapshot = await scrape(metrics=published(), configs=CPP)
    assert values(snapshot) == {
        "sequences_active": 14,
        "sequences_decoding": 11,
        "sequences_waiting": 2,
        "sequences_paused": 3,
        "sequences_max": 64,
        "kv_utilization": 3042 / 6239,
        "kv_blocks_used": 3042,
        "kv_blocks_free": 3197,
        "kv_blocks_max": 6239,
        "kv_block_tokens": 64,
        "kv_reused_blocks": 118,
        "memory_gpu": 36100332423,
        "memory_cpu": 68172,
        "memory_pinned": 0,
    }
    assert snapshot.engine_stats_age == {("chat", "1"): 0.0}


async def test_paused_requests_are_those_of_the_last_iteration() -> None:
    """The engine counts what it pauses, not what is paused (TensorRT-LLM, fillIterationStats)."""
    cache = found(await scrape(metrics=published(), configs=CPP), "chat")["sequences_paused"]
    assert isinstance(cache, Measurement)
    method = METHODS[cache.method]
    assert (cache.method, method.quality) == ("trtllm_just_paused", "estimate")
    assert method.note.startswith("a lower bound")


async def test_python_models_and_old_backends_lack_some_series() -> None:
    metrics = published(
        request={"waiting": -1},
        kv_cache={"fraction": -1, "reused": -1},
        general={"timestamp": 17e8},
    )
    cache = values(await scrape(metrics=metrics, configs={"chat": config("python")}))
    assert cache["sequences_waiting"] == 2
    assert cache["kv_utilization"] == 3042 / 6239
    assert str(cache["kv_reused_blocks"]).startswith("TensorRT-LLM's python model")


async def test_before_the_first_iteration_only_limits_are_reported() -> None:
    zeros = {family: dict.fromkeys(series, 0.0) for family, series in BUSY.items()}
    snapshot = await scrape(
        metrics=published(
            request=zeros["nv_trt_llm_request_metrics"],
            memory=zeros["nv_trt_llm_runtime_memory_metrics"],
            kv_cache=zeros["nv_trt_llm_kv_cache_block_metrics"],
            general=zeros["nv_trt_llm_general_metrics"],
        ),
        configs=CPP,
    )
    cache = values(snapshot)
    assert {cache[signal] for signal in GAUGES if signal not in AT_REST} == {
        "the engine has run no iteration yet, so all of its gauges are 0"
    }
    assert [cache[signal] for signal in AT_REST] == [0.0, 0.0]
    assert snapshot.engine_stats_age == {}


async def test_an_engine_without_kv_cache_statistics_has_no_utilization() -> None:
    zeros = {"max": 0.0, "free": 0.0, "used": 0.0, "fraction": 0.0}
    cache = values(await scrape(metrics=published(kv_cache=zeros), configs=CPP))
    assert "publishes no KV-cache statistics" in str(cache["kv_utilization"])
    assert cache["sequences_active"] == 14


@pytest.mark.parametrize(
    "shifted",
    [
        pytest.param({"used": 7000}, id="more used than there are"),
        pytest.param({"fraction": 64}, id="a fraction above 1"),
        pytest.param({"used": 64, "tokens_per": 118}, id="used holds tokens per block"),
        pytest.param({"free": 3042, "used": 64}, id="free holds used"),
    ],
)
async def test_values_under_the_wrong_labels_are_refused(shifted: dict[str, float]) -> None:
    cache = values(await scrape(metrics=published(kv_cache=shifted), configs=CPP))
    for signal in ("kv_utilization", "kv_blocks_used", "kv_blocks_free", "kv_blocks_max"):
        assert str(cache[signal]).startswith("KV-cache values contradict each other")
    assert cache["sequences_active"] == 14


async def test_utilization_is_computed_and_never_taken_from_fraction() -> None:
    cache = values(await scrape(metrics=published(kv_cache={"fraction": 0.9}), configs=CPP))
    assert cache["kv_utilization"] == 3042 / 6239
    cache = values(await scrape(metrics=published(kv_cache={"used": -1}), configs=CPP))
    assert "no used or no max series" in str(cache["kv_utilization"])


async def test_static_batching_has_no_batcher_gauges() -> None:
    metrics = published(inflight=None, v1={"empty_generation_slots": 2})
    cache = values(await scrape(metrics=metrics, configs=CPP))
    assert str(cache["sequences_paused"]).startswith("the engine batches statically")
    assert cache["sequences_active"] == 14


@pytest.mark.parametrize("value", ["Nan", "-2", "+Inf"])
async def test_an_unusable_gauge_is_absent_and_the_others_are_not(value: str) -> None:
    metrics = published().replace('"active",version="1"} 14', f'"active",version="1"}} {value}')
    cache = values(await scrape(metrics=metrics, configs=CPP))
    assert cache["sequences_active"] == ('nv_trt_llm_request_metrics has no usable "active" series')
    assert cache["sequences_max"] == 64


class TestFreshness:
    """Only movement counts: timestamps are of several units, and in local time."""

    STUCK = (
        "engine statistics stopped 6 s ago with 14 active: decoding is stuck or the executor "
        "does not report idle"
    )

    async def snapshots(self, *scrapes: tuple[float, str]) -> list[Snapshot]:
        async with fake_triton(configs=CPP) as fake, fake.source() as source:
            return [await self.one(fake, source, now, text) for now, text in scrapes]

    async def one(self, fake: FakeTriton, source: object, now: float, text: str) -> Snapshot:
        fake.metrics = text
        return await source.snapshot(now)  # type: ignore[attr-defined,no-any-return]

    async def test_gauges_unchanged_while_active_are_withdrawn(self) -> None:
        scrapes = await self.snapshots((100, published()), (105, published()), (106, published()))
        assert values(scrapes[1])["sequences_active"] == 14
        cache = values(scrapes[2])
        assert {cache[signal] for signal in GAUGES} == {self.STUCK}
        assert cache["kv_reused_blocks"] == 118
        assert scrapes[2].engine_stats_age == {("chat", "1"): 6.0}

    @pytest.mark.parametrize(
        "moved", [{"timestamp": 1795204800123457.0}, {"iteration_counter": 48212.0}]
    )
    async def test_any_movement_brings_them_back(self, moved: dict[str, float]) -> None:
        scrapes = await self.snapshots(
            (100, published()), (106, published()), (107, published(general=moved))
        )
        assert values(scrapes[2])["sequences_active"] == 14
        assert scrapes[2].engine_stats_age == {("chat", "1"): 0.0}

    async def test_an_idle_engine_may_have_unchanged_gauges(self) -> None:
        idle = published(request={"active": 0, "scheduled": 0, "waiting": 0},
                         kv_cache={"used": 0, "free": 6239, "fraction": 0})  # fmt: skip
        scrapes = await self.snapshots((100, idle), (400, idle))
        assert values(scrapes[1])["sequences_active"] == 0
        assert scrapes[1].engine_stats_age == {("chat", "1"): 300.0}

    async def test_without_timestamps_the_age_is_unknown(self) -> None:
        text = published(general=None)
        scrapes = await self.snapshots((100, text), (400, text))
        assert values(scrapes[1])["sequences_active"] == 14
        assert scrapes[1].engine_stats_age == {}


class TestHostPool:
    """Engines before the fix count the whole host-offload pool as used blocks."""

    IDLE = published(
        request={"active": 0, "scheduled": 0, "waiting": 0},
        kv_cache={"used": 5000, "free": 1239, "fraction": 0.8},
    )
    ENDING = IDLE.replace(
        '"iteration_counter",version="1"} 48211', '"iteration_counter",version="1"} 48250'
    )
    LIVE = published(
        kv_cache={"used": 5620, "free": 619, "fraction": 0.9},
        general={"iteration_counter": 48300},
    )

    async def test_blocks_used_at_rest_are_subtracted(self) -> None:
        scrapes = await TestFreshness().snapshots((1, self.IDLE), (2, self.IDLE), (3, self.LIVE))
        utilization = found(scrapes[2], "chat")["kv_utilization"]
        assert isinstance(utilization, Measurement)
        assert utilization.samples == {(): 620 / 1239}
        assert utilization.method == "trtllm_without_host_pool"
        assert utilization.note == "5000 blocks are subtracted"
        assert values(scrapes[2])["kv_blocks_max"] == 1239

    async def test_single_inconsistent_scrape_changes_nothing(self) -> None:
        scrapes = await TestFreshness().snapshots(
            (0, published()), (1, self.ENDING), (3, self.LIVE)
        )
        assert values(scrapes[2])["kv_utilization"] == 5620 / 6239

    async def test_resized_cache_is_measured_again(self) -> None:
        other = published(kv_cache={"max": 9000, "used": 6000, "free": 3000, "fraction": 0.7},
                          general={"iteration_counter": 5})  # fmt: skip
        scrapes = await TestFreshness().snapshots((1, self.IDLE), (2, self.IDLE), (3, other))
        assert values(scrapes[2])["kv_utilization"] == 6000 / 9000


async def test_tokens_are_sums_of_finished_requests() -> None:
    metrics = (
        published()
        + """\
# TYPE nv_llm_output_token_len histogram
nv_llm_output_token_len_count{model="chat",response_metric_type="total_output_tokens",version="1"} 9
nv_llm_output_token_len_sum{model="chat",response_metric_type="total_output_tokens",version="1"} 900
# TYPE nv_llm_input_token_len histogram
nv_llm_input_token_len_count{model="chat",response_metric_type="total_input_tokens",version="1"} 9
nv_llm_input_token_len_sum{model="chat",response_metric_type="total_input_tokens",version="1"} 70
nv_llm_input_token_len_bucket{model="chat",LABEL,version="1",le="10"} 8
nv_llm_input_token_len_bucket{model="chat",LABEL,version="1",le="+Inf"} 9
""".replace("LABEL", 'response_metric_type="total_input_tokens"')
    )
    by_signal = found(await scrape(metrics=metrics, configs=CPP), "chat")
    assert by_signal["output_tokens"] == Measurement(
        "output_tokens", "chat", "1", "trtllm_output_length", {(): 900}
    )
    assert by_signal["input_tokens"] == Measurement(
        "input_tokens", "chat", "1", "trtllm_input_length", {(): 70}
    )
    assert by_signal["input_length"] == Measurement(
        *("input_length", "chat", "1", "trtllm_input_length"),
        {(): Distribution((10, inf), (8, 9), 70)},
    )
    assert "output_length" not in by_signal  # a histogram without buckets


async def test_publishing_engine_metrics_is_enough_to_be_reported_on() -> None:
    snapshot = await scrape(
        metrics=published(), configs={"chat": config("python", decoupled=False)}
    )
    assert snapshot.models == (ModelInfo("chat", "1", "python"),)
    assert isinstance(found(snapshot, "chat")["ttft"], Missing)


class TestMeanGaps:
    """Mean gaps from iterations per time, where a sequence decodes from reading to reading."""

    @staticmethod
    def at(seconds: float, iteration: int, *, done: int = 0, **changes: dict[str, float]) -> str:
        general = {"timestamp": 1795204800000000 + seconds * 1e6, "iteration_counter": iteration}
        lengths = f"""\
# TYPE nv_llm_output_token_len histogram
nv_llm_output_token_len_count{{model="chat",version="1"}} {done}
nv_llm_output_token_len_sum{{model="chat",version="1"}} {done * 100}
"""
        return published(**{"general": general, **changes}) + lengths

    @staticmethod
    async def gaps(*scrapes: tuple[float, str]) -> tuple[float, float]:
        last = (await TestFreshness().snapshots(*scrapes))[-1]
        measurement = found(last, "chat")["itl"]
        assert isinstance(measurement, Measurement), measurement
        value = measurement.samples[()]
        assert isinstance(value, Distribution)
        assert (measurement.method, value.boundaries) == ("trtllm_iteration_rate", (float("inf"),))
        return value.count, round(value.sum, 6)

    async def test_each_iteration_is_a_gap_of_every_sequence_that_decodes(self) -> None:
        scrapes = (
            (100.0, self.at(0, 1000)),
            (101.0, self.at(1.0, 1050)),
            (102.0, self.at(2.0, 1090, inflight={"generation_requests": 5})),
        )
        # 50 iterations of 20 ms with 11 sequences, then 40 of 25 ms with 11 falling to 5.
        assert await self.gaps(*scrapes) == (50 * 11 + 40 * 8, 11.0 + 8.0)

    @pytest.mark.parametrize(
        "second",
        [
            pytest.param({"done": 14}, id="all that were active have ended"),
            pytest.param({"inflight": {"generation_requests": 0}}, id="nothing decodes now"),
            pytest.param({"inflight": {"micro_batch_id": 1}}, id="micro-batches overlap"),
            pytest.param({"iteration": 1000}, id="no iteration"),
            pytest.param({"iteration": 20}, id="a restart"),
            pytest.param({"seconds": 3601.0}, id="the clock was set"),
            pytest.param({"seconds": -3600.0}, id="the clock was set back"),
        ],
    )
    async def test_undecidable_intervals_add_no_gaps(self, second: dict[str, Any]) -> None:
        first = self.at(0, 1000)
        then = self.at(**{"seconds": 1.0, "iteration": 1050, **second})
        if "inflight" in second and "micro_batch_id" in second["inflight"]:
            snapshot = (await TestFreshness().snapshots((100, first), (101, then)))[-1]
            assert isinstance(found(snapshot, "chat")["itl"], Missing)
        else:
            assert await self.gaps((100, first), (101, then)) == (0, 0)

    async def test_without_finished_requests_it_is_refused(self) -> None:
        snapshot = (await TestFreshness().snapshots((100, published())))[-1]
        gap = found(snapshot, "chat")["itl"]
        assert isinstance(gap, Missing)
        assert gap.reason.startswith("without nv_llm_output_token_len nothing shows")

    async def test_seconds_of_the_python_model_are_too_coarse(self) -> None:
        text = self.at(0, 5).replace("1795204800000000", "1795204800")
        snapshot = (await TestFreshness().snapshots((100, text)))[-1]
        gap = found(snapshot, "chat")["itl"]
        assert isinstance(gap, Missing)
        assert gap.reason == "Triton has no metric of single tokens"
