"""What is counted of one version of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from exporter.protocol.events import Stages
from exporter.recording.goodput import GoodputObjective, GoodputVerdict
from exporter.recording.initial_series import known_labels
from exporter.recording.label_limiter import OTHER, LabelLimiter, SeriesBudget
from exporter.recording.metric_recorder import Histogram, MetricRecorder, Series
from exporter.samples import UNLABELLED, Distribution, Labels, Measurement, Value
from slos.signals import (
    LATENCIES,
    OUTCOMES,
    RESULTS,
    SIGNALS,
    TENANT,
    TENANT_SIGNALS,
    bucket_edges,
    slo_events,
    threshold_label,
)

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
PRECEDING_METHOD: Mapping[str, str] = {
    "wire_chunks": "wire",
    "wire_told": "wire",
    "wire_stages_sampled": "wire_stages",
}
"""Each of these methods begins at 0 where the other one ends."""

_STAGES = ("queue", "prefill", "decode")
_AT_ONCE = (
    *("e2e", "requests", "disconnect_release", "suspected_retries", "client_backpressure"),
    *("streams", "disconnects", "disconnect_age", "partial_tokens", "wasted_tokens", "goodput"),
    slo_events("e2e"),
)
_WITH_STREAMS = (
    *("ttft", "itl", "max_gap", "decode", "requests_without_first_token"),
    *(slo_events("ttft"), slo_events("max_gap"), slo_events("decode")),
)
_TOKENS = ("input_tokens", "cached_input_tokens", "output_tokens")
_BEFORE_FIRST_USE = (*_WITH_STREAMS, "tpot", slo_events("itl"), slo_events("tpot"), *_TOKENS)
"""Signals of which the wire has nothing to say until a first request shows them."""
_JUDGED_APART = frozenset({"ttft", "itl", "e2e", "max_gap"})
"""Latencies that are judged while a request is under way (:mod:`exporter.recording.judgement`)."""
_PER_TOKEN = ("itl", "itl_normalized")
"""Latencies whose events are counted from the histogram: there are too many to judge one by one."""
UNUSED = "wire_unused"
_MAIN: Mapping[str, str] = {twin: signal for signal, twin in TENANT_SIGNALS.items()}
"""The signal that a tenant's counter belongs to."""

SAMPLED = "wire_stages_sampled"
_REASON = re.compile(r"[a-z0-9_]{1,40}")


class TokenHistograms:
    """The histograms that every token goes to."""

    __slots__ = ("itl", "itl_normalized", "ttft")

    def __init__(self, ttft: Histogram, itl: Histogram, itl_normalized: Histogram) -> None:
        self.ttft = ttft
        self.itl = itl
        self.itl_normalized = itl_normalized

    def empty(self) -> TokenHistograms:
        """Return others with the same edges and nothing in them."""
        return TokenHistograms(*(Histogram(one.edges) for one in self._all()))

    def add(self, other: TokenHistograms) -> None:
        """Take in what others have."""
        for mine, theirs in zip(self._all(), other._all(), strict=True):
            mine.add(theirs)

    def _all(self) -> tuple[Histogram, Histogram, Histogram]:
        return self.ttft, self.itl, self.itl_normalized


