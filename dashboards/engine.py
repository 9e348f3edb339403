"""Dashboard rows of the engine: streams, saturation, quality of measurement."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from grafanalib import core

from dashboards import grafana
from dashboards.grafana import Level, PanelQuery, PanelRow
from promql.expr import Expr, aggregate, decimal_text
from slos.plan import Plan
from slos.queries import INSTANCE, Scope
from slos.signals import SIGNALS

_NEEDS_A_TAP = "Empty unless the sidecar watches the streams (--tap)."


def rows(plan: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows of services with objectives on the sidecar's signals."""
    yield from _streams(scope)
    yield from _saturation(plan, scope)
    yield from _measurement(scope)


def streams_by_outcome(scope: Scope) -> core.Panel:
    """Return the panel of ended streams by outcome and phase."""
    return grafana.time_series(
        "Streams by outcome and phase",
        "Streaming requests that ended, by outcome and phase. Each failure mid_stream is a "
        f"response that broke off. {_NEEDS_A_TAP}",
        [
            PanelQuery(
                scope.rate(SIGNALS["streams"].metric, by=("outcome", "phase")),
                "{{outcome}} {{phase}}",
            )
        ],
        unit=grafana.REQUESTS_PER_SECOND,
        stacked=True,
    )


def _streams(scope: Scope) -> Iterator[PanelRow]:
    def each_second(key: str, *by: str) -> Expr:
        return scope.rate(SIGNALS[key].metric, by=by)

    yield PanelRow(
        "Streams: what clients see",
        [
            grafana.time_series(
                "Live requests, by instance",
                "Requests under way between clients and server. Growing while requests per second "
                f"do not: they take longer, or do not end. {_NEEDS_A_TAP}",
                [
                    PanelQuery(
                        aggregate("sum", scope.gauge("live_streams"), (INSTANCE,)),
                        f"{{{{{INSTANCE}}}}}",
                    )
                ],
                unit=grafana.COUNT,
            ),
            streams_by_outcome(scope),
            grafana.time_series(
                "Goodput by objective",
                "Requests by result and by the first clause that they failed, for every goodput "
                "objective of the sidecar's SLO file. Empty without one, and "
                "unless the sidecar watches the streams (--slo, --tap).",
                [
                    PanelQuery(
                        each_second("goodput", "objective", "result", "clause"),
                        "{{objective}} {{result}} {{clause}}",
                    )
                ],
                unit=grafana.REQUESTS_PER_SECOND,
                stacked=True,
            ),
        ],
    )
    yield PanelRow(
        "Streams: client disconnects",
        [
            grafana.time_series(
                "Disconnects by phase",
                "Streams whose client disconnected. Before the first token: the client or a "
                "timeout on the path gave up waiting. In the middle: slow output, a response that "
                f"was long enough, or a timeout on the path. {_NEEDS_A_TAP}",
                [PanelQuery(each_second("disconnects", "phase"), "{{phase}}")],
                unit=grafana.PER_SECOND,
                stacked=True,
            ),
            grafana.heatmap(
                "Age at disconnect",
                "Age of streams at the client disconnect. People disconnect at any age; a band at "
                "one age is a timeout. The usual timeouts of gateways and clients have narrow "
                f"buckets of their own. {_NEEDS_A_TAP}",
                scope.histogram("disconnect_age"),
                unit=grafana.SECONDS,
                is_native="disconnect_age" in scope.native,
            ),
            grafana.time_series(
                "Release after a disconnect",
                "Time from a client disconnect until the last observed work of the server for it. "
                "Above about a second the server does not detect the disconnect. "
                f"{_NEEDS_A_TAP}",
                [
                    PanelQuery(scope.quantile(q, "disconnect_release"), f"p{decimal_text(q * 100)}")
                    for q in (Decimal("0.5"), Decimal("0.99"))
                ],
                unit=grafana.SECONDS,
            ),
        ],
    )
    yield PanelRow(
        "Streams: wasted work and back-pressure",
        [
            grafana.time_series(
                "Partial and wasted tokens",
                "Partial: sent to clients that disconnected before the end. Wasted: sent after the "
                "disconnect; a lower bound, as a server may compute without sending. "
                f"{_NEEDS_A_TAP}",
                [
                    PanelQuery(each_second("partial_tokens"), "partial"),
                    PanelQuery(each_second("wasted_tokens"), "wasted"),
                ],
                unit=grafana.PER_SECOND,
            ),
            grafana.time_series(
                "Suspected retries",
                "Requests with the prompt of one that failed or was cancelled shortly before. "
                "Rising together with disconnects, they announce a retry storm. "
                f"{_NEEDS_A_TAP}",
                [PanelQuery(each_second("suspected_retries"), "suspected retries")],
                unit=grafana.REQUESTS_PER_SECOND,
            ),
            grafana.time_series(
                "Client back-pressure",
                "Clients, on average, that did not read data ready for them. The delay is theirs "
                "or the network's, and TTFT and token gaps measured at the client include it. "
                f"{_NEEDS_A_TAP}",
                [PanelQuery(each_second("client_backpressure"), "clients that do not read")],
                unit=grafana.COUNT,
            ),
        ],
    )


