"""Every query of every dashboard returns data from the lab, on old and new Prometheus.

The lab runs through healthy and broken spells: clients that disconnect and failing requests all the
time, then mostly failing ones, then a server that hangs.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab import prometheus, stack
from lab.example_slo import EXAMPLE_SLO
from lab.load import Load, LoadSettings, running_load
from lab.repository import ModelSettings
from lab.stack import StackSettings
from promql.client import query, query_range
from slos.signals import SIGNALS
from tests.polling import wait_until

pytestmark = [pytest.mark.needs("triton", "prometheus"), pytest.mark.long]

RELEASES = {"2.42": "prometheus@bookworm", "3": "prometheus@forky"}
FAILING = LoadSettings(seconds=15, rate=6, failing=0.5, invalid=0.2, seed=3)
HANG_SECONDS = 5
"""Longer than the time-out of a scrape of the sidecar."""
PATIENCE_SECONDS = 120
# Grafana's own variables, at a scrape interval of a second; and the steps of subqueries over a day,
# which are longer than the lab runs.
VARIABLES = {"$__rate_interval": "1m", "$__range": "5m", "[1d:5m]": "[1d:5s]"}

# Panels and queries that stay empty in the lab, and why.  Signals that the sidecar reports as
# unavailable are excepted by its own report, not by this list.
EMPTY = {
    ("capacity", "Capacity causes that fire"): "the causes last minutes before they fire",
    ("capacity", "Input tokens by tenant"): "the lab's clients name no tenant",
    ("capacity", "Output tokens by tenant"): "the lab's clients name no tenant",
    ("sidecar", "Tap losses", "tokenslo_tap_dropped_packets_total"): "of the capture tap",
    ("sidecar", "Tap losses", "tokenslo_tap_skipped_total"): "no record was skipped",
    ("sidecar", "Tap losses", "tokenslo_tap_refused_total"): "no connection was refused",
}
NOT_MEASURED = "Not measured here"
"""Panels that list unavailable signals; empty where the dashboard has none."""


@dataclass(frozen=True, slots=True)
class ResolvedQuery:
    """A query of a panel, with variables resolved."""

    dashboard: str
    panel: str
    expr: str

    @property
    def expected_empty(self) -> bool:
        own = (self.dashboard, self.panel)
        return any(
            own == where[:2] and all(metric in self.expr for metric in where[2:]) for where in EMPTY
        )


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """What a Prometheus recorded from ``start`` on."""

    url: str
    start: float

    def has_data(self, expr: str) -> bool:
        return bool(query_range(self.url, expr, self.start, time.time(), 2))


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def recorded(output: Path, part: Callable[[str], Path]) -> Iterator[Mapping[str, RecordedHistory]]:
    settings = StackSettings(
        slo=EXAMPLE_SLO,
        service="chat",
        output=output,
        model=ModelSettings(first_response_buckets_ms=(100, 250, 500, 800, 1000, 2500, 10000)),
        load=LoadSettings(seconds=math.inf),
        prometheus=False,
    )
    with ExitStack() as running:
        lab = running.enter_context(stack.running(settings, print))
        rules = stack.rule_files(settings)
        servers = {
            release: running.enter_context(
                prometheus.start(
                    part(program),
                    settings.run / f"prometheus-{release}",
                    scrape={"tokenslo": f"{lab.sidecar.url}/metrics"},
                    rules=rules,
                )
            )
            for release, program in RELEASES.items()
        }
        start = time.time()
        with running_load(Load(lab.tap, FAILING)) as failing:
            wait_until(lambda: failing.summary().outcomes["failed_mid_stream"] > 5, 60)
        os.kill(lab.served.server.pid, signal.SIGSTOP)
        time.sleep(HANG_SECONDS)
        os.kill(lab.served.server.pid, signal.SIGCONT)
        yield {release: RecordedHistory(server.url, start) for release, server in servers.items()}


@cache
def dashboards(output: Path) -> Mapping[str, dict[str, Any]]:
    """Return the dashboards by kind."""
    return {
        path.stem.removeprefix("chat-"): json.loads(path.read_text())
        for path in sorted((output / "dashboards").glob("*.json"))
    }


def resolved(expr: str, dashboard: Mapping[str, Any]) -> str:
    """Fill in what Grafana does where all values of each variable are chosen."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            every = variable["allValue"].replace("\\", r"\\")
            expr = re.sub(rf"\$\{{?{variable['name']}\b\}}?", every, expr)
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr


def panel_queries(output: Path) -> list[ResolvedQuery]:
    """Return the queries of all panels and annotations, those in collapsed rows included."""
    found = []
    for kind, dashboard in dashboards(output).items():
        annotations = (each for each in dashboard["annotations"]["list"] if "expr" in each)
        named = [(f"annotation {each['name']}", each["expr"]) for each in annotations]
        for panel in all_panels(dashboard["panels"]):
            named += [(panel["title"], target["expr"]) for target in panel.get("targets", ())]
        found += [ResolvedQuery(kind, name, resolved(expr, dashboard)) for name, expr in named]
    return found


def all_panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from panel.get("panels", ())


def unavailable_metrics(url: str) -> set[str]:
    """Return the metrics of signals that the sidecar reports as unavailable."""
    series = query(url, 'tokenslo_signal_info{quality="unavailable"}')
    return {SIGNALS[sample.labels["signal"]].metric for sample in series}


@pytest.mark.parametrize("release", RELEASES)
def test_every_query_of_every_dashboard_returns_data(
    recorded: Mapping[str, RecordedHistory], output: Path, release: str
) -> None:
    history = recorded[release]
    queries = panel_queries(output)
    assert len(queries) > 150
    unavailable = unavailable_metrics(history.url)
    wanted = [
        each
        for each in queries
        if not each.expected_empty
        and each.panel != NOT_MEASURED
        and not any(re.search(rf"\b{metric}", each.expr) for metric in unavailable)
    ]

    def all_have_data() -> bool:
        wanted[:] = [each for each in wanted if not history.has_data(each.expr)]
        return not wanted

    with suppress(AssertionError):  # the queries say more
        wait_until(all_have_data, PATIENCE_SECONDS, 1)
    assert wanted == []


@pytest.mark.parametrize("release", RELEASES)
def test_exceptions_are_queries_that_return_no_data(
    recorded: Mapping[str, RecordedHistory], output: Path, release: str
) -> None:
    excepted = [each for each in panel_queries(output) if each.expected_empty]
    assert len(excepted) >= len(EMPTY)
    assert [each for each in excepted if recorded[release].has_data(each.expr)] == []


def test_unavailable_signals_are_listed_with_their_reasons(
    recorded: Mapping[str, RecordedHistory], output: Path
) -> None:
    (listing,) = (
        each
        for each in panel_queries(output)
        if each.panel == NOT_MEASURED and each.dashboard == "sidecar"
    )
    found = query(recorded["3"].url, listing.expr)
    assert {sample.labels["signal"] for sample in found}
    assert all(sample.labels["reason"] for sample in found)
