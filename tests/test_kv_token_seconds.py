"""KV-cache token-seconds: the integral, what a tap records, and the blocks of an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.methods import METHODS
from exporter.protocol.events import Stages, Stream
from exporter.recording.kv_token_seconds import integrate
from exporter.recording.stream_recorder import MAX_TENANTS, StreamRecorder
from lab.engine import SimulatedEngine
from lab.engine_events import EngineRequest
from lab.engine_settings import EngineSettings
from tests.test_stream_recorder import chunks, ended, measurements, methods, play, stream, value

# The integral

TOKENS = st.integers(0, 100_000)
SECONDS = st.floats(0, 1_000)
SPANS = st.lists(SECONDS, min_size=4, max_size=4)
Times = tuple[float, float, float, float]


def times(spans: Sequence[float]) -> Times:
    """Return beginning, first token, last token and end, from the spans before each."""
    begin, prefill, decode, tail = spans
    first = begin + prefill
    return begin, first, first + decode, first + decode + tail


def step_integral(input_tokens: int, tokens: Sequence[float], begin: float, end: float) -> float:
    """Add up the tokens held between any two changes; ``tokens`` are times of output tokens."""
    held, total = float(input_tokens), 0.0
    for one, other in pairwise((begin, *sorted(tokens), end)):
        total += held * (other - one)
        held += 1
    return total


@given(TOKENS, st.integers(2, 40), SPANS)
def test_the_integral_equals_that_of_the_step_function_at_an_even_pace(
    prompt: int, count: int, spans: list[float]
) -> None:
    begin, first, last, end = times(spans)
    even = [first + number * (last - first) / (count - 1) for number in range(count)]
    found = integrate(prompt, count, (begin, first, last, end))
    assert found == pytest.approx(step_integral(prompt, even, begin, end), rel=1e-6, abs=1e-3)


@given(TOKENS, st.lists(st.floats(0, 1), max_size=50), SPANS)
def test_at_any_pace_it_differs_by_half_of_the_decode_time_per_token_at_most(
    prompt: int, shares: list[float], spans: list[float]
) -> None:
    begin, first, last, end = times(spans)
    at = [first, last, *(first + share * (last - first) for share in shares)]
    found = integrate(prompt, len(at), (begin, first, last, end))
    error = abs(found - step_integral(prompt, at, begin, end))
    assert error <= len(at) * (last - first) / 2 + 1e-6 * found + 1e-3


@given(TOKENS, TOKENS, SPANS, st.tuples(TOKENS, TOKENS, SECONDS))
def test_the_integral_is_never_negative_and_grows_with_tokens_and_time(
    prompt: int, output: int, spans: list[float], more: tuple[int, int, float]
) -> None:
    begin, first, last, end = times(spans)
    held = integrate(prompt, output, (begin, first, last, end))
    assert held >= 0
    rounding = 1e-9 * held
    assert integrate(prompt + more[0], output, (begin, first, last, end)) >= held - rounding
    assert integrate(prompt, output + more[1], (begin, first, last, end)) >= held - rounding
    later = integrate(prompt, output, (begin, first, last, end + more[2]))
    assert later >= held - rounding


# What a tap records

COUNTED = {"input_tokens": 100, "counted": True, "output_tokens": 3}


def held(recorder: StreamRecorder, **labels: str) -> float:
    return value(recorder, "tenant_kv_token_seconds" if labels else "kv_token_seconds", **labels)


def test_a_stream_holds_its_input_from_the_first_token_and_its_output_from_each_token() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(tenant="acme", **COUNTED), *chunks(101.0, 102.0, 103.0), ended(104.0))
    assert held(recorder) == held(recorder, tenant="acme") == 100 * 3 + 3 + 2 + 1
    assert methods(recorder, "kv_token_seconds") == {"wire_kv_tokens"}
    assert methods(recorder, "tenant_kv_token_seconds") == {"wire_kv_tokens"}
    assert METHODS["wire_kv_tokens"].quality == METHODS["wire_kv_partial"].quality == "estimate"


def test_prefill_counts_where_the_engine_reports_its_queue_time() -> None:
    recorder = StreamRecorder({})
    one = stream(stages=Stages(queue=0.25), **COUNTED)
    play(recorder, one, *chunks(101.0, 102.0, 103.0), ended(104.0))
    assert held(recorder) == 100 * 3.75 + 6


def test_after_a_disconnect_the_cache_is_held_until_the_server_stops() -> None:
    for stopped, seconds in ((104.0, 3.0), (None, 1.5)):
        recorder = StreamRecorder({})
        one = stream(input_tokens=100)
        events = (*chunks(101.0, 102.0), ("closing", 102.5))
        play(recorder, one, *events, ended(109.0, "client_disconnected", "", stopped))
        assert held(recorder) == 100 * seconds + 2 * (seconds - 0.5)


def test_tokens_after_a_disconnect_are_held_too() -> None:
    recorder = StreamRecorder({})
    events = (*chunks(101.0, 102.0), ("closing", 102.5), *chunks(103.0))
    end = ended(109.0, "client_disconnected", "", stopped=103.0)
    play(recorder, stream(input_tokens=100), *events, end)
    assert held(recorder) == 100 * 2 + 2 + 1


def test_a_request_that_fails_in_the_queue_holds_nothing() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(**COUNTED), *chunks(101.0, 102.0, 103.0), ended(104.0))
    before = held(recorder)
    for outcome in ("shed", "timeout", "error", "client_disconnected"):
        play(recorder, stream(input_tokens=100), ended(150.0, outcome, "late"))
    assert held(recorder) == before
    assert methods(recorder, "kv_token_seconds") == {"wire_kv_tokens"}


def test_prompts_without_a_count_are_estimated_and_labelled() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(prompt_bytes=400), *chunks(101.0, 102.0, 103.0), ended(104.0))
    assert held(recorder) == 100 * 3 + 6
    assert methods(recorder, "kv_token_seconds") == {"wire_kv_partial"}


def test_bytes_per_token_are_learned_without_prompt_classes() -> None:
    recorder = StreamRecorder({})
    for _ in range(30):
        one = stream(prompt_bytes=30_000, **COUNTED | {"input_tokens": 10_000})
        play(recorder, one, *chunks(101.0), ended(101.0))
    play(recorder, stream(prompt_bytes=300), *chunks(101.0), ended(102.0))
    assert held(recorder) == pytest.approx(100 + 1, rel=0.01)


@pytest.mark.parametrize("outcome", ["ok", "error", "client_disconnected"])
def test_streams_of_unknown_length_make_the_signal_unavailable_or_partial(outcome: str) -> None:
    recorder = StreamRecorder({}, expected=["llama"])
    recorder.started(stream(tenant="acme"), 100.0)
    assert methods(recorder, "kv_token_seconds") == {"wire_unused"}
    assert held(recorder, tenant="acme") == 0
    play(recorder, stream(tenant="acme"), *chunks(101.0), ended(104.0, outcome, "x"))
    assert not {"kv_token_seconds", "tenant_kv_token_seconds"} & {
        one.signal for one in measurements(recorder)
    }
    play(recorder, stream(tenant="acme", **COUNTED), *chunks(101.0), ended(102.0))
    assert held(recorder) == held(recorder, tenant="acme") == 103
    assert methods(recorder, "tenant_kv_token_seconds") == {"wire_kv_partial"}


def test_a_response_in_one_piece_is_excluded_and_not_zero() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(streaming=False, **COUNTED), ended(104.0))
    assert methods(recorder, "kv_token_seconds") == set()
    play(recorder, stream(**COUNTED), *chunks(101.0), ended(102.0))
    assert held(recorder) == 103
    assert methods(recorder, "kv_token_seconds") == {"wire_kv_partial"}


def test_tenants_have_the_token_counts_that_their_model_has() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(tenant="acme"), *chunks(101.0), ended(102.0))
    tokens = {"input_tokens", "cached_input_tokens", "tenant_input_tokens"}
    assert not tokens & {one.signal for one in measurements(recorder)}
    play(recorder, stream(tenant="globex", input_tokens=7), *chunks(101.0), ended(102.0))
    assert value(recorder, "tenant_input_tokens", tenant="globex") == 7
    [samples] = [r.samples for r in measurements(recorder) if r.signal == "tenant_input_tokens"]
    assert {dict(labels)["tenant"] for labels in samples} == {"acme", "globex"}


def test_token_seconds_of_tenants_are_bounded_and_add_up() -> None:
    recorder = StreamRecorder({}, tenants={"": ("other",)})
    for number in range(MAX_TENANTS + 5):
        one = stream(tenant=f"t{number}", **COUNTED)
        play(recorder, one, *chunks(101.0), ended(102.0))
    assert held(recorder, tenant="other") > 0
    assert value(recorder, "tenant_kv_token_seconds") == held(recorder)
    [samples] = [r.samples for r in measurements(recorder) if r.signal == "tenant_kv_token_seconds"]
    assert len(samples) == MAX_TENANTS + 1


# The blocks of an engine

ENGINE = EngineSettings(kv_blocks=4_000)


@dataclass
class Held:
    """Token-seconds: of the blocks that an engine held, and as taps estimate them.

    ``timed`` is the estimate with the engine's timing, ``arrival`` one from the arrival of each
    request on.
    """

    blocks: float
    tap: float
    timed: float
    arrival: float


def serve(settings: EngineSettings, requests: list[tuple[float, EngineRequest]]) -> Held:
    """Serve requests in virtual time, before a tap without and one with the engine's timing."""
    engine, now, blocks, queued = SimulatedEngine(settings), 0.0, 0.0, 0.0
    taps = plain, timed = StreamRecorder({}), StreamRecorder({})
    live: dict[int, tuple[Stream, ...]] = {}
    coming = list(requests)
    while True:
        while coming and coming[0][0] <= now:
            at, request = coming.pop(0)
            known = {"input_tokens": len(request.prompt), "output_tokens": request.max_tokens}
            both = tuple(stream(arrived=at, counted=True, **known) for _ in taps)
            live[engine.submit(request, at)] = both
            for tap, one in zip(taps, both, strict=True):
                tap.started(one, at)
        step = engine.step(now)
        for event in step.events:
            for tap, one in zip(taps, live[event.request_id], strict=True):
                tap.chunk(one, now, 0)
                if event.metrics and event.metrics.first_scheduled_time is not None:
                    if tap is timed:
                        one.stages = Stages(queue=event.metrics.first_scheduled_time - one.arrived)
                    else:
                        queued += (one.input_tokens or 0) * (one.first - one.arrived)
                    tap.ended(one, now, "ok", "length", None)
        if step.stats and step.seconds is not None:
            used = step.stats.kvCacheStats
            blocks += used.usedNumBlocks * used.tokensPerBlock * step.seconds
        if step.seconds is not None:
            now += step.seconds
        elif coming:
            now = max(now, coming[0][0])
        else:
            return Held(blocks, held(plain), held(timed), held(plain) + queued)


