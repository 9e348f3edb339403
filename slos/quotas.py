"""Token quotas of tenants: recorded series, conditions and alerts.

Periods are rolling, because PromQL has no calendar: the last 24 hours, the last 30 days.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from promql.expr import Expr, Matcher, Text, aggregate, call, equal, number, one_of, selector_text
from promql.tree import Vector
from slos import names
from slos.events import Counting
from slos.model import Service
from slos.plan import PlannedAlert
from slos.signals import SIGNALS, TENANT

TOKENS = "tenant_quota:tokens:increase1m"
ALLOWANCE = "tenant_quota:allowance:tokens"
USED = "tenant_quota:used:ratio"
PROJECTED = "tenant_quota:projected:ratio"
QUOTA_LABEL = "quota"
"""The label with the period of a quota."""
NEARLY = Decimal("0.8")
PROJECTED_FOR = "30m"


@dataclass(frozen=True, slots=True)
class QuotaPeriod:
    """The window of a period, and the recent ``pace`` that is projected over it ``times``."""

    window: str
    pace: str
    times: int


PERIODS = {"day": QuotaPeriod("1d", "1h", 24), "month": QuotaPeriod("30d", "1d", 30)}


@dataclass(frozen=True, slots=True)
class QuotaAlert:
    """An alert on quotas; its value is the used or projected share."""

    suffix: str
    summary: str
    meaning: str
    lasting: str = ""


NEARLY_USED = QuotaAlert(
    "TenantQuotaNearlyUsed",
    "has used {value} of its tokens",
    "The tenant has used at least 80% of its quota, and less than all of it.",
)
EXCEEDED = QuotaAlert(
    "TenantQuotaExceeded",
    "has used {value} of its tokens",
    "The tenant has used its whole quota. Nothing is refused: a gateway enforces limits.",
)
PROJECTION = QuotaAlert(
    "TenantQuotaProjected",
    "uses tokens at {value} of the pace of its quota",
    "At the pace of the last hour (per day) or day (per month), the tenant exceeds its quota.",
    PROJECTED_FOR,
)
QUOTA_ALERTS = (NEARLY_USED, EXCEEDED, PROJECTION)


def planned_alerts(service: Service) -> Iterator[tuple[QuotaAlert, PlannedAlert]]:
    """Yield the alerts of a service's quotas, none without quotas."""
    for alert in QUOTA_ALERTS if service.quotas else ():
        name = f"{names.camel(service.service)}{alert.suffix}"
        url = names.runbook_url(service.runbooks, service.service, name)
        yield alert, PlannedAlert(name, "quota", url)


def tokens(service: Service) -> Expr:
    """Return the tokens of the last minute of tenants with a quota: input and output.

    Input includes cached input.
    """
    matchers = (*equal(service.selector), one_of("direction", ("input", "output")))
    counter = Vector(SIGNALS["tenant_output_tokens"].metric, matchers)
    counting = Counting(by=(TENANT,), recorded=(), plain=service.rules == "plain")
    with_quota = Text(f"on (tenant) {ALLOWANCE}{_of(service)}", whole=True)
    return counting.sum(counting.each(counter)).and_(with_quota)


def used(service: Service, per: str) -> Expr:
    """Return the used share of the quotas of a period."""
    return _count(service, PERIODS[per].window) / _allowance(service, per)


def projected(service: Service, per: str) -> Expr:
    """Return the share that the recent pace would use in a whole period."""
    period = PERIODS[per]
    return _count(service, period.pace) * number(period.times) / _allowance(service, per)


def condition(alert: QuotaAlert, service: Service) -> Expr:
    """Return the condition of an alert; at most one of a quota's alerts has a result."""
    share = _recorded(USED, service)
    if alert is NEARLY_USED:
        return share.compare(">=", number(NEARLY)).compare("<", number(1))
    if alert is EXCEEDED:
        return share.compare(">=", number(1))
    pace = _recorded(PROJECTED, service).compare(">", number(1))
    return Text(f"{pace} unless {share.compare('>=', number(NEARLY))}")


def recent_tokens(service: Service) -> Expr:
    """Return tokens per second by tenant and direction."""
    tenants = dict.fromkeys(quota.tenant for quota in service.quotas)
    matchers = (*equal(service.selector), one_of(TENANT, tenants))
    counter = Vector(SIGNALS["tenant_output_tokens"].metric, matchers, "5m")
    return aggregate("sum", call("rate", counter), (TENANT, "direction"))


def shares(service: Service) -> Expr:
    """Return the used and projected shares of all quotas."""
    names_ = Matcher("__name__", "=~", f"{USED}|{PROJECTED}")
    return Text(selector_text("", (names_, *equal({"service": service.service}))), whole=True)


def _count(service: Service, window: str) -> Expr:
    return call("sum_over_time", _recorded(TOKENS, service, window))


def _allowance(service: Service, per: str) -> Expr:
    allowance = selector_text(ALLOWANCE, equal({"service": service.service, QUOTA_LABEL: per}))
    return Text(f"on (service, tenant) {allowance}", whole=True)


def _of(service: Service) -> str:
    return selector_text("", equal({"service": service.service}))


def _recorded(name: str, service: Service, window: str = "") -> Expr:
    text = name + _of(service)
    return Text(f"{text}[{window}]" if window else text, whole=True)
