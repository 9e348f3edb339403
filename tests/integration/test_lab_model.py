"""The model `tensorrt_llm` on a real Triton: streams, gauges, client disconnects and settings."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from lab.engine_settings import EngineSettings
from lab.load import Load, LoadSettings
from lab.process import get
from lab.repository import ModelSettings, write_ensemble, write_repository
from lab.triton import Triton
from tests.polling import wait_until

PATIENCE = 10.0
REFRESH = 0.1

QUICK = EngineSettings(step_seconds=0.02, sequence_seconds=0.001, jitter=0)
MODELS: dict[str, tuple[EngineSettings, ModelSettings]] = {
    "tensorrt_llm": (QUICK, ModelSettings(first_response_buckets_ms=(200, 400))),
    "ignoring": (EngineSettings(honour_cancel=False), ModelSettings()),
    # Room for one sequence and a half; an iteration lasts longer than a refresh, so all are seen.
    "tight": (
        EngineSettings(
            policy="max_utilization", kv_blocks=6, tokens_per_block=4, step_seconds=1.5 * REFRESH
        ),
        ModelSettings(),
    ),
    "python": (QUICK, ModelSettings(publish="python")),
    "silent": (QUICK, ModelSettings(publish="none", first_response_buckets_ms=())),
    "frozen": (QUICK, ModelSettings(freeze=True)),
}

CPP = """\
counter nv_trt_llm_disaggregated_serving_metrics disaggregated_serving_type=kv_cache_transfer_ms
counter nv_trt_llm_disaggregated_serving_metrics disaggregated_serving_type=request_count
gauge nv_trt_llm_general_metrics general_type=iteration_counter
gauge nv_trt_llm_general_metrics general_type=timestamp
gauge nv_trt_llm_inflight_batcher_metrics inflight_batcher_specific_metric=generation_requests
gauge nv_trt_llm_inflight_batcher_metrics inflight_batcher_specific_metric=micro_batch_id
gauge nv_trt_llm_inflight_batcher_metrics inflight_batcher_specific_metric=paused_requests
gauge nv_trt_llm_inflight_batcher_metrics inflight_batcher_specific_metric=total_context_tokens
gauge nv_trt_llm_kv_cache_block_metrics kv_cache_block_type=fraction
gauge nv_trt_llm_kv_cache_block_metrics kv_cache_block_type=free
gauge nv_trt_llm_kv_cache_block_metrics kv_cache_block_type=max
gauge nv_trt_llm_kv_cache_block_metrics kv_cache_block_type=reused
gauge nv_trt_llm_kv_cache_block_metrics kv_cache_block_type=tokens_per
gauge nv_trt_llm_kv_cache_block_metrics kv_cache_block_type=used
gauge nv_trt_llm_request_metrics request_type=active
gauge nv_trt_llm_request_metrics request_type=context
gauge nv_trt_llm_request_metrics request_type=max
gauge nv_trt_llm_request_metrics request_type=scheduled
gauge nv_trt_llm_request_metrics request_type=waiting
gauge nv_trt_llm_runtime_memory_metrics memory_type=cpu
gauge nv_trt_llm_runtime_memory_metrics memory_type=gpu
gauge nv_trt_llm_runtime_memory_metrics memory_type=pinned
histogram nv_inference_first_response_histogram_ms 200.0 400.0 +Inf
histogram nv_llm_input_token_len response_metric_type=total_input_tokens \
10.0 50.0 100.0 500.0 1000.0 +Inf
histogram nv_llm_output_token_len response_metric_type=total_output_tokens \
10.0 50.0 100.0 500.0 1000.0 +Inf
"""
ONLY_CPP = ("disaggregated", "=fraction", "=reused", "=waiting")


@pytest.fixture(scope="module")
def server(
    triton: Callable[..., Triton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("triton")
    for name, (engine, model) in MODELS.items():
        write_repository(folder / "models", name, engine, model)
    write_ensemble(folder / "models", "tensorrt_llm", faults_file=f"{folder}/{{model}}.json")
    with triton(folder / "models", folder) as running:
        yield running


@contextmanager
def opened(
    server: Triton,
    model: str = "tensorrt_llm",
    *,
    words: int = 4,
    verb: str = "generate_stream",
    **fields: object,
) -> Iterator[HTTPResponse]:
    """Yield the response to a request as soon as its headers are there, and hang up after."""
    body = {"text_input": "word " * words, "max_tokens": 8, "stream": True} | fields
    connection = HTTPConnection("127.0.0.1", server.ports[0], timeout=PATIENCE)
    connection.request("POST", f"/v2/models/{model}/{verb}", json.dumps(body))
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def events(response: HTTPResponse) -> Iterator[dict[str, object]]:
    for line in response:
        if line.startswith(b"data:"):
            yield json.loads(line[5:])


def stream(server: Triton, model: str = "tensorrt_llm", **fields: object) -> list[object]:
    """Every event of a request: a text, or an error in brackets."""
    with opened(server, model, **fields) as response:
        return [e.get("text_output", [e.get("error")]) for e in events(response)]


def tokens(count: int) -> list[object]:
    return [f"token{index} " for index in range(count)]


def test_an_ensemble_streams_the_tokens_of_its_engine_behind_a_stage(server: Triton) -> None:
    assert stream(server, "ensemble", max_tokens=3) == tokens(3)


def test_engine_timing_comes_with_the_last_text_when_requested(server: Triton) -> None:
    with opened(server, return_perf_metrics=True) as response:
        *before, last = events(response)
    names = ["arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns"]
    times = [last[name] for name in [*names, "last_token_time_ns"]]
    assert times == sorted(times)
    assert abs(time.monotonic_ns() - times[-1]) < PATIENCE * 1e9
    assert not [event for event in before if set(names) & set(event)]
    with opened(server) as response:
        assert not [event for event in events(response) if set(names) & set(event)]


def exposition(server: Triton) -> Iterable[Metric]:
    return text_string_to_metric_families(get(server.ports[2], "/metrics")[1])


def metrics(server: Triton, model: str = "tensorrt_llm") -> dict[str, dict[str, float]]:
    """By family: the value of each sample, under its own labels' values or the sample's name."""
    found: dict[str, dict[str, float]] = {}
    for family in exposition(server):
        for sample in family.samples:
            if sample.labels.get("model") == model:
                own = [v for k, v in sample.labels.items() if k not in {"model", "version"}]
                key = sample.name.removeprefix(family.name).strip("_")
                name = " ".join((key, *own) if family.type == "histogram" else own)
                found.setdefault(family.name, {})[name] = sample.value
    return found


def gauge(server: Triton, family: str, value: str, model: str = "tensorrt_llm") -> float:
    return metrics(server, model)[f"nv_trt_llm_{family}_metrics"][value]


def idle(server: Triton, model: str = "tensorrt_llm") -> bool:
    return gauge(server, "request", "active", model) == 0


def published(server: Triton, model: str) -> str:
    """Return kind, name, labels and bucket boundaries of the metrics of a model's code."""
    lines: dict[str, list[str]] = {}
    for family in exposition(server):
        if not family.name.startswith(("nv_trt_llm_", "nv_llm_", "nv_inference_first_")):
            continue
        for sample in family.samples:
            if sample.labels.pop("model") != model or sample.name.endswith(("_sum", "_count")):
                continue
            assert sample.labels.pop("version") == "1"
            edge = sample.labels.pop("le", None)
            labels = [f"{key}={value}" for key, value in sorted(sample.labels.items())]
            edges = lines.setdefault(" ".join([family.type, family.name, *labels]), [])
            if edge:
                edges.append(edge if edge == "+Inf" else str(float(edge)))
    return "".join(f"{' '.join([line, *edges])}\n" for line, edges in sorted(lines.items()))


