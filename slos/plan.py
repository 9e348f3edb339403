"""Plans: the recordings and alerts that follow from an SLO file.

Rules, dashboards and runbooks render a plan, and therefore agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain
from typing import Literal

from promql.expr import decimal_text, equal, selector_text
from slos import names
from slos.burn import LowTrafficCondition, Pair, absent_seconds, low_traffic_condition, pairs
from slos.causes import CAUSE_ALERTS, CauseAlert, cause_labels, conditions, scope_of
from slos.durations import format_duration, parse_duration
from slos.events import Events
from slos.indicator_events import events, needed_signals, recorded_events
from slos.indicators import IN_FLIGHT, Indicator, good_sentence, indicator_of
from slos.model import Alerting, Objective, PolicyStep, Service, TierName
from slos.queries import Scope

Compat = Literal["sloth"]
COMPATS: tuple[Compat, ...] = ("sloth",)


@dataclass(frozen=True, slots=True)
class PlannedAlert:
    """One alert name, which has one runbook page; ``kind`` is its kind."""

    name: str
    kind: str
    runbook_url: str


@dataclass(frozen=True, slots=True)
class PlannedObjective:
    """One objective with its events, windows and alerts.

    ``recorded`` are the events of one minute, as the rules record them; ``matchers`` select its
    recorded series, and ``sentence`` states the objective.

    No budget alert fires for fewer than ``min_bad_events`` in its window; ``low_traffic`` detects
    errors below that.  ``alerting`` and ``labels`` are the service's with those of the objective.
    """

    objective: Objective
    indicator: Indicator
    events: Events
    recorded: Events
    matchers: str
    sentence: str
    pairs: tuple[Pair, ...]
    absent_seconds: Decimal
    min_bad_events: int
    burn: PlannedAlert
    exhausted: PlannedAlert
    absent: PlannedAlert
    inconsistent: PlannedAlert
    low_traffic_errors: PlannedAlert
    policy: PlannedAlert
    low_traffic: LowTrafficCondition | None
    policy_steps: tuple[PolicyStep, ...]
    alerting: Alerting = field(hash=False)
    labels: Mapping[str, str] = field(hash=False)

    @property
    def measures_latency(self) -> bool:
        """Whether the objective has a latency histogram."""
        return self.indicator.threshold == "seconds" or "histogram" in self.objective.queries

    @property
    def alerting_pairs(self) -> tuple[Pair, ...]:
        """The pairs whose tier is not disabled."""
        return tuple(pair for pair in self.pairs if pair.tier not in self.alerting.disable)

    @property
    def absent_tier(self) -> TierName:
        """The tier of the alert on missing metrics: page, or ticket if pages are disabled."""
        return "ticket" if "page" in self.alerting.disable else "page"

    @property
    def windows(self) -> tuple[str, ...]:
        """The error-ratio windows in use, shortest first."""
        used = {window for pair in self.pairs for window in (pair.short, pair.long)}
        return tuple(sorted(used, key=parse_duration))

    @property
    def alerts(self) -> tuple[PlannedAlert, ...]:
        """All alerts of this objective, the most urgent first."""
        disabled = self.alerting.disable
        has = {
            self.burn: bool(self.alerting_pairs),
            self.low_traffic_errors: self.low_traffic is not None and "ticket" not in disabled,
            self.exhausted: "exhausted" not in disabled,
            self.policy: bool(self.policy_steps) and "policy" not in disabled,
            self.absent: "absent" not in disabled,
            self.inconsistent: self.events.inconsistent is not None and "absent" not in disabled,
        }
        return tuple(alert for alert, wanted in has.items() if wanted)

    def seconds_to_fire(
        self, pair: Pair, error_ratio: Decimal, events_per_second: Decimal | None = None
    ) -> Decimal | None:
        """Return the seconds of an ``error_ratio`` until the alert of ``pair`` fires.

        None for never.  Without a traffic, enough traffic is assumed.  Time slices come at their
        own pace, of one server here, and their least number of bad ones always counts.  With
        ``time_slices`` the ratio is that of events; enough of them make a whole slice bad.
        """
        slices, slice_ = self.objective.slices, self.indicator.slice
        if slices:
            error_ratio = Decimal(error_ratio > 1 - slices.target)
        guard = Decimal(0)
        if slice_:
            guard = self.min_bad_events * slice_
        elif events_per_second and self.min_bad_events > 1:  # the rules need no guard for one
            guard = self.min_bad_events / events_per_second
        seconds = pair.seconds_to_fire(error_ratio, guard)
        if seconds is None or slices is None:
            return seconds
        return seconds + slices.window  # a slice is judged at its end

    @property
    def in_flight_seconds(self) -> Decimal | None:
        """The seconds until a request in flight counts as bad; None if only its end counts."""
        objective = self.objective
        if objective.queries or objective.slices:
            return None
        limits = {objective.indicator: objective.threshold, **objective.clauses}
        found = [seconds for key, seconds in limits.items() if key in IN_FLIGHT and seconds]
        return min(found, default=None)

    def hang_seconds(self, pair: Pair, events_per_second: Decimal | None = None) -> Decimal | None:
        """Return the seconds of a hang without ended requests until the alert of ``pair`` fires.

        Requests arrive at constant traffic; None: never, or only the end of a request counts.
        """
        crossing, all_ = self.in_flight_seconds, Decimal(1)
        seconds = self.seconds_to_fire(pair, all_, events_per_second)
        return None if crossing is None or seconds is None else crossing + seconds


@dataclass(frozen=True, slots=True)
class PlannedCause:
    """A cause alert, with the objectives that it ``explains``, at least one.

    ``tier`` is its urgency: ``cause``, or that of other alerts.
    """

    cause: CauseAlert
    alert: PlannedAlert
    explains: tuple[PlannedObjective, ...]
    tier: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One service's plan.

    ``alerts_on_causes`` is false if the plan of another service has the same cause alerts.
    ``needed`` are the signals that its objectives, and those of other services on the same servers,
    require.  ``compat`` names the tools whose series and labels are generated as well.
    """

    service: Service
    objectives: tuple[PlannedObjective, ...]
    causes: tuple[PlannedCause, ...]
    dashboard_url: str
    needed: tuple[str, ...] = ()
    alerts_on_causes: bool = True
    compat: tuple[Compat, ...] = ()

    @property
    def scope(self) -> Scope:
        """The servers on which the causes of this service are evaluated."""
        return scope_of(self.service.selector, self.service.service, self.needed)

    def causes_of(self, planned: PlannedObjective) -> tuple[PlannedCause, ...]:
        """Return the causes that explain an objective."""
        return tuple(cause for cause in self.causes if planned in cause.explains)

    def alerts(self) -> Iterator[tuple[PlannedObjective, PlannedAlert]]:
        """Yield every alert with its objective, in file order."""
        for planned in self.objectives:
            for alert in planned.alerts:
                yield planned, alert


