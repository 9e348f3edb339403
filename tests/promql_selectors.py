"""Selectors of generated PromQL, read by an independent parser (promql-parser)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser as promql

from slos import names
from slos.causes import CAUSE_ALERTS
from slos.queries import NATIVE_SERIES, SERIES

RECORDED = {
    names.TARGET,
    names.TOTAL,
    names.BAD,
    names.PERIOD_BAD,
    names.PERIOD_ERROR_RATIO,
    names.BUDGET_REMAINING,
    *(
        names.error_ratio(window)
        for window in ("5m", "10m", "30m", "1h", "2h", "6h", "18h", "1d", "3d", "9d")
    ),
}
FOR_CAUSES = {
    names.UNAVAILABLE: {"service", "signal"},
    **{
        each.name: {"instance", "version", "model", "state", "le", "namespace", "cluster"}
        for alert in CAUSE_ALERTS
        for each in alert.reads
    },
}
TARGET_LABELS = {"instance", "namespace", "cluster", "pod", "job"}
LABELS = {
    **{
        name: set(labels) | TARGET_LABELS
        for series in (SERIES, NATIVE_SERIES)
        for name, labels in series.items()
    },
    **{name: {"service", "slo"} for name in RECORDED},
    **FOR_CAUSES,
    # Triton's own metrics, for the alert on GPU memory and the check of an ensemble's stages.
    **{f"nv_gpu_memory_{part}_bytes": {"gpu_uuid"} | TARGET_LABELS for part in ("used", "total")},
    **{
        f"nv_inference_{name}": {"model", "version"} | TARGET_LABELS
        for name in ("pending_request_count", "request_duration_us")
    },
    **{
        f"process_{name}": TARGET_LABELS
        for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds")
    },
    "ALERTS_FOR_STATE": {"service", "slo", "alertname"},
    "ALERTS": {"service", "slo", "alertname", "alertstate", "cause", "model"} | TARGET_LABELS,
}


@dataclass(frozen=True)
class EnclosedSelector:
    """A selector and the nodes around it, outermost first."""

    metric: str
    labels: set[str]
    window: float | None
    around: tuple[object, ...]

    @property
    def functions(self) -> list[str]:
        return [node.func.name for node in self.around if isinstance(node, promql.Call)]

    @property
    def aggregations(self) -> list[tuple[str, list[str]]]:
        return [
            (str(node.op), list(node.modifier.labels) if node.modifier else [])
            for node in self.around
            if isinstance(node, promql.AggregateExpr)
        ]


def selectors(text: str) -> list[EnclosedSelector]:
    """Return every selector of an expression; raises ValueError if it is not PromQL."""
    return list(_walk(promql.parse(text), ()))


def _walk(node: object, around: tuple[object, ...]) -> Iterator[EnclosedSelector]:
    inside = (*around, node)
    match node:
        case promql.VectorSelector():
            yield EnclosedSelector(
                node.name, {m.name for m in node.matchers.matchers}, None, around
            )
        case promql.MatrixSelector():
            inner = node.vector_selector
            labels = {m.name for m in inner.matchers.matchers}
            yield EnclosedSelector(inner.name, labels, node.range.total_seconds(), around)
        case promql.AggregateExpr():
            yield from _walk(node.expr, inside)
        case promql.Call():
            for arg in node.args:
                yield from _walk(arg, inside)
        case promql.BinaryExpr():
            yield from _walk(node.lhs, inside)
            # Labels of a side that is only matched do not reach the aggregations around it.
            filters = str(node.op) in ("and", "unless")
            outer = [each for each in inside if not isinstance(each, promql.AggregateExpr)]
            yield from _walk(node.rhs, tuple(outer) if filters else inside)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from _walk(node.expr, inside)


def unknown(text: str) -> list[str]:
    """Return the metrics and labels of an expression that no server has."""
    found = []
    for each in selectors(text):
        served = LABELS.get(each.metric)
        if served is None:
            found.append(each.metric)
            continue
        grouped = {label for _, by in each.aggregations for label in by}
        found += [f"{each.metric}{{{label}}}" for label in (each.labels | grouped) - served]
    return found
