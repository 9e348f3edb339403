"""The sidecar of one service: sources, quality of each signal, losses, resources."""

from __future__ import annotations

from collections.abc import Iterator

from grafanalib import core

from dashboards import panels, scopes
from dashboards.grafana import PanelRow
from dashboards.panels import PanelQuery, levels
from promql.expr import Expr, aggregate, call, on, vector
from slos.plan import Plan
from slos.queries import INSTANCE, Scope

_SOURCE = f"{{{{source}}}} {scopes.BY_INSTANCE}"
_LOSSES = {
    "tokenslo_tap_dropped_packets_total": "dropped packets",
    "tokenslo_tap_lossy_streams_total": "lossy streams",
    "tokenslo_tap_passed_over_total": "skipped: not parsed",
    "tokenslo_tap_late_gaps_total": "late gaps",
    "tokenslo_tap_refused_total": "refused",
}


def rows(_: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows of a service."""
    yield PanelRow("Sources", list(_sources(scope)))
    yield PanelRow("Signals and losses", list(_quality(scope)), height=10, widths=(10, 7, 7))
    yield PanelRow("Resources", list(_resources(scope)))


def _per_source(op: str, scope: Scope, metric: str) -> Expr:
    return aggregate(op, scope.series(metric), ("source", INSTANCE))


def _sources(scope: Scope) -> Iterator[core.Panel]:
    yield panels.states(
        "Sources up",
        "Whether the last scrape of each source succeeded. The signals of a source that is down "
        "are withdrawn, not frozen.",
        [PanelQuery(_per_source("min", scope, "tokenslo_source_up"), _SOURCE)],
        {"1": ("up", panels.GREEN), "0": ("down", panels.RED)},
    )
    yield panels.time_series(
        "Age of the last successful scrape",
        "Should stay near the scrape interval of the sidecar.",
        [PanelQuery(_per_source("max", scope, "tokenslo_source_age_seconds"), _SOURCE)],
        unit=panels.SECONDS,
    )
    errors = scope.rate("tokenslo_source_errors_total", by=("source", "kind"))
    yield panels.time_series(
        "Failed scrapes",
        "Failed scrapes by source and kind of failure; the sidecar's log has the error.",
        [PanelQuery(errors, "{{source}} {{kind}}")],
        unit=panels.PER_SECOND,
    )


def _quality(scope: Scope) -> Iterator[core.Panel]:
    labels = {
        "signal": "Signal",
        "quality": "Quality",
        "method": "Method",
        "model": "Model",
        "version": "Version",
    }
    yield panels.label_table(
        "Method and quality of each signal",
        "An estimate is not a measurement, and an unavailable signal has no series: the last "
        "panel states why.",
        PanelQuery(aggregate("max", scope.series("tokenslo_signal_info"), labels)),
        labels,
        colors={"exact": panels.GREEN, "estimate": panels.ORANGE, "unavailable": panels.RED},
        empty="no sidecar is scraped",
    )
    lost = scope.rate("tokenslo_source_lost_records_total", by=("source",))
    yield panels.time_series(
        "Dropped records",
        "Records of the engine that another reader consumed or a full queue dropped. Above zero: "
        "estimates are too low.",
        [PanelQuery(lost, "{{source}}")],
        unit=panels.PER_SECOND,
    )
    yield panels.time_series(
        "Tap losses",
        "What taps could not measure, by reason. Above zero: streams are missing in the "
        "histograms.",
        [
            PanelQuery(scope.rate(metric, by=("tap",)), f"{text} {{{{tap}}}}")
            for metric, text in _LOSSES.items()
        ],
        unit=panels.PER_SECOND,
    )


def _resources(scope: Scope) -> Iterator[core.Panel]:
    cpu = call("rate", _process(scope, "process_cpu_seconds_total", scope.window))
    yield panels.time_series(
        "CPU by instance",
        "CPU cores that the sidecar uses. Growth at constant traffic is a bug to report.",
        [PanelQuery(_ours(cpu, scope), scopes.BY_INSTANCE)],
        unit=panels.COUNT,
    )
    yield panels.time_series(
        "Memory by instance",
        "Resident memory of the sidecar. Steady growth at constant traffic is a leak.",
        [
            PanelQuery(
                _ours(_process(scope, "process_resident_memory_bytes"), scope), scopes.BY_INSTANCE
            )
        ],
        unit=panels.BYTES,
    )
    descriptors = _process(scope, "process_open_fds") / _process(scope, "process_max_fds")
    yield panels.time_series(
        "File descriptors in use",
        "Open file descriptors of the sidecar, of its limit. At 100% a proxy tap refuses "
        "connections: raise the limit.",
        [PanelQuery(_ours(descriptors, scope), scopes.BY_INSTANCE)],
        unit=panels.RATIO,
        top=1,
    )
    yield panels.tiles(
        "Restarts of tap and tasks",
        "Restarts of the tap process and of background tasks in the selected time range; each is "
        "a bug to report.",
        [
            PanelQuery(
                scopes.increase(scope.series("tokenslo_tap_restarts_total"))
                + scopes.increase(scope.series("tokenslo_task_restarts_total"))
            )
        ],
        unit=panels.COUNT,
        steps=levels((None, panels.GREEN), (1, panels.RED)),
    )


def _process(scope: Scope, metric: str, window: str | None = None) -> Expr:
    return vector(metric, scope.foreign(), window)


def _ours(series: Expr, scope: Scope) -> Expr:
    """Keep the processes that are sidecars: other exporters serve the same metrics."""
    sidecars = scope.series("tokenslo_build_info")
    return aggregate("max", series.and_(sidecars, on("job", INSTANCE)), (INSTANCE,))
