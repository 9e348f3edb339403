"""Weigh check results: naive Bayes over hypotheses, with groups of correlated checks.

The weight of a result for a hypothesis is the logarithm of its likelihood ratio to ``unknown``,
whose results have the usual probabilities.  Within a group, only the largest weight for a
hypothesis and the largest against it count.  A check without a result has no weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, fsum, log, log2

from diagnosis.evidence import UNKNOWN, Evidence, Likelihood

Results = Mapping[str, bool]
"""Whether each check with data is sick, by key."""


def weight(likelihood: Likelihood, hypothesis: str, *, sick: bool) -> float:
    """Return the weight of a result for a hypothesis, in nats; negative is against it."""
    return log(likelihood.of(hypothesis, sick=sick) / likelihood.of(UNKNOWN, sick=sick))


def weights(evidence: Evidence, results: Results, hypothesis: str) -> dict[str, float]:
    """Return the weight of each result that counts for or against a hypothesis."""
    found: dict[tuple[str, bool], tuple[float, str]] = {}
    for check, sick in sorted(results.items()):
        likelihood = evidence.likelihoods[check]
        nats = weight(likelihood, hypothesis, sick=sick)
        group = (likelihood.group or f"check {check}", nats > 0)
        if abs(nats) > abs(found.get(group, (0.0, ""))[0]):
            found[group] = nats, check
    return {check: nats for nats, check in found.values()}


def posterior(evidence: Evidence, results: Results, hypotheses: Iterable[str]) -> dict[str, float]:
    """Return the probability of each hypothesis, the most probable first; their sum is 1."""
    scores = {
        key: log(evidence.hypotheses[key].prior) + fsum(weights(evidence, results, key).values())
        for key in hypotheses
    }
    top = max(scores.values())
    shares = {key: exp(score - top) for key, score in scores.items()}
    total = fsum(shares.values())
    ranked = sorted(shares, key=lambda key: (-shares[key], key))
    return {key: shares[key] / total for key in ranked}


def information(
    likelihood: Likelihood, first: tuple[str, float], second: tuple[str, float]
) -> float:
    """Return the bits that a check is expected to add about which of two hypotheses is true.

    Hypotheses are given with their probabilities.
    """
    (a, p), (b, q) = first, second
    p, q = p / (p + q), q / (p + q)
    sick = p * likelihood.of(a, sick=True) + q * likelihood.of(b, sick=True)
    given = p * _entropy(likelihood.of(a, sick=True)) + q * _entropy(likelihood.of(b, sick=True))
    return _entropy(sick) - given


def _entropy(probability: float) -> float:
    """Return the entropy of a yes-no question, in bits."""
    return -sum(p * log2(p) for p in (probability, 1 - probability) if p > 0)
