"""Queries of Sloth's two public Grafana dashboards, with variables resolved.

Dashboards 14643 revision 2 ("High level Sloth SLOs") and 14348 revision 5 ("SLO / Detail") of
grafana.com.  Their ``or on() vector(…)`` is left out: it would give data without a series.
"""

from __future__ import annotations

from collections.abc import Mapping

MIN_BURN_RATE = "1"
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d", "30d")
"""The windows to choose from in the detail dashboard."""

OVERVIEW = {
    "SLOs": "count(sloth_slo_info)",
    "services": "count(max(sloth_slo_info) by (sloth_service))",
    "average burn rate": "avg(slo:current_burn_rate:ratio)",
    "ticket alerts": 'max(ALERTS{sloth_id!="",sloth_severity="ticket"})',
    "page alerts": 'max(ALERTS{sloth_id!="",sloth_severity="page"})',
    "fast burning SLOs": f"slo:current_burn_rate:ratio > {MIN_BURN_RATE}",
    "burn rate over time": "slo:current_burn_rate:ratio",
    "budget of the period": "slo:period_error_budget_remaining:ratio",
}


def variables() -> Mapping[str, str]:
    """Return the queries of the variables ``service`` and ``slo``, as series with that label."""
    return {
        label: f'slo:objective:ratio{{{label}!=""}}' for label in ("sloth_service", "sloth_slo")
    }


def detail(service: str, slo: str, month: int) -> Mapping[str, str]:
    """Return the queries of the detail dashboard about one SLO, except those of the month."""
    of = f'{{sloth_service="{service}",sloth_slo="{slo}"}}'
    alert = f'max(ALERTS{{sloth_service="{service}",sloth_slo="{slo}",sloth_severity="%s"}})'
    hour = f"(1 / (days_in_month() * 24)) * (month() == bool vector({month}))"
    return {
        "objective": f"slo:objective:ratio{of}",
        "info": f"sloth_slo_info{of}",
        "burn rate": f"slo:current_burn_rate:ratio{of}",
        "burn rate above zero": f"slo:current_burn_rate:ratio{of} > 0",
        "budget of the period": f"slo:period_error_budget_remaining:ratio{of}",
        "ticket alerts": alert % "ticket",
        "page alerts": alert % "page",
        "even consumption of a month's budget": f"1 - sum_over_time(({hour})[32d:1h])",
        "fast burning SLOs": OVERVIEW["fast burning SLOs"],
    }


def error_ratios(service: str, slo: str, windows: tuple[str, ...] = WINDOWS) -> Mapping[str, str]:
    """Return the query of the SLI for each window."""
    of = f'{{sloth_service="{service}",sloth_slo="{slo}"}}'
    return {window: f"1 - max(slo:sli_error:ratio_rate{window}{of})" for window in windows}


def month_budget(service: str, slo: str, month: int) -> str:
    """Return the query of the budget left in a calendar month: it sums whole hours."""
    of = f'{{sloth_service="{service}",sloth_slo="{slo}"}}'
    hours = f"slo:sli_error:ratio_rate1h{of} * on() group_left() (month() == bool vector({month}))"
    budget = f"slo:error_budget:ratio{of} * on() group_left() (24 * days_in_month())"
    return f"1 - (sum_over_time(({hours})[32d:1h]) / on(sloth_id) ({budget}))"
