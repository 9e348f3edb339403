"""What is counted of one version of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from exporter.readings import UNLABELLED, Distribution, Reading
from exporter.recorder import Histogram, Recorder, Series
from exporter.taps.goodput import Goal, Verdict
from exporter.taps.words import OTHER, Words
from exporter.wire.events import Stages
from slos.signals import PHASES

MAX_REASONS = 20

METHODS: Mapping[str, str] = {
    "disconnect_release": "wire_released",
    "wasted_tokens": "wire_released",
    "suspected_retries": "wire_retries",
}
"""By signal; ``wire`` for all others."""
WHERE_NOT_ALL_IS_TOLD: Mapping[str, str] = {
    "output_tokens": "wire_chunks",
    "partial_tokens": "wire_chunks",
    "tpot": "wire_chunks",
    "goodput": "wire_chunks",
    "input_tokens": "wire_told",
    "cached_input_tokens": "wire_told",
}
"""The method from the first request on that does not say what the signal needs."""
GOES_ON_FROM: Mapping[str, str] = {
    "wire_chunks": "wire",
    "wire_told": "wire",
    "wire_stages_sampled": "wire_stages",
}
"""Each of these methods begins at 0 where the other one ends."""

_STAGES = ("queue", "prefill", "decode")
_AT_ONCE = ("e2e", "requests", "disconnect_release")
_AT_ONCE_AT_0 = ("suspected_retries", "client_backpressure")
_WITH_STREAMS = ("max_gap", "decode", "streams", "disconnect_age")
_WITH_STREAMS_AT_0 = ("partial_tokens", "wasted_tokens")
_FAILURES = ("error", "rejected", "timeout")

TENANT = "tenant"
SAMPLED = "wire_stages_sampled"
_REASON = re.compile(r"[a-z0-9_]{1,40}")


class Pace:
    """The histograms that every token goes to."""

    __slots__ = ("itl", "itl_normalized", "ttft")

    def __init__(self, ttft: Histogram, itl: Histogram, itl_normalized: Histogram) -> None:
        self.ttft = ttft
        self.itl = itl
        self.itl_normalized = itl_normalized

    def empty(self) -> Pace:
        """Return others with the same edges and nothing in them."""
        return Pace(*(Histogram(one.edges) for one in self._all()))

    def add(self, other: Pace) -> None:
        """Take in what others have."""
        for mine, theirs in zip(self._all(), other._all(), strict=True):
            mine.add(theirs)

    def _all(self) -> tuple[Histogram, Histogram, Histogram]:
        return self.ttft, self.itl, self.itl_normalized


class Model:
    """Counts what happens to the requests for one version of a model.

    ``proven`` says that the server has shown that it knows the model, ``live`` how many requests
    are under way.  ``thresholds`` are SLO thresholds in seconds by signal.
    """

    def __init__(
        self,
        name: str,
        version: str,
        thresholds: Mapping[str, Iterable[float]],
        goals: Iterable[Goal],
    ) -> None:
        self.name = name
        self.version = version
        self.proven = False
        self.live = 0
        self.goals = tuple(goal for goal in goals if goal.model in ("", name))
        self._pace: Pace | None = None
        self._stages = "wire_stages"
        self._estimated: set[str] = set()
        self._reasons = Words(MAX_REASONS)
        self._recorder = Recorder(thresholds)
        for signal in _AT_ONCE:
            self._recorder.declare(self._series(signal))
        for signal in _AT_ONCE_AT_0:
            self.count(signal, amount=0.0)
        for goal in self.goals:
            self.judged(goal, Verdict("good"), amount=0.0)

    @property
    def pace(self) -> Pace:
        """Where tokens go; with the first stream there is all that streams have."""
        if self._pace is None:
            for signal in _WITH_STREAMS:
                self._recorder.declare(self._series(signal))
            for signal in _WITH_STREAMS_AT_0:
                self.count(signal, amount=0.0)
            for phase in PHASES[:2]:
                self.count("disconnects", {"phase": phase}, 0.0)
            for outcome in _FAILURES:
                self.count("requests_without_first_token", {"outcome": outcome}, 0.0)
            signals = ("ttft", "itl", "itl_normalized")
            self._pace = Pace(*(self._recorder.histogram(self._series(one)) for one in signals))
        return self._pace

    def observe(self, signal: str, seconds: float) -> None:
        """Take in an observation."""
        self._recorder.observe(self._series(signal), seconds)

    def count(
        self, signal: str, labels: Mapping[str, str] | None = None, amount: float = 1.0
    ) -> None:
        """Take in so many events; a request without a tenant has no such label."""
        given = ((name, value) for name, value in (labels or {}).items() if value or name != TENANT)
        self._recorder.count(self._series(signal), tuple(sorted(given)), amount)

    def staged(self, stages: Stages | None) -> None:
        """Take in what the engine says of its own time for a request, None if it says nothing."""
        if stages is None:
            for signal in _STAGES:
                if (signal, "", "", self._stages) in self._recorder:
                    self._recorder.declare((signal, "", "", SAMPLED))
            self._stages = SAMPLED
            return
        for signal in _STAGES:
            seconds = getattr(stages, signal)
            if seconds is not None:
                self._recorder.observe((signal, "", "", self._stages), seconds)

    def judged(self, goal: Goal, verdict: Verdict, tenant: str = "", amount: float = 1.0) -> None:
        """Take in what a request was for an objective."""
        labels = {"objective": goal.name, "result": verdict.result, "clause": verdict.clause}
        self.count("goodput", {**labels, TENANT: tenant}, amount)

    def not_told(self, *signals: str) -> None:
        """Take in that a request did not say all that these signals need."""
        for signal in signals:
            before = self._series(signal)
            self._estimated.add(signal)
            if before in self._recorder:
                self._recorder.declare(self._series(signal))

    def reason(self, word: str) -> str:
        """Return a reason as a label may have it: few words, of few letters."""
        word = word.lower()
        if not word:
            return word
        return self._reasons.admit(word) if _REASON.fullmatch(word) else OTHER

    def readings(self) -> Iterator[Reading]:
        """Yield everything so far."""
        yield self._named(Reading("live_streams", "", "", "wire", {UNLABELLED: float(self.live)}))
        for reading in self._recorder.readings():
            if reading.signal != "itl_normalized" or _observed(reading):
                yield self._named(reading)

    def _named(self, reading: Reading) -> Reading:
        return replace(reading, model=self.name, version=self.version)

    def _series(self, signal: str) -> Series:
        if signal in self._estimated:
            return signal, "", "", WHERE_NOT_ALL_IS_TOLD[signal]
        return signal, "", "", METHODS.get(signal, "wire")


def _observed(reading: Reading) -> bool:
    value = reading.samples[UNLABELLED]
    return isinstance(value, Distribution) and value.count > 0
