"""``tokenslo backtest`` on the history of a real Prometheus, which never had our rules.

The alerts it reports are those that the rules fire on the same samples in promtool.
"""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import alerts
from lab.prometheus import Prometheus
from promql.client import Sample, query
from promql.expr import Matcher, equal, selector_text, vector
from slos.load import load_file
from slos.plan import plan
from tests import libyaml
from tokenslo.cli import main

SLO = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama}
alerting: {disable: [causes]}
budget_policy: [{when: 50%, do: slow down}]
objectives:
  - {name: tenants, indicator: availability, target: 99.9%, group_by: [tenant]}
  - {name: headroom, indicator: kv_headroom, threshold: 90%, target: 95%}
  - name: own
    indicator: {bad: 'sum(rate(own_bad_total[{window}]))', total: 'sum(rate(own_total[{window}]))'}
    target: 98%
    time_slices: {window: 1m, target: 95%}
    alerting: {disable: [page]}
"""
NEVER = """\
apiVersion: tokenslo/v1
service: other
objectives: [{name: pace, indicator: itl, threshold: 60ms, target: 99%}]
"""
SLOTH = """\
version: prometheus/v1
service: other
slos:
  - name: requests
    objective: 99
    sli:
      events:
        error_query: sum(rate(own_bad_total[{{.window}}]))
        total_query: sum(rate(own_total[{{.window}}]))
    alerting: {page_alert: {}, ticket_alert: {}}
"""
EVERY = 30
"""Seconds between two samples."""
MINUTE = 60 // EVERY
SAMPLES = 150 * MINUTE
TENANTS = {"acme": 20, 'béta"': 2, "$1": 1, "": 1}
"""Requests per sample."""
Values = list[float | None]


def failing(tenant: str, at: int) -> float:
    """Return which share of a tenant's requests fails at a sample."""
    if 15 * MINUTE <= at < 30 * MINUTE:
        return 1.0  # an outage for all
    if 65 * MINUTE <= at < 105 * MINUTE:
        return 1.0 if tenant == "$1" else 0.04  # a slow burn, and an outage for one tenant
    return 0.0


def seen(values: list[float]) -> Values:
    """Drop samples that could not be scraped, and start over where the server restarted."""
    restart = 60 * MINUTE
    anew = [value - values[restart] if at >= restart else value for at, value in enumerate(values)]
    gone = range(120 * MINUTE, 135 * MINUTE)
    return [None if at in gone else value for at, value in enumerate(unwatched(anew))]


def unwatched(values: list[float]) -> Values:
    """Leave out the time when Prometheus itself was down."""
    down = range(45 * MINUTE, 55 * MINUTE)
    return [None if at in down else value for at, value in enumerate(values)]


def history() -> dict[str, Values]:
    """Return every series: requests by tenant and outcome, a gauge, counters of others."""
    series: dict[str, Values] = {"up": unwatched([1.0] * SAMPLES)}
    for tenant, rate in TENANTS.items():
        for outcome in ("ok", "error"):
            shares = [failing(tenant, at) for at in range(SAMPLES)]
            added = [rate * (share if outcome == "error" else 1 - share) for share in shares]
            labels = {"model": "llama", "outcome": outcome, "tenant": tenant}
            series[str(vector("llm_tenant_requests_total", labels))] = seen(list(accumulate(added)))
    full = [0.95 if failing("acme", at) else 0.5 for at in range(SAMPLES)]
    series['llm_kv_cache_utilization_ratio{model="llama"}'] = unwatched(full)
    bad = [failing("$1", at) for at in range(SAMPLES)]
    series["own_bad_total"] = unwatched(list(accumulate(bad)))
    series["own_total"] = unwatched([float(at) for at in range(SAMPLES)])
    return series


def openmetrics(series: Mapping[str, Values], start: int) -> str:
    lines = []
    for name, values in series.items():
        family = name.partition("{")[0]
        kind = "counter" if family.endswith("_total") else "gauge"
        head = f"# TYPE {family.removesuffix('_total')} {kind}"
        if head not in lines:
            lines.append(head)
        lines += [
            f"{name} {value} {start + at * EVERY}"
            for at, value in enumerate(values)
            if value is not None
        ]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def start() -> int:
    return int(time.time() - SAMPLES * EVERY) // 60 * 60 - 300


@pytest.fixture(scope="module")
def url(prometheus_with: Callable[..., Prometheus], start: int) -> Iterator[str]:
    text, arguments = openmetrics(history(), start), ["--query.max-samples=1000"]
    with prometheus_with(text, arguments) as server:
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


