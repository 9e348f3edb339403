"""Simulate random canaries at the rollout gate and at those of the controllers' documentation.

Run ``python -m bench.gates [CANARIES]`` from the checkout; README.md explains the tables.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import exp, log
from statistics import NormalDist, median

import numpy as np
import numpy.typing as npt

from bench.arguments import positive_integer
from gates.criteria import LOOKS, RolloutGate, ShareCriterion, gate_of
from gates.statistics import Count, production_mix
from gates.verdict import GateVerdict, Measurement, ShareMeasurement, decide
from promql.histogram import histogram_quantile
from slos.model import Objective, Rollout, Service
from slos.plan import plan
from slos.signals import FIRST_TOKEN_BUCKETS
from slos.text_table import text_table

CANARIES = 2_000
TARGET, THRESHOLD = Decimal("0.95"), 0.8
MINUTE, SCRAPE = 60, 30
WARM_UP, WINDOW = 2 * MINUTE, 15 * MINUTE
STEPS = (WARM_UP + WINDOW) // SCRAPE
BUCKETS = (*(edge for edge in FIRST_TOKEN_BUCKETS if edge >= 0.1 and edge < 20), THRESHOLD, np.inf)
EDGES = tuple(sorted(BUCKETS))
SIGMA = 0.5
"""Width of the log-normal times to first token."""
FAILURES = 0.001
"""Share of requests that fail, and share that are shed, in both arms."""
CLASSES = ("short", "medium", "long")
BALANCE = (0.5, 1.0, 2.5)
"""Relative shares of bad requests by class."""
COLD = 0.3
"""Share of bad requests of a canary that is warming up."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of canary: ``factor`` times the baseline's share of bad requests.

    With ``excess``, its share exceeds the baseline's by that many margins instead.
    """

    name: str
    factor: float = 1.0
    weight: float | None = None
    other_mix: bool = False
    cold: bool = False
    traffic: bool = True
    excess: float | None = None


KINDS = (
    Kind("equal"),
    Kind("10 % worse", 1.1),
    Kind("2x worse", 2.0),
    Kind("other prompt mix", other_mix=True),
    Kind("other prompt mix, 2x worse", 2.0, other_mix=True),
    Kind("1 % weight", weight=0.01),
    Kind("1 % weight, 2x worse", 2.0, weight=0.01),
    Kind("warm-up", cold=True),
    Kind("no traffic", traffic=False),
    Kind("just within the margin", excess=0.999),
    Kind("just beyond the margin", excess=1.001),
)


@dataclass(frozen=True, slots=True)
class Canary:
    """A random canary and its baseline: requests by scrape, class and bucket."""

    bad: bool
    canary: Floats
    baseline: Floats
    failed: Mapping[str, Floats]
    """Failures and sheds of both arms by scrape: columns canary and baseline."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A gate's verdict and when it was known, in minutes after the start of the canary."""

    verdict: GateVerdict
    minutes: float


def canary_of(kind: Kind, random: np.random.Generator, margin: float) -> Canary:
    """Draw a canary."""
    rate = exp(random.uniform(log(5), log(100)))
    weight = kind.weight or random.uniform(0.05, 0.5)
    mix = random.dirichlet((6, 3, 2))
    own_mix = random.dirichlet((6, 3, 2)) if kind.other_mix else mix
    share = random.uniform(0.01, 0.04)
    weights = weight * own_mix + (1 - weight) * mix
    by_class = np.array(BALANCE) * share / float(np.dot(BALANCE, weights))
    factor = kind.factor
    if kind.excess is not None:
        factor = 1 + kind.excess * margin / share
        if factor * share > 1 - float(TARGET):  # the objective is not what decides here
            return canary_of(kind, random, margin)
    worse = np.minimum(by_class * factor, 0.95)
    true, other = float(np.dot(worse, weights)), float(np.dot(by_class, weights))
    requests = rate * SCRAPE
    cold = WARM_UP // SCRAPE if kind.cold else 0
    arms = (
        (requests * weight * kind.traffic, own_mix, worse, cold),
        (requests * (1 - weight), mix, by_class, 0),
    )
    canary, baseline = (_played(random, *arm) for arm in arms)
    failed = {
        name: np.stack(
            [
                random.binomial(arm.sum(axis=(1, 2)).astype(int), FAILURES)
                for arm in (canary, baseline)
            ],
            axis=1,
        ).astype(float)
        for name in ("errors", "sheds")
    }
    broken = kind.traffic and (true > 1 - float(TARGET) or true - other > margin)
    return Canary(bool(broken), canary, baseline, failed)


def _played(
    random: np.random.Generator, requests: float, mix: Floats, shares: Floats, cold: int
) -> Floats:
    """Draw the requests of an arm: by scrape, class and bucket."""
    arrived = random.poisson(requests * mix, size=(STEPS, len(CLASSES)))
    found = np.zeros((STEPS, len(CLASSES), len(EDGES)))
    for index, share in enumerate(shares):
        usual, slow = _buckets(float(share)), _buckets(COLD)
        found[:cold, index] = random.multinomial(arrived[:cold, index], slow)
        found[cold:, index] = random.multinomial(arrived[cold:, index], usual)
    return found


def _buckets(share: float) -> Floats:
    """Return the probability of each bucket if ``share`` of the requests exceed the threshold."""
    normal = NormalDist()
    middle = log(THRESHOLD) - SIGMA * normal.inv_cdf(1 - share)
    below = [normal.cdf((log(edge) - middle) / SIGMA) for edge in EDGES[:-1]]
    return np.diff(np.array([0.0, *below, 1.0]))


# Our gate


