"""Objectives of SLO files at the client, and MLPerf's limits."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from loadtest.level import LevelRun
from loadtest.level_result import level_result
from loadtest.objectives import ClientObjective, client_objectives, evaluate, verdict
from loadtest.presets import PRESETS, preset_objectives
from loadtest.records import RequestRecord
from loadtest.settings import LoadLevel
from slos.load import load_file
from slos.outcomes import Outcome

ROOT = Path(__file__).parent.parent


def record(
    *chunks: float,
    outcome: Outcome = "ok",
    ended: float | None = None,
    lag: float = 0.0,
    tokens: int | None = None,
) -> RequestRecord:
    """Return a request that was scheduled at 0; times are since its send."""
    times = array("d", [lag + at for at in chunks])
    end = lag + (ended if ended is not None else max(chunks, default=0.0))
    return RequestRecord(0, "8", len(chunks), 0.0, lag, times, end, outcome, output_tokens=tokens)


def latency(indicator: str, threshold: float = 1.0) -> ClientObjective:
    return ClientObjective(f"chat/{indicator}", indicator, 0.95, threshold)


@pytest.mark.parametrize(
    ("indicator", "found", "expected"),
    [
        ("ttft", record(1.0, 2.0), "good"),
        ("ttft", record(1.1), "bad"),
        ("ttft", record(0.5, lag=0.6), "bad"),  # from the scheduled start
        ("ttft", record(outcome="timeout", ended=9), "bad"),
        ("ttft", record(outcome="error"), "bad"),
        ("ttft", record(outcome="ok"), "bad"),  # an empty response
        ("ttft", record(outcome="invalid"), ""),
        ("ttft", record(0.5, outcome="client_disconnected"), "good"),
        ("e2e", record(0.5, 1.0), "good"),
        ("e2e", record(0.5, 1.5), "bad"),
        ("e2e", record(0.5, outcome="error", ended=0.6), ""),
        ("e2e", record(0.5, outcome="error", ended=1.6), "bad"),
        ("tpot", record(1.0, 2.0, 3.0), "good"),
        ("tpot", record(1.0, 2.0, 3.5), "bad"),
        ("tpot", record(1.0, 3.0, tokens=4), "good"),  # chunks of several tokens
        ("tpot", record(1.0), ""),
        ("tpot", record(1.0, 9.0, outcome="client_disconnected"), ""),
        ("max_gap", record(0.0, 1.0, 1.5), "good"),
        ("max_gap", record(0.0, 1.1, 1.5), "bad"),
        ("max_gap", record(0.0, 0.5, outcome="timeout", ended=5), "bad"),
        ("max_gap", record(0.0), ""),
        ("availability", record(9.0), "good"),
        ("ttft", record(outcome="shed"), "bad"),
        ("ttft", record(outcome="quota"), ""),
        ("availability", record(outcome="shed"), "bad"),
        ("availability", record(outcome="quota"), ""),
        ("availability", record(outcome="invalid"), ""),
        ("availability", record(1.0, outcome="client_disconnected"), ""),
        ("stream_completion", record(1.0, outcome="error"), "bad"),
        ("stream_completion", record(outcome="error"), ""),
        ("stream_completion", record(1.0), "good"),
    ],
)
def test_verdict_on_a_request(indicator: str, found: RequestRecord, expected: str) -> None:
    assert verdict(latency(indicator), found) == expected


GOODPUT = ClientObjective("chat/goodput", "goodput", 0.95, clauses={"ttft": 1.0, "tpot": 0.1})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (record(1.0, 1.1, 1.2), "good"),
        (record(1.1, 1.2), "bad"),
        (record(0.5, 0.7), "bad"),
        (record(0.9, 1.0, lag=0.2), "bad"),
        (record(1.0), "good"),  # one token: no TPOT
        (record(1.0, tokens=9), "unknown"),  # all tokens in one chunk
        (record(outcome="ok"), "bad"),
        (record(0.5, outcome="error"), "bad"),
        (record(0.5, outcome="client_disconnected"), ""),
        (record(1.5, outcome="client_disconnected"), "bad"),
        (record(outcome="invalid"), ""),
    ],
)
def test_goodput_of_a_request(found: RequestRecord, expected: str) -> None:
    assert verdict(GOODPUT, found) == expected


def test_gaps_are_pooled_and_each_stream_counts_once_for_the_bound() -> None:
    streams = [record(0.0, 0.5, 1.0, 2.5) for _ in range(50)]
    found = evaluate(latency("itl"), streams, 0.95)
    assert (found.good, found.bad, found.count) == (100, 50, 50)
    assert found.share == pytest.approx(2 / 3)
    waiting = record(0.0, 0.5, outcome="timeout", ended=9)
    assert evaluate(latency("itl"), [waiting], 0.95).bad == 1


@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [(52, 0, "kept"), (51, 0, "inconclusive"), (95, 5, "inconclusive"), (80, 20, "missed")],
)
def test_verdict_on_an_objective_needs_its_bound(good: int, bad: int, expected: str) -> None:
    requests = [record(1.0)] * good + [record(2.0)] * bad
    found = evaluate(latency("ttft"), requests, 0.95)
    assert (found.good, found.bad, found.verdict) == (good, bad, expected)
    assert found.least == 52


def test_no_event_is_inconclusive() -> None:
    found = evaluate(latency("tpot"), [record(1.0)], 0.95)
    assert (found.share, found.verdict) == (None, "inconclusive")


def test_objectives_of_an_slo_file() -> None:
    services = load_file(str(ROOT / "examples/chat/slo.yaml")).services
    measured, others = client_objectives(services, "tensorrt_llm")
    assert [(one.name, one.threshold, one.text) for one in measured[:1]] == [
        ("chat/first-token", 0.8, "800ms")
    ]
    assert [one.name for one in measured[1:]] == [
        "chat/availability",
        "chat/completion",
        "chat/goodput",
    ]
    assert measured[3].clauses == {"ttft": 0.8, "tpot": 0.06}
    assert {one.name: one.reason for one in others} == {
        "chat/kv-headroom": "clients cannot measure kv_headroom",
        "chat/sequence-headroom": "clients cannot measure sequence_headroom",
    }
    _, all_others = client_objectives(services, "llama")
    assert "it is about the model tensorrt_llm" in {one.reason for one in all_others}


def test_an_objective_on_a_prompt_class_counts_its_requests(tmp_path: Path) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text("""\
apiVersion: tokenslo/v1
service: chat
prompt_classes: [512, 4k]
objectives:
  - name: short
    indicator: ttft
    threshold: 1s
    target: 95%
    selector: {prompt_class: 0-512}
