"""The ten-minute history of latency quantiles."""

from __future__ import annotations

import pickle
import sys
from math import inf, isnan, nan

import pytest

from exporter.samples import Distribution
from exporter.store.latency_history import LatencyRecorder, Lines
from exporter.store.view import SignalState
from tests.views import measured, unavailable, view

BOUNDARIES = (0.1, 0.2, 0.4, inf)


def histogram(*counts: float) -> Distribution:
    """Return a histogram with these numbers of observations per bucket."""
    cumulative = tuple(sum(counts[: i + 1]) for i in range(len(counts)))
    return Distribution(BOUNDARIES, cumulative, 0.1 * sum(counts))


def ttft(*counts: float, model: str = "llama") -> SignalState:
    return measured("ttft", histogram(*counts), "wire", model=model)


def lines(recorder: LatencyRecorder, model: str = "llama", signal: str = "ttft") -> Lines:
    return recorder.history.lines[model, "1"][signal]


def test_a_point_is_the_quantiles_of_what_came_since_the_previous_one() -> None:
    recorder = LatencyRecorder(1.0)
    for now, counts in ((0.0, (100, 0, 0, 0)), (10.0, (100, 10, 0, 0)), (20.0, (100, 10, 20, 0))):
        recorder.update(view(ttft(*counts)), now)
    p50, p95 = lines(recorder)
    assert p50[-2:].tolist() == pytest.approx([0.15, 0.3])
    assert p95[-2:].tolist() == pytest.approx([0.195, 0.39])
    assert len(p50) == len(p95) == 60
    assert all(map(isnan, p50[:-2]))


def test_points_are_one_step_apart_however_often_views_come() -> None:
    recorder = LatencyRecorder(1.0)
    for second in range(95):
        recorder.update(view(ttft(float(second), 0, 0, 0)), 1000.0 + second)
    assert sum(not isnan(value) for value in lines(recorder)[0]) == 9


def test_a_step_holds_two_scrapes_at_long_intervals() -> None:
    recorder = LatencyRecorder(30.0)
    assert recorder.history.step == 60.0
    for count in range(30):
        recorder.update(view(ttft(float(count), 0, 0, 0)), 60.0 * count)
    assert len(lines(recorder)[0]) == 10


def test_a_step_without_observations_or_without_the_signal_is_a_gap() -> None:
    recorder = LatencyRecorder(1.0)
    lost = unavailable("ttft", "no successful scrape for 7 s")
    steps = [ttft(0, 0, 0, 0), ttft(5, 0, 0, 0), ttft(5, 0, 0, 0), lost]
    # What came while the source was down belongs to no step.
    steps += [ttft(9, 0, 0, 0), ttft(9, 4, 0, 0)]
    for number, state in enumerate(steps):
        recorder.update(view(state), 10.0 * number)
    latest = lines(recorder)[0][-5:].tolist()
    assert latest == pytest.approx([0.05, nan, nan, nan, 0.15], nan_ok=True)


def test_steps_that_were_missed_are_gaps_and_what_came_in_them_counts_at_the_end() -> None:
    recorder = LatencyRecorder(1.0)
    for now, count in ((0.0, 0.0), (10.0, 5.0), (40.0, 9.0)):
        recorder.update(view(ttft(count, 0, 0, 0)), now)
    assert lines(recorder)[0][-4:].tolist() == pytest.approx([0.05, nan, nan, 0.05], nan_ok=True)
    recorder.update(view(ttft(10.0, 0, 0, 0)), 1e6)
    assert lines(recorder)[0][-4:].tolist() == pytest.approx([nan, nan, nan, 0.05], nan_ok=True)


def test_a_quantile_beyond_the_last_boundary_is_infinite_and_not_invented() -> None:
    recorder = LatencyRecorder(1.0)
    recorder.update(view(ttft(0, 0, 0, 0)), 0.0)
    recorder.update(view(ttft(0, 0, 0, 3)), 10.0)
    assert lines(recorder)[1][-1] == inf


def test_a_histogram_without_buckets_has_no_history() -> None:
    recorder = LatencyRecorder(1.0)
    for number in range(3):
        total = Distribution((inf,), (float(number),), 0.2 * number)
        recorder.update(view(measured("itl", total)), 10.0 * number)
    assert recorder.history.lines == {}


def test_models_are_limited_and_a_silent_one_makes_room() -> None:
    recorder = LatencyRecorder(1.0, max_models=2)

    def step(number: int, **counts: float) -> None:
        recorder.update(
            view(*(ttft(count, 0, 0, 0, model=name) for name, count in counts.items())),
            10.0 * number,
        )

    step(0, a=0.0, b=0.0, c=0.0)
    step(1, a=1.0, b=1.0, c=1.0)
    assert [model for model, _ in recorder.history.lines] == ["a", "b"]
    assert recorder.history.skipped == 1
    for number in range(2, 62):
        step(number, a=1.0 * number, b=1.0, c=1.0 * number)
    assert [model for model, _ in recorder.history.lines] == ["a", "c"]
    assert recorder.history.skipped == 0


def test_a_published_history_does_not_change() -> None:
    recorder = LatencyRecorder(1.0)
    for number in range(3):
        recorder.update(view(ttft(5.0 * number, 0, 0, 0)), 10.0 * number)
    before = recorder.history
    copy = {model: dict(signals) for model, signals in before.lines.items()}
    recorder.update(view(ttft(5.0, 90.0, 0, 0)), 30.0)
    assert recorder.history is not before
    assert {model: dict(signals) for model, signals in before.lines.items()} == copy


def test_memory_is_bounded() -> None:
    """More models than are kept: memory grows for ten minutes, and then no more."""
    template = tuple(
        measured(signal, 0.0, "wire")._replace(model=f"model-{number}")
        for number in range(12)
        for signal in ("ttft", "itl", "tpot")
    )
    recorder = LatencyRecorder(1.0, max_models=4)

    def run(steps: range) -> None:
        for number in steps:
            value = histogram(number, 2 * number, 3 * number, 0)
            states = (state._replace(samples={(): value}) for state in template)
            recorder.update(view(*states), 10.0 * number)

    run(range(65))
    full = len(pickle.dumps(vars(recorder)))
    run(range(65, 130))
    history = recorder.history
    assert (len(history.lines), history.skipped) == (4, 8)
    kept = [
        line for signals in history.lines.values() for pair in signals.values() for line in pair
    ]
    assert len(kept) == 4 * 3 * 2
    assert sum(map(sys.getsizeof, kept)) < 10_000
    assert len(pickle.dumps(vars(recorder))) == pytest.approx(full, rel=0.05)
