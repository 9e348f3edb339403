"""Generated rules on the real promtool, Prometheus and Alertmanager."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import exp, inf
from pathlib import Path

import pytest
from service_example import example, objective

import alerts
import runbooks
from lab.alertmanager import Alertmanager
from lab.process import get
from lab.prometheus import Prometheus
from promql.expr import vector
from slos.burn import pairs
from slos.indicators import INDICATORS
from slos.model import Alerting, Objective, Overrides, PolicyStep, TimeSlices
from slos.plan import Plan
from slos.signals import SIGNALS
from tests import libyaml
from tests.polling import wait_until
from tests.window_test_runs import run_window_tests

DAY = Decimal(86_400)
TARGETS = ("0.5", "0.9", "0.95", "0.99", "0.999", "0.9999")
PERIODS = (7, 28, 30, 90)
OK = 'llm_requests_total{model="llama",namespace="prod",outcome="ok"}'
ERROR = 'llm_requests_total{model="llama",namespace="prod",outcome="error"}'

Run = Callable[..., subprocess.CompletedProcess[str]]


def is_near(expr: str, truth: float, within: float = 0.01) -> str:
    """Select ``expr`` if it is ``within`` this share of ``truth``."""
    return f"({expr}) / {truth:.12f} > {1 - within:.9g} < {1 + within:.9g}"


def firing(kind: str, **labels: str) -> str:
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return f'ALERTS{{alertname=~".+{kind}",alertstate="firing"{more}}}'


def test_rules_are_free_of_lint(run: Run) -> None:
    done = run(example(), "check", "rules", "--lint=all", "--lint-fatal", "chat.rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr


@pytest.mark.parametrize(
    "days", [pytest.param(days, marks=[pytest.mark.long] * (days != 28)) for days in PERIODS]
)
def test_every_indicator_target_and_period_passes_its_own_tests(run: Run, days: int) -> None:
    """Test each indicator over one period: counting events is independent of windows."""
    here = slice(PERIODS.index(days), None, len(PERIODS))
    objectives = [
        objective(indicator, TARGETS[number % len(TARGETS)])
        for number, indicator in [*enumerate(INDICATORS)][here]
    ]
    done = run(example(*objectives, window=days * DAY), "test", "rules", "chat.test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "least", [0, *(pytest.param(least, marks=pytest.mark.long) for least in (2, 5_000))]
)
def test_every_guard_passes_its_own_tests(run: Run, least: int) -> None:
    plan = example(
        objective("ttft", "0.99"),
        objective("kv_headroom", "0.99"),
        alerting=Alerting(min_bad_events=least, disable=frozenset({"causes"})),
    )
    done = run(plan, "test", "rules", "chat.test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


PART_OF_PERIOD = {1: "promtool@bookworm", 28: "promtool@trixie", 90: "promtool@forky"}


@pytest.mark.parametrize(
    "days", [28, *(pytest.param(days, marks=pytest.mark.long) for days in (1, 90))]
)
def test_windows_and_budgets_pass_their_own_tests(
    run: Run, part: Callable[[str], Path], tmp_path: Path, days: int
) -> None:
    """Test events, time slices of both kinds, groups, no guard, and targets from 1% to 99.999%."""
    slices = TimeSlices(Decimal(60), Decimal("0.95"))
    steps = (PolicyStep(Decimal("0.5"), "slow down"), PolicyStep(Decimal(1), "stop"))
    plan = example(
        objective("kv_headroom", "0.99999"),
        replace(objective("ttft", "0.999"), slices=slices),
        replace(objective("availability", "0.5"), group_by=("pod",)),
        replace(objective("e2e", "0.01"), alerting=Overrides(min_bad_events=0)),
        window=days * DAY,
        policy=steps,
    )
    program = part(PART_OF_PERIOD[days])
    assert run(plan, "check", "rules", "chat.rules.yaml", program=program).returncode == 0
    done = run_window_tests(program, "chat.windows.test.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


BREAKAGES = {
    "pages too late": ("> 0.1344\n", "> 0.8\n"),
    "pages too early": ("> 0.1344\n", "> 0.01\n"),
    "outlasts the outage": (
        'rate5m{service="chat",slo="availability"} > 0.1344',
        "rate1h > 0.1344",
    ),
    "ignores errors": ("error|draining|timeout|truncated|shed", "shed"),
    "not a number when idle": ("> 0)", ">= 0)"),
    "absence alert without delay": ("for: 30m", "for: 1m"),
}


RATIO = 'slo:error_ratio:rate{}{{service="chat",slo="availability"}} > 0.{}'
BUDGET_BREAKAGES = {
    "a page without its long window": (RATIO.format("6h", "056"), "vector(1)"),
    "a ticket without its short window": (RATIO.format("6h", "01\n"), "vector(1)\n"),
    "a ticket that is late": (RATIO.format("3d", "01\n"), RATIO.format("3d", "015\n")),
    "no guard": (">= 10\n", ">= 0\n"),
    "budget exhausted too early": ("<= 0\n", "<= 0.1\n"),
    "budget exhausted below the guard": (
        'period_bad:increase{service="chat",slo="availability"} >= 10',
        'period_bad:increase{service="chat",slo="availability"} >= 5',
    ),
    "a budget policy that is early": ("<= 0.5\n", "<= 0.55\n"),
    "wrong budget": ("/ 0.01 or", "/ 0.02 or"),
}


IN_DEFAULT_SUITE = {
    "pages too late",
    "ignores errors",
    "absence alert without delay",
    "a page without its long window",
}


@pytest.mark.parametrize(
    "breakage",
    [
        pytest.param(name, marks=() if name in IN_DEFAULT_SUITE else pytest.mark.long)
        for name in (*BREAKAGES, *BUDGET_BREAKAGES)
    ],
)
def test_generated_tests_notice_broken_rules(run: Run, breakage: str) -> None:
    steps = (PolicyStep(Decimal("0.5"), "slow down"),)
    plan = example(objective("availability", "0.99"), policy=steps)
    good = alerts.files(plan, source="slo.yaml", version="0.1.0")["alerts/chat.rules.yaml"]
    kind = "test" if breakage in BREAKAGES else "windows.test"
    broken = good.replace(*{**BREAKAGES, **BUDGET_BREAKAGES}[breakage])
    assert broken != good
    done = run(plan, "test", "rules", f"chat.{kind}.yaml", **{"chat.rules.yaml": broken})
    assert "FAILED" in done.stdout + done.stderr
    assert "parse error" not in done.stdout + done.stderr


AVAILABILITY = example(objective("availability", "0.99"))
EXACT = 1e-6
SLO = 'service="chat",slo="availability"'


def test_uneven_traffic_is_weighted_by_events(scenario: Callable[..., None]) -> None:
    """Five hours at 1/s without errors, then one hour at 100/s with 10 % errors."""
    truth = 0.1 * 360_000 / (5 * 3600 + 360_000)
    recorded = f"scalar(sum(count_over_time(slo:target:ratio{{{SLO}}}[28d]))) / {28 * 1440}"
    mean_of_ratios = f"avg_over_time(slo:error_ratio:rate5m{{{SLO}}}[28d])"
    spent = f"(1 - slo:error_budget_remaining:ratio{{{SLO}}})"
    scenario(
        AVAILABILITY,
        {OK: "0+120x150 28800+10800x29 342000x9", ERROR: "0x150 1200+1200x29 36000x9"},
        ("6h10m", is_near(f"slo:period_error_ratio:ratio{{{SLO}}} / ({recorded})", truth), True),
        ("6h10m", is_near(f"slo:error_ratio:rate3d{{{SLO}}}", truth), True),
        ("6h10m", is_near(f"{spent} / ({recorded})", truth / 0.01), True),
        ("6h10m", f"{mean_of_ratios} < {truth / 5}", True),
        every="2m",
    )


def test_no_error_spends_no_budget(scenario: Callable[..., None]) -> None:
    scenario(
        AVAILABILITY,
        {OK: "0+30x40", ERROR: "0x40"},
        ("10m", f"slo:error_ratio:rate1h{{{SLO}}} == 0", True),
        ("10m", f"slo:error_budget_remaining:ratio{{{SLO}}} == 1", True),
    )


def test_absent_error_series_fire_metric_absent(scenario: Callable[..., None]) -> None:
    """The sidecar serves these series from its first scrape."""
    scenario(
        AVAILABILITY,
        {OK: "0+30x160"},
        ("1h", "slo:error_ratio:rate1h", False),
        ("1h", firing("MetricAbsent", severity="critical"), True),
    )


def streams(outcome: str, phase: str, **labels: str) -> str:
    named = {"model": "llama", "namespace": "prod", "outcome": outcome, "phase": phase, **labels}
    return str(vector("llm_streams_total", named))


def goodput_requests(
    result: str, clause: str = "", pod: str = "a", of: str = "chat/goodput"
) -> str:
    named = {"model": "llama", "namespace": "prod", "pod": pod, "objective": of}
    return str(vector("llm_goodput_requests_total", {**named, "result": result, "clause": clause}))


def slo_events(result: str, signal: str = "ttft", threshold: str = "0.8") -> str:
    named = {"model": "llama", "namespace": "prod", "signal": signal, "threshold": threshold}
    return str(vector("llm_slo_events_total", {**named, "result": result}))


BAD, TOTAL = (f"sum_over_time(slo:{name}:increase1m[1h])" for name in ("bad", "total"))
# By indicator: a good series, bad series, and series that count as neither.
COUNTED = {
    "stream_completion": (
        streams("ok", "complete"),
        (streams("truncated", "mid_stream"), streams("shed", "mid_stream", tenant="b")),
        (
            streams("client_disconnected", "mid_stream"),
            streams("quota", "mid_stream"),
            streams("cancelled", "mid_stream"),
            streams("error", "before_first_token"),
            streams("shed", "before_first_token"),
            streams("invalid", "before_first_token"),
        ),
    ),
    "disconnects": (
        streams("ok", "complete"),
        (
            streams("client_disconnected", "mid_stream", tenant="b"),
            streams("client_disconnected", "before_first_token"),
        ),
        (
            streams("error", "mid_stream"),
            streams("timeout", "mid_stream"),
            streams("shed", "before_first_token"),
            streams("cancelled", "mid_stream"),
            streams("invalid", "before_first_token"),
        ),
    ),
    "goodput": (
        goodput_requests("good"),
        (goodput_requests("bad", "ttft"), goodput_requests("shed", "outcome")),
        (goodput_requests("quota", "outcome"), goodput_requests("bad", "ttft", of="chat/other")),
    ),
    "availability": (
        OK,
        (ERROR.replace("error", "truncated"), ERROR.replace("error", "shed")),
        (OK.replace('"ok"', '"invalid"'), OK.replace('"ok"', '"quota"')),
    ),
    "ttft": (
        slo_events("good"),
        (slo_events("bad"), slo_events("shed").replace('"prod"', '"prod",pod="b"')),
        (slo_events("quota"), slo_events("bad", threshold="0.4")),
    ),
}


@pytest.mark.parametrize("indicator", COUNTED)
def test_first_events_of_series_at_zero_count(
    scenario: Callable[..., None], indicator: str
) -> None:
    """Each bad series gets 20 events at once and 20 more; the uncounted series are large."""
    good, bad, neither = COUNTED[indicator]
    scenario(
        example(objective(indicator)),
        {
            good: "0+30x80",
            **dict.fromkeys(bad, "0x40 20+5x4 40+0x35"),
            **dict.fromkeys(neither, "0x40 900+90x40"),
        },
        ("15m", f"({BAD}) == 0", True),
        ("40m", is_near(BAD, 80, EXACT), True),
        ("40m", is_near(TOTAL, 30 * 80 + 80, EXACT), True),
    )


def test_goodput_without_results_has_no_ratio(scenario: Callable[..., None]) -> None:
    scenario(
        example(objective("goodput")),
        {goodput_requests("unknown", "tpot"): "0+10x160"},
        ("1h", "slo:error_ratio:rate1h", False),
        ("1h", firing("MetricAbsent", severity="critical"), True),
    )


@pytest.mark.parametrize("disabled", ["causes", "ticket"])
def test_a_server_that_declares_a_signal_unavailable_pages_no_one(
    scenario: Callable[..., None], disabled: str
) -> None:
    """A cause alert reports it; without causes, a ticket does."""
    named = {"model": "llama", "namespace": "prod", "pod": "b", "signal": "goodput"}
    declared = str(vector("tokenslo_signal_info", {**named, "quality": "unavailable"}))
    scenario(
        example(objective("goodput"), alerting=Alerting(disable=frozenset({disabled}))),
        {
            goodput_requests("good"): "0+10x160",
            goodput_requests("bad", "ttft"): "0x160",
            goodput_requests("unknown", "tpot", pod="b"): "0+10x160",
            declared: "1x160",
        },
        ("1h", "slo:error_ratio:rate1h == 0", True),
        ("1h", firing("MetricAbsent", severity="warning"), disabled == "causes"),
        ("1h", firing("MetricAbsent", severity="critical"), False),
    )


def test_partially_unjudged_requests_keep_their_server(
    scenario: Callable[..., None],
) -> None:
    scenario(
        example(objective("goodput")),
        {
            goodput_requests("good"): "0+10x160",
            goodput_requests("bad", "ttft"): "0x160",
            goodput_requests("unknown", "tpot"): "0+90x160",
        },
        ("1h", "slo:error_ratio:rate1h == 0", True),
        ("1h", "ALERTS", False),
    )


def test_first_scraped_counters_do_not_count_as_events(
    scenario: Callable[..., None],
) -> None:
    """Counters of a new target may be old: their first values are not events of now."""
    scenario(
        AVAILABILITY,
        {OK: "_x40 90000+30x40", ERROR: "_x40 5000+0x40"},
        ("30m", f"{BAD} == 0", True),
        ("30m", "ALERTS", False),
    )


GAP = "0+30x40 stale _x29"
"""Twenty minutes of scrapes, then a quarter of an hour without."""


def test_events_during_failed_scrapes_count_afterwards(scenario: Callable[..., None]) -> None:
    scenario(
        AVAILABILITY,
        {OK: f"{GAP} 2130+30x49", ERROR: "0+0x40 stale _x29 40+0x49"},
        ("34m", f"({BAD}) == 0", True),
        ("59m", is_near(BAD, 40, EXACT), True),
        ("59m", is_near(TOTAL, 30 * 118 + 40, EXACT), True),
    )


def test_counter_reset_is_no_burst_of_errors(scenario: Callable[..., None]) -> None:
    scenario(
        AVAILABILITY,
        {OK: "0+300x40 300+300x40", ERROR: "0+1x40 1+1x40"},
        ("40m", is_near(f"slo:error_ratio:rate1h{{{SLO}}}", 1 / 301), True),
    )


def test_idle_service_after_traffic_has_a_ratio(scenario: Callable[..., None]) -> None:
    """Without events in a window there is no ratio; longer windows keep theirs."""
    scenario(
        AVAILABILITY,
        {OK: "0+99x40 3960+0x100", ERROR: "0+1x40 40+0x100"},
        ("40m", f"slo:error_ratio:rate5m{{{SLO}}}", False),
        ("40m", is_near(f"slo:error_ratio:rate1h{{{SLO}}}", 0.01), True),
        ("40m", f"slo:error_ratio:rate1h{{{SLO}}} != slo:error_ratio:rate1h{{{SLO}}}", False),
    )


def test_a_spent_budget_fires_after_enough_bad_events(scenario: Callable[..., None]) -> None:
    """A day's budget is overspent at the ninth error; the guard is 10."""
    scenario(
        example(objective("availability"), window=DAY),
        {OK: "0+0.25x480", ERROR: "0+0.025x480"},
        ("3h", f"slo:error_budget_remaining:ratio{{{SLO}}} < 0", True),
        ("3h", firing("ErrorBudgetExhausted"), False),
        ("4h", firing("ErrorBudgetExhausted", severity="warning"), True),
    )


