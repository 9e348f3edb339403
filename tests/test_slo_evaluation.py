"""Active requests are counted once, when they cross a threshold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.protocol.events import Stream
from exporter.recording.goodput import GoodputObjective
from exporter.recording.stream_recorder import EVALUATION_BATCH, StreamRecorder
from tests.test_stream_recorder import chunks, ended, measurements, play, play_on, spread, stream

THRESHOLDS = {"ttft": (0.5, 2.0), "max_gap": (1.0,), "itl": (0.75,), "e2e": (3.0,)}
GOAL = GoodputObjective("chat/good", "", {"max_gap": 1.0, "ttft": 0.5, "e2e": 3.0})


def scrape(recorder: StreamRecorder, now: float) -> None:
    for _ in recorder.evaluate_active(now):
        pass


def counts(recorder: StreamRecorder) -> Counter[tuple[str, str, str]]:
    """Return good and bad events by signal and threshold, and verdicts by clause."""
    found: Counter[tuple[str, str, str]] = Counter()
    for measurement in measurements(recorder):
        for pairs, number in measurement.samples.items():
            labels = dict(pairs)
            if measurement.signal.endswith("_slo_events"):
                signal = measurement.signal.removesuffix("_slo_events")
                found[signal, labels["threshold"], labels["result"]] += number  # type: ignore[assignment]
            elif measurement.signal == "goodput":
                found["goodput", labels["clause"], labels["result"]] += number  # type: ignore[assignment]
    return +found


def test_a_hang_in_which_nothing_ends_is_counted_when_it_crosses() -> None:
    recorder = StreamRecorder(THRESHOLDS, [GOAL], expected=["llama"])
    waiting, stalled = stream(), stream()
    play(recorder, waiting)
    play(recorder, stalled, *chunks(100.25))
    scrape(recorder, 100.5)
    assert counts(recorder) == {("ttft", "0.5", "good"): 1, ("ttft", "2", "good"): 1}
    scrape(recorder, 100.75)
    assert counts(recorder)["ttft", "0.5", "bad"] == 1
    assert counts(recorder)["goodput", "ttft", "bad"] == 1
    for _ in range(3):
        scrape(recorder, 101.5)
    assert counts(recorder) == {
        ("ttft", "0.5", "good"): 1,
        ("ttft", "2", "good"): 1,
        ("ttft", "0.5", "bad"): 1,
        ("max_gap", "1", "bad"): 1,
        ("itl", "0.75", "bad"): 1,
        ("goodput", "ttft", "bad"): 1,
        ("goodput", "max_gap", "bad"): 1,
    }
    assert spread(recorder, "ttft")[0] == 1, "histograms have what was observed"
    play_on(recorder, waiting, *chunks(101.75), ended(102.0))
    play_on(recorder, stalled, *chunks(101.75), ended(102.0))
    total = counts(recorder)
    assert total["ttft", "0.5", "good"] + total["ttft", "0.5", "bad"] == 2
    assert (total["ttft", "2", "good"], total["max_gap", "1", "bad"]) == (2, 1)
    assert (total["itl", "0.75", "bad"], spread(recorder, "itl")[0]) == (1, 1)
    assert sum(n for (signal, _, _), n in total.items() if signal == "goodput") == 2


def test_evaluation_stops_at_the_time_that_the_tap_has_seen() -> None:
    recorder = StreamRecorder(THRESHOLDS, expected=["llama"]).for_another_tap()
    recorder.seen_until = lambda: 100.25
    play(recorder, stream())
    scrape(recorder, 110.0)
    assert not counts(recorder)


def test_stream_that_may_have_ended_is_not_late() -> None:
    recorder = StreamRecorder({"max_gap": (1.0,), "itl": (1.0,)}, expected=["llama"])
    play(recorder, stream(silent_end=True), *chunks(100.25))
    scrape(recorder, 110.0)
    assert not counts(recorder)


def test_active_requests_are_evaluated_in_batches() -> None:
    recorder = StreamRecorder(THRESHOLDS, expected=["llama"])
    for _ in range(2 * EVALUATION_BATCH + 1):
        play(recorder, stream())
    steps = recorder.evaluate_active(101.0)
    next(steps)
    assert counts(recorder)["ttft", "0.5", "bad"] == EVALUATION_BATCH
    assert len(list(steps)) == 1
    assert counts(recorder)["ttft", "0.5", "bad"] == 2 * EVALUATION_BATCH + 1


# Any interleaving


OUTCOMES = ("ok", "error", "timeout", "cancelled", "invalid", "client_disconnected")
STEP = 0.25
"""All times are multiples of it, so that no sum is rounded."""


@dataclass(frozen=True)
class Request:
    """Events by time; ``closing`` is when the client closed its half, 0 for never."""

    streaming: bool
    start: float
    tokens: tuple[float, ...]
    closing: float
    end: float
    outcome: str

    @property
    def until(self) -> float:
        """Until when the client was there."""
        return self.closing if self.closing and self.outcome == "client_disconnected" else self.end

    def crossings(self, by: float) -> dict[tuple[str, float], float]:
        """Try every instant: return when each threshold was crossed first, up to ``by``."""
        found: dict[tuple[str, float], float] = {}
        at = self.start + STEP / 2
        while at < min(by, self.until):
            last = max((each for each in self.tokens if each < at), default=None)
            waits = {"e2e": at - self.start}
            if self.streaming and last is None:
                waits["ttft"] = at - self.start
            elif last is not None:
                waits["max_gap"] = at - last
            for signal, wait in waits.items():
                for threshold in THRESHOLDS[signal]:
                    if wait > threshold:
                        found.setdefault((signal, threshold), at)
            at += STEP / 2
        return found

    def gaps(self) -> list[float]:
        """Return the waits for a token that the client saw, that at the end included."""
        seen = [each for each in self.tokens if each <= self.until]
        return [after - before for before, after in pairwise((*seen, self.until))] if seen else []


def naive(requests: list[Request]) -> Counter[tuple[str, str, str]]:
    """Judge requests that are all over."""
    total: Counter[tuple[str, str, str]] = Counter()
    for one in requests:
        late = one.crossings(one.end)
        seen = [each for each in one.tokens if each <= one.until]
        for threshold in THRESHOLDS["ttft"]:
            if ("ttft", threshold) in late:
                total["ttft", f"{threshold:g}", "bad"] += 1
            elif seen:
                total["ttft", f"{threshold:g}", "good"] += 1
            elif one.streaming and one.outcome != "invalid":
                total["ttft", f"{threshold:g}", "bad"] += 1
        if ("max_gap", 1.0) in late:
            total["max_gap", "1", "bad"] += 1
        elif len(seen) > 1:
            total["max_gap", "1", "good"] += 1
        if ("e2e", 3.0) in late:
            total["e2e", "3", "bad"] += 1
        elif one.outcome == "ok":
            total["e2e", "3", "good"] += 1
        for gap in one.gaps()[:-1]:
            total["itl", "0.75", "good" if gap <= 0.75 else "bad"] += 1
        if one.gaps() and one.gaps()[-1] > 0.75:
            total["itl", "0.75", "bad"] += 1
        clauses = list(GOAL.clauses)
        broken = [
            (at, clauses.index(signal), signal)
            for (signal, threshold), at in late.items()
            if GOAL.clauses[signal] == threshold
        ]
        if broken:
            total["goodput", min(broken)[2], "bad"] += 1
        elif one.outcome in ("error", "shed", "timeout"):
            total["goodput", "outcome", "bad"] += 1
        elif one.outcome == "ok" and one.streaming and not seen:
            total["goodput", "ttft", "bad"] += 1
        elif one.outcome == "ok":
            total["goodput", "", "good" if seen else "unknown"] += 1
    return total


@st.composite
def requests(draw: st.DrawFn) -> Request:
    streaming = draw(st.booleans())
    steps = st.integers(0, 6)
    start = 100 + draw(st.integers(0, 8)) * STEP
    time, tokens = start, []
    for wait in draw(st.lists(steps, max_size=6)) if streaming else []:
        time += (wait + 1) * STEP
        tokens.append(time)
    end = time + draw(st.integers(1, 14)) * STEP
    closing = draw(st.sampled_from((0.0, *(start + n * STEP for n in range(1, 12)))))
    if closing >= end or closing in tokens:
        closing = 0.0
    outcome = draw(
        st.sampled_from(("ok", "error", "timeout", "cancelled", "invalid", "client_disconnected"))
    )
    return Request(streaming, start, tuple(tokens), closing, end, outcome)


@given(st.lists(requests(), min_size=1, max_size=5), st.lists(st.integers(0, 60), max_size=12))
@settings(max_examples=400, deadline=None)
def test_every_interleaving_gives_each_request_one_judgement(
    made: list[Request], scrapes: list[int]
) -> None:
    recorder = StreamRecorder(THRESHOLDS, [GOAL], expected=["llama"])
    streams = [stream(streaming=one.streaming, arrived=one.start) for one in made]
    timeline: list[tuple[float, int, Any]] = [(100 + n * STEP, 9, None) for n in scrapes]
    for one, its in zip(made, streams, strict=True):
        timeline.append((one.start, 0, (its, "started")))
        timeline += [(at, 1, (its, "chunk")) for at in one.tokens]
        if one.closing:
            timeline.append((one.closing, 2, (its, "closing")))
        timeline.append((one.end, 3, (its, one.outcome)))
    before: Counter[tuple[str, str, str]] = Counter()
    for at, _, event in sorted(timeline, key=lambda each: each[:2]):
        if event is None:
            scrape(recorder, at)
            now = counts(recorder)
            assert all(now[key] >= n for key, n in before.items()), "a counter fell"
            _compare_late(made, now, at)
            before = now
        else:
            _happen(recorder, *event, at)
    assert counts(recorder) == naive(made)


def _compare_late(made: list[Request], now: Counter[tuple[str, str, str]], at: float) -> None:
    """Compare what is counted as late with what had crossed before."""
    for signal, threshold in (("ttft", 2.0), ("max_gap", 1.0), ("e2e", 3.0)):
        crossed = sum((signal, threshold) in one.crossings(at) for one in made)
        died = sum(not one.gaps() and one.end <= at for one in made) if signal == "ttft" else 0
        bad = now[signal, f"{threshold:g}", "bad"]
        assert bad <= crossed + died, "judged before it crossed"
        if not any(one.closing for one in made):
            assert bad >= crossed, "crossed and not judged"


def _happen(recorder: StreamRecorder, its: Stream, what: str, at: float) -> None:
    if what == "started":
        recorder.started(its, at)
    elif what == "chunk":
        recorder.chunk(its, at, 0)
    elif what == "closing":
        recorder.closing(its, at)
    else:
        recorder.ended(its, at, what, "", None)  # type: ignore[arg-type]