def _saturation(plan: Plan, scope: Scope) -> Iterator[PanelRow]:
    kv_limits = [
        Level(planned.objective.threshold, "red")
        for planned in plan.objectives
        if planned.objective.indicator == "kv_headroom"
    ]
    most = scope.gauge("sequences_max")
    yield PanelRow(
        "Saturation: sequences, queue, KV cache",
        [
            grafana.time_series(
                "Sequences by state",
                "Sequences in the engine on all chosen instances, and how many it admits. Waiting "
                "above 0 with active at the maximum: more load than the batch takes. Waiting "
                "below it, or paused above 0: the KV cache is short.",
                [
                    PanelQuery(
                        aggregate("sum", scope.family("sequences_active"), ("state",)), "{{state}}"
                    ),
                    PanelQuery(aggregate("sum", most), "maximum"),
                ],
                unit=grafana.COUNT,
            ),
            grafana.time_series(
                "Waiting, by instance",
                "Sequences admitted but not scheduled. One instance waiting alone is a routing "
                "problem, all of them are a capacity problem.",
                [
                    PanelQuery(
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
                [PanelQuery(scope.fullest("kv_headroom"), f"{{{{{INSTANCE}}}}}")],
                unit=grafana.RATIO,
                lines=kv_limits,
                top=1,
            ),
        ],
    )
    yield PanelRow(
        "Saturation: throughput and memory",
        [
            grafana.time_series(
                "Requests by version",
                "Requests that ended, by model version: where the traffic goes.",
                [PanelQuery(scope.requests(by=("version",)), "version {{version}}")],
                unit=grafana.REQUESTS_PER_SECOND,
                stacked=True,
            ),
            grafana.time_series(
                "Tokens by direction",
                "Tokens per second. Triton counts them when a request ends, so they come in "
                "lumps; output falling while sequences are decoding is a slow or stuck engine.",
                [
                    PanelQuery(
                        scope.rate(SIGNALS["output_tokens"].metric, by=("direction",)),
                        "{{direction}}",
                    )
                ],
                unit=grafana.PER_SECOND,
            ),
            grafana.time_series(
                "KV-cache blocks by state",
                "KV-cache blocks on all chosen instances. Blocks cached for reuse count as free.",
                [
                    PanelQuery(
                        aggregate("sum", scope.family("kv_blocks_used"), ("state",)), "{{state}}"
                    )
                ],
                unit=grafana.COUNT,
            ),
            grafana.time_series(
                "Engine memory, by instance",
                "Memory that the engine holds. It is claimed at load; a step at run time is a "
                "leak or a neighbour on the same GPU.",
                [
                    PanelQuery(
                        aggregate("max", scope.family("memory_gpu"), (INSTANCE, "kind")),
                        f"{{{{kind}}}} {{{{{INSTANCE}}}}}",
                    ),
                ],
                unit=grafana.BYTES,
            ),
        ],
    )


def _measurement(scope: Scope) -> Iterator[PanelRow]:
    labels = {
        "signal": "Signal",
        "quality": "Quality",
        "method": "Method",
        "model": "Model",
        "version": "Version",
    }
    info = aggregate("max", scope.series("tokenslo_signal_info"), labels)
    yield PanelRow(
        "Measurement quality",
        [
            grafana.label_table(
                "How each signal is measured",
                "An estimate is not a measurement, and an unavailable signal has no series; the "
                "sidecar's status page says why and what would bring it.",
                PanelQuery(info),
                labels,
                colors={"exact": "green", "estimate": "orange", "unavailable": "red"},
            ),
            grafana.up_or_down(
                "Sources up",
                "Whether the sidecar's last scrape of each source succeeded. While a source is "
                "down its series are withdrawn, not frozen.",
                PanelQuery(_per_source("min", scope, "tokenslo_source_up"), _SOURCE),
            ),
            grafana.time_series(
                "Age of the last successful scrape",
                "Should stay near the sidecar's scrape interval.",
                [PanelQuery(_per_source("max", scope, "tokenslo_source_age_seconds"), _SOURCE)],
                unit=grafana.SECONDS,
            ),
            grafana.time_series(
                "Age of the engine's statistics",
                "Time since the engine last finished an iteration. It grows while the engine is "
                "idle; growing while sequences are active means that decoding is stuck.",
                [
                    PanelQuery(
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