def test_missing_threshold_fires_metric_absent(scenario: Callable[..., None]) -> None:
    others = {slo_events(result, threshold="0.9"): "0+10x160" for result in ("good", "bad")}
    scenario(
        example(objective("ttft")),
        others,
        ("1h", "slo:error_ratio:rate1h", False),
        ("1h", "slo:error_budget_remaining:ratio", False),
        ("1h", firing("MetricAbsent", severity="critical"), True),
        ("1h", firing("MetricAbsent", severity="warning"), False),
    )


@pytest.mark.parametrize("boundary", ["2", "2.0"])
def test_both_spellings_of_a_whole_second_match(
    scenario: Callable[..., None], boundary: str
) -> None:
    own = {"histogram": 'latency_seconds{job="shop"}'}
    scenario(
        example(Objective("latency", "histogram", Decimal("0.99"), Decimal(2), queries=own)),
        {
            f'latency_seconds_bucket{{job="shop",le="{boundary}"}}': "0+9x40",
            'latency_seconds_count{job="shop"}': "0+10x40",
        },
        ("15m", is_near("slo:error_ratio:rate5m", 0.1), True),
    )


def step(plan: Plan, question: str) -> str:
    """Return the query of a step on a runbook page."""
    pages = runbooks.files(plan, source="slo.yaml", version="0.1.0").values()
    page = next(text for text in pages if question in text)
    return page.split(question, 1)[1].split("```promql", 1)[1].split("```", 1)[0]


