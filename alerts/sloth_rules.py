"""Generate Sloth's recorded series from tokenslo's, for Sloth's dashboards.

Names, labels and meaning are those of Sloth v0.16 (``pkg/common/conventions`` and the plugins
``sli_rules_v1`` and ``metadata_rules_v1``).  Every series has one element per objective: of an
objective with ``group_by``, that of its worst group, as the dashboards expect one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from alerts.rules import INTERVAL, Rule
from promql.expr import Expr, aggregate, call, decimal_text, number, pretty, vector
from slos import names
from slos.durations import format_duration, parse_duration
from slos.plan import Plan, PlannedObjective
from slos.queries import recorded
from slos.yaml_text import Commented, Inline

_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
"""The windows of Sloth's catalogues for 28 and 30 days, which its dashboards offer."""
_MODE, _SPEC = "cli-gen-prom", "tokenslo/v1"
_WIDTH = 175
_DAY = Decimal(86_400)
_LONG_UNITS = {"y": 365 * _DAY, "w": 7 * _DAY}


def groups(plan: Plan, *, version: str) -> list[Rule]:
    """Return a rule group for each objective; ``version`` is that of tokenslo."""
    return [_group(plan, planned, version) for planned in plan.objectives]


def _group(plan: Plan, planned: PlannedObjective, version: str) -> Rule:
    objective = planned.objective.name
    return Commented(
        f"Series of Sloth for {objective}, derived from those of tokenslo.",
        {
            "name": f"{plan.service.service}/{objective}/sloth",
            "interval": INTERVAL,
            "rules": [*_ratios(plan, planned), *_metadata(plan, planned, version)],
        },
    )


def _ratios(plan: Plan, planned: PlannedObjective) -> Iterator[Rule]:
    """Yield the error ratios.

    They lack the labels of the SLO file: a changed label would split the month that a dashboard
    sums up.
    """
    period = plan.service.window
    exprs = {
        window: _error_ratio(plan, planned, window)
        for window in _WINDOWS
        if parse_duration(window) < period
    }
    exprs[_prometheus_duration(period)] = _series(plan, planned, names.PERIOD_ERROR_RATIO)
    for window, expr in exprs.items():
        yield _record(
            f"slo:sli_error:ratio_rate{window}",
            aggregate("max", expr),
            {**_ids(plan, planned), "sloth_window": window},
        )


def _error_ratio(plan: Plan, planned: PlannedObjective, window: str) -> Expr:
    if window in planned.windows:
        return _series(plan, planned, names.error_ratio(window))
    bad, total = (
        call("sum_over_time", _series(plan, planned, name, window))
        for name in (names.BAD, names.TOTAL)
    )
    return bad / total.compare(">", number(0))


def _metadata(plan: Plan, planned: PlannedObjective, version: str) -> Iterator[Rule]:
    target = planned.objective.target
    budget = number(1 - target)
    current = aggregate("max", _error_ratio(plan, planned, names.BASE_WINDOW))
    remaining = aggregate("min", _series(plan, planned, names.BUDGET_REMAINING))
    labels = {**planned.labels, **_ids(plan, planned)}
    exprs = {
        "slo:objective:ratio": call("vector", number(target)),
        "slo:error_budget:ratio": call("vector", budget),
        "slo:time_period:days": call("vector", number(plan.service.window / _DAY)),
        "slo:current_burn_rate:ratio": current / budget,
        "slo:period_burn_rate:ratio": number(1) - remaining,
        "slo:period_error_budget_remaining:ratio": remaining,
    }
    for name, expr in exprs.items():
        yield _record(name, expr, labels)
    about = {
        "sloth_version": version,
        "sloth_mode": _MODE,
        "sloth_spec": _SPEC,
        "sloth_objective": decimal_text(target * 100),
    }
    yield _record("sloth_slo_info", call("vector", number(1)), {**labels, **about})


def _ids(plan: Plan, planned: PlannedObjective) -> dict[str, str]:
    return names.sloth_labels(plan.service.service, planned.objective.name)


def _series(plan: Plan, planned: PlannedObjective, name: str, window: str | None = None) -> Expr:
    if window is None:
        return recorded(name, plan.service.service, planned.objective)
    return vector(name, names.series_labels(plan.service.service, planned.objective.name), window)


def _record(name: str, expr: Expr, labels: Mapping[str, str]) -> Rule:
    return {"record": name, "expr": pretty(expr, _WIDTH), "labels": Inline(labels)}


def _prometheus_duration(seconds: Decimal) -> str:
    """Write a period as Sloth does, by Prometheus's formatter: 28 days are ``4w``."""
    for unit, size in _LONG_UNITS.items():
        count, rest = divmod(seconds, size)
        if count and not rest:
            return f"{decimal_text(count)}{unit}"
    return format_duration(seconds)
