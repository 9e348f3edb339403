"""PromQL of diagnosis checks, for one objective of a service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property

from promql.expr import Binary, Expr, Matcher, Vector, aggregate, call, equal, number, on
from slos import names
from slos.causes import cause_labels
from slos.generic_events import bad_share
from slos.indicator_events import counters
from slos.indicators import FAILED, among
from slos.plan import Plan, PlannedCause, PlannedObjective
from slos.queries import INSTANCE, Scope, burn_rate, native_signals, recorded
from slos.signals import SIGNALS

BEFORE = "1d"
"""The offset of comparisons: the same time on the day before."""
_STUCK_SECONDS = 30


@dataclass(frozen=True)
class Subject:
    """The objective of a page within its service's plan, and the cause alerts that explain it."""

    plan: Plan
    planned: PlannedObjective
    causes: tuple[PlannedCause, ...] = ()

    @cached_property
    def scope(self) -> Scope:
        """The signals that the objective selects."""
        service, objective = self.plan.service, self.planned.objective
        return Scope(service.selects(objective), native=native_signals(service, objective))

    @property
    def budget(self) -> Decimal:
        """The share of events that may be bad."""
        return 1 - self.planned.objective.target

    def recorded(self, series: str) -> Expr:
        """Select one of the objective's recorded series."""
        return recorded(series, self.plan.service.service, self.planned.objective)

    def burn_rate(self, window: str) -> Expr:
        """Return the objective's burn rate over a window."""
        return burn_rate(window, self.plan.service.service, self.planned.objective)


def firing_causes(subject: Subject) -> Expr:
    """Select the firing cause alerts of the objective's servers."""
    labels = {"alertstate": "firing", **cause_labels(subject.plan.service.selector)}
    return Vector("ALERTS", (*equal(labels), Matcher(names.CAUSE_LABEL, "!=", "")))


def version_excess(subject: Subject) -> Expr:
    """Return each version's bad share less that of all versions."""
    return call("scalar", _good(subject)) - _good(subject, "version")


def _good(subject: Subject, *by: str) -> Expr:
    objective, service = subject.planned.objective, subject.plan.service.service
    return subject.scope.share_good(objective, service, by)


def stuck_engines(subject: Subject) -> Expr:
    """Select engines without a finished iteration for long, whose gauges are withdrawn."""
    identity = ("model", "version", INSTANCE)
    age = subject.scope.series("tokenslo_engine_stats_age_seconds")
    old = aggregate("max", age, identity).compare(">", number(_STUCK_SECONDS))
    # Not the gauge itself: the sidecar withdraws what stands still while sequences are active.
    refused = subject.scope.series(
        "tokenslo_signal_info",
        *equal({"signal": "sequences_active", "quality": "unavailable"}),
    )
    return Binary(old, "and", refused, matching=on(*identity))


def by_instance(signal: str) -> Callable[[Subject], Expr]:
    """Return a gauge of the fullest model of each instance."""
    return lambda s: aggregate("max", s.scope.gauge(signal), (INSTANCE,))


def _tokens_per_request(direction: str, scope: Scope, offset: str | None = None) -> Expr:
    return scope.tokens(direction, offset) / scope.requests("ok", offset=offset)


def length_ratio(direction: str) -> Callable[[Subject], Expr]:
    """Return the mean length of prompts or responses, over that of the day before."""

    def query(subject: Subject) -> Expr:
        now = _tokens_per_request(direction, subject.scope)
        return now / _tokens_per_request(direction, subject.scope, BEFORE)

    return query


def rate_ratio(signal: str) -> Callable[[Subject], Expr]:
    """Return the rate of a counter, over that of the day before."""

    def query(subject: Subject) -> Expr:
        metric = SIGNALS[signal].metric
        return subject.scope.rate(metric) / subject.scope.rate(metric, offset=BEFORE)

    return query


def output_ratio(subject: Subject) -> Expr:
    """Return output tokens per second, over those of the day before."""
    return subject.scope.tokens("output") / subject.scope.tokens("output", BEFORE)


def memory_growth(subject: Subject) -> Expr:
    """Return each instance's memory, over the minimum of the last day."""
    now = subject.scope.gauge("memory_gpu")
    past = Vector(now.metric, now.matchers, BEFORE)
    return aggregate("max", now / call("min_over_time", past), (INSTANCE,))


def failures(*outcomes: str) -> Callable[[Subject], Expr]:
    """Return requests per second with these outcomes, by the server's reason."""
    metric = SIGNALS["request_failures"].metric
    return lambda s: s.scope.rate(metric, among("outcome", outcomes), by=("outcome", "reason"))


