"""``tokenslo explain``: budgets and times to fire, as text and JSON."""

from __future__ import annotations

import json
import tempfile
from contextlib import redirect_stdout
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slos.durations import parse_duration
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

availability: 99.9% of requests are good, that is: the server completes its response
  budget: 0.1%, 1,000 of 1,000,000 requests, or 40m19s of total outage
  tier    windows     burn rate  above   100% bad  50% bad  20% bad  least traffic
  page    1h and 5m   13.44      1.344%  49s       1m37s    4m2s     10 in 1h
  page    6h and 30m  5.6        0.56%   2m1s      4m2s     10m5s    10 in 6h
  ticket  1d and 2h   2.8        0.28%   4m2s      8m4s     20m10s   10 in 1d
  ticket  3d and 6h   1          0.1%    4m20s     8m39s    21m36s   10 in 3d
  a total outage pages after 49s
  less traffic than that, over 50.05% bad and at least 3 in 3d: ChatAvailabilityLowTrafficErrors \
opens a ticket, within 1d12h2m of total failure
  nothing measured for 5m: ChatAvailabilityMetricAbsent pages

kv-headroom: 90% of 1m slices are good, that is: KV-cache utilization is 90% or less
  budget: 10%, 4,032 of 40,320 1m slices, or 2d19h12m of total outage
  tier    windows     burn rate  above  100% bad  50% bad  20% bad  least traffic
  page    10m and 5m  5.5        55%    5m30s     never    never
  ticket  1d and 2h   2.8        28%    6h43m     13h26m   never
  ticket  3d and 6h   1          10%    7h12m     14h24m   1d12h
  a total outage pages after 5m30s
  nothing measured for 30m: ChatKvHeadroomMetricAbsent pages
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


def test_text_is_as_expected(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file) == 0
    assert capsys.readouterr().out == TEXT


def test_a_traffic_counts_the_budget_in_its_own_events(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "--traffic", "2.5") == 0
    text = capsys.readouterr().out
    assert "0.1%, 6,048 of 6,048,000 requests" in text
    assert "4,032 of 40,320 1m slices" in text  # slices do not depend on traffic


def test_traffic_below_the_guard_of_an_alert_never_fires_it(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 3.6 requests per hour, ten cannot fail within an hour."""
    assert run(file, "--traffic", "0.001") == 0
    text = capsys.readouterr().out
    assert "page    1h and 5m   13.44      1.344%  never     never    never    10 in 1h" in text
    assert "a total outage pages after 2h47m" in text
    assert run(file, "--traffic", "0.00001") == 0
    assert "a total outage fires none of these" in capsys.readouterr().out


def test_with_time_slices_a_failure_is_that_of_the_events_in_them(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fifth of the requests makes every slice bad, so alerts fire as soon as in an outage."""
    slices = "time_slices: {window: 1m, target: 90%}"
    Path(file).write_text(SLO.replace("target: 99.9%", f"target: 99%, {slices}"))
    assert run(file, "--json") == 0
    (service,) = json.loads(capsys.readouterr().out)
    times = service["objectives"][0]["alerts"][0]["seconds_to_fire"]
    assert times["0.2"] == times["0.5"] == times["1"] is not None
    assert run(file) == 0
    assert "if more than 10% of its requests are" in capsys.readouterr().out


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
        "name": "ChatAvailabilityErrorBudgetBurn",
        "tier": "page",
        "long": "1h",
        "short": "5m",
        "burn_rate": 13.44,
        "error_ratio_above": 0.01344,
        "seconds_to_fire": {"1": 49, "0.5": 97, "0.2": 242},
        "least_bad_events": 10,
    }
    assert service["objectives"][1]["alerts"][0]["least_bad_events"] is None
    assert first["low_traffic"] == {
        "name": "ChatAvailabilityLowTrafficErrors",
        "window": "3d",
        "error_ratio_above": 0.5005,
        "least_bad_events": 3,
        "seconds_to_fire": 129_729.6,
    }
    assert service["objectives"][1]["low_traffic"] is None


HANGS = {
    "indicator: ttft, threshold: 800ms": 49 + 0.8,
    "indicator: e2e, threshold: 30s": 49 + 30,
    "indicator: max_gap, threshold: 2s": 49 + 2,
    "indicator: goodput, clauses: {e2e: 30s, ttft: 2s}": 49 + 2,
    "indicator: goodput, clauses: {tpot: 60ms}": None,
    "indicator: tpot, threshold: 60ms": None,
    "indicator: availability": None,
}


@pytest.mark.parametrize("indicator", HANGS)
def test_a_hang_pages_after_requests_in_flight_cross_their_threshold(
    file: str, capsys: pytest.CaptureFixture[str], indicator: str
) -> None:
    Path(file).write_text(SLO.replace("indicator: availability", indicator))
    assert run(file, "--json") == 0
    (service,) = json.loads(capsys.readouterr().out)
    seconds = HANGS[indicator]
    assert service["objectives"][0]["hang_seconds"] == seconds
    assert run(file) == 0
    mentions_hang = "a hang in which no request ends pages after" in capsys.readouterr().out
    assert mentions_hang is (seconds is not None)


