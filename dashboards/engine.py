"""The engine of one service: sequences, KV cache, throughput."""

from __future__ import annotations

from collections.abc import Iterator

from grafanalib import core

from dashboards import panels, scopes
from dashboards.grafana import PanelRow
from dashboards.panels import Level, PanelQuery
from promql.expr import aggregate, number
from slos.plan import Plan
from slos.queries import Scope


def rows(plan: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows of a service."""
    yield PanelRow("Sequences", list(_sequences(scope)))
    yield PanelRow("KV cache", list(_kv_cache(plan, scope)))
    yield PanelRow("Throughput", list(_throughput(scope)))
    yield PanelRow("Memory and statistics", list(_state(scope)))


def kv_utilization(plan: Plan, scope: Scope) -> core.Panel:
    """Return the panel of the fullest model of each instance."""
    return panels.time_series(
        "KV-cache utilization by instance",
        "The fullest model of each instance, never a sum. Near the limit requests wait for the "
        "cache or are preempted: open Capacity.",
        [PanelQuery(scope.fullest("kv_headroom"), scopes.BY_INSTANCE)],
        unit=panels.RATIO,
        lines=headroom_limits(plan, "kv_headroom"),
        top=1,
    )


def headroom_limits(plan: Plan, indicator: str) -> list[Level]:
    """Return a line for each threshold of a headroom indicator."""
    limits = {
        each.objective.threshold
        for each in plan.objectives
        if each.objective.indicator == indicator and each.objective.threshold is not None
    }
    return [Level(limit, panels.RED) for limit in sorted(limits)]


def _sequences(scope: Scope) -> Iterator[core.Panel]:
    yield panels.time_series(
        "Sequences by state",
        "Sequences of all instances against the maximum. Waiting with active at the maximum: too "
        "few slots; waiting below it: too little KV cache.",
        [
            PanelQuery(aggregate("sum", scope.family("sequences_active"), ("state",)), "{{state}}"),
            PanelQuery(scopes.total(scope, "sequences_max"), "maximum"),
        ],
        unit=panels.COUNT,
        colors={
            "active": panels.GREEN,
            "decoding": panels.BLUE,
            "waiting": panels.ORANGE,
            "paused": panels.RED,
            "maximum": panels.NEUTRAL,
        },
    )
    yield panels.time_series(
        "Waiting sequences by instance",
        "Queued sequences. One instance alone is a routing problem, all of them a capacity "
        "problem.",
        [PanelQuery(scopes.each("sum", scope.gauge("sequences_waiting")), scopes.BY_INSTANCE)],
        unit=panels.COUNT,
    )
    yield panels.time_series(
        "Preemptions by instance",
        "Sequences paused to make room in the KV cache; their streams stall. Above zero for "
        "minutes: add KV cache or lower the batch size.",
        [PanelQuery(scopes.rate(scope, "preemptions", "instance"), scopes.BY_INSTANCE)],
        unit=panels.PER_SECOND,
    )


def _kv_cache(plan: Plan, scope: Scope) -> Iterator[core.Panel]:
    reused, missed = (scopes.rate(scope, f"kv_{kind}_blocks") for kind in ("reused", "missed"))
    yield kv_utilization(plan, scope)
    yield panels.time_series(
        "KV-cache blocks by state",
        "Blocks of all instances; blocks kept for reuse count as free.",
        [PanelQuery(aggregate("sum", scope.family("kv_blocks_used"), ("state",)), "{{state}}")],
        unit=panels.COUNT,
    )
    yield panels.time_series(
        "Prefix reuse",
        "Share of KV-cache blocks, or else of input tokens, that the prefix cache supplied. A "
        "fall makes prefill slower: check routing and prompt templates.",
        [
            PanelQuery(reused / (reused + missed), "blocks"),
            PanelQuery(
                scopes.rate(scope, "cached_input_tokens") / scopes.rate(scope, "input_tokens"),
                "input tokens",
            ),
        ],
        unit=panels.RATIO,
        top=1,
    )


def _throughput(scope: Scope) -> Iterator[core.Panel]:
    output = scopes.rate(scope, "output_tokens")
    yield panels.time_series(
        "Prefill and decode",
        "Input tokens (cached ones apart) and output tokens per second. Engines that count at the "
        "end of a request count in lumps.",
        [
            PanelQuery(scopes.rate(scope, "input_tokens"), "prefill: input"),
            PanelQuery(scopes.rate(scope, "cached_input_tokens"), "of it cached"),
            PanelQuery(output, "decode: output"),
        ],
        unit=panels.PER_SECOND,
    )
    decoding = scopes.total(scope, "sequences_decoding")
    yield panels.time_series(
        "Time per decode step (estimate)",
        "Decoding sequences / output tokens per second: about one iteration of the engine. It "
        "grows with batch size and context length.",
        [PanelQuery(decoding / output.compare(">", number(0)), "per token and sequence")],
        unit=panels.SECONDS,
    )
    yield panels.time_series(
        "Accepted draft tokens",
        "Accepted share of the tokens that speculative decoding proposes. A low share wastes "
        "compute: shorten the draft or disable it.",
        [
            PanelQuery(
                scopes.rate(scope, "accepted_draft_tokens", "version")
                / scopes.rate(scope, "draft_tokens", "version"),
                scopes.BY_VERSION,
            )
        ],
        unit=panels.RATIO,
        top=1,
    )


def _state(scope: Scope) -> Iterator[core.Panel]:
    yield panels.time_series(
        "Engine memory by instance",
        "Memory that the engine holds. It is allocated at load; a later step is a leak or another "
        "process on the GPU.",
        [
            PanelQuery(
                scopes.each("max", scope.family("memory_gpu"), "kind"),
                f"{{{{kind}}}} {scopes.BY_INSTANCE}",
            )
        ],
        unit=panels.BYTES,
    )
    yield panels.time_series(
        "Age of the engine's statistics",
        "Time since the engine last published an iteration. Growth while sequences are active "
        "means that decoding is stuck.",
        [
            PanelQuery(
                scopes.each("max", scope.series("tokenslo_engine_stats_age_seconds")),
                scopes.BY_INSTANCE,
            )
        ],
        unit=panels.SECONDS,
    )
