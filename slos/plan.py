"""Everything that follows from an SLO file, worked out once.

Rules, dashboards and runbooks only write down what a plan says; that is why they agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from slos import names
from slos.burn import Pair, absent_seconds, pairs
from slos.durations import parse_duration
from slos.indicators import INDICATORS, SLICE, Events, Indicator, events
from slos.model import Objective, Service


@dataclass(frozen=True, slots=True)
class PlannedAlert:
    """One alert name, which is one runbook page; ``kind`` says what it is about."""

    name: str
    kind: str
    runbook_url: str


@dataclass(frozen=True, slots=True)
class PlannedObjective:
    """One objective with its events, windows and alerts.

    No budget alert fires for fewer than ``min_bad_events`` in its window.
    """

    objective: Objective
    indicator: Indicator
    events: Events
    pairs: tuple[Pair, ...]
    absent_seconds: Decimal
    min_bad_events: int
    burn: PlannedAlert
    exhausted: PlannedAlert
    absent: PlannedAlert

    @property
    def windows(self) -> tuple[str, ...]:
        """The error-ratio windows in use, shortest first."""
        used = {window for pair in self.pairs for window in (pair.short, pair.long)}
        return tuple(sorted(used, key=parse_duration))

    @property
    def alerts(self) -> tuple[PlannedAlert, ...]:
        """All alerts of this objective, the most urgent first."""
        return (self.burn, self.exhausted, self.absent)

    def seconds_to_fire(self, pair: Pair, error_ratio: Decimal) -> Decimal | None:
        """How long ``error_ratio`` must last until the alert of ``pair`` fires; None: never.

        Requests come at a pace nobody knows, so enough of them are assumed; time slices come at
        their own, of one server here, and there the least number of bad ones counts too.
        """
        slices = self.min_bad_events if self.indicator.in_slices else 0
        return pair.seconds_to_fire(error_ratio, guard=slices * parse_duration(SLICE))


@dataclass(frozen=True, slots=True)
class Plan:
    """One service's plan."""

    service: Service
    objectives: tuple[PlannedObjective, ...]
    dashboard_url: str

    def alerts(self) -> Iterator[tuple[PlannedObjective, PlannedAlert]]:
        """Yield every alert with its objective, in file order."""
        for planned in self.objectives:
            for alert in planned.alerts:
                yield planned, alert


# Slices come at a steady pace, so what the file says about low traffic does not concern them; but
# five full minutes are needed to tell a fresh server's first spike from a trend.
_MIN_BAD_SLICES = 10


def plan(service: Service) -> Plan:
    """Work out what an SLO file implies."""
    return Plan(
        service,
        tuple(_objective(service, objective) for objective in service.objectives),
        names.dashboard_url(service.dashboards, service.service),
    )


def _objective(service: Service, objective: Objective) -> PlannedObjective:
    def alert(kind: str, name: str) -> PlannedAlert:
        return PlannedAlert(name, kind, names.runbook_url(service.runbooks, name))

    of = (service.service, objective.name)
    indicator = INDICATORS[objective.indicator]
    return PlannedObjective(
        objective=objective,
        indicator=indicator,
        events=events(objective, service.selector),
        pairs=pairs(service.window, objective.target),
        absent_seconds=absent_seconds(service.window, objective.target),
        min_bad_events=_MIN_BAD_SLICES if indicator.in_slices else service.alerting.min_bad_events,
        burn=alert("burn", names.burn_alert(*of)),
        exhausted=alert("exhausted", names.exhausted_alert(*of)),
        absent=alert("absent", names.absent_alert(*of)),
    )