def test_several_files_are_explained_by_service(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(SLO.replace("service: chat", "service: code"))
    assert run(file, str(other)) == 0
    text = capsys.readouterr().out
    assert text.startswith("chat: over 28d")
    assert "\n\ncode: over 28d" in text


@pytest.mark.parametrize("traffic", ["0", "-1", "many", "nan", "inf"])
def test_an_invalid_traffic_is_refused(file: str, traffic: str) -> None:
    assert run(file, "--traffic", traffic) == 2


def test_an_invalid_file_is_named(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(file).write_text(SLO.replace("99.9%", "99.9"))
    assert run(file) == 2
    assert f"{file}:6: objectives[0].target" in capsys.readouterr().err


EVERY = 60
"""Seconds between two evaluations of the rules."""


def played(
    alert: dict[str, Any], bad: float, traffic: float | None, slices: tuple[int, float] | None
) -> int | None:
    """Simulate a failure, evaluation by evaluation of the rules, until the alert fires.

    ``bad`` is the share of events that fail from time 0; ``slices`` their length and target.  Each
    recorded value is the share of bad events in the minute before it.
    """
    long, short = (int(parse_duration(alert[window])) for window in ("long", "short"))
    above, least = alert["error_ratio_above"], alert["least_bad_events"]

    def recorded(now: int) -> float:
        if slices is None:
            return bad
        length, target = slices
        # Float noise above zero is zero.
        return float(bad * min(now, length) / length > 1 - target + 1e-9)

    values: list[float] = []
    long_sum = short_sum = 0.0
    for now in range(EVERY, long + 600, EVERY):
        values.append(recorded(now))
        long_sum += values[-1] - (values[-1 - long // EVERY] if len(values) > long // EVERY else 0)
        short_sum += values[-1] - (
            values[-1 - short // EVERY] if len(values) > short // EVERY else 0
        )
        is_short = short_sum * EVERY / short > above
        enough = True
        if slices:
            enough = long_sum * EVERY / slices[0] >= max(300 / slices[0], 2) * (1 - 1e-9)
        elif traffic and least > 1:
            enough = long_sum * EVERY * traffic >= least * (1 - 1e-9)
        if long_sum * EVERY / long > above and is_short and enough:
            return now
    return None


@given(
    st.sampled_from(["50%", "90%", "95%", "99%", "99.9%", "99.999%"]),
    st.sampled_from([1, 2, 7, 28, 31, 90]),
    st.none() | st.sampled_from([0.0001, 0.003, 0.04, 1, 50]),
    st.none() | st.tuples(st.sampled_from([60, 300]), st.sampled_from([0.5, 0.85, 0.95])),
    st.sampled_from([0, 1, 10, 300]),
)
@settings(max_examples=15)
def test_every_number_is_what_a_simulation_of_the_rules_finds(
    target: str,
    days: int,
    traffic: float | None,
    slices: tuple[int, float] | None,
    least: int,
) -> None:
    fields = {"name": "a", "indicator": "availability", "target": target}
    if slices:
        window, share = slices
        fields["time_slices"] = {"window": f"{window // 60}m", "target": f"{share * 100:g}%"}
    text = {
        "apiVersion": "tokenslo/v1",
        "service": "chat",
        "window": f"{days}d",
        "alerting": {"min_bad_events": least},
        "objectives": [fields],
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "slo.json")
        file.write_text(json.dumps(text))
        arguments = [str(file), "--json", *(["--traffic", str(traffic)] if traffic else [])]
        with redirect_stdout(StringIO()) as output:
            assert run(*arguments) == 0
    [service] = json.loads(output.getvalue())
    [explained] = service["objectives"]
    budget, ratio = explained["budget"], 1 - float(target.rstrip("%")) / 100
    assert budget["outage_seconds"] == pytest.approx(ratio * days * 86_400)
    events = days * 86_400 * (traffic or 0) or 1_000_000
    if slices:
        events = days * 86_400 / slices[0]
    assert budget["total_events"] == pytest.approx(events, abs=1)
    assert budget["bad_events"] == pytest.approx(ratio * events, abs=1)
    assert explained["alerts"]
    for alert in explained["alerts"]:
        for bad, seconds in alert["seconds_to_fire"].items():
            found = played(alert, float(bad), traffic, slices)
            if seconds is None or found is None:
                assert seconds == found
            else:
                # Rounded up to the next evaluation, and with slices to the end of the next slice.
                late = EVERY + (slices[0] if slices else 0)
                assert abs(found - seconds) <= late + 1


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
    # Recorded rates rise gradually; a budget of seconds is spent before that.
    assert page < max(explanation.outage, Decimal(300))
    for alert in explanation.alerts:
        times = [time for time in alert.fires.values() if time is not None]
        assert times == sorted(times)
