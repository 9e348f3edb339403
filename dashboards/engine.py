"""What is behind objectives about models: streams, saturation, and how far to trust it all."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from grafanalib import core

from dashboards import grafana
from dashboards.grafana import Level, Query, Row
from promql.expr import Expr, aggregate, decimal_text
from slos.plan import Plan
from slos.queries import INSTANCE, Scope
from slos.signals import SIGNALS

_NEEDS_A_TAP = "Empty unless the sidecar watches the streams (--tap)."


def rows(plan: Plan, scope: Scope) -> Iterator[Row]:
    """Yield what is behind objectives about models; a service with queries of its own has none."""
    yield from _streams(scope)
    yield from _saturation(plan, scope)
    yield from _measurement(scope)


def streams_by_outcome(scope: Scope) -> core.Panel:
    """Return the panel of streams that ended, by how and how far they came."""
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
            streams_by_outcome(scope),
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
                scope.histogram("disconnect_age"),
                unit=grafana.SECONDS,
                is_native="disconnect_age" in scope.native,
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
