"""Gates of tokenslo on simulated canaries: the command, and the objects that are generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from bench.canaries import (
    CLASSES,
    EDGES,
    MINUTE,
    SCRAPE,
    TARGET,
    THRESHOLD,
    WARM_UP,
    WINDOW,
    Canary,
)
from gates import argo, flagger
from gates.criteria import LOOKS, RolloutGate, ShareCriterion, gate_of
from gates.statistics import Count, production_mix
from gates.verdict import GateVerdict, Measurement, ShareMeasurement, decide, evaluate
from slos.durations import parse_duration
from slos.model import Objective, Rollout, Service
from slos.plan import plan


@dataclass(frozen=True, slots=True)
class Outcome:
    """A gate's verdict and when it was known, in minutes after the start of the canary."""

    verdict: GateVerdict
    minutes: float


def _gate() -> RolloutGate:
    """Return the gate of a service with one objective on the time to first token."""
    objective = Objective("first-token", "ttft", TARGET, Decimal(str(THRESHOLD)))
    rollout = Rollout(
        guards=("errors", "sheds"),
        window=Decimal(WINDOW),
        warm_up=Decimal(WARM_UP),
        prometheus="http://prometheus:9090",
    )
    service = Service("slo.yaml", "chat", Decimal(28 * 86_400), (objective,), rollout=rollout)
    return gate_of(plan(service), rollout)


GATE = _gate()
FLAGGER_STEPS = 10
"""Passed checks after which the weight has grown: ``stepWeight: 5`` and ``maxWeight: 50``."""


def tokenslo(played: Canary) -> Outcome:
    """Play ``tokenslo gate --for 15m``: abort at any look, promote at the last one."""
    for look in range(1, LOOKS + 1):
        end = (WARM_UP + WINDOW * look // LOOKS) // SCRAPE
        span = slice(WARM_UP // SCRAPE, end)
        decision = decide(GATE, _measured(played, span), 1.0, 1.0)
        if decision.verdict is GateVerdict.ABORT or look == LOOKS:
            return Outcome(decision.verdict, end * SCRAPE / MINUTE)
    raise AssertionError


def _measured(played: Canary, span: slice) -> list[Measurement]:
    found: list[Measurement] = []
    arms = [arm[span].sum(axis=0) for arm in (played.canary, played.baseline)]
    slow = EDGES.index(THRESHOLD) + 1
    for criterion in GATE.criteria:
        assert isinstance(criterion, ShareCriterion)
        guard = criterion.name.removeprefix("guard_")
        if guard in played.failed:
            bad = played.failed[guard][span].sum(axis=0)
            counts = [{"": Count(bad[i], arm.sum())} for i, arm in enumerate(arms)]
        else:
            counts = [
                {
                    name: Count(each[slow:].sum(), each.sum())
                    for name, each in zip(CLASSES, arm, strict=True)
                }
                for arm in arms
            ]
        every = Counter({name: sum(each[name].total for each in counts) for name in counts[0]})
        found.append(ShareMeasurement(*counts, production_mix(every)))
    return found


def argo_analysis(template: Mapping[str, Any], played: Canary) -> Outcome:
    """Play an AnalysisTemplate: a metric ends at its limits, and the analysis with its metrics."""
    metrics = {metric["name"]: metric for metric in template["spec"]["metrics"]}
    found: dict[str, list[GateVerdict]] = {name: [] for name in metrics}
    ((minute, interval),) = {
        (_minutes(metric["initialDelay"]), _minutes(metric["interval"]))
        for metric in metrics.values()
    }
    while True:
        verdicts = _verdicts(played, minute)
        for name in metrics:
            if _phase(metrics[name], found[name]) is None:
                found[name].append(verdicts[name])
        phases = {_phase(metrics[name], found[name]) for name in metrics}
        for worst in (GateVerdict.ABORT, GateVerdict.INCONCLUSIVE):  # either ends the analysis
            if worst in phases:
                return Outcome(worst, minute)
        if None not in phases:
            return Outcome(GateVerdict.PROMOTE, minute)
        minute += interval


def _phase(metric: Mapping[str, Any], measured: Sequence[GateVerdict]) -> GateVerdict | None:
    """Return how a metric of Argo Rollouts 1.8 has ended, None if it has not."""
    if measured.count(GateVerdict.INCONCLUSIVE) > metric["inconclusiveLimit"]:
        return GateVerdict.INCONCLUSIVE
    if measured.count(GateVerdict.ABORT) > metric["failureLimit"]:
        return GateVerdict.ABORT
    successes = metric["consecutiveSuccessLimit"]
    last = measured[-successes:]
    if len(last) == successes and set(last) == {GateVerdict.PROMOTE}:
        return GateVerdict.PROMOTE
    return GateVerdict.INCONCLUSIVE if len(measured) == metric["count"] else None


def flagger_canary(part: Mapping[str, Any], played: Canary) -> Outcome:
    """Play the analysis of a Canary: a check per interval until the weight has grown.

    Then the gate of the webhook is open if ``tokenslo gate`` promotes; else the canary is held.
    """
    analysis = part["analysis"]
    interval = _minutes(analysis["interval"])
    failed = passed = 0
    while True:
        minute = (failed + passed + 1) * interval
        verdicts = _verdicts(played, minute)
        if all(_in_range(metric, verdicts[metric["name"]]) for metric in analysis["metrics"]):
            passed += 1
        else:
            failed += 1
        if failed == analysis["threshold"]:
            return Outcome(GateVerdict.ABORT, minute)
        if passed == FLAGGER_STEPS:
            is_open = tokenslo(played).verdict is GateVerdict.PROMOTE
            return Outcome(GateVerdict.PROMOTE if is_open else GateVerdict.INCONCLUSIVE, minute)


def _in_range(metric: Mapping[str, Any], verdict: GateVerdict) -> bool:
    """Return whether the value of :func:`gates.verdict_query.abort_query` is within the range."""
    return bool((verdict is GateVerdict.ABORT) <= metric["thresholdRange"]["max"])


def _verdicts(played: Canary, minute: float) -> dict[str, GateVerdict]:
    """Return the verdict of each criterion over the window before a minute, by metric."""
    end = round(minute * MINUTE / SCRAPE)
    span = slice(max(0, end - WINDOW // SCRAPE), end)
    assert end <= len(played.canary)
    return {
        criterion.name.replace("_", "-"): evaluate(GATE, criterion, measured).verdict
        for criterion, measured in zip(GATE.criteria, _measured(played, span), strict=True)
    }


def _minutes(duration: str) -> float:
    return float(parse_duration(duration)) / MINUTE


OURS: Mapping[str, Callable[[Canary], Outcome]] = {
    "tokenslo gate": tokenslo,
    "tokenslo for Argo": partial(argo_analysis, argo.analysis_template(GATE)),
    "tokenslo for Flagger": partial(flagger_canary, flagger.canary(GATE)),
}
