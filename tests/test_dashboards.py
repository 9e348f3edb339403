"""The generated dashboard: its queries, panels and compatibility with Grafana."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from promql_selectors import selectors, unknown
from service_example import example, objective

import dashboards
from slos import names
from slos.indicators import INDICATORS
from slos.queries import SERIES
from slos.signals import SIGNALS

COUNTERS = {s.metric for s in SIGNALS.values() if s.kind == "counter"} | {
    name for name in SERIES if name.endswith(("_total", "_bucket", "_count", "_sum"))
}
RATE_SECONDS = 420  # an otherwise unused window stands for $__rate_interval


def dashboard(plan=None):
    files = dashboards.files(plan or example(), source="slo.yaml", version="0.1.0")
    ((path, text),) = files.items()
    assert path == "dashboards/chat-error-budget.json"
    return json.loads(text)


BOARD = dashboard()
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    pytest.param(panel, target["expr"].replace("$__rate_interval", f"{RATE_SECONDS}s"),
                 id=f"{panel['title']} {target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]  # fmt: skip


@pytest.mark.parametrize(("panel", "expr"), QUERIES)
def test_every_query_reads_existing_metrics_and_labels(panel, expr):
    assert selectors(expr)
    assert unknown(expr) == []


@pytest.mark.parametrize(("panel", "expr"), QUERIES)
def test_counters_are_read_by_rates_and_rates_are_of_counters(panel, expr):
    for each in selectors(expr):
        rated = each.functions[-1:] == ["rate"]
        assert rated == (each.metric in COUNTERS)
        assert (each.window == RATE_SECONDS) == rated, "the window is Grafana's, never ours"


@pytest.mark.parametrize(("panel", "expr"), QUERIES)
def test_quantiles_are_of_summed_buckets(panel, expr):
    for each in selectors(expr):
        if "histogram_quantile" in each.functions:
            assert each.metric.endswith("_bucket")
            assert each.aggregations == [("sum", ["le"])]


@pytest.mark.parametrize(("panel", "expr"), QUERIES)
def test_utilizations_are_neither_added_up_nor_averaged_over_instances(panel, expr):
    for each in selectors(expr):
        if each.metric == SIGNALS["kv_utilization"].metric:
            assert each.aggregations == [("max", ["instance"])]


@pytest.mark.parametrize(("panel", "expr"), QUERIES)
def test_engine_signals_have_the_selector_and_the_variables(panel, expr):
    for each in selectors(expr):
        if each.metric.startswith("llm_"):
            assert {"model", "namespace", "version", "instance"} <= each.labels
        if each.metric.startswith("slo:"):
            assert "service" in each.labels
        if each.metric.startswith("tokenslo_source"):
            assert each.labels & {"namespace", "model"} == {"namespace"}


def test_every_objective_shows_its_windows_against_the_thresholds_of_its_pairs():
    plan = example(objective("ttft", "0.95"))
    (burn,) = (p for p in dashboard(plan)["panels"] if p["title"] == "Burn rate by window")
    (planned,) = plan.objectives
    shown = [target["legendFormat"].split(":")[0] for target in burn["targets"]]
    steps = burn["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert shown == list(planned.windows)
    assert [step["value"] for step in steps] == [
        None,
        *sorted(float(pair.burn_rate) for pair in planned.pairs),
    ]
    assert burn["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"] == "dashed"


def test_the_overview_has_a_column_for_target_budget_ratio_and_burn():
    (table,) = (p for p in PANELS if p["title"].startswith("Objectives"))
    titles = table["transformations"][1]["options"]["renameByName"]
    shown = {titles[f"Value #{t['refId']}"]: t["expr"] for t in table["targets"]}
    assert list(shown) == [
        "Target",
        "Budget left",
        "Bad over 28d",
        "Burn rate, 5m",
        "Events per second",
        "Alerts firing",
    ]
    assert names.BUDGET_REMAINING in shown["Budget left"]
    assert names.PERIOD_ERROR_RATIO in shown["Bad over 28d"]


@pytest.mark.parametrize("indicator", INDICATORS)
def test_every_indicator_shows_its_own_signal(indicator):
    plan = example(objective(indicator))
    board = dashboard(plan)["panels"]
    start = next(i for i, p in enumerate(board) if p["title"].startswith(objective(indicator).name))
    end = next(i for i, p in enumerate(board) if i > start and p["type"] == "row")
    queries = " ".join(t["expr"] for p in board[start + 1 : end] for t in p["targets"])
    assert SIGNALS[plan.objectives[0].indicator.signals[0]].metric in queries


def test_burn_panels_link_to_the_runbooks_of_their_alerts():
    (burn,) = (
        p
        for p in dashboard(example(objective("ttft")))["panels"]
        if p["title"] == "Burn rate by window"
    )
    assert [link["url"] for link in burn["links"]] == [
        f"https://runbooks.example.com/chat/ChatTtft{kind}.md"
        for kind in (
            "ErrorBudgetBurn",
            "LowTrafficErrors",
            "ErrorBudgetExhausted",
            "MetricAbsent",
        )
    ]


def test_without_a_runbook_url_panels_have_no_links():
    board = dashboard(example(objective("ttft"), runbooks=""))
    assert all(panel.get("links", []) == [] for panel in board["panels"])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_has_a_description_a_unit_and_the_chosen_data_source(panel):
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["datasource"] == chosen
    assert [target["datasource"] for target in panel["targets"]] == [chosen] * len(panel["targets"])
    if panel["type"] in ("timeseries", "table"):
        assert panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "heatmap":
        assert panel["options"]["yAxis"]["unit"] == "s"


def test_panels_neither_overlap_nor_leave_the_grid():
    def cells(panel):
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        return {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }

    for one, other in combinations(map(cells, BOARD["panels"]), 2):
        assert not one & other


def test_a_panel_keeps_its_id_when_objectives_are_added():
    def ids(board):
        return {panel["id"] for panel in board["panels"]}

    assert len(ids(BOARD)) == len(BOARD["panels"])
    assert ids(dashboard(example(objective("ttft")))) < ids(BOARD)


def test_the_reader_chooses_data_source_version_and_instance():
    variables = {v["name"]: v for v in BOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "version", "instance"]
    assert variables["datasource"]["query"] == "prometheus"
    for name in ("version", "instance"):
        query = variables[name]["query"]
        assert (
            query == f'label_values(tokenslo_model_info{{model="llama",namespace="prod"}}, {name})'
        )
        assert variables[name]["includeAll"]
        assert re.fullmatch(variables[name]["allValue"], ""), "series without the label are shown"


def test_firing_alerts_are_marked_on_every_graph():
    (mark,) = (a for a in BOARD["annotations"]["list"] if "expr" in a)
    (selector,) = selectors(mark["expr"])
    assert (selector.metric, selector.labels) == ("ALERTS", {"service", "alertstate"})
    assert mark["target"]["expr"] == mark["expr"]


def test_the_dashboard_names_its_source_and_is_not_editable():
    assert BOARD["uid"] == "tokenslo-chat-error-budget"
    assert BOARD["description"] == "Made by tokenslo 0.1.0 from slo.yaml."
    assert BOARD["editable"] is False
    assert BOARD["timezone"] == "browser"


def test_the_dashboard_has_the_current_schema():
    assert BOARD["schemaVersion"] == 42
    assert BOARD["timepicker"] == {}
    for panel in PANELS:
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        assert "displayMode" not in custom
        assert panel["type"] != "table" or custom["cellOptions"] == {"type": "color-text"}


def test_long_service_names_have_distinct_dashboard_uids():
    first, other = (names.dashboard_uid("a" * 40 + end, "engine") for end in "bc")
    assert first != other
    assert len(first) == len(other) == 40


def test_grafana_sdk_keeps_every_field():
    """Read and write the dashboard with Grafana's own SDK, and compare."""
    register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(BOARD)))
    # The SDK models dashboards of every data source; these fields belong to Prometheus's plugin.
    assert set(_lost(BOARD, again)) == {
        "/annotations/list/target/expr",
        "/annotations/list/target/refId",
        "/annotations/list/textFormat",
        "/annotations/list/titleFormat",
        "/templating/list/definition",
    }


