"""Objectives on native histograms: their rules on the promtools that read such histograms."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from generic_example import generic_objective
from promql_selectors import selectors
from service_example import example, objective, service

import alerts
import dashboards
import runbooks
from alerts.formats import Options
from slos.generic_events import bad_share
from slos.model import Alerting, TimeSlices
from slos.plan import Plan, plan
from slos.signals import SIGNALS
from tests import libyaml

SELECTED = 'model="llama",namespace="prod"'
# 0.4 s is in the bucket from 0.25 to 0.5, which is left empty: so nothing is interpolated.
EXPONENTIAL = "{{schema:0 count:10 sum:5 offset:-2 buckets:[6 0 0 4]}}"
# What Prometheus 3 makes of a classic histogram with a bucket boundary at the threshold.
CUSTOM = "{{schema:-53 count:10 sum:5 custom_values:[0.2 0.4 0.8 1] buckets:[2 4 0 3 1]}}"
OLD, NEW = "promtool@trixie", "promtool@forky"
RELEASES = [OLD, pytest.param(NEW, marks=pytest.mark.long)]

Check = tuple[str, str, float | None]


@pytest.fixture
def check(part: Callable[[str], Path], tmp_path: Path) -> Callable[..., None]:
    """Play series to a plan's rules on a certain promtool; the last of a check is its value."""

    def check_(which: str, made: Plan, series: dict[str, str], *checks: Check) -> None:
        options = Options(min_prometheus="3" if which == NEW else "2.53")
        files = alerts.files(made, source="slo.yaml", version="0.1.0", options=options)
        for name, text in files.items():
            (tmp_path / Path(name).name).write_text(text)
        test = {
            "interval": "30s",
            "input_series": [{"series": name, "values": text} for name, text in series.items()],
            "promql_expr_test": [
                {
                    "expr": f"round(sum({expr}), 0.001)",
                    "eval_time": at,
                    "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
                }
                for at, expr, value in checks
            ],
        }
        rules = f"{made.service.service}.rules.yaml"
        content = {"rule_files": [rules], "evaluation_interval": "1m", "tests": [test]}
        (tmp_path / "scenario.yaml").write_text(libyaml.dump(content))
        for arguments in (["check", "rules", rules], ["test", "rules", "scenario.yaml"]):
            command = [part(which), *arguments]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr

    return check_


OWN = generic_objective("latency", histograms="native")
NATIVE = plan(service(OWN))
LATENCY = OWN.queries["histogram"]
RATIO = "slo:error_ratio:rate5m"
ABSENT = 'ALERTS{alertname="ChatLatencyMetricAbsent",alertstate="firing"}'


def rising(each: str, steps: int = 60) -> str:
    return f"{each}+{each}x{steps}"


def still(each: str, steps: int = 60) -> str:
    return f"{each}x{steps}"


@pytest.mark.parametrize(("which", "each"), [(OLD, EXPONENTIAL), (NEW, EXPONENTIAL), (NEW, CUSTOM)])
def test_share_of_slow_requests_is_exact(check: Callable[..., None], which: str, each: str) -> None:
    check(
        which,
        NATIVE,
        {LATENCY: rising(each)},
        ("20m", RATIO, 0.4),
        ("20m", "slo:total:increase1m", 20),
        ("20m", "slo:bad:increase1m", 8),
        # 21 of 40,320 minutes are recorded.
        ("20m", "slo:error_budget_remaining:ratio", round(1 - 0.4 * 21 / 40_320 / 0.01, 3)),
        ("20m", ABSENT, None),
    )


@pytest.mark.parametrize("which", RELEASES)
def test_an_idle_service_has_no_ratio_and_its_whole_budget(
    check: Callable[..., None], which: str
) -> None:
    check(
        which,
        NATIVE,
        {LATENCY: still(EXPONENTIAL)},
        ("20m", RATIO, None),
        ("20m", "slo:bad:increase1m", 0),
        ("20m", "slo:error_budget_remaining:ratio", 1),
        ("30m", 'ALERTS{alertstate="firing"}', None),
    )


@pytest.mark.parametrize("which", RELEASES)
def test_increases_add_up_to_those_of_a_histogram_that_restarts(
    check: Callable[..., None], which: str
) -> None:
    """A step in one sample counts once and whole; the sample after the restart does not count."""

    def seen(fast: int, slow: int) -> str:
        return f"{{{{schema:0 count:{fast + slow} offset:-2 buckets:[{fast} 0 0 {slow}]}}}}"

    samples = [seen(5000, 5000)] * 10 + [seen(5060, 5040)] * 10 + [seen(3, 4)] * 10
    check(
        which,
        NATIVE,
        {LATENCY: " ".join([*samples, seen(9, 4)])},
        ("15m", "sum_over_time(slo:total:increase1m[15m])", 106),
        ("15m", "sum_over_time(slo:bad:increase1m[15m])", 40),
    )


