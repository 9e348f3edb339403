"""The series of ``--compat sloth`` on a real Prometheus, beside those of Sloth's own rules."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import alerts
from alerts import sloth_rules
from lab.prometheus import Prometheus
from promql.client import query_range
from slos.model import Service
from slos.plan import Plan, plan
from tests import sloth_dashboards
from tests.rule_values.recordings import OBJECTIVES, RecordingRule, Tool, tokenslo, tools
from tests.rule_values.replay import EPOCH, Replay, replaying
from tests.rule_values.traffic import DAY, HOUR, REQUESTS, Samples, labelled, points
from tests.window_test_runs import run_window_tests

SERVICE, SLO, GROUPED = "chat", "availability", "by-server"
PERIOD = Decimal(DAY)
MONTH = 6
"""The month of EPOCH and of all that follows it here."""
OUTAGE = range(25 * HOUR, 25 * HOUR + 1800)
END = 26 * HOUR + 300
EVERY = 60
IDS = {"sloth_id": "chat-availability", "sloth_service": SERVICE, "sloth_slo": SLO}

Start = Callable[..., Prometheus]


def planned(*names: str) -> Plan:
    objectives = tuple(replace(OBJECTIVES[name], labels={"team": "serving"}) for name in names)
    service = Service("", SERVICE, PERIOD, objectives, selector={"model": SERVICE})
    return replace(plan(service), compat=("sloth",))


def traffic() -> Samples:
    """Return counters of two servers with 1 % and 2 % errors, and 20 % in the outage."""
    times = np.arange(0, END + 1, 30)
    there = np.full(len(times), fill_value=True)
    samples = {}
    for instance, share in (("chat-0", 0.01), ("chat-1", 0.02)):
        failing = np.where((times >= OUTAGE.start) & (times < OUTAGE.stop), 0.2, share)
        counted = {"ok": 60 * (1 - failing), "error": 60 * failing, "timeout": 0 * failing}
        for outcome, values in counted.items():
            series = labelled(REQUESTS, model=SERVICE, outcome=outcome, instance=instance)
            samples[series] = points(times, np.cumsum(values), there)
    return samples


def ours(name: str) -> Tool:
    """Return our rules of an objective and those of Sloth's series."""
    more = [
        RecordingRule(str(rule["record"]), str(rule["expr"]), dict(rule["labels"]), EVERY)
        for group in sloth_rules.groups(planned(name), version="1")
        for rule in group["rules"]  # type: ignore[attr-defined]
    ]
    recorded = tokenslo(SERVICE, name, PERIOD)
    return replace(recorded, recordings=[*recorded.recordings, *more])


def record(replay: Replay, tool: Tool) -> None:
    for recording in chain.from_iterable(tool.layers()):
        replay.add(replay.recorded(recording, range(0, END + 1, recording.every)))


@pytest.fixture(scope="module")
def compat(prometheus: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replay]:
    with replaying(prometheus, tmp_path_factory.mktemp("compat")) as replay:
        replay.add(traffic())
        for name in (SLO, GROUPED):
            record(replay, ours(name))
        yield replay


@pytest.fixture(scope="module")
def sloth(prometheus: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replay]:
    with replaying(prometheus, tmp_path_factory.mktemp("sloth")) as replay:
        replay.add(traffic())
        record(replay, tools(SERVICE, SLO, PERIOD)[1])
        yield replay


def value(replay: Replay, name: str, at: int) -> float:
    """Return the value of the one series of this name and objective."""
    expr = f'{name}{{sloth_id="{IDS["sloth_id"]}"}}'
    (series,) = query_range(replay.url, expr, EPOCH + at, EPOCH + at, 1)
    return series.values[EPOCH + at]


RATIO = "slo:sli_error:ratio_rate"
# Ours are of one period, whose name Sloth would give to a window of this length.
SERIES = {
    **{f"{RATIO}{window}": f"{RATIO}{window}" for window in ("5m", "30m", "1h", "2h", "6h")},
    f"{RATIO}1d": f"{RATIO}1d_period",
    **{
        name: name
        for name in (
            "slo:objective:ratio",
            "slo:error_budget:ratio",
            "slo:time_period:days",
            "slo:current_burn_rate:ratio",
            "slo:period_burn_rate:ratio",
            "slo:period_error_budget_remaining:ratio",
            "sloth_slo_info",
        )
    },
}


