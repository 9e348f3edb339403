"""Names that generated rules, dashboards and runbooks share."""

from __future__ import annotations

from decimal import Decimal
from zlib import crc32

from promql.literals import decimal_text

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

SELECTOR_LABEL = "selector"
"""The label of TARGET with the selector of the objective, such as ``{model="llama"}``."""
HISTOGRAMS_LABEL = "histograms"
"""The label of TARGET for native histograms."""

BASE_WINDOW = "5m"
"""The shortest window of error ratios, and of the rates of queries that an SLO file has."""
SLICE = "1m"
"""Length of a time slice: a gauge is compared with its threshold once in each."""

# Ends of alert names, by kind.
BURN = "ErrorBudgetBurn"
EXHAUSTED = "ErrorBudgetExhausted"
ABSENT = "MetricAbsent"
INCONSISTENT = "SLIInconsistent"
LOW_TRAFFIC = "LowTrafficErrors"
POLICY = "ErrorBudgetPolicy"
UNAVAILABLE_CAUSE = "SignalUnavailable"
CAUSE_LABEL = "cause"
"""The label that cause alerts have instead of ``slo``."""
ERROR_BUDGET = "error-budget"
"""The dashboard that alerts link to."""
STEP_LABEL = "step"
"""The label with the step of a budget policy's alert."""


def error_ratio(window: str) -> str:
    """Return the recorded series of the error ratio over ``window``, such as ``1h``."""
    return f"slo:error_ratio:rate{window}"


def series_labels(service: str, objective: str) -> dict[str, str]:
    """Return the labels that identify an objective on every recorded series."""
    return {"service": service, "slo": objective}


def sloth_labels(service: str, objective: str) -> dict[str, str]:
    """Return the labels that identify an objective on the series and alerts of Sloth."""
    return {
        "sloth_id": f"{service}-{objective}",
        "sloth_service": service,
        "sloth_slo": objective,
    }


def goodput_objective(service: str, objective: str) -> str:
    """Return the value of the label ``objective`` of goodput counters."""
    return f"{service}/{objective}"


def camel(name: str) -> str:
    """Convert ``first-token`` to ``FirstToken``."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("-"))


def burn_alert(service: str, objective: str) -> str:
    """Return the name of the alert on budget burn."""
    return f"{camel(service)}{camel(objective)}{BURN}"


def exhausted_alert(service: str, objective: str) -> str:
    """Return the name of the alert on an exhausted budget."""
    return f"{camel(service)}{camel(objective)}{EXHAUSTED}"


def absent_alert(service: str, objective: str) -> str:
    """Return the name of the alert on missing metrics."""
    return f"{camel(service)}{camel(objective)}{ABSENT}"


def inconsistent_alert(service: str, objective: str) -> str:
    """Return the name of the alert on bad > total, or a ratio outside 0 to 1."""
    return f"{camel(service)}{camel(objective)}{INCONSISTENT}"


def low_traffic_alert(service: str, objective: str) -> str:
    """Return the name of the alert on errors at low traffic."""
    return f"{camel(service)}{camel(objective)}{LOW_TRAFFIC}"


def policy_alert(service: str, objective: str) -> str:
    """Return the name of the alert on a due step of the budget policy."""
    return f"{camel(service)}{camel(objective)}{POLICY}"


def policy_step(spent: Decimal) -> str:
    """Return the label of a budget policy's step, the spent share: ``50%``."""
    return f"{decimal_text(spent * 100)}%"


UID_PREFIX = "tokenslo-"
"""The default start of the uids of dashboards."""


def dashboard_uid(service: str, kind: str, prefix: str = UID_PREFIX) -> str:
    """Return the Grafana uid of a service's dashboard (Grafana's limit is 40 characters)."""
    name = f"{service}-{kind}" if service else kind
    uid = prefix + name
    # A cut name could be that of another service as well.
    return uid if len(uid) <= 40 else f"{uid[:31]}-{crc32(name.encode()):08x}"


def dashboard_file(service: str, kind: str) -> str:
    """Return the file name of a service's dashboard."""
    return f"{service}-{kind}.json" if service else f"{kind}.json"


def dashboard_url(base: str, service: str, uid_prefix: str = UID_PREFIX) -> str:
    """Return the URL of a service's error budget in Grafana at ``base``, empty without a base."""
    return (
        f"{base.rstrip('/')}/d/{dashboard_uid(service, ERROR_BUDGET, uid_prefix)}" if base else ""
    )


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
