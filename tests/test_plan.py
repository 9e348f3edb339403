"""A plan: the names, windows and URLs that the outputs share."""

from __future__ import annotations

from decimal import Decimal

import pytest
from service_example import example, objective

from slos import names
from slos.model import Alerting


def test_windows_are_those_of_the_pairs_shortest_first() -> None:
    (planned,) = example(objective("availability")).objectives
    assert planned.windows == ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


def test_windows_of_omitted_pairs_are_not_recorded() -> None:
    (planned,) = example(objective("availability", target="0.5")).objectives
    assert planned.windows == ("5m", "10m", "6h", "3d")


def test_alerts_are_named_after_service_and_objective() -> None:
    plan = example(objective("kv_headroom"))
    assert [(alert.name, alert.kind) for _, alert in plan.alerts()] == [
        ("ChatKvHeadroomErrorBudgetBurn", "burn"),
        ("ChatKvHeadroomErrorBudgetExhausted", "exhausted"),
        ("ChatKvHeadroomMetricAbsent", "absent"),
    ]


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("", ""),
        ("https://r.example/chat/", "https://r.example/chat/ChatE2eErrorBudgetBurn.md"),
        ("https://r.example/?page={alert}", "https://r.example/?page=ChatE2eErrorBudgetBurn"),
    ],
)
def test_runbook_urls_are_those_of_the_file(base: str, url: str) -> None:
    (planned,) = example(objective("e2e"), runbooks=base).objectives
    assert planned.burn.runbook_url == url


def test_dashboard_url_is_that_of_grafana() -> None:
    assert example(dashboards="https://g.example/").dashboard_url == (
        "https://g.example/d/tokenslo-chat-error-budget"
    )
    assert example(dashboards="").dashboard_url == ""


def test_dashboards_of_services_with_long_names_differ() -> None:
    uids = {names.dashboard_uid("x" * 40 + end, "engine") for end in "ab"}
    assert len(uids) == 2
    assert all(len(uid) == 40 for uid in uids)


def test_low_traffic_concerns_requests_but_not_slices_of_time() -> None:
    alerting = Alerting(min_bad_events=500)
    plan = example(objective("ttft"), objective("kv_headroom"), alerting=alerting)
    assert [planned.min_bad_events for planned in plan.objectives] == [500, 5]


def test_budgets_are_free_of_float_noise() -> None:
    (planned,) = example(objective("ttft", target="0.999")).objectives
    assert [pair.threshold for pair in planned.pairs] == [
        Decimal(text) for text in ("0.01344", "0.0056", "0.0028", "0.001")
    ]
