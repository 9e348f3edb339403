"""What an SLO file says, as data.

Built only by :mod:`slos.load`, which checks everything stated here.
Durations are in seconds and shares are ratios from 0 to 1, all as :class:`decimal.Decimal`, so that
what the file says ("99.9%", "800ms") is what the rules and buckets get, without float noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

DISABLED = ("page", "ticket", "exhausted", "absent", "policy")
"""Alerts that can be left out: burn alerts that page, those that open tickets, and the others."""
SERVICE_DISABLED = (*DISABLED, "causes")
"""The same for a service, which has alerts that belong to no objective."""


TierName = Literal["page", "ticket"]
RULES = ("exact", "plain")
"""How increases are recorded: from counter values that add up, or with ``rate``."""
CAUSE_TIERS = ("page", "ticket", "cause", "off")
"""How urgent a cause alert may be."""
HISTOGRAMS = ("classic", "native")
"""How Prometheus may store histograms: as a series for each bucket, or as one series of all."""


@dataclass(frozen=True, slots=True)
class Tier:
    """How one class of alert is labelled and annotated."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """A pair of windows in seconds that alerts when both burn faster than ``burn_rate``."""

    tier: TierName
    long: Decimal
    short: Decimal
    burn_rate: Decimal


@dataclass(frozen=True, slots=True)
class Alerting:
    """Alert tiers: ``page`` wants a person now, ``ticket`` within a working day.

    ``cause`` alerts say why a page or a ticket fires; ``causes`` gives some of them, by name,
    another tier, one of :data:`CAUSE_TIERS`.  ``windows`` replace the usual pairs of windows.
    ``disable`` names the alerts that there are not: some of :data:`SERVICE_DISABLED`.
    """

    page: Tier = Tier({"severity": "critical"})
    ticket: Tier = Tier({"severity": "warning"})
    min_bad_events: int = 10
    disable: frozenset[str] = frozenset()
    cause: Tier = Tier({"severity": "info"})
    causes: Mapping[str, str] = field(default_factory=dict)
    windows: tuple[BurnWindow, ...] = ()

    def has_cause(self, name: str) -> bool:
        """Whether the alert on a cause is not disabled."""
        return "causes" not in self.disable and self.causes.get(name) != "off"


@dataclass(frozen=True, slots=True)
class Overrides:
    """How the alerts of one objective differ: labels and annotations are added to the service's."""

    page: Tier = Tier()
    ticket: Tier = Tier()
    min_bad_events: int | None = None
    disable: frozenset[str] = frozenset()

    def of(self, alerting: Alerting) -> Alerting:
        """Return the service's alerting as it is for this objective."""
        least = self.min_bad_events
        return Alerting(
            page=_added(alerting.page, self.page),
            ticket=_added(alerting.ticket, self.ticket),
            cause=alerting.cause,
            causes=alerting.causes,
            windows=alerting.windows,
            min_bad_events=alerting.min_bad_events if least is None else least,
            disable=alerting.disable | self.disable,
        )


def _added(tier: Tier, more: Tier) -> Tier:
    return Tier({**tier.labels, **more.labels}, {**tier.annotations, **more.annotations})


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """What a team does once the share ``spent`` of an error budget is gone."""

    spent: Decimal
    do: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TimeSlices:
    """Time is promised instead of events: in a good slice the share ``target`` of events is good.

    Slices follow one another, each ``window`` seconds long.
    """

    window: Decimal
    target: Decimal


@dataclass(frozen=True, slots=True)
class Objective:
    """One promise: the share ``target`` of events is good.

    ``threshold`` is in the indicator's unit: seconds for latencies, a ratio for headroom, ``None``
    for indicators that need none.  ``clauses`` are goodput's, in the file's order: how many seconds
    each latency of a request may be, by its indicator.  ``queries`` are those that the file brings
    along, by role (:mod:`slos.generic`); a histogram's threshold is then in its metric's own unit.
    ``labels`` are those of its alerts beside the service's, ``selector`` narrows the service's, and
    ``owner`` answers for it if that is not the service's.  There is one promise for each
    combination of values of the labels in ``group_by``; with ``slices`` it is about time.
    ``histograms`` is how Prometheus stores its histogram if that is not as the service says.
    """

    name: str
    indicator: str
    target: Decimal
    threshold: Decimal | None = None
    description: str = ""
    line: int = 0
    clauses: Mapping[str, Decimal] = field(default_factory=dict, hash=False)
    queries: Mapping[str, str] = field(default_factory=dict, hash=False)
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    alerting: Overrides = field(default=Overrides(), hash=False)
    selector: Mapping[str, str] = field(default_factory=dict, hash=False)
    owner: str = ""
    slices: TimeSlices | None = None
    group_by: tuple[str, ...] = ()
    histograms: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """One SLO file: a service, named in ``line``, and its objectives over a window (seconds)."""

    file: str
    service: str
    window: Decimal
    objectives: tuple[Objective, ...]
    owner: str = ""
    description: str = ""
    selector: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    alerting: Alerting = Alerting()
    runbooks: str = ""
    dashboards: str = ""
    policy: tuple[PolicyStep, ...] = ()
    histograms: str = HISTOGRAMS[0]
    line: int = field(default=0, compare=False)
    rules: str = RULES[0]

    def selects(self, objective: Objective) -> Mapping[str, str]:
        """Return the labels of what an objective is about; its own win over the service's."""
        return {**self.selector, **objective.selector}

    def native(self, objective: Objective) -> bool:
        """Whether Prometheus stores the histogram of an objective as a native one."""
        return (objective.histograms or self.histograms) == "native"

    def owns(self, objective: Objective) -> str:
        """Return who answers for an objective; empty if the file names nobody."""
        return objective.owner or self.owner
