"""The dashboard of one service: what is promised, what hurts, why, and whether to believe it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from operator import attrgetter

from grafanalib import core

from dashboards import grafana
from dashboards.grafana import Column, Level, Query, Row
from promql.expr import (
    Expr,
    Matcher,
    aggregate,
    decimal_text,
    number,
    vector,
)
from slos import names
from slos.burn import Pair
from slos.durations import format_duration
from slos.indicators import good_sentence, threshold_text
from slos.model import Objective
from slos.plan import Plan, PlannedObjective
from slos.queries import INSTANCE, Scope, burn_rate, recorded
from slos.signals import SIGNALS

_TIER_COLORS = {"page": "red", "ticket": "orange"}
_VARIABLES = (("version", "Model version"), (INSTANCE, "Instance"))


def files(plan: Plan, *, source: str, version: str) -> dict[str, str]:
    """Return the dashboard of a service under its path below the output folder."""
    path = f"dashboards/{plan.service.service}.json"
    return {path: grafana.render(dashboard(plan, source=source, version=version))}


def dashboard(plan: Plan, *, source: str, version: str) -> core.Dashboard:
    """Lay out the dashboard of a service.

    From top to bottom it answers: which promise is in danger, since when and how badly; what the
    service's users see; what the engine is short of; and how far these numbers can be trusted.
    """
    service = plan.service
    scope = Scope(
        service.selector,
        grafana.RATE_INTERVAL,
        tuple(Matcher(name, "=~", f"${name}") for name, _ in _VARIABLES),
    )
    everything = Scope(service.selector).series("tokenslo_model_info")
    made = f"Made by tokenslo {version} from {source}."
    return grafana.dashboard(
        uid=names.dashboard_uid(service.service),
        title=f"{service.service}: SLOs",
        description=" ".join(filter(None, (service.description, made))),
        tags=("llm", "slo", "tokenslo"),
        variables=[
            grafana.datasource_variable(),
            *(grafana.variable(name, label, everything) for name, label in _VARIABLES),
        ],
        annotations=[_alerts(service.service)],
        links=_runbooks(service.runbooks),
        rows=[
            Row("Objectives", [_overview(plan)], height=3 + len(plan.objectives)),
            *(_objective(planned, plan, scope) for planned in plan.objectives),
            *_saturation(plan, scope),
            *_measurement(scope),
        ],
    )


def _runbooks(base: str) -> list[tuple[str, str]]:
    """Link to the index of the pages, if they are where ``tokenslo generate`` puts them."""
    return [("Runbooks", names.runbook_url(base, "README"))] if base and "{" not in base else []


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
    every = recorded(names.OBJECTIVE, service)

    def column(title: str, series: Expr, unit: str, *levels: Level) -> Column:
        return Column("", title, aggregate("max", series, ("slo",)), unit, levels)

    return grafana.table(
        "Objectives, the least budget first",
        "One row per objective, from the recorded series: they cover the whole service, whatever "
        "version and instance are chosen above. A burn rate of 1 spends exactly the budget; an "
        "empty cell means that there was no traffic, or that the signal is missing.",
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
            column("Events per second", recorded(names.TOTAL_RATE, service), grafana.PER_SECOND),
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


def _objective(planned: PlannedObjective, plan: Plan, scope: Scope) -> Row:
    objective = planned.objective
    target = f"{decimal_text(objective.target * 100)}% of {planned.indicator.events}"
    title = f"{objective.name}: {target}, each good if {good_sentence(objective)}"
    return Row(title, [_burn(planned, plan), *_signal(planned, scope)])


def _burn(planned: PlannedObjective, plan: Plan) -> core.Panel:
    objective, service = planned.objective, plan.service.service
    needed: dict[str, list[str]] = {window: [] for window in planned.windows}
    for pair in planned.pairs:
        text = f"{pair.tier} above {decimal_text(pair.burn_rate)} with {{}}"
        needed[pair.long].append(text.format(pair.short))
        needed[pair.short].append(text.format(pair.long))
    links = [(f"Runbook: {a.name}", a.runbook_url) for a in planned.alerts if a.runbook_url]
    return grafana.time_series(
        "Burn rate by window",
        "How many times faster than allowed the error budget burns. A pair of windows alerts when "
        "both are above its dashed line (red pages, orange opens a ticket); the legend names the "
        "pairs. Recorded series: they cover the whole service.",
        [
            Query(burn_rate(window, service, objective), f"{window}: {'; '.join(texts)}")
            for window, texts in needed.items()
        ],
        unit=grafana.NUMBER,
        lines=_burn_lines(planned.pairs),
        links=links,
    )


def _burn_lines(pairs: Iterable[Pair]) -> list[Level]:
    slowest_first = sorted(pairs, key=attrgetter("burn_rate"))
    return [Level(pair.burn_rate, _TIER_COLORS[pair.tier]) for pair in slowest_first]


def _signal(planned: PlannedObjective, scope: Scope) -> list[core.Panel]:
    """Return the panels about what an objective is about."""
    objective = planned.objective
    if planned.indicator.threshold == "seconds":
        return _latency(planned, scope)
    if planned.indicator.threshold == "ratio":
        return [_headroom(objective, scope)]
    return _outcomes(objective, scope)


def _latency(planned: PlannedObjective, scope: Scope) -> list[core.Panel]:
    objective = planned.objective
    key, threshold = objective.indicator, objective.threshold
    assert threshold is not None  # noqa: S101  (load.py requires it)
    limit = threshold_text(objective)
    noun = planned.indicator.events
    forgotten = (
        " Requests that died before their first token are not in it, but count against the "
        "objective."
        if "requests_without_first_token" in planned.indicator.signals
        else ""
    )
    return [
        grafana.time_series(
            f"Share within {limit}, by version",
            f"Exact share of {noun} within the threshold, which is a bucket edge; the dashed line "
            f"is the target. One version below the others is a rollout to undo.{forgotten}",
            [Query(scope.share_within(key, threshold, ("version",)), "version {{version}}")],
            unit=grafana.RATIO,
            lines=[Level(objective.target, "red")],
            top=1,
        ),
        grafana.time_series(
            f"Quantiles against {limit}",
            "Estimated within histogram buckets, over all chosen versions and instances; the "
            "dashed line is the threshold. The objective is met where the quantile of its target "
            "stays below it.",
            [
                Query(scope.quantile(q, key), f"p{decimal_text(q * 100)}")
                for q in sorted({Decimal("0.5"), objective.target, Decimal("0.99")})
            ],
            unit=grafana.SECONDS,
            lines=[Level(threshold, "red")],
        ),
        grafana.heatmap(
            "Distribution",
            "Observations per second in each bucket. Two bands mean two populations: short and "
            "long prompts, or prefix-cache hits and misses.",
            Query(scope.histogram(key), "{{le}}"),
            unit=grafana.SECONDS,
        ),
    ]


def _outcomes(objective: Objective, scope: Scope) -> list[core.Panel]:
    return [
        grafana.time_series(
            "Share served, by version",
            "Requests served, of those that were served, failed, rejected or timed out; the dashed "
            "line is the target. One version below the others is a rollout to undo.",
            [Query(scope.share_served(("version",)), "version {{version}}")],
            unit=grafana.RATIO,
            lines=[Level(objective.target, "red")],
            top=1,
        ),
        grafana.time_series(
            "Requests by outcome",
            "Requests that ended, with the server's own word for the reason.",
            [Query(scope.requests(by=("outcome", "reason")), "{{outcome}} {{reason}}")],
            unit=grafana.REQUESTS_PER_SECOND,
            stacked=True,
        ),
    ]


def _headroom(objective: Objective, scope: Scope) -> core.Panel:
    assert objective.threshold is not None  # noqa: S101  (load.py requires it)
    return grafana.time_series(
        f"Used, by instance, against {threshold_text(objective)}",
        "The fullest model of each instance; the dashed line is the threshold. Never an average: "
        "requests wait on the full instance while the others idle.",
        [Query(scope.fullest(objective.indicator), f"{{{{{INSTANCE}}}}}")],
        unit=grafana.RATIO,
        lines=[Level(objective.threshold, "red")],
        top=1,
    )


def _saturation(plan: Plan, scope: Scope) -> Iterator[Row]:
    kv_limits = [
        Level(planned.objective.threshold, "red")
        for planned in plan.objectives
        if planned.objective.indicator == "kv_headroom"
    ]
    most = scope.gauge("sequences_max")
    yield Row(
        "Saturation: sequences, queue, KV cache",
        [
            grafana.time_series(
                "Sequences by state",
                "Sequences in the engine on all chosen instances, and how many it admits. Waiting "
                "above 0 with active at the maximum: more load than the batch takes. Waiting "
                "below it, or paused above 0: the KV cache is short.",
                [
                    Query(
                        aggregate("sum", scope.family("sequences_active"), ("state",)), "{{state}}"
                    ),
                    Query(aggregate("sum", most), "maximum"),
                ],
                unit=grafana.COUNT,
            ),
            grafana.time_series(
                "Waiting, by instance",
                "Sequences admitted but not scheduled. One instance waiting alone is a routing "
                "problem, all of them are a capacity problem.",
                [
                    Query(
                        aggregate("max", scope.gauge("sequences_waiting"), (INSTANCE,)),
                        f"{{{{{INSTANCE}}}}}",
                    ),
                ],
                unit=grafana.COUNT,
            ),
            grafana.time_series(
                "KV-cache utilization, by instance",
                "Blocks held by live sequences, of all blocks, on the fullest model of each "
                "instance. With guaranteed_no_evict requests wait before this reaches 100%, as "
                "room for the longest answer is reserved; with max_utilization it does reach it "
                "and sequences are paused.",
                [Query(scope.fullest("kv_headroom"), f"{{{{{INSTANCE}}}}}")],
                unit=grafana.RATIO,
                lines=kv_limits,
                top=1,
            ),
        ],
    )
    yield Row(
        "Saturation: throughput and memory",
        [
            grafana.time_series(
                "Requests by version",
                "Requests that ended, by model version: where the traffic goes.",
                [Query(scope.requests(by=("version",)), "version {{version}}")],
                unit=grafana.REQUESTS_PER_SECOND,
                stacked=True,
            ),
            grafana.time_series(
                "Tokens by direction",
                "Tokens per second. Triton counts them when a request ends, so they come in "
                "lumps; output falling while sequences are decoding is a slow or stuck engine.",
                [
                    Query(
                        scope.rate(SIGNALS["output_tokens"].metric, by=("direction",)),
                        "{{direction}}",
                    )
                ],
                unit=grafana.PER_SECOND,
            ),
            grafana.time_series(
                "KV-cache blocks by state",
                "KV-cache blocks on all chosen instances. Blocks cached for reuse count as free.",
                [Query(aggregate("sum", scope.family("kv_blocks_used"), ("state",)), "{{state}}")],
                unit=grafana.COUNT,
            ),
            grafana.time_series(
                "Engine memory, by instance",
                "Memory that the engine holds. It is claimed at load; a step at run time is a "
                "leak or a neighbour on the same GPU.",
                [
                    Query(
                        aggregate("max", scope.family("memory_gpu"), (INSTANCE, "kind")),
                        f"{{{{kind}}}} {{{{{INSTANCE}}}}}",
                    ),
                ],
                unit=grafana.BYTES,
            ),
        ],
    )


def _measurement(scope: Scope) -> Iterator[Row]:
    labels = {
        "signal": "Signal",
        "quality": "Quality",
        "method": "Method",
        "model": "Model",
        "version": "Version",
    }
    info = aggregate("max", scope.series("tokenslo_signal_info"), labels)
    yield Row(
        "Measurement: can these numbers be trusted?",
        [
            grafana.label_table(
                "How each signal is measured",
                "An estimate is not a measurement, and an unavailable signal has no series; the "
                "sidecar's status page says why and what would bring it.",
                Query(info),
                labels,
                colors={"exact": "green", "estimate": "orange", "unavailable": "red"},
            ),
            grafana.up_or_down(
                "Sources read",
                "Whether the sidecar's last reading of each source succeeded. While a source is "
                "down its series are withdrawn, not frozen.",
                Query(_per_source("min", scope, "tokenslo_source_up"), _SOURCE),
            ),
            grafana.time_series(
                "Age of the last good reading",
                "Should stay near the sidecar's reading interval.",
                [Query(_per_source("max", scope, "tokenslo_source_age_seconds"), _SOURCE)],
                unit=grafana.SECONDS,
            ),
            grafana.time_series(
                "Age of the engine's statistics",
                "Time since the engine last finished an iteration. It grows while the engine is "
                "idle; growing while sequences are active means that decoding is stuck.",
                [
                    Query(
                        aggregate(
                            "max",
                            scope.series("tokenslo_engine_stats_age_seconds"),
                            ("model", "version", INSTANCE),
                        ),
                        f"{{{{model}}}} {{{{version}}}} {{{{{INSTANCE}}}}}",
                    )
                ],
                unit=grafana.SECONDS,
            ),
        ],
        height=10,
        widths=(9, 5, 5, 5),
    )


_SOURCE = f"{{{{source}}}} {{{{{INSTANCE}}}}}"


def _per_source(op: str, scope: Scope, metric: str) -> Expr:
    return aggregate(op, scope.series(metric), ("source", INSTANCE))