def disconnect_ages(cumulative: Callable[[float], float]) -> dict[str, str]:
    """Return the disconnects and the histogram of their ages, by its cumulative distribution."""
    named = {"model": "llama", "version": "1", "namespace": "prod"}
    disconnects = vector(SIGNALS["disconnects"].metric, {**named, "phase": "streaming"})
    return {
        str(disconnects): "0+1000x20",
    } | {
        str(vector("llm_disconnect_age_seconds_bucket", {**named, "le": le})): f"0+{share:g}x20"
        for boundary in (*SIGNALS["disconnect_age"].buckets, inf)
        for le, share in [
            ("+Inf" if boundary == inf else f"{boundary:g}", 1000 * cumulative(boundary))
        ]
    }


@pytest.mark.parametrize(
    ("timeout", "patience"), [(5, 2), (15, 4), (30, 2), (60, 4), (180, 2), (600, 4)]
)
def test_runbook_query_finds_the_client_timeout(
    scenario: Callable[..., None], timeout: int, patience: float
) -> None:
    """Most clients would wait longer; without the timeout, they disconnect at any age."""
    plan = example(objective("disconnects"))
    query = step(plan, "Do clients disconnect at one age")

    def free(age: float) -> float:
        return 1 - exp(-age / (patience * timeout))

    def cut(age: float) -> float:
        return 1.0 if age > timeout else free(age)

    scenario(plan, disconnect_ages(cut), ("10m", f"({query}) >= 0.95", True))
    scenario(plan, disconnect_ages(free), ("10m", f"({query}) < 0.95", True))


