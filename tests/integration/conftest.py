"""Fixtures that run the real promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import alerts
from lab.prometheus import Prometheus
from slos.plan import Plan
from tests import libyaml

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def prometheus_with(
    promtool: Path,
    prometheus: Callable[..., Prometheus],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Prometheus]:
    """Start Prometheus with a history in OpenMetrics text."""

    def start(history: str, arguments: Sequence[str] = ()) -> Prometheus:
        folder = tmp_path_factory.mktemp("history")
        data, text = folder / "prometheus/data", folder / "history.txt"
        text.write_text(history)
        data.mkdir(parents=True)
        options = ("--max-block-duration=240h", "openmetrics")
        command = [promtool, "tsdb", "create-blocks-from", *options, text, data]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        return prometheus(folder / "prometheus", scrape={}, arguments=arguments)

    return start


@pytest.fixture
def run(promtool: Path, tmp_path: Path) -> Run:
    """Write a plan's files, and run promtool beside them."""

    def run_(
        plan: Plan, *arguments: str, program: Path = promtool, **others: str
    ) -> subprocess.CompletedProcess[str]:
        files = alerts.files(plan, source="slo.yaml", version="0.1.0")
        for name, text in {**{Path(p).name: t for p, t in files.items()}, **others}.items():
            (tmp_path / name).write_text(text)
        command = [program, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run_


@pytest.fixture
def scenario(run: Run) -> Callable[..., None]:
    """Play input series to a plan's rules; a check is a time, a selection, whether it holds."""

    def scenario_(
        plan: Plan,
        series: dict[str, str],
        *checks: tuple[str, str, bool],
        every: str = "30s",
    ) -> None:
        test = {
            "interval": every,
            "input_series": [{"series": name, "values": text} for name, text in series.items()],
            "promql_expr_test": [
                {
                    "expr": f"count({expr})",
                    "eval_time": at,
                    "exp_samples": [{"labels": "{}", "value": 1}] if holds else [],
                }
                for at, expr, holds in checks
            ],
        }
        content = {"rule_files": ["chat.rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
        done = run(
            plan, "test", "rules", "scenario.yaml", **{"scenario.yaml": libyaml.dump(content)}
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return scenario_