@pytest.mark.parametrize("at", [OUTAGE.stop, END])
def test_values_are_those_of_sloths_rules(compat: Replay, sloth: Replay, at: int) -> None:
    found = {name: value(compat, name, at) for name in SERIES}
    theirs = {name: value(sloth, other, at) for name, other in SERIES.items()}
    assert found == pytest.approx(theirs, rel=0.05)


def test_every_query_of_sloths_dashboards_returns_data(compat: Replay) -> None:
    queries = {
        **sloth_dashboards.OVERVIEW,
        **sloth_dashboards.variables(),
        **sloth_dashboards.detail(SERVICE, SLO, MONTH),
        # 3d and the period of Sloth's default need a longer period than the day of this test.
        **sloth_dashboards.error_ratios(SERVICE, SLO, ("5m", "30m", "1h", "2h", "6h", "1d")),
        "month": sloth_dashboards.month_budget(SERVICE, SLO, MONTH),
    }
    empty = {
        name
        for name, expr in queries.items()
        if not query_range(compat.url, expr, EPOCH + OUTAGE.stop, EPOCH + OUTAGE.stop, 1)
    }
    # The alerts are a matter of Prometheus's own evaluation, which the demo shows.
    assert empty == {"ticket alerts", "page alerts"}


def test_monthly_budget_is_the_sum_of_the_hours(compat: Replay) -> None:
    expr = sloth_dashboards.month_budget(SERVICE, SLO, MONTH)
    (series,) = query_range(compat.url, expr, EPOCH + END, EPOCH + END, 1)
    first = (EPOCH // HOUR + 1) * HOUR
    of_hours = f'{RATIO}1h{{sloth_slo="{SLO}"}}'
    (hours,) = query_range(compat.url, of_hours, first, EPOCH + END, HOUR)
    assert series.values[EPOCH + END] == pytest.approx(1 - sum(hours.values.values()) / 0.01 / 720)


def test_a_grouped_objective_is_its_worst_group(compat: Replay) -> None:
    expr = f'{RATIO}6h{{sloth_slo="{GROUPED}"}}'
    at = EPOCH + 24 * HOUR
    (series,) = query_range(compat.url, expr, at, at, 1)
    assert series.values[at] == pytest.approx(0.02)


def test_series_have_the_labels_of_sloth(compat: Replay) -> None:
    def labels(name: str) -> Mapping[str, str]:
        expr = f'{name}{{sloth_slo="{SLO}"}}'
        (series,) = query_range(compat.url, expr, EPOCH + END, EPOCH + END, 1)
        return {key: text for key, text in series.labels.items() if key != "__name__"}

    team = {"team": "serving"}
    about = {
        "sloth_version": "1",
        "sloth_mode": "cli-gen-prom",
        "sloth_spec": "tokenslo/v1",
        "sloth_objective": "99",
    }
    assert labels(f"{RATIO}5m") == {**IDS, "sloth_window": "5m"}
    assert labels("slo:objective:ratio") == {**IDS, **team}
    assert labels("slo:current_burn_rate:ratio") == {**IDS, **team}
    assert labels("sloth_slo_info") == {**IDS, **team, **about}


def test_alerts_with_sloths_labels_pass_their_tests(promtool: Path, tmp_path: Path) -> None:
    files = alerts.files(planned(SLO), source="slo.yaml", version="0.1.0")
    for path, text in files.items():
        (tmp_path / Path(path).name).write_text(text)
    assert "sloth_severity: page" in (tmp_path / "chat.rules.yaml").read_text()
    assert 'sloth_severity="page"' in (tmp_path / "chat.windows.test.yaml").read_text()
    command = [promtool, "check", "rules", "chat.rules.yaml", "chat.sloth.rules.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_window_tests(promtool, "chat.windows.test.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
