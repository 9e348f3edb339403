"""``tokenslo demo``: processes, output and files."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lab import stack
from lab.example_slo import EXAMPLE_SLO
from lab.load import LoadSettings
from lab.process import get
from lab.repository import ModelSettings
from lab.stack import Stack, StackSettings
from promql.client import query
from slos.signals import SIGNALS
from tests import libyaml, sloth_dashboards
from tests.polling import wait_until

pytestmark = pytest.mark.needs("triton", "prometheus")

WINDOWS = sloth_dashboards.WINDOWS[:-1]
# What Grafana fills in.
VARIABLES = {"$__rate_interval": "1m", "$__range": "10m"}
# Prometheus evaluates a subquery at multiples of its step; a young demo may have seen none of 5m.
SHORTER_STEPS = {"[1d:5m]": "[1d:15s]"}
WITHOUT_DATA = {
    # Triton's TensorRT-LLM backends do not publish these, as "Not measured here" lists.
    "chat-engine: Preemptions by instance",
    "chat-engine: Prefix reuse",
    "chat-engine: Accepted draft tokens",
    # The load has no tenants.
    "chat-capacity: Input tokens by tenant",
    "chat-capacity: Output tokens by tenant",
    # Nothing of the kind happens, or not in the first minutes.
    "chat-capacity: Capacity causes that fire",
    "chat-capacity: KV cache full in",
    "chat-sidecar: Failed scrapes",
    "chat-sidecar: Tap losses",
    # Every signal of these dashboards is measured.
    *(
        f"{kind}: Not measured here"
        for kind in (
            "overview",
            *(
                f"chat-{name}"
                for name in ("error-budget", "token-latency", "streams", "capacity", "rollout")
            ),
        )
    ),
}
# Half a minute until the first time slice ends, then rules that build on rules.
PATIENCE_SECONDS = 90


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(output: Path) -> Iterator[Stack]:
    settings = StackSettings(
        slo=EXAMPLE_SLO,
        service="chat",
        output=output,
        model=ModelSettings(first_response_buckets_ms=(100, 250, 500, 800, 1000, 2500, 10000)),
        load=LoadSettings(seconds=math.inf),
        generate=("--compat", "sloth"),
    )
    with stack.running(settings, print) as running:
        yield running


def rules(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/rules") as answer:  # noqa: S310 (our own)
        groups = json.load(answer)["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def without_data(url: str, queries: set[str]) -> set[str]:
    return {expr for expr in queries if not query(url, expr)}


def eventually_all_with_data(url: str, queries: set[str]) -> set[str]:
    """Wait until every query returns data; return those that never do."""
    missing = set(queries)

    def all_have_data() -> bool:
        missing.intersection_update(without_data(url, missing))
        return not missing

    with suppress(AssertionError):
        wait_until(all_have_data, PATIENCE_SECONDS, 2)
    return missing


def dashboard_queries(output: Path) -> dict[str, str]:
    """Return all queries of panels and annotations, with their titles."""
    queries = {}
    for path in (output / "dashboards").glob("*.json"):
        board = json.loads(path.read_text())
        shown = [panel for panel in board["panels"] if panel["type"] != "row"]
        for title, tree in (
            *((panel["title"], panel["targets"]) for panel in shown),
            *((mark["name"], mark) for mark in board["annotations"]["list"]),
        ):
            for expr in find(tree, "expr"):
                for text, value in (VARIABLES | SHORTER_STEPS).items():
                    expr = expr.replace(text, value)
                queries[re.sub(r'"\$\w+"', '".*"', expr)] = f"{path.stem}: {title}"
    assert not [expr for expr in queries if "$" in expr]
    return queries


def find(tree: Any, key: str) -> Iterator[str]:
    if isinstance(tree, dict):
        if isinstance(tree.get(key), str):
            yield tree[key]
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from find(branch, key)


def test_ctrl_c_stops_all_processes_and_prints_a_summary(tmp_path: Path) -> None:
    with started(tmp_path, "--no-prometheus") as process:
        assert process.stdout
        assert process.stderr
        name, url = next(filter(None, map(str.split, process.stdout)))[-2:]
        assert name == "page"
        port = urlsplit(url).port or 0
        assert get(port, "/healthz")[0] == 200  # lives while it is printed
        wait_until(lambda: 'outcome="ok"' in get(port, "/metrics")[1], PATIENCE_SECONDS, 0.1)
        process.send_signal(signal.SIGINT)
        # Not communicate(), which misses lines that were read ahead with the first.
        out, err = process.stdout.read(), process.stderr.read()
        assert process.wait(30) == 0
    assert err == ""
    assert "tensorrt_llm version 1" in out
    assert children(tmp_path) == []


@pytest.mark.long
def test_killed_demo_stops_its_servers(tmp_path: Path) -> None:
    with started(tmp_path, "--no-prometheus") as process:
        wait_for(tmp_path / "run/sidecar.log", "metrics http://")
        process.kill()
        process.communicate()
    wait_until(lambda: not children(tmp_path), 30)


@pytest.mark.long
def test_piped_output_has_addresses_and_summary(tmp_path: Path) -> None:
    with started(tmp_path, "--for", "5s", "--no-prometheus") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert [line.split()[0] for line in lines[:3]] == ["status", "metrics", "Triton"]
    assert lines[3] == "tensorrt_llm version 1, backend python"
    rows = {line.split()[0]: line for line in lines}
    assert re.search(r"exact +wire$", rows["ttft"])
    assert re.search(r"exact +trtllm_iteration$", rows["kv_utilization"])
    assert "backends do not publish" in rows["kv_missed_blocks"]
    assert re.search(r"http://127\.0\.0\.1:\d+/metrics$", rows["metrics"])
    assert rows["rules"].endswith(f"{tmp_path}/alerts/")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "alerts",
        "autoscaling",
        "dashboards",
        "mkdocs.yml",
        "rollouts",
        "run",
        "runbooks",
    ]


def started(output: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tokenslo", "demo", "-o", str(output), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(log: Path, text: str) -> None:
    wait_until(lambda: log.exists() and text in log.read_text(), 60)


def children(output: Path) -> list[str]:
    """Command lines of processes that have to do with a demo's output folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            cwd = str((process / "cwd").readlink())
        except OSError:
            continue
        if str(output) in command or str(output) in cwd:
            found.append(command)
    return found


