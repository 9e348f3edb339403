"""Indicators: which events an objective counts, and which of them are good.

An indicator turns an objective into *bad events per second* and *all events per second* over the
base window (:mod:`slos.indicator_events`).  Longer windows are sums of these two, so every ratio is
weighted by its events, and an idle service has no ratio instead of a NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from promql.literals import decimal_text
from promql.matchers import Matcher, one_of
from slos.durations import format_duration, parse_duration
from slos.histogram_units import boundary_text
from slos.model import Objective, Service
from slos.names import SLICE
from slos.outcomes import failures
from slos.signals import PROMPT_CLASS, REQUEST_LABELS, SIGNALS, TENANT_SIGNALS

# Cancellations, client disconnects and invalid requests are no failures of the service, so they
# are in neither count.
_FAILED = failures(())


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Values of a counter's ``label`` that are good events and bad ones.

    Other values are in neither count.  ``signal`` is a key of :data:`slos.signals.SIGNALS`, and
    ``among`` restricts it.  ``unknown`` is the value of events without a verdict, empty if there
    are none.  ``refusals``: refusals that spend the error budget are bad too
    (:func:`verdicts_of`).
    """

    signal: str
    label: str
    good: tuple[str, ...]
    bad: tuple[str, ...]
    among: tuple[Matcher, ...] = ()
    unknown: str = ""
    refusals: bool = False


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

    @property
    def by_prompt_class(self) -> bool:
        """Whether an objective may be about one prompt class."""
        return bool(self.signals) and SIGNALS[self.signals[0]].by_prompt_class


_SLICES = f"{SLICE} slices"
_SLICE = parse_duration(SLICE)


def _latency(key: str, events: str, good: str, *also: str) -> Indicator:
    return Indicator(key, events, good, (key, *also), "seconds")


def _counted_by(key: str, events: str, good: str, verdicts: Verdicts) -> Indicator:
    return Indicator(key, events, good, (verdicts.signal,), verdicts=verdicts)


def among(label: str, values: Sequence[str]) -> Matcher:
    """Match a label with any of ``values``."""
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
            "the server completes its response",
            Verdicts("requests", "outcome", ("ok",), _FAILED, refusals=True),
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
                _FAILED,
                among=(among("phase", ("mid_stream", "complete")),),
                refusals=True,
            ),
        ),
        # Requests that the server failed or refused are in neither count: an incident would look
        # like patient clients.
        _counted_by(
            "disconnects",
            "streams",
            "its client stays to the end",
            Verdicts("streams", "outcome", ("ok",), ("client_disconnected",)),
        ),
        _counted_by(
            "goodput",
            "requests",
            "it does not fail and meets every clause",
            Verdicts("goodput", "result", ("good",), ("bad",), unknown="unknown", refusals=True),
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


def counts_events_by_arm(objective: Objective) -> bool:
    """Whether the events of an objective have the labels of a rollout's arms."""
    return not objective.queries and INDICATORS[objective.indicator].slice is None


def has_refusals(indicator: str) -> bool:
    """Whether an SLO file decides which refusals are bad events of an indicator."""
    verdicts = INDICATORS[indicator].verdicts if indicator in INDICATORS else None
    return indicator == "ttft" or (verdicts is not None and verdicts.refusals)


def verdicts_of(objective: Objective, service: Service) -> Verdicts | None:
    """Return the verdicts of an objective, with the refusals that spend its error budget."""
    verdicts = INDICATORS[objective.indicator].verdicts
    if verdicts is None or not verdicts.refusals:
        return verdicts
    return replace(verdicts, bad=(*verdicts.bad, *service.spending(objective)))


def bad_results(objective: Objective, service: Service) -> tuple[str, ...]:
    """Return the results of bad SLO events of a latency objective."""
    refused = service.spending(objective) if has_refusals(objective.indicator) else ()
    return ("bad", *refused)


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


def by_prompt_class(objective: Objective, service: Service) -> bool:
    """Whether an objective selects a prompt class or is grouped by it."""
    return PROMPT_CLASS in (*service.selects(objective), *objective.group_by)


def sidecar_evaluates_slices(objective: Objective, service: Service) -> bool:
    """Whether the sidecar evaluates the time slices of an objective.

    Prometheus evaluates slices of user-defined queries, groups, tenants and prompt classes.
    """
    of_requests = not REQUEST_LABELS.isdisjoint(service.selects(objective))
    apart = objective.queries or objective.group_by or of_requests
    return objective.slices is not None and not apart
