"""PromQL of diagnosis checks of one objective of a service."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property

from promql.expr import Expr, Matcher, Vector, aggregate, call, equal, number, on
from runbooks.service_queries import BEFORE
from slos import names
from slos.causes import cause_labels
from slos.generic_events import bad_share
from slos.indicator_events import counters
from slos.indicators import among, bad_results
from slos.plan import Plan, PlannedCause, PlannedObjective
from slos.queries import INSTANCE, Scope, burn_rate, native_signals, recorded
from slos.signals import SIGNALS


@dataclass(frozen=True)
class Subject:
    """The objective of a page within its service's plan, and the cause alerts that explain it.

    With ``whole_service``, queries are about all servers and signals of the service, as far as they
    are not about the objective itself.
    """

    plan: Plan
    planned: PlannedObjective
    causes: tuple[PlannedCause, ...] = ()
    whole_service: bool = False

    @cached_property
    def scope(self) -> Scope:
        """The servers that the objective selects, or those of the service."""
        service, objective = self.plan.service, self.planned.objective
        selector = (
            cause_labels(service.selector) if self.whole_service else service.selects(objective)
        )
        return Scope(selector, native=native_signals(service, objective))

    @property
    def budget(self) -> Decimal:
        """The share of events that may be bad."""
        return 1 - self.planned.objective.target

    def recorded(self, series: str) -> Vector:
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
    return subject.scope.share_good(subject.planned.objective, subject.plan.service, by)


def failing_clause(subject: Subject) -> Expr:
    """Return the share of requests that failed each clause first."""
    service, objective = subject.plan.service, subject.planned.objective
    bad = bad_results(objective, service)
    judged = subject.scope.goodput(objective, service.service, "good", *bad)
    failed = subject.scope.goodput(objective, service.service, *bad, by=("clause",))
    return failed / call("scalar", judged)


def estimated_signals(subject: Subject) -> Expr:
    """Select signals of the objective that are estimates."""
    return _signal_info(subject, subject.planned.indicator.signals, "estimate")


def unavailable_signals(subject: Subject) -> Expr:
    """Select needed signals that are unavailable; a latency needs its own histogram only."""
    signals = subject.planned.indicator.signals
    needed = signals[:1] if subject.planned.indicator.threshold == "seconds" else signals
    return _signal_info(subject, needed, "unavailable")


def _signal_info(subject: Subject, signals: tuple[str, ...], quality: str) -> Expr:
    if subject.whole_service:
        signals = subject.plan.needed
    of = (among("signal", signals), Matcher("quality", "=", quality))
    return subject.scope.series("tokenslo_signal_info", *of)


def _event_series(subject: Subject) -> str:
    """Return the series that count the objective's events."""
    key = subject.planned.indicator.signals[0]
    signal = SIGNALS[key]
    return subject.scope.observed(key) if signal.kind == "histogram" else signal.metric


def event_series(subject: Subject) -> Expr:
    """Return the number of elements of the query of all events, 0 without any."""
    events = aggregate("count", subject.planned.events.total)
    return events.or_(call("vector", number(0)))


def other_models(subject: Subject) -> Expr:
    """Return the models with the objective's signal, if those that the SLO file selects lack it."""
    metric = _event_series(subject)
    anything = aggregate("count", Scope({}).series(metric), ("model", "version"))
    return anything.unless(aggregate("count", subject.scope.series(metric)), on())


def traffic_ratio(subject: Subject) -> Expr:
    """Return all events per second, over those of the day before."""
    now = replace(subject.recorded(names.TOTAL), window=names.BASE_WINDOW)
    before = call("avg_over_time", replace(now, offset=BEFORE))
    return call("avg_over_time", now) / before.compare(">", number(0))


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
