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

_SIDECAR, _TAP = f"sidecar {scopes.BY_INSTANCE}", f"tap {scopes.BY_INSTANCE}"
_LOSSES = {
    "tokenslo_tap_dropped_packets_total": "dropped packets",
    "tokenslo_tap_lossy_streams_total": "lossy streams",
    "tokenslo_tap_skipped_total": "skipped: not parsed",
    "tokenslo_tap_late_gaps_total": "late gaps",
    "tokenslo_tap_refused_total": "refused",
}


def rows(_: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows of a service."""
    yield PanelRow("Sources", list(_sources(scope)))
    yield PanelRow("Signals and losses", list(_quality(scope)), height=10, widths=(12, 6, 6))
    yield PanelRow("Resources", list(_resources(scope)))


def _sources(scope: Scope) -> Iterator[core.Panel]:
    up = aggregate("min", scope.series("tokenslo_source_up"), ("source",))
    yield panels.states(
        "Sources up",
        "Whether the last scrape of each source succeeded on all selected instances. The signals "
        "of a source that is down are withdrawn, not frozen.",
        [PanelQuery(up, "{{source}}")],
        {"1": ("up", panels.GREEN), "0": ("down", panels.RED)},
    )
    age = scopes.each("max", scope.series("tokenslo_source_age_seconds"))
    yield panels.time_series(
        "Age of the oldest scrape",
        "Time since the last successful scrape, of the oldest source of each instance. Should stay "
        "near the sidecar's scrape interval.",
        [PanelQuery(age, scopes.BY_INSTANCE)],
        unit=panels.SECONDS,
    )
    errors = scope.rate("tokenslo_source_errors_total", by=("source", "kind"))
    yield panels.time_series(
        "Failed scrapes",
        "Failed scrapes by source and kind of failure; the sidecar's log has the error.",
        [PanelQuery(errors, "{{source}} {{kind}}")],
        unit=panels.PER_SECOND,
        empty="no failed scrapes",
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
        [PanelQuery(scope.rate(metric), text) for metric, text in _LOSSES.items()],
        unit=panels.PER_SECOND,
    )


def _resources(scope: Scope) -> Iterator[core.Panel]:
    cpu = call("rate", _process(scope, "process_cpu_seconds_total", scope.window))
    tap_cpu = scope.rate("tokenslo_tap_process_cpu_seconds_total", by=(INSTANCE,))
    yield panels.time_series(
        "CPU by process",
        "CPU cores that the sidecar and its tap process use. Growth at constant traffic is a bug "
        "to report.",
        [PanelQuery(_ours(cpu, scope), _SIDECAR), PanelQuery(tap_cpu, _TAP)],
        unit=panels.COUNT,
    )
    memory = "resident_memory_bytes"
    yield panels.time_series(
        "Memory by process",
        "Resident memory of the sidecar and its tap process. Steady growth at constant traffic is "
        "a leak.",
        [
            PanelQuery(_ours(_process(scope, f"process_{memory}"), scope), _SIDECAR),
            PanelQuery(scopes.each("max", scope.series(f"tokenslo_tap_process_{memory}")), _TAP),
        ],
        unit=panels.BYTES,
    )
    opened, most = (
        scopes.each("max", scope.series(f"tokenslo_tap_process_{name}_fds"))
        for name in ("open", "max")
    )
    descriptors = _process(scope, "process_open_fds") / _process(scope, "process_max_fds")
    yield panels.time_series(
        "File descriptors",
        "Open file descriptors, of the limit. Near 100% a proxy tap refuses connections: raise the "
        "limit.",
        [PanelQuery(_ours(descriptors, scope), _SIDECAR), PanelQuery(opened / most, _TAP)],
        unit=panels.RATIO,
        top=1,
    )
    yield panels.tiles(
        "Restarts",
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
