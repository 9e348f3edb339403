"""Indicators: good and bad events of objectives, as two PromQL rates.

An indicator turns an objective into *bad events per second* and *all events per second* over the
base window.  Longer windows are sums of these two, so every ratio is weighted by its events, and an
idle service has no ratio instead of a NaN.

Both rates are zero while a service is idle or has not failed yet, and both are absent while the
objective cannot be measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Vector,
    aggregate,
    call,
    decimal_text,
    equal,
    ignoring,
    number,
    on,
    one_of,
    vector,
)
from slos.durations import format_duration, parse_duration
from slos.events import (
    SLICE,
    Counting,
    Events,
    absent,
    in_slices,
    slices,
)
from slos.generic import boundary_text
from slos.generic_events import generic_events
from slos.model import Objective, Service
from slos.names import (
    TOTAL,
    UNAVAILABLE,
    UNAVAILABLE_CAUSE,
    goodput_objective,
    series_labels,
)
from slos.signals import (
    MODEL_LABELS,
    SIGNALS,
    TENANT,
    TENANT_SIGNALS,
    metric_with,
    slo_events,
    threshold_label,
)

# Cancellations, client disconnects and invalid requests are no failures of the service, so they
# are in neither count.
FAILED = ("error", "rejected", "timeout")


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Values of a counter's ``label`` that are good events and bad ones.

    Other values are in neither count.  ``signal`` is a key of :data:`slos.signals.SIGNALS`, and
    ``among`` restricts it.  ``unknown`` is the value of events without a verdict, empty if there
    are none.
    """

    signal: str
    label: str
    good: tuple[str, ...]
    bad: tuple[str, ...]
    among: tuple[Matcher, ...] = ()
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Indicator:
    """A measurable property of a service.

    ``good`` completes the sentence "an event is good if …" (``{threshold}`` is filled in);
    ``events`` names the counted events; ``signals`` are keys of :data:`slos.signals.SIGNALS`.
    ``verdicts`` belong to indicators that count events by outcome.  ``slice`` is the length in
    seconds of indicators that count time slices.
    """

    key: str
    events: str
    good: str
    signals: tuple[str, ...]
    threshold: Literal["seconds", "ratio"] | None = None
    verdicts: Verdicts | None = None
    slice: Decimal | None = None

    @property
    def in_slices(self) -> bool:
        """Whether events are slices of time."""
        return self.slice is not None

    @property
    def by_tenant(self) -> bool:
        """Whether an objective may be about one tenant."""
        return all(key in TENANT_SIGNALS for key in self.signals)


_SLICES = f"{SLICE} slices"
_SLICE = parse_duration(SLICE)


def _latency(key: str, events: str, good: str, *also: str) -> Indicator:
    return Indicator(key, events, good, (key, *also), "seconds")


def _counted_by(key: str, events: str, good: str, verdicts: Verdicts) -> Indicator:
    return Indicator(key, events, good, (verdicts.signal,), verdicts=verdicts)


def among(label: str, values: Sequence[str]) -> Matcher:
    """Match any of ``values``; a single one needs no regular expression."""
    return Matcher(label, "=", values[0]) if len(values) == 1 else one_of(label, values)


INDICATORS: Mapping[str, Indicator] = {
    indicator.key: indicator
    for indicator in (
        _latency(
            "ttft",
            "requests",
            "its first token comes within {threshold}",
            "requests_without_first_token",
        ),
        _latency("itl", "token gaps", "the next token comes within {threshold}"),
        _latency("tpot", "requests", "its tokens take {threshold} or less on average"),
        _latency("e2e", "requests", "its response is complete within {threshold}"),
        _latency("queue", "requests", "it is scheduled within {threshold}"),
        _latency("max_gap", "streams", "no gap between its tokens is longer than {threshold}"),
        _counted_by(
            "availability",
            "requests",
            "it is neither failed, rejected nor timed out",
            Verdicts("requests", "outcome", ("ok",), FAILED),
        ),
        # Failures before the first token belong to availability.  After a client disconnect, the
        # end of the stream is unknown.
        _counted_by(
            "stream_completion",
            "streams",
            "it runs to its end, once it has begun",
            Verdicts(
                "streams",
                "outcome",
                ("ok",),
                FAILED,
                among=(among("phase", ("mid_stream", "complete")),),
            ),
        ),
        # Requests that the server failed, rejected or timed out are in neither count: an incident
        # would look like patient clients.
        _counted_by(
            "disconnects",
            "streams",
            "its client stays to the end",
            Verdicts("streams", "outcome", ("ok",), ("disconnected",)),
        ),
        _counted_by(
            "goodput",
            "requests",
            "it does not fail and meets every clause",
            Verdicts("goodput", "result", ("good",), ("bad",), unknown="unknown"),
        ),
        Indicator(
            "kv_headroom",
            _SLICES,
            "KV-cache utilization is {threshold} or less",
            ("kv_utilization",),
            "ratio",
            slice=_SLICE,
        ),
        Indicator(
            "sequence_headroom",
            _SLICES,
            "active sequences are {threshold} of the maximum or less",
            ("sequences_active", "sequences_max"),
            "ratio",
            slice=_SLICE,
        ),
    )
}