def test_runbook_query_names_the_failing_clause(scenario: Callable[..., None]) -> None:
    plan = example(objective("goodput", "0.95"))
    query = step(plan, "Which clause fails")
    scenario(
        plan,
        {
            goodput_requests("good"): "0+90x20",
            goodput_requests("bad", "ttft"): "0+8x20",
            goodput_requests("bad", "tpot"): "0+2x20",
            goodput_requests("unknown"): "0+500x20",
        },
        ("10m", is_near(f"sum by (clause) ({query} > 0.05)", 0.08), True),
        ("10m", f"({query} > 0.05) and on (clause) {goodput_requests('bad', 'ttft')}", True),
    )


def test_runbook_query_finds_the_stuck_engine(scenario: Callable[..., None]) -> None:
    """The sidecar withdraws the gauges of a stuck engine and reports its layer as not ready."""
    plan = example(objective("ttft"))
    query = step(plan, "Does every engine with active sequences produce tokens?")

    def decoding(instance: str) -> str:
        named = {"model": "llama", "version": "1", "namespace": "prod", "layer": "decode"}
        return str(vector("tokenslo_ready", {**named, "instance": instance}))

    scenario(
        plan,
        {decoding("stuck"): "1 1 0x20", decoding("idle"): "1x20"},
        ("30s", f"({query}) == 0", False),
        ("5m", f"({query}) == 0", True),
        ("5m", f'(({query}) == 0) and tokenslo_ready{{instance="idle"}}', False),
    )


