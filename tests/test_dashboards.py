"""The set of dashboards: queries, layout, variables, links and Grafana's own model."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from itertools import combinations

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from promql_selectors import selectors, unknown
from service_example import example, objective

import dashboards
from promql.parse import parse
from slos import names
from slos.indicators import INDICATORS
from slos.model import Objective
from slos.own_metrics import OWN_METRICS
from slos.queries import NATIVE_SERIES, SERIES
from slos.signals import SIGNALS, Signal

COUNTERS = (
    {s.metric for s in SIGNALS.values() if s.kind == "counter"}
    | {name for name in SERIES if name.endswith(("_total", "_bucket", "_count", "_sum"))}
    | {*NATIVE_SERIES, "process_cpu_seconds_total"}
)
RATE_SECONDS, RANGE_SECONDS = 420, 21_660  # otherwise unused windows replace Grafana's variables
ABOUT = {"source": "slo.yaml", "version": "0.1.0"}


def built(plan=None, kinds=dashboards.KINDS):
    """Return the dashboards of a plan by kind."""
    return {
        each.kind: each.content
        for each in dashboards.build(plan or example(), **ABOUT, kinds=kinds)
    }


def budget(plan=None):
    return built(plan, (names.ERROR_BUDGET,))[names.ERROR_BUDGET]


def panels_of(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def resolved(expr):
    return expr.replace("$__rate_interval", f"{RATE_SECONDS}s").replace(
        "$__range", f"{RANGE_SECONDS}s"
    )


CLASSES = {"prompt_classes": (512, 4096)}
BOARDS = built(example(**CLASSES))
CHAT = {kind: board for kind, board in BOARDS.items() if kind != "overview"}
EACH_BOARD = pytest.mark.parametrize("kind", BOARDS)


def queries_of(board):
    """Return the resolved queries of a dashboard, with their panels."""
    return [
        (panel, resolved(target["expr"]))
        for panel in panels_of(board)
        for target in panel["targets"]
    ]


def selectors_of(board):
    """Return the selectors of all queries of a dashboard, with a text that names them."""
    return [
        (each, f"{panel['title']}: {expr}")
        for panel, expr in queries_of(board)
        for each in selectors(expr)
    ]


@EACH_BOARD
def test_every_query_parses_and_reads_existing_metrics_and_labels(kind):
    for panel, expr in queries_of(BOARDS[kind]):
        parse(expr, variables=True)
        assert selectors(expr), panel["title"]
        assert unknown(expr) == [], panel["title"]


@EACH_BOARD
def test_counters_are_read_through_rates_over_grafanas_window(kind):
    for each, query in selectors_of(BOARDS[kind]):
        counted = {"rate", "increase"} & {*each.functions}
        assert bool(counted) == (each.metric in COUNTERS), query
        if "rate" in counted:
            assert each.window == RATE_SECONDS, query
        if "increase" in counted:
            assert each.window == RANGE_SECONDS, query


@EACH_BOARD
def test_quantiles_are_of_summed_buckets(kind):
    for each, query in selectors_of(BOARDS[kind]):
        if "histogram_quantile" in each.functions and each.metric not in NATIVE_SERIES:
            assert each.metric.endswith("_bucket"), query
            grouped = [(op, "le" in by) for op, by in each.aggregations]
            assert grouped == [("sum", True)], query


@EACH_BOARD
def test_utilizations_are_neither_added_up_nor_averaged_over_instances(kind):
    for each, query in selectors_of(BOARDS[kind]):
        if each.metric == SIGNALS["kv_utilization"].metric:
            assert {op for op, _ in each.aggregations} == {"max"}, query


@EACH_BOARD
def test_signals_have_the_selector_and_the_variables(kind):
    labels = {"cluster", "namespace", "pod", "instance"}
    for each, query in selectors_of(BOARDS[kind]):
        if each.metric.startswith("llm_"):
            assert labels | {"model", "version"} <= each.labels, query
        if each.metric.startswith(("slo:", "ALERTS")):
            assert {"service", "model"} & each.labels, query
        if each.metric.startswith(("tokenslo_source", "process_", "tokenslo_build")):
            assert each.labels & {*labels, "model"} == labels, query


@EACH_BOARD
def test_no_query_occurs_twice(kind):
    """Within a dashboard; of tables and tiles apart from graphs, which show another period."""
    for instant in (True, False):
        queries = [
            target["expr"]
            for panel in panels_of(BOARDS[kind])
            for target in panel["targets"]
            if target["instant"] == instant and panel["type"] != "table"
        ]
        assert len(queries) == len({*queries})


UNITS = {
    "s": {"s"},
    "tokens": {"short"},
    "B": {"bytes"},
    "ratio": {"percentunit"},
    "": {"short", "cps", "reqps"},
}


def expected_units(each, signal: Signal | None):
    """Return the units that a panel may have whose only operation on a metric is a rate."""
    if signal is None:
        return None
    if signal.kind == "counter":
        return {"cps", "reqps"} if signal.unit == "" else {"short"}
    return UNITS[signal.unit]


@EACH_BOARD
def test_units_are_those_of_the_catalogue(kind):
    by_metric = {signal.metric: signal for signal in SIGNALS.values()}
    for panel, expr in queries_of(BOARDS[kind]):
        if panel["type"] == "table" or "/" in expr:
            continue
        unit = panel["fieldConfig"]["defaults"].get("unit")
        for each in selectors(expr):
            base = re.sub(r"_(bucket|sum|count)$", "", each.metric)
            signal = by_metric.get(base)
            query = f"{panel['title']}: {expr}"
            if panel["type"] == "heatmap":
                assert panel["options"]["yAxis"]["unit"] == "s" == signal.unit, query
            elif signal and signal.kind == "histogram" and "histogram_quantile" in each.functions:
                assert unit in UNITS[signal.unit], query
            elif signal and signal.kind == "histogram":
                assert unit == "cps", query
            elif signal and panel["type"] == "timeseries":
                assert unit in expected_units(each, signal), query
            elif each.metric.endswith("_seconds") and each.metric in OWN_METRICS:
                assert unit == "s", query


@EACH_BOARD
def test_every_panel_has_title_unit_and_data_source(kind):
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels_of(BOARDS[kind]):
        title = panel["title"]
        assert 3 <= len(title) <= 50, title
        assert panel["datasource"] == chosen, title
        assert all(target["datasource"] == chosen for target in panel["targets"]), title
        if panel["type"] in ("timeseries", "table", "stat"):
            assert panel["fieldConfig"]["defaults"]["unit"], title


@EACH_BOARD
def test_every_description_is_one_or_two_short_sentences(kind):
    for panel in panels_of(BOARDS[kind]):
        text = panel["description"]
        assert text.endswith("."), panel["title"]
        assert 1 <= len(re.findall(r"[.](?= |$)", text)) <= 2, panel["title"]
        assert len(text) <= 220, panel["title"]


@EACH_BOARD
def test_a_panel_without_data_says_why(kind):
    for panel in panels_of(BOARDS[kind]):
        text = panel["fieldConfig"]["defaults"]["noValue"]
        signals = any("llm_" in target["expr"] for target in panel["targets"])
        assert text, panel["title"]
        if panel["type"] == "timeseries" and "tenants" not in text:
            assert ('"Not measured here"' in text) == signals, panel["title"]


@EACH_BOARD
def test_the_last_panel_lists_the_unavailable_signals_of_the_dashboard(kind):
    *others, last = panels_of(BOARDS[kind])
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", each.metric)
        for panel in others
        for target in panel["targets"]
        for each in selectors(resolved(target["expr"]))
        if each.metric.startswith("llm_")
    }
    assert last["title"] == "Not measured here"
    [target] = last["targets"]
    if kind == "sidecar":
        assert not shown
        assert "signal=" not in target["expr"], "it lists the signals of all dashboards"
        return
    [matched] = re.findall(r'signal=~"([^"]*)"', target["expr"])
    listed = {SIGNALS[key].metric for key in matched.split("|")}
    companions = {"llm_slo_events_total", "llm_request_failures_total", "llm_tenant_tokens_total"}
    assert listed == shown - companions
    assert "reason" in target["expr"]


@EACH_BOARD
def test_panels_neither_overlap_nor_leave_the_grid(kind):
    def cells(panel):
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        return {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }

    for one, other in combinations(map(cells, BOARDS[kind]["panels"]), 2):
        assert not one & other


@EACH_BOARD
def test_titles_are_not_cut_at_900_pixels(kind):
    """A column is 37.5 pixels wide there, the margins of a panel 48 and a character 7.2."""
    for panel in panels_of(BOARDS[kind]):
        assert len(panel["title"]) <= (37.5 * panel["gridPos"]["w"] - 48) / 7.2, panel["title"]


@EACH_BOARD
def test_the_first_screen_has_at_most_12_panels(kind):
    """The first 25 rows of the grid: 38 pixels each, on a screen of 1,080."""
    assert len([p for p in panels_of(BOARDS[kind]) if p["gridPos"]["y"] < 25]) <= 12


def test_a_panel_keeps_its_id_when_objectives_are_added():
    def ids(board):
        return {panel["id"] for panel in board["panels"]}

    for board in BOARDS.values():
        assert len(ids(board)) == len(board["panels"])
    few = built(example(objective("ttft")))
    for kind, board in few.items():
        if kind != "token-latency":  # the title of a heatmap has the thresholds
            assert ids(board) <= ids(BOARDS[kind])


def test_uids_and_files_are_unique_for_services_whose_names_are_alike():
    plans = [
        replace(example(), service=replace(example().service, service=name))
        for name in ("chat", "chat-engine", "engine", "overview", "x" * 60 + "a", "x" * 60 + "b")
    ]
    every = [each for plan in plans for each in dashboards.build(plan, **ABOUT)]
    own = [each for each in every if each.kind != "overview"]
    assert len({each.path for each in own}) == len({each.content["uid"] for each in own})
    assert len({each.path for each in own}) == len(own)
    assert all(len(each.content["uid"]) <= 40 for each in every)
    assert {each.path for each in every} - {each.path for each in own} == {
        "dashboards/overview.json"
    }


def test_every_slo_file_yields_the_same_overview():
    one = dashboards.files(example(), source="one.yaml", version="1")
    other = dashboards.files(
        example(objective("ttft"), selector={"model": "other"}), source="two.yaml", version="1"
    )
    assert one["dashboards/overview.json"] == other["dashboards/overview.json"]


@EACH_BOARD
def test_variables_select_what_the_selector_leaves_open(kind):
    variables = {v["name"]: v for v in BOARDS[kind]["templating"]["list"]}
    fixed = set() if kind == "overview" else {"model", "namespace"}
    own = {"overview": ["service"]}.get(kind, [])
    more = ["tenant"] if kind == "capacity" else []
    labels = [
        name
        for name in ("cluster", "namespace", "model", "version", "pod", "instance")
        if name not in fixed
    ]
    assert list(variables) == ["datasource", *own, *labels, *more]
    assert variables["datasource"]["query"] == "prometheus"
    for name in labels:
        variable = variables[name]
        parse(re.fullmatch(r"label_values\((.*), \w+\)", variable["query"])[1], variables=True)
        assert variable["query"].startswith("label_values(tokenslo_model_info")
        assert variable["includeAll"]
        assert bool(re.fullmatch(variable["allValue"], "")) == (name != "instance"), (
            "series without the label are shown"
        )
    version = variables["version"]["query"]
    assert ('cluster=~"$cluster"' in version, 'pod=~"$pod"' in version) == (True, False)


@EACH_BOARD
def test_alerts_and_version_changes_are_marked_on_every_graph(kind):
    marks = {a["name"]: a for a in BOARDS[kind]["annotations"]["list"] if "expr" in a}
    assert list(marks) == ["Alerts", "Version changes"]
    for mark in marks.values():
        assert mark["target"]["expr"] == mark["expr"]
        assert unknown(mark["expr"]) == []
    (alerts,) = selectors(marks["Alerts"]["expr"])
    assert (alerts.metric, alerts.labels) == ("ALERTS", {"service", "alertstate"})
    assert " unless " in marks["Version changes"]["expr"]


@EACH_BOARD
def test_links_lead_to_dashboards_of_the_set_and_keep_time_and_variables(kind):
    lists = [link for link in BOARDS[kind]["links"] if link["type"] == "dashboards"]
    reached = set()
    for link in lists:
        assert link["keepTime"]
        assert link["includeVars"]
        reached |= {name for name, b in BOARDS.items() if {*link["tags"]} <= {*b["tags"]}}
    assert reached >= {*BOARDS} - {kind}


@pytest.mark.parametrize("kind", CHAT)
def test_service_dashboards_link_to_the_runbooks(kind):
    [runbooks] = [link for link in CHAT[kind]["links"] if link["type"] == "link"]
    assert runbooks["url"] == "https://runbooks.example.com/chat/README.md"
    [without] = built(example(runbooks="https://r.example/{alert}"), (kind,)).values()
    assert [link for link in without["links"] if link["type"] == "link"] == []


def test_the_overview_links_to_the_error_budget_of_a_service():
    [table] = [p for p in panels_of(BOARDS["overview"]) if p["title"].startswith("Objectives,")]
    [link] = [
        each
        for override in table["fieldConfig"]["overrides"]
        for each in override["properties"]
        if each["id"] == "links"
    ]
    [target] = link["value"]
    tags = re.findall(r"tag=([^&]+)", target["url"].replace("${__data.fields.Service}", "chat"))
    assert [kind for kind, b in BOARDS.items() if {*tags} <= {*b["tags"]}] == [names.ERROR_BUDGET]


def test_every_objective_shows_its_windows_against_the_thresholds_of_its_pairs():
    plan = example(objective("ttft", "0.95"))
    (burn,) = (p for p in budget(plan)["panels"] if p["title"] == "Burn rate by window")
    (planned,) = plan.objectives
    shown = [target["legendFormat"].split(" ")[0] for target in burn["targets"]]
    steps = burn["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert shown == list(planned.windows)
    assert [step["value"] for step in steps] == [
        None,
        *sorted(float(pair.burn_rate) for pair in planned.pairs),
    ]
    assert burn["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"] == "dashed"


@pytest.mark.parametrize("kind", ["overview", names.ERROR_BUDGET])
def test_the_objectives_have_target_budget_burn_and_since_when_they_fail(kind):
    (table,) = (p for p in panels_of(BOARDS[kind]) if p["title"].startswith("Objectives,"))
    titles = table["transformations"][1]["options"]["renameByName"]
    shown = {titles[f"Value #{t['refId']}"]: t["expr"] for t in table["targets"]}
    assert list(shown) == [
        "Target",
        "Budget left",
        "Burn rate, 1h",
        "Spent in",
        "Alerts firing",
        "Firing since",
    ]
    assert names.BUDGET_REMAINING in shown["Budget left"]
    assert "ALERTS_FOR_STATE" in shown["Firing since"]


def test_the_burn_down_shows_the_whole_period():
    [panel] = [p for p in panels_of(budget()) if p["title"].startswith("Burn-down")]
    assert panel["timeFrom"] == "28d"
    assert panel["targets"][0]["expr"].count(names.BUDGET_REMAINING) == 1
    assert "min" not in panel["fieldConfig"]["defaults"], "a budget falls below zero"
    hours = budget(example(window=36 * 3600))
    [panel] = [p for p in panels_of(hours) if p["title"].startswith("Burn-down")]
    assert panel["timeFrom"] == "36h", "Grafana's relative times have one unit"


@pytest.mark.parametrize("indicator", INDICATORS)
def test_every_indicator_shows_its_own_signal(indicator):
    plan = example(objective(indicator))
    board = budget(plan)["panels"]
    start = next(i for i, p in enumerate(board) if p["title"].startswith(objective(indicator).name))
    end = next(i for i, p in enumerate(board) if i > start and p["type"] == "row")
    queries = " ".join(t["expr"] for p in board[start + 1 : end] for t in p["targets"])
    assert SIGNALS[plan.objectives[0].indicator.signals[0]].metric in queries


def test_burn_panels_link_to_the_runbooks_of_their_alerts():
    (burn,) = (
        p
        for p in budget(example(objective("ttft")))["panels"]
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
    for board in built(example(objective("ttft"), runbooks="")).values():
        assert all(panel.get("links", []) == [] for panel in board["panels"])


def test_thresholds_of_objectives_and_clauses_are_lines():
    panels = {p["title"]: p for p in panels_of(BOARDS["token-latency"])}

    def lines(title):
        steps = panels[title]["fieldConfig"]["defaults"]["thresholds"]["steps"]
        return [(step["value"], step["color"]) for step in steps[1:]]

    assert lines("TTFT quantiles") == [(0.8, "red")]
    assert lines("TPOT quantiles") == [(0.06, "orange"), (0.8, "red")]
    assert "TTFT distribution (threshold 800ms)" in panels


def test_the_usual_timeouts_of_gateways_are_marked():
    panels = {p["title"]: p for p in panels_of(BOARDS["streams"])}
    assert panels["Age at disconnect"]["type"] == "heatmap"
    marked = panels["Disconnects at usual time-outs"]["targets"]
    assert [t["legendFormat"] for t in marked] == ["15s", "30s", "1m", "2m", "5m", "10m"]
    assert 'le=~"31(\\\\.0)?"' in marked[1]["expr"]
    assert 'le=~"30(\\\\.0)?"' in marked[1]["expr"]


def test_a_rollout_compares_the_versions_of_every_sli_with_sample_sizes():
    [table] = [p for p in panels_of(BOARDS["rollout"]) if p["type"] == "table"][:1]
    titles = table["transformations"][1]["options"]["renameByName"]
    assert list(titles.values()) == ["Objective", "Version", "Good", "Events"]
    for key in ("ttft", "availability", "goodput", "disconnects"):
        name = objective(key).name
        assert all(f'"slo", "{name}"' in target["expr"] for target in table["targets"])
        titles = [p["title"] for p in panels_of(BOARDS["rollout"])]
        assert {f"{name}: good by version", f"{name}: events by version"} <= {*titles}
    assert {"kv-headroom: used by version", "sequence-headroom: used by version"} <= {*titles}


def test_a_service_of_user_defined_queries_has_no_dashboards_of_signals():
    query = {"bad": "sum(rate(bad_total[{window}]))", "total": "sum(rate(all_total[{window}]))"}
    own = Objective("own", "bad_events", Decimal("0.99"), queries=query)
    boards = built(example(own))
    assert list(boards) == ["overview", names.ERROR_BUDGET]
    board = boards[names.ERROR_BUDGET]
    assert [v["name"] for v in board["templating"]["list"]] == ["datasource"]
    assert "llm_" not in json.dumps(board)
    assert "tokenslo_" not in json.dumps(board)


def test_prompt_classes_have_rows_only_if_the_file_has_them():
    plain = built(example())
    for kind, titles in (
        ("token-latency", {"TTFT p95 by prompt class", "Requests by prompt class"}),
        ("rollout", {"Prompt mix by version", "TTFT p95 by prompt class and version"}),
    ):
        assert titles <= {panel["title"] for panel in panels_of(BOARDS[kind])}
        assert not any("prompt class" in panel["title"].lower() for panel in panels_of(plain[kind]))
    assert "prompt_class" not in json.dumps(plain)
    differing = {kind for kind in BOARDS if BOARDS[kind] != plain[kind]}
    assert differing == {"token-latency", "rollout"}


@EACH_BOARD
def test_dashboards_name_their_source_and_are_not_editable(kind):
    board = BOARDS[kind]
    assert board["editable"] is False
    assert board["timezone"] == "browser"
    source = "SLO files" if kind == "overview" else "slo.yaml"
    assert board["description"].endswith(f"Made by tokenslo 0.1.0 from {source}.")
    assert board["uid"] == ("tokenslo-overview" if kind == "overview" else f"tokenslo-chat-{kind}")


@EACH_BOARD
def test_dashboards_have_the_current_schema(kind):
    assert BOARDS[kind]["schemaVersion"] == 42
    assert BOARDS[kind]["timepicker"] == {}
    for panel in panels_of(BOARDS[kind]):
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        assert panel["type"] in {"timeseries", "stat", "table", "heatmap", "state-timeline"}
        assert "displayMode" not in custom
        assert panel["type"] != "table" or custom["cellOptions"] == {"type": "color-text"}


@EACH_BOARD
def test_grafana_sdk_keeps_every_field(kind):
    """Read and write the dashboard with Grafana's own SDK, and compare."""
    register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(BOARDS[kind])))
    # The SDK models dashboards of every data source; these fields belong to Prometheus's plugin.
    assert set(_lost(BOARDS[kind], again)) == {
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


def test_goodput_panel_shows_the_failing_clauses_of_its_objective():
    panels = budget(example(objective("goodput")))["panels"]
    (clauses,) = (panel for panel in panels if panel["title"] == "Failing clause")
    (target,) = clauses["targets"]
    assert target["expr"].startswith("sum by (result, clause)")
    assert 'objective="chat/goodput",result=~"bad|shed|unknown"' in target["expr"]


def test_a_dashboard_with_many_objectives_shows_the_selected_one():
    objectives = [replace(objective("availability"), name=f"o{n}") for n in range(51)]
    every, many = budget(example(*objectives[:50])), budget(example(*objectives))
    rows = [panel["title"] for panel in every["panels"] if panel["type"] == "row"]
    assert sum(title.startswith("o") for title in rows) == 50
    rows = [panel["title"] for panel in many["panels"] if panel["type"] == "row"]
    assert rows[:2] == ["All objectives", "Objective $slo"]
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


def test_long_service_names_have_distinct_dashboard_uids():
    first, other = (names.dashboard_uid("a" * 40 + end, "engine") for end in "bc")
    assert first != other
    assert len(first) == len(other) == 40
