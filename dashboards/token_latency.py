"""Token latency of one service: first token, token gaps, stages of a request."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from grafanalib import core

from dashboards import panels, prompt_classes, scopes
from dashboards.grafana import PanelRow
from dashboards.panels import Level, PanelQuery
from slos.durations import format_duration
from slos.plan import Plan
from slos.queries import Scope
from slos.signals import SIGNALS

_P95 = Decimal("0.95")
_SHORT = {
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "max_gap": "Longest gap",
    "e2e": "Duration",
}
_STAGES = ("queue", "prefill", "decode")


def rows(plan: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows of a service."""
    for key, gap in (("ttft", "requests wait"), ("itl", "streams stall")):
        yield PanelRow(SIGNALS[key].title, list(_distribution(plan, scope, key, gap)))
    yield PanelRow(
        "Per request",
        [
            _quantiles(
                plan,
                scope,
                "tpot",
                "Mean time per token of each request: the pace that a reader perceives.",
            ),
            _quantiles(
                plan,
                scope,
                "max_gap",
                "The longest pause of each stream. High with a normal median: single stalls, as "
                "by preemption.",
            ),
            _quantiles(
                plan,
                scope,
                "e2e",
                "Time to the end of the response. It grows with the output length too: compare it "
                "with the time per token.",
            ),
        ],
    )
    yield PanelRow("Stages of a request", list(_stages(scope)))
    yield from prompt_classes.latency_rows(plan, scope)


def thresholds(plan: Plan, key: str) -> list[Level]:
    """Return a line for each threshold of a signal: of objectives and of goodput clauses."""
    own = {
        each.objective.threshold
        for each in plan.objectives
        if each.objective.indicator == key and not each.objective.queries
    }
    clauses = {each.objective.clauses.get(key) for each in plan.objectives}
    return [
        Level(limit, panels.RED if limit in own else panels.ORANGE)
        for limit in sorted(limit for limit in own | clauses if limit is not None)
    ]


def _distribution(plan: Plan, scope: Scope, key: str, trouble: str) -> Iterator[core.Panel]:
    lines = thresholds(plan, key)
    limits = ", ".join(format_duration(line.value) for line in lines if line.value is not None)
    short = _SHORT[key]
    against = f" (threshold {limits})" if limits else ""
    yield panels.heatmap(
        f"{short} distribution{against}",
        "Observations per second in each bucket; every threshold is a bucket boundary. Two bands "
        "are two populations, as short and long prompts.",
        scope.histogram(key),
        unit=panels.SECONDS,
        is_native=key in scope.native,
    )
    yield _quantiles(
        plan,
        scope,
        key,
        f"Quantiles over the selected instances; dashed lines are thresholds. Above them {trouble}"
        " too long.",
    )
    yield panels.time_series(
        f"{short} p95 by version",
        "One version above the others is a slow rollout: open Rollout.",
        [PanelQuery(scopes.quantile(scope, _P95, key, "version"), scopes.BY_VERSION)],
        unit=panels.SECONDS,
        lines=lines,
    )


def _quantiles(plan: Plan, scope: Scope, key: str, description: str) -> core.Panel:
    return panels.time_series(
        f"{_SHORT[key]} quantiles",
        description,
        scopes.quantiles(scope, key, _P95),
        unit=panels.SECONDS,
        lines=thresholds(plan, key),
    )


def _stages(scope: Scope) -> Iterator[core.Panel]:
    yield panels.time_series(
        "Where the time goes",
        "Mean time per request in each stage. Queue grows without capacity, prefill with prompt "
        "length, decode with output length and batch size.",
        [PanelQuery(scope.mean(key), key) for key in _STAGES],
        unit=panels.SECONDS,
        stacked=True,
    )
    yield panels.time_series(
        "First token: wire and engine",
        "Mean time to first token, and the engine's own queue and prefill. With a tap the gap "
        "between both is time outside the engine: frontend, proxy or network.",
        [
            PanelQuery(scope.mean("ttft", ("version",)), f"first token, {scopes.BY_VERSION}"),
            PanelQuery(
                scope.mean("queue", ("version",)) + scope.mean("prefill", ("version",)),
                f"queue + prefill, {scopes.BY_VERSION}",
            ),
        ],
        unit=panels.SECONDS,
    )
    yield panels.time_series(
        "Stages, p99",
        "1% of requests take longer than this in the stage. A high queue with a low mean is a "
        "burst; a high prefill is a long prompt.",
        [PanelQuery(scopes.quantile(scope, Decimal("0.99"), key), key) for key in _STAGES],
        unit=panels.SECONDS,
    )
