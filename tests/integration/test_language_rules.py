"""Time slices and groups on the real promtool: recorded ratios and firing alerts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import chdir
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner
from language_example import FULL, load

import alerts
from slos.indicators import INDICATORS
from slos.plan import Plan, plan
from slos.signals import metric_with
from tests import libyaml
from tokenslo.commands.generate import generate

HEAD = "apiVersion: tokenslo/v1\nservice: chat\nobjectives:\n"
STEPS = 120  # of 30 s each: an hour

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def planned(tmp_path: Path) -> Callable[[str], Plan]:
    def planned_(text: str) -> Plan:
        path = tmp_path / "slo.yaml"
        path.write_text(text)
        return plan(load(path))

    return planned_


@pytest.fixture
def run(promtool: Path, tmp_path: Path) -> Run:
    """Write a plan's files, and run promtool's tests: the plan's own ones, or those given."""

    def run_(of: Plan, tests: dict[str, object] | None = None) -> subprocess.CompletedProcess[str]:
        for name, text in alerts.files(of, source="slo.yaml", version="1").items():
            (tmp_path / Path(name).name).write_text(text)
        if tests is not None:
            (tmp_path / "chat.test.yaml").write_text(libyaml.dump(tests))
        command = [promtool, "test", "rules", "chat.test.yaml"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run_


def scenario(series: dict[str, str], checks: dict[str, dict[str, float]]) -> dict[str, object]:
    """Play series for an hour; a check is a query and its values by labels at the end."""
    return {
        "rule_files": ["chat.rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "30s",
                "input_series": [{"series": name, "values": how} for name, how in series.items()],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": f"{STEPS // 2}m",
                        "exp_samples": [
                            {"labels": labels, "value": value} for labels, value in found.items()
                        ],
                    }
                    for query, found in checks.items()
                ],
            }
        ],
    }


def requests(outcome: str, each: int, **labels: str) -> dict[str, str]:
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    metric = metric_with("llm_requests_total", labels)
    return {f'{metric}{{outcome="{outcome}"{more}}}': f"0+{each}x{STEPS}"}


def test_every_language_feature_passes_its_own_tests(
    planned: Callable[[str], Plan], run: Run
) -> None:
    done = run(planned(FULL))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("days", [1, 3, 90])
def test_short_and_long_windows_pass_their_own_tests(
    planned: Callable[[str], Plan], run: Run, days: int
) -> None:
    head = HEAD.replace("objectives", f"window: {days}d\nobjectives")
    done = run(planned(f"{head}  - {{name: up, indicator: availability, target: 99.5%}}\n"))
    assert done.returncode == 0, done.stdout + done.stderr


def in_all_ways() -> Iterator[dict[str, object]]:
    """Yield objectives: each indicator by none, one, most and all labels, in events and slices."""
    labels = ["model", "tenant", "version", "pod"]
    units = {"seconds": {"threshold": "800ms"}, "ratio": {"threshold": "90%"}, None: {}}
    clauses = {"clauses": {"ttft": "800ms", "tpot": "60ms"}}
    slices = {"time_slices": {"window": "1m", "target": "95%"}}
    for key, one in INDICATORS.items():
        free = labels if one.by_tenant else [label for label in labels if label != "tenant"]
        groups = [{"group_by": some} for some in (free[:1], free[1:], free)]
        about = clauses if key == "goodput" else units[one.threshold]
        for number, (group, sliced) in enumerate(
            product([{}, *groups], [{}] if one.in_slices else [{}, slices])
        ):
            name = f"{key.replace('_', '-')}-{number}"
            target = ("50%", "99%", "99.999%")[number % 3]
            yield {"name": name, "indicator": key, "target": target, **about, **group, **sliced}