""")
    [short], _ = client_objectives(load_file(str(file)).services, "llama")
    planned, long = record(2.0), record(2.0)
    long.input_tokens = 513
    assert [verdict(short, each) for each in (planned, long)] == ["bad", ""]
    assert evaluate(short, [planned, long], 0.95).count == 1


# loadgen/mlperf.conf of mlcommons/inference, in milliseconds.
LIMITS = {
    "mlperf-llama2-70b-server": (2000, 200),
    "mlperf-llama2-70b-interactive": (450, 40),
    "mlperf-mixtral-8x7b-server": (2000, 200),
    "mlperf-llama3.1-405b-server": (6000, 175),
    "mlperf-llama3.1-405b-interactive": (4500, 80),
    "mlperf-llama3.1-8b-server": (2000, 100),
    "mlperf-llama3.1-8b-interactive": (500, 30),
    "mlperf-deepseek-r1-server": (2000, 80),
    "mlperf-deepseek-r1-interactive": (1500, 15),
    "mlperf-gpt-oss-120b-server": (3000, 80),
    "mlperf-gpt-oss-120b-interactive": (2000, 15),
}


def test_presets_are_mlperfs_limits() -> None:
    assert PRESETS == LIMITS
    ttft, tpot = preset_objectives("mlperf-llama2-70b-interactive")
    assert (ttft.indicator, ttft.threshold, ttft.target) == ("ttft", 0.45, 0.99)
    assert (tpot.indicator, tpot.threshold, tpot.target) == ("tpot", 0.04, 0.99)


def test_goodput_rate_counts_requests_that_break_no_objective() -> None:
    run = LevelRun(LoadLevel("rate", 1), 0.0, 10.0)
    run.records = [record(0.5, 0.6), record(0.5, 0.9), record(1.5), record(outcome="error")]
    result = level_result([run], [GOODPUT, latency("ttft")], 0.95)
    assert result.good == pytest.approx(1 / 10)
    assert level_result([run], [latency("itl")], 0.95).good is None
