"""``tokenslo explain``: budgets and times to fire, for people and for programs."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slos.explain import FAILURES, explain
from slos.model import Objective, Service
from slos.plan import plan
from tokenslo.cli import main

SLO = """\
apiVersion: tokenslo/v1
service: chat
owner: inference
window: 28d
objectives:
  - {name: availability, indicator: availability, target: 99.9%}
  - {name: kv-headroom, indicator: kv_headroom, threshold: 90%, target: 90%}
"""
TEXT = """\
chat: over 28d, owned by inference

availability: 99.9% of requests are good, that is: it is neither failed, rejected nor timed out
  budget: 0.1%, 1,000 of 1,000,000 requests, or 40m19s of total outage
  tier    windows     burn rate  above   100% bad  50% bad  20% bad  least traffic
  page    1h and 5m   13.44      1.344%  2m51s     4m1s     6m32s    10 in 1h
  page    6h and 30m  5.6        0.56%   4m30s     6m32s    12m35s   10 in 6h
  ticket  1d and 2h   2.8        0.28%   6m32s     10m34s   22m40s   10 in 1d
  ticket  3d and 6h   1          0.1%    6m50s     11m9s    24m6s    10 in 3d
  a total outage pages after 2m51s
  less traffic than that, over 50.05% bad and at least 3 in 3d: ChatAvailabilityFailingTrickle \
opens a ticket, within 1d12h7m of total failure
  nothing measured for 5m: ChatAvailabilitySignalAbsent pages

kv-headroom: 90% of 30s slices are good, that is: KV-cache utilization is 90% or less
  budget: 10%, 8,064 of 80,640 30s slices, or 2d19h12m of total outage
  tier    windows    burn rate  above  100% bad  50% bad  20% bad  least traffic
  page    1h and 5m  5.5        55%    35m30s    never    never
  ticket  1d and 2h  2.8        28%    6h46m     13h29m   never
  ticket  3d and 6h  1          10%    7h15m     14h27m   1d12h3m
  a total outage pages after 35m30s
  nothing measured for 30m: ChatKvHeadroomSignalAbsent pages
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "slo.yaml"
    path.write_text(SLO)
    return str(path)


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(["explain", *arguments])
    return stopped.value.code


def test_the_text_says_everything(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file) == 0
    assert capsys.readouterr().out == TEXT


def test_a_traffic_counts_the_budget_in_its_own_events(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "--traffic", "2.5") == 0
    text = capsys.readouterr().out
    assert "0.1%, 6,048 of 6,048,000 requests" in text
    assert "8,064 of 80,640 30s slices" in text  # slices come at a pace of their own


def test_json_has_numbers_in_base_units(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--json") == 0
    (service,) = json.loads(capsys.readouterr().out)
    first = service["objectives"][0]
    assert service["window_seconds"] == 28 * 86_400
    assert first["budget"] == {
        "ratio": 0.001,
        "outage_seconds": 2419.2,
        "bad_events": 1000,
        "total_events": 1_000_000,
    }
    assert first["alerts"][0] == {
        "name": "ChatAvailabilityBudgetBurn",
        "tier": "page",
        "long": "1h",
        "short": "5m",
        "burn_rate": 13.44,
        "error_ratio_above": 0.01344,
        "seconds_to_fire": {"1": 171, "0.5": 241, "0.2": 392},
        "least_bad_events": 10,
    }
    assert service["objectives"][1]["alerts"][0]["least_bad_events"] is None
    assert first["trickle"] == {
        "name": "ChatAvailabilityFailingTrickle",
        "window": "3d",
        "error_ratio_above": 0.5005,
        "least_bad_events": 3,
        "seconds_to_fire": 129_729.6 + 300,
    }
    assert service["objectives"][1]["trickle"] is None


def test_several_files_are_told_apart(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(SLO.replace("service: chat", "service: code"))
    assert run(file, str(other)) == 0
    text = capsys.readouterr().out
    assert text.startswith("chat: over 28d")
    assert "\n\ncode: over 28d" in text


@pytest.mark.parametrize("traffic", ["0", "-1", "many"])
def test_a_traffic_that_is_none_is_refused(file: str, traffic: str) -> None:
    assert run(file, "--traffic", traffic) == 2


def test_a_file_that_is_wrong_is_named(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(file).write_text(SLO.replace("99.9%", "99.9"))
    assert run(file) == 2
    assert f"{file}:6: objectives[0].target" in capsys.readouterr().err


targets = st.integers(1, 99_999).map(lambda thousandths: Decimal(thousandths) / 100_000)
windows = st.integers(1, 90).map(lambda days: Decimal(days * 86_400))


@given(targets, windows)
def test_a_total_outage_always_alerts_before_the_budget_is_spent_or_soon_after(
    target: Decimal, window: Decimal
) -> None:
    objective = Objective("a", "availability", target)
    (explanation,) = explain(plan(Service("slo.yaml", "chat", window, (objective,))))
    page = explanation.first("page", FAILURES[0])
    assert page is not None
    # The recorded rates show a failure gradually; a budget of seconds is gone before that.
    assert page < max(explanation.outage, Decimal(300))
    for alert in explanation.alerts:
        times = [time for time in alert.fires.values() if time is not None]
        assert times == sorted(times)
