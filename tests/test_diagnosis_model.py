"""The evidence model of diagnoses: its data, and the posterior."""

from __future__ import annotations

from itertools import permutations
from math import isclose
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.check_results import CheckResult
from diagnosis.evidence import (
    ABSENT_ALERTS,
    ALERTS,
    EVIDENCE_FILE,
    HEALTHY,
    UNKNOWN,
    Evidence,
    Hypothesis,
    Likelihood,
    default_evidence,
    load_evidence,
)
from diagnosis.posterior import information, posterior, weight, weights
from diagnosis.verdict import decide
from runbooks.checks import CHECKS
from runbooks.playbooks import PLAYBOOKS
from slos.errors import InvalidFile

EVIDENCE = default_evidence()
CAUSES = [key for key in EVIDENCE.hypotheses if key not in (HEALTHY, UNKNOWN)]
RESULTS = st.dictionaries(st.sampled_from(sorted(EVIDENCE.likelihoods)), st.booleans())


SIGNALS = [key for key, each in EVIDENCE.hypotheses.items() if each.objectives != "queries"]
QUERIES = [key for key, each in EVIDENCE.hypotheses.items() if each.objectives != "signals"]
SYMPTOM = {"alerts": True, "still_burning": True}


def kin(hypothesis: str) -> list[str]:
    """Return the hypotheses that compete with one for the same kind of objectives."""
    return SIGNALS if hypothesis in SIGNALS else QUERIES


def verdict_of(results: dict[str, bool], hypotheses: list[str]) -> tuple[str, str]:
    """Return the verdict and the most probable hypothesis."""
    found = posterior(EVIDENCE, results, hypotheses)
    return decide(EVIDENCE, found, results, []).verdict, next(iter(found))


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
    group = [key for key, each in EVIDENCE.likelihoods.items() if each.group == "presence"]
    assert len(group) == 5
    nats = {key: weight(EVIDENCE.likelihoods[key], "engine_death", sick=True) for key in group}
    heaviest = max(group, key=lambda key: nats[key])
    results = dict.fromkeys(group, True)
    for ordered in permutations(results.items()):
        counted = weights(EVIDENCE, dict(ordered), "engine_death")
        assert counted == {heaviest: nats[heaviest]}


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
            "sick: {records_lost: 0.97",
            "sick: {lost: 0.95",
            "checks.lost.sick.lost: is no hypothesis",
        ),
        ("sick: {records_lost: 0.97", "sick: {unknown: 0.95", "sick.unknown: is not allowed"),
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


def test_evidence_covers_every_playbook_and_check() -> None:
    assert {*CAUSES} | EVIDENCE.not_causes == {*PLAYBOOKS}
    assert {*EVIDENCE.likelihoods} - {ALERTS, ABSENT_ALERTS} | EVIDENCE.unweighed == {*CHECKS}


@pytest.mark.parametrize("cause", CAUSES)
def test_typical_results_of_a_cause_make_it_likely(cause: str) -> None:
    assert verdict_of(typical(cause), kin(cause)) == ("likely", cause)


@pytest.mark.parametrize("cause", CAUSES)
def test_one_check_without_data_never_makes_another_cause_likely(cause: str) -> None:
    results = typical(cause)
    for missing in results:
        others = {key: sick for key, sick in results.items() if key != missing}
        verdict, first = verdict_of(others, kin(cause))
        assert verdict == "cannot_tell" or first == cause, missing


@pytest.mark.parametrize("check", sorted(EVIDENCE.likelihoods))
def test_one_sick_check_alone_makes_no_cause_likely(check: str) -> None:
    assert verdict_of({**SYMPTOM, check: True}, SIGNALS)[0] == "cannot_tell"


def test_a_source_that_is_down_is_not_drowned_by_missing_checks() -> None:
    results = {"sources": True, "source_errors": True, "recent_start": True}
    found = posterior(EVIDENCE, results, SIGNALS)
    assert {*list(found)[:2]} == {"engine_death", "source_down"}
    assert verdict_of({**results, "still_burning": False}, SIGNALS) == ("likely", "source_down")


def test_healthy_checks_are_no_incident() -> None:
    results = dict.fromkeys(EVIDENCE.likelihoods, False)
    assert verdict_of(results, SIGNALS) == ("no_incident", HEALTHY)
    growth = {**results, "arrivals": True, "more_events": True}
    assert verdict_of(growth, SIGNALS) == ("no_incident", HEALTHY)
    rollout = {**results, "recent_start": True}
    assert verdict_of(rollout, SIGNALS) == ("no_incident", HEALTHY)


def test_a_burning_budget_without_a_sick_cause_is_unknown() -> None:
    results = {**dict.fromkeys(EVIDENCE.likelihoods, False), **SYMPTOM}
    assert verdict_of(results, SIGNALS) == ("cannot_tell", UNKNOWN)


def test_no_results_are_no_data() -> None:
    assert verdict_of({}, SIGNALS)[0] == "no_data"


def test_the_check_that_decides_has_the_highest_expected_information() -> None:
    results = {**SYMPTOM, "waiting": True, "kv": True}
    found = posterior(EVIDENCE, results, SIGNALS)
    blind = [
        CheckResult(key, "", "", "", "", "no_data", reason="no series")
        for key in EVIDENCE.likelihoods
        if key not in results
    ]
    decision = decide(EVIDENCE, found, results, blind)
    pair = [(key, found[key]) for key in decision.between]
    bits = {
        key: information(each, pair[0], pair[1])
        for key, each in EVIDENCE.likelihoods.items()
        if key not in results
    }
    assert decision.verdict == "cannot_tell"
    assert bits[decision.decided_by] == max(bits.values())
    assert decision.decide.startswith(f"the check {decision.decided_by}. Sick means ")
    assert decision.decide.endswith("It has no data now: no series.")


def test_information_is_zero_for_equal_likelihoods_and_a_bit_for_certain_ones() -> None:
    same = Likelihood("kv", 0.3, {})
    assert isclose(information(same, ("a", 0.4), ("b", 0.4)), 0, abs_tol=1e-12)
    certain = Likelihood("kv", 1e-9, {"a": 1 - 1e-9})
    assert isclose(information(certain, ("a", 0.2), ("b", 0.2)), 1, abs_tol=1e-6)


def test_healthy_checks_alone_make_no_cause_likely() -> None:
    causes = {
        "kv_pressure": Hypothesis("kv_pressure", 0.9),
        HEALTHY: Hypothesis(HEALTHY, 0.01),
        UNKNOWN: Hypothesis(UNKNOWN, 0.01),
    }
    model = Evidence(0.75, 3, causes, {"kv": Likelihood("kv", 0.5, {"kv_pressure": 0.1})})
    found = posterior(model, {"kv": False}, causes)
    assert found["kv_pressure"] > 0.9
    assert decide(model, found, {"kv": False}, []).verdict == "cannot_tell"
