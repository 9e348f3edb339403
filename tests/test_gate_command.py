"""``tokenslo gate``: exit codes, reports and bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_prometheus import FakePrometheus, Result, serving

from gates.looks import elapsed, watch
from gates.statistics import Count
from gates.verdict import GateDecision, GateVerdict
from promql.client import PrometheusError, Sample
from tokenslo.cli import main
from tokenslo.commands import gate as command
from tools.docs.pages import every_fence

SLO = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama}
objectives:
  - {name: first-token, indicator: ttft, threshold: 800ms, target: 95%}
rollout:
  window: 15m
  warm_up: 2m
  guards: [errors]
"""
ARMS = ("--baseline", "version=1", "--canary", "version=2")
NONE: list[Sample] = []


def answers(canary: Count, baseline: Count, *, up: float = 1.0) -> Callable[[str], Result]:
    """Evaluate queries by arm and by what they count."""

    def evaluate(query: str) -> Result:
        count = canary if 'version="2"' in query else baseline
        if "tokenslo_model_info" in query:
            return [Sample({}, up)]
        if 'version="' not in query:
            count = Count(canary.bad + baseline.bad, canary.total + baseline.total)
        bad = 'result=~"bad' in query or 'outcome=~"error' in query
        if "llm_requests_total" in query and bad:
            return [Sample({}, 0.0)]
        return [Sample({}, count.bad if bad else count.total)]

    return evaluate


GOOD, WORSE, SMALL = Count(100, 10_000), Count(900, 10_000), Count(0, 20)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    Path("slo.yaml").write_text(SLO)
    return "slo.yaml"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["gate", *arguments])
    return int(end.value.code or 0)


def gate(file: str, evaluate: Callable[[str], Result], *more: str) -> tuple[int, FakePrometheus]:
    with serving(FakePrometheus(evaluate)) as prometheus:
        return run(file, "--prometheus", prometheus.url, *ARMS, *more), prometheus


@pytest.mark.parametrize(
    ("canary", "up", "code"), [(GOOD, 1.0, 0), (WORSE, 1.0, 1), (SMALL, 1.0, 3), (WORSE, 0.0, 3)]
)
def test_the_exit_code_is_the_verdict(file: str, canary: Count, up: float, code: int) -> None:
    assert gate(file, answers(canary, GOOD, up=up), "--at", "0s")[0] == code


def test_the_report_has_samples_bounds_and_reasons(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gate(file, answers(Count(2, 150), GOOD), "--at", "2026-11-22T12:00:00Z")
    (shown,) = (fence for _, fence in every_fence("text") if fence.title == "gate")
    assert capsys.readouterr().out == shown.body


def test_json_has_counts_and_reasons(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    gate(file, answers(WORSE, GOOD), "--at", "0s", "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["service"]) == ("abort", "chat")
    assert report["canary"] == {"version": "2"}
    first = report["criteria"][0]
    assert (first["name"], first["canary_bad_events"], first["baseline_events"]) == (
        "first-token",
        900.0,
        10_000.0,
    )
    assert first["class_weights"] == [{"prompt_class": "", "weight": 1.0}]
    assert report["reasons"][0].startswith("first-token: at least")


def test_counters_are_increases_over_the_window_at_the_given_time(file: str) -> None:
    _, prometheus = gate(file, answers(GOOD, GOOD), "--at", "1700000000", "--for", "20m")
    queries = [request["query"] for request in prometheus.requests]
    assert (
        'sum by (prompt_class) (increase(llm_slo_events_total{model="llama",signal="ttft",'
        'threshold="0.8",result=~"bad|shed",version="2"}[20m]))'
    ) in queries
    assert {request["time"] for request in prometheus.requests} == {"1700000000.0"}
    assert not any("histogram_quantile" in query for query in queries)


def test_empty_answers_are_inconclusive(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(file, lambda _: NONE, "--at", "0s")[0] == 3
    assert "no sidecar of the canary is scraped" in capsys.readouterr().out


def test_json_of_counters_that_are_not_numbers_is_valid(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Count(float("nan"), 10_000)
    assert gate(file, answers(broken, GOOD), "--at", "0s", "--json")[0] == 3
    first = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["criteria"][0]
    assert (first["canary_events"], first["canary_bad_events"]) == (10_000.0, None)


def test_a_failing_prometheus_is_inconclusive(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate(file, lambda _: "too many samples", "--at", "0s")[0] == 3
    assert "inconclusive: Prometheus at" in capsys.readouterr().err


def test_an_incomplete_answer_is_inconclusive(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakePrometheus(answers(GOOD, GOOD), warnings=["store sidecar-1 did not answer"])
    with serving(fake) as prometheus:
        assert run(file, "--prometheus", prometheus.url, *ARMS, "--at", "0s") == 3
    assert "the answer may be incomplete: store sidecar-1" in capsys.readouterr().err


def test_the_command_waits_and_looks_three_times(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(command, "sleep", slept.append)
    code, prometheus = gate(file, answers(GOOD, GOOD))
    windows = dict.fromkeys(
        found[1]
        for request in prometheus.requests
        if (found := re.search(r"\[(\w+)\]", request["query"]))
    )
    assert (code, slept, list(windows)) == (0, [120, 300, 300, 300], ["5m", "10m", "15m"])
    assert capsys.readouterr().err == (
        "look 1 of 3: no abort, promote\nlook 2 of 3: no abort, promote\n"
    )


def test_an_early_look_aborts(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(command, "sleep", slept.append)
    assert gate(file, answers(WORSE, GOOD))[0] == 1
    assert slept == [120, 300]


PROMOTE, HOLD = (
    GateDecision(GateVerdict.PROMOTE, (), ()),
    GateDecision(GateVerdict.INCONCLUSIVE, (), ()),
)


def test_an_early_promotion_is_not_the_verdict() -> None:
    decisions = iter([PROMOTE, PROMOTE, HOLD])
    seen: list[int] = []
    found = watch(
        *(command.parse_duration(text) for text in ("15m", "0s")),
        lambda _: next(decisions),
        lambda _: None,
        lambda look, _: seen.append(look),
    )
    assert (found, seen) == ((3, HOLD), [1, 2])


def test_a_look_that_fails_is_skipped_unless_it_is_the_last() -> None:
    def measure(window: str) -> GateDecision:
        if window != "15m":
            raise PrometheusError("down")
        return PROMOTE

    minutes = command.parse_duration("15m")
    assert watch(minutes, minutes, measure, lambda _: None, lambda *_: None) == (3, PROMOTE)
    assert elapsed(command.parse_duration("10m"), 1) == "3m20s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--baseline", "1", "--canary", "version=2"), "'1' is not LABEL=VALUE, such as version=2"),
        (("--baseline", "version=2", "--canary", "version=2"), "select the same series"),
        (("--baseline", "model=a", "--canary", "version=2"), "The SLO file selects model itself"),
        ((*ARMS, "--for", "10s"), "10s is not whole seconds, at least 1m"),
        ((*ARMS, "--for", "15"), '"15" has no unit'),
        ((*ARMS, "--at", "soon"), "'soon' is no time"),
        ((*ARMS, "--service", "other"), "'other' is not a service of these files: chat"),
    ],
)
def test_bad_input_exits_with_code_2_and_one_error(
    file: str, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "--prometheus", "http://127.0.0.1:1", *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