def test_headroom_is_evaluated_per_server(scenario: Callable[..., None]) -> None:
    """One of two servers is full: half of all slices are bad, although the mean has headroom."""
    full, empty = (
        f'llm_kv_cache_utilization_ratio{{model="llama",namespace="prod",pod="{pod}"}}'
        for pod in "ab"
    )
    scenario(
        example(objective("kv_headroom", "0.99")),
        {full: "0.95+0x40", empty: "0.1+0x40"},
        ("15m", is_near("slo:error_ratio:rate5m", 0.5), True),
        ("15m", firing("ErrorBudgetBurn", window="1h"), True),
    )


def test_labels_may_change(scenario: Callable[..., None]) -> None:
    """A new version of the model or another pod continues the traffic of the old one."""
    old, new = (OK.replace("}", f',version="{version}"}}') for version in "12")
    scenario(
        AVAILABILITY,
        {
            old: "0+30x40 stale",
            old.replace('"ok"', '"error"'): "0x40 stale",
            new: "_x40 0+30x20 600+0x20",
            new.replace('"ok"', '"error"'): "_x40 0x40",
        },
        ("40m", "slo:error_ratio:rate1h == 0", True),
        ("40m", is_near(TOTAL, 30 * 60), True),
    )


@pytest.mark.parametrize("ratio", ["1", "0.5", "0.2"])
def test_page_fires_at_the_documented_time(scenario: Callable[..., None], ratio: str) -> None:
    """Expect the page within a minute of the time that explain and runbooks print."""
    (page, *_) = pairs(28 * DAY, Decimal("0.99"))
    seconds = page.seconds_to_fire(Decimal(ratio))
    bad = 1000 * Decimal(ratio)
    scenario(
        AVAILABILITY,
        {OK: f"0+1000x120 {121_000 - bad}+{1000 - bad}x120", ERROR: f"0+0x120 {bad}+{bad}x120"},
        (f"{3600 + int(seconds) - 60}s", firing("ErrorBudgetBurn", window="1h"), False),
        (f"{3600 + int(seconds) + 60}s", firing("ErrorBudgetBurn", window="1h"), True),
    )


