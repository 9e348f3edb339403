"""PromQL queries of signals for dashboards and runbooks.

They read counters through rates and gauges directly, take quantiles from summed buckets and ratios
from sums, and never sum or average a utilization over servers, because one full server hurts while
its neighbours idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Vector,
    aggregate,
    call,
    equal,
    number,
    on,
    vector,
)
from slos import names
from slos.events import boundary_matcher, share_within
from slos.indicator_events import own_matchers, usage_ratio
from slos.indicators import among, verdicts_of
from slos.model import Objective, Service
from slos.own_metrics import OWN_METRICS
from slos.signals import LORA_LABELS, MODEL_LABELS, SIGNALS, metric_with

INSTANCE = "instance"
"""The label of a server, which Prometheus adds to every scraped series."""

OWN_SERIES = {
    f"{name}_total" if kind == "counter" else name: labels
    for name, (kind, _, labels) in OWN_METRICS.items()
}
"""The exporter's own metrics as Prometheus stores them, with their labels."""

_SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
_BOUNDARY = {"_bucket": ("le",)}
SERIES: Mapping[str, frozenset[str]] = {
    **{
        signal.metric + suffix: frozenset(
            {*MODEL_LABELS, *signal.possible_labels, *signal.fixed, *_BOUNDARY.get(suffix, ())}
        )
        for signal in SIGNALS.values()
        for suffix in _SUFFIXES[signal.kind]
    },
    **{name: frozenset(labels) for name, labels in OWN_SERIES.items()},
}
"""Every series the sidecar serves, with the labels it may carry."""

NATIVE_SERIES: Mapping[str, frozenset[str]] = {
    signal.metric: frozenset({*MODEL_LABELS, *signal.possible_labels})
    for signal in SIGNALS.values()
    if signal.kind == "histogram"
}
"""Series of native histograms, which Prometheus may make of classic ones."""

_OUR_LABELS = frozenset().union(*SERIES.values()).difference(LORA_LABELS)