class ModelMetrics:
    """Counts what happens to the requests for one version of a model.

    ``proven`` says that the server has shown that it knows the model, ``live`` how many requests
    are under way.  ``thresholds`` are SLO thresholds in seconds by signal, ``gap_limits`` those of
    the longest gap of a stream, clauses of goodput among them.  ``late_gaps`` counts waits for a
    token that no histogram has yet, or never will, by threshold of ``itl``.  ``tenants`` have
    their counters from the start.  ``unversioned`` counts requests that name no version.
    """

    def __init__(
        self,
        name: str,
        version: str,
        thresholds: Mapping[str, Iterable[float]],
        goals: Iterable[GoodputObjective],
        budget: SeriesBudget | None = None,
        tenants: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.version = version
        self.unversioned: ModelMetrics | None = None
        self.proven = False
        self.live = 0
        self.touched = True
        self._budget = budget or SeriesBudget()
        self.goals = tuple(goal for goal in goals if goal.model in ("", name))
        self._pace: TokenHistograms | None = None
        self._stages = "wire_stages"
        self._estimated: set[str] = set()
        self._reasons = LabelLimiter(MAX_REASONS)
        self._known_reasons: set[str] = set()
        self.thresholds = {
            signal: tuple(thresholds[signal]) for signal in LATENCIES if thresholds.get(signal)
        }
        clauses = (goal.clauses.get("max_gap") for goal in self.goals)
        self.gap_limits = sorted({*self.thresholds.get("max_gap", ()), *filter(None, clauses)})
        self.late_gaps = dict.fromkeys(self.thresholds.get("itl", ()), 0)
        self._recorder = MetricRecorder(self.thresholds)
        self._tenants: set[str] = set()
        self._unused = set(_BEFORE_FIRST_USE)
        for signal in _AT_ONCE:
            self._begin(self._series(signal))
        for tenant in tenants:
            self.met(tenant)

    @property
    def pace(self) -> TokenHistograms:
        """Where tokens go; with the first stream begins all that streams have."""
        if self._pace is None:
            for signal in _WITH_STREAMS:
                self._begin(self._series(signal))
            signals = ("ttft", "itl", "itl_normalized")
            self._pace = TokenHistograms(
                *(self._recorder.histogram(self._series(one)) for one in signals)
            )
        return self._pace

    def observe(self, signal: str, seconds: float) -> None:
        """Count an observation, and judge it by its thresholds if that is done at the end."""
        self._observe(self._series(signal), seconds)

    def event(self, signal: str, threshold: float, *, good: bool) -> None:
        """Count a good or bad event of a latency signal."""
        series = self._series(slo_events(signal))
        if series not in self._recorder:
            self._begin(series)
        self._recorder.count(series, _event(threshold, RESULTS[not good]))

    def count(
        self,
        signal: str,
        labels: Mapping[str, str] | None = None,
        amount: float = 1.0,
        *,
        tenant: str = "",
    ) -> None:
        """Count events, also among those of their ``tenant`` if there is one."""
        given = tuple(sorted((labels or {}).items()))
        self._recorder.count(self._series(signal), given, amount)
        if tenant and signal in TENANT_SIGNALS:
            of_tenant = self._series(TENANT_SIGNALS[signal])
            self._recorder.count(of_tenant, _of_tenant(given, tenant), amount)

    def met(self, tenant: str) -> str:
        """Begin the counters of a tenant, at zero, with its first request.

        Return the tenant as a label: ``other`` where the budget has no series left for it.
        """
        if not tenant or tenant in self._tenants:
            return tenant
        begun = [
            (twin, labels)
            for signal, twin in TENANT_SIGNALS.items()
            for labels in self._known_labels(signal)
        ]
        if tenant != OTHER and not self._budget.take(len(begun)):
            return self.met(OTHER)
        self._tenants.add(tenant)
        for twin, labels in begun:
            self._recorder.count(self._series(twin), _of_tenant(labels, tenant), 0.0)
        return tenant

    def used(self, *signals: str) -> None:
        """Stop to serve zero for signals that a request should have shown and did not."""
        self._unused.difference_update(signals)

    def staged(self, stages: Stages | None) -> None:
        """Count the engine's own timing of a request, None if its answer has none."""
        if stages is None:
            for signal in _STAGES:
                if (signal, "", "", self._stages) in self._recorder:
                    self._begin((signal, "", "", SAMPLED))
            self._stages = SAMPLED
            return
        for signal in _STAGES:
            seconds = getattr(stages, signal)
            if seconds is not None:
                self._observe((signal, "", "", self._stages), seconds)

    def judged(self, goal: GoodputObjective, verdict: GoodputVerdict, tenant: str = "") -> None:
        """Count the verdict on a request for an objective."""
        labels = {"objective": goal.name, "result": verdict.result, "clause": verdict.clause}
        self.count("goodput", labels, tenant=tenant)

    @property
    def estimated(self) -> frozenset[str]:
        """The signals that are estimates."""
        return frozenset(self._estimated)

    def not_told(self, *signals: str) -> None:
        """Mark signals as estimates: a request did not say all that they need.

        So they are of the model without a version: the store adds up both.
        """
        if self.unversioned:
            self.unversioned.not_told(*signals)
        for signal in signals:
            for key in (signal, slo_events(signal), TENANT_SIGNALS.get(signal, signal)):
                if key in SIGNALS:
                    before = self._series(key)
                    self.touched |= key not in self._estimated
                    self._estimated.add(key)
                    if before in self._recorder:
                        self._begin(self._series(key))

    def reason(self, word: str) -> str:
        """Return a reason as a label: few values, of few letters."""
        word = word.lower()
        if not word or word in self._known_reasons:
            return word
        if not _REASON.fullmatch(word):
            return OTHER
        reason = self._reasons.admit(word)
        if reason == OTHER or not self._budget.take(len(OUTCOMES)):
            self._budget.limited["reason"] += 1
            return OTHER
        self._known_reasons.add(reason)
        return reason

    def measurements(self) -> Iterator[Measurement]:
        """Yield everything so far."""
        yield self._named(
            Measurement("live_streams", "", "", "wire", {UNLABELLED: float(self.live)})
        )
        shown = set()
        for measurement in self._recorder.measurements():
            if measurement.signal != "itl_normalized" or _observed(measurement):
                shown.add(measurement.signal)
                yield self._named(measurement)
                if measurement.signal in _PER_TOKEN and measurement.signal in self.thresholds:
                    shown.add(slo_events(measurement.signal))
                    yield self._named(self._per_token(measurement))
        for signal in sorted(self._unused - shown):
            samples = self._zero(signal)
            if samples:
                yield self._named(Measurement(signal, "", "", UNUSED, samples))

    def _per_token(self, measurement: Measurement) -> Measurement:
        distribution = measurement.samples[UNLABELLED]
        assert isinstance(distribution, Distribution)  # noqa: S101  (the recorder's histogram)
        samples: dict[Labels, Value] = {}
        for threshold in self.thresholds[measurement.signal]:
            good = distribution.counts[distribution.edges.index(threshold)]
            bad = distribution.count - good
            if measurement.signal == "itl":
                bad += self.late_gaps[threshold]
            for result, count in zip(RESULTS, (good, bad), strict=True):
                samples[_event(threshold, result)] = count
        return replace(measurement, signal=slo_events(measurement.signal), samples=samples)

    def _begin(self, series: Series) -> None:
        """Begin a histogram, or every label set that a counter is known to have, at zero."""
        if SIGNALS[series[0]].kind == "histogram":
            self._recorder.declare(series)
        for labels in self._known_labels(series[0]):
            self._recorder.count(series, labels, 0.0)

    def _zero(self, signal: str) -> dict[Labels, Value]:
        if SIGNALS[signal].kind == "histogram":
            edges = (*bucket_edges(SIGNALS[signal], self.thresholds.get(signal, ())), inf)
            return {UNLABELLED: Distribution(edges, (0.0,) * len(edges), 0.0)}
        return dict.fromkeys(self._known_labels(signal), 0.0)

    def _known_labels(self, signal: str) -> tuple[Labels, ...]:
        if SIGNALS[signal].kind == "histogram":
            return ()
        if signal in _MAIN:
            every = self._known_labels(_MAIN[signal])
            return tuple(_of_tenant(one, tenant) for one in every for tenant in self._tenants)
        latency = SIGNALS[signal].fixed.get("signal", "")
        thresholds = self.thresholds.get(latency, ())
        return known_labels(signal, thresholds=thresholds, goals=self.goals)

    def _observe(self, series: Series, seconds: float) -> None:
        self._recorder.observe(series, seconds)
        signal, model, version, method = series
        if signal not in _JUDGED_APART and signal in self.thresholds:
            events = (slo_events(signal), model, version, method)
            if events not in self._recorder:
                self._begin(events)
            for threshold in self.thresholds[signal]:
                result = RESULTS[seconds > threshold]
                self._recorder.count(events, _event(threshold, result))

    def _named(self, measurement: Measurement) -> Measurement:
        return replace(measurement, model=self.name, version=self.version)

    def _series(self, signal: str) -> Series:
        if signal in self._estimated:
            return signal, "", "", _where_not_all_is_told(signal)
        return signal, "", "", METHODS.get(signal, "wire")


def _of_tenant(labels: Labels, tenant: str) -> Labels:
    return tuple(sorted((*labels, (TENANT, tenant))))


def _event(threshold: float, result: str) -> Labels:
    return ("result", result), ("threshold", threshold_label(threshold))


def _where_not_all_is_told(signal: str) -> str:
    """Return the method of a signal, of its SLO events or of its tenants' counters."""
    signal = SIGNALS[signal].fixed.get("signal", signal)
    return WHERE_NOT_ALL_IS_TOLD[_MAIN.get(signal, signal)]


def _observed(measurement: Measurement) -> bool:
    value = measurement.samples[UNLABELLED]
    return isinstance(value, Distribution) and value.count > 0
