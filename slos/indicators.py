"""What counts as an event and what as a bad one: every indicator as two PromQL rates.

An indicator turns an objective into *bad events per second* and *all events per second* over the
base window.  Longer windows are sums of these two, so every ratio is weighted by what happened in
it, and an idle service has no ratio rather than a NaN.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Subquery,
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


@dataclass(frozen=True, slots=True)
class Events:
    """Events per second over the base window, each a single element without labels."""

    bad: Expr
    total: Expr


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
            "max_gap",
            "streams",
            "no gap between tokens is longer than {threshold}",
            ("max_gap",),
            "seconds",
            _NEEDS_STREAMS,
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
    Prometheus 3 rewrites the first into the second.
    """
    text = decimal_text(threshold)
    if "." in text:
        return Matcher("le", "=", text)
    return Matcher("le", "=~", re.escape(text) + r"(\.0)?")


def events(objective: Objective, selector: Mapping[str, str]) -> Events:
    """Return an objective's bad and total events per second, restricted to ``selector``."""
    chosen = equal(selector)
    indicator = INDICATORS[objective.indicator]
    if indicator.threshold == "seconds":
        return _latency_events(objective, chosen)
    if indicator.threshold == "ratio":
        return _slice_events(objective, chosen)
    return _outcome_events(chosen)


def _rate(metric: str, *matchers: Matcher) -> Expr:
    return aggregate("sum", call("rate", vector(metric, matchers, BASE_WINDOW)))


def _or_zero(expr: Expr) -> Expr:
    """Count a series that does not exist yet, as before a first failure, as zero."""
    return expr.or_(call("vector", number(0)))


def _latency_events(objective: Objective, chosen: tuple[Matcher, ...]) -> Events:
    assert objective.threshold is not None  # noqa: S101  (load.py requires it)
    metric = SIGNALS[objective.indicator].metric
    answered = _rate(f"{metric}_count", *chosen)
    in_time = _rate(f"{metric}_bucket", *chosen, edge_matcher(objective.threshold))
    # The two rates are extrapolated separately, so their difference may be a hair below zero.
    slow = call("clamp_min", answered - in_time, number(0))
    if objective.indicator != "ttft":
        return Events(slow, answered)
    # A latency histogram forgets requests that never got a first token; the objective must not.
    died = _or_zero(_rate(SIGNALS["requests_without_first_token"].metric, *chosen))
    return Events(slow + died, answered + died)


def _outcome_events(chosen: tuple[Matcher, ...]) -> Events:
    metric = SIGNALS["requests"].metric
    return Events(
        _or_zero(_rate(metric, *chosen, one_of("outcome", FAILED))),
        _rate(metric, *chosen, one_of("outcome", SERVED)),
    )


def _slice_events(objective: Objective, chosen: tuple[Matcher, ...]) -> Events:
    assert objective.threshold is not None  # noqa: S101  (load.py requires it)
    usage = usage_ratio(objective.indicator, chosen)
    over = Binary(usage, ">", number(objective.threshold), bool_=True)
    seconds = number(_BASE_SECONDS)
    return Events(
        aggregate("sum", call("sum_over_time", Subquery(over, BASE_WINDOW, SLICE))) / seconds,
        aggregate("sum", call("count_over_time", Subquery(usage, BASE_WINDOW, SLICE))) / seconds,
    )


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
