"""The set of dashboards that is generated from an SLO plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grafanalib import core

from dashboards import (
    capacity,
    engine,
    error_budget,
    grafana,
    overview,
    rollout,
    scopes,
    sidecar,
    streams,
    token_latency,
)
from dashboards.dashboard_json import content
from dashboards.grafana import PanelRow
from dashboards.not_measured import not_measured_row
from dashboards.panels import Json
from promql.expr import Expr, Matcher, aggregate, equal, vector
from slos import names
from slos.model import Service
from slos.plan import Plan
from slos.queries import Scope, native_signals

OVERVIEW = "overview"
TAG = "tokenslo"
_SHARED = "SLO files"
"""The source of what all services share."""
_JUST_NOW = "5m"


@dataclass(frozen=True, slots=True)
class _ServiceDashboard:
    """A dashboard of each service: ``about`` is the question that it answers."""

    title: str
    about: str
    rows: Callable[[Plan, Scope], Iterable[PanelRow]]
    by_tenant: bool = False


_DASHBOARDS = {
    names.ERROR_BUDGET: _ServiceDashboard(
        "Error budget", "How much budget is left, and what spends it?", error_budget.rows
    ),
    "token-latency": _ServiceDashboard(
        "Token latency", "How long do users wait for tokens, and where?", token_latency.rows
    ),
    "engine": _ServiceDashboard(
        "Engine", "What does the engine do, and how full is it?", engine.rows
    ),
    "streams": _ServiceDashboard(
        "Streams", "How do streams end, and what do client disconnects cost?", streams.rows
    ),
    "capacity": _ServiceDashboard(
        "Capacity", "How much headroom is left, and what limits?", capacity.rows, by_tenant=True
    ),
    "rollout": _ServiceDashboard(
        "Rollout", "Is a model version worse than another one?", rollout.rows
    ),
    "sidecar": _ServiceDashboard(
        "Sidecar", "What is measured, how well, and what is lost?", sidecar.rows
    ),
}

KINDS = (OVERVIEW, *_DASHBOARDS)
"""Names of the dashboards: their files and uids end in them."""


@dataclass(frozen=True, slots=True)
class GeneratedDashboard:
    """One dashboard of the set: its kind, its path below the output folder, its JSON content."""

    kind: str
    path: str
    content: dict[str, Json]


def build(
    plan: Plan, *, source: str, version: str, kinds: Iterable[str] = KINDS
) -> list[GeneratedDashboard]:
    """Generate the dashboards of a plan, as Grafana stores them.

    The overview is the same for every plan: it shows all services.  A service without objectives
    on the sidecar's signals has no other dashboard than its error budget.
    """
    found = []
    for kind in kinds:
        if kind not in (OVERVIEW, names.ERROR_BUDGET) and not _reads_signals(plan):
            continue
        service = "" if kind == OVERVIEW else plan.service.service
        made = _overview(version) if kind == OVERVIEW else _of_service(plan, kind, source, version)
        found.append(
            GeneratedDashboard(
                kind, f"dashboards/{names.dashboard_file(service, kind)}", content(made)
            )
        )
    return found


def _reads_signals(plan: Plan) -> bool:
    """Whether an objective reads the sidecar's signals: not all are user-defined queries."""
    return any(planned.indicator.signals for planned in plan.objectives)


def _overview(version: str) -> core.Dashboard:
    scope = scopes.selected({})
    rows = list(overview.rows(scope))
    return grafana.dashboard(
        uid=names.dashboard_uid("", OVERVIEW),
        title="Overview of all services",
        description="Is every service healthy, for whom not, and since when? "
        + _made(version, _SHARED),
        tags=("llm", "slo", TAG, OVERVIEW),
        variables=[
            grafana.datasource_variable(),
            overview.service_variable(),
            *scopes.variables({}),
        ],
        annotations=[_alerts(overview.SERVICES), _version_changes(scope)],
        links=[
            grafana.dashboards_link("Error budgets", (TAG, names.ERROR_BUDGET)),
            grafana.dashboards_link("All dashboards", (TAG,)),
        ],
        rows=[*rows, not_measured_row(rows, scope)],
    )


def _of_service(plan: Plan, kind: str, source: str, version: str) -> core.Dashboard:
    service, about = plan.service, _DASHBOARDS[kind]
    scope = scopes.selected(service.selector, native_signals(service))
    rows = list(about.rows(plan, scope))
    return grafana.dashboard(
        uid=names.dashboard_uid(service.service, kind),
        title=f"{service.service}: {about.title}",
        description=" ".join(
            filter(None, (about.about, service.description, _made(version, source)))
        ),
        tags=("llm", "slo", TAG, kind, service.service),
        variables=[
            grafana.datasource_variable(),
            *(
                scopes.variables(service.selector, tenants=about.by_tenant)
                if _reads_signals(plan)
                else ()
            ),
            *(error_budget.variables(plan) if kind == names.ERROR_BUDGET else ()),
        ],
        annotations=[
            _alerts(equal({"service": service.service})),
            *([_version_changes(scope)] if _reads_signals(plan) else ()),
        ],
        links=[
            grafana.dashboards_link("All services", (TAG, OVERVIEW)),
            grafana.dashboards_link(service.service, (TAG, service.service)),
            *_runbooks(service),
        ],
        rows=[*rows, *([not_measured_row(rows, scope)] if _reads_signals(plan) else ())],
    )


def _runbooks(service: Service) -> list[core.DashboardLink]:
    """Link to the index of the runbooks, if the URL has no ``{alert}``."""
    base = service.runbooks
    if not base or "{alert}" in base:
        return []
    return [grafana.runbook_link("Runbooks", names.runbook_url(base, service.service, "README"))]


def _made(version: str, source: str) -> str:
    return f"Made by tokenslo {version} from {source}."


def _alerts(matchers: tuple[Matcher, ...]) -> Json:
    return grafana.annotation(
        "Alerts",
        vector("ALERTS", (*matchers, Matcher("alertstate", "=", "firing"))),
        title="{{alertname}}",
        text="{{severity}}, objective {{slo}}",
        color="red",
    )


def _version_changes(scope: Scope) -> Json:
    """Mark when a model version appears."""

    def versions(offset: str | None) -> Expr:
        series = scope.series("tokenslo_model_info", offset=offset)
        return aggregate("count", series, ("model", "version"))

    return grafana.annotation(
        "Version changes",
        versions(None).unless(versions(_JUST_NOW)),
        title="{{model}} version {{version}}",
        text="first seen on a server",
        color="blue",
    )