GENERIC: Mapping[str, Indicator] = {
    kind: Indicator(kind, events, good, (), slice=_SLICE if events == _SLICES else None)
    for kind, events, good in (
        ("bad_events", "events", "the query of bad ones does not count it"),
        ("good_events", "events", "the query of good ones counts it"),
        ("error_ratio", _SLICES, "its error ratio is 0; above, it is bad in that proportion"),
        ("weighted_ratio", "events", "it is not in the error ratio's share of them"),
        ("histogram", "observations", "it is {threshold} or less"),
        ("gauge", _SLICES, "the gauge is not 0"),
    )
}
"""User-defined indicators, by kind."""

CLAUSES = ("ttft", "tpot", "max_gap", "e2e", "queue")
"""Indicators with one value per request, which goodput can have as clauses."""

IN_FLIGHT = ("ttft", "max_gap", "e2e")
"""Indicators whose threshold a request in flight crosses: the sidecar counts it as bad then."""


def indicator_of(objective: Objective) -> Indicator:
    """Return the indicator of an objective; with time slices, the indicator of slices."""
    known = (GENERIC if objective.queries else INDICATORS)[objective.indicator]
    if objective.slices is None:
        return known
    window = objective.slices.window
    return replace(known, events=f"{format_duration(window)} slices", slice=window)


def good_sentence(objective: Objective) -> str:
    """Return the sentence that defines a good event."""
    if slices_ := objective.slices:
        counted = replace(objective, slices=None)
        return (
            f"at least {decimal_text(slices_.target * 100)}% of the {indicator_of(counted).events} "
            f"in it are good (each if {good_sentence(counted)}), or there are none"
        )
    if objective.clauses:
        parts = [
            INDICATORS[clause].good.format(threshold=format_duration(threshold))
            for clause, threshold in objective.clauses.items()
        ]
        return f"{', '.join(('it does not fail', *parts[:-1]))} and {parts[-1]}"
    return indicator_of(objective).good.format(threshold=threshold_text(objective))


def threshold_text(objective: Objective) -> str:
    """Write the threshold as in a file: ``800ms``, ``90%``; empty without one.

    Clauses are written with their names: ``ttft 800ms, tpot 60ms``.
    """
    if objective.threshold is None:
        clauses = objective.clauses.items()
        return ", ".join(f"{name} {format_duration(threshold)}" for name, threshold in clauses)
    if "histogram" in objective.queries:
        return boundary_text(objective)
    if INDICATORS[objective.indicator].threshold == "ratio":
        return f"{decimal_text(objective.threshold * 100)}%"
    return format_duration(objective.threshold)


def events(objective: Objective, service: Service) -> Events:
    """Return the events of an objective per second, on the servers that its selector selects."""
    return _events(objective, service, Counting(by=objective.group_by))


def recorded_events(objective: Objective, service: Service) -> Events:
    """Return the events of the last minute, which the rules record."""
    labels = equal(series_labels(service.service, objective.name))
    return _events(
        objective,
        service,
        Counting(by=objective.group_by, recorded=labels, plain=service.rules == "plain"),
    )


def _events(objective: Objective, service: Service, counting: Counting) -> Events:
    events = _counted(objective, service, counting)
    if objective.queries:
        return events
    exempt = _unavailable(objective, service, counting)
    by_cause = service.alerting.has_cause(UNAVAILABLE_CAUSE)
    return replace(
        events,
        missing=events.missing.unless(exempt, on()),
        uncovered=None if by_cause else aggregate("count", exempt),
    )


def _unavailable(objective: Objective, service: Service, counting: Counting) -> Expr:
    """Return the signals of an objective that the sidecar reports as unavailable.

    What the rules record of the service is read where the objective is about all of its servers.
    """
    signals = among("signal", needed_signals(objective))
    if counting.recorded is not None and not set(objective.selector) - {TENANT}:
        return vector(UNAVAILABLE, (*equal({"service": service.service}), signals))
    return declared_unavailable(service.selects(objective), signals)


def unavailable_signals(service: Service) -> Expr | None:
    """Return the number of servers that lack a signal, by signal; None: the service needs none."""
    if all(objective.queries for objective in service.objectives):
        return None
    return aggregate("count", declared_unavailable(service.selector), ("signal",))