def _lost(before, after, path=""):
    if isinstance(before, dict):
        for key, value in before.items():
            where = f"{path}/{key}"
            yield from _lost(value, after[key], where) if key in after else [where]
    elif isinstance(before, list):
        assert len(before) == len(after)
        for one, other in zip(before, after, strict=True):
            yield from _lost(one, other, path)
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


NEED_A_TAP = {
    SIGNALS[key].metric
    for key in (
        "streams",
        "live_streams",
        "disconnects",
        "disconnect_age",
        "disconnect_release",
        "wasted_tokens",
        "partial_tokens",
        "suspected_retries",
        "client_backpressure",
    )
}


def test_stream_panels_show_all_tap_signals_and_name_the_flag():
    shown = set()
    start = next(i for i, p in enumerate(BOARD["panels"]) if p["title"].startswith("Streams:"))
    end = next(i for i, p in enumerate(BOARD["panels"]) if p["title"].startswith("Saturation:"))
    for panel in BOARD["panels"][start:end]:
        metrics = {
            each.metric.removesuffix("_bucket")
            for target in panel.get("targets", [])
            for each in selectors(target["expr"].replace("$__rate_interval", "420s"))
        }
        shown |= metrics
        assert not metrics or "--tap" in panel["description"]
    assert shown == NEED_A_TAP | {SIGNALS["goodput"].metric}


def test_goodput_panel_shows_the_failing_clauses_of_its_objective():
    panels = dashboard(example(objective("goodput")))["panels"]
    (clauses,) = (panel for panel in panels if panel["title"] == "Failing clause")
    (target,) = clauses["targets"]
    assert target["expr"].startswith("sum by (result, clause)")
    assert 'objective="chat/goodput",result=~"bad|unknown"' in target["expr"]


def test_a_dashboard_with_many_objectives_shows_the_selected_one():
    objectives = [replace(objective("availability"), name=f"o{n}") for n in range(51)]
    every, many = dashboard(example(*objectives[:50])), dashboard(example(*objectives))
    rows = [panel["title"] for panel in every["panels"] if panel["type"] == "row"]
    assert sum(title.startswith("o") for title in rows) == 50
    rows = [panel["title"] for panel in many["panels"] if panel["type"] == "row"]
    assert rows[:2] == ["Objectives", "Objective $slo"]
    assert not [title for title in rows if title.startswith("o")]
    [chosen] = [each for each in many["templating"]["list"] if each["name"] == "slo"]
    assert (chosen["multi"], chosen["includeAll"]) == (False, False)
    assert chosen["query"] == 'label_values(slo:error_budget_remaining:ratio{service="chat"}, slo)'
    selected = [
        target["expr"]
        for panel in many["panels"]
        for target in panel.get("targets", ())
        if "$slo" in target["expr"]
    ]
    (planned, *_) = example(*objectives).objectives
    assert len(selected) == len(planned.windows) + 1
    for expr in selected:
        assert all(each.metric.startswith("slo:") for each in selectors(expr))
        assert all("slo" in each.labels for each in selectors(expr))
    assert len(json.dumps(many)) < len(json.dumps(every)) / 2
