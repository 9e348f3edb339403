"""Every name that generated rules, dashboards and runbooks agree on."""

from __future__ import annotations

from decimal import Decimal
from zlib import crc32

from promql.expr import decimal_text

# Recorded series.  All carry the labels `service` and `slo`; only TARGET has others, as a label
# that may change would split the long windows.
TOTAL = "slo:total:increase1m"
BAD = "slo:bad:increase1m"
TARGET = "slo:target:ratio"
PERIOD_BAD = "slo:period_bad:increase"
PERIOD_ERROR_RATIO = "slo:period_error_ratio:ratio"
BUDGET_REMAINING = "slo:error_budget_remaining:ratio"
# With the labels `service` and `signal`.
UNAVAILABLE = "slo:unavailable_signal:count"

BASE_WINDOW = "5m"
"""The shortest window of error ratios, and of the rates of queries that an SLO file has."""

# What an alert is about, as the end of its name.
BURN = "ErrorBudgetBurn"
EXHAUSTED = "ErrorBudgetExhausted"
ABSENT = "MetricAbsent"
INCONSISTENT = "SLIInconsistent"
LOW_TRAFFIC = "LowTrafficErrors"
POLICY = "ErrorBudgetPolicy"
UNAVAILABLE_CAUSE = "SignalUnavailable"
CAUSE_LABEL = "cause"
"""The label that cause alerts have instead of ``slo``."""
STEP_LABEL = "step"
"""The label of a budget policy's alerts that tells its steps apart."""


def error_ratio(window: str) -> str:
    """Return the recorded series of the error ratio over ``window``, such as ``1h``."""
    return f"slo:error_ratio:rate{window}"


def series_labels(service: str, objective: str) -> dict[str, str]:
    """Return the labels that identify an objective on every recorded series."""
    return {"service": service, "slo": objective}


def goodput_objective(service: str, objective: str) -> str:
    """Return what goodput counters call an objective in their label ``objective``."""
    return f"{service}/{objective}"


def camel(name: str) -> str:
    """``first-token`` → ``FirstToken``."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("-"))


def burn_alert(service: str, objective: str) -> str:
    """Return the alert that says the budget burns too fast."""
    return f"{camel(service)}{camel(objective)}{BURN}"


def exhausted_alert(service: str, objective: str) -> str:
    """Return the alert that says the budget is spent."""
    return f"{camel(service)}{camel(objective)}{EXHAUSTED}"


def absent_alert(service: str, objective: str) -> str:
    """Return the alert that says the objective cannot be measured."""
    return f"{camel(service)}{camel(objective)}{ABSENT}"


def inconsistent_alert(service: str, objective: str) -> str:
    """Return the alert on bad > total, or a ratio outside 0 to 1."""
    return f"{camel(service)}{camel(objective)}{INCONSISTENT}"


def low_traffic_alert(service: str, objective: str) -> str:
    """Return the alert on errors at low traffic."""
    return f"{camel(service)}{camel(objective)}{LOW_TRAFFIC}"


def policy_alert(service: str, objective: str) -> str:
    """Return the alert that says a step of the budget policy is due."""
    return f"{camel(service)}{camel(objective)}{POLICY}"


def policy_step(spent: Decimal) -> str:
    """Name a step of a budget policy by the share of the budget that is spent: ``50%``."""
    return f"{decimal_text(spent * 100)}%"


def dashboard_uid(service: str) -> str:
    """Return the Grafana uid of a service's dashboard (Grafana's limit is 40 characters)."""
    uid = f"tokenslo-{service}"
    # A cut name could be that of another service as well.
    return uid if len(uid) <= 40 else f"{uid[:31]}-{crc32(service.encode()):08x}"


def dashboard_url(base: str, service: str) -> str:
    """Return where Grafana at ``base`` shows the dashboard; empty without a base."""
    return f"{base.rstrip('/')}/d/{dashboard_uid(service)}" if base else ""


def runbook_url(base: str, service: str, alert: str) -> str:
    """Return the URL of an alert's page; ``base`` may hold ``{service}`` and ``{alert}``.

    Without ``{alert}`` it is the Markdown file as ``tokenslo generate`` writes it.
    """
    if not base:
        return ""
    base = base.replace("{service}", service)
    if "{alert}" in base:
        return base.replace("{alert}", alert)
    return f"{base.rstrip('/')}/{runbook_file(alert)}"


def runbook_file(alert: str) -> str:
    """Return the file name of an alert's runbook page."""
    return f"{alert}.md"