def test_foreign_run_folder_is_not_touched(tmp_path: Path) -> None:
    kept = tmp_path / "run/precious.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    done = subprocess.run(
        [*(sys.executable, "-m", "tokenslo", "demo"), "--for", "1s", "-o", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"tokenslo: {tmp_path}/run is not from an earlier demo; choose another --output\n"
    )
    assert kept.read_text() == "mine"


def test_every_recording_rule_and_dashboard_query_returns_data(demo: Stack, output: Path) -> None:
    assert demo.prometheus
    content = libyaml.load((output / "alerts/chat.rules.yaml").read_text())
    recorded = {
        rule["expr"] for group in content["groups"] for rule in group["rules"] if "record" in rule
    }
    assert len(recorded) > 30
    shown = dashboard_queries(output)
    empty = eventually_all_with_data(
        demo.prometheus.url,
        recorded | {expr for expr, title in shown.items() if title not in WITHOUT_DATA},
    )
    assert {shown.get(expr, expr) for expr in empty} == set()


def test_every_query_of_sloths_dashboards_returns_data(demo: Stack) -> None:
    assert demo.prometheus
    queries = {
        *sloth_dashboards.OVERVIEW.values(),
        *sloth_dashboards.variables().values(),
        # The month's budget sums whole hours, and a demo lasts minutes: see test_sloth_compat.py.
        *sloth_dashboards.detail("chat", "availability", datetime.now(UTC).month).values(),
        # The example's period is 28 days, Sloth's default of 30d is a choice in its dashboard.
        *sloth_dashboards.error_ratios("chat", "availability", (*WINDOWS, "4w")).values(),
    }
    assert eventually_all_with_data(demo.prometheus.url, queries) == set()


def test_prometheus_evaluates_every_rule_without_error(demo: Stack) -> None:
    assert demo.prometheus
    unhealthy = [
        (rule["name"], rule["health"], rule.get("lastError"))
        for rule in rules(demo.prometheus.url)
        if rule["health"] != "ok"
    ]
    assert unhealthy == []


def test_signals_agree_with_client_measurements(demo: Stack) -> None:
    """Tokens and first tokens are counted on both sides of the wire."""
    assert demo.prometheus
    before = demo.load.summary()
    series = f'{SIGNALS["output_tokens"].metric}{{direction="output"}}'
    (start,) = query(demo.prometheus.url, series)
    wait_until(lambda: demo.load.summary().tokens - before.tokens > 2_000, 60)
    (end,) = query(demo.prometheus.url, series)
    seen = demo.load.summary().tokens - before.tokens
    # The engine counts a request when it ends, the load when its client ends: some are under way.
    assert end.value - start.value == pytest.approx(seen, rel=0.5)


def test_every_ended_request_has_a_goodput_result(demo: Stack) -> None:
    assert demo.prometheus
    before = demo.load.summary().outcomes["ok"]
    judged = f"sum({SIGNALS['goodput'].metric})"
    wait_until(
        lambda: sum(one.value for one in query(demo.prometheus.url, judged)) >= before,
        PATIENCE_SECONDS,
    )