@dataclass(frozen=True, slots=True)
class Scope:
    """The servers and models of a query, and the window of its rates.

    ``selector`` is the SLO file's; ``also`` restricts it; ``native`` are the signals that
    Prometheus stores as native histograms (:func:`native_signals`), and ``needed`` those that
    objectives of ``service`` require.  Matchers for labels that a metric of the catalogue lacks are
    left out: the exporter's own metrics have no ``model``, but have a ``namespace`` that Prometheus
    adds.  ``offset`` moves every selection into the past.
    """

    selector: Mapping[str, str]
    window: str = names.BASE_WINDOW
    also: tuple[Matcher, ...] = ()
    native: frozenset[str] = frozenset()
    service: str = ""
    needed: tuple[str, ...] = ()
    offset: str | None = None

    def series(
        self, metric: str, *matchers: Matcher, window: str | None = None, offset: str | None = None
    ) -> Vector:
        """Select a series of :data:`SERIES`, or of :data:`NATIVE_SERIES`."""
        metric = metric_with(metric, self._labels(matchers))
        carried = SERIES[metric] if metric in SERIES else NATIVE_SERIES[metric]
        scope = (
            matcher
            for matcher in (*equal(self.selector), *self.also)
            if matcher.label in carried or matcher.label not in _OUR_LABELS
        )
        return vector(metric, (*scope, *matchers), window, offset or self.offset)

    def _labels(self, more: Iterable[Matcher]) -> frozenset[str]:
        return frozenset((*self.selector, *(each.label for each in (*self.also, *more))))

    def foreign(self) -> tuple[Matcher, ...]:
        """Return the matchers of labels that Prometheus adds, for metrics of other exporters."""
        every = (*equal(self.selector), *self.also)
        return tuple(matcher for matcher in every if matcher.label not in _OUR_LABELS)

    def gauge(self, key: str, *matchers: Matcher) -> Vector:
        """Select a gauge signal."""
        signal = SIGNALS[key]
        return self.series(signal.metric, *equal(signal.fixed), *matchers)

    def family(self, key: str) -> Vector:
        """Select every state or kind of the gauge that the signal belongs to."""
        return self.series(SIGNALS[key].metric)

    def rate(self, metric: str, *matchers: Matcher, by: Iterable[str] = ()) -> Expr:
        """Return events per second."""
        labels = tuple(by)
        own = metric_with(metric, labels)
        ranged = self.series(own, *matchers, window=self.window)
        return aggregate("sum", call("rate", ranged), labels)

    def tokens(self, direction: str, by: Iterable[str] = ()) -> Expr:
        """Return tokens per second."""
        signal = SIGNALS[f"{direction}_tokens"]
        return self.rate(signal.metric, *equal(signal.fixed), by=by)

    def observed(self, key: str) -> str:
        """Return the series that exists for each server with a histogram signal."""
        metric = SIGNALS[key].metric
        return metric if key in self.native else f"{metric}_count"

    def histogram(self, key: str) -> Expr:
        """Return observations per second of a histogram signal: by bucket, or in native form."""
        metric = SIGNALS[key].metric
        return (
            self.rate(metric) if key in self.native else self.rate(f"{metric}_bucket", by=("le",))
        )

    def quantile(self, q: Decimal, key: str) -> Expr:
        """Estimate a quantile of a histogram signal, in seconds."""
        return call("histogram_quantile", number(q), self.histogram(key))

    def mean(self, key: str, by: Iterable[str] = ()) -> Expr:
        """Return the mean of a histogram signal, in seconds."""
        metric = SIGNALS[key].metric
        if key in self.native:
            histogram = self.rate(metric, by=by)
            return call("histogram_sum", histogram) / call("histogram_count", histogram)
        return self.rate(f"{metric}_sum", by=by) / self.rate(f"{metric}_count", by=by)

    def share_within(self, key: str, threshold: Decimal, by: Iterable[str] = ()) -> Expr:
        """Return the share of observations that are at most ``threshold`` seconds."""
        metric = SIGNALS[key].metric
        if key in self.native:
            return share_within(self.rate(metric, by=by), threshold)
        within = self.rate(f"{metric}_bucket", boundary_matcher(threshold), by=by)
        return within / self.rate(f"{metric}_count", by=by)

    def requests(self, *outcomes: str, by: Iterable[str] = ()) -> Expr:
        """Return requests per second by ``outcomes``, all by default."""
        matchers = (among("outcome", outcomes),) if outcomes else ()
        return self.rate(SIGNALS["requests"].metric, *matchers, by=by)

    def share_good(self, objective: Objective, service: Service, by: Iterable[str] = ()) -> Expr:
        """Return the share of good events of an objective that does not count time slices."""
        if (verdicts := verdicts_of(objective, service)) is None:
            assert objective.threshold is not None  # noqa: S101  (load.py requires it)
            return self.share_within(objective.indicator, objective.threshold, by)
        metric = SIGNALS[verdicts.signal].metric
        of = (*own_matchers(objective, service.service), *verdicts.among)

        def rate(*values: str) -> Expr:
            return self.rate(metric, *of, among(verdicts.label, values), by=by)

        return rate(*verdicts.good) / rate(*verdicts.good, *verdicts.bad)

    def goodput(
        self, objective: Objective, service: str, *results: str, by: Iterable[str] = ()
    ) -> Expr:
        """Return requests per second of a goodput objective by result."""
        of = (*own_matchers(objective, service), among("result", results))
        return self.rate(SIGNALS["goodput"].metric, *of, by=by)

    def fullest(self, indicator: str) -> Expr:
        """Return the used share of a headroom indicator on each server's fullest model."""
        chosen = (*equal(self.selector), *self.also)
        return aggregate("max", usage_ratio(indicator, chosen), (INSTANCE,))


def native_signals(service: Service, objective: Objective | None = None) -> frozenset[str]:
    """Return the signals that Prometheus stores as native histograms, by the SLO file.

    The setting of ``objective`` precedes those of others.
    """
    native = {
        key
        for key, signal in SIGNALS.items()
        if signal.kind == "histogram" and service.histograms == "native"
    }
    said = [each for each in service.objectives if each.histograms]
    for each in (*said, *((objective,) if objective and objective.histograms else ())):
        (native.add if service.native(each) else native.discard)(each.indicator)
    return frozenset(native)


def recorded(series: str, service: str, objective: Objective | None = None) -> Vector:
    """Select a recorded series of one objective, or of all objectives of a service."""
    if objective is None:
        return vector(series, {"service": service})
    return vector(series, names.series_labels(service, objective.name))


def burn_rate(window: str, service: str, objective: Objective | None = None) -> Expr:
    """Return the burn rate; 1 spends the budget exactly."""
    budget = number(1) - recorded(names.TARGET, service, objective)
    ratio = recorded(names.error_ratio(window), service, objective)
    return Binary(ratio, "/", budget, matching=on("service", "slo", group_left=()))