@contextmanager
def pager() -> Iterator[tuple[str, list[dict]]]:
    """Yield the URL of a webhook for Alertmanager, and the list of alerts that it receives."""
    reported: list[dict] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reported.extend(
                json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", reported
        server.shutdown()


def outage(now: int) -> str:
    """Return three hours of requests as OpenMetrics; all fail in the last half hour."""
    start, failing = now - 3 * 3600, now - 1800
    lines = ["# TYPE llm_requests counter"]
    for series, rises in ((OK, lambda t: min(t, failing)), (ERROR, lambda t: max(t, failing))):
        base = rises(start)
        lines += [f"{series} {rises(t) - base} {t}" for t in range(start, now + 1, 15)]
    return "\n".join([*lines, "# EOF", ""])


def without_intervals(rules: str) -> str:
    """Remove the intervals of groups, so that Prometheus evaluates the rules every second."""
    content = libyaml.load(rules)
    for group in content["groups"]:
        del group["interval"]
    return libyaml.dump(content)


def test_page_arrives_and_inhibits_tickets(
    promtool: Path,
    amtool: Path,
    prometheus: Callable[..., Prometheus],
    alertmanager: Callable[..., Alertmanager],
    tmp_path: Path,
) -> None:
    """Use a history that promtool backfills: raw counters first, then recorded series."""
    files = alerts.files(AVAILABILITY, source="slo.yaml", version="0.1.0")
    rules, config = tmp_path / "chat.rules.yaml", tmp_path / "alertmanager.yml"
    rules.write_text(without_intervals(files["alerts/chat.rules.yaml"]))
    now = int(time.time())
    history, data = tmp_path / "history.txt", tmp_path / "prometheus/data"
    history.write_text(outage(now))
    data.mkdir(parents=True)

    def backfill(*arguments: object) -> None:
        command = [promtool, "tsdb", "create-blocks-from", *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)

    backfill("openmetrics", history, data)
    with prometheus(tmp_path / "prometheus", scrape={}) as server:
        span = (f"--start={now - 3 * 3600}", f"--end={now}", "--eval-interval=30s")
        backfill("rules", *span, f"--url={server.url}", f"--output-dir={data}", rules)
    with pager() as (url, reported):
        settings = {
            # Longer than all four alerts need to arrive.
            "route": {"receiver": "pager", "group_by": ["service", "slo"], "group_wait": "12s"},
            "receivers": [{"name": "pager", "webhook_configs": [{"url": url}]}],
            **libyaml.load(files["alerts/chat.inhibit.yaml"]),
        }
        config.write_text(libyaml.dump(settings))
        subprocess.run([amtool, "check-config", config], check=True, capture_output=True)
        with (
            alertmanager(tmp_path / "alertmanager", config) as manager,
            prometheus(
                tmp_path / "prometheus",
                scrape={},
                rules=[rules],
                alertmanager=manager.url,
                # Prometheus discovers the Alertmanager late, and then waits for a minute.
                arguments=["--rules.alert.resend-delay=1s"],
            ),
        ):
            active: dict[tuple[str, str], dict] = {}

            def all_active() -> bool:
                for alert in json.loads(get(manager.ports[0], "/api/v2/alerts")[1]):
                    labels = alert["labels"]
                    active[labels["alertname"], labels.get("window", "")] = alert
                return len(active) == 4

            wait_until(all_active, 60, 0.5)
            wait_until(lambda: reported, 60, 0.5)
            all_active()
    burn = "ChatAvailabilityErrorBudgetBurn"
    assert {key: alert["status"]["state"] for key, alert in active.items()} == {
        (burn, "1h"): "active",
        (burn, "6h"): "active",
        (burn, "1d"): "suppressed",
        (burn, "3d"): "suppressed",
    }
    assert {alert["labels"]["severity"] for alert in reported} == {"critical"}
    (page,) = (alert for alert in reported if alert["labels"]["window"] == "1h")
    assert page["labels"] == {
        "alertname": burn,
        "service": "chat",
        "slo": "availability",
        "severity": "critical",
        "window": "1h",
        "burn_rate": "13.44",
    }
    assert re.fullmatch(
        r"Over 13\.44% of requests were bad in 1h and in 5m\. "
        r"Objective: 99% of requests in 28d are good\. "
        r"One is good if the server completes its response\. "
        r"Budget left: [0-9.]+%, from the [0-9.]+% of 28d recorded so far\.",
        page["annotations"]["description"],
    )