def backtested(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run(*arguments, "--days", "1", "--json") == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # no progress without a terminal
    # A history that is read in other parts is summed up in another order.
    found: list[dict[str, Any]] = json.loads(
        printed.out, parse_float=lambda text: float(f"{float(text):.12g}")
    )
    return found


def within_a_minute(
    capsys: pytest.CaptureFixture[str], *runs: tuple[str, ...]
) -> list[list[dict[str, Any]]]:
    """Backtest the same history again: it ends now, and another minute may begin in between."""
    while True:
        found = [backtested(capsys, *arguments) for arguments in runs]
        if len({one[0]["end"] for one in found}) == 1:
            return found


def checks(backtests: list[dict[str, Any]], start: int) -> Iterator[dict[str, object]]:
    """Yield what fires every minute, unless something may just be changing."""
    fired = [(one, firing) for one in backtests for firing in one["fired"]]
    edges = {at for _, firing in fired for at in (firing["start"], firing["end"])} - {None}
    for at in range(start + 600, start + SAMPLES * EVERY, 60):
        if any(abs(at - edge) <= 120 for edge in edges):
            continue
        firing_now = [
            {
                "alertname": firing["alert"],
                "slo": one["objective"],
                "severity": {"page": "critical", "ticket": "warning"}[firing["tier"]],
                **one["group"],
                "window": firing["window"] or "",
                "step": firing["policy_step"] or "",
            }
            for one, firing in fired
            if firing["start"] <= at and (firing["end"] is None or at < firing["end"])
        ]
        yield {
            "expr": "count by (alertname, slo, severity, tenant, window, step) "
            '(ALERTS{alertstate="firing"})',
            "eval_time": f"{at - start}s",
            "exp_samples": [
                {"labels": selector_text("", filter(_reported, equal(labels))), "value": 1}
                for labels in firing_now
            ],
        }


def _reported(label: Matcher) -> bool:
    return label.value != ""


def test_backtest_fires_the_alerts_that_the_rules_fire(
    url: str,
    slo: str,
    start: int,
    promtool: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = backtested(capsys, slo, "--prometheus", url)
    (service,) = load_file(slo).services
    for name, text in alerts.files(plan(service), source="slo.yaml", version="1").items():
        (tmp_path / Path(name).name).write_text(text)
    reported = list(checks(found, start))
    assert len(reported) > 30
    assert {firing["alert"].removeprefix("Chat") for one in found for firing in one["fired"]} >= {
        "TenantsErrorBudgetBurn",
        "TenantsErrorBudgetPolicy",
        "TenantsErrorBudgetExhausted",
        "TenantsMetricAbsent",
        "HeadroomErrorBudgetBurn",
        "OwnErrorBudgetBurn",
    }
    scenario = {
        "rule_files": ["chat.rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": f"{EVERY}s",
                "input_series": [
                    {"series": name, "values": " ".join("_" if v is None else str(v) for v in of)}
                    for name, of in history().items()
                ],
                "promql_expr_test": reported,
            }
        ],
    }
    (tmp_path / "scenario.yaml").write_text(libyaml.dump(scenario))
    command = [promtool, "test", "rules", "scenario.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_omitted_groups_are_counted(url: str, slo: str, capsys: pytest.CaptureFixture[str]) -> None:
    everything = (slo, "--prometheus", url)
    arguments = (*everything, "--groups", "2")
    every, some = within_a_minute(capsys, everything, arguments)
    reported = [one for one in some if one["objective"] == "tenants"]
    assert [(one["group"], one["groups"]) for one in reported] == [
        ({}, 4),
        ({"tenant": "$1"}, None),  # the worst, by bad events that no other tenant had
        ({"tenant": "acme"}, None),
    ]
    assert all(one in every for one in reported)
    assert reported[0]["total_events"] == pytest.approx(
        sum(one["total_events"] for one in every if one["group"])
    )
    assert run(*arguments, "--days", "1") == 0
    text = capsys.readouterr().out
    assert "4 groups, of which those below spent most of their budget" in text
    assert '\nchat tenants, tenant="$1"\n' in text
    assert "page    ChatTenantsErrorBudgetBurn (1h window) for " in text
    assert "ticket  ChatTenantsErrorBudgetPolicy (50% spent) and does still" in text


class Gate(BaseHTTPRequestHandler):
    """Prometheus below a path, for those who may; of whom it gets tired after some questions."""

    url, patience, refused, bodies = "", 10**9, 0, 0

    def do_GET(self) -> None:
        allowed = self.headers["X-Scope-OrgID"] == "team" and self.headers["Authorization"] == (
            "Basic " + base64.b64encode(b"me:p@ss").decode()
        )
        if not (allowed and self.path.startswith("/prom/api/")):
            self.answer(401, b"<html>who are you?</html>")
            return
        type(self).patience -= 1
        if self.patience < 0:
            self.answer(502, b"<html>Bad Gateway</html>")
            return
        length = int(self.headers["Content-Length"] or 0)
        body = self.rfile.read(length) if length else None
        type(self).bodies += length > 0
        upstream_request = Request(self.url + self.path.removeprefix("/prom"), body)  # noqa: S310
        try:
            with urlopen(upstream_request) as response:  # noqa: S310
                self.answer(200, response.read())
        except HTTPError as error:
            type(self).refused += error.code == 422
            with error:
                self.answer(error.code, error.read())

    do_POST = do_GET  # noqa: N815

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gate(url: str) -> Iterator[tuple[type[Gate], str]]:
    handler = type("OneGate", (Gate,), {"url": url})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        yield handler, f"127.0.0.1:{server.server_port}/prom/"
        server.shutdown()


def test_prometheus_behind_path_password_and_header_is_queried(
    url: str,
    gate: tuple[type[Gate], str],
    slo: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    secrets = tmp_path / "headers"
    secrets.write_text("X-Scope-OrgID: team\n\n")
    http = tmp_path / "http.yaml"
    http.write_text("basic_auth: {username: me, password: p@ss}\n")
    place = (f"http://{gate[1]}", "--http-config", str(http))
    direct, found = within_a_minute(
        capsys,
        (slo, "--prometheus", url),
        (slo, "--prometheus", *place, "--header", f"@{secrets}"),
    )
    assert found == direct
    assert gate[0].refused  # after a refusal the client requests fewer samples at once
    assert run(slo, "--prometheus", *place) == 2
    printed = capsys.readouterr()
    assert printed.err == f"tokenslo: http://{gate[1]} answered 401 Unauthorized\n"


def test_long_query_is_sent_in_the_body(gate: tuple[type[Gate], str]) -> None:
    handler, place = gate
    headers = {"X-Scope-OrgID": "team"}
    for terms in (1, 3001):
        sum_ = "+".join("1" * terms)
        assert query(f"http://me:p%40ss@{place}", sum_, headers=headers) == [Sample({}, terms)]
    assert handler.bodies == 1


def test_failure_during_the_backtest_is_one_error(
    gate: tuple[type[Gate], str], slo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler, place = gate
    handler.patience = 5
    http = tmp_path / "http.yaml"
    http.write_text("basic_auth: {username: me, password: p@ss}\n")
    options = ("--header", "X-Scope-OrgID:team", "--http-config", str(http))
    assert run(slo, "--prometheus", f"http://{place}", *options) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "",
        f"tokenslo: http://{place} answered 502 Bad Gateway\n",
    )


def test_progress_is_shown_on_a_terminal_only(url: str, slo: str) -> None:
    program = Path(sys.executable).with_name("tokenslo")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        command = [program, "backtest", slo, "--prometheus", url, "--days", "1", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=True)
        os.close(theirs)
        shown = terminal.read(4096)
    assert b"querying Prometheus" in shown
    assert len(json.loads(done.stdout)) == 7


def test_sloth_file_is_backtested_like_ours(
    url: str, slo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sloth.yaml"
    file.write_text(SLOTH)
    (found,) = backtested(capsys, str(file), "--prometheus", url)
    assert found["total_events"] == pytest.approx(SAMPLES, rel=0.2)
    assert found["bad_events"] / found["total_events"] > 0.01
    assert {firing["tier"] for firing in found["fired"]} == {"page", "ticket"}


def test_missing_history_is_reported(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(NEVER)
    (pace,) = backtested(capsys, str(file), "--prometheus", url)
    assert (pace["tightest_target"], pace["measured_share"]) == (None, 0)
    assert [firing["alert"] for firing in pace["fired"]] == ["OtherPaceMetricAbsent"] * 2
    assert run(str(file), "--prometheus", url) == 0
    assert "nothing was measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--prometheus", "http://127.0.0.1:9"], "cannot reach Prometheus at http://127.0.0.1:9"),
        (["--prometheus", "http://["], "that is no URL"),
        (["--prometheus", "http://x", "--header", "secret"], "is not of the form 'NAME: VALUE'"),
        (["--prometheus", "http://x", "--header", "@/nowhere"], "/nowhere cannot be read"),
    ],
)
def test_unreachable_prometheus_is_one_error(
    slo: str, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(slo, *more) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