def test_a_stream_has_one_event_per_token_and_nothing_else(server: Triton) -> None:
    assert stream(server, max_tokens=5) == tokens(5)


def test_without_stream_the_whole_text_comes_at_once(server: Triton) -> None:
    with opened(server, verb="generate", max_tokens=3, stream=False) as response:
        assert json.load(response)["text_output"] == "token0 token1 token2 "


def test_published_metrics_are_those_of_the_backends(server: Triton) -> None:
    assert published(server, "tensorrt_llm") == CPP
    default = CPP.replace("200.0 400.0 +Inf", "100.0 500.0 2000.0 5000.0 +Inf", 1)
    lines = default.splitlines(keepends=True)
    assert published(server, "python") == "".join(
        line for line in lines if not any(word in line for word in ONLY_CPP)
    )
    assert published(server, "silent") == ""


def test_gauges_follow_the_engine_and_fall_when_it_is_idle(server: Triton) -> None:
    wait_until(lambda: idle(server))
    with ThreadPoolExecutor() as pool:
        prompts = [f"{name} " * 40 for name in "abc"]
        streams = [pool.submit(stream, server, text_input=p, max_tokens=60) for p in prompts]
        wait_until(lambda: gauge(server, "inflight_batcher", "generation_requests") == 3)
        during = metrics(server)
        assert [len(running.result()) for running in streams] == [60] * 3
    assert during["nv_trt_llm_request_metrics"] == {
        "active": 3, "max": 32, "scheduled": 3, "context": 0, "waiting": 0,
    }  # fmt: skip
    blocks = during["nv_trt_llm_kv_cache_block_metrics"]
    assert blocks["used"] in {6, 9}  # at 41 to 64, then at 65 to 96 tokens of 32 a block
    assert blocks["used"] + blocks["free"] == blocks["max"] == 160
    assert blocks["tokens_per"] == 32
    assert blocks["fraction"] == pytest.approx(blocks["used"] / 160)
    wait_until(lambda: idle(server))
    after = metrics(server)
    assert after["nv_trt_llm_kv_cache_block_metrics"]["used"] == 0
    general = after["nv_trt_llm_general_metrics"]
    assert time.time() - 5 < general["timestamp"] / 1e6 < time.time()
    time.sleep(3 * REFRESH)  # the period in which they may not change
    assert metrics(server)["nv_trt_llm_general_metrics"] == general


