"""The rules of github.com/grafana/dashboard-linter, on the generated dashboards.

``tests/dashboard_linter.yaml`` excludes rules, with reasons, for the linter and for this file.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafanalib import formatunits
from service_example import example

import dashboards
from promql.parse import parse
from promql.tree import Call, Vector, walk

CONFIG = Path(__file__).with_name("dashboard_linter.yaml")
EXCLUDED = yaml.safe_load(CONFIG.read_text())
LINTER = shutil.which("dashboard-linter") or ""
DATASOURCES = {"$datasource", "${datasource}"}
NUMERIC = ("stat", "singlestat", "graph", "table", "timeseries", "gauge")
QUERIED = ("singlestat", "gauge", "table", "stat", "state-timeline", "timeseries")
UNITS = {value for name, value in vars(formatunits).items() if name.isupper()}
WINDOW = "7m"

Json = Any
BOARDS: dict[str, Json] = {
    each.kind: each.content for each in dashboards.build(example(), source="a", version="1")
}


def panels(board: Json) -> Iterator[Json]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


def queries(board: Json, *types: str) -> Iterator[str]:
    for panel in panels(board):
        if not types or panel["type"] in types:
            for target in panel["targets"]:
                yield target["expr"].replace("$__rate_interval", WINDOW).replace("$__range", "1h")


def variables(board: Json, type_: str) -> list[Json]:
    return [each for each in board["templating"]["list"] if each["type"] == type_]


def template_datasource(board: Json) -> Iterator[str]:
    [source] = variables(board, "datasource")
    if (source["name"], source["label"]) != ("datasource", "Data source"):
        yield str(source)


def template_instance(board: Json) -> Iterator[str]:
    [instance] = [each for each in variables(board, "query") if each["name"] == "instance"]
    if (instance["label"], instance["multi"], instance["allValue"]) != ("Instance", True, ".+"):
        yield str(instance)
    if instance["datasource"]["uid"] not in DATASOURCES:
        yield str(instance["datasource"])


def template_label_promql(board: Json) -> Iterator[str]:
    for each in variables(board, "query"):
        found = re.search(r"([a-z_]+)\((.+)\)", each["query"])
        if not found or found[1] not in (
            "label_names",
            "label_values",
            "metrics",
            "query_result",
        ):
            yield each["query"]


def template_on_time_change_reload(board: Json) -> Iterator[str]:
    return (each["name"] for each in variables(board, "query") if each["refresh"] != 2)


def panel_datasource(board: Json) -> Iterator[str]:
    return (each["title"] for each in panels(board) if each["datasource"]["uid"] not in DATASOURCES)


def panel_title_description(board: Json) -> Iterator[str]:
    return (each["title"] for each in panels(board) if not (each["title"] and each["description"]))


def panel_units(board: Json) -> Iterator[str]:
    for panel in panels(board):
        defaults = panel["fieldConfig"]["defaults"]
        if panel["type"] in NUMERIC and defaults.get("unit") not in UNITS:
            yield panel["title"]


def panel_no_targets(board: Json) -> Iterator[str]:
    return (each["title"] for each in panels(board) if not each["targets"])


def target_promql(board: Json) -> Iterator[str]:
    for expr in queries(board):
        parse(expr, variables=True)
        if not expr:
            yield "empty"


def ranges(board: Json, *types: str) -> Iterator[tuple[Vector, str]]:
    """Yield every selector with the function that it is the argument of, if any."""
    for expr in queries(board, *types):
        for node, around in walk(parse(expr, variables=True)):
            if isinstance(node, Vector):
                inside = around[-1] if around else None
                yield node, inside.function if isinstance(inside, Call) else ""


def target_rate_interval(board: Json) -> Iterator[str]:
    for selector, function in ranges(board, *QUERIED):
        if function in ("rate", "irate") and selector.window != WINDOW:
            yield str(selector)


def target_counter_agg(board: Json) -> Iterator[str]:
    for selector, function in ranges(board):
        if selector.metric.endswith("_total") and function not in ("rate", "irate", "increase"):
            yield str(selector)


def uneditable(board: Json) -> Iterator[str]:
    if board["editable"]:
        yield "editable"


RULES: dict[str, Callable[[Json], Iterator[str]]] = {
    "template-datasource-rule": template_datasource,
    "template-instance-rule": template_instance,
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-promql-rule": target_promql,
    "target-rate-interval-rule": target_rate_interval,
    "target-counter-agg-rule": target_counter_agg,
    "uneditable-dashboard": uneditable,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", BOARDS)
def test_no_rule_finds_anything(kind: str, rule: str) -> None:
    assert list(RULES[rule](BOARDS[kind])) == []


@pytest.mark.skipif(not LINTER, reason="dashboard-linter is not installed: go install it")
@pytest.mark.parametrize("kind", BOARDS)
def test_the_linter_itself_finds_nothing(kind: str) -> None:
    done = subprocess.run(
        (LINTER, "lint", "--strict", "--stdin", "--config", CONFIG),
        input=json.dumps(BOARDS[kind]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_every_other_rule_is_excluded_with_a_reason() -> None:
    loki = {"target-logql-rule", "target-logql-auto-rule"}
    prometheus = {"template-job-rule", "target-job-rule", "target-instance-rule"}
    assert {*EXCLUDED["exclusions"]} == prometheus
    assert not ({*RULES} & (prometheus | loki))
    assert all(each["reason"] for each in EXCLUDED["exclusions"].values())
