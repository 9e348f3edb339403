"""The dashboard of one service: what is promised, what hurts, why, and whether to believe it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from operator import attrgetter

from grafanalib import core

from dashboards import grafana
from dashboards.generic import own_panels
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
from slos.indicators import INDICATORS, good_sentence, threshold_text
from slos.model import Objective
from slos.plan import Plan, PlannedObjective
from slos.queries import INSTANCE, Scope, burn_rate, recorded
from slos.signals import SIGNALS

_GROUPS = 20
"""How many groups of an objective a panel shows."""
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
    about_models = any(planned.indicator.signals for planned in plan.objectives)
    made = f"Made by tokenslo {version} from {source}."
    return grafana.dashboard(
        uid=names.dashboard_uid(service.service),
        title=f"{service.service}: SLOs",
        description=" ".join(filter(None, (service.description, made))),
        tags=("llm", "slo", "tokenslo"),
        variables=[
            grafana.datasource_variable(),
            *(
                grafana.variable(name, label, everything)
                for name, label in (_VARIABLES if about_models else ())
            ),
        ],
        annotations=[_alerts(service.service)],
        links=_runbooks(service.runbooks),
        rows=[
            Row("Objectives", [_overview(plan)], height=3 + len(plan.objectives)),
            *(_objective(planned, plan, scope) for planned in plan.objectives),
            *(_engine(plan, scope) if about_models else ()),
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
                recorded(names.TOTAL_RATE, service),
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


def _objective(planned: PlannedObjective, plan: Plan, scope: Scope) -> Row:
    objective = planned.objective
    target = f"{decimal_text(objective.target * 100)}% of {planned.indicator.events}"
    title = f"{objective.name}: {target}, each good if {good_sentence(objective)}"
    its_own = replace(scope, selector=plan.service.selects(objective))
    panels = [_burn(planned, plan), *_groups(planned, plan), *_signal(planned, plan, its_own)]
    return Row(title, panels)


def _groups(planned: PlannedObjective, plan: Plan) -> Iterator[core.Panel]:
    """Yield the budget by group, if there are groups; all of them could be too many to draw."""
    objective = planned.objective
    if not objective.group_by:
        return
    left = recorded(names.BUDGET_REMAINING, plan.service.service, objective)
    least = aggregate("bottomk", left, parameter=number(_GROUPS))
    yield grafana.time_series(
        f"Budget left, by {' and '.join(objective.group_by)}",
        f"The {_GROUPS} groups with the least budget left, at each time. Below the dashed line it "
        "is spent.",
        [Query(least, grafana.legend(objective.group_by))],
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
            Query(burning(window), f"{window}: {'; '.join(texts)}")
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
    """Return the panels about what an objective is about."""
    objective = planned.objective
    if objective.queries:
        return own_panels(planned, plan.service.service)
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
            lines=[Level(_share_asked(objective), "red")],
            top=1,
        ),
        grafana.time_series(
            f"Quantiles against {limit}",
            "Estimated within histogram buckets, over all chosen versions and instances; the "
            "dashed line is the threshold. The objective is met where the quantile of its target "
            "stays below it.",
            [
                Query(scope.quantile(q, key), f"p{decimal_text(q * 100)}")
                for q in sorted({Decimal("0.5"), _share_asked(objective), Decimal("0.99")})
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


def _share_asked(objective: Objective) -> Decimal:
    """Return the share of events that shall be good: of all, or of those in a slice of time."""
    return objective.slices.target if objective.slices else objective.target


_GOOD_SHARES = {
    "availability": (
        "Share served, by version",
        "Requests served, of those that were served, failed, rejected or timed out.",
    ),
    "stream_completion": (
        "Share completed, by version",
        "Streams that ran to their end, of those that had begun and whose client stayed.",
    ),
    "disconnects": (
        "Share whose client stayed, by version",
        "Streams that ran to their end, of those and of the ones that their client left.",
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
            [Query(scope.share_good(objective, service, ("version",)), "version {{version}}")],
            unit=grafana.RATIO,
            lines=[Level(_share_asked(objective), "red")],
            top=1,
        ),
        _events(planned, service, scope),
    ]


def _events(planned: PlannedObjective, service: str, scope: Scope) -> core.Panel:
    """Return the panel of everything that an objective takes its events from."""
    match planned.indicator.signals[0]:
        case "requests":
            return grafana.time_series(
                "Requests by outcome",
                "Requests that ended, with the server's own word for the reason.",
                [Query(scope.requests(by=("outcome", "reason")), "{{outcome}} {{reason}}")],
                unit=grafana.REQUESTS_PER_SECOND,
                stacked=True,
            )
        case "goodput":
            return grafana.time_series(
                "Failing clause",
                "Requests that were bad, by the clause that they failed first in the file's order; "
                "outcome is a request that the server failed. Unknown ones could not be judged, "
                "as the server did not tell what a clause asks for, and do not count.",
                [
                    Query(
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
            return _streams_by_outcome(scope)


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


_NEEDS_A_TAP = "Empty unless the sidecar watches the streams (--tap)."


def _streams_by_outcome(scope: Scope) -> core.Panel:
    return grafana.time_series(
        "Streams by outcome and phase",
        "Streaming requests that ended: how, and how far they came. Any failure mid_stream is a "
        f"user who saw an answer break off. {_NEEDS_A_TAP}",
        [
            Query(
                scope.rate(SIGNALS["streams"].metric, by=("outcome", "phase")),
                "{{outcome}} {{phase}}",
            )
        ],
        unit=grafana.REQUESTS_PER_SECOND,
        stacked=True,
    )


def _streams(scope: Scope) -> Iterator[Row]:
    def each_second(key: str, *by: str) -> Expr:
        return scope.rate(SIGNALS[key].metric, by=by)

    yield Row(
        "Streams: what clients see",
        [
            grafana.time_series(
                "Live requests, by instance",
                "Requests under way between clients and server. Growing while requests per second "
                f"do not: they take longer, or nobody ends them. {_NEEDS_A_TAP}",
                [
                    Query(
                        aggregate("sum", scope.gauge("live_streams"), (INSTANCE,)),
                        f"{{{{{INSTANCE}}}}}",
                    )
                ],
                unit=grafana.COUNT,
            ),
            _streams_by_outcome(scope),
            grafana.time_series(
                "Goodput by objective",
                "Requests by whether they met every clause, and the first that they failed, for "
                "every goodput objective that the sidecar was given. Empty without one, and "
                "unless the sidecar watches the streams (--slo, --tap).",
                [
                    Query(
                        each_second("goodput", "objective", "result", "clause"),
                        "{{objective}} {{result}} {{clause}}",
                    )
                ],
                unit=grafana.REQUESTS_PER_SECOND,
                stacked=True,
            ),
        ],
    )
    yield Row(
        "Streams: clients that leave",
        [
            grafana.time_series(
                "Disconnects by phase",
                "Streams whose client left. Before the first token: it waited too long, or a "
                "timeout on the way did. In the middle: it was slow, it had read enough, or "
                f"something on the way cut it off. {_NEEDS_A_TAP}",
                [Query(each_second("disconnects", "phase"), "{{phase}}")],
                unit=grafana.PER_SECOND,
                stacked=True,
            ),
            grafana.heatmap(
                "Age at disconnect",
                "How old streams were when their client left. People leave at any age; a band at "
                "one age is a timeout, and the age names it: each usual timeout of gateways and "
                f"clients has a narrow bucket of its own. {_NEEDS_A_TAP}",
                Query(scope.histogram("disconnect_age"), "{{le}}"),
                unit=grafana.SECONDS,
            ),
            grafana.time_series(
                "Release after a disconnect",
                "Time from a client's leaving until the server was last seen to work for it. "
                "Above a second or so the server does not notice, or nobody tells it. "
                f"{_NEEDS_A_TAP}",
                [
                    Query(scope.quantile(q, "disconnect_release"), f"p{decimal_text(q * 100)}")
                    for q in (Decimal("0.5"), Decimal("0.99"))
                ],
                unit=grafana.SECONDS,
            ),
        ],
    )
    yield Row(
        "Streams: work for nobody, and pressure",
        [
            grafana.time_series(
                "Tokens that did not make an answer",
                "Partial: sent to clients that left before the end. Wasted: sent after they had "
                "left; it is a lower bound, as a server may go on without sending. "
                f"{_NEEDS_A_TAP}",
                [
                    Query(each_second("partial_tokens"), "partial"),
                    Query(each_second("wasted_tokens"), "wasted"),
                ],
                unit=grafana.PER_SECOND,
            ),
            grafana.time_series(
                "Suspected retries",
                "Requests with the prompt of one that failed or was left shortly before. Rising "
                "together with disconnects, it is a retry storm in the making. "
                f"{_NEEDS_A_TAP}",
                [Query(each_second("suspected_retries"), "suspected retries")],
                unit=grafana.REQUESTS_PER_SECOND,
            ),
            grafana.time_series(
                "Client back-pressure",
                "How many clients, on average, did not read what was there for them. What they "
                "feel as slow is their own end or the network, and TTFT and token gaps measured "
                f"at them look worse than the server is. {_NEEDS_A_TAP}",
                [Query(each_second("client_backpressure"), "clients that do not read")],
                unit=grafana.COUNT,
            ),
        ],
    )


def _engine(plan: Plan, scope: Scope) -> Iterator[Row]:
    """Yield what is behind objectives about models; a service with queries of its own has none."""
    yield from _streams(scope)
    yield from _saturation(plan, scope)
    yield from _measurement(scope)


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
