"""The evidence model of diagnoses: its data, and the posterior."""

from __future__ import annotations

from itertools import permutations
from math import isclose
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.evidence import EVIDENCE_FILE, HEALTHY, UNKNOWN, default_evidence, load_evidence
from diagnosis.posterior import posterior, weight, weights
from slos.errors import InvalidFile

EVIDENCE = default_evidence()
CAUSES = [key for key in EVIDENCE.hypotheses if key not in (HEALTHY, UNKNOWN)]
RESULTS = st.dictionaries(st.sampled_from(sorted(EVIDENCE.likelihoods)), st.booleans())


def typical(hypothesis: str) -> dict[str, bool]:
    """Return the result of every check that is more probable under a hypothesis."""
    return {key: each.of(hypothesis, sick=True) > 0.5 for key, each in EVIDENCE.likelihoods.items()}


@given(RESULTS)
def test_posterior_is_a_distribution_in_falling_order(results: dict[str, bool]) -> None:
    found = posterior(EVIDENCE, results, EVIDENCE.hypotheses)
    assert isclose(sum(found.values()), 1)
    assert [*found.values()] == sorted(found.values(), reverse=True)
    assert {*found} == {*EVIDENCE.hypotheses}


@given(RESULTS)
def test_posterior_does_not_depend_on_the_order_of_results(results: dict[str, bool]) -> None:
    found = posterior(EVIDENCE, results, EVIDENCE.hypotheses)
    assert posterior(EVIDENCE, dict(reversed(results.items())), EVIDENCE.hypotheses) == found


def test_posterior_without_results_is_the_prior() -> None:
    total = sum(each.prior for each in EVIDENCE.hypotheses.values())
    found = posterior(EVIDENCE, {}, EVIDENCE.hypotheses)
    for key, probability in found.items():
        assert isclose(probability, EVIDENCE.hypotheses[key].prior / total)


@given(RESULTS, st.sampled_from(sorted(EVIDENCE.likelihoods)), st.booleans())
def test_evidence_for_a_cause_never_lowers_its_odds_against_unknown(
    results: dict[str, bool], check: str, sick: bool
) -> None:
    before = {key: each for key, each in results.items() if key != check}
    after = {**before, check: sick}
    for hypothesis in EVIDENCE.hypotheses:
        odds = [sum(weights(EVIDENCE, each, hypothesis).values()) for each in (before, after)]
        nats = weight(EVIDENCE.likelihoods[check], hypothesis, sick=sick)
        if nats >= 0:
            assert odds[1] >= odds[0] - 1e-12
        if nats <= 0:
            assert odds[1] <= odds[0] + 1e-12


def test_a_group_counts_once_for_and_once_against_a_hypothesis() -> None:
    group = [key for key, each in EVIDENCE.likelihoods.items() if each.group == "source"]
    assert len(group) == 3
    results = dict.fromkeys(group, True)
    for ordered in permutations(results.items()):
        counted = weights(EVIDENCE, dict(ordered), "engine_death")
        assert [*counted] == ["sources"]
        nats = weight(EVIDENCE.likelihoods["sources"], "engine_death", sick=True)
        assert counted["sources"] == nats


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("prior: 0.08,", "prior: 1.5,", "1.5 is not between 0 and 1"),
        ("usual: 0.9\n", "usual: 0\n", "0 is not between 0 and 1"),
        ("usual: 0.9\n", "usually: 0.9\n", "checks.alerts.usually: is not a known key"),
        ("kv_pressure: {prior", "kv_presure: {prior", "hypotheses.kv_presure: is no playbook"),
        ("  paused:\n", "  pausing:\n", "checks.pausing: is no check"),
        ("group: symptom", "group: symptoms", '"symptoms" is no group'),
        (
            "sick: {records_lost: 0.95",
            "sick: {lost: 0.95",
            "checks.lost.sick.lost: is no hypothesis",
        ),
        ("sick: {records_lost: 0.95", "sick: {unknown: 0.95", "sick.unknown: is not allowed"),
        ("  healthy: {prior", "  # healthy: {prior", "hypotheses.healthy: is missing"),
        (
            "  symptom: Alerts",
            "  symptoms: No check.\n  symptom: Alerts",
            "groups.symptoms: has no check",
        ),
        ("  goes_on: The", "  kv: The", "unweighed.kv: is in checks too"),
        ("likely: 0.75", "likely: yes", "write a probability"),
        ("odds: 3", "odds: 0.5", "write a ratio from 1"),
        ("objectives: queries", "objectives: query", "write one of any, signals, queries"),
    ],
)
def test_wrong_evidence_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text = EVIDENCE_FILE.read_text()
    assert old in text
    path = tmp_path / "evidence.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidFile) as refused:
        load_evidence(path)
    assert problem in str(refused.value)
    assert f"{path}:" in str(refused.value)