# Slices come at a steady pace, so what the file says about low traffic does not concern them; but
# five full minutes and two slices are needed to distinguish a fresh server's first spike from a
# trend.
_LEAST_SECONDS = 300
_LEAST_SLICES = 2


def plan(service: Service) -> Plan:
    """Plan the alerts and recordings of an SLO file."""
    objectives = tuple(_objective(service, objective) for objective in service.objectives)
    of_each = (needed_signals(each, service) for each in service.objectives if not each.queries)
    needed = tuple(dict.fromkeys(chain.from_iterable(of_each)))
    return Plan(
        service,
        objectives,
        tuple(_causes(service, objectives, needed)),
        names.dashboard_url(service.dashboards, service.service),
        needed,
    )


def once_per_model(plans: Iterable[Plan]) -> list[Plan]:
    """Keep cause alerts in the first of the services that select the same servers."""
    every = [*plans]
    servers = [frozenset(cause_labels(each.service.selector).items()) for each in every]
    needed: dict[frozenset[tuple[str, str]], dict[str, None]] = {}
    for each, on in zip(every, servers, strict=True):
        needed.setdefault(on, {}).update(dict.fromkeys(each.needed))
    seen: set[frozenset[tuple[str, str]]] = set()
    kept = []
    for each, on in zip(every, servers, strict=True):
        kept.append(replace(each, alerts_on_causes=on not in seen, needed=tuple(needed[on])))
        if each.causes:
            seen.add(on)
    return kept


def _causes(
    service: Service, objectives: tuple[PlannedObjective, ...], needed: tuple[str, ...]
) -> Iterator[PlannedCause]:
    """Yield the causes that explain an objective of this service."""
    scope = scope_of(service.selector, service.service, needed)
    for cause in CAUSE_ALERTS:
        if not service.alerting.has_cause(cause.name):
            continue
        explains = tuple(
            planned for planned in objectives if planned.objective.indicator in cause.symptoms
        )
        tier = service.alerting.causes.get(cause.name, cause.tier)
        if tier in service.alerting.disable:
            tier = "cause"
        if explains and conditions(cause, scope):
            url = names.runbook_url(service.runbooks, service.service, cause.name)
            yield PlannedCause(cause, PlannedAlert(cause.name, "cause", url), explains, tier)


def _objective(service: Service, objective: Objective) -> PlannedObjective:
    def alert(kind: str, name: str) -> PlannedAlert:
        return PlannedAlert(name, kind, names.runbook_url(service.runbooks, service.service, name))

    of = (service.service, objective.name)
    indicator = indicator_of(objective)
    alerting = objective.alerting.of(service.alerting)
    chosen = pairs(service.window, objective.target, alerting.windows)
    least = alerting.min_bad_events
    return PlannedObjective(
        objective=objective,
        indicator=indicator,
        events=events(objective, service),
        recorded=recorded_events(objective, service),
        matchers=selector_text("", equal(names.series_labels(*of))),
        sentence=(
            f"{decimal_text(objective.target * 100)}% of {indicator.events} in "
            f"{format_duration(service.window)} are good. One is good if "
            f"{good_sentence(objective)}."
        ),
        pairs=chosen,
        absent_seconds=absent_seconds(service.window, objective.target),
        min_bad_events=_least_slices(indicator.slice) if indicator.slice else least,
        burn=alert("burn", names.burn_alert(*of)),
        exhausted=alert("exhausted", names.exhausted_alert(*of)),
        absent=alert("absent", names.absent_alert(*of)),
        inconsistent=alert("inconsistent", names.inconsistent_alert(*of)),
        low_traffic_errors=alert("low_traffic", names.low_traffic_alert(*of)),
        policy=alert("policy", names.policy_alert(*of)),
        low_traffic=None
        if indicator.in_slices
        else low_traffic_condition(chosen, objective.target, least),
        policy_steps=service.policy,
        alerting=alerting,
        labels={**service.labels, **objective.labels},
    )


def _least_slices(seconds: Decimal) -> int:
    return max(int(_LEAST_SECONDS / seconds), _LEAST_SLICES)
