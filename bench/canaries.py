"""Random canaries: the requests of a canary and of its baseline, scrape by scrape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import exp, log
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from slos.signals import FIRST_TOKEN_BUCKETS

TARGET, THRESHOLD = Decimal("0.95"), 0.8
MINUTE, SCRAPE = 60, 30
WARM_UP, WINDOW = 2 * MINUTE, 15 * MINUTE
CHECKS = 11
"""Checks of a Flagger Canary: ten that pass, and one that fails."""
STEPS = CHECKS * (WARM_UP + WINDOW) // SCRAPE
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
