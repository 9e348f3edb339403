"""The verdict of a gate: promote, abort or inconclusive, and why."""

from __future__ import annotations

from math import nan

import pytest
from gate_example import GATE, GOOD, NAMES, measurements, shares

from gates.criteria import LOOKS, gate_of
from gates.statistics import Count
from gates.verdict import GateDecision, GateVerdict, Measurement, UsageMeasurement, decide
from slos.model import Rollout
from tests.service_example import example, objective

PROMOTE, ABORT, INCONCLUSIVE = GateVerdict.PROMOTE, GateVerdict.ABORT, GateVerdict.INCONCLUSIVE


def decided(health: float | None = 1.0, **others: Measurement) -> GateDecision:
    return decide(GATE, measurements(**others), health, 1.0)


def one(canary: Count, baseline: Count) -> Measurement:
    return shares({"": canary}, {"": baseline})


def test_criteria_are_objectives_and_guards() -> None:
    assert NAMES == [
        "ttft",
        "availability",
        "guard_errors",
        "guard_sheds",
        "guard_kv_headroom",
        "guard_gpu_memory",
    ]


def test_an_equal_canary_with_enough_events_is_promoted() -> None:
    decision = decided()
    assert decision.verdict is PROMOTE
    assert "ttft: at most 0.381% bad (objective 5%)" in decision.reasons


@pytest.mark.parametrize(
    ("canary", "baseline", "verdict", "reason"),
    [
        (Count(800, 10_000), Count(200, 10_000), ABORT, "at least 4.94 points more bad requests"),
        (Count(800, 10_000), Count(200, 10_000), ABORT, "at least 7.09% bad (objective 5%)"),
        # Worse than the margin, although it meets the objective.
        (Count(400, 10_000), Count(10, 10_000), ABORT, "(margin 1.25 points)"),
        # Worse within the margin.
        (Count(250, 10_000), Count(200, 10_000), PROMOTE, "at most 1.12 points more"),
        (
            Count(2, 100),
            Count(200, 10_000),
            INCONCLUSIVE,
            "the canary has 100 requests, needs 1,870",
        ),
        (Count(40, 2_000), Count(2, 100), INCONCLUSIVE, "the baseline has 100 requests, needs 411"),
        # Nine of nine are bad: too few to abort.
        (Count(9, 9), Count(20, 10_000), INCONCLUSIVE, "up to 100% bad are possible"),
        (Count(10, 10), Count(20, 10_000), ABORT, "points more bad requests"),
        (Count(0, 0), Count(20, 10_000), INCONCLUSIVE, "no requests of the canary"),
        (Count(20, 10_000), Count(0, 0), INCONCLUSIVE, "no requests of the baseline"),
        (Count(nan, nan), Count(20, 10_000), INCONCLUSIVE, "no requests of the canary"),
        (
            Count(nan, 10_000),
            Count(20, 10_000),
            INCONCLUSIVE,
            "llm_slo_events_total is not a number",
        ),
        # An incident outside the rollout.
        (Count(800, 10_000), Count(800, 10_000), INCONCLUSIVE, "the cause is outside the rollout"),
    ],
)
def test_an_objective_decides(
    canary: Count, baseline: Count, verdict: GateVerdict, reason: str
) -> None:
    decision = decided(ttft=one(canary, baseline))
    assert decision.verdict is verdict
    (evaluation,) = (each for each in decision.evaluations if each.criterion.name == "ttft")
    assert evaluation.verdict is verdict
    assert any(reason in each for each in evaluation.reasons), evaluation.reasons


def test_no_series_at_all_is_inconclusive() -> None:
    decision = decided(ttft=shares({}, {}))
    assert decision.verdict is INCONCLUSIVE
    assert decision.reasons == (
        "ttft: no requests of the canary in llm_slo_events_total. "
        "Fix: check its labels and its traffic",
        "ttft: no requests of the baseline in llm_slo_events_total. "
        "Fix: check its labels and its traffic",
    )


LONG, SHORT = "over-4096", "0-512"


def test_other_prompts_are_no_reason_to_abort() -> None:
    """The canary gets the long prompts: 7 % of its requests are bad, of the baseline's 1.4 %."""
    canary = {SHORT: Count(30, 3_000), LONG: Count(700, 7_000)}
    baseline = {SHORT: Count(95, 9_500), LONG: Count(50, 500)}
    mixed = shares(canary, baseline)
    alone = one(Count(730, 10_000), Count(145, 10_000))
    assert decided(ttft=alone).verdict is ABORT
    assert decided(ttft=mixed).verdict is INCONCLUSIVE