@pytest.mark.parametrize(
    ("release", "native", "least"), [("bookworm", False, "2.42"), ("forky", True, "3")]
)
def test_every_indicator_by_every_group_in_events_and_slices_gives_rules(
    part: Callable[[str], Path], tmp_path: Path, release: str, native: bool, least: str
) -> None:
    objectives = list(in_all_ways())
    shared = {"apiVersion": "tokenslo/v1", "histograms": "native" if native else "classic"}
    selector = {"namespace": 'a"b\\c \u00e9'}
    service = {"service": "chat", "selector": selector, "objectives": objectives}
    (tmp_path / "slo.json").write_text(json.dumps({**shared, "services": [service]}))
    command = ["slo.json", "-o", ".", "--only", "alerts", "--min-prometheus", least]
    with chdir(tmp_path):
        made = CliRunner().invoke(generate, command)
    assert made.exit_code == 0, made.output
    rules = tmp_path / "alerts" / "chat.rules.yaml"
    checked = subprocess.run(
        [part(f"promtool@{release}"), "check", "rules", rules],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    groups = libyaml.load(rules.read_text())["groups"]
    names = ["signals", *(each["name"] for each in objectives)]
    assert [group["name"] for group in groups] == [f"chat/{name}" for name in names]
    assert len(objectives) == 88


SLICES = "time_slices: {window: 1m, target: 95%}"
UP = f"{HEAD}  - {{name: up, indicator: availability, target: 99%, {SLICES}"
SLICED, GROUPED = f"{UP}}}\n", f"{UP}, group_by: [version]}}\n"
"""The slices of the first are judged by the sidecar, those of the second by the rules."""
RATIO = 'sum(slo:error_ratio:rate30m{slo="up"})'
HALF = 'sum(slo:error_ratio:rate1h{slo="up"})'


def test_slices_evaluated_by_the_sidecar_count_as_events(
    planned: Callable[[str], Plan], run: Run
) -> None:
    minutes = [step // 2 for step in range(STEPS + 1)]
    bad = [max(minute - STEPS // 4, 0) for minute in minutes]
    counted = {"bad": bad, "good": [every - some for every, some in zip(minutes, bad, strict=True)]}
    series = {
        f'llm_slo_slices_total{{objective="chat/up",result="{result}"}}': " ".join(map(str, values))
        for result, values in counted.items()
    }
    total = 'sum(sum_over_time(slo:total:increase1m{slo="up"}[1h]))'
    checks = {total: {"{}": 60.0}, HALF: {"{}": 0.5}}
    done = run(planned(SLICED), scenario(series, checks))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("bad", "ratio"), [(3, 0.0), (8, 1.0)])
def test_a_slice_is_bad_when_too_many_of_its_events_are(
    planned: Callable[[str], Plan], run: Run, bad: int, ratio: float
) -> None:
    series = requests("ok", 100 - bad, version="1") | requests("error", bad, version="1")
    done = run(planned(GROUPED), scenario(series, {RATIO: {"{}": ratio}}))
    assert done.returncode == 0, done.stdout


def test_slices_without_events_are_good_and_count(planned: Callable[[str], Plan], run: Run) -> None:
    every = 'sum by (version) (slo:total:increase1m{slo="up"})'
    checks = {every: {'{version="1"}': 1.0}, RATIO: {"{}": 0.0}}
    series = requests("ok", 0, version="1") | requests("error", 0, version="1")
    done = run(planned(GROUPED), scenario(series, checks))
    assert done.returncode == 0, done.stdout


def test_half_of_the_time_bad_is_half_of_the_slices_bad(
    planned: Callable[[str], Plan], run: Run
) -> None:
    """Traffic is a hundredth in the bad half, where events would show nearly none bad."""
    series = {
        'llm_requests_total{outcome="ok",version="1"}': "0+1000x60 60000+0x60",
        'llm_requests_total{outcome="error",version="1"}': "0+0x60 0+10x60",
    }
    check = f"abs({HALF} - 0.5) < bool 0.06"
    done = run(planned(GROUPED), scenario(series, {check: {"{}": 1.0}}))
    assert done.returncode == 0, done.stdout


def test_outage_of_one_tenant_affects_only_its_group(
    planned: Callable[[str], Plan], run: Run
) -> None:
    objective = "{name: up, indicator: availability, target: 99%, group_by: [tenant]}"
    series = (
        requests("ok", 1000, tenant="large")
        | requests("error", 0, tenant="large")
        | requests("ok", 0, tenant="small")
        | requests("error", 10, tenant="small")
        | requests("ok", 5)
    )
    checks = {
        'sum by (tenant) (slo:error_ratio:rate1h{slo="up"})': {
            '{tenant="large"}': 0.0,
            '{tenant="small"}': 1.0,
        },
        'count by (tenant) (ALERTS{slo="up",window="1h",alertstate="firing"})': {
            '{tenant="small"}': 1.0
        },
    }
    done = run(planned(f"{HEAD}  - {objective}\n"), scenario(series, checks))
    assert done.returncode == 0, done.stdout
