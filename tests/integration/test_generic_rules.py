"""Rules of custom queries on the real promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest
from generic_example import FORMS, generic_objective, generic_plan

import alerts
from slos.model import Overrides
from tests import libyaml

Run = Callable[..., subprocess.CompletedProcess[str]]
Evaluate = Callable[..., None]
TARGETS = ("0.5", "0.9", "0.95", "0.99", "0.999", "0.9999")


@pytest.fixture
def scenario(run: Run) -> Evaluate:
    """Play input series to an objective's rules; a check is a time, an expression, its values."""

    def scenario_(name: str, series: dict[str, str], *checks: tuple[str, str, list[float]]) -> None:
        test = {
            "interval": "30s",
            "input_series": [{"series": each, "values": text} for each, text in series.items()],
            "promql_expr_test": [
                {
                    "expr": f"round({expr}, 0.01)",
                    "eval_time": at,
                    "exp_samples": [{"labels": "{}", "value": value} for value in expected],
                }
                for at, expr, expected in checks
            ],
        }
        content = {"rule_files": ["shop.rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
        plan = generic_plan(generic_objective(name))
        done = run(
            plan, "test", "rules", "scenario.yaml", **{"scenario.yaml": libyaml.dump(content)}
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return scenario_


BAD, TOTAL = (f"sum(slo:{events}:increase1m) / 60" for events in ("bad", "total"))
RATIO = "sum(slo:error_ratio:rate1h)"
NAN = " ".join(["NaN"] * 40)
ABSENT = 'count(ALERTS{alertname=~".+MetricAbsent"})'


def test_rules_are_free_of_lint(run: Run) -> None:
    plan = generic_plan()
    done = run(plan, "check", "rules", "--lint=all", "--lint-fatal", "shop.rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_form_passes_its_own_tests(run: Run) -> None:
    objectives = [
        generic_objective(name, TARGETS[number % len(TARGETS)]) for number, name in enumerate(FORMS)
    ]
    done = run(generic_plan(*objectives), "test", "rules", "shop.test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_objectives_that_differ_on_one_metric_pass_their_own_tests(run: Run) -> None:
    strict = {"bad": 'http_requests_total{code!~"2.."}', "total": "http_requests_total"}
    objectives = [
        generic_objective("bad-counter"),
        replace(generic_objective("bad-counter"), name="strict", queries=strict),
        generic_objective("latency"),
        replace(generic_objective("latency"), name="slower", threshold=Decimal(5)),
    ]
    done = run(generic_plan(*objectives), "test", "rules", "shop.test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "disable",
    [
        ["ticket"],
        ["page", "ticket", "exhausted", "absent"],
        *(
            pytest.param(kinds, marks=pytest.mark.long)
            for kinds in (["page"], ["page", "ticket"], ["absent"], ["exhausted", "absent"])
        ),
    ],
)
def test_partial_alerts_pass_their_own_tests(run: Run, disable: list[str]) -> None:
    alerting = Overrides(disable=frozenset(disable))
    plan = generic_plan(generic_objective("bad-counter", alerting=alerting))
    for command in (
        ("check", "rules", "--lint=all", "--lint-fatal", "shop.rules.yaml"),
        ("test", "rules", "shop.test.yaml"),
    ):
        done = run(plan, *command)
        assert done.returncode == 0, done.stdout + done.stderr


BREAKAGES = {
    "blind to errors": ("bad-counter", 'code=~"5..|429"', 'code=~"4.."'),
    "not a number when idle": ("bad-rate", "> 0)", ">= 0)"),
    "pages too late": ("computed", "> 0.1344\n", "> 0.8\n"),
    "another edge": ("latency", 'le="0.4"', 'le="0.5"'),
    "nothing is missed": ("bad-rate", "absent(sum(http_requests_total", "absent(sum(up"),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_generated_tests_notice_broken_rules(run: Run, breakage: str) -> None:
    name, old, new = BREAKAGES[breakage]
    plan = generic_plan(generic_objective(name))
    good = alerts.files(plan, source="slo.yaml", version="0.1.0")["alerts/shop.rules.yaml"]
    assert old in good
    done = run(
        plan, "test", "rules", "shop.test.yaml", **{"shop.rules.yaml": good.replace(old, new)}
    )
    assert "FAILED" in done.stdout + done.stderr


OK = 'http_requests_total{job="shop",instance="a",code="200"}'
ERROR = 'http_requests_total{job="shop",instance="a",code="500"}'


@pytest.mark.parametrize("name", ["bad-counter", "bad-rate", "good-counter", "good-rate"])
def test_before_the_first_error_nothing_is_bad(scenario: Evaluate, name: str) -> None:
    scenario(name, {OK: "0+30x40"}, ("20m", BAD, [0]), ("20m", TOTAL, [1]), ("20m", RATIO, [0]))


@pytest.mark.parametrize("name", ["bad-counter", "bad-rate", "good-counter", "good-rate"])
def test_a_known_share_of_errors_is_measured(scenario: Evaluate, name: str) -> None:
    scenario(name, {OK: "0+90x80", ERROR: "0+10x80"}, ("40m", RATIO, [0.1]))


@pytest.mark.parametrize(("name", "seen"), [("bad-counter", 40), ("good-counter", 20),
                                            ("bad-rate", 20)])  # fmt: skip
def test_only_counters_include_the_first_value_of_a_series(
    scenario: Evaluate, name: str, seen: int
) -> None:
    """It comes with 20 errors and gets 20 more: only a counter of bad ones sees the first ones."""
    scenario(
        name,
        {OK: "0+30x80", ERROR: "_x40 20+5x4 40+0x35"},
        ("40m", f"sum(sum_over_time(slo:bad:increase1m[1h])) / {seen}", [1]),
    )


@pytest.mark.parametrize("name", ["bad-counter", "bad-rate", "good-rate", "two-metrics"])
def test_an_idle_service_has_no_errors_and_an_absent_one_no_rates(
    scenario: Evaluate, name: str
) -> None:
    idle = {"sent_total": "5x40 stale"} if name == "two-metrics" else {OK: "5x40 stale"}
    scenario(
        name,
        idle,
        ("20m", BAD, [0]),
        ("20m", TOTAL, [0]),
        ("20m", RATIO, []),
        ("20m", ABSENT, []),
        # Scrapes may fail for half an hour.
        ("26m", TOTAL, [0]),
        ("26m", BAD, [0]),
        ("26m", ABSENT, [1]),
        ("52m", TOTAL, []),
        ("52m", BAD, []),
    )


def test_without_a_good_one_all_are_bad(scenario: Evaluate) -> None:
    scenario("good-rate", {ERROR: "0+30x40"}, ("20m", BAD, [1]), ("20m", RATIO, [1]))


def test_nan_samples_are_not_averaged(scenario: Evaluate) -> None:
    """Ten minutes at 0.2 bad, then ten that are not a number: those are as if they were not."""
    scenario(
        "average",
        {"satisfaction": f"0.8x20 {NAN}"},
        ("20m", RATIO, [0.2]),
        ("20m", TOTAL, []),
    )


def test_every_series_of_a_ratio_has_equal_weight(scenario: Evaluate) -> None:
    series = {'satisfaction{c="a"}': "1x40", 'satisfaction{c="b"}': "0.5x40"}
    scenario("average", series, ("20m", RATIO, [0.25]))


def test_weight_favours_busy_hours(scenario: Evaluate) -> None:
    """A tenth of 9 a second, then all of 1 a second: 1.9 of 10."""
    series = {"errors:ratio": "0.1x60 1x59", "requests:rate5m": "9x60 1x59"}
    scenario("weighted", series, ("1h", RATIO, [0.19]))


def test_zero_weight_has_no_ratio(scenario: Evaluate) -> None:
    series = {"errors:ratio": NAN, "requests:rate5m": "0+0x40"}
    scenario("weighted", series, ("20m", BAD, [0]), ("20m", TOTAL, [0]), ("20m", RATIO, []))


@pytest.mark.parametrize("name", ["up", "depth"])
def test_gauge_is_bad_while_it_is_0(scenario: Evaluate, name: str) -> None:
    series = {'up{job="shop"}': "1x60 0+0x19 1x40", "queue_depth": "1x60 9x19 4x40"}
    scenario(name, series, ("1h", RATIO, [0.16]))


def test_a_server_with_other_buckets_is_left_out(scenario: Evaluate) -> None:
    metric = "http_request_duration_seconds"
    labels = 'job="shop",instance='
    series = {
        f'{metric}_bucket{{{labels}"a",le="0.4"}}': "0+9x160",
        f'{metric}_count{{{labels}"a"}}': "0+10x160",
        f'{metric}_bucket{{{labels}"b",le="0.5"}}': "0+900x160",
        f'{metric}_count{{{labels}"b"}}': "0+1000x160",
    }
    firing = 'count(ALERTS{alertname=~".+MetricAbsent",alertstate="firing",severity="warning"})'
    scenario("latency", series, ("1h10m", RATIO, [0.1]), ("1h10m", firing, [1]))
