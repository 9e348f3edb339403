"""Indicators with queries of a file's own: reading, recording and refusing them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from generic_example import FORMS, generic_objective, generic_plan
from hypothesis import given
from hypothesis import strategies as st
from language_example import load
from promql_selectors import selectors

import alerts
import dashboards
import runbooks
from alerts.example_labels import accepted, example
from alerts.traffic import apart
from promql.expr import Matcher
from promql.query import InvalidQuery, one_line, read_query
from slos.errors import InvalidFile
from slos.indicator_events import events
from slos.indicators import good_sentence, threshold_text
from slos.model import DISABLED

FILE = """\
apiVersion: tokenslo/v1
service: shop
selector: {{namespace: prod}}
objectives:
  - name: requests
    indicator: {indicator}
    target: 99%
"""


def read(tmp_path: Path, indicator: str, more: str = ""):
    path = tmp_path / "slo.yaml"
    path.write_text(FILE.format(indicator=indicator) + more)
    (objective,) = load(path).objectives
    return objective


def problems(tmp_path: Path, indicator: str, more: str = "") -> list[str]:
    with pytest.raises(InvalidFile) as refused:
        read(tmp_path, indicator, more)
    return [str(problem).removeprefix(f"{tmp_path}/") for problem in refused.value.problems]


def measured(name: str) -> tuple[str, ...]:
    made = events(generic_objective(name), generic_plan().service)
    return tuple(str(expr) for expr in (made.bad, made.total, made.missing))


RECORDED = 'slo:total:increase1m{service="shop",slo="%s"}'


def test_a_rate_is_recorded_as_written_and_no_bad_series_is_zero() -> None:
    assert measured("bad-rate") == (
        'sum(rate(http_requests_total{job="shop",code=~"5..|429"}[5m])) '
        'or sum(rate(http_requests_total{job="shop"}[5m])) * 0',
        'sum(rate(http_requests_total{job="shop"}[5m]))',
        'absent(sum(http_requests_total{job="shop"}))',
    )


def test_without_good_series_all_events_are_bad() -> None:
    bad, total, _ = measured("good-rate")
    assert bad == (
        f'clamp_min({total} - sum(rate(http_requests_total{{job="shop",code!~"5..|429"}}[5m])), 0) '
        f"or {total}"
    )


def test_nan_and_negative_rates_are_not_recorded() -> None:
    assert measured("computed") == (
        "clamp_min((sum(sum(a:rate5m) - sum(b:rate5m))) >= 0, 0) "
        "or (sum(sum by (x) (a:rate5m)) >= 0) * 0".replace("((sum(", "(sum(").replace(
            "))) >", ")) >"
        ),
        "sum(sum by (x) (a:rate5m)) >= 0",
        f"absent({RECORDED % 'computed'})",
    )


def test_a_ratio_without_weight_is_an_average_over_time() -> None:
    share = "clamp(1 - avg_over_time(satisfaction[5m]), 0, 1) >= 0"
    assert measured("average") == (
        f"sum({share}) / 60",
        f"count({share}) / 60",
        f"absent({RECORDED % 'average'})",
    )


def test_a_ratio_with_a_weight_is_a_share_of_the_weight() -> None:
    total = "sum(requests:rate5m) >= 0"
    assert measured("weighted") == (
        f"clamp(avg(errors:ratio), 0, 1) * ({total}) >= 0 or ({total}) * 0",
        total,
        f"absent({RECORDED % 'weighted'})",
    )


def test_a_gauge_is_counted_every_minute() -> None:
    assert measured("up") == (
        'sum(up{job="shop"} == bool 0) / 60',
        'count(up{job="shop"}) / 60',
        'absent(sum(up{job="shop"}))',
    )


@pytest.mark.parametrize("name", FORMS)
def test_the_selector_of_the_file_is_not_added(tmp_path: Path, name: str) -> None:
    plan = generic_plan(generic_objective(name), selector={"namespace": "prod"})
    made = plan.objectives[0].events
    for expr in (made.bad, made.total, made.missing):
        assert not any("namespace" in each.labels for each in selectors(str(expr)))


@pytest.mark.parametrize("name", FORMS)
def test_all_outputs_are_generated_with_valid_promql(name: str) -> None:
    plan = generic_plan(generic_objective(name))
    for made in (alerts, runbooks, dashboards):
        files = made.files(plan, source="slo.yaml", version="0.1.0")
        assert files
        files.pop("dashboards/overview.json", None)  # of all services
        assert not any("llm_" in text for text in files.values())


def test_disabled_alerts_have_no_rule_no_page_and_no_line(tmp_path: Path) -> None:
    objective = read(
        tmp_path,
        "{gauge: up}",
        "    labels: {team: b}\n"
        "    alerting: {disable: [page, absent], ticket: {labels: {to: me}}, min_bad_events: 3}\n",
    )
    plan = generic_plan(objective, labels={"team": "a", "tier": "1"})
    (planned,) = plan.objectives
    assert [alert.kind for alert in planned.alerts] == ["burn", "exhausted"]
    assert {pair.tier for pair in planned.alerting_pairs} == {"ticket"}
    rules = alerts.files(plan, source="slo.yaml", version="0.1.0")["alerts/shop.rules.yaml"]
    assert "severity: critical" not in rules
    assert "MetricAbsent" not in rules
    assert rules.count("to: me") == rules.count("severity: warning") == 3
    assert rules.count("team: b") == 4, "the info series and three alerts"
    assert "team: a" not in rules
    pages = runbooks.files(plan, source="slo.yaml", version="0.1.0")
    assert sorted(path.rpartition("/")[2] for path in pages if "/playbooks/" not in path) == [
        "README.md",
        "ShopRequestsErrorBudgetBurn.md",
        "ShopRequestsErrorBudgetExhausted.md",
    ]


@pytest.mark.parametrize(
    ("indicator", "threshold", "shown"),
    [
        ("{histogram: 'x_seconds{a=\"b\"}', threshold: 400ms}", "0.4", "400ms"),
        ("{histogram: x_seconds, threshold: 0.4}", "0.4", "400ms"),
        ("{histogram: x_histogram_ms, threshold: 400ms}", "400", "400ms"),
        ("{histogram: x_milliseconds, threshold: 1500}", "1500", "1.5s"),
        ("{histogram: x_bytes, threshold: 65536}", "65536", "65536"),
    ],
)
def test_thresholds_are_in_the_unit_of_their_metric(
    tmp_path: Path, indicator: str, threshold: str, shown: str
) -> None:
    objective = read(tmp_path, indicator)
    assert objective.threshold == Decimal(threshold)
    assert threshold_text(objective) == shown
    assert good_sentence(objective) == f"it is {shown} or less"


QUERY = "objectives[0].indicator"
BAD = {
    "{bad: x_total}": [
        ": is no indicator with bad. Fix: give {bad, total} or {good, total} or {ratio} or "
        "{ratio, weight} or {histogram, threshold} or {gauge}."
    ],
    "{}": [
        ": is no indicator with nothing. Fix: give {bad, total} or {good, total} or {ratio} or "
        "{ratio, weight} or {histogram, threshold} or {gauge}."
    ],
    "{bed: x, total: 3}": [
        ".bed: is not a known key. Fix: write bad.",
        ".total: is a number. Fix: write a PromQL query.",
    ],
    "{gauge: 'up[{window}]'}": [
        ".gauge: gives a range, a number or text, not an instant vector. Fix: correct the query."
    ],
    "{bad: 'sum(rate(x[{{.window}}]))', total: 'job:x:rate5m'}": [
        '.bad: holds "{{", a template that is not filled in. Fix: write {window}.',
        ".total: selects job:x:rate5m, which is neither a rate nor, by its name, a counter. "
        "Fix: write sum(rate(job:x:rate5m[{window}])) if it is a counter, or sum(job:x:rate5m) "
        "if it is a rate.",
    ],
    "{histogram: x_seconds_bucket, threshold: 1s}": [
        ".histogram: x_seconds_bucket is a part of a histogram. Fix: write x_seconds."
    ],
    "{histogram: 'sum(x)', threshold: 1s}": [
        ".histogram: is no plain selector. Fix: write one, such as http_request_duration_seconds."
    ],
    "{histogram: 'x{le=\"1\"}', threshold: 1s}": [
        ".histogram: selects by le, which the threshold says. Fix: delete it."
    ],
    "{histogram: x_bytes, threshold: 1s}": [
        ".threshold: the unit of x_bytes is unknown, as its name does not end in _seconds or _ms. "
        "Fix: write the bucket boundary as a bare number."
    ],
    "{histogram: x_seconds, threshold: 0}": [
        ".threshold: is not above 0. Fix: write a bucket boundary of the histogram."
    ],
}


@pytest.mark.parametrize("indicator", BAD)
def test_an_invalid_indicator_is_refused_with_all_its_problems(
    tmp_path: Path, indicator: str
) -> None:
    assert problems(tmp_path, indicator) == [
        f"slo.yaml:6: {QUERY}{problem}" for problem in BAD[indicator]
    ]


def test_invalid_promql_is_refused(tmp_path: Path) -> None:
    found = problems(tmp_path, "{bad: 'rate(x_total)', total: 'sum('}")
    assert [line.partition("PromQL: ")[0] for line in found] == [
        f"slo.yaml:6: {QUERY}.bad: is not ",
        f"slo.yaml:6: {QUERY}.total: is not ",
    ]


def test_threshold_and_clauses_outside_the_indicator_are_refused(tmp_path: Path) -> None:
    more = "    threshold: 1s\n    clauses: {ttft: 1s}\n"
    assert problems(tmp_path, "{gauge: up}", more) == [
        "slo.yaml:8: objectives[0].threshold: cannot be combined with an indicator "
        "of your own. Fix: move it into the indicator, next to histogram.",
        "slo.yaml:9: objectives[0].clauses: only goodput has clauses. Fix: delete it.",
    ]


def test_an_unknown_kind_of_alert_is_refused(tmp_path: Path) -> None:
    more = "    alerting: {disable: [pages, 3]}\n"
    fix = f"Fix: use one of {', '.join(DISABLED)}."
    assert problems(tmp_path, "{gauge: up}", more) == [
        f'slo.yaml:8: objectives[0].alerting.disable[0]: "pages" is not a kind of alert. {fix}',
        f"slo.yaml:8: objectives[0].alerting.disable[1]: this is not a kind of alert. {fix}",
    ]


# Queries


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ('sum(\n  x # all ) of "it\n)', "sum(x)"),
        ('x{ a = "b  # c", d="( e )" }', 'x{a = "b  # c", d="( e )"}'),
        ("a\n/\n  b", "a / b"),
        ("x{a=`it's  \"`} # end", "x{a=`it's  \"`}"),
    ],
)
def test_a_query_fits_on_one_line(query: str, line: str) -> None:
    assert one_line(query) == line
    assert one_line(line) == line
    read_query(line)


@pytest.mark.parametrize(
    ("query", "summed"),
    [
        ("sum(x)", True),
        ("(count((x)))", True),
        ("sum by (a) (x)", False),
        ("topk(1, x)", False),
        ("sum(x) / sum(y)", False),
        ("x", False),
    ],
)
def test_queries_with_one_series_are_recognised(query: str, summed: bool) -> None:
    assert read_query(query).summed is summed


@pytest.mark.parametrize("query", ["x) or (y", "1", "'a'", "x[5m]", "time()", "(" * 20_000, "x #"])
def test_queries_that_are_no_instant_vector_are_refused(query: str) -> None:
    if query == "x #":
        assert read_query(query).text == "x"
        return
    with pytest.raises(InvalidQuery):
        read_query(query)


OPS = st.sampled_from(["=", "!=", "=~", "!~"])
VALUES = st.sampled_from(["a", "", "5..", "(5..|429)", ".*", ".+", "/api.*", "a|b", r"a\.b[0-9]+"])
MATCHERS = st.lists(st.builds(Matcher, st.sampled_from(["code", "job"]), OPS, VALUES), max_size=3)


@given(MATCHERS, MATCHERS)
def test_example_labels_fulfil_the_matchers(wanted, unwanted) -> None:
    labels = example(wanted, unwanted)
    if labels is not None:
        assert accepted(wanted, labels)
        assert not (unwanted and accepted(unwanted, labels))


def test_example_labels_are_found_for_common_matchers() -> None:
    every = [Matcher("job", "=", "a")]
    failed = [*every, Matcher("code", "=~", "(5..|429)")]
    assert example(failed) == {"job": "a", "code": "500"}
    assert example(every, failed) == {"job": "a"}
    assert example([Matcher("path", "=~", r"/api/v1/.*|/v2\.0")]) == {"path": "/api/v1/0"}


def test_objectives_that_read_each_others_series_are_tested_separately() -> None:
    """A bad event of one is a good event of the other, or not counted by it."""
    strict = replace(
        generic_objective("bad-counter"),
        name="strict",
        queries={"bad": 'http_requests_total{code!="200"}', "total": "http_requests_total"},
    )
    same = replace(generic_objective("bad-rate"), name="same")
    plan = generic_plan(generic_objective("bad-counter"), strict, same, generic_objective("up"))
    groups = [[planned.objective.name for planned in group] for group in apart(plan)]
    assert groups == [["bad-counter", "same", "up"], ["strict"]]