def test_python_backend_publishes_time_in_seconds(server: Triton) -> None:
    stream(server, "python")
    wait_until(lambda: gauge(server, "general", "timestamp", "python") > 0)
    assert time.time() - 5 < gauge(server, "general", "timestamp", "python") < time.time()


def test_token_counts_are_observed_once_per_request(server: Triton) -> None:
    before = metrics(server)
    stream(server, words=7, max_tokens=9)
    after = metrics(server)

    def more(family: str, sample: str) -> float:
        return after[family][sample] - before[family][sample]

    for direction, count in (("input", 7), ("output", 9)):
        family, label = f"nv_llm_{direction}_token_len", f"total_{direction}_tokens"
        assert more(family, f"count {label}") == 1
        assert more(family, f"sum {label}") == count


def test_first_responses_are_timed_in_whole_milliseconds_errors_included(server: Triton) -> None:
    family = "nv_inference_first_response_histogram_ms"
    before = metrics(server)[family]
    stream(server, words=1000)  # 0.3 ms for each of them
    stream(server, fail_after=0)
    after = metrics(server)[family]
    assert after["sum"] == int(after["sum"])
    assert 300 <= after["sum"] - before["sum"] < 1000
    assert after["count"] - before["count"] == 2
    assert after["bucket 200"] - before["bucket 200"] == 1


def test_client_disconnect_frees_its_slot_and_is_no_error(server: Triton) -> None:
    wait_until(lambda: idle(server))
    before = metrics(server)
    with opened(server, max_tokens=4000) as response:
        assert [event["text_output"] for event, _ in zip(events(response), "ab", strict=False)]
        wait_until(lambda: not idle(server))
    left = time.monotonic()
    wait_until(lambda: idle(server))
    assert time.monotonic() - left < 10  # its tokens take far longer
    after = metrics(server)
    assert after["nv_inference_request_failure"] == before["nv_inference_request_failure"]
    lengths = after["nv_llm_output_token_len"], before["nv_llm_output_token_len"]
    count, total = (
        lengths[0][f"{what} total_output_tokens"] - lengths[1][f"{what} total_output_tokens"]
        for what in ("count", "sum")
    )
    assert count == 1
    assert 2 <= total < 200


