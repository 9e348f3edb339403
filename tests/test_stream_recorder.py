"""Metrics recorded from stream events, as exposition text."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.genai import PROFILES
from exporter.methods import METHODS
from exporter.protocol.events import Listener, Stages, Stream
from exporter.recording.goodput import GoodputObjective, goodput_objectives
from exporter.recording.label_limiter import MAX_SERIES
from exporter.recording.model_metrics import MAX_REASONS
from exporter.recording.model_registry import (
    MAX_INITIAL_MODELS,
    MAX_MODELS,
    MAX_UNCONFIRMED,
    MODEL_SERIES,
)
from exporter.recording.retries import MAX_FAILURES, RETRY_SECONDS
from exporter.recording.stream_recorder import MAX_TENANTS, StreamRecorder
from exporter.samples import Distribution, Measurement
from exporter.store.view import SignalState, View, grouped_by_model
from exporter.taps.process.messages import read_genai
from exporter.web.collector import expose
from slos.model import Objective
from slos.outcomes import OUTCOMES, Outcome
from slos.signals import PHASES
from tests.service_example import service

OK = "stop"


def stream(**fields: Any) -> Stream:
    defaults = {
        "endpoint": "generate_stream",
        "model": "llama",
        "streaming": True,
        "arrived": 100.0,
    }
    return Stream(**{**defaults, **fields})


def play(recorder: Listener, one: Stream, *events: tuple[Any, ...]) -> Stream:
    """Play a stream to a recorder: its start, then each event as name and arguments."""
    recorder.started(one, one.arrived)
    for name, *arguments in events:
        getattr(recorder, name)(one, *arguments)
    return one


def chunks(*times: float, tokens: int = 0) -> Iterable[tuple[Any, ...]]:
    return [("chunk", time, tokens) for time in times]


def ended(time: float, outcome: str = "ok", reason: str = OK, stopped: float | None = None) -> Any:
    return ("ended", time, outcome, reason, stopped)


def measurements(recorder: StreamRecorder) -> list[Measurement]:
    return [measurement for model in recorder.measurements() for measurement in model]


def text(recorder: StreamRecorder, *, buckets: bool = False) -> str:
    """Return the exposition of everything that is not 0."""
    states = tuple(
        SignalState(
            measurement.signal,
            measurement.model,
            measurement.version,
            measurement.method,
            METHODS[measurement.method].quality,
            measurement.samples,
        )
        for measurement in measurements(recorder)
    )
    lines = (
        expose(View(grouped_by_model(states), (), (), {}), "1.2.3")
        .body.decode()
        .splitlines(keepends=True)
    )
    return "".join(
        line
        for line in lines
        if line.startswith("llm_") and not line.endswith(" 0.0\n")
        if buckets or "_bucket" not in line
    )


def value(recorder: StreamRecorder, signal: str, **labels: str) -> float:
    """Add up a counter, by whatever method, over the samples that have ``labels``."""
    return sum(
        value
        for measurement in measurements(recorder)
        if measurement.signal == signal
        for pairs, value in measurement.samples.items()
        if labels.items() <= dict(pairs).items() and not isinstance(value, Distribution)
    )


def spread(recorder: StreamRecorder, signal: str) -> tuple[float, float]:
    """Return count and sum of a histogram, over all methods and models."""
    found = [
        value
        for measurement in measurements(recorder)
        if measurement.signal == signal
        for value in measurement.samples.values()
        if isinstance(value, Distribution)
    ]
    return sum(one.count for one in found), round(sum(one.sum for one in found), 6)


def methods(recorder: StreamRecorder, signal: str) -> set[str]:
    return {
        measurement.method for measurement in measurements(recorder) if measurement.signal == signal
    }


def test_a_stream_with_token_counts() -> None:
    recorder = StreamRecorder({"itl": (0.06,)})
    one = stream(
        tenant="acme", input_tokens=7, cached_tokens=2, output_tokens=4, counted=True, version="1"
    )
    play(recorder, one, *chunks(100.5, 100.75), *chunks(101.0, tokens=2), ended(101.25))
    assert text(recorder) == (
        """\
llm_time_to_first_token_seconds_count{model="llama",version="1"} 1.0
llm_time_to_first_token_seconds_sum{model="llama",version="1"} 0.5
llm_inter_token_latency_seconds_count{model="llama",version="1"} 2.0
llm_inter_token_latency_seconds_sum{model="llama",version="1"} 0.5
llm_inter_token_latency_normalized_seconds_count{model="llama",version="1"} 2.0
llm_inter_token_latency_normalized_seconds_sum{model="llama",version="1"} 0.25
llm_time_per_output_token_seconds_count{model="llama",version="1"} 1.0
llm_time_per_output_token_seconds_sum{model="llama",version="1"} 0.16666666666666666
llm_request_duration_seconds_count{model="llama",version="1"} 1.0
llm_request_duration_seconds_sum{model="llama",version="1"} 1.25
llm_request_decode_seconds_count{model="llama",version="1"} 1.0
llm_request_decode_seconds_sum{model="llama",version="1"} 0.5
llm_stream_max_gap_seconds_count{model="llama",version="1"} 1.0
llm_stream_max_gap_seconds_sum{model="llama",version="1"} 0.25
llm_slo_events_total{model="llama",result="bad",signal="itl",threshold="0.06",version="1"} 3.0
llm_requests_total{model="llama",outcome="ok",version="1"} 1.0
llm_tenant_requests_total{model="llama",outcome="ok",tenant="acme",version="1"} 1.0
llm_tokens_total{direction="cached_input",model="llama",version="1"} 2.0
llm_tokens_total{direction="input",model="llama",version="1"} 7.0
llm_tokens_total{direction="output",model="llama",version="1"} 4.0
llm_tenant_tokens_total{direction="cached_input",model="llama",tenant="acme",version="1"} 2.0
llm_tenant_tokens_total{direction="input",model="llama",tenant="acme",version="1"} 7.0
llm_tenant_tokens_total{direction="output",model="llama",tenant="acme",version="1"} 4.0
llm_kv_cache_token_seconds_total{model="llama",version="1"} 7.25
llm_tenant_kv_cache_token_seconds_total{model="llama",tenant="acme",version="1"} 7.25
llm_streams_total{model="llama",outcome="ok",phase="complete",version="1"} 1.0
llm_tenant_streams_total{model="llama",outcome="ok",phase="complete",tenant="acme",version="1"} 1.0
"""
    )
    assert {measurement.method for measurement in measurements(recorder)} == {
        "wire",
        "wire_kv_tokens",
        "wire_released",
        "wire_retries",
    }


def test_thresholds_are_bucket_boundaries() -> None:
    recorder = StreamRecorder({"itl": (0.0625,)})
    play(recorder, stream(), *chunks(100.0, 100.0625, 100.5), ended(102.0))
    lines = text(recorder, buckets=True).splitlines()
    assert [line for line in lines if "inter_token" in line][:2] == [
        'llm_inter_token_latency_seconds_bucket{le="0.0625",model="llama",version=""} 1.0',
        'llm_inter_token_latency_seconds_bucket{le="0.075",model="llama",version=""} 1.0',
    ]


def test_a_whole_response_has_neither_ttft_nor_gaps() -> None:
    recorder = StreamRecorder({})
    one = stream(streaming=False, input_tokens=7, output_tokens=4, counted=True)
    play(recorder, one, ended(101.25))
    assert text(recorder) == (
        """\
