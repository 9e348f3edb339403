"""Files of `tokenslo lint`: queries found, their lines, and unreadable content."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from promql.lint.linting import lint as lint_files
from promql.lint.located_text import MAX_DEPTH, MAX_NODES, UnreadableFile, parse
from promql.lint.queries import find_queries
from slos.catalogues.named import everything
from tests.lint_files import alert, dashboard, panel, record, rules, run
from tokenslo.commands.lint import lint

BAD = "rate(sum(x_total))"
EVERYTHING = everything()


def places(folder: Path, text: str) -> list[tuple[int, str, str]]:
    found = run(folder, text)
    lines = text.splitlines()
    assert all(each["part"].split()[0] in lines[each["line"] - 1] for each in found)
    return [(each["line"], each["place"], each["path"]) for each in found]


def lint_text(folder: Path, text: str | bytes) -> Result:
    file = folder / "file"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return CliRunner().invoke(lint, [str(file)], standalone_mode=False)


def test_rows_and_panels_in_panels(tmp_path: Path) -> None:
    row = {"type": "row", "title": "Row", "id": 9, "panels": [panel(BAD, title="In a row")]}
    old = {"title": "Old", "rows": [{"panels": [panel("x", BAD, title="In an old row")]}]}
    assert places(tmp_path, dashboard(panel(BAD, title="First"), row)) == [
        (14, 'panel "First" (id 1), target A', "/panels/0/targets/0/expr"),
        (34, 'panel "In a row" (id 1), target A', "/panels/1/panels/0/targets/0/expr"),
    ]
    assert [place for _, place, _ in places(tmp_path, json.dumps(old))] == [
        'panel "In an old row" (id 1), target B'
    ]


def test_annotations_and_variables(tmp_path: Path) -> None:
    more = {
        "annotations": {"list": [{"name": "Restarts", "expr": BAD}]},
        "templating": {
            "list": [
                {"name": "a", "type": "query", "query": f"query_result({BAD})"},
                {"name": "b", "type": "query", "query": {"query": "label_values(x_total, pod)"}},
                {"name": "c", "type": "query", "query": "label_values(vllm:nothing{a=\"b\"}, pod)"},
                {"name": "d", "type": "query", "query": "label_values(pod)"},
                {"name": "e", "type": "custom", "query": "1,2"},
                {"name": "f", "type": "query", "query": "metrics(nv_.*)"},
            ]
        },
    }  # fmt: skip
    found = run(tmp_path, dashboard(**more))
    assert [(each["check"], each["place"]) for each in found] == [
        ("TL015", 'annotation "Restarts"'),
        ("TL015", 'variable "a"'),
        ("TL002", 'variable "c"'),
    ]


def test_the_second_schema_of_dashboards(tmp_path: Path) -> None:
    query = {"kind": "DataQuery", "group": "prometheus", "spec": {"expr": BAD}}
    other = {"kind": "DataQuery", "group": "loki", "spec": {"expr": '{a="b"} |= "c"'}}
    queries = [{"spec": {"refId": "B", "query": each}} for each in (query, other)]
    spec = {"id": 7, "title": "New", "data": {"spec": {"queries": queries}}}
    board = {"kind": "Dashboard", "spec": {"elements": {"panel-7": {"spec": spec}}}}
    assert places(tmp_path, json.dumps(board)) == [
        (
            1,
            'panel "New" (id 7), target B',
            "/spec/elements/panel-7/spec/data/spec/queries/0/spec/query/spec/expr",
        )
    ]


def test_manifests_of_several_documents(tmp_path: Path) -> None:
    group = {"name": "g", "rules": [record(BAD, "a:b")]}
    rule = {"kind": "PrometheusRule", "spec": {"groups": [group]}}
    listed = {"kind": "List", "items": [rule, {"kind": "Service", "spec": {}}]}
    assert places(tmp_path, yaml.safe_dump_all([{"kind": "Namespace"}, rule, listed])) == [
        (8, 'group "g", record a:b', "/1/spec/groups/0/rules/0/expr"),
        (18, 'group "g", record a:b', "/2/items/0/spec/groups/0/rules/0/expr"),
    ]


def test_dashboards_in_manifests(tmp_path: Path) -> None:
    board = dashboard(panel(BAD))
    text = "kind: ConfigMap\ndata:\n  notes.txt: (\n  a/~board.json: |\n"
    text += "".join(f"    {line}\n" for line in board.splitlines())
    (line, place, path) = places(tmp_path, text)[0]
    assert (place, path) == (
        'panel "Panel" (id 1), target A',
        "/data/a~1~0board.json/panels/0/targets/0/expr",
    )
    assert BAD in text.splitlines()[line - 1]
    crd = json.dumps({"kind": "GrafanaDashboard", "spec": {"json": board}})
    assert len(places(tmp_path, crd)) == 1
    wrapped = json.dumps({"dashboard": json.loads(board), "meta": {}})
    assert places(tmp_path, wrapped)[0][2] == "/dashboard/panels/0/targets/0/expr"


def test_lines_inside_of_a_rule(tmp_path: Path) -> None:
    text = """\
