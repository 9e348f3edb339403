"""Diagnosis checks as data, and the verdict on a result."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from check_series import CASES, subject
from promql_selectors import selectors, unknown

from runbooks.check_queries import Subject
from runbooks.checks import CHECKS
from runbooks.diagnosis_check import compares, no_result, verdict
from runbooks.playbooks import PLAYBOOKS
from slos.plan import plan


@pytest.mark.parametrize(
    ("healthy", "values", "expected"),
    [
        (compares("<", 1), [0.5, 0.9], "healthy"),
        (compares("<", 1), [0.5, 1.0], "sick"),
        (compares("<=", 1), [1.0], "healthy"),
        (compares(">", "0.5"), [0.4], "sick"),
        (compares(">=", 1), [1.0], "healthy"),
        (compares("==", 0), [0.0, 0.0], "healthy"),
        (compares("==", 0), [0.1], "sick"),
        (compares("<", 1), [inf], "sick"),
        (compares("<", 1), [], "no_data"),
        (compares("<", 1), [nan, nan], "no_data"),
        (compares("<", 1), [nan, 0.5], "healthy"),
        (compares("<", 1), [nan, 1.5], "sick"),
        (no_result(), [], "healthy"),
        (no_result(), [nan], "healthy"),
        (no_result(), [0.0], "sick"),
    ],
)
def test_verdict_on_a_result(healthy, values, expected):
    assert verdict(healthy, values) == expected


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_check_is_complete(check):
    assert check.question.endswith("?")
    assert check.rules_out
    assert check.points_to in PLAYBOOKS or check.key in ("cause_alerts", "clause")
    assert not check.note or check.note.endswith(".")
    assert bool(check.of_service) <= (not check.per_objective)


@pytest.mark.parametrize("histograms", ["classic", "native"])
@pytest.mark.parametrize("check", CASES)
def test_every_query_reads_served_metrics(check, histograms):
    planned = plan(replace(subject(check, "healthy").plan.service, histograms=histograms))
    query = str(CHECKS[check].query(Subject(planned, planned.objectives[0])))
    assert selectors(query)
    assert ("_bucket" in query) <= (histograms == "classic")
    if not CASES[check].queries:
        assert unknown(query) == []
