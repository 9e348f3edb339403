"""The overview of all services: objectives, budgets and token signals."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from grafanalib import core

from dashboards import grafana, panels, scopes
from dashboards.budget_panels import RecordedSeries, budget_tiles, incidents, objectives_table
from dashboards.grafana import PanelRow
from dashboards.panels import PanelQuery, levels
from promql.expr import Expr, Matcher, aggregate, number, vector
from slos import names
from slos.outcomes import FAILURES
from slos.queries import Scope
from slos.signals import SIGNALS

SERVICES = (Matcher("service", "=~", "$service"),)
"""Matches the selected services on recorded series and alerts."""
_HIGH = Decimal("0.95")
_BY_MODEL = "{{model}}"
_FULL = levels(("0.9", panels.RED))


def service_variable() -> core.Template:
    """Return the variable that selects services."""
    return grafana.variable("service", "Service", vector(names.TARGET))


def rows(scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows for all services."""
    recorded = RecordedSeries(SERVICES, {"service": "Service", "slo": "Objective"})
    yield PanelRow("Objectives of all services", list(_counts(recorded, scope)), height=3)
    yield PanelRow("", budget_tiles(recorded), height=5)
    yield PanelRow("", [objectives_table(recorded, (_BUDGET_LINK,))], height=8)
    yield PanelRow("", [incidents(recorded, "service")], height=5)
    yield from _token_signals(scope)


_BUDGET_LINK = (
    "Error budget of this service",
    "/dashboards?tag=tokenslo&tag=error-budget&tag=${__data.fields.Service}",
)


def _counts(recorded: RecordedSeries, scope: Scope) -> Iterator[core.Panel]:
    every = aggregate("count", recorded.target) * number(0)

    def count(matching: Expr) -> PanelQuery:
        return PanelQuery(aggregate("count", matching).or_(every))

    def tile(title: str, description: str, query: PanelQuery, color: str) -> core.Panel:
        return panels.tiles(
            title,
            description,
            [query],
            unit=panels.COUNT,
            steps=levels((None, panels.GREEN), (1, color)),
            empty="no SLO rules are evaluated",
            background=True,
        )

    yield tile(
        "Alerts firing",
        "Firing alerts of objectives; the table below names the objectives and since when.",
        count(recorded.alerts()),
        panels.RED,
    )
    yield tile(
        "Objectives burning",
        "Objectives whose budget burns faster than allowed in the last hour.",
        count(recorded.burn_rate.compare(">", number(1))),
        panels.ORANGE,
    )
    yield tile(
        "Budgets spent",
        "Objectives that are missed over their period; the budget policy applies to them.",
        count(recorded.budget_left.compare("<=", number(0))),
        panels.RED,
    )
    sources = scope.series("tokenslo_source_up")
    yield panels.tiles(
        "Sources down",
        "Sources that a sidecar cannot scrape: their signals are missing. The Sidecar dashboard "
        "names them.",
        [
            PanelQuery(
                aggregate("count", sources.compare("==", number(0))).or_(
                    aggregate("count", sources) * number(0)
                )
            )
        ],
        unit=panels.COUNT,
        steps=levels((None, panels.GREEN), (1, panels.RED)),
        empty="no sidecar is scraped",
        background=True,
    )


def _any_histogram(scope: Scope, key: str) -> Expr:
    """Return a high quantile by model, of classic or of native histograms."""
    native = Scope(scope.selector, scope.window, scope.also, frozenset({key}))
    return scopes.quantile(scope, _HIGH, key, "model").or_(
        scopes.quantile(native, _HIGH, key, "model")
    )


def _token_signals(scope: Scope) -> Iterator[PanelRow]:
    requests = SIGNALS["requests"].metric
    fullest = aggregate("max", scope.gauge("kv_utilization"), ("model",))
    failed = scope.rate(requests, Matcher("outcome", "=~", "|".join(FAILURES)), by=("model",))
    yield PanelRow(
        "Token signals by model",
        [
            panels.time_series(
                "Time to first token, p95",
                "95% of requests get their first token within this time. A rise with waiting "
                "sequences is a queue.",
                [PanelQuery(_any_histogram(scope, "ttft"), _BY_MODEL)],
                unit=panels.SECONDS,
            ),
            panels.time_series(
                "Inter-token latency, p95",
                "95% of gaps between tokens are shorter than this. A rise with active sequences "
                "is a batch that is too large.",
                [PanelQuery(_any_histogram(scope, "itl"), _BY_MODEL)],
                unit=panels.SECONDS,
            ),
            panels.time_series(
                "Output tokens",
                "Tokens generated per second. A fall while sequences are active is a slow engine.",
                [PanelQuery(scopes.rate(scope, "output_tokens", "model"), _BY_MODEL)],
                unit=panels.PER_SECOND,
            ),
        ],
    )
    yield PanelRow(
        "",
        [
            panels.time_series(
                "Failed requests",
                "Share of requests that failed, were shed or timed out. Open Streams for the "
                "outcomes.",
                [PanelQuery(failed / scope.rate(requests, by=("model",)), _BY_MODEL)],
                unit=panels.RATIO,
            ),
            panels.time_series(
                "Waiting sequences",
                "Queued sequences. A growing queue needs capacity: open Capacity.",
                [PanelQuery(scopes.total(scope, "sequences_waiting", "model"), _BY_MODEL)],
                unit=panels.COUNT,
            ),
            panels.time_series(
                "KV-cache utilization",
                "The fullest instance of each model, never an average. Near 100% requests wait or "
                "are preempted.",
                [PanelQuery(fullest, _BY_MODEL)],
                unit=panels.RATIO,
                lines=_FULL,
                top=1,
            ),
        ],
    )
