"""Record the metrics of one version of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from time import monotonic

from exporter.protocol.events import Stages, Stream
from exporter.recording.goodput import GoodputObjective, GoodputVerdict
from exporter.recording.initial_series import known_labels, with_prompt_class
from exporter.recording.label_limiter import OTHER, LabelLimiter, SeriesBudget
from exporter.recording.metric_recorder import Histogram, MetricRecorder, Series
from exporter.recording.prompt_classifier import PromptLengths
from exporter.recording.token_histograms import TokenHistograms
from exporter.samples import UNLABELLED, Distribution, Labels, Measurement, Value
from slos.outcomes import OUTCOMES
from slos.prompt_classes import NO_CLASSES, PromptClasses
from slos.signals import (
    CLASS_BASES,
    LATENCIES,
    PROMPT_CLASS_SIGNALS,
    RESULTS,
    SIGNALS,
    TENANT,
    TENANT_SIGNALS,
    slo_events,
    threshold_label,
)

MAX_REASONS = 20

WIRE_METHODS: Mapping[str, str] = {
    "disconnect_release": "wire_released",
    "wasted_tokens": "wire_released",
    "tenant_wasted_tokens": "wire_released",
    "kv_token_seconds": "wire_kv_tokens",
    "tenant_kv_token_seconds": "wire_kv_tokens",
    "suspected_retries": "wire_retries",
    "prompt_class": "wire_prompt_tokens",
}
"""Methods by signal; the method of all others is ``wire``."""
FALLBACK_METHODS: Mapping[str, str] = {
    "output_tokens": "wire_chunks",
    "partial_tokens": "wire_chunks",
    "tpot": "wire_chunks",
    "goodput": "wire_chunks",
    "input_tokens": "wire_usage",
    "cached_input_tokens": "wire_usage",
    "kv_token_seconds": "wire_kv_partial",
    "prompt_class": "wire_prompt_bytes",
    "input_length": "wire_prompt_bytes",
    "output_length": "wire_chunks",
}
"""The method of a signal after the first request that does not report what it needs."""
_STAGES = ("queue", "prefill", "decode")
_FROM_THE_START = (
    *("e2e", "requests", "disconnect_release", "suspected_retries", "client_backpressure"),
    *("streams", "disconnects", "disconnect_age", "partial_tokens", "wasted_tokens", "goodput"),
    slo_events("e2e"),
)
_FROM_FIRST_STREAM = (
    *("ttft", "itl", "max_gap", "decode", "requests_without_first_token"),
    *(slo_events("ttft"), slo_events("max_gap"), slo_events("decode")),
)
_TOKENS = ("input_tokens", "cached_input_tokens", "output_tokens")
_ZERO_UNTIL_REPORTED = (
    *_FROM_FIRST_STREAM,
    "tpot",
    slo_events("itl"),
    slo_events("tpot"),
    *_TOKENS,
    "kv_token_seconds",
)
"""Signals that no request has shown yet; they are exposed at zero."""
_COUNTED_DURING_REQUEST = frozenset({"ttft", "itl", "e2e", "max_gap"})
"""Latencies evaluated during the request (:mod:`exporter.recording.slo_evaluation`)."""
_PER_TOKEN = ("itl", "itl_normalized")
"""Latencies whose SLO events come from the histogram: they are too many to count one by one."""
UNUSED = "wire_unused"
_SIGNAL_OF_TENANT_COUNTER: Mapping[str, str] = {
    tenant_signal: signal for signal, tenant_signal in TENANT_SIGNALS.items()
}
"""The signal that a tenant's counter belongs to."""

SAMPLED = "wire_stages_sampled"
_REASON = re.compile(r"[a-z0-9_]{1,40}")