def arrivals(count: int, rate: float, shared: int = 0) -> list[tuple[float, EngineRequest]]:
    """Return requests at a rate per second, with this number of common tokens in each prompt."""
    pick = random.Random(count)
    prefix = tuple(range(shared))
    at, found = 0.0, []
    for _ in range(count):
        at += pick.expovariate(rate)
        own = tuple(pick.getrandbits(32) for _ in range(pick.randint(100, 900)))
        found.append((at, EngineRequest((*prefix, *own), pick.randint(20, 120))))
    return found


DRAFTS = replace(ENGINE, draft_tokens=3)


@pytest.mark.parametrize("settings", [ENGINE, DRAFTS], ids=["one token", "drafts"])
def test_the_estimate_is_near_the_blocks_that_an_engine_holds(settings: EngineSettings) -> None:
    found = serve(settings, arrivals(40, 2.0))
    assert found.timed == pytest.approx(found.blocks, rel=0.05)
    assert found.blocks * 0.7 < found.tap < found.timed < found.blocks


def test_requests_in_the_queue_hold_nothing() -> None:
    found = serve(replace(ENGINE, kv_blocks=80), arrivals(60, 3.0))
    assert found.timed == pytest.approx(found.blocks, rel=0.05)
    assert found.arrival > 2 * found.blocks


def test_shared_blocks_make_the_estimate_too_high() -> None:
    found = serve(ENGINE, arrivals(40, 8.0, shared=960))
    assert found.tap > 1.3 * found.blocks