def test_easier_prompts_do_not_hide_a_worse_canary() -> None:
    canary = {SHORT: Count(190, 9_500), LONG: Count(50, 500)}
    baseline = {SHORT: Count(15, 3_000), LONG: Count(175, 7_000)}
    assert decided(ttft=one(Count(240, 10_000), Count(190, 10_000))).verdict is PROMOTE
    assert decided(ttft=shares(canary, baseline)).verdict is ABORT


def test_a_canary_without_a_prompt_class_is_not_promoted() -> None:
    """A class of 3 % of the requests has an unknown share of bad ones in the canary."""
    canary = {SHORT: Count(10, 10_000)}
    baseline = {SHORT: Count(10, 9_100), LONG: Count(1, 600)}
    decision = decided(ttft=shares(canary, baseline))
    assert decision.verdict is INCONCLUSIVE
    assert (
        "ttft: the canary lacks prompt classes with 3.05% of production's requests"
        in decision.reasons
    )


@pytest.mark.parametrize(
    ("canary", "baseline", "verdict"),
    [
        (0.5, 0.95, PROMOTE),
        (0.95, 0.5, ABORT),
        (0.95, 0.95, INCONCLUSIVE),
        (0.95, None, INCONCLUSIVE),
        (None, 0.5, INCONCLUSIVE),
        (nan, 0.5, INCONCLUSIVE),
    ],
)
def test_a_guard_of_a_resource_decides(
    canary: float | None, baseline: float | None, verdict: GateVerdict
) -> None:
    assert decided(guard_kv_headroom=UsageMeasurement(canary, baseline)).verdict is verdict


def test_the_limit_of_the_kv_cache_is_that_of_the_objective() -> None:
    limit = [each.criterion for each in decided().evaluations][4]
    assert (limit.name, str(limit.limit)) == ("guard_kv_headroom", "0.9")  # type: ignore[union-attr]


@pytest.mark.parametrize("guard", ["guard_errors", "guard_sheds"])
def test_a_guard_of_requests_decides(guard: str) -> None:
    worse = one(Count(300, 10_000), Count(20, 10_000))
    assert decided(**{guard: worse}).verdict is ABORT


@pytest.mark.parametrize("health", [None, 0.0, nan])
def test_unhealthy_scrapes_neither_promote_nor_abort(health: float | None) -> None:
    assert decided(health).verdict is INCONCLUSIVE
    decision = decided(health, ttft=one(Count(800, 10_000), Count(200, 10_000)))
    assert decision.verdict is INCONCLUSIVE
    assert decision.reasons[0].startswith("scrape health: ")
    assert decide(GATE, measurements(), 1.0, None).verdict is INCONCLUSIVE


def test_abort_precedes_inconclusive() -> None:
    worse, small = one(Count(800, 10_000), Count(200, 10_000)), one(Count(0, 3), Count(0, 3))
    assert decided(ttft=worse, availability=small).verdict is ABORT


def test_error_rates_are_split_over_looks_and_criteria() -> None:
    """0.5 % over three looks; to abort, over two conditions of four shares as well."""
    assert (GATE.promote_z, GATE.abort_z) == (2.9352, 3.5293)
    assert LOOKS == 3


def test_a_rollout_chooses_objectives_and_guards() -> None:
    plan = example(objective("ttft"), objective("availability"), objective("kv_headroom"))
    gate = gate_of(plan, Rollout(objectives=("availability",), guards=("sheds",)))
    assert [each.name for each in gate.criteria] == ["availability", "guard_sheds"]


def test_a_gate_without_criteria_is_inconclusive() -> None:
    gate = gate_of(example(objective("kv_headroom")), Rollout(guards=()))
    assert decide(gate, [], 1.0, 1.0).verdict is INCONCLUSIVE


def test_an_evaluation_has_the_whole_counts() -> None:
    evaluation = decided().evaluations[0]
    assert evaluation.measurement is GOOD
    assert (evaluation.canary, evaluation.baseline) == (Count(20, 10_000), Count(20, 10_000))
