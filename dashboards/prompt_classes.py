"""Rows by prompt class, for services whose SLO file has prompt classes."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from grafanalib import core

from dashboards import panels, scopes
from dashboards.grafana import PanelRow
from dashboards.panels import PanelQuery
from promql.expr import Binary, Expr, on
from slos.plan import Plan
from slos.queries import Scope
from slos.signals import PROMPT_CLASS, SIGNALS

_P95 = Decimal("0.95")
_BY_CLASS = f"{{{{{PROMPT_CLASS}}}}} tokens"
_BY_BOTH = f"{_BY_CLASS}, {scopes.BY_VERSION}"


def latency_rows(plan: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield latency and traffic by prompt class."""
    if plan.service.prompt_classes:
        yield PanelRow("Prompt classes", list(_latency(scope)))
        yield PanelRow("Lengths of prompts and responses", list(_lengths(scope)), height=7)


def rollout_rows(plan: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the mix of prompts, and the latency within each class, version beside version."""
    if plan.service.prompt_classes:
        yield PanelRow("Prompt classes", list(_versions(scope)))


def _latency(scope: Scope) -> Iterator[core.Panel]:
    yield panels.time_series(
        "TTFT p95 by prompt class",
        "Prefill takes longer for longer prompts. One class above its usual level is a slower "
        "engine; all classes at their level and a higher total is another mix of prompts.",
        [PanelQuery(scopes.quantile(scope, _P95, "ttft", PROMPT_CLASS), _BY_CLASS)],
        unit=panels.SECONDS,
    )
    yield panels.time_series(
        "Prefill p95 by prompt class",
        "The engine's own time, where responses carry it.",
        [PanelQuery(scopes.quantile(scope, _P95, "prefill", PROMPT_CLASS), _BY_CLASS)],
        unit=panels.SECONDS,
    )
    yield panels.time_series(
        "Requests by prompt class",
        "The mix of prompts. Prompts of unknown length are a class.",
        [PanelQuery(scope.requests(by=(PROMPT_CLASS,)), _BY_CLASS)],
        unit=panels.REQUESTS_PER_SECOND,
        stacked=True,
    )


def _lengths(scope: Scope) -> Iterator[core.Panel]:
    for key, description in (
        ("input_length", "Tokens of prompts, per request."),
        ("output_length", "Tokens of complete responses, per request."),
    ):
        yield panels.time_series(
            SIGNALS[key].title,
            description,
            scopes.quantiles(scope, key, _P95),
            unit=panels.COUNT,
        )
    yield panels.time_series(
        "Basis of prompt classes",
        "Whether the class comes from a number of tokens or from an estimate. An estimated class "
        "close to a bound may be the neighbouring one.",
        [PanelQuery(scopes.rate(scope, "prompt_class", "basis"), "{{basis}}")],
        unit=panels.REQUESTS_PER_SECOND,
        stacked=True,
    )


def _versions(scope: Scope) -> Iterator[core.Panel]:
    yield panels.time_series(
        "Prompt mix by version",
        "The share of each prompt class in the requests of a version. Versions with different "
        "mixes cannot be compared by a total.",
        [PanelQuery(_mix(scope), _BY_BOTH)],
        unit=panels.RATIO,
        top=1,
    )
    yield panels.time_series(
        "TTFT p95 by prompt class and version",
        "Compare versions within a class: a new version above the old one in the same class is "
        "slower.",
        [PanelQuery(scopes.quantile(scope, _P95, "ttft", PROMPT_CLASS, "version"), _BY_BOTH)],
        unit=panels.SECONDS,
    )


def _mix(scope: Scope) -> Expr:
    of_class = scope.requests(by=(PROMPT_CLASS, "version"))
    return Binary(
        of_class,
        "/",
        scope.requests(by=("version",)),
        matching=on("version", group_left=()),
    )