def declared_unavailable(selector: Mapping[str, str], *matchers: Matcher) -> Expr:
    """Return the signals reported as unavailable, of sidecars whose sources are all up.

    A server without a tap, or an engine that has published nothing yet, is no incident; what a
    sidecar cannot report because one of its sources is down may be one.
    """
    chosen = {label: value for label, value in selector.items() if label != TENANT}
    target = {label: value for label, value in chosen.items() if label not in MODEL_LABELS}
    of = (*equal(chosen), *matchers, *equal({"quality": "unavailable"}))
    down = vector("tokenslo_source_up", target).compare("==", number(0))
    return vector("tokenslo_signal_info", of).unless(down, on("instance"))


def needed_signals(objective: Objective) -> tuple[str, ...]:
    """Return the signals that an indicator of tokenslo requires."""
    indicator = INDICATORS[objective.indicator]
    is_latency = indicator.threshold == "seconds"
    return (slo_events(objective.indicator),) if is_latency else indicator.signals


def _counted(objective: Objective, service: Service, counting: Counting) -> Events:
    if objective.slices is None:
        return counted(objective, service, counting)
    if slices_are_judged(objective, service):
        own = {"objective": goodput_objective(service.service, objective.name)}
        of = equal({**service.selects(objective), **own})
        total = vector(SIGNALS["slo_slices"].metric, of)
        bad = vector(total.metric, (*of, *equal({"result": "bad"})))
        return Events(counting.events(bad), counting.events(total), absent(bad))
    one = Counting(format_duration(objective.slices.window), objective.group_by)
    return in_slices(counted(objective, service, one), objective.slices, counting)


def counted(objective: Objective, service: Service, counting: Counting) -> Events:
    """Return the events of an objective over any window, without its time slices."""
    if objective.queries:
        return generic_events(objective, service.service, counting, service.native(objective))
    chosen = equal(service.selects(objective))
    indicator = INDICATORS[objective.indicator]
    if indicator.in_slices:
        return _slice_events(objective, chosen, counting)
    bad, total = counters(objective, service, counting.by)
    # Without series of bad events there is no error ratio; the sidecar serves them from the start.
    return Events(counting.events(bad), counting.events(total), absent(bad))


def counters(
    objective: Objective, service: Service, by: tuple[str, ...] = ()
) -> tuple[Vector, Vector]:
    """Return the counters of bad and of all events of an event-based indicator."""
    chosen = equal(service.selects(objective))
    verdicts = INDICATORS[objective.indicator].verdicts
    if verdicts is None:
        assert objective.threshold is not None  # noqa: S101  (load.py requires it)
        signal = SIGNALS[slo_events(objective.indicator)]
        of = (*chosen, *equal(signal.fixed))
        of += equal({"threshold": threshold_label(objective.threshold)})
        return vector(signal.metric, (*of, *equal({"result": "bad"}))), vector(signal.metric, of)
    signal = SIGNALS[verdicts.signal]
    metric = metric_with(signal.metric, (*(each.label for each in chosen), *by))
    of = (*chosen, *own_matchers(objective, service.service), *verdicts.among)
    bad, every = (
        (among(verdicts.label, values),) for values in (verdicts.bad, verdicts.good + verdicts.bad)
    )
    return vector(metric, (*of, *bad)), vector(metric, (*of, *every))


def own_matchers(objective: Objective, service: str) -> tuple[Matcher, ...]:
    """Match the events of this objective, where a counter has those of several."""
    if objective.indicator != "goodput":
        return ()
    return (Matcher("objective", "=", goodput_objective(service, objective.name)),)


def _slice_events(objective: Objective, chosen: tuple[Matcher, ...], counting: Counting) -> Events:
    assert objective.threshold is not None  # noqa: S101  (load.py requires it)
    usage = usage_ratio(objective.indicator, chosen)
    over = Binary(usage, ">", number(objective.threshold), bool_=True)
    events = slices(usage, over, counting)
    if objective.indicator == "kv_headroom":
        return events
    # An engine before its first request has no maximum, and no active sequences.
    active = SIGNALS["sequences_active"]
    at_rest = vector(active.metric, (*chosen, *equal(active.fixed))).compare("==", number(0))
    if counting.recorded is None:
        return replace(events, missing=absent(usage.or_(at_rest)))
    return replace(events, missing=call("absent", vector(TOTAL, counting.recorded).or_(at_rest)))


def usage_ratio(indicator: str, chosen: tuple[Matcher, ...]) -> Expr:
    """Return the used share, 0 to 1, that a headroom indicator compares with its threshold."""
    if indicator == "kv_headroom":
        return vector(SIGNALS["kv_utilization"].metric, chosen)
    active, most = SIGNALS["sequences_active"], SIGNALS["sequences_max"]
    return Binary(
        vector(active.metric, (*chosen, *equal(active.fixed))),
        "/",
        vector(most.metric, chosen),
        matching=ignoring("state"),
    )


def slices_are_judged(objective: Objective, service: Service) -> bool:
    """Whether the sidecar judges the time slices of an objective.

    Prometheus judges slices of user-defined queries, groups and tenants.
    """
    apart = objective.queries or objective.group_by or TENANT in service.selects(objective)
    return objective.slices is not None and not apart