# rules
groups:
  - name: g
    rules:
      - alert: Some
        expr: |
          sum(up)
            and
          rate(sum(x_total))
      - record: a:b
        expr: >-
          rate(sum(x_total))
            > 1
      - record: c:d
        expr: rate(sum(x_total))
"""
    assert [line for line, _, _ in places(tmp_path, text)] == [9, 12, 15]


def test_queries_of_other_data_sources_are_skipped(tmp_path: Path) -> None:
    logs = '{app="x"} |= "error"'
    loki = {"type": "loki", "uid": "x"}
    text = dashboard(
        panel(logs, datasource=loki),
        panel(logs, datasource={"uid": "${logs}"}),
        panel(logs, datasource="${DS_LOGS}"),
        panel(BAD, datasource={"uid": "${metrics}"}),
        {**panel(logs), "targets": [{"expr": logs, "datasource": loki}]},
        templating={
            "list": [
                {"name": "logs", "type": "datasource", "query": "loki"},
                {"name": "metrics", "type": "datasource", "query": "prometheus"},
            ]
        },
        __inputs=[{"name": "DS_LOGS", "type": "datasource", "pluginId": "loki"}],
    )
    assert [each["check"] for each in run(tmp_path, text)] == ["TL015"]


def test_queries_of_loki_are_skipped(tmp_path: Path) -> None:
    logs = 'sum(rate({app="x"} |= "error" | json [5m])) > 1'
    result = lint_text(tmp_path, rules(alert(logs), alert(BAD)))
    assert "1 finding" in result.stdout
    assert "alert Some was not checked: it is LogQL, which Loki reads" in result.stdout


def test_queries_that_are_too_large_are_no_findings(tmp_path: Path) -> None:
    for text, why in (
        (" + ".join(["up"] * 300), "has more than 256 parts"),
        (f'up{{a="{"b" * 70_000}"}}', "longer than 64 KiB"),
    ):
        result = lint_text(tmp_path, rules(alert(text)))
        assert why in result.stdout
        assert result.return_value == 0


def test_labels_of_a_group_are_those_of_its_rules(tmp_path: Path) -> None:
    rule = alert('absent(sum(x{job="a"}))', labels={"severity": "page"})
    text = json.dumps({"groups": [{"name": "g", "rules": [rule]}]})
    assert len(run(tmp_path, text)) == 1
    labelled = json.dumps({"groups": [{"name": "g", "labels": {"job": "a"}, "rules": [rule]}]})
    assert run(tmp_path, labelled) == []


def test_rules_of_mimir_and_in_manifests(tmp_path: Path) -> None:
    group = {"name": "g", "rules": [record(BAD, "a:b")]}
    mimir = yaml.safe_dump_all(
        [{"namespace": "one", "groups": [group]}, {"namespace": "two", "groups": [group]}]
    )
    assert [path for _, _, path in places(tmp_path, mimir)] == [
        "/0/groups/0/rules/0/expr",
        "/1/groups/0/rules/0/expr",
    ]
    inside = "".join(f"    {line}\n" for line in yaml.safe_dump({"groups": [group]}).splitlines())
    config = f"kind: ConfigMap\ndata:\n  x.rules: |\n{inside}  y.yaml: |\n{inside}"
    assert len(places(tmp_path, config)) == 2


def test_transformations_and_expressions_are_skipped(tmp_path: Path) -> None:
    computed = {"type": "__expr__", "uid": "__expr__"}
    shown = panel(BAD, transformations=[{"id": "calculateField", "options": {"expr": "("}}])
    shown["targets"].append({"datasource": computed, "expression": "$A / (", "refId": "B"})
    assert len(places(tmp_path, dashboard(shown))) == 1


def test_a_huge_file_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, 50 << 20)
    result = CliRunner().invoke(lint, [str(file)], standalone_mode=False)
    assert result.stderr == f"{file}: is larger than 16 MiB. Fix: split it into several files.\n"
    assert result.return_value == 2


def test_unchecked_content_is_noted(tmp_path: Path) -> None:
    library = {"id": 3, "title": "Shared", "libraryPanel": {"uid": "u", "name": "Shared"}}
    result = lint_text(tmp_path, dashboard(library, panel("sum(x) $operator 5")))
    file = tmp_path / "file"
    assert result.output.splitlines() == [
        f'note: {file}: panel "Shared" (id 3) is a library panel: its queries are kept in Grafana '
        "and were not checked",
        f'note: {file}:22: panel "Panel" (id 1), target A was not checked: its variables hide its '
        "structure (found '$operator', expected an operator or the end)",
        "1 query checked, no findings",
    ]
    assert result.return_value == 0


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("{", 1, "is not valid JSON"),
        ('{"panels": [}', 1, "is not valid JSON"),
        ("a: [", 2, "is not valid YAML"),
        ("{{- if .Values.rules }}\ngroups: []\n{{- end }}\n", 1, "`helm template`"),
        ("a: *b\n", 1, "the alias *b has no value"),
        ("", 0, "is neither a Grafana dashboard nor a file of Prometheus rules"),
        ("# only a comment\n", 0, "is neither"),
        ("rule_files: [a]\ntests: []\n", 0, "is neither"),
        ("- a\n- b\n", 0, "is neither"),
        ('{"a": 1}', 0, "is neither"),
        (b"\xff\n", 1, "is not UTF-8 text"),
        ("a: \x07\n", 1, "the character U+0007 is not allowed in YAML"),
        ("[" * (MAX_DEPTH + 1), 1, f"is nested deeper than {MAX_DEPTH} levels"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, 0, f"is nested deeper than {MAX_DEPTH} levels"),
    ],
)
def test_unreadable_files_are_refused_with_line(
    text: str | bytes, line: int, message: str, tmp_path: Path
) -> None:
    result = lint_text(tmp_path, text)
    place = f"{tmp_path / 'file'}:{line}" if line else str(tmp_path / "file")
    assert result.stderr.startswith(f"{place}: ")
    assert message in result.stderr
    assert ". Fix: " in result.stderr
    assert result.return_value == 2


def test_aliases_cannot_make_a_file_grow() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 8):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n"
    with pytest.raises(UnreadableFile, match=f"more than {MAX_NODES:,} values"):
        parse(text)


def test_missing_file_is_one_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(lint, [str(tmp_path / "none")], standalone_mode=False)
    assert result.stderr == (
        f"{tmp_path / 'none'}: cannot be read: No such file or directory. "
        "Fix: give the path of a file you may read.\n"
    )
    assert result.return_value == 2


@pytest.mark.parametrize("format_", ["text", "json", "sarif"])
def test_control_characters_of_a_file_are_escaped(format_: str, tmp_path: Path) -> None:
    odd = "\x1b[31m\ud800\u202e"
    label = f'rate(sum(x_total{{a="{odd}"}}))'
    text = dashboard(panel(label, "(" + odd, title=odd, refId=odd))
    name = tmp_path / "\x1b[31m.json"
    name.write_text(text)
    result = CliRunner().invoke(lint, [str(name), "--format", format_], standalone_mode=False)
    assert result.return_value == 1
    assert result.stdout.replace("\n", "").isprintable()


TEXTS = st.sampled_from(
    ["", "x", BAD, "$x", "(" * 300, "a" * 200, "\x00", "ü", "up[5m]", "label_values(x, y)", "row"]
)
KEYS = st.sampled_from(
    ["annotations", "dashboard", "data", "datasource", "elements", "expr", "fieldConfig", "groups",
     "id", "items", "json", "kind", "labels", "libraryPanel", "list", "name", "overrides", "panels",
     "query", "rows", "rules", "spec", "targets", "templating", "title", "triggers", "type", "uid",
     "unit", "variables", "x.json"]
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_value_anywhere_is_read_or_refused(tmp_path: Path, value: dict[str, Any]) -> None:
    file = tmp_path / "file"
    for text in (json.dumps(value), yaml.safe_dump(value)):
        file.write_text(text)
        report = lint_files([str(file)], EVERYTHING)
        assert all(each.line >= 1 and each.part.isprintable() for each in report.findings)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.text(max_size=60) | st.text("{}[]:,-&*|>'\"!%@# \nab1", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    line = 0
    try:
        find_queries("file", parse(text))
    except UnreadableFile as problem:
        line = problem.line
    assert 0 <= line <= text.count("\n") + 2


@pytest.mark.parametrize("operator", ["/", "-", " or ", " unless ", " > "])
@pytest.mark.parametrize("operand", ["x_total", "rate(x_total[5m])", "vllm:kv_cache_usage_perc"])
def test_the_longest_queries_are_checked_in_bounded_time(
    operator: str, operand: str, tmp_path: Path
) -> None:
    start = time.process_time()
    run(tmp_path, rules(alert(operator.join([operand] * 100))))
    assert time.process_time() - start < 2
