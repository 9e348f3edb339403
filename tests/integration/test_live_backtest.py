"""``tokenslo backtest`` on the history of a real Prometheus, which never had our rules."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.prometheus import Prometheus
from tokenslo.cli import main

SLO = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama}
objectives:
  - {name: availability, indicator: availability, target: 99%}
  - {name: pace, indicator: itl, threshold: 60ms, target: 99%}
"""
DAY = 86_400
OUTAGE_STARTS, OUTAGE_SECONDS = 6 * 3600, 1800
PACE = 2
"""Requests per second."""


def history(start: int, end: int) -> str:
    """Write requests since ``start``, all of which fail in the outage, as OpenMetrics."""
    failing = start + OUTAGE_STARTS
    lines = ["# TYPE llm_requests counter"]
    for outcome in ("ok", "error"):
        for at in range(start, end + 1, 30):
            failed = min(max(at - failing, 0), OUTAGE_SECONDS)
            count = PACE * (failed if outcome == "error" else at - start - failed)
            series = f'llm_requests_total{{model="llama",outcome="{outcome}",reason=""}}'
            lines.append(f"{series} {count} {at}")
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def start() -> int:
    return int(time.time() - DAY) // 60 * 60


@pytest.fixture(scope="module")
def url(
    promtool: Path,
    prometheus: Callable[..., Prometheus],
    tmp_path_factory: pytest.TempPathFactory,
    start: int,
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("backtest")
    data, text = folder / "prometheus/data", folder / "history.txt"
    text.write_text(history(start, start + DAY - 300))
    data.mkdir(parents=True)
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", text, data]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    with prometheus(folder / "prometheus", scrape={}) as server:
        yield server.url


@pytest.fixture
def slo(tmp_path: Path) -> str:
    file = tmp_path / "slo.yaml"
    file.write_text(SLO)
    return str(file)


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(["backtest", *arguments])
    return stopped.value.code


def test_an_outage_of_yesterday_would_have_paged_when_explain_says(
    url: str, slo: str, start: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(slo, "--prometheus", url, "--days", "2", "--json") == 0
    said = capsys.readouterr()
    assert said.err == ""  # no progress where nobody watches
    availability, pace = json.loads(said.out)
    with pytest.raises(SystemExit):
        main(["explain", slo, "--json"])
    explained = json.loads(capsys.readouterr().out)[0]["objectives"][0]["alerts"]
    times = {alert["long"]: alert["seconds_to_fire"]["1"] for alert in explained}
    outage = start + OUTAGE_STARTS
    pages = {one["window"]: one for one in availability["fired"] if one["tier"] == "page"}
    for window in ("1h", "6h"):
        # A point a minute, samples twice a minute.
        assert pages[window]["start"] - outage == pytest.approx(times[window], abs=120)
    assert pages["1h"]["end"] == pytest.approx(outage + OUTAGE_SECONDS + 300, abs=120)
    assert availability["bad_events"] == pytest.approx(PACE * OUTAGE_SECONDS, rel=0.02)
    assert availability["total_events"] == pytest.approx(PACE * DAY, rel=0.02)
    ratio = OUTAGE_SECONDS / (DAY - 300)
    assert availability["worst_error_ratio"] == pytest.approx(ratio, rel=0.02)
    assert pace["tightest_target"] is None
    assert pace["measured_share"] == 0


def test_the_text_names_the_pages(url: str, slo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(slo, "--prometheus", url, "--days", "2") == 0
    text = capsys.readouterr().out
    assert "page    ChatAvailabilityBudgetBurn (1h window) for " in text
    assert "nothing was measured" in text


def test_a_prometheus_that_is_not_there_is_one_clear_error(
    slo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(slo, "--prometheus", "http://127.0.0.1:9") == 2
    assert "cannot reach Prometheus at http://127.0.0.1:9" in capsys.readouterr().err
