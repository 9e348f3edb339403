"""Panels of one objective: burn rate, budget and signal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from operator import attrgetter

from grafanalib import core

from dashboards import grafana
from dashboards.engine import streams_by_outcome
from dashboards.generic import own_panels
from dashboards.grafana import Level, PanelQuery, PanelRow
from promql.expr import Expr, aggregate, decimal_text, number
from slos import names
from slos.burn import Pair
from slos.indicators import INDICATORS, good_sentence, threshold_text
from slos.model import Objective
from slos.plan import Plan, PlannedObjective
from slos.queries import INSTANCE, Scope, burn_rate, native_signals, recorded
from slos.signals import SIGNALS

_GROUPS = 20
"""How many groups of an objective a panel shows."""
_TIER_COLORS = {"page": "red", "ticket": "orange"}


def objective_row(planned: PlannedObjective, plan: Plan, scope: Scope) -> PanelRow:
    """Return the panels of an objective; ``scope`` has the signals of its service."""
    objective = planned.objective
    target = f"{decimal_text(objective.target * 100)}% of {planned.indicator.events}"
    title = f"{objective.name}: {target}, each good if {good_sentence(objective)}"
    its_own = replace(
        scope,
        selector=plan.service.selects(objective),
        native=native_signals(plan.service, objective),
    )
    panels = [_burn(planned, plan), *_groups(planned, plan), *_signal(planned, plan, its_own)]
    return PanelRow(title, panels)


def _groups(planned: PlannedObjective, plan: Plan) -> Iterator[core.Panel]:
    """Yield the panel of the budget by group; only the worst groups are drawn."""
    objective = planned.objective
    if not objective.group_by:
        return
    left = recorded(names.BUDGET_REMAINING, plan.service.service, objective)
    least = aggregate("bottomk", left, parameter=number(_GROUPS))
    yield grafana.time_series(
        f"Budget left, by {' and '.join(objective.group_by)}",
        f"The {_GROUPS} groups with the least budget left, at each time. Below the dashed line it "
        "is spent.",
        [PanelQuery(least, grafana.legend(objective.group_by))],
        unit=grafana.RATIO,
        lines=[Level(Decimal(0), "red")],
        top=1,
    )


def _burn(planned: PlannedObjective, plan: Plan) -> core.Panel:
    objective, service = planned.objective, plan.service.service
    needed: dict[str, list[str]] = {window: [] for window in planned.windows}
    for pair in planned.alerting_pairs:
        text = f"{pair.tier} above {decimal_text(pair.burn_rate)} with {{}}"
        needed[pair.long].append(text.format(pair.short))
        needed[pair.short].append(text.format(pair.long))
    links = [(f"Runbook: {a.name}", a.runbook_url) for a in planned.alerts if a.runbook_url]
    by = objective.group_by
    worst = f" Each line is the {' and '.join(by)} that burns the fastest." if by else ""

    def burning(window: str) -> Expr:
        rate = burn_rate(window, service, objective)
        return aggregate("max", rate) if by else rate

    return grafana.time_series(
        "Burn rate by window",
        "How many times faster than allowed the error budget burns. A pair of windows alerts when "
        "both are above its dashed line (red pages, orange opens a ticket); the legend names the "
        f"pairs. Recorded series: they cover the whole service.{worst}",
        [
            PanelQuery(burning(window), f"{window}: {'; '.join(texts)}")
            for window, texts in needed.items()
        ],
        unit=grafana.NUMBER,
        lines=_burn_lines(planned.alerting_pairs),
        links=links,
    )


def _burn_lines(pairs: Iterable[Pair]) -> list[Level]:
    slowest_first = sorted(pairs, key=attrgetter("burn_rate"))
    return [Level(pair.burn_rate, _TIER_COLORS[pair.tier]) for pair in slowest_first]


def _signal(planned: PlannedObjective, plan: Plan, scope: Scope) -> list[core.Panel]:
    """Return the panels of an objective's signal."""
    objective = planned.objective
    if objective.queries:
        is_native = plan.service.native(objective)
        return own_panels(planned, plan.service.service, is_native=is_native)
    if planned.indicator.threshold == "seconds":
        return _latency(planned, scope)
    if planned.indicator.threshold == "ratio":
        return [_headroom(objective, scope)]
    return _verdicts(planned, plan.service.service, scope)


