"""``tokenslo diagnose --watch`` and ``--sidecar``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from diagnosis_scenarios import answers
from fake_prometheus import FakePrometheus, Result, serving
from service_example import example, objective

from diagnosis.diagnosis import Diagnosis, diagnose
from diagnosis.sidecar_status import SidecarStatus, read_sidecar_status
from diagnosis.watch import INTERVAL, Update, follow
from promql.client import PrometheusError

ROOT = Path(__file__).parent.parent
PLAN = example(objective("ttft"), runbooks="")
PAGE = "ChatTtftErrorBudgetBurn"
WINDOW = 300.0
SICK = {"still_burning": 0.4, "waiting": 7, "kv": 0.97, "no_evict_waiting": 7}


def of(sick: dict[str, float], burn_rate: float, *firing: str) -> Diagnosis:
    evaluate = answers(PLAN, sick, firing=firing, burn_rate=burn_rate)

    def query(expr: str) -> list:
        found = evaluate(expr)
        assert not isinstance(found, str)
        return found

    return diagnose(PLAN, query)


INCIDENT = of(SICK, 40, PAGE)
"""KV-cache pressure, whose mitigation the check no_evict_waiting verifies."""
BURNS_NO_MORE = of({"no_evict_waiting": 7, "waiting": 7}, 0.5, PAGE)
CALM = of({}, 0.5)


def unanswered(reason: str, sidecar: SidecarStatus | None = None) -> Diagnosis:
    def query(_: str) -> list:
        raise PrometheusError(reason)

    return diagnose(PLAN, query, sidecar=sidecar)


def updates(*found: Diagnosis, limit: int = 100) -> list[tuple[float, Update]]:
    """Follow these diagnoses, of which the last one stays, with a simulated clock."""
    now = 0.0
    remaining = [*found]

    def read() -> Diagnosis:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def timed() -> Iterator[tuple[float, Update]]:
        for count, update in enumerate(follow(read, WINDOW, lambda: now, sleep)):
            yield now, update
            if count == limit:
                return

    return [*timed()]


def test_watch_ends_when_the_check_of_the_mitigation_and_the_burn_rate_are_calm_for_a_window() -> (
    None
):
    found = updates(INCIDENT, INCIDENT, BURNS_NO_MORE, CALM)
    assert INCIDENT.cause
    assert INCIDENT.cause.key == "kv_pressure"
    assert found[0][1].lines == ()  # the whole report is printed
    assert found[1][1].lines == ()  # nothing has changed
    assert found[-1][0] == 3 * INTERVAL + WINDOW
    assert found[-1][1].lines == (
        "The mitigation has worked: for 5 min the check no_evict_waiting is healthy and no "
        "objective burns above 1.",
    )


def test_watch_reports_changes_once() -> None:
    found = updates(INCIDENT, CALM)
    lines = found[1][1].lines
    assert f"{PAGE} has ended" in lines
    assert 'kv: sick -> healthy (0.45 {instance="10.0.0.1:9464"})' in lines
    assert lines[-1] == "Verdict: no incident"
    assert all(update.lines == () for _, update in found[2:-1])
    assert f"{PAGE} fires" in updates(CALM, INCIDENT, limit=2)[1][1].lines


def test_watch_does_not_end_while_the_mitigation_is_not_verified() -> None:
    assert len(updates(INCIDENT, BURNS_NO_MORE, limit=50)) == 51
    assert len(updates(INCIDENT, of(SICK, 1.5), limit=50)) == 51


def test_watch_survives_failures_of_prometheus_and_starts_the_window_again() -> None:
    found = updates(INCIDENT, CALM, unanswered("cannot reach Prometheus"), CALM)
    assert found[2][1] == Update(None, ("cannot reach Prometheus",))
    assert found[-1][0] == 3 * INTERVAL + WINDOW


def test_watch_without_an_incident_ends_after_a_window() -> None:
    found = updates(CALM)
    assert found[-1][0] == WINDOW
    assert found[-1][1].lines == (
        "No objective has burned above 1 for 5 min: there is no incident now.",
    )


def test_interrupted_watch_ends_without_a_traceback() -> None:
    evaluate = answers(PLAN, SICK, firing=(PAGE,), burn_rate=40)
    with serving(FakePrometheus(evaluate)) as fake:
        command = ["-m", "tokenslo", "diagnose", "--prometheus", fake.url, "--watch", "--json"]
        with subprocess.Popen(
            [sys.executable, "-u", *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout
            first = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
    assert (process.returncode, err.strip()) == (130, "")
    assert first["diagnosis"]["verdict"] == "likely"
    assert abs(first["time"] - time.time()) < 60


STATUS = {
    "tokenslo": "0.1.0",
    "layers": [
        {"layer": "model", "name": "llama/1", "ready": False, "reason": "still loading"},
        {"layer": "server", "name": "triton", "ready": True, "reason": ""},
    ],
    "sources": [
        {"source": "triton", "up": False, "error": "connection refused"},
        {"source": "tap", "up": True, "error": ""},
    ],
    "models": [
        {
            "signals": [
                {
                    "metric": "llm_suspected_retries_total",
                    "quality": "unavailable",
                    "note": "no tap observes the streams",
                    "fix": "start the sidecar with --tap",
                },
                {"metric": "llm_requests_total", "quality": "exact", "note": "", "fix": ""},
            ]
        }
    ],
}


class StatusServer(FakePrometheus):
    """Serves a status page for every request."""

    def __init__(self, page: object) -> None:
        super().__init__(lambda _: [])
        self.page = page

    def respond(self, params: object) -> tuple[int, object]:  # type: ignore[override]
        return 200, self.page


def test_sidecar_explains_missing_signals_and_failing_sources() -> None:
    with serving(StatusServer(STATUS)) as server:
        status = read_sidecar_status(f"{server.url}/metrics")
    assert status == SidecarStatus(
        server.url,
        {"triton": "connection refused"},
        {
            "llm_suspected_retries_total": (
                "no tap observes the streams. Fix: start the sidecar with --tap."
            )
        },
        ("model llama/1: still loading",),
    )
    evaluate = answers(
        PLAN,
        missing=["sources", "retries", "not_ready"],
        present=lambda metric: metric != "llm_suspected_retries_total",
    )

    def query(expr: str) -> list:
        found: Result = evaluate(expr)
        assert not isinstance(found, str)
        return found

    found = diagnose(PLAN, query, sidecar=status)
    retries, sources = found.check("retries"), found.check("sources")
    ready = found.check("not_ready")
    assert retries
    assert sources
    assert ready
    assert retries.reason == (
        "Prometheus has no llm_suspected_retries_total; the sidecar reports: no tap observes the "
        "streams. Fix: start the sidecar with --tap."
    )
    assert (sources.verdict, sources.reason) == (
        "sick",
        "the sidecar reports triton: connection refused",
    )
    assert (ready.verdict, ready.reason) == (
        "sick",
        "the sidecar reports model llama/1: still loading",
    )
    assert found.causes[0].probability > diagnose(PLAN, query).causes[1].probability

    without_prometheus = unanswered("cannot reach Prometheus", status)
    sick = {each.key for each in without_prometheus.checks if each.verdict == "sick"}
    assert sick == {"sources", "not_ready"}


def test_sidecar_that_cannot_be_read_is_reported() -> None:
    assert read_sidecar_status("http://127.0.0.1:1").error == "Connection refused"
    for page in ([], {"tokenslo": "0.1.0"}, {"sources": 1, "models": [], "layers": []}):
        with serving(StatusServer(page)) as server:
            assert read_sidecar_status(server.url).error == (
                "it is not the status page of a tokenslo exporter"
            )