def test_latencies_of_the_sidecar_are_counted_alike() -> None:
    native, classic = (
        alerts.files(of, source="slo.yaml", version="1")["alerts/chat.rules.yaml"]
        for of in (FULL, example())
    )
    assert native.replace(", histograms: native", "") == classic
    assert native.count(", histograms: native") == len(FULL.objectives)


@pytest.mark.parametrize("which", RELEASES)
def test_missing_histogram_fires_metric_absent(check: Callable[..., None], which: str) -> None:
    """As where Prometheus still stores a classic one."""
    classic = LATENCY.replace("{", '_bucket{le="0.4",')
    check(which, NATIVE, {classic: "0+1x100"}, ("20m", RATIO, None), ("30m", ABSENT, 1))


def failures(promtool: Path, made: Plan, folder: Path, old: str, new: str) -> str:
    """Run the generated tests, on rules with ``new`` for ``old``; return what failed."""
    for name, text in alerts.files(made, source="slo.yaml", version="0.1.0").items():
        broken = old and name.endswith(".rules.yaml")
        changed = text.replace(old, new) if broken else text
        assert (changed == text) is not bool(broken)
        (folder / Path(name).name).write_text(changed)
    command = [promtool, "test", "rules", f"{made.service.service}.test.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("which", RELEASES)
def test_generated_tests_pass(part: Callable[[str], Path], tmp_path: Path, which: str) -> None:
    mixed = example(
        replace(OWN, name="pods", group_by=("pod",)),
        replace(OWN, name="slices", slices=TimeSlices(Decimal(60), Decimal("0.95"))),
        objective("availability"),
        alerting=Alerting(disable=frozenset({"causes"})),
    )
    assert not failures(part(which), mixed, tmp_path, "", "")


@pytest.mark.parametrize("which", RELEASES)
def test_generated_tests_notice_another_threshold(
    part: Callable[[str], Path], tmp_path: Path, which: str
) -> None:
    """The test cases have histograms as input, not the rates recorded from them."""
    reported = failures(part(which), NATIVE, tmp_path, "      0.4,", "      4,")
    assert "FAILED" in reported


FULL = example(histograms="native")
BOARDS = [
    each.content
    for each in dashboards.build(FULL, source="slo.yaml", version="1")
    if each.kind != "overview"  # it reads classic and native histograms
]
VARIABLE = re.compile(r'=~"\$\w+"')
PAGES = runbooks.files(FULL, source="slo.yaml", version="1")
SHOWN = {
    VARIABLE.sub('=~".*"', target["expr"])
    .replace("$__rate_interval", "5m")
    .replace("$__range", "5m")
    for board in BOARDS
    for panel in board["panels"]
    for target in panel.get("targets", [])
} | {
    query
    for name, page in PAGES.items()
    if not any(name.endswith(f"/{each.alert.name}.md") for each in FULL.causes)
    for query in re.findall(r"```promql\n(.*?)\n```", page, re.DOTALL)
}
"""What dashboard and runbooks ask, but for the conditions of cause alerts."""
HISTOGRAMS = {signal.metric for signal in SIGNALS.values() if signal.kind == "histogram"}


def test_dashboard_and_runbooks_read_no_classic_buckets() -> None:
    parts = {f"{metric}_{part}" for metric in HISTOGRAMS for part in ("bucket", "count", "sum")}
    queried = {each.metric for query in SHOWN for each in selectors(query)}
    assert not queried & parts
    assert queried >= {SIGNALS[key].metric for key in ("ttft", "itl", "disconnect_age")}
    heatmaps = [
        panel for board in BOARDS for panel in board["panels"] if panel["type"] == "heatmap"
    ]
    assert {panel["targets"][0]["format"] for panel in heatmaps} == {"time_series"}


@pytest.mark.parametrize(("which", "each"), [(OLD, EXPONENTIAL), (NEW, CUSTOM)])
def test_queries_of_dashboard_and_runbooks_return_data(
    check: Callable[..., None], which: str, each: str
) -> None:
    """Every query of histograms alone has a result; some have an exact one."""
    labels = 'instance="a",version="1"'
    series = {f"{metric}{{{SELECTED},{labels}}}": rising(each) for metric in sorted(HISTOGRAMS)}
    questions = [
        query
        for query in sorted(SHOWN)
        if {found.metric for found in selectors(query)} <= HISTOGRAMS
        and " offset 1d" not in query  # no series of yesterday
        and "\nunless on () count(" not in query  # no result where the selector is right
    ]
    assert len(questions) >= 20
    every = ",".join(f'{name}=~".*"' for name in ("cluster", "version", "pod", "instance"))
    metric = f"llm_inter_token_latency_seconds{{{SELECTED},{every}}}"
    share = f"histogram_fraction(0, 0.8, sum by (version) (rate({metric}[5m])))"
    assert share in questions
    own = generic_objective("latency", histograms="native")
    by_instance = bad_share(own, ("instance",), is_native=True)
    series[own.queries["histogram"].replace("}", ',instance="a"}')] = rising(each)
    check(
        which,
        NATIVE,
        series,
        *(("20m", f"0 * count({query}) + 1", 1) for query in [*questions, str(by_instance)]),
        ("20m", share, 0.6),
    )
