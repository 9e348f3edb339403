"""Events of objectives as PromQL: bad ones and all, per second or in the last minute.

Both rates are zero while a service is idle or has not failed yet, and both are absent while the
objective cannot be measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Vector,
    aggregate,
    call,
    equal,
    ignoring,
    number,
    on,
    vector,
)
from slos.durations import format_duration
from slos.events import Counting, Events, absent, in_slices, slices
from slos.generic_events import generic_events
from slos.indicators import (
    INDICATORS,
    among,
    bad_results,
    by_prompt_class,
    has_refusals,
    sidecar_evaluates_slices,
    verdicts_of,
)
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
    REQUEST_LABELS,
    SIGNALS,
    metric_with,
    slo_events,
    threshold_label,
)


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

    An objective on all servers of the service reads the service's recorded series instead.
    """
    signals = among("signal", needed_signals(objective, service))
    if counting.recorded is not None and not objective.selector.keys() - REQUEST_LABELS:
        return vector(UNAVAILABLE, (*equal({"service": service.service}), signals))
    return declared_unavailable(service.selects(objective), signals)


def unavailable_signals(service: Service) -> Expr | None:
    """Return the number of servers that lack a signal, by signal; None if it needs none."""
    if all(objective.queries for objective in service.objectives):
        return None
    return aggregate("count", declared_unavailable(service.selector), ("signal",))


def declared_unavailable(selector: Mapping[str, str], *matchers: Matcher) -> Expr:
    """Return the signals reported as unavailable, of sidecars whose sources are all up.

    A server without a tap, or an engine that has published nothing yet, is no incident.  A signal
    that is unavailable because a source is down may be one.
    """
    chosen = {label: value for label, value in selector.items() if label not in REQUEST_LABELS}
    target = {label: value for label, value in chosen.items() if label not in MODEL_LABELS}
    of = (*equal(chosen), *matchers, *equal({"quality": "unavailable"}))
    down = vector("tokenslo_source_up", target).compare("==", number(0))
    return vector("tokenslo_signal_info", of).unless(down, on("instance"))


def needed_signals(objective: Objective, service: Service) -> tuple[str, ...]:
    """Return the signals that a built-in indicator requires."""
    indicator = INDICATORS[objective.indicator]
    is_latency = indicator.threshold == "seconds"
    signals = (slo_events(objective.indicator),) if is_latency else indicator.signals
    return (*signals, "prompt_class") if by_prompt_class(objective, service) else signals


def _counted(objective: Objective, service: Service, counting: Counting) -> Events:
    if objective.slices is None:
        return counted(objective, service, counting)
    if sidecar_evaluates_slices(objective, service):
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
    of_bad, of_all = (counting.events(each, _of_any_verdict(each)) for each in (bad, total))
    return Events(of_bad, of_all, absent(bad))


def _of_any_verdict(counter: Vector) -> Vector:
    """Select the counter without its matcher of several verdicts, which is the last one.

    A list of outcomes is long, and an increase needs it only once.
    """
    *others, verdict = counter.matchers
    return replace(counter, matchers=tuple(others)) if verdict.op == "=~" else counter


def counters(
    objective: Objective, service: Service, by: tuple[str, ...] = ()
) -> tuple[Vector, Vector]:
    """Return the counters of bad and of all events of an event-based indicator."""
    chosen = equal(service.selects(objective))
    verdicts = verdicts_of(objective, service)
    if verdicts is None:
        assert objective.threshold is not None  # noqa: S101  (load.py requires it)
        signal = SIGNALS[slo_events(objective.indicator)]
        of = (*chosen, *equal(signal.fixed))
        of += equal({"threshold": threshold_label(objective.threshold)})
        results = bad_results(objective, service)
        counts_some = has_refusals(objective.indicator)
        every = (among("result", ("good", *results)),) if counts_some else ()
        return (
            vector(signal.metric, (*of, among("result", results))),
            vector(signal.metric, (*of, *every)),
        )
    signal = SIGNALS[verdicts.signal]
    metric = metric_with(signal.metric, (*(each.label for each in chosen), *by))
    of = (*chosen, *own_matchers(objective, service.service), *verdicts.among)
    bad, every = (
        (among(verdicts.label, values),) for values in (verdicts.bad, verdicts.good + verdicts.bad)
    )
    return vector(metric, (*of, *bad)), vector(metric, (*of, *every))


def own_matchers(objective: Objective, service: str) -> tuple[Matcher, ...]:
    """Match the events of this objective in a counter that several objectives share."""
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
