"""Decide what the evidence permits to say, and which check would decide between two causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from diagnosis.check_results import CheckResult
from diagnosis.evidence import HEALTHY, UNKNOWN, Evidence
from diagnosis.posterior import Results, information, weight, weights
from runbooks.playbooks import PLAYBOOKS

Verdict = Literal["likely", "cannot_tell", "no_incident", "no_data"]
_LEAST_BITS = 0.05
"""Checks that are expected to add less do not decide anything."""
_TITLES = {HEALTHY: "no incident", UNKNOWN: "a cause without a playbook"}


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with its reason.

    ``between`` are the two likeliest hypotheses.  ``decided_by`` is the key of a check without data
    that would decide between them, empty if there is none; ``decide`` is how.
    """

    verdict: Verdict
    because: str
    between: tuple[str, str]
    decided_by: str = ""
    decide: str = ""


def title(hypothesis: str) -> str:
    """Return the title of a hypothesis."""
    return _TITLES.get(hypothesis) or PLAYBOOKS[hypothesis].title


def decide(
    evidence: Evidence,
    probabilities: Mapping[str, float],
    results: Results,
    checks: Sequence[CheckResult],
) -> Decision:
    """Return the verdict on ranked hypotheses."""
    (first, p), (second, q), *_ = probabilities.items()
    between = first, second
    decided_by, decide = _decider(evidence, {first: p, second: q}, results, checks)
    if not results:
        failed = next((each.reason for each in checks if each.verdict == "failed"), "")
        because = failed or "no check has data"
        return Decision("no_data", because, between, decided_by, decide)
    found = weights(evidence, results, first)
    is_sick = any(nats > 0 and results[key] for key, nats in found.items())
    certain = p >= evidence.likely and p >= evidence.odds * q
    if first == HEALTHY and certain:
        return Decision("no_incident", _because(found, results), between, decided_by, decide)
    if first not in (HEALTHY, UNKNOWN) and certain and is_sick:
        return Decision("likely", _because(found, results), between, decided_by, decide)
    because = _undecided(evidence, between, results, checks)
    return Decision("cannot_tell", because, between, decided_by, decide)


def _because(found: Mapping[str, float], results: Results) -> str:
    """Name the two results that weigh most for a hypothesis."""
    most = sorted((key for key in found if found[key] > 0), key=lambda key: -found[key])[:2]
    return "; ".join(f"{key} is {'sick' if results[key] else 'healthy'}" for key in most)


def _undecided(
    evidence: Evidence,
    between: tuple[str, str],
    results: Results,
    checks: Sequence[CheckResult],
) -> str:
    """Return why the results do not decide between two hypotheses."""
    both = [
        key
        for key, sick in results.items()
        if sick and all(_weighs(evidence, key, hypothesis) for hypothesis in between)
    ]
    if both:
        return f"both explain what is sick: {', '.join(both)}"
    if not any(results.values()):
        return "no check is sick"
    if UNKNOWN in between:
        return "no playbook explains what is sick"
    without_data = [each for each in checks if not each.has_data]
    if without_data:
        return f"{len(without_data)} of {len(checks)} checks have no data"
    return "the evidence is contradictory"


def _weighs(evidence: Evidence, check: str, hypothesis: str) -> bool:
    if hypothesis == UNKNOWN:
        return True
    return weight(evidence.likelihoods[check], hypothesis, sick=True) > 0


def _decider(
    evidence: Evidence,
    between: Mapping[str, float],
    results: Results,
    checks: Sequence[CheckResult],
) -> tuple[str, str]:
    """Return the check without data that separates two hypotheses best, and what to do."""
    first, second = between.items()
    without_data = {check.key: check.reason for check in checks if check.key not in results}
    bits = {
        key: information(likelihood, first, second)
        for key, likelihood in evidence.likelihoods.items()
        if key in without_data
    }
    best = max(bits, key=lambda key: (bits[key], key), default="")
    if best and bits[best] >= _LEAST_BITS:
        likelihood = evidence.likelihoods[best]
        sick, healthy = sorted(between, key=lambda key: -likelihood.of(key, sick=True))
        return best, (
            f"the check {best}. Sick means {title(sick)}, healthy means {title(healthy)}. It has "
            f"no data now: {without_data[best]}."
        )
    return "", _step(between)


def _step(between: Mapping[str, float]) -> str:
    """Return the first action of the likelier playbook, to decide where no check can."""
    causes = [PLAYBOOKS[key] for key in between if key in PLAYBOOKS]
    if not causes:
        return ""
    return f"no check; try the first action of {causes[0].title}. {causes[0].actions[0].do}"
