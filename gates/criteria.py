"""Criteria of a gate: the objectives of an SLO file, and guards against other harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from gates.statistics import z_of
from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Text,
    Vector,
    aggregate,
    call,
    number,
    on,
    quote,
    vector,
)
from slos.durations import format_duration
from slos.indicator_events import counters
from slos.indicators import INDICATORS, among, counts_events_by_arm
from slos.model import Rollout
from slos.outcomes import FAILURES
from slos.plan import Plan
from slos.queries import INSTANCE, Scope
from slos.signals import MODEL_LABELS, SIGNALS

LOOKS = 3
"""How often a gate looks at growing data; each look spends an equal part of the error rates."""
FALSE_PROMOTION = 0.005
"""Error rate of promoting a canary that is bad in one criterion, over all looks."""
FALSE_ABORT = 0.005
"""Error rate of aborting a canary that is good in every criterion, over all criteria and looks."""
LEAST_BAD_EVENTS = 10
"""Bad events below which a canary is not aborted: for fewer, Wilson's lower bound is too high."""
GUARD_MARGIN = Decimal("0.01")
"""How much higher than the baseline's the canary's share of errors, or of sheds, may be."""
KV_LIMIT = Decimal("0.9")
"""KV-cache utilization that counts as full, unless an objective has another threshold."""
MEMORY_LIMIT = Decimal("0.98")
"""Share of a GPU's memory; beyond it the engine may run out of memory."""
_USUAL = Decimal("0.95")
"""The quantile over time of a gauge: a short peak is no lack of headroom."""

SHEDS = ("shed",)
ERRORS = tuple(outcome for outcome in FAILURES if outcome not in SHEDS)
_GPU_USED, _GPU_TOTAL = "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes"
_GPU_MODEL = "nv_inference_pending_request_count"
_DCGM_USED, _DCGM_FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
_POD = "pod"


@dataclass(frozen=True, slots=True)
class ShareCriterion:
    """The share of bad events, compared with the baseline's and with the objective.

    ``bad`` and ``total`` select counters.  ``margin`` is how much higher than the baseline's the
    canary's share may be, and ``budget`` the share that the objective allows, None for a guard.
    """

    name: str
    bad: Vector
    total: Vector
    margin: Decimal
    budget: Decimal | None = None
    events: str = "requests"


@dataclass(frozen=True, slots=True)
class UsageCriterion:
    """The used share of a resource on the fullest server of an arm, compared with a limit.

    ``used`` is the share for each server and ``metric`` the one that it reads.
    """

    name: str
    used: Callable[[Scope], Expr]
    limit: Decimal
    metric: str


Criterion = ShareCriterion | UsageCriterion


@dataclass(frozen=True, slots=True)
class RolloutGate:
    """The criteria of a service's gate."""

    plan: Plan
    rollout: Rollout
    criteria: tuple[Criterion, ...]

    @property
    def window(self) -> str:
        """The time over which a gate compares the arms, as in PromQL."""
        return format_duration(self.rollout.window)

    @property
    def promote_z(self) -> float:
        """Return the quantile of the bounds that promote; every criterion must pass."""
        return z_of(FALSE_PROMOTION / LOOKS)

    @property
    def abort_z(self) -> float:
        """Return the quantile of the bounds that abort: any of two conditions per criterion."""
        shares = sum(isinstance(each, ShareCriterion) for each in self.criteria)
        return z_of(FALSE_ABORT / (LOOKS * 2 * max(shares, 1)))


def gate_of(plan: Plan, rollout: Rollout) -> RolloutGate:
    """Return the gate of a service."""
    return RolloutGate(plan, rollout, (*_objectives(plan, rollout), *_guards(plan, rollout)))


def guard_name(guard: str) -> str:
    """Return the name of a guard among the criteria; no objective has it."""
    return f"guard_{guard}"


def _objectives(plan: Plan, rollout: Rollout) -> Iterator[ShareCriterion]:
    for objective in filter(counts_events_by_arm, plan.service.objectives):
        if rollout.objectives and objective.name not in rollout.objectives:
            continue
        # A gate counts events; time slices have a target for these as well.
        budget = 1 - (objective.slices.target if objective.slices else objective.target)
        bad, total = counters(objective, plan.service)
        events = INDICATORS[objective.indicator].events
        yield ShareCriterion(objective.name, bad, total, budget * rollout.margin, budget, events)


def _guards(plan: Plan, rollout: Rollout) -> Iterator[Criterion]:
    scope = Scope(plan.service.selector)
    metric = SIGNALS["requests"].metric
    ended = scope.series(metric, among("outcome", ("ok", *FAILURES)))
    for guard, outcomes in (("errors", ERRORS), ("sheds", SHEDS)):
        if guard in rollout.guards:
            bad = scope.series(metric, among("outcome", outcomes))
            yield ShareCriterion(guard_name(guard), bad, ended, GUARD_MARGIN)
    if "kv_headroom" in rollout.guards:
        thresholds = (
            each.objective.threshold
            for each in plan.objectives
            if each.objective.indicator == "kv_headroom" and each.objective.threshold
        )
        name, limit = guard_name("kv_headroom"), next(thresholds, KV_LIMIT)
        yield UsageCriterion(name, _kv_used, limit, SIGNALS["kv_utilization"].metric)
    if "gpu_memory" in rollout.guards:
        metrics = f"{_GPU_USED} or {_DCGM_USED}"
        yield UsageCriterion(guard_name("gpu_memory"), _gpu_used, MEMORY_LIMIT, metrics)


def _kv_used(scope: Scope) -> Expr:
    gauge = replace(scope.gauge("kv_utilization"), window=scope.window)
    return call("quantile_over_time", number(_USUAL), gauge)


def _gpu_used(scope: Scope) -> Expr:
    """Return the used memory of the fullest GPU: by Triton, and by DCGM for any server in a pod.

    Neither has the model or version; other metrics of the same server or pod have both.
    """
    used, whole = (vector(metric, scope.foreign()) for metric in (_GPU_USED, _GPU_TOTAL))
    fullest = aggregate("max", used / whole, (INSTANCE,))
    return _joined(scope, _GPU_MODEL, fullest, INSTANCE).or_(
        _joined(scope, "tokenslo_model_info", _dcgm_used(), _POD)
    )


def _dcgm_used() -> Expr:
    """Return the used memory of the fullest GPU of each pod.

    The pod is in ``exported_pod`` where dcgm-exporter is scraped without ``honor_labels``.
    """
    used = vector(_DCGM_USED, ())
    share = used / (used + vector(_DCGM_FREE, ()))
    texts = (Text(quote(each), whole=True) for each in (_POD, "$1", "exported_pod", "(.+)"))
    return aggregate("max", call("label_replace", share, *texts), (_POD,))


def _joined(scope: Scope, metric: str, fullest: Expr, label: str) -> Expr:
    """Return a share by server with the labels of ``metric``, a series of each model of an arm."""
    chosen = tuple(
        Matcher(label, "=", scope.selector[label])
        for label in MODEL_LABELS
        if label in scope.selector
    )
    also = tuple(each for each in scope.also if each.label in MODEL_LABELS)
    serving = vector(metric, (*scope.foreign(), *chosen, *also))
    return Binary(serving * number(0), "+", fullest, matching=on(label, group_left=()))