def died_before_first_token(subject: Subject) -> Expr:
    """Return requests per second that ended before their first token."""
    metric = SIGNALS["requests_without_first_token"].metric
    return subject.scope.rate(metric, by=("outcome",))


def mid_stream_failures(subject: Subject) -> Expr:
    """Return streams per second that failed mid-stream."""
    cut = (Matcher("phase", "=", "mid_stream"), among("outcome", FAILED))
    return subject.scope.rate(SIGNALS["streams"].metric, *cut, by=("outcome",))


def disconnect_age_ratio(subject: Subject) -> Expr:
    """Return the 90th over the 99th percentile of the age at disconnect; near 1 is a timeout.

    A timeout cuts off the top of the distribution, so the oldest streams have one age.
    """
    young, old = (subject.scope.quantile(Decimal(q), "disconnect_age") for q in ("0.9", "0.99"))
    return young / old


def early_disconnects(subject: Subject) -> Expr:
    """Return the share of disconnects before the first token."""
    metric = SIGNALS["disconnects"].metric
    early = subject.scope.rate(metric, Matcher("phase", "=", "before_first_token"))
    return early / subject.scope.rate(metric)


def retries(subject: Subject) -> Expr:
    """Return the share of requests that are suspected retries."""
    return subject.scope.rate(SIGNALS["suspected_retries"].metric) / subject.scope.requests()


def backpressure(subject: Subject) -> Expr:
    """Return the share of live streams whose clients do not read."""
    waiting = subject.scope.rate(SIGNALS["client_backpressure"].metric)
    return waiting / aggregate("sum", subject.scope.gauge("live_streams")).compare(">", number(0))


def wasted_tokens(subject: Subject) -> Expr:
    """Return the share of tokens sent after a client disconnect."""
    wasted = subject.scope.rate(SIGNALS["wasted_tokens"].metric)
    return wasted / (wasted + subject.scope.tokens("output"))


def failing_clause(subject: Subject) -> Expr:
    """Return the share of requests that failed each clause first."""
    of = (subject.planned.objective, subject.plan.service.service)
    judged = subject.scope.goodput(*of, "good", "bad")
    return subject.scope.goodput(*of, "bad", by=("clause",)) / call("scalar", judged)


def estimated_signals(subject: Subject) -> Expr:
    """Select signals of the objective that are estimates."""
    return _signal_info(subject, subject.planned.indicator.signals, "estimate")


def unavailable_signals(subject: Subject) -> Expr:
    """Select needed signals that are unavailable; a latency needs its own histogram only."""
    signals = subject.planned.indicator.signals
    needed = signals[:1] if subject.planned.indicator.threshold == "seconds" else signals
    return _signal_info(subject, needed, "unavailable")


def _signal_info(subject: Subject, signals: tuple[str, ...], quality: str) -> Expr:
    of = (among("signal", signals), Matcher("quality", "=", quality))
    return subject.scope.series("tokenslo_signal_info", *of)


def _event_series(subject: Subject) -> str:
    """Return the series that count the objective's events."""
    key = subject.planned.indicator.signals[0]
    signal = SIGNALS[key]
    return subject.scope.observed(key) if signal.kind == "histogram" else signal.metric


def models_with_signal(subject: Subject) -> Expr:
    """Return all models with the objective's signal, without the SLO file's selector."""
    anything = Scope({}).series(_event_series(subject))
    return aggregate("count", anything, ("model", "version"))


def traffic_ratio(subject: Subject) -> Expr:
    """Return all events per second, over those of the day before."""
    now = recorded(names.TOTAL, subject.plan.service.service, subject.planned.objective)
    return now / replace(now, offset=BEFORE)


def bad_share_by_instance(subject: Subject) -> Expr:
    """Return the share of bad events by instance."""
    objective = subject.planned.objective
    is_native = subject.plan.service.native(objective)
    share = bad_share(objective, (INSTANCE,), is_native=is_native)
    assert share is not None  # noqa: S101  (only used where there is one)
    return share


def inconsistency(subject: Subject) -> Expr:
    """Return where the SLI is inconsistent."""
    inconsistent = subject.planned.events.inconsistent
    assert inconsistent is not None  # noqa: S101  (only used where there can be any)
    return inconsistent


def instances_without_threshold(subject: Subject) -> Expr:
    """Return instances that count requests but not against the threshold."""
    _, judged = counters(subject.planned.objective, subject.plan.service)
    every = subject.scope.series(SIGNALS["requests"].metric, *equal({"outcome": "ok"}))
    return aggregate("count", every.unless(judged, on(INSTANCE)), (INSTANCE,))


def error_ratio(subject: Subject) -> Expr:
    """Return the objective's error ratio over its shortest window."""
    return subject.recorded(names.error_ratio(subject.planned.windows[0]))
