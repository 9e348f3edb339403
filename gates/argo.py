"""AnalysisTemplates of Argo Rollouts."""

from __future__ import annotations

from decimal import Decimal

from gates.criteria import LOOKS, Criterion, RolloutGate
from gates.verdict_query import ABORT, PROMOTE, WIDTH, verdict_query
from promql.expr import pretty
from slos.durations import format_duration

ABOUT = "AnalysisTemplate of {} for Argo Rollouts: kubectl apply -f this file."
_RETRY_SECONDS = 10
"""How long Argo Rollouts waits after an error of Prometheus; beyond the limit it aborts."""
SUCCESS = f"len(result) > 0 && result[0] == {PROMOTE}"
FAILURE = f"len(result) > 0 && result[0] == {ABORT}"


def analysis_template(gate: RolloutGate) -> dict[str, object]:
    """Return the template: one metric for each criterion.

    Looks begin after the warm-up and one whole window, and are a third of a window apart.  A metric
    succeeds as soon as one promotes, and is inconclusive if none does.
    """
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AnalysisTemplate",
        "metadata": {"name": f"tokenslo-{gate.plan.service.service}"},
        "spec": {
            "args": [{"name": "canary"}, {"name": "baseline"}],
            "metrics": [_metric(gate, criterion) for criterion in gate.criteria],
        },
    }


def _metric(gate: RolloutGate, criterion: Criterion) -> dict[str, object]:
    rollout = gate.rollout
    query = pretty(verdict_query(gate, criterion, "{{args.canary}}", "{{args.baseline}}"), WIDTH)
    address = {"address": rollout.prometheus} if rollout.prometheus else {}
    return {
        "name": criterion.name.replace("_", "-"),
        "initialDelay": format_duration(rollout.warm_up + rollout.window),
        "interval": format_duration(look_interval(gate)),
        "count": LOOKS,
        "successCondition": SUCCESS,
        "failureCondition": FAILURE,
        "failureLimit": 0,
        "consecutiveSuccessLimit": 1,
        "inconclusiveLimit": LOOKS - 1,
        "consecutiveErrorLimit": int(rollout.window // _RETRY_SECONDS),
        "provider": {"prometheus": {**address, "query": query}},
    }


def look_interval(gate: RolloutGate) -> Decimal:
    """Return the whole seconds between two looks."""
    return (gate.rollout.window / LOOKS).quantize(Decimal(1))
