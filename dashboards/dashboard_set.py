"""The set of dashboards that is generated from an SLO plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from grafanalib import core

from dashboards import error_budget
from dashboards.dashboard_json import content, text
from dashboards.grafana import Json
from slos import names
from slos.plan import Plan

_DASHBOARDS: Mapping[str, Callable[..., core.Dashboard]] = {
    names.ERROR_BUDGET: error_budget.dashboard
}

KINDS = tuple(_DASHBOARDS)
"""Names of the dashboards."""


@dataclass(frozen=True, slots=True)
class GeneratedDashboard:
    """One dashboard of the set: its kind, its path below the output folder, its JSON content."""

    kind: str
    path: str
    content: dict[str, Json]


def build(
    plan: Plan, *, source: str, version: str, kinds: Iterable[str] = KINDS
) -> list[GeneratedDashboard]:
    """Generate the dashboards of a plan, as Grafana stores them."""
    return [
        GeneratedDashboard(
            kind,
            f"dashboards/{names.dashboard_file(plan.service.service, kind)}",
            content(_DASHBOARDS[kind](plan, source=source, version=version)),
        )
        for kind in kinds
    ]


def files(plan: Plan, *, source: str, version: str, kinds: Iterable[str] = KINDS) -> dict[str, str]:
    """Return the dashboard files of a plan, by path below the output folder."""
    generated = build(plan, source=source, version=version, kinds=kinds)
    return {each.path: text(each.content) for each in generated}
