"""A gate of a service with a latency objective and an availability objective."""

from __future__ import annotations

from collections.abc import Mapping

from gates.criteria import RolloutGate, ShareCriterion, gate_of
from gates.statistics import Count, production_mix
from gates.verdict import Measurement, ShareMeasurement, UsageMeasurement
from slos.model import Rollout
from tests.service_example import example, objective

ROLLOUT = Rollout(prometheus="http://prometheus.monitoring:9090")
GATE: RolloutGate = gate_of(
    example(
        objective("ttft", "0.95"),
        objective("availability", "0.99"),
        objective("kv_headroom"),
        selector={"model": "llama"},
        rollout=ROLLOUT,
    ),
    ROLLOUT,
)
NAMES = [criterion.name for criterion in GATE.criteria]
Arm = Mapping[str, Count]


def shares(canary: Arm, baseline: Arm) -> ShareMeasurement:
    """Measure two arms that are all of production."""
    every = {
        name: sum(each[name].total for each in (canary, baseline) if name in each)
        for name in {**canary, **baseline}
    }
    return ShareMeasurement(canary, baseline, production_mix(every))


GOOD = shares({"": Count(20, 10_000)}, {"": Count(20, 10_000)})
USED = UsageMeasurement(0.5, 0.5)


def measurements(**others: Measurement) -> list[Measurement]:
    """Return good measurements of all criteria but these."""
    found = [
        others.get(each.name.replace("-", "_"), GOOD if isinstance(each, ShareCriterion) else USED)
        for each in GATE.criteria
    ]
    assert set(others) <= {name.replace("-", "_") for name in NAMES}
    return found
