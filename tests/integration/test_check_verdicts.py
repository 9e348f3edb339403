"""The verdicts of diagnosis checks on a real Prometheus, for healthy, sick and young services."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from check_series import CASES, openmetrics, subject

from lab.prometheus import Prometheus
from promql.client import query
from runbooks.checks import CHECKS
from runbooks.diagnosis_check import Verdict, verdict
from slos.queries import Scope

COMPARE_WITH_YESTERDAY = {
    *("more_events", "output", "throughput", "prompts", "answers", "arrivals", "reuse"),
    *("prefill_slow", "pace_slow", "stage_slow", "short_answers", "disconnects_up"),
}
WITHOUT_DATA: dict[str, Verdict] = {
    **dict.fromkeys(("scraped", "queries", "selected"), "sick"),
    **dict.fromkeys(
        ("cause_alerts", "estimate", "unavailable", "contradiction", "threshold"), "healthy"
    ),
}
"""The verdicts of checks whose subject is the existence of series."""


@pytest.fixture(scope="module")
def url(prometheus_with: Callable[..., Prometheus]) -> Iterator[str]:
    with prometheus_with("".join(openmetrics(int(time.time())))) as server:
        yield server.url


def judged(url: str, check: str, state: str) -> tuple[Verdict, list[float]]:
    of = subject(check, state)
    values = [sample.value for sample in query(url, str(CHECKS[check].query(of)))]
    return verdict(CHECKS[check].healthy(of), values), values


def test_every_check_has_series():
    assert CASES.keys() == CHECKS.keys()


@pytest.mark.parametrize("check", CASES)
def test_healthy_service_is_healthy(url, check):
    found = judged(url, check, "healthy")
    assert found[0] == "healthy", found


@pytest.mark.parametrize("check", CASES)
def test_sick_service_is_sick(url, check):
    found = judged(url, check, "sick")
    assert found[0] == "sick", found


@pytest.mark.parametrize("check", CASES)
def test_young_service_has_nothing_to_compare_with(url, check):
    found = judged(url, check, "young")
    assert found[0] == ("no_data" if check in COMPARE_WITH_YESTERDAY else "healthy"), found


@pytest.mark.parametrize("check", [key for key, case in CASES.items() if case.undecided])
def test_ambiguous_series_decide_nothing(url, check):
    found = judged(url, check, "undecided")
    assert found[0] == "no_data", found


@pytest.mark.parametrize("check", CASES)
def test_without_series_a_check_decides_nothing(url, check):
    found = judged(url, check, "unknown")
    assert found[0] == WITHOUT_DATA.get(check, "no_data"), found


@pytest.mark.parametrize("check", [key for key, check in CHECKS.items() if check.of_service])
def test_checks_of_a_service_need_no_objective(check):
    of = subject(check, "healthy")
    alone = CHECKS[check].of_service
    scope = Scope(of.plan.service.selector)
    assert str(alone.query(scope)) == str(CHECKS[check].query(of))
    assert alone.healthy == CHECKS[check].healthy(of)
