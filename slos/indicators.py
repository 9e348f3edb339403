"""What counts as an event and what as a bad one: every indicator as two PromQL rates.

An indicator turns an objective into *bad events per second* and *all events per second* over the
base window.  Longer windows are sums of these two, so every ratio is weighted by what happened in
it, and an idle service has no ratio rather than a NaN.

Both rates are zero while a service is idle or has not failed yet, and both are absent where the
objective cannot be measured: nothing is made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Subquery,
    Vector,
    aggregate,
    call,
    decimal_text,
    equal,
    number,
    one_of,
    vector,
)
from slos.durations import format_duration
from slos.model import Objective
from slos.names import BASE_WINDOW
from slos.signals import SIGNALS

SLICE = "30s"
"""Length of a time slice: headroom objectives ask in each slice whether there was room."""
_BASE_SECONDS = 300

# Who failed whom.  A client that cancels or leaves has not been failed by the service, so it is in
# neither count; streams left halfway are the business of `stream_completion`.
SERVED = ("ok", "error", "rejected", "timeout")
FAILED = ("error", "rejected", "timeout")


@dataclass(frozen=True, slots=True)
class Indicator:
    """What an objective can be about.

    ``good`` completes the sentence "an event is good if …" (``{threshold}`` is filled in);
    ``events`` is what is counted; ``signals`` are keys of :data:`slos.signals.SIGNALS`.
    ``unsupported`` is why this release cannot measure it, empty if it can.
    """

    key: str
    events: str
    good: str
    signals: tuple[str, ...]
    threshold: Literal["seconds", "ratio"] | None = None
    unsupported: str = ""

    @property
    def in_slices(self) -> bool:
        """Whether events are slices of time instead of something that clients cause."""
        return self.threshold == "ratio"


@dataclass(frozen=True, slots=True)
class Events:
    """How an objective is measured; every expression gives one element without labels, or none.

    ``bad`` and ``total`` are events per second over the base window.  ``missing`` has an element
    while the objective cannot be measured at all, ``uncovered`` while some servers report in a way
    that leaves them out of both rates (``None`` where that cannot happen).
    """

    bad: Expr
    total: Expr
    missing: Expr
    uncovered: Expr | None = None


_NEEDS_STREAMS = (
    "it needs every stream to be observed, which this release of tokenslo cannot do yet"
)
_SLICES = f"{SLICE} slices"


def _latency(key: str, events: str, good: str, *also: str) -> Indicator:
    return Indicator(key, events, good, (key, *also), "seconds")


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
        Indicator(
            "availability",
            "requests",
            "it is neither failed, rejected nor timed out",
            ("requests",),
        ),
        Indicator(
            "kv_headroom",
            _SLICES,
            "KV-cache utilization is {threshold} or less",
            ("kv_utilization",),
            "ratio",
        ),
        Indicator(
            "sequence_headroom",
            _SLICES,
            "active sequences are {threshold} of the maximum or less",
            ("sequences_active", "sequences_max"),
            "ratio",
        ),
        Indicator(
            "stream_completion",
            "streams",
            "it runs to its end",
            ("requests", "disconnects"),
            unsupported=_NEEDS_STREAMS,
        ),
        Indicator(
            "goodput",
            "requests",
            "it meets every clause",
            ("goodput",),
            unsupported=_NEEDS_STREAMS,
        ),
        Indicator(
            "disconnects",
            "streams",
            "its client stays",
            ("disconnects",),
            unsupported=_NEEDS_STREAMS,
        ),
    )
}


def good_sentence(objective: Objective) -> str:
    """Say when an event of this objective is good."""
    return INDICATORS[objective.indicator].good.format(threshold=threshold_text(objective))


def threshold_text(objective: Objective) -> str:
    """Write the threshold as people do: ``800ms``, ``90%``; empty if there is none."""
    if objective.threshold is None:
        return ""
    if INDICATORS[objective.indicator].threshold == "ratio":
        return f"{decimal_text(objective.threshold * 100)}%"
    return format_duration(objective.threshold)


def edge_matcher(threshold: Decimal) -> Matcher:
    """Match the bucket whose upper bound is ``threshold`` seconds, however it is spelled.

    Whole numbers are ``le="1"`` from Triton's serializer and ``le="1.0"`` from Python's, and
    Prometheus 3 rewrites the first into the second.  Python writes tiny ones as ``1e-05``.
    """
    text, python = decimal_text(threshold), repr(float(threshold))
    if "." not in text:
        return Matcher("le", "=~", text + r"(\.0)?")
    return Matcher("le", "=", text) if text == python else one_of("le", (text, python))


def events(objective: Objective, selector: Mapping[str, str]) -> Events:
    """Return how an objective is measured on the servers that ``selector`` chooses."""
    chosen = equal(selector)
    indicator = INDICATORS[objective.indicator]
    if indicator.threshold == "seconds":
        return _latency_events(objective, chosen)
    if indicator.in_slices:
        return _slice_events(objective, chosen)
    return _outcome_events(chosen)


def _latency_events(objective: Objective, chosen: tuple[Matcher, ...]) -> Events:
    assert objective.threshold is not None  # noqa: S101  (load.py requires it)
    metric = SIGNALS[objective.indicator].metric
    every = vector(f"{metric}_count", chosen)
    within = vector(f"{metric}_bucket", (*chosen, edge_matcher(objective.threshold)))
    # A server without this edge cannot tell slow from fast: it must not make all of them slow.
    total = aggregate("sum", _rate(every).and_(_rate(within), "ignoring (le)"))
    if objective.indicator == "ttft":
        # The histogram forgets requests that never got a first token; the objective must not.
        died = vector(SIGNALS["requests_without_first_token"].metric, chosen)
        deaths = _counted(died, every, "ignoring (outcome)")
        total += aggregate("sum", deaths.and_(_rate(within), "ignoring (outcome, le)"))
    in_time = aggregate("sum", _rate(within))
    missing = _absent(within)
    return Events(
        # The rates are extrapolated separately, so their difference may be a hair below zero.
        bad=call("clamp_min", total - in_time, number(0)),
        total=total,
        missing=missing,
        uncovered=aggregate("count", every.unless(within, "ignoring (le)"))
        .compare(">", number(0))
        .unless(missing),
    )


def _outcome_events(chosen: tuple[Matcher, ...]) -> Events:
    metric = SIGNALS["requests"].metric
    every = vector(metric, chosen)

    def requests(outcomes: tuple[str, ...]) -> Expr:
        some = vector(metric, (*chosen, one_of("outcome", outcomes)))
        return aggregate("sum", _counted(some, every, "ignoring (outcome, reason)"))

    return Events(requests(FAILED), requests(SERVED), _absent(every))


def _slice_events(objective: Objective, chosen: tuple[Matcher, ...]) -> Events:
    assert objective.threshold is not None  # noqa: S101  (load.py requires it)
    usage = usage_ratio(objective.indicator, chosen)
    over = Binary(usage, ">", number(objective.threshold), bool_=True)

    def per_second(function: str, of: Expr) -> Expr:
        slices = call(function, Subquery(of, BASE_WINDOW, SLICE))
        return aggregate("sum", slices) / number(_BASE_SECONDS)

    return Events(
        per_second("sum_over_time", over),
        per_second("count_over_time", usage),
        _absent(usage),
    )


def _rate(series: Vector) -> Expr:
    return call("rate", replace(series, window=BASE_WINDOW))


def _counted(some: Vector, known: Vector, matching: str) -> Expr:
    """Return the rate, by series, of ``some`` of the events that ``known`` counters tell of.

    A counter that appears with its first failure has nothing to rise from, so ``rate`` never sees
    that failure.  But while it is younger than the window, and the ``known`` counter beside it is
    not, its value *is* what happened in the window.  Before that first failure there is no series
    at all: while ``known`` is there, that means zero.
    """
    newborn = some.unless(replace(some, offset=BASE_WINDOW)).and_(
        replace(known, offset=BASE_WINDOW), matching
    )
    none = _rate(known) * number(0)
    return (newborn / number(_BASE_SECONDS)).or_(_rate(some)).or_(none)


def _absent(expr: Expr) -> Expr:
    """Say that ``expr`` is empty; the sum keeps its matchers from becoming labels."""
    return call("absent", aggregate("sum", expr))


def usage_ratio(indicator: str, chosen: tuple[Matcher, ...]) -> Expr:
    """Return what a headroom indicator compares with its threshold: used share, 0 to 1."""
    if indicator == "kv_headroom":
        return vector(SIGNALS["kv_utilization"].metric, chosen)
    active, most = SIGNALS["sequences_active"], SIGNALS["sequences_max"]
    return Binary(
        vector(active.metric, (*chosen, *equal(active.fixed))),
        "/",
        vector(most.metric, chosen),
        matching="ignoring (state)",
    )
