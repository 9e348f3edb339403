"""The data model of an SLO file.

Only :mod:`slos.load` builds it, and checks everything stated here.  Durations are in seconds and
shares are ratios from 0 to 1, as :class:`decimal.Decimal`, so that rules and buckets have the exact
values of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from slos.outcomes import REFUSALS, SPENDING, Outcome

DISABLED = ("page", "ticket", "exhausted", "absent", "policy")
"""Kinds of alerts that can be disabled: burn alerts by tier, and the others."""
SERVICE_DISABLED = (*DISABLED, "causes")
"""Kinds that a service can disable, including alerts without an objective."""


TierName = Literal["page", "ticket"]
RULES = ("exact", "plain")
"""How increases are recorded: from counter values that add up, or with ``rate``."""
CAUSE_TIERS = ("page", "ticket", "cause", "off")
"""Tiers of cause alerts."""
GUARDS = ("errors", "sheds", "kv_headroom", "gpu_memory")
"""What a rollout gate checks besides objectives."""
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
"""Kinds of workloads that autoscaling supports."""
HISTOGRAMS = ("classic", "native")
"""How Prometheus may store histograms: as a series for each bucket, or as one series of all."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Labels and annotations of one class of alerts."""

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
    """Alert tiers: a ``page`` needs a person now, a ``ticket`` within a working day.

    ``cause`` alerts explain pages and tickets; ``causes`` sets another tier, one of
    :data:`CAUSE_TIERS`, for some of them.  ``windows`` replace the default pairs of windows.
    ``disable`` names kinds of alerts to leave out, some of :data:`SERVICE_DISABLED`.
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
    """Changes of a service's alerting for one objective: added labels and annotations."""

    page: Tier = Tier()
    ticket: Tier = Tier()
    min_bad_events: int | None = None
    disable: frozenset[str] = frozenset()

    def of(self, alerting: Alerting) -> Alerting:
        """Return the service's alerting with these changes."""
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
    """A team's action once the share ``spent`` of an error budget is gone."""

    spent: Decimal
    do: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class TimeSlices:
    """Time slices to count instead of events: in a good one the share ``target`` of events is good.

    Slices follow one another, each ``window`` seconds long.
    """

    window: Decimal
    target: Decimal


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective: the share ``target`` of events is good.

    ``threshold`` is in the indicator's unit: seconds for latencies, a ratio for headroom, ``None``
    without one.  ``clauses`` are goodput's limits of a request's latencies in seconds, by
    indicator, in the file's order.  ``queries`` are user-defined, by role (:mod:`slos.generic`); a
    histogram's threshold is then in its metric's unit.  ``labels`` are added to the service's on
    alerts, ``selector`` restricts the service's, and ``owner`` replaces the service's.
    ``group_by`` has one SLO for each combination of label values; ``slices`` count time.
    ``histograms`` is how Prometheus stores its histogram, if different from the service's.
    ``error_budget`` overrides the service's.
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
    error_budget: Mapping[str, bool] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Rollout:
    """How a canary is compared with its baseline, by the values of ``label``.

    ``margin`` is the share of an error budget by which the canary's share of bad events may exceed
    the baseline's.  The comparison takes ``window`` seconds, after ``warm_up`` seconds that do not
    count.  ``objectives`` are names, empty for all whose events have the label; ``guards`` are some
    of :data:`GUARDS`.  ``prometheus`` is the URL for the controllers.
    """

    label: str = "version"
    margin: Decimal = Decimal("0.25")
    window: Decimal = Decimal(900)
    warm_up: Decimal = Decimal(120)
    objectives: tuple[str, ...] = ()
    guards: tuple[str, ...] = GUARDS
    prometheus: str = ""


QUOTA_PERIODS = ("day", "month")
"""Periods of quotas: the last 24 hours, the last 30 days."""


@dataclass(frozen=True, slots=True)
class TokenQuota:
    """Input and output ``tokens`` of a tenant in a period, one of :data:`QUOTA_PERIODS`."""

    tenant: str
    tokens: int
    per: str


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """How the replicas of a workload, such as ``Deployment/chat``, follow its load.

    A replica more absorbs ``waiting`` sequences; a replica holds at most the share ``kv_cache`` of
    its KV cache, and ``tokens_in_flight`` tokens if that is not 0.  ``goodput`` names an objective,
    empty for the first one.  ``stream_p99`` is the measured 99th percentile of the duration of
    requests in seconds, None if it is not measured.  ``wake`` is a query that is above 0 while
    requests wait for the first replica.  ``prometheus`` is the URL for KEDA.
    """

    workload: str
    max_replicas: int
    prometheus: str
    min_replicas: int = 1
    waiting: int = 8
    kv_cache: Decimal = Decimal("0.8")
    tokens_in_flight: int = 0
    goodput: str = ""
    stream_p99: Decimal | None = None
    wake: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """The service of an SLO file, named in ``line``, and its objectives over a window (seconds).

    ``prompt_classes`` are ascending upper bounds in tokens (:mod:`slos.prompt_classes`).
    ``error_budget`` is whether refused requests spend the error budgets, by outcome.
    """

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
    prompt_classes: tuple[int, ...] = ()
    rollout: Rollout | None = None
    autoscaling: Autoscaling | None = None
    quotas: tuple[TokenQuota, ...] = ()
    error_budget: Mapping[str, bool] = field(default_factory=dict)

    def selects(self, objective: Objective) -> Mapping[str, str]:
        """Return the labels that an objective selects; its own override the service's."""
        return {**self.selector, **objective.selector}

    def spending(self, objective: Objective) -> tuple[Outcome, ...]:
        """Return the refusals that spend the error budget of an objective."""
        chosen = {**self.error_budget, **objective.error_budget}
        return tuple(each for each in REFUSALS if chosen.get(each, each in SPENDING))

    def native(self, objective: Objective) -> bool:
        """Whether Prometheus stores the histogram of an objective as a native one."""
        return (objective.histograms or self.histograms) == "native"

    def owns(self, objective: Objective) -> str:
        """Return the owner of an objective, empty without one."""
        return objective.owner or self.owner
