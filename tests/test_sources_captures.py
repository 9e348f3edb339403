"""Snapshots from recorded responses of a real Triton (tests/captures), stage by stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exporter.samples import Measurement, Missing, Snapshot
from tests.fake_triton import found, outcomes, scrape

CAPTURES = Path(__file__).parent / "captures"


async def stage(name: str, **options: object) -> Snapshot:
    """Return the snapshot of a captured stage."""

    def recorded(file: str) -> object:
        return json.loads((CAPTURES / f"triton_{file}.json").read_text())

    configs = {
        path.stem.removeprefix("triton_config_"): json.loads(path.read_text())
        for path in CAPTURES.glob("triton_config_*.json")
    }
    statistics = recorded(f"{name}_stats")
    assert isinstance(statistics, dict)
    return await scrape(
        metrics=(CAPTURES / f"triton_{name}.txt").read_text(),
        configs=configs,
        index=recorded(f"{name}_index"),
        stats=statistics["model_stats"],
        options=options,
    )


async def test_which_models_are_reported_on() -> None:
    snapshot = await stage("idle")
    assert {info.model for info in snapshot.models if not info.excluded} == {
        "first_response",
        "pipeline",
        "streaming",
        "tensorrt_llm",
        "tensorrt_llm_python",
        "vllm_llm",
    }
    excluded = {info.model: info.excluded for info in snapshot.models}
    assert excluded["plain"] == (
        "a step of the ensemble pipeline, not decoupled and without engine metrics; name it in "
        "models to report on it"
    )
    assert not any(snapshot.parts.values())


async def test_idle_engines_have_gauges_or_a_reason() -> None:
    snapshot = await stage("idle")
    for model in ("tensorrt_llm", "tensorrt_llm_python"):
        for signal in ("sequences_active", "kv_utilization", "memory_gpu"):
            result = found(snapshot, model)[signal]
            if isinstance(result, Missing):
                assert result.reason.startswith("the engine has run no iteration yet")
            else:
                assert all(value >= 0 for value in result.samples.values())  # type: ignore[operator]


async def test_traffic_is_reported_by_the_method_of_each_model() -> None:
    snapshot = await stage("traffic")
    methods = {
        model: {
            signal: one.method
            for signal, one in found(snapshot, model).items()
            if isinstance(one, Measurement) and not signal.startswith(("sequences", "kv", "memory"))
        }
        for model in ("tensorrt_llm", "vllm_llm", "first_response", "streaming", "pipeline")
    }
    decoupled = {
        "queue": "triton_queue",
        "requests_without_first_token": "triton_queue_failures",
    }
    assert methods == {
        "tensorrt_llm": {
            **decoupled,
            "ttft": "triton_first_response",
            "itl": "trtllm_iteration_rate",
            "requests": "trtllm_finished",
            "request_failures": "trtllm_finished",
            "input_tokens": "trtllm_input_length",
            "input_length": "trtllm_input_length",
            "output_tokens": "trtllm_output_length",
            "output_length": "trtllm_output_length",
        },
        "vllm_llm": {
            **decoupled,
            "ttft": "vllm_histogram",
            "itl": "vllm_histogram",
            "e2e": "vllm_histogram",
            "requests": "vllm_finished",
            "request_failures": "vllm_finished",
            "input_tokens": "vllm_counter",
            "input_length": "vllm_input_lengths",
            "output_tokens": "vllm_counter",
            "output_length": "vllm_output_lengths",
        },
        "first_response": {**decoupled, "ttft": "triton_first_response"},
        "streaming": decoupled,
        "pipeline": {
            "requests": "triton_ensemble_counters",
            "request_failures": "triton_ensemble_counters",
            "e2e": "triton_duration",
        },
    }


async def test_every_engine_gauge_is_reported() -> None:
    snapshot, of_taps = await stage("traffic"), {"kv_token_seconds"}
    for model, without in (
        ("tensorrt_llm", {"kv_missed_blocks", *of_taps}),
        ("tensorrt_llm_python", {"kv_missed_blocks", "kv_reused_blocks", *of_taps}),
    ):
        missing = {
            signal
            for signal, one in found(snapshot, model).items()
            if isinstance(one, Missing) and signal.startswith(("sequences", "kv", "memory"))
        }
        assert missing == without


async def test_failures_of_an_ensemble_are_halved() -> None:
    snapshot = await stage("failures")
    counted = outcomes(found(snapshot, "pipeline")["request_failures"])
    written = (CAPTURES / "triton_failures.txt").read_text()
    line = 'nv_inference_request_failure{model="pipeline",reason="OTHER",version="1"} '
    assert counted["error other"] == float(written.partition(line)[2].split()[0]) / 2 > 0


async def test_rejected_requests_never_had_a_first_token() -> None:
    snapshot = await stage("failures", models=["slow"])
    result = found(snapshot, "slow")
    rejected = outcomes(result["requests_without_first_token"])["shed"]
    assert rejected == outcomes(result["request_failures"])["shed deadline"] == 3


async def test_a_reload_restarts_successes_and_keeps_failures() -> None:
    before, after = (
        await stage("failures", models=["plain"]),
        await stage("reloaded", models=["plain"]),
    )
    was, now = (outcomes(found(one, "plain")["requests"]) for one in (before, after))
    assert now["ok"] < was["ok"]  # type: ignore[operator]
    was, now = (outcomes(found(one, "pipeline")["requests"]) for one in (before, after))
    assert now["error"] == was["error"] != 0
    assert "ok" not in now


async def test_unloaded_model_is_unavailable() -> None:
    snapshot = await stage("unloaded", models=["pipeline"])
    (info,) = [info for info in snapshot.models if info.model == "pipeline"]
    assert not info.ready
    assert info.excluded == "it is not loaded (UNAVAILABLE: unloaded)"
    assert found(snapshot, "pipeline") == {}


async def test_statistics_replace_frozen_counters() -> None:
    snapshot = await stage("frozen_counters", models=["plain"])
    requests = found(snapshot, "plain")["requests"]
    assert isinstance(requests, Measurement)
    assert requests.method == "statistics_requests"
    assert outcomes(requests) == {"ok": 20}
    assert "counter_latencies=false" in requests.note
    assert not any(
        measurement.method.startswith("triton_") for measurement in snapshot.measurements
    )


@pytest.mark.parametrize("name", ["summaries", "traffic", "failures", "reloaded", "idle"])
async def test_moving_counters_are_not_frozen(name: str) -> None:
    snapshot = await stage(name, models=["*"])
    assert not any("counter_latencies" in measurement.note for measurement in snapshot.measurements)
