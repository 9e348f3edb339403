"""What an SLO file says, as data.

Built only by :mod:`slos.load`, which checks everything stated here.
Durations are in seconds and shares are ratios from 0 to 1, all as :class:`decimal.Decimal`, so that
what the file says ("99.9%", "800ms") is what the rules and buckets get, without float noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Objective:
    """One promise: the share ``target`` of events is good.

    ``threshold`` is in the indicator's unit: seconds for latencies, a ratio for headroom, ``None``
    for indicators that need none.
    """

    name: str
    indicator: str
    target: Decimal
    threshold: Decimal | None = None
    description: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Tier:
    """How one class of alert is labelled and annotated."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alerting:
    """Alert tiers: ``page`` wants a person now, ``ticket`` within a working day."""

    page: Tier = Tier({"severity": "critical"})
    ticket: Tier = Tier({"severity": "warning"})
    min_bad_events: int = 10


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
    line: int = field(default=0, compare=False)
