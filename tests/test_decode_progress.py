"""Decode progress of an engine, from successive snapshots."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from exporter.samples import Distribution, ModelInfo
from exporter.store.decode_progress import AT_REST, DecodeProgress
from exporter.store.view import SignalState, View, WaitingStreams
from tests.views import FIRST_TOKEN, measured, unavailable, view

LLAMA = ("llama", "1")


def active(count: float | None, *more: SignalState, age: float | None = None) -> View:
    gauge = (
        unavailable("sequences_active", "engine statistics stopped")
        if count is None
        else measured("sequences_active", count)
    )
    return view(gauge, *more, engine_stats_age={} if age is None else {LLAMA: age})


def tokens(count: float) -> SignalState:
    return measured("output_tokens", count, "trtllm_output_length")


def verdict(*snapshots: tuple[float, View]) -> tuple[bool | None, str]:
    """Evaluate after the last of these snapshots; the engine was idle before them."""
    progress = DecodeProgress(stuck_after=60, unwatched_after=30)
    for now, shown in ((0.0, active(0.0)), *snapshots):
        progress.update(shown, now)
    found = progress.decoding(snapshots[-1][1], snapshots[-1][0])[LLAMA]
    return found.progressing, found.reason


def every_ten(*shown: View) -> tuple[tuple[float, View], ...]:
    return tuple((10.0 * position, one) for position, one in enumerate(shown, start=1))


STUCK = (
    False,
    "decoding is stuck: 2 active and no token, iteration or finished request for 70 s",
)


def test_an_active_engine_without_tokens_is_stuck() -> None:
    assert verdict(*every_ten(*[active(2.0, tokens(5))] * 7)) == (True, "")
    assert verdict(*every_ten(*[active(2.0, tokens(5))] * 8)) == STUCK


def test_an_idle_engine_is_not_stuck() -> None:
    assert verdict(*every_ten(*[active(0.0, tokens(5))] * 20)) == (True, "")


def test_new_work_after_idle_time_is_not_stuck_yet() -> None:
    idle = [active(0.0, tokens(5))] * 20
    assert verdict(*every_ten(*idle, *[active(2.0, tokens(5))] * 7)) == (True, "")


@pytest.mark.parametrize(
    "change",
    [
        tokens(6),
        measured("itl", FIRST_TOKEN),
        measured("requests", {(("outcome", "ok"),): 1.0}),
    ],
)
def test_a_token_or_a_finished_request_is_progress(change: SignalState) -> None:
    snapshots = [active(2.0, tokens(5))] * 4 + [active(2.0, change)] * 5
    assert verdict(*every_ten(*snapshots)) == (True, "")


@pytest.mark.parametrize(
    "change",
    [
        measured("requests", {(("outcome", "shed"),): 1.0}),
        measured("requests_without_first_token", 3.0),
        measured("ttft", FIRST_TOKEN),
        measured("input_tokens", 70.0),
    ],
)
def test_arrivals_and_refusals_are_no_progress(change: SignalState) -> None:
    snapshots = [active(2.0, tokens(5))] * 4 + [active(2.0, tokens(5), change)] * 4
    assert verdict(*every_ten(*snapshots)) == STUCK


def test_an_iteration_is_progress() -> None:
    snapshots = [(10.0 * n, active(2.0, tokens(5), age=1.0)) for n in range(1, 20)]
    assert verdict(*snapshots) == (True, "")
    snapshots += [(190.0 + 10 * n, active(2.0, tokens(5), age=1.0 + 10 * n)) for n in range(1, 8)]
    assert verdict(*snapshots)[0] is False


def test_withdrawn_gauges_do_not_hide_a_stuck_engine() -> None:
    snapshots = [(10.0, active(2.0, age=0.0))]
    snapshots += [(10.0 + 10 * n, active(None, age=10.0 * n)) for n in range(1, 8)]
    assert verdict(*snapshots) == STUCK


def test_progress_of_an_engine_never_seen_idle_is_unknown() -> None:
    progress = DecodeProgress(stuck_after=60, unwatched_after=30)
    for now in range(0, 100, 10):
        progress.update(active(2.0, tokens(5)), float(now))
    found = progress.decoding(active(2.0), 90.0)[LLAMA]
    assert found.progressing is None
    assert found.reason.endswith("but this engine never reported that it was idle")


def test_time_without_snapshots_does_not_count() -> None:
    assert verdict((10.0, active(2.0)), (900.0, active(2.0)), (930.0, active(2.0)))[0] is True


def test_progress_is_unknown_without_a_gauge_of_active_sequences() -> None:
    expected = "decode progress is unknown: engine statistics stopped"
    assert verdict((1.0, active(None))) == (None, expected)
    expected = "decode progress is unknown: no gauge of active sequences and no tap for its"
    found = verdict((1.0, view()))
    assert (found[0], found[1].startswith(expected)) == (None, True)


# Streams at a tap, with a snapshot every 10 s


def streams(count: int, *signals: SignalState, age: float | None = None) -> View:
    """Return a view of a tap; its snapshot time is filled in by `tapped`."""
    return replace(
        view(*signals, engine_stats_age={} if age is None else {LLAMA: age}),
        waiting_streams={LLAMA: WaitingStreams(0.0, count)},
    )


def first_tokens(count: float, method: str = "wire") -> SignalState:
    return measured("ttft", Distribution((inf,), (count,), count), method)


def tapped(*shown: View, seconds: float = 10.0) -> tuple[bool | None, str]:
    """Evaluate after views ``seconds`` apart."""
    progress = DecodeProgress(stuck_after=60, unwatched_after=30)
    for position, one in enumerate(shown):
        now = position * seconds
        waiting = {model: replace(s, at=now) for model, s in one.waiting_streams.items()}
        progress.update(replace(one, waiting_streams=waiting), now)
    found = progress.decoding(shown[-1], (len(shown) - 1) * seconds)[LLAMA]
    return found.progressing, found.reason


STUCK_AT_TAP = (
    False,
    "decoding is stuck: 3 streams wait at the tap and no stream of this model received a token "
    "for 70 s",
)


@pytest.mark.parametrize(
    "engine",
    [
        (),  # publishes no gauges
        (measured("sequences_active", 0.0),),  # frozen while idle
        (measured("sequences_active", 4.0),),  # frozen at work, and never seen idle
        (unavailable("sequences_active", "engine statistics stopped"),),
    ],
)
def test_streams_that_wait_without_a_token_are_a_stuck_model(
    engine: tuple[SignalState, ...],
) -> None:
    assert tapped(*[streams(3, *engine)] * 7)[0] is not False
    assert tapped(*[streams(3, *engine)] * 8) == STUCK_AT_TAP


def test_gauges_that_vanish_do_not_hide_waiting_streams() -> None:
    with_gauges = streams(3, measured("sequences_active", 4.0), tokens(5))
    without_gauges = streams(
        3, unavailable("sequences_active", "none"), unavailable("output_tokens", "none")
    )
    assert tapped(with_gauges, *[without_gauges] * 7) == STUCK_AT_TAP
    assert tapped(*[with_gauges, without_gauges] * 4) == STUCK_AT_TAP, (
        "a signal that comes back is no token"
    )


def test_a_token_of_any_stream_is_progress() -> None:
    snapshots = [streams(3, first_tokens(5))] * 4 + [streams(3, first_tokens(6))] * 5
    assert tapped(*snapshots) == (True, "")


def test_a_first_response_that_the_server_counts_may_be_an_error() -> None:
    snapshots = [streams(3, first_tokens(count, "triton_first_response")) for count in range(8)]
    assert tapped(*snapshots) == STUCK_AT_TAP


def test_iterations_during_a_long_prefill_are_progress() -> None:
    assert tapped(*[streams(3, measured("sequences_active", 1.0), age=0.5)] * 20) == (True, "")


def test_an_age_that_varies_with_the_duration_of_snapshots_is_no_iteration() -> None:
    gauge = measured("sequences_active", 4.0)
    snapshots = [streams(3, gauge, age=10.0 * at + 0.3 - 0.04 * at) for at in range(9)]
    assert tapped(*snapshots)[0] is False


def test_iterations_of_an_idle_engine_are_not() -> None:
    snapshots = [streams(3, measured("sequences_active", 0.0), age=0.5)] * 8
    assert tapped(*snapshots) == STUCK_AT_TAP


def test_a_model_without_waiting_streams_is_not_stuck() -> None:
    assert tapped(*[streams(0)] * 20) == (True, "")
    assert tapped(*[streams(3)] * 6, *[streams(0)] * 8, *[streams(3)] * 3) == (True, "")


def test_clients_with_short_timeouts_do_not_hide_a_hang() -> None:
    assert tapped(*[streams(3), streams(3), streams(0)] * 7, streams(3))[0] is False


def test_a_tap_without_new_snapshots_is_not_stuck() -> None:
    progress = DecodeProgress(stuck_after=60, unwatched_after=30)
    for now in range(0, 200, 10):
        progress.update(streams(3), float(now))  # always the snapshot of time 0
    assert progress.decoding(streams(3), 190.0)[LLAMA].progressing is True


def test_iterations_of_an_engine_are_progress_of_its_ensemble() -> None:
    models = (ModelInfo("llama", "1", "ensemble", True), ModelInfo("engine", "1", "tensorrtllm"))
    working = measured("sequences_active", 2.0, model="engine")
    moving, still = (
        replace(streams(3, working), models=models, engine_stats_age={("engine", "1"): age})
        for age in (1.0, 1000.0)
    )
    assert tapped(*[moving] * 8) == (True, "")
    assert tapped(*[still] * 8) == STUCK_AT_TAP


def test_a_model_with_waiting_streams_is_evaluated_even_if_unready() -> None:
    models = (ModelInfo("llama", "1", ready=False),)
    assert tapped(*[replace(streams(3), models=models)] * 8) == STUCK_AT_TAP


def test_only_ready_models_with_gauges_are_evaluated() -> None:
    progress = DecodeProgress(60, 30)
    models = (
        ModelInfo("llama", "1", ready=False),
        ModelInfo("tokenizer", "1", excluded="no engine"),
    )
    shown = view(measured("sequences_active", 1.0), models=models)
    progress.update(shown, 1.0)
    assert progress.decoding(shown, 1.0) == {}


def test_an_engine_is_initialised_by_its_first_iteration_or_token() -> None:
    progress = DecodeProgress(60, 30)
    nothing = active(None, tokens(0))
    progress.update(nothing, 1.0)
    assert progress.decoding(nothing, 1.0)[LLAMA].initialised is None
    progress.update(active(None, tokens(1)), 2.0)
    progress.update(nothing, 3.0)
    assert progress.decoding(nothing, 3.0)[LLAMA].initialised is True


def test_an_engine_without_iterations_is_not_initialised() -> None:
    progress = DecodeProgress(60, 30)
    at_rest = view(tokens(0), measured("sequences_active", 0.0, method=AT_REST))
    progress.update(at_rest, 1.0)
    assert progress.decoding(at_rest, 1.0)[LLAMA].initialised is None


def test_only_produced_tokens_count_as_progress() -> None:
    progress = DecodeProgress(60, 30)
    progress.update(active(0.0, tokens(5)), 10.0)
    progress.update(active(2.0, tokens(5)), 20.0)
    assert not progress.produced_since(5.0)
    progress.update(active(2.0, tokens(6)), 30.0)
    assert progress.produced_since(25.0)
    assert not progress.produced_since(30.0)


def test_a_model_is_forgotten_after_an_hour() -> None:
    progress = DecodeProgress(60, 30)
    progress.update(active(0.0), 0.0)
    progress.update(view(models=()), 3600.0)
    assert progress.decoding(active(2.0), 3600.0) == {}
