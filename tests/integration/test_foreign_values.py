"""On the same series our rules come to the error ratio of the tools whose files they are made from.

The tools' own expressions are written out here as their documentation gives them.  They are right
where nothing is born, reset or lost in the window, so that is what the series are like.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import alerts
from slos.load import load_file
from slos.model import Service
from slos.plan import plan
from tests import libyaml

# Quiet and busy hours with their own share of errors, in steps of 30 s; an outage of 10 minutes.
SERIES = {
    'http_requests_total{job="shop",code="200"}': "0+30x360 10800+90x600",
    'http_requests_total{job="shop",code="500"}': "0+1x300 300+9x660",
    'http_request_duration_seconds_count{job="shop"}': "0+30x360 10800+90x600",
    'http_request_duration_seconds_bucket{job="shop",le="0.4"}': "0+29x360 10440+80x600",
    'probe_success{target="a"}': "1x300 0+0x19 1x800",
    'probe_success{target="b"}': "1x1200",
}
ERRORS = 'http_requests_total{job="shop",code=~"5.."}'
ALL = 'http_requests_total{job="shop"}'
COUNT = 'http_request_duration_seconds_count{job="shop"}'
FAST = 'http_request_duration_seconds_bucket{job="shop",le="0.4"}'


def slothed(sli: str) -> str:
    return (
        "version: prometheus/v1\nservice: shop\nslos:\n"
        f"  - {{name: slo, objective: 99, sli: {{{sli}}}}}\n"
    )


def pyrras(indicator: str) -> str:
    return (
        "apiVersion: pyrra.dev/v1alpha1\nkind: ServiceLevelObjective\nmetadata: {name: shop}\n"
        f"spec: {{target: 99, window: 30d, indicator: {{{indicator}}}}}\n"
    )


def openslos(good: str, total: str) -> str:
    source = "{{metricSource: {{type: Prometheus, spec: {{query: '{}'}}}}}}"
    return (
        "apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: slo}\nspec:\n  service: shop\n"
        "  budgetingMethod: Occurrences\n  timeWindow: [{duration: 30d, isRolling: true}]\n"
        "  objectives: [{target: 0.99}]\n  indicator:\n    spec:\n      ratioMetric:\n"
        f"        counter: true\n        good: {source.format(good)}\n"
        f"        total: {source.format(total)}\n"
    )


def rated(counter: str, window: str) -> str:
    return f"sum(rate({counter}[{window}]))"


W = "{{.window}}"
CASES = {
    "Sloth, events": (
        slothed(f"events: {{error_query: '{rated(ERRORS, W)}', total_query: '{rated(ALL, W)}'}}"),
        lambda w: f"({rated(ERRORS, w)}) / ({rated(ALL, w)})",
    ),
    "Sloth, latency": (
        slothed(
            f"events: {{error_query: '({rated(COUNT, W)} - {rated(FAST, W)})', "
            f"total_query: '{rated(COUNT, W)}'}}"
        ),
        lambda w: f"({rated(COUNT, w)} - {rated(FAST, w)}) / ({rated(COUNT, w)})",
    ),
    "Sloth, raw quotient": (
        slothed(f"raw: {{error_ratio_query: '{rated(ERRORS, W)} / {rated(ALL, W)}'}}"),
        lambda w: f"{rated(ERRORS, w)} / {rated(ALL, w)}",
    ),
    "Sloth, raw complement": (
        slothed(f"raw: {{error_ratio_query: '1 - ({rated(FAST, W)} / {rated(COUNT, W)})'}}"),
        lambda w: f"1 - ({rated(FAST, w)} / {rated(COUNT, w)})",
    ),
    "OpenSLO, a histogram": (
        openslos(FAST, COUNT),
        lambda w: f"1 - {rated(FAST, w)} / {rated(COUNT, w)}",
    ),
    "Pyrra, ratio": (
        pyrras(f"ratio: {{errors: {{metric: '{ERRORS}'}}, total: {{metric: '{ALL}'}}}}"),
        lambda w: f"{rated(ERRORS, w)} / {rated(ALL, w)}",
    ),
    "Pyrra, latency": (
        pyrras(f"latency: {{success: {{metric: '{FAST}'}}, total: {{metric: '{COUNT}'}}}}"),
        lambda w: f"({rated(COUNT, w)} - {rated(FAST, w)}) / {rated(COUNT, w)}",
    ),
    "Pyrra, gauge": (
        pyrras("bool_gauge: {metric: probe_success}"),
        lambda w: (
            f"(sum(count_over_time(probe_success[{w}])) - sum(sum_over_time(probe_success[{w}]))) "
            f"/ sum(count_over_time(probe_success[{w}]))"
        ),
    ),
}


@pytest.mark.long
def test_error_ratios_equal_those_of_the_tools(promtool: Path, tmp_path: Path) -> None:
    checks = []
    for number, (case, (text, theirs)) in enumerate(CASES.items()):
        called = f"shop{number}"
        path = tmp_path / f"{called}.yaml"
        path.write_text(re.sub(r"(service|name): shop\b", rf"\1: {called}", text))
        (service,) = load_file(path).services
        (tmp_path / f"{called}.rules.yaml").write_text(rates(service))
        ours = f'sum(slo:error_ratio:rate{{w}}{{{{service="{called}"}}}})'
        checks += [
            {
                "expr": f"abs({ours.format(w=window)} / ({theirs(window)}) - 1) < bool 0.01",
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
            for window in ("5m", "30m", "1h", "6h")
            for at in ("2h25m", "4h45m", "7h50m")
            if not case.endswith("gauge") or (window == "6h" and at != "2h25m")
        ]
    test = {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in SERIES.items()],
        "promql_expr_test": checks,
    }
    files = sorted(path.name for path in tmp_path.glob("*.rules.yaml"))
    content = {"rule_files": files, "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yaml").write_text(libyaml.dump(content))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def rates(service: Service) -> str:
    """Return the rules of a service that record events and error ratios, and no others."""
    files = alerts.files(plan(service), source="slo.yaml", version="0.1.0")
    content = libyaml.load(files[f"alerts/{service.service}.rules.yaml"])
    for group in content["groups"]:
        group["rules"] = [
            rule
            for rule in group["rules"]
            if rule.get("record", "").startswith(("slo:total:", "slo:bad:", "slo:error_ratio:"))
        ]
    return libyaml.dump(content)
