"""Check the queries and the settings of scalers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from promql.lint.checks.units import quantity
from promql.lint.context import LintContext
from promql.lint.findings import Hit, ScalerHit, Severity
from promql.lint.located_query import LocatedQuery
from promql.lint.scalers import LABEL_MATCHERS, Scaler, TriggerSettings
from promql.tree import Aggregate, Binary, Call, Expr, Vector, bare, selectors, walk

_UTILIZATION = re.compile(
    r"DCGM_FI_(?:DEV_GPU_UTIL|DEV_MEM_COPY_UTIL|PROF_GR_ENGINE_ACTIVE)"
    r"|nv_gpu_utilization|(?:gpu|duty_cycle)_?util(?:ization|isation)?|gpu_duty_cycle",
    re.IGNORECASE,
)
_QUEUE = re.compile(r"queue_(?:duration|time)", re.IGNORECASE)
_COMPUTE = re.compile(
    r"compute_(?:infer_|input_|output_)?(?:duration|time)|inference_time", re.IGNORECASE
)
_BUSY = (
    "a GPU is busy while it serves a single sequence, so this is near its maximum at any traffic"
)
_BUSY_FIX = "scale on waiting sequences, and on the used share of the KV cache"


def check(query: LocatedQuery, root: Expr, context: LintContext) -> Iterator[Hit]:
    """Yield defects of one query of a scaler."""
    if query.use not in ("trigger", "adapter"):
        return
    if query.settings:
        yield from _null(query.settings)
        yield from _unreachable(root, query.settings, context)
    if query.unselective:
        why = "without <<.LabelMatchers>> every pod and namespace gets the same value"
        yield Hit("TL055", root, why, f"select them: <<.Series>>{{{LABEL_MATCHERS}}}")
    for node, _ in walk(root):
        if isinstance(node, Vector) and _UTILIZATION.search(node.name):
            yield Hit("TL054", node, _BUSY, _BUSY_FIX)
        if isinstance(node, Binary) and node.op == "/" and _is_queue_ratio(node):
            why = (
                "with in-flight batching requests wait in the engine, so the server's queue time "
                "stays near 0; where it grows, it does so after the objectives are missed"
            )
            yield Hit("TL053", node, why, "scale on the number of waiting sequences")


def check_scaler(scaler: Scaler) -> Iterator[ScalerHit]:
    """Yield defects of a scaler's settings."""
    if not scaler.has_fallback:
        why = "if the query fails or is empty, the scaler has no number of replicas to keep"
        fix = "add fallback: {failureThreshold: 3, replicas: 1, behavior: currentReplicasIfHigher}"
        yield ScalerHit("TL052", scaler.name, scaler.path, why, fix)
    if scaler.stabilization in ("", "0"):
        window = "is 0" if scaler.stabilization else "is the default of 5 minutes"
        why = (
            f"the stabilization window of scale-down {window}, whatever the duration of streams, "
            "and a stopped replica cuts its open streams off"
        )
        fix = (
            "set behavior.scaleDown.stabilizationWindowSeconds, and the pods' termination grace "
            "period, to the longest usual stream"
        )
        severity: Severity | None = None if scaler.stabilization else "note"
        yield ScalerHit("TL056", scaler.name, scaler.path, why, fix, severity)
    for name, path in scaler.metrics:
        if _UTILIZATION.search(name):
            yield ScalerHit("TL054", name, path, _BUSY, _BUSY_FIX)


def _null(settings: TriggerSettings) -> Iterator[Hit]:
    if settings.ignores_null:
        why = (
            "KEDA reads an empty result, NaN and Inf as 0, so the workload scales down while "
            "Prometheus or the exporter fails, and the fallback never starts"
        )
        yield Hit("TL051", None, why, 'set ignoreNullValues: "false", and a fallback')


def _unreachable(root: Expr, settings: TriggerSettings, context: LintContext) -> Iterator[Hit]:
    """Yield thresholds that a ratio, or its average per replica, never exceeds."""
    limit, core = settings.threshold, bare(root)
    if limit is None or limit < 1:
        return
    adding = ("sum",) if settings.metric_type == "AverageValue" else ()
    while True:
        match core:
            case Aggregate(op=op, expr=inner) if op in ("max", "min", "avg", *adding):
                core = bare(inner)
            case Call(function="avg_over_time" | "max_over_time" | "last_over_time", args=(inner,)):
                core = bare(inner)
            case _:
                break
    if (
        isinstance(core, Vector)
        and not context.guesses(core)
        and quantity(core, context) == ("share", 1.0)
    ):
        why = f"{core.name} is a ratio from 0 to 1 per replica, which never exceeds {limit:g}"
        yield Hit("TL031", root, why, f"use a threshold such as {min(limit / 100, 0.8):g}")


def _is_queue_ratio(node: Binary) -> bool:
    part, whole = (
        " ".join(each.name for each in selectors(side)) for side in (node.left, node.right)
    )
    return bool(_QUEUE.search(part) and _COMPUTE.search(whole))
