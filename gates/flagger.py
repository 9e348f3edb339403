"""MetricTemplates of Flagger, and the analysis of a Canary that uses them.

Flagger has two states: a metric within its range, or a failed check.  Its metrics only abort here;
a Canary is held by a ``confirm-promotion`` webhook until ``tokenslo gate`` exits with 0.
"""

from __future__ import annotations

from gates.criteria import Criterion, RolloutGate
from gates.verdict_query import WIDTH, abort_query
from promql.expr import pretty
from slos.durations import format_duration

ABOUT = "Part of the spec of Flagger's Canary for {}: merge it into yours."
FAILED_CHECKS = 2
"""Failed checks that roll back; one may be a query that failed."""
GATE_URL = "http://flagger-loadtester.flagger/gate/check"
"""The gate of Flagger's load tester: closed until a request opens it."""


def metric_templates(gate: RolloutGate) -> dict[str, dict[str, object]]:
    """Return the template of each criterion by name."""
    return {_name(gate, criterion): _template(gate, criterion) for criterion in gate.criteria}


def canary(gate: RolloutGate) -> dict[str, object]:
    """Return the analysis of a Canary.

    The first check is one interval after the first request.  The interval is the warm-up and the
    window, so that no check counts the warm-up or another check's requests.
    """
    interval = format_duration(gate.rollout.warm_up + gate.rollout.window)
    service = gate.plan.service.service
    arms = {"baseline": f"{service}-primary", "canary": service}
    return {
        "analysis": {
            "interval": interval,
            "threshold": FAILED_CHECKS,
            "metrics": [
                {
                    "name": criterion.name.replace("_", "-"),
                    "templateRef": {"name": _name(gate, criterion)},
                    "templateVariables": arms,
                    "thresholdRange": {"max": 0},
                    "interval": interval,
                }
                for criterion in gate.criteria
            ],
            "webhooks": [{"name": "gate", "type": "confirm-promotion", "url": GATE_URL}],
        }
    }


def _name(gate: RolloutGate, criterion: Criterion) -> str:
    return f"tokenslo-{gate.plan.service.service}-{criterion.name.replace('_', '-')}"


def _template(gate: RolloutGate, criterion: Criterion) -> dict[str, object]:
    query = abort_query(gate, criterion, "{{ variables.canary }}", "{{ variables.baseline }}")
    return {
        "apiVersion": "flagger.app/v1beta1",
        "kind": "MetricTemplate",
        "metadata": {"name": _name(gate, criterion)},
        "spec": {
            "provider": {"type": "prometheus", "address": gate.rollout.prometheus},
            "query": pretty(query, WIDTH),
        },
    }