class ModelMetrics:
    """Count the requests for one version of a model.

    * ``confirmed``: a response of the server confirmed that the model exists.
    * ``live``: the number of active requests.
    * ``thresholds``: SLO thresholds in seconds by signal.
    * ``gap_limits``: thresholds of ``max_gap``, those of goodput clauses included.
    * ``late_gaps``: waits for a token that no histogram counts yet, by threshold of ``itl``.
    * ``tenants``: tenants whose counters exist from the start.
    * ``unversioned``: the metrics of requests without a version.
    * ``prompt_classes``: the classes of requests, none by default.
    """

    def __init__(
        self,
        name: str,
        version: str,
        thresholds: Mapping[str, Iterable[float]],
        objectives: Iterable[GoodputObjective],
        budget: SeriesBudget | None = None,
        tenants: Iterable[str] = (),
        prompt_classes: PromptClasses = NO_CLASSES,
    ) -> None:
        self.name = name
        self.version = version
        self.unversioned: ModelMetrics | None = None
        self.confirmed = False
        self.live = 0
        self.changed = True
        self._budget = budget or SeriesBudget()
        self.objectives = tuple(one for one in objectives if one.model in ("", name))
        self.prompt_classes = prompt_classes
        self.prompt_lengths = PromptLengths()
        self._token_histograms: dict[str, TokenHistograms] = {}
        self._stages = "wire_stages"
        self._estimated: set[str] = set()
        self._reasons = LabelLimiter(MAX_REASONS)
        self._known_reasons: set[str] = set()
        self.thresholds = {
            signal: tuple(thresholds[signal]) for signal in LATENCIES if thresholds.get(signal)
        }
        clauses = (objective.clauses.get("max_gap") for objective in self.objectives)
        self.gap_limits = sorted({*self.thresholds.get("max_gap", ()), *filter(None, clauses)})
        self.late_gaps = dict.fromkeys(self.thresholds.get("itl", ()), 0)
        boundaries = {**self.thresholds, "input_length": prompt_classes.bounds}
        self._recorder = MetricRecorder(boundaries, start_time=monotonic())
        self._tenants: set[str] = set()
        self._unused = set(_ZERO_UNTIL_REPORTED)
        with_classes = PROMPT_CLASS_SIGNALS if prompt_classes.labels else ()
        for signal in (*_FROM_THE_START, *with_classes):
            self._begin(self._series(signal))
        for tenant in tenants:
            self.begin_tenant(tenant)

    def token_histograms(self, prompt_class: str = "") -> TokenHistograms:
        """Return the histograms of tokens; the first call creates the series of streams.

        Before the prompt class of a request is known, its histogram of first tokens is not served.
        """
        found = self._token_histograms.get(prompt_class)
        if found is None:
            for signal in _FROM_FIRST_STREAM if not self._token_histograms else ():
                self._begin(self._series(signal))
            itl, normalized = (
                self._recorder.histogram(self._series(one)) for one in ("itl", "itl_normalized")
            )
            if self.prompt_classes.labels and not prompt_class:
                ttft = Histogram(self._recorder.boundaries("ttft"))
            else:
                labels = with_prompt_class(UNLABELLED, prompt_class)
                ttft = self._recorder.histogram(self._series("ttft"), labels)
            found = self._token_histograms[prompt_class] = TokenHistograms(ttft, itl, normalized)
        return found

    def classify(self, stream: Stream) -> str:
        """Return the prompt class of a request, which it counts; empty without classes."""
        if not self.prompt_classes.labels:
            return ""
        tokens, is_count = self.prompt_lengths.tokens(stream)
        prompt_class = self.prompt_classes.label(tokens)
        if not is_count:
            self.mark_estimated("prompt_class")
        basis = {"basis": CLASS_BASES[not is_count]}
        self.count("prompt_class", basis, prompt_class=prompt_class)
        return prompt_class

    def observe(self, signal: str, value: float) -> None:
        """Record an observation, and its SLO events unless they are counted during the request."""
        self._observe(self._series(signal), value)

    def count_slo_event(
        self, signal: str, threshold: float, result: str, prompt_class: str = ""
    ) -> None:
        """Count an event of a latency signal, by its result."""
        series = self._series(slo_events(signal))
        if series not in self._recorder:
            self._begin(series)
        event = _classified(signal, _event(threshold, result), prompt_class)
        self._recorder.count(series, event)

    def count(
        self,
        signal: str,
        labels: Mapping[str, str] | None = None,
        amount: float = 1.0,
        *,
        tenant: str = "",
        prompt_class: str = "",
    ) -> None:
        """Count events, also by ``tenant`` if there is one."""
        label_set = tuple(sorted((labels or {}).items()))
        classified = _classified(signal, label_set, prompt_class)
        self._recorder.count(self._series(signal), classified, amount)
        if tenant and signal in TENANT_SIGNALS:
            of_tenant = self._series(TENANT_SIGNALS[signal])
            self._recorder.count(of_tenant, _of_tenant(label_set, tenant), amount)

    def begin_tenant(self, tenant: str) -> str:
        """Create the counters of a tenant at zero, at its first request.

        Return the tenant as a label: ``other`` if the series budget is exhausted.
        """
        if not tenant or tenant in self._tenants:
            return tenant
        series = [
            (tenant_signal, labels)
            for signal, tenant_signal in TENANT_SIGNALS.items()
            for labels in self._unclassified(signal)
        ]
        if tenant != OTHER and not self._budget.take(len(series)):
            return self.begin_tenant(OTHER)
        self._tenants.add(tenant)
        for tenant_signal, labels in series:
            self._recorder.count(self._series(tenant_signal), _of_tenant(labels, tenant), 0.0)
        return tenant

    def end_zero_series(self, *signals: str) -> None:
        """Stop exposing zero for signals that a request should have reported and did not."""
        self._unused.difference_update(signals)

    def observe_stages(self, stages: Stages | None, prompt_class: str = "") -> None:
        """Record the engine's own timing of a request, None if its response has none."""
        if stages is None:
            for signal in _STAGES:
                self._recorder.change_method((signal, "", "", self._stages), SAMPLED)
            self._stages = SAMPLED
            return
        for signal in _STAGES:
            seconds = getattr(stages, signal)
            if seconds is not None:
                series = signal, "", "", self._stages
                if series not in self._recorder:
                    self._begin(series)
                self._observe(series, seconds, prompt_class)

    def count_verdict(
        self,
        objective: GoodputObjective,
        verdict: GoodputVerdict,
        tenant: str = "",
        prompt_class: str = "",
    ) -> None:
        """Count the verdict on a request for an objective."""
        labels = {"objective": objective.name, "result": verdict.result, "clause": verdict.clause}
        self.count("goodput", labels, tenant=tenant, prompt_class=prompt_class)

    @property
    def estimated(self) -> frozenset[str]:
        """The signals that are estimates."""
        return frozenset(self._estimated)

    def mark_estimated(self, *signals: str) -> None:
        """Mark signals as estimates, because a request did not report all that they need.

        This includes the model without a version, because the store adds up both.
        """
        if self.unversioned:
            self.unversioned.mark_estimated(*signals)
        for signal in signals:
            for key in (signal, slo_events(signal), TENANT_SIGNALS.get(signal, signal)):
                if key in SIGNALS:
                    self.changed |= key not in self._estimated
                    self._recorder.change_method(self._series(key), _fallback_method(key))
                    self._estimated.add(key)

    def reason_label(self, reason_text: str) -> str:
        """Return a reason as a label, with bounded length and cardinality."""
        reason_text = reason_text.lower()
        if not reason_text or reason_text in self._known_reasons:
            return reason_text
        if not _REASON.fullmatch(reason_text):
            return OTHER
        reason = self._reasons.admit(reason_text)
        if reason == OTHER or not self._budget.take(len(OUTCOMES)):
            self._budget.limited["reason"] += 1
            return OTHER
        self._known_reasons.add(reason)
        return reason

    def measurements(self) -> Iterator[Measurement]:
        """Yield all measurements so far."""
        yield self._named(
            Measurement("live_streams", "", "", "wire", {UNLABELLED: float(self.live)})
        )
        shown = set()
        for measurement in self._recorder.measurements():
            if self._is_available(measurement):
                shown.add(measurement.signal)
                yield self._named(measurement)
                if measurement.signal in _PER_TOKEN and measurement.signal in self.thresholds:
                    shown.add(slo_events(measurement.signal))
                    yield self._named(self._per_token(measurement))
        for signal in sorted(self._unused - shown):
            samples = self._zero(signal)
            if samples:
                yield self._named(Measurement(signal, "", "", UNUSED, samples))

    def _is_available(self, measurement: Measurement) -> bool:
        """Return whether a measurement is served; tenants have a signal if their model has it."""
        if measurement.signal == "itl_normalized":
            return _observed(measurement)
        of = _SIGNAL_OF_TENANT_COUNTER.get(measurement.signal, "")
        return not of or of in self._unused or self._series(of) in self._recorder

    def _per_token(self, measurement: Measurement) -> Measurement:
        distribution = measurement.samples[UNLABELLED]
        assert isinstance(distribution, Distribution)  # noqa: S101  (the recorder's histogram)
        samples: dict[Labels, Value] = {}
        for threshold in self.thresholds[measurement.signal]:
            good = distribution.counts[distribution.boundaries.index(threshold)]
            bad = distribution.count - good
            if measurement.signal == "itl":
                bad += self.late_gaps[threshold]
            for result, count in zip(RESULTS, (good, bad), strict=True):
                samples[_event(threshold, result)] = count
        return replace(measurement, signal=slo_events(measurement.signal), samples=samples)

    def _begin(self, series: Series) -> None:
        """Create every known label set of a signal, at zero."""
        self._recorder.declare(series, self._known_labels(series[0]))

    def _zero(self, signal: str) -> dict[Labels, Value]:
        zero: Value = 0.0
        if SIGNALS[signal].kind == "histogram":
            boundaries = self._recorder.boundaries(signal)
            zero = Distribution(boundaries, (0.0,) * len(boundaries), 0.0)
        return dict.fromkeys(self._known_labels(signal), zero)

    def _known_labels(self, signal: str) -> tuple[Labels, ...]:
        if signal in _SIGNAL_OF_TENANT_COUNTER:
            every = self._unclassified(_SIGNAL_OF_TENANT_COUNTER[signal])
            return tuple(_of_tenant(one, tenant) for one in every for tenant in self._tenants)
        return self._unclassified(signal, self.prompt_classes.labels)

    def _unclassified(self, signal: str, prompt_classes: Iterable[str] = ()) -> tuple[Labels, ...]:
        """Return the known label sets of a signal, without prompt classes unless given."""
        latency = SIGNALS[signal].fixed.get("signal", "")
        thresholds = self.thresholds.get(latency, ())
        return known_labels(
            signal,
            thresholds=thresholds,
            objectives=self.objectives,
            prompt_classes=prompt_classes,
        )

    def _observe(self, series: Series, seconds: float, prompt_class: str = "") -> None:
        signal, model, version, method = series
        labels = _classified(signal, UNLABELLED, prompt_class)
        self._recorder.observe(series, seconds, labels=labels)
        if signal not in _COUNTED_DURING_REQUEST and signal in self.thresholds:
            events = (slo_events(signal), model, version, method)
            if events not in self._recorder:
                self._begin(events)
            for threshold in self.thresholds[signal]:
                event = _event(threshold, RESULTS[seconds > threshold])
                self._recorder.count(events, _classified(signal, event, prompt_class))

    def _named(self, measurement: Measurement) -> Measurement:
        return replace(measurement, model=self.name, version=self.version)

    def _series(self, signal: str) -> Series:
        if signal in self._estimated:
            return signal, "", "", _fallback_method(signal)
        return signal, "", "", WIRE_METHODS.get(signal, "wire")


def _classified(signal: str, labels: Labels, prompt_class: str) -> Labels:
    """Return the labels of a signal with the prompt class, if it has that label."""
    if prompt_class and SIGNALS[signal].by_prompt_class:
        return with_prompt_class(labels, prompt_class)
    return labels


def _of_tenant(labels: Labels, tenant: str) -> Labels:
    return tuple(sorted((*labels, (TENANT, tenant))))


def _event(threshold: float, result: str) -> Labels:
    return ("result", result), ("threshold", threshold_label(threshold))


def _fallback_method(signal: str) -> str:
    """Return the fallback method of a signal, of its SLO events or of its tenants' counters."""
    signal = SIGNALS[signal].fixed.get("signal", signal)
    return FALLBACK_METHODS[_SIGNAL_OF_TENANT_COUNTER.get(signal, signal)]


def _observed(measurement: Measurement) -> bool:
    value = measurement.samples[UNLABELLED]
    return isinstance(value, Distribution) and value.count > 0