def test_engine_that_ignores_cancellation_finishes_the_request(server: Triton) -> None:
    with opened(server, "ignoring", max_tokens=60) as response:
        assert next(events(response))
    time.sleep(5 * REFRESH)  # the period in which they may not change
    assert not idle(server, "ignoring")
    wait_until(lambda: idle(server, "ignoring"))
    lengths = metrics(server, "ignoring")["nv_llm_output_token_len"]
    assert lengths["sum total_output_tokens"] == 60


def test_paused_sequences_finish_after_memory_pressure(
    server: Triton,
) -> None:
    with ThreadPoolExecutor() as pool:
        streams = [pool.submit(stream, server, "tight", max_tokens=12) for _ in range(2)]
        wait_until(lambda: gauge(server, "inflight_batcher", "paused_requests", "tight") == 1)
        wait_until(lambda: gauge(server, "request", "waiting", "tight") == 1)
        assert gauge(server, "request", "active", "tight") == 2
        assert [running.result() for running in streams] == [tokens(12)] * 2


@pytest.mark.parametrize(
    ("fields", "status", "seen"),
    [
        ({"fail_after": 0}, 400, [["the engine failed while it generated"]]),
        ({"fail_after": 2}, 200, [*tokens(2), ["the engine failed while it generated"]]),
        ({"max_tokens": 0}, 400, [["max_tokens is 0, it must be at least 1"]]),
        ({"text_input": ""}, 400, [["the prompt is empty"]]),
        (
            {"max_tokens": 6000},
            400,
            [["prompt and output are 6004 tokens, the KV cache holds 5120"]],
        ),
    ],
)
def test_failures_are_error_events_that_no_counter_includes(
    server: Triton, fields: dict[str, object], status: int, seen: list[object]
) -> None:
    """The Python backend reports a request when its execute() returns: always a success."""
    before = metrics(server)["nv_inference_request_failure"]
    with opened(server, **fields) as response:
        assert response.status == status
        assert [e.get("text_output", [e.get("error")]) for e in events(response)] == seen
    assert stream(server, max_tokens=1) == tokens(1)
    assert metrics(server)["nv_inference_request_failure"] == before


def test_frozen_gauges_stay_active_while_tokens_flow_and_after(server: Triton) -> None:
    assert idle(server, "frozen")
    with opened(server, "frozen", max_tokens=40) as response:
        arriving = events(response)
        next(arriving)
        wait_until(lambda: not idle(server, "frozen"))
        frozen = metrics(server, "frozen")["nv_trt_llm_general_metrics"]
        assert len(list(arriving)) == 39
    time.sleep(3 * REFRESH)  # the period in which they may not change
    assert metrics(server, "frozen")["nv_trt_llm_general_metrics"] == frozen
    assert not idle(server, "frozen")


def test_load_and_server_count_the_same(server: Triton) -> None:
    wait_until(lambda: idle(server))
    before = metrics(server)["nv_llm_output_token_len"]
    settings = LoadSettings(
        rate=math.inf, concurrency=8, requests=60, max_tokens=(4, 8), prompt_words=(5, 50),
        disconnect_before_first_token=0, disconnect_mid_stream=0, invalid=0.1, failing=0,
    )  # fmt: skip
    summary = asyncio.run(Load(server.url, settings).run())
    after = metrics(server)["nv_llm_output_token_len"]
    label = "total_output_tokens"
    assert summary.outcomes["ok"] + summary.outcomes["rejected"] == summary.requests == 60
    assert summary.outcomes["rejected"] > 0
    assert summary.outcomes["ok"] == after[f"count {label}"] - before[f"count {label}"]
    assert summary.tokens == after[f"sum {label}"] - before[f"sum {label}"]
    assert summary.gap is not None
    assert 0.02 < summary.gap.p50 < 0.1