def _latency(planned: PlannedObjective, scope: Scope) -> list[core.Panel]:
    objective = planned.objective
    key, threshold = objective.indicator, objective.threshold
    assert threshold is not None  # noqa: S101  (load.py requires it)
    limit = threshold_text(objective)
    noun = INDICATORS[key].events
    is_native = key in scope.native
    exact = (
        f"Share of {noun} within the threshold: exact if that is a bucket boundary, else "
        "interpolated within one bucket"
        if is_native
        else f"Exact share of {noun} within the threshold, which is a bucket boundary"
    )
    forgotten = (
        " It leaves out requests that failed before their first token; the objective counts them "
        "as bad."
        if objective.indicator == "ttft"
        else ""
    )
    return [
        grafana.time_series(
            f"Share within {limit}, by version",
            f"{exact}; the dashed line is the target. One version below the others is a rollout "
            f"to undo.{forgotten}",
            [PanelQuery(scope.share_within(key, threshold, ("version",)), "version {{version}}")],
            unit=grafana.RATIO,
            lines=[Level(_share_asked(objective), "red")],
            top=1,
        ),
        grafana.time_series(
            f"Quantiles against {limit}",
            "Estimated within histogram buckets, over all chosen versions and instances; the "
            "dashed line is the threshold. The objective is met where the quantile of its target "
            "stays below it.",
            [
                PanelQuery(scope.quantile(q, key), f"p{decimal_text(q * 100)}")
                for q in sorted({Decimal("0.5"), _share_asked(objective), Decimal("0.99")})
            ],
            unit=grafana.SECONDS,
            lines=[Level(threshold, "red")],
        ),
        grafana.heatmap(
            "Distribution",
            "Observations per second in each bucket. Two bands mean two populations: short and "
            "long prompts, or prefix-cache hits and misses.",
            scope.histogram(key),
            unit=grafana.SECONDS,
            is_native=is_native,
        ),
    ]


def _share_asked(objective: Objective) -> Decimal:
    """Return the target share of good events: of all, or of those in a time slice."""
    return objective.slices.target if objective.slices else objective.target


_GOOD_SHARES = {
    "availability": (
        "Share served, by version",
        "Requests served, of those that were served, failed, rejected or timed out.",
    ),
    "stream_completion": (
        "Share completed, by version",
        "Streams that ran to their end, of those that had begun without a client disconnect.",
    ),
    "disconnects": (
        "Share without a client disconnect, by version",
        "Streams that ran to their end, of those and of the ones with a client disconnect.",
    ),
    "goodput": (
        "Share that met every clause, by version",
        "Requests that met every clause, of those that could be judged.",
    ),
}


def _verdicts(planned: PlannedObjective, service: str, scope: Scope) -> list[core.Panel]:
    objective = planned.objective
    title, about = _GOOD_SHARES[objective.indicator]
    return [
        grafana.time_series(
            title,
            f"{about} The dashed line is the target. One version below the others is a rollout to "
            "undo.",
            [PanelQuery(scope.share_good(objective, service, ("version",)), "version {{version}}")],
            unit=grafana.RATIO,
            lines=[Level(_share_asked(objective), "red")],
            top=1,
        ),
        _events(planned, service, scope),
    ]


def _events(planned: PlannedObjective, service: str, scope: Scope) -> core.Panel:
    """Return the panel of all events that an objective counts."""
    match planned.indicator.signals[0]:
        case "requests":
            return grafana.time_series(
                "Requests by outcome",
                "Requests that ended, and failures with the server's reason.",
                [
                    PanelQuery(scope.requests("ok"), "ok"),
                    PanelQuery(
                        scope.rate(SIGNALS["request_failures"].metric, by=("outcome", "reason")),
                        "{{outcome}} {{reason}}",
                    ),
                ],
                unit=grafana.REQUESTS_PER_SECOND,
                stacked=True,
            )
        case "goodput":
            return grafana.time_series(
                "Failing clause",
                "Bad requests by the first clause that they failed; outcome is a request that the "
                "server failed. Unknown: the server did not report what a clause needs; such "
                "requests do not count.",
                [
                    PanelQuery(
                        scope.goodput(
                            planned.objective, service, "bad", "unknown", by=("result", "clause")
                        ),
                        "{{result}} {{clause}}",
                    )
                ],
                unit=grafana.REQUESTS_PER_SECOND,
                stacked=True,
            )
        case _:
            return streams_by_outcome(scope)


def _headroom(objective: Objective, scope: Scope) -> core.Panel:
    assert objective.threshold is not None  # noqa: S101  (load.py requires it)
    return grafana.time_series(
        f"Used, by instance, against {threshold_text(objective)}",
        "The fullest model of each instance; the dashed line is the threshold. Never an average: "
        "requests wait on the full instance while the others idle.",
        [PanelQuery(scope.fullest(objective.indicator), f"{{{{{INSTANCE}}}}}")],
        unit=grafana.RATIO,
        lines=[Level(objective.threshold, "red")],
        top=1,
    )
