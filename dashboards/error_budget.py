"""The error budget dashboard of one service."""

from __future__ import annotations

from decimal import Decimal

from grafanalib import core

from dashboards import engine, grafana
from dashboards.grafana import Column, Level, PanelRow
from dashboards.objective import objective_row
from dashboards.selected_objective import MOST_ROWS, selected_row, selected_variable
from promql.expr import Expr, Matcher, aggregate, number, vector
from slos import names
from slos.durations import format_duration
from slos.events import MINUTE
from slos.model import Service
from slos.plan import Plan
from slos.queries import INSTANCE, Scope, burn_rate, native_signals, recorded

_VARIABLES = (("version", "Model version"), (INSTANCE, "Instance"))


def dashboard(plan: Plan, *, source: str, version: str) -> core.Dashboard:
    """Lay out the dashboard of a service.

    With more than :data:`MOST_ROWS` objectives, one row shows the one that the reader selects.

    From top to bottom: objectives and their budgets, what users see, what the engine lacks, and
    the quality of each signal.
    """
    service = plan.service
    scope = Scope(
        service.selector,
        grafana.RATE_INTERVAL,
        tuple(Matcher(name, "=~", f"${name}") for name, _ in _VARIABLES),
        native_signals(service),
    )
    everything = Scope(service.selector).series("tokenslo_model_info")
    about_models = any(planned.indicator.signals for planned in plan.objectives)
    many = len(plan.objectives) > MOST_ROWS
    shown = () if many else plan.objectives
    made = f"Made by tokenslo {version} from {source}."
    return grafana.dashboard(
        uid=names.dashboard_uid(service.service, names.ERROR_BUDGET),
        title=f"{service.service}: Error budget",
        description=" ".join(filter(None, (service.description, made))),
        tags=("llm", "slo", "tokenslo"),
        variables=[
            grafana.datasource_variable(),
            *([selected_variable(plan)] if many else ()),
            *(
                grafana.variable(name, label, everything)
                for name, label in (_VARIABLES if about_models else ())
            ),
        ],
        annotations=[_alerts(service.service)],
        links=_runbooks(service),
        rows=[
            PanelRow(
                "Objectives",
                [_overview(plan)],
                height=3 + min(len(plan.objectives), MOST_ROWS),
            ),
            *([selected_row(plan)] if many else ()),
            *(objective_row(planned, plan, scope) for planned in shown),
            *(engine.rows(plan, scope) if about_models else ()),
        ],
    )


def _runbooks(service: Service) -> list[tuple[str, str]]:
    """Link to the index of the runbooks, if the URL has no ``{alert}``."""
    base = service.runbooks
    if not base or "{alert}" in base:
        return []
    return [("Runbooks", names.runbook_url(base, service.service, "README"))]


def _alerts(service: str) -> grafana.Json:
    return grafana.annotation(
        "Alerts",
        _firing(service),
        title="{{alertname}}",
        text="{{severity}}, objective {{slo}}",
        color="red",
    )


def _firing(service: str) -> Expr:
    return vector("ALERTS", {"service": service, "alertstate": "firing"})


def _overview(plan: Plan) -> core.Panel:
    service = plan.service.service
    window = format_duration(plan.service.window)
    every = recorded(names.TARGET, service)

    def column(title: str, series: Expr, unit: str, *levels: Level, of: str = "max") -> Column:
        return Column("", title, aggregate(of, series, ("slo",)), unit, levels)

    return grafana.table(
        "Objectives, the least budget first",
        "One row per objective, from the recorded series: they cover the whole service, whatever "
        "version and instance are chosen above, and show the worst group where an objective is "
        "kept for several. A burn rate of 1 spends exactly the budget; an empty cell means that "
        "there was no traffic, or that the signal is missing.",
        [
            Column("slo", "Objective"),
            column("Target", every, grafana.RATIO),
            column(
                "Budget left",
                recorded(names.BUDGET_REMAINING, service),
                grafana.RATIO,
                Level(None, "red"),
                Level(Decimal(0), "orange"),
                Level(Decimal("0.25"), "green"),
                of="min",
            ),
            column(
                f"Bad over {window}", recorded(names.PERIOD_ERROR_RATIO, service), grafana.RATIO
            ),
            column(
                "Burn rate, 5m",
                burn_rate(names.BASE_WINDOW, service),
                grafana.NUMBER,
                Level(None, "green"),
                Level(Decimal(1), "orange"),
            ),
            column(
                "Events per second",
                recorded(names.TOTAL, service) / number(MINUTE),
                grafana.PER_SECOND,
                of="sum",
            ),
            Column(
                "",
                "Alerts firing",
                aggregate("count", _firing(service), ("slo",)).or_(
                    aggregate("max", every, ("slo",)) * number(0)
                ),
                grafana.NUMBER,
                (Level(None, "green"), Level(Decimal(1), "red")),
            ),
        ],
        sort="Budget left",
    )