llm_request_duration_seconds_count{model="llama",version=""} 1.0
llm_request_duration_seconds_sum{model="llama",version=""} 1.25
llm_requests_total{model="llama",outcome="ok",version=""} 1.0
llm_tokens_total{direction="input",model="llama",version=""} 7.0
llm_tokens_total{direction="output",model="llama",version=""} 4.0
"""
    )
    for signal in ("ttft", "itl", "max_gap", "requests_without_first_token"):
        assert methods(recorder, signal) == {"wire_unused"}


def test_tokens_after_a_client_disconnect_are_only_wasted() -> None:
    recorder = StreamRecorder({})
    play(
        recorder,
        stream(),
        *chunks(100.5, 101.0),
        ("closing", 101.5),
        *chunks(107.0, 108.0, 109.0),
        ended(110.0, "client_disconnected", "", stopped=109.5),
    )
    assert text(recorder) == (
        """\
llm_time_to_first_token_seconds_count{model="llama",version=""} 1.0
llm_time_to_first_token_seconds_sum{model="llama",version=""} 0.5
llm_inter_token_latency_seconds_count{model="llama",version=""} 1.0
llm_inter_token_latency_seconds_sum{model="llama",version=""} 0.5
llm_stream_max_gap_seconds_count{model="llama",version=""} 1.0
llm_stream_max_gap_seconds_sum{model="llama",version=""} 0.5
llm_requests_total{model="llama",outcome="client_disconnected",version=""} 1.0
llm_request_failures_total{model="llama",outcome="client_disconnected",reason="",version=""} 1.0
llm_tokens_total{direction="output",model="llama",version=""} 2.0
llm_streams_total{model="llama",outcome="client_disconnected",phase="mid_stream",version=""} 1.0
llm_streaming_disconnects_total{model="llama",phase="mid_stream",version=""} 1.0
llm_disconnect_age_seconds_count{model="llama",version=""} 1.0
llm_disconnect_age_seconds_sum{model="llama",version=""} 1.5
llm_disconnect_release_seconds_count{model="llama",version=""} 1.0
llm_disconnect_release_seconds_sum{model="llama",version=""} 8.0
llm_wasted_tokens_total{model="llama",version=""} 3.0
llm_partial_response_tokens_total{model="llama",version=""} 2.0
"""
    )


def test_wasted_tokens_are_counted_by_tenant_from_zero() -> None:
    recorder = StreamRecorder({}, tenants={"": ("other",), "llama": ("acme",)})
    recorder.learn_models(["llama"], ["llama"])
    begun = [one for one in measurements(recorder) if one.signal == "tenant_wasted_tokens"]
    assert [*begun[0].samples.values()] == [0.0, 0.0]
    closed = ("closing", 101.5)
    end = ended(110.0, "client_disconnected", "", stopped=109.5)
    play(recorder, stream(tenant="acme"), *chunks(101.0), closed, *chunks(107.0, 108.0), end)
    assert value(recorder, "tenant_wasted_tokens", tenant="acme") == 2
    assert value(recorder, "tenant_wasted_tokens", tenant="other") == 0
    assert methods(recorder, "tenant_wasted_tokens") == {"wire_released"}


def test_half_closed_client_is_no_disconnect() -> None:
    plain, half = StreamRecorder({}), StreamRecorder({})
    events = (*chunks(100.5, 101.0), *chunks(103.0, 103.5, tokens=2))
    for position in range(len(events) + 1):
        play(plain, stream(), *events, ended(104.0))
        closed = (*events[:position], ("closing", 100.1 + position), *events[position:])
        play(half, stream(), *closed, ended(104.0))
    assert text(half, buckets=True) == text(plain, buckets=True)


def test_the_last_closing_is_the_client_disconnect() -> None:
    recorder = StreamRecorder({})
    play(
        recorder,
        stream(),
        ("closing", 100.2),
        *chunks(100.5, 101.0),
        ("closing", 101.5),
        *chunks(102.0),
        ended(103.0, "client_disconnected", ""),
    )
    assert spread(recorder, "disconnect_age") == (1, 1.5)
    assert spread(recorder, "ttft") == (1, 0.5)
    assert (value(recorder, "partial_tokens"), value(recorder, "wasted_tokens")) == (2, 1)


def test_a_client_reset_is_a_disconnect_at_the_end() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(), ended(130.0, "client_disconnected", ""))
    assert spread(recorder, "disconnect_age") == (1, 30.0)
    assert spread(recorder, "disconnect_release") == (0, 0)
    assert value(recorder, "disconnects", phase="before_first_token") == 1


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_outcomes_and_phases(outcome: str) -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(), ended(101.0, outcome, "word"))
    play(recorder, stream(), *chunks(101.0), ended(102.0, outcome, "word"))
    play(recorder, stream(streaming=False), ended(102.0, outcome, "word"))
    ok = outcome == "ok"
    assert value(recorder, "requests") == value(recorder, "requests", outcome=outcome) == 3
    assert value(recorder, "streams", phase="complete") == (2 if ok else 0)
    assert value(recorder, "streams", phase="mid_stream") == (0 if ok else 1)
    assert value(recorder, "streams", phase="before_first_token") == (0 if ok else 1)
    assert value(recorder, "requests_without_first_token", outcome=outcome) == 1
    assert value(recorder, "disconnects") == (2 if outcome == "client_disconnected" else 0)
    assert spread(recorder, "e2e") == ((3, 5.0) if ok else (0, 0))
    assert spread(recorder, "ttft") == (1, 1.0)


def test_failure_counters_start_at_zero() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(), *chunks(101.0), ended(102.0))
    reported = {measurement.signal: measurement.samples for measurement in measurements(recorder)}
    assert reported["disconnects"] == {(("phase", phase),): 0.0 for phase in PHASES[:2]}
    assert reported["requests_without_first_token"] == {
        (("outcome", outcome),): 0.0 for outcome in OUTCOMES
    }
    for signal in ("wasted_tokens", "partial_tokens", "suspected_retries", "client_backpressure"):
        assert reported[signal] == {(): 0.0}


def test_live_streams_and_back_pressure() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    one = play(recorder, stream())
    play(recorder, stream(streaming=False), ("backpressure", 0.5))
    assert value(recorder, "live_streams") == recorder.live == 2
    play_on(recorder, one, ("backpressure", 1.25), ended(101.0))
    assert value(recorder, "live_streams") == recorder.live == 1
    assert value(recorder, "client_backpressure") == 1.75
    play_on(recorder, one, ("backpressure", 1.0), ended(102.0), *chunks(103.0), ("closing", 104.0))
    assert (value(recorder, "client_backpressure"), value(recorder, "requests")) == (1.75, 1)


def test_requests_by_endpoint_and_error_for_otlp() -> None:
    bounds = {signal: one.bounds for signal, one in PROFILES["1.41"].metrics.items()}
    recorder = StreamRecorder({}, expected=["llama"], genai=bounds)
    play(recorder, stream(), *chunks(100.5, 101.0, 101.5), ended(102.0))
    play(recorder, stream(endpoint="completions"), *chunks(103.0), ended(104.0))
    play(recorder, stream(streaming=False), ended(101.0))
    play(recorder, stream(), *chunks(100.5), ended(110.0, "error"))
    play(recorder, stream(), ("closing", 105.0), ended(109.0, "client_disconnected"))
    play(recorder, stream(model="unknown"), ended(101.0, "shed", "503"))
    found = {
        (one.signal, one.endpoint, one.error): (one.value.count, one.value.sum)
        for one in map(read_genai, recorder.genai.series())
    }
    assert found == {
        ("e2e", "generate_stream", ""): (2, 3.0),
        ("ttft", "generate_stream", ""): (1, 0.5),
        ("tpot", "generate_stream", ""): (1, 0.5),
        ("e2e", "completions", ""): (1, 4.0),
        ("ttft", "completions", ""): (1, 3.0),
        ("e2e", "generate_stream", "error"): (1, 10.0),
        ("e2e", "generate_stream", "client_disconnected"): (1, 5.0),
    }
    edges = {
        one.signal: one.value.boundaries[:-1] for one in map(read_genai, recorder.genai.series())
    }
    assert edges == bounds


def test_nothing_is_counted_for_otlp_without_a_profile() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(), *chunks(100.5), ended(102.0))
    assert list(recorder.genai.series()) == []


def test_streams_that_wait_for_a_token() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(version="1"))
    play(recorder, stream(version="1"), *chunks(101.0))
    play(recorder, stream(streaming=False))
    assert recorder.waiting() == {("llama", "1"): 2}
    play(recorder, stream(version="1"), ("closing", 102.0))
    slow = play(recorder, stream(version="1"), *chunks(101.0), ("blocked",))
    assert recorder.waiting() == {("llama", "1"): 2}, "their clients left or do not read"
    play_on(recorder, slow, ("backpressure", 2.0))
    assert recorder.waiting() == {("llama", "1"): 3}
    unseen = play(recorder, stream(version="1", silent_end=True))
    assert recorder.waiting() == {("llama", "1"): 4}
    play_on(recorder, unseen, *chunks(101.0))
    assert recorder.waiting() == {("llama", "1"): 3}, "it may have ended"
    several = play(recorder, stream(version="1", choices=2))
    assert recorder.waiting() == {("llama", "1"): 4}
    several.other_chunks = 1
    assert recorder.waiting() == {("llama", "1"): 3}, "another choice gets tokens"


def play_on(recorder: Listener, one: Stream, *events: tuple[Any, ...]) -> None:
    for name, *arguments in events:
        getattr(recorder, name)(one, *arguments)


def test_lossy_streams_are_forgotten_and_counted_for_their_tap() -> None:
    recorder = StreamRecorder({})
    other = recorder.for_another_tap()
    one = play(other, stream(), *chunks(101.0, 102.0))
    other.lost(one)
    other.skipped("websocket")
    assert (other.lossy, other.skips, recorder.lossy, recorder.skips) == (
        1,
        {"websocket": 1},
        0,
        {},
    )
    assert recorder.live == value(recorder, "requests") == 0
    assert spread(recorder, "max_gap") == (0, 0)


def test_probe_is_in_no_metric() -> None:
    recorder = StreamRecorder({}, probe="tokenslo-probe")
    mine = stream(request_id="tokenslo-probe", prompt=5)
    play(recorder, mine, *chunks(101.0), ("closing", 102.0), ended(103.0, "error", "500"))
    play(recorder, stream(prompt=5), *chunks(101.0), ended(104.0))
    play(StreamRecorder({}), stream(request_id=""), ended(104.0))
    assert (value(recorder, "requests"), value(recorder, "suspected_retries")) == (1, 0)


@pytest.mark.parametrize(
    ("expected", "model"), [(["llama"] * 2, "llama"), (["llama", "mistral"], "other")]
)
def test_request_without_a_model_is_for_the_only_model(expected: list[str], model: str) -> None:
    recorder = StreamRecorder({}, expected=expected)
    play(recorder, stream(model="", endpoint="sglang_generate"), *chunks(101.0), ended(102.0))
    requests = [one for one in measurements(recorder) if one.signal == "requests"]
    counted = {one.model for one in requests if 1.0 in one.samples.values()}
    assert counted == {model}


# What the server says of tokens


def test_tokens_are_an_estimate_after_a_request_without_usage() -> None:
    recorder = StreamRecorder({})
    reported = {"counted": True, "output_tokens": 12, "input_tokens": 7}
    play(recorder, stream(**reported), *chunks(101.0, 102.0, tokens=1), ended(103.0))
    assert methods(recorder, "output_tokens") == methods(recorder, "tpot") == {"wire"}
    assert spread(recorder, "tpot") == (1, round(1 / 11, 6))

    play(recorder, stream(), *chunks(101.0, 102.0, 103.0), ended(104.0))
    for signal, method in (
        ("output_tokens", "wire_chunks"),
        ("tpot", "wire_chunks"),
        ("input_tokens", "wire_usage"),
    ):
        assert methods(recorder, signal) == {method}
    assert value(recorder, "output_tokens") == 12 + 3
    assert spread(recorder, "tpot") == (2, round(1 / 11 + 2 / 2, 6))

    play(recorder, stream(**reported), *chunks(101.0, 102.0), ended(103.0))
    assert value(recorder, "output_tokens") == 12 + 3 + 12
    assert spread(recorder, "tpot")[0] == 3


@pytest.mark.parametrize(
    ("output", "events", "tpot", "method"),
    [
        # 100 tokens, one every 20 ms: a parser of tool calls withholds the first 99.
        (100, [("chunk", 101.98, 99), ("chunk", 102.0, 1)], 0.02, "wire"),
        (100, [("chunk", 101.98, 0), ("chunk", 102.0, 0)], 0.02 / 99, "wire_chunks"),
        # Every token has a chunk, and perhaps the end of sequence has none.
        (50, chunks(*(100 + number * 0.02 for number in range(50))), 0.02, "wire"),
        (50, chunks(*(100 + number * 0.02 for number in range(49))), 0.96 / 49, "wire"),
        # Two tokens in each chunk, and the number in the first is unknown.
        (100, chunks(*(100 + number * 0.04 for number in range(50))), 1.96 / 99, "wire_chunks"),
    ],
)
def test_time_per_token_is_exact_with_tokens_per_chunk(
    output: int, events: Iterable[tuple[Any, ...]], tpot: float, method: str
) -> None:
    recorder = StreamRecorder({}, [GoodputObjective("chat/good", "", {"tpot": 1.0})])
    one = stream(counted=True, output_tokens=output)
    play(recorder, one, *events, ended(103.0))

    assert spread(recorder, "tpot") == (1, pytest.approx(tpot, abs=1e-6))
    for signal in ("tpot", "goodput"):
        observed = {r.method for r in measurements(recorder) if r.signal == signal
                    if any(getattr(v, "count", v) for v in r.samples.values())}  # fmt: skip
        assert observed == {method}
    assert METHODS[method].quality == ("exact" if method == "wire" else "estimate")


def test_a_response_in_a_single_chunk_has_no_tpot() -> None:
    recorder = StreamRecorder({}, [GoodputObjective("chat/good", "", {"tpot": 1.0})])
    one = stream(counted=True, output_tokens=100)
    play(recorder, one, *chunks(102.0), ended(103.0))

    assert spread(recorder, "tpot") == (0, 0)
    assert value(recorder, "goodput", result="unknown") == 1


@pytest.mark.parametrize(("choices", "counted"), [(3, False), (4, False), (4, True)])
def test_tokens_of_all_choices_are_counted(choices: int, counted: bool) -> None:
    recorder = StreamRecorder({})
    others = 100 * (choices - 1)
    reported = {"counted": True, "output_tokens": 100 * choices} if counted else {}
    one = stream(choices=choices, other_chunks=others, **reported)
    play(recorder, one, *chunks(*(100 + number * 0.02 for number in range(100))), ended(103.0))

    assert value(recorder, "output_tokens") == 100 * choices
    assert spread(recorder, "tpot") == (0, 0)
    assert ("wire_chunks" in methods(recorder, "output_tokens")) == (not counted)


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_only_complete_responses_make_token_counts_estimates(outcome: str) -> None:
    recorder = StreamRecorder({})
    reported = {"counted": True, "output_tokens": 12, "input_tokens": 7, "cached_tokens": 1}
    play(recorder, stream(**reported), *chunks(101.0, 102.0), ended(103.0))
    play(recorder, stream(), ended(103.0, outcome, "400"))
    usage, chunked = ("wire_usage", "wire_chunks") if outcome == "ok" else ("wire", "wire")
    assert methods(recorder, "input_tokens") == {usage}
    assert methods(recorder, "cached_input_tokens") == {usage}
    assert methods(recorder, "output_tokens") == {chunked}


def test_unreported_tokens_have_no_series() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(streaming=False), ended(104.0))
    signals = {measurement.signal for measurement in measurements(recorder)}
    assert signals.isdisjoint({"input_tokens", "cached_input_tokens", "output_tokens"})
    assert methods(recorder, "tpot") == {"wire_unused"}


def test_a_disconnect_without_a_token_count_makes_only_counts_estimates() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(counted=True, output_tokens=3), *chunks(101.0, 102.0), ended(103.0))
    play(recorder, stream(), *chunks(101.0, 102.0), ended(103.0, "client_disconnected", ""))
    assert methods(recorder, "output_tokens") == {"wire_chunks"}
    assert methods(recorder, "partial_tokens") == {"wire_chunks"}
    assert methods(recorder, "tpot") == {"wire"}


def test_with_continuous_usage_a_disconnected_stream_has_its_count() -> None:
    recorder = StreamRecorder({})
    left = stream(counted=True, output_tokens=6)
    events = (*chunks(101.0, 102.0, tokens=3), ("closing", 102.5), *chunks(103.0, tokens=3))
    play(recorder, left, *events, ended(104.0, "client_disconnected", ""))
    assert (value(recorder, "partial_tokens"), value(recorder, "wasted_tokens")) == (6, 3)
    assert methods(recorder, "output_tokens") == methods(recorder, "partial_tokens") == {"wire"}


def test_tokens_of_several_choices_are_a_sum() -> None:
    recorder = StreamRecorder({})
    one = stream(choices=2, counted=True, output_tokens=8)
    play(recorder, one, *chunks(101.0, 102.0, tokens=4), ended(103.0))
    assert value(recorder, "output_tokens") == 8
    assert spread(recorder, "tpot") == spread(recorder, "itl_normalized") == (0, 0)
    assert spread(recorder, "itl") == (1, 1.0)


def test_the_engines_own_timing_is_a_sample_once_a_request_has_none() -> None:
    recorder = StreamRecorder({})
    staged = {"streaming": False, "stages": Stages(0.1, 0.2, 0.4)}
    play(recorder, stream(**staged), ended(101.0))
    stages = ("queue", "prefill", "decode")
    assert [spread(recorder, one) for one in stages] == [(1, 0.1), (1, 0.2), (1, 0.4)]
    assert {method for one in stages for method in methods(recorder, one)} == {"wire_stages"}
    play(recorder, stream(streaming=False), ended(101.0, "error", "500"))
    assert methods(recorder, "queue") == {"wire_stages"}
    play(recorder, stream(streaming=False), ended(101.0))
    play(recorder, stream(streaming=False, stages=Stages(queue=0.3)), ended(101.0))
    assert methods(recorder, "queue") == {"wire_stages_sampled"}
    assert [spread(recorder, one) for one in stages] == [(2, 0.4), (1, 0.2), (1, 0.4)]


# Retries


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_the_same_prompt_after_a_failure_is_a_suspected_retry(outcome: str) -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(prompt=9), ended(110.0, outcome, ""))
    play(recorder, stream(prompt=8, arrived=111.0))
    play(recorder, stream(prompt=9, arrived=112.0))
    play(recorder, stream(prompt=9, arrived=113.0))
    failed = outcome not in ("ok", "cancelled", "invalid")
    assert value(recorder, "suspected_retries") == float(failed), "one failure explains one retry"


def test_a_retry_comes_soon_and_perhaps_before_the_server_has_noticed() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(prompt=9), ended(110.0, "error", "500"))
    play(recorder, stream(prompt=9, arrived=110.5 + RETRY_SECONDS))
    assert value(recorder, "suspected_retries") == 0
    slow = play(recorder, stream(prompt=7), ("closing", 101.0))
    play(recorder, stream(prompt=7, arrived=102.0))
    play_on(recorder, slow, ended(110.0, "client_disconnected", ""))
    play(recorder, stream(prompt=7, arrived=111.0))
    assert value(recorder, "suspected_retries") == 1


def test_half_closed_clients_and_empty_prompts_are_no_retries() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(prompt=9), ("closing", 101.0), ended(102.0))
    play(recorder, stream(prompt=9, arrived=103.0))
    play(recorder, stream(prompt=0), ended(102.0, "error", "500"))
    play(recorder, stream(prompt=0, arrived=103.0))
    assert value(recorder, "suspected_retries") == 0


def test_the_oldest_failure_is_forgotten() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    for prompt in range(1, MAX_FAILURES + 2):
        play(recorder, stream(prompt=prompt), ended(101.0, "error", "500"))
    play(recorder, stream(prompt=1, arrived=102.0))
    assert value(recorder, "suspected_retries") == 0
    play(recorder, stream(prompt=2, arrived=102.0))
    assert value(recorder, "suspected_retries") == 1


# Goodput

CLAUSES = {"ttft": 0.5, "tpot": 0.25, "max_gap": 2.0, "e2e": 10.0}


def judged(one: Stream, *events: tuple[Any, ...], **clauses: float) -> dict[tuple[str, str], float]:
    """Return what there is of results and clauses that is not 0."""
    mine = GoodputObjective("chat/good", "llama", clauses or CLAUSES)
    recorder = StreamRecorder(
        {}, [mine, GoodputObjective("other/good", "x", CLAUSES)], expected=["llama"]
    )
    play(recorder, one, *events)
    [measurement] = [one for one in measurements(recorder) if one.signal == "goodput"]
    found = {}
    for labels, count in measurement.samples.items():
        (_, clause), (_, objective), (_, result) = labels
        assert objective == "chat/good"
        if count:
            found[result, clause] = count
    return found  # type: ignore[return-value]


COUNTED = {"counted": True, "output_tokens": 9}
one_each = partial(chunks, tokens=1)
"""Chunks of one token each, as the server counts them."""


@pytest.mark.parametrize(
    ("fields", "events", "expected"),
    [
        (COUNTED, (*one_each(100.5, 102.5), ended(103.0)), ("good", "")),
        (COUNTED, (*one_each(100.75, 102.5), ended(103.0)), ("bad", "ttft")),
        (COUNTED, (*one_each(100.5, 101.5, 102.75), ended(103.0)), ("bad", "tpot")),
        (COUNTED, (*one_each(100.5, 103.0), ended(103.0)), ("bad", "max_gap")),
        (
            {"counted": True, "output_tokens": 99},
            (*one_each(100.5, 103.0), ended(103.0)),
            ("bad", "max_gap"),
        ),
        (COUNTED, (*one_each(100.5, 102.5), ended(110.5)), ("bad", "max_gap")),
        (COUNTED, (*one_each(100.5, *range(102, 111)), ended(110.5)), ("bad", "e2e")),
        ({}, (*chunks(100.5), ended(102.5)), ("good", "")),
        ({}, (*chunks(100.5), ended(103.0)), ("bad", "max_gap")),
        ({}, (ended(100.1),), ("bad", "ttft")),
        ({"choices": 2}, (*chunks(100.5, 101.0), ended(103.0)), ("unknown", "")),
        ({"streaming": False}, (ended(101.0),), ("unknown", "")),
        ({"streaming": False}, (ended(111.0),), ("bad", "e2e")),
        ({}, (ended(100.1, "error", "500"),), ("bad", "outcome")),
        ({}, (*chunks(100.1), ended(100.2, "timeout", "")), ("bad", "outcome")),
        ({}, (ended(100.1, "truncated", "closed"),), ("bad", "outcome")),
        ({}, (ended(100.1, "shed", "capacity"),), ("shed", "outcome")),
        ({}, (ended(100.1, "quota", "429"),), ("quota", "outcome")),
        ({}, (ended(120.1, "shed", "deadline"),), ("bad", "ttft")),
        ({}, (ended(100.1, "invalid", "400"),), None),
        ({}, (ended(100.1, "cancelled", ""),), None),
        ({}, (ended(120.1, "invalid", "400"),), ("bad", "ttft")),
        ({}, (ended(120.1, "cancelled", ""),), ("bad", "ttft")),
        ({}, (*chunks(100.1), ended(103.0, "error", "500")), ("bad", "max_gap")),
        ({}, (ended(100.25, "client_disconnected", ""),), None),
        ({}, (ended(100.75, "client_disconnected", ""),), ("bad", "ttft")),
        ({}, (("closing", 100.25), ended(105.0, "client_disconnected", "")), None),
        ({}, (*chunks(100.5, 101.0), ended(103.0, "client_disconnected", "")), None),
        (
            {},
            (*chunks(100.5, 101.0), ended(103.25, "client_disconnected", "")),
            ("bad", "max_gap"),
        ),
        (
            {},
            (
                *chunks(100.5),
                ("closing", 101.0),
                *chunks(109.0),
                ended(120.0, "client_disconnected", ""),
            ),
            None,
        ),
    ],
)
def test_goodput(
    fields: dict[str, Any],
    events: tuple[tuple[Any, ...], ...],
    expected: tuple[str, str] | None,
) -> None:
    assert judged(stream(**fields), *events) == ({expected: 1.0} if expected else {})


@pytest.mark.parametrize("seconds", [0.5, 1.0])
def test_an_empty_response_breaks_the_clause_of_the_first_token(seconds: float) -> None:
    assert judged(stream(), ended(100.0 + seconds), ttft=0.5) == {("bad", "ttft"): 1.0}
    assert judged(stream(), ended(100.0 + seconds), e2e=2.0) == {("good", ""): 1.0}


@pytest.mark.parametrize(
    ("fields", "empty"),
    [
        ({}, True),
        ({"counted": True, "output_tokens": 1}, True),  # the end of sequence
        ({"counted": True, "output_tokens": 5}, False),  # tokens without text
        ({"choices": 2, "other_chunks": 3}, False),
        ({"opaque": True}, False),
        ({"opaque": True, "unread": True}, False),
        ({"streaming": False}, False),
    ],
)
def test_an_empty_response_is_no_response_that_cannot_be_read(
    fields: dict[str, Any], empty: bool
) -> None:
    recorder = StreamRecorder({"ttft": [0.5]})
    play(recorder, stream(**fields), ended(100.25))
    assert value(recorder, "requests_without_first_token", outcome="ok") == empty
    assert value(recorder, "ttft_slo_events", result="bad") == empty
    assert value(recorder, "ttft_slo_events") == empty


def test_a_queue_clause_needs_the_engine_s_timing() -> None:
    known = stream(stages=Stages(queue=0.25))
    assert judged(known, *chunks(101.0), ended(102.0), queue=0.5) == {("good", ""): 1.0}
    assert judged(stream(), *chunks(101.0), ended(102.0), queue=0.5) == {("unknown", ""): 1.0}
    late = stream(stages=Stages(queue=0.75))
    assert judged(late, *chunks(101.0), ended(102.0), queue=0.5) == {("bad", "queue"): 1.0}


def test_goodput_is_an_estimate_once_tokens_had_to_be() -> None:
    for clauses, expected in (({"tpot": 1.0}, {"wire_chunks"}), ({"e2e": 1.0}, {"wire"})):
        recorder = StreamRecorder({}, [GoodputObjective("chat/good", "", clauses)])
        play(recorder, stream(**COUNTED), *one_each(101.0, 102.0), ended(103.0))
        assert methods(recorder, "goodput") == {"wire"}
        play(recorder, stream(), *chunks(101.0, 102.0), ended(103.0))
        assert methods(recorder, "goodput") == expected


def test_goodput_objectives_are_in_file_order() -> None:
    clauses = {"tpot": Decimal("0.06"), "ttft": Decimal("0.8")}
    objective = Objective("good", "goodput", Decimal("0.95"), clauses=clauses)
    other = Objective("first", "ttft", Decimal("0.95"), Decimal("0.8"))
    [own] = goodput_objectives([service(other, objective)])
    assert (own.name, own.model) == ("chat/good", "llama")
    assert list(own.clauses.items()) == [("tpot", 0.06), ("ttft", 0.8)]
    [anywhere] = goodput_objectives([service(objective, selector={"cluster": "eu"})])
    assert anywhere.model == ""


# What clients may write


def names(recorder: StreamRecorder) -> set[tuple[str, str]]:
    return {(measurement.model, measurement.version) for measurement in measurements(recorder)}


def test_only_the_server_confirms_a_model() -> None:
    recorder = StreamRecorder({})
    for number, (outcome, reason) in enumerate(
        [
            ("invalid", "404"),
            ("shed", "capacity"),
            ("error", "503"),
            ("error", "502"),
            ("error", "reset"),
            ("error", "in_band"),
            ("timeout", "total"),
            ("truncated", "closed"),
            ("cancelled", ""),
            ("client_disconnected", ""),
        ]
    ):
        play(recorder, stream(model=f"invented-{number}"), ended(101.0, outcome, reason))
    assert names(recorder) == set()
    play(recorder, stream(model="broken"), ended(101.0, "error", "500"))
    play(recorder, stream(model="slow"), *chunks(101.0))
    play(recorder, stream(model="unary", streaming=False), ended(101.0))
    assert names(recorder) == {("broken", ""), ("slow", ""), ("unary", "")}


def test_events_before_the_confirmation_of_a_model_are_counted() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(), ended(101.0, "shed", "503"))
    play(recorder, stream(), *chunks(101.0), ended(102.0))
    assert value(recorder, "requests", outcome="shed") == 1


def test_invented_names_evict_only_each_other() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(model="real"), *chunks(101.0), ended(102.0))
    waiting = play(recorder, stream(model="waiting"))
    for number in range(MAX_UNCONFIRMED + 50):
        play(recorder, stream(model=f"invented-{number}"), ended(101.0, "invalid", "404"))
    play(recorder, stream(model="real"), *chunks(101.0), ended(102.0))
    play_on(recorder, waiting, *chunks(102.0), ended(103.0))
    assert value(recorder, "requests", outcome="ok") == 3
    assert names(recorder) == {("real", ""), ("waiting", "")}
    assert recorder.skips == {}


def test_models_that_no_one_listed_share_one_budget_of_series() -> None:
    recorder = StreamRecorder({})
    most = MAX_SERIES // MODEL_SERIES
    for number in range(most + 3):
        play(recorder, stream(model=f"m{number}"), *chunks(101.0), ended(102.0))
    assert len(names(recorder)) == most + 1
    assert requests_of(recorder, "other") == 3
    assert recorder.limited == {"model": 3}
    assert value(recorder, "requests") == most + 3
    unanswered = StreamRecorder({})
    for number in range(MAX_UNCONFIRMED + 3):
        play(unanswered, stream(model=f"m{number}"))
    assert unanswered.skips == {"models": 3}


def test_expected_models_are_tracked_despite_invented_names() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    for number in range(MAX_MODELS):
        play(recorder, stream(model=f"m{number}"), *chunks(101.0), ended(102.0))
    play(recorder, stream(), *chunks(101.0), ended(102.0))
    play(recorder, stream(version="77"), ended(101.0, "invalid", "404"))
    assert requests_of(recorder, "llama") == 1


@pytest.mark.parametrize("reason", ["404", "NOT_FOUND"])
def test_an_expected_model_that_is_not_found_has_failed(reason: str) -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(), ended(101.0, "invalid", reason))
    play(recorder, stream(version="77"), ended(101.0, "invalid", reason))
    play(recorder, stream(), ended(101.0, "invalid", "400"))
    assert value(recorder, "requests", outcome="error") == 1


def requests_of(recorder: StreamRecorder, model: str) -> float:
    return sum(
        count
        for measurement in measurements(recorder)
        if (measurement.signal, measurement.model) == ("requests", model)
        for count in measurement.samples.values()
        if isinstance(count, float)
    )


def test_a_server_that_echoes_names_confirms_none() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    for number in range(300):
        one = stream(endpoint="chat", model=f"invented-{number}")
        play(recorder, one, *chunks(101.0), ended(102.0))
    assert names(recorder) == {("llama", ""), ("other", "")}
    assert requests_of(recorder, "other") == recorder.limited["model"] == 300
    recorder.learn_models(["new"], [])
    play(recorder, stream(endpoint="chat", model="new"), *chunks(101.0), ended(102.0))
    assert requests_of(recorder, "new") == 1


def test_models_that_the_server_lists_begin_at_zero() -> None:
    recorder = StreamRecorder({})
    recorder.learn_models(["encoder", "chat"], ["chat"])
    assert names(recorder) == {("chat", "")}
    recorder.learn_models([], [f"adapter-{number:03}" for number in range(500)])
    assert len(names(recorder)) == 1 + MAX_INITIAL_MODELS
    for number in range(500):
        play(recorder, stream(endpoint="chat", model=f"adapter-{number:03}"), ended(101.0))
    assert len(names(recorder)) == MAX_MODELS + 1, "and one is other"
    assert value(recorder, "requests") == 500


def test_models_tenants_and_reasons_share_one_budget_of_series() -> None:
    recorder = StreamRecorder({}, expected=[f"m{number}" for number in range(20)], max_series=2000)
    before = series_of(recorder)
    for number in range(20):
        for tenant in range(100):
            one = stream(model=f"m{number}", tenant=f"t{tenant}")
            play(recorder, one, *chunks(101.0), ended(102.0, "error", f"reason_{tenant}"))
    # Each model also has the tenant other, and the method of an estimate.
    assert series_of(recorder) - before < 2000 + 20 * 100
    assert recorder.limited["tenant"] > 0
    assert recorder.limited["reason"] > 0
    assert value(recorder, "requests") == value(recorder, "tenant_requests") == 2000
    assert value(recorder, "request_failures") == 2000


def series_of(recorder: StreamRecorder) -> int:
    return sum(
        len(value.boundaries) + 2 if isinstance(value, Distribution) else 1
        for measurement in measurements(recorder)
        for value in measurement.samples.values()
    )


def test_snapshot_has_only_the_models_that_changed() -> None:
    recorder = StreamRecorder({}, expected=["a", "b"])

    def changed() -> list[str]:
        return [model[0].model for model in recorder.measurements(changed_only=True)]

    assert changed() == ["a", "b"]
    assert changed() == []
    one = play(recorder, stream(model="b"))
    assert changed() == ["b"]
    assert changed() == ["b"], "it has a live stream"
    play_on(recorder, one, *chunks(101.0), ended(102.0))
    assert changed() == ["b"]
    assert changed() == []


def test_expected_models_need_no_confirmation_but_versions_do() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(), ended(101.0, "shed", "503"))
    play(recorder, stream(version="77"), ended(101.0, "invalid", "404"))
    assert names(recorder) == {("llama", "")}


def test_the_response_determines_the_version_of_a_request() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(), ended(101.0, "shed", "503"))
    play(recorder, (other := stream()))
    one = play(recorder, stream())
    one.version = "1"
    play_on(recorder, one, *chunks(101.0, 102.0), ended(103.0))
    play_on(recorder, other, ended(103.0, "error", "500"))
    play(recorder, stream(), ended(101.0, "shed", "503"))
    assert names(recorder) == {("llama", "1")}
    assert value(recorder, "requests") == 4
    assert value(recorder, "live_streams") == 0

    newer = play(recorder, stream())
    newer.version = "2"
    play_on(recorder, newer, ("closing", 100.5), *chunks(101.0, 102.0), ended(103.0))
    play(recorder, stream(), ended(101.0, "shed", "503"))
    play(recorder, stream(version="1"), ended(101.0, "invalid", "400"))
    requests = {
        (measurement.version, dict(labels)["outcome"]): count
        for measurement in measurements(recorder)
        if measurement.signal == "requests"
        for labels, count in measurement.samples.items()
        if count
    }
    assert requests == {
        ("1", "ok"): 1.0,
        ("1", "shed"): 2.0,
        ("1", "error"): 1.0,
        ("1", "invalid"): 1.0,
        ("2", "ok"): 1.0,
        ("2", "shed"): 1.0,
    }
    assert spread(recorder, "itl") == (2, 2.0)
    assert value(recorder, "live_streams") == 0

    newest = play(recorder, stream())
    newest.version = "3"
    play_on(recorder, newest, *chunks(101.0, 102.0, 103.0), ended(104.0))
    gaps = {
        measurement.version: value.count
        for measurement in measurements(recorder)
        if measurement.signal == "itl"
        for value in measurement.samples.values()
        if isinstance(value, Distribution)
    }
    assert gaps == {"1": 1.0, "2": 1.0, "3": 2.0}


def test_what_was_reported_without_a_version_stays_so() -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    play(recorder, stream(), ended(101.0, "shed", "503"))
    assert names(recorder) == {("llama", "")}
    one = play(recorder, stream())
    one.version = "1"
    play_on(recorder, one, *chunks(101.0), ended(103.0))
    assert names(recorder) == {("llama", ""), ("llama", "1")}
    assert value(recorder, "requests") == 2


def test_reasons_are_bounded() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(), *chunks(101.0), ended(102.0, "error", "DEADLINE_EXCEEDED"))
    play(recorder, stream(), ended(102.0, "error", 'x"}\n'))
    play(recorder, stream(), ended(102.0, "error", "a" * 41))
    for number in range(MAX_REASONS + 5):
        play(recorder, stream(), ended(102.0, "error", f"made_up_{number}"))
    assert value(recorder, "request_failures", reason="deadline_exceeded") == 1
    assert value(recorder, "request_failures", reason="other") == 2 + 6
    [measurement] = [one for one in measurements(recorder) if one.signal == "request_failures"]
    assert len(measurement.samples) == MAX_REASONS + 1


def test_tenants_are_bounded_and_invalid_requests_occupy_none() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(tenant="acme"), *chunks(101.0), ended(102.0))
    play(recorder, stream(tenant="guest"), ended(102.0, "invalid", "401"))
    for number in range(MAX_TENANTS + 5):
        play(recorder, stream(tenant=f"t{number}"), ended(102.0, "error", "500"))
    play(recorder, stream(tenant="a" * 65), ended(102.0, "error", "500"))
    play(recorder, stream(tenant="\x00"), ended(102.0, "error", "500"))
    play(recorder, stream(), ended(102.0, "error", "500"))
    assert value(recorder, "tenant_requests", tenant="acme") == 1
    assert value(recorder, "tenant_requests", tenant="guest", outcome="invalid") == 1
    assert value(recorder, "tenant_requests", tenant="other") == 6 + 2
    assert recorder.limited == {"tenant": 6 + 2}
    assert value(recorder, "requests") == 1 + 1 + MAX_TENANTS + 5 + 3


# Invariants

OUTCOME = st.sampled_from(get_args(Outcome))
STEP = st.sampled_from(("chunk", "closing", "backpressure"))
EVENTS = st.lists(st.tuples(st.integers(0, 5), STEP, st.integers(0, 4)), max_size=60)
ENDS = st.lists(
    st.tuples(OUTCOME, st.sampled_from(("", "500", "stop")), st.booleans()), min_size=6, max_size=6
)


@given(EVENTS, ENDS, st.lists(st.tuples(st.booleans(), st.booleans()), min_size=6, max_size=6))
@settings(max_examples=120, deadline=None)
def test_any_events_are_counted_exactly_once(
    events: list[tuple[int, str, int]],
    ends: list[tuple[str, str, bool]],
    kinds: list[tuple[bool, bool]],
) -> None:
    recorder = StreamRecorder({}, [GoodputObjective("chat/good", "", CLAUSES)], expected=["llama"])
    streams = [stream(streaming=streaming, tenant="t") for streaming, _ in kinds]
    for one in streams:
        recorder.started(one, 100.0)
    emitted = dict.fromkeys(range(6), 0)
    time = 100.0
    for number, kind, tokens in events:
        one, time = streams[number], time + 0.125
        if kind == "backpressure":
            recorder.backpressure(one, 0.5)
        elif kind == "closing":
            recorder.closing(one, time)
        elif one.streaming:
            emitted[number] += tokens or 1
            recorder.chunk(one, time, tokens)
    for one, (outcome, reason, reported), (_, has_stages) in zip(streams, ends, kinds, strict=True):
        time += 0.125
        one.stages = Stages(0.1) if has_stages else None
        if reported and outcome != "client_disconnected":
            one.counted, one.output_tokens = True, one.tokens
        recorder.ended(one, time, outcome, reason, None)  # type: ignore[arg-type]

    outcomes = [outcome for outcome, _, _ in ends]
    of_streams = [end[0] for end, kind in zip(ends, kinds, strict=True) if kind[0]]
    assert value(recorder, "requests") == 6
    for outcome in OUTCOMES:
        assert value(recorder, "requests", outcome=outcome) == outcomes.count(outcome)
        assert value(recorder, "streams", outcome=outcome) == of_streams.count(outcome)
    assert sum(value(recorder, "streams", phase=phase) for phase in PHASES) == len(of_streams)
    assert value(recorder, "disconnects") == of_streams.count("client_disconnected")
    for phase in PHASES:
        left = value(recorder, "streams", phase=phase, outcome="client_disconnected")
        assert value(recorder, "disconnects", phase=phase) == left
    assert spread(recorder, "disconnect_age")[0] == of_streams.count("client_disconnected")
    assert spread(recorder, "e2e")[0] == outcomes.count("ok")
    empty = sum(
        one.streaming and outcome == "ok" and not one.chunks
        for one, outcome in zip(streams, outcomes, strict=True)
    )
    early = value(recorder, "streams", phase="before_first_token") + empty
    assert value(recorder, "requests_without_first_token") == early
    served = value(recorder, "streams") - early
    assert spread(recorder, "ttft")[0] == served
    whole = value(recorder, "output_tokens") - value(recorder, "partial_tokens")
    lasting = sum(n for number, n in emitted.items() if outcomes[number] != "client_disconnected")
    assert whole == lasting
    left = sum(n for number, n in emitted.items() if outcomes[number] == "client_disconnected")
    assert value(recorder, "partial_tokens") + value(recorder, "wasted_tokens") == left
    assert value(recorder, "live_streams") == recorder.live == 0
    assert value(recorder, "goodput") <= 6
    for measurement in measurements(recorder):
        assert METHODS[measurement.method]
        for sample in measurement.samples.values():
            if isinstance(sample, Distribution):
                assert list(sample.counts) == sorted(sample.counts)