def our_gate() -> RolloutGate:
    """Return the gate of a service with one objective on the time to first token."""
    objective = Objective("first-token", "ttft", TARGET, Decimal(str(THRESHOLD)))
    rollout = Rollout(guards=("errors", "sheds"), window=Decimal(WINDOW), warm_up=Decimal(WARM_UP))
    service = Service("slo.yaml", "chat", Decimal(28 * 86_400), (objective,), rollout=rollout)
    return gate_of(plan(service), rollout)


GATE = our_gate()


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


# Gates as the controllers' documentation shows them


def argo_success_rate(played: Canary) -> Outcome:
    """Argo Rollouts: `result[0] >= 0.95` of irate, five measurements a minute apart."""
    for measurement in range(1, 6):
        end = measurement * MINUTE // SCRAPE
        share = _good_share(played.canary[end - 1 : end])
        if not share >= float(TARGET):  # NaN fails as well
            return Outcome(GateVerdict.ABORT, measurement)
    return Outcome(GateVerdict.PROMOTE, 5)


def _flagger(passes: Callable[[Floats], bool], played: Canary) -> Outcome:
    """Flagger: one check a minute; five failed ones roll back, ten passed ones promote."""
    failed = 0
    for minute in range(1, 16):
        last = played.canary[(minute - 1) * MINUTE // SCRAPE : minute * MINUTE // SCRAPE]
        failed += not passes(last)
        if failed == 5:
            return Outcome(GateVerdict.ABORT, minute)
        if minute - failed == 10:
            return Outcome(GateVerdict.PROMOTE, minute)
    raise AssertionError


def flagger_success_rate(played: Canary) -> Outcome:
    """Flagger: request-success-rate, with the objective's target as the minimum."""
    return _flagger(lambda last: _good_share(last) >= float(TARGET), played)


P99_LIMIT = THRESHOLD * exp(
    SIGMA * (NormalDist().inv_cdf(0.99) - NormalDist().inv_cdf(float(TARGET)))
)
"""The 99th percentile of a service that just meets the objective."""


def flagger_duration(played: Canary) -> Outcome:
    """Flagger: request-duration, the p99 of one minute from histogram_quantile."""
    return _flagger(lambda last: _p99(last) <= P99_LIMIT, played)


def _p99(last: Floats) -> float:
    counts = np.cumsum(last.sum(axis=(0, 1)))
    if not counts[-1]:
        return float("nan")
    found = histogram_quantile(0.99, EDGES, list(counts))
    return min(found, EDGES[-2])


def _good_share(last: Floats) -> float:
    total = last.sum()
    return float(last[..., : EDGES.index(THRESHOLD) + 1].sum() / total) if total else float("nan")


GATES: Mapping[str, Callable[[Canary], Outcome]] = {
    "tokenslo gate": tokenslo,
    "Argo success-rate": argo_success_rate,
    "Flagger success-rate": flagger_success_rate,
    "Flagger p99": flagger_duration,
}


# Tables


@dataclass(frozen=True, slots=True)
class GateOutcomes:
    """Outcomes of one gate on the canaries of one kind that are bad, or on those that are not."""

    kind: str
    bad: bool
    gate: str
    outcomes: Sequence[Outcome]

    def share(self, verdict: GateVerdict) -> float:
        """Return the share of a verdict."""
        return sum(each.verdict is verdict for each in self.outcomes) / len(self.outcomes)


def simulate(canaries: int = CANARIES, seed: int = 1) -> list[GateOutcomes]:
    """Play the canaries of every kind before every gate."""
    (margin,) = (
        float(each.margin)
        for each in GATE.criteria
        if isinstance(each, ShareCriterion) and each.budget is not None
    )
    rows = []
    for kind in KINDS:
        random = np.random.default_rng(seed)
        played = [canary_of(kind, random, margin) for _ in range(canaries)]
        for bad in (False, True):
            chosen = [each for each in played if each.bad is bad]
            if chosen:
                rows += [
                    GateOutcomes(kind.name, bad, name, [gate(each) for each in chosen])
                    for name, gate in GATES.items()
                ]
    return rows


def wrong(rows: Sequence[GateOutcomes], gate: str, *, bad: bool) -> float:
    """Return the share of bad canaries that a gate promotes, or of good ones that it aborts."""
    outcomes = tuple(
        outcome for row in rows if row.gate == gate and row.bad is bad for outcome in row.outcomes
    )
    verdict = GateVerdict.PROMOTE if bad else GateVerdict.ABORT
    return GateOutcomes("", bad, gate, outcomes).share(verdict)


def table(rows: Sequence[GateOutcomes]) -> Iterator[str]:
    """Yield the lines of the table: shares in percent, and the median time to the verdict."""
    heads = ("canary", "is", "canaries", "gate", "promoted", "aborted", "held", "minutes")
    lines: list[tuple[str, ...]] = [heads]
    for row in rows:
        shares = (f"{100 * row.share(verdict):.1f}" for verdict in GateVerdict)
        minutes = f"{median(each.minutes for each in row.outcomes):.0f}"
        count = f"{len(row.outcomes):,}"
        lines.append((row.kind, "bad" if row.bad else "good", count, row.gate, *shares, minutes))
    yield from text_table(lines, right=range(4, len(heads)))
    yield ""
    errors: list[tuple[str, ...]] = [("gate", "bad promoted", "good aborted")]
    for gate in GATES:
        shares = (f"{100 * wrong(rows, gate, bad=bad):.2f}" for bad in (True, False))
        errors.append((gate, *shares))
    yield from text_table(errors, right=(1, 2))


def main(*arguments: str) -> None:
    """Print the tables."""
    canaries = positive_integer(arguments[0], "CANARIES") if arguments else CANARIES
    for line in table(simulate(canaries)):
        print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
