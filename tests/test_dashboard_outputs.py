"""The formats of dashboards, and the options that change them, through ``tokenslo generate``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboardv2beta1

import dashboards
from tests import libyaml
from tests.kubernetes_objects import schema_errors
from tokenslo.cli import main

SLO = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama}
dashboards: https://grafana.example.com
objectives:
  - {name: first-token, indicator: ttft, threshold: 800ms, target: 95%}
  - {name: headroom, indicator: kv_headroom, threshold: 90%, target: 99%}
"""
EVERY = ",".join(dashboards.FORMATS)
STRING_QUERY = "__legacyStringValue"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("chat.yaml").write_text(SLO)
    return tmp_path


def run(*arguments: str, only: str = "dashboards") -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["generate", "chat.yaml", "-o", "out", "-q", "--only", only, *arguments])
    return int(str(stopped.value.code))


def written(pattern: str, *arguments: str) -> dict[str, str]:
    """Return the files that generation with these arguments writes, by path."""
    assert run(*arguments) == 0
    return {
        str(path.relative_to("out")): path.read_text() for path in sorted(Path("out").glob(pattern))
    }


def contents(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in written("dashboards/*.json", *arguments).values()]


def test_every_format_holds_the_same_dashboards() -> None:
    plain = written("dashboards/*.json", "--dashboard-format", EVERY)
    assert len(plain) == len(dashboards.KINDS)
    by_name = {Path(path).name: json.loads(text) for path, text in plain.items()}
    provisioned = written("provisioning/dashboards/tokenslo/*.json", "--dashboard-format", EVERY)
    assert {Path(path).name: json.loads(text) for path, text in provisioned.items()} == by_name
    maps = written("dashboards/*.configmap.yaml", "--dashboard-format", EVERY)
    held = {
        name: json.loads(text)
        for each in maps.values()
        for name, text in libyaml.load(each)["data"].items()
    }
    assert held == by_name
    resources = written("dashboards/*.grafanadashboard.yaml", "--dashboard-format", EVERY)
    assert sorted(
        json.loads(libyaml.load(each)["spec"]["json"])["uid"] for each in resources.values()
    ) == sorted(content["uid"] for content in by_name.values())
    v2 = written("dashboards-v2/*.json", "--dashboard-format", EVERY)
    assert {
        name: json.loads(text)["metadata"]["name"]
        for name, text in ((Path(path).name, text) for path, text in v2.items())
    } == {name: content["uid"] for name, content in by_name.items()}


def test_only_the_requested_formats_are_written() -> None:
    assert set(written("**/*.*", "--dashboard-format", "configmap")) == {
        f"dashboards/{Path(path).stem}.configmap.yaml" for path in paths()
    }


def paths() -> Iterator[str]:
    """Yield the paths of the dashboards: the overview is of all services."""
    for kind in dashboards.KINDS:
        yield f"dashboards/{kind}.json" if kind == "overview" else f"dashboards/chat-{kind}.json"


def test_config_maps_have_the_label_and_folder_that_grafanas_sidecar_reads() -> None:
    options = ("--dashboard-folder", "LLM SLOs", "--namespace", "monitoring", "--label", "a=b")
    maps = written("dashboards/*.configmap.yaml", "--dashboard-format", "configmap", *options)
    for path, text in maps.items():
        body = libyaml.load(text)
        assert (body["apiVersion"], body["kind"]) == ("v1", "ConfigMap")
        assert body["metadata"] == {
            "name": f"tokenslo-{Path(path).name.removesuffix('.configmap.yaml')}",
            "namespace": "monitoring",
            "labels": {"a": "b", "grafana_dashboard": "1"},
            "annotations": {"grafana_folder": "LLM SLOs"},
        }
        assert len(text.encode()) < 1 << 20


def operator_resources(*options: str) -> list[dict[str, Any]]:
    made = written("dashboards/*.yaml", "--dashboard-format", "operator", *options)
    return [libyaml.load(text) for text in made.values()]


@pytest.mark.parametrize(
    "options", [(), ("--dashboard-folder", "LLM SLOs", "--namespace", "monitoring")]
)
def test_resources_of_the_operator_are_valid_by_its_strict_schema(options: tuple[str, ...]) -> None:
    bodies = operator_resources(*options)
    assert len(bodies) == len(dashboards.KINDS)
    for body in bodies:
        assert list(schema_errors(body, "")) == []
        assert body["apiVersion"] == "grafana.integreatly.org/v1beta1"
        assert body["spec"]["instanceSelector"] == {"matchLabels": {"dashboards": "grafana"}}
        assert body["spec"].get("folder") == ("LLM SLOs" if options else None)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"instanceselector": {}}, "$.spec: Additional properties are not allowed"),
        ({"instanceSelector": "grafana"}, "$.spec.instanceSelector: 'grafana' is not of type"),
        ({"json": {}}, "$.spec.json: {} is not of type 'string'"),
    ],
)
def test_the_schema_of_the_operator_refuses_other_fields_and_types(
    change: dict[str, Any], problem: str
) -> None:
    body, *_ = operator_resources()
    [found] = schema_errors({**body, "spec": {**body["spec"], **change}}, "")
    assert problem in found


def test_the_provisioning_folder_has_provider_and_data_source_but_no_contact_points() -> None:
    options = ("--dashboard-folder", "LLM SLOs", "--dashboard-datasource-uid", "prom-1")
    made = written("provisioning/**/*.yaml", "--dashboard-format", "provisioning", *options)
    assert set(made) == {
        "provisioning/dashboards/tokenslo.yaml",
        "provisioning/datasources/tokenslo.yaml",
    }
    (provider,) = libyaml.load(made["provisioning/dashboards/tokenslo.yaml"])["providers"]
    assert (provider["type"], provider["folder"]) == ("file", "LLM SLOs")
    mounted = provider["options"]["path"].removeprefix("/etc/grafana/")
    assert Path("out", mounted).is_dir()
    (source,) = libyaml.load(made["provisioning/datasources/tokenslo.yaml"])["datasources"]
    assert (source["type"], source["uid"]) == ("prometheus", "prom-1")


def test_the_data_source_is_selected_and_others_can_be_chosen() -> None:
    for content in contents("--dashboard-datasource-uid", "prom-1"):
        (variable,) = (v for v in content["templating"]["list"] if v["type"] == "datasource")
        assert variable["current"]["value"] == "prom-1"
        assert variable["query"] == "prometheus"


TEAM = ("--dashboard-tag", "team-a")


def test_tags_are_added_once() -> None:
    plain, tagged = (contents(*tags) for tags in ((), ("--dashboard-tag", "llm", *TEAM)))
    for one, other in zip(plain, tagged, strict=True):
        assert "llm" in one["tags"]
        assert other["tags"] == [*one["tags"], "team-a"]


def test_the_uid_prefix_is_in_uids_and_links() -> None:
    assert run("--dashboard-uid-prefix", "a-", only="alerts,dashboards") == 0
    own = {json.loads(path.read_text())["uid"] for path in Path("out/dashboards").glob("*.json")}
    assert own == {f"a-{Path(path).stem}" for path in paths()}
    assert "grafana.example.com/d/a-chat-" in Path("out/alerts/chat.rules.yaml").read_text()
    everything = "".join(path.read_text() for path in Path("out").rglob("*.*"))
    assert "/d/tokenslo-" not in everything


def test_uids_and_panel_ids_are_stable_and_unique() -> None:
    first, again = contents(), contents("--dashboard-tag", "other")
    for one, other in zip(first, again, strict=True):
        assert one["uid"] == other["uid"]
        ids = [panel["id"] for panel in all_panels(one)]
        assert ids == [panel["id"] for panel in all_panels(other)]
        assert len(ids) == len(set(ids))
    assert len({content["uid"] for content in first}) == len(first)


def all_panels(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in content["panels"]:
        yield panel
        yield from panel.get("panels", ())


def test_dashboards_are_chosen_by_name() -> None:
    kind = dashboards.KINDS[-1]
    assert len(contents("--dashboards", kind)) == 1


# The v2 schema


def plain(value: Any) -> Any:
    """Convert the SDK's objects to JSON; it has some texts as sets of one."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set):
        (value,) = value
    if hasattr(value, "to_json"):
        return plain(value.to_json())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def lost(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Yield what of ``ours`` is not in ``theirs``."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from lost(value, theirs.get(key), f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(one, other, f"{where}[{index}]")
    elif ours != theirs and not (ours in ({}, []) and theirs is None):
        yield f"{where}: {ours!r} became {theirs!r}"


def test_grafanas_sdk_reads_the_v2_schema_without_loss() -> None:
    register_default_plugins()
    for text in written("dashboards-v2/*.json", "--dashboard-format", "v2").values():
        resource = json.loads(text)
        assert resource["apiVersion"] == "dashboard.grafana.app/v2beta1"
        read = plain(dashboardv2beta1.Dashboard.from_json(resource["spec"]))
        # The SDK takes the query of a variable for one of a panel, which has no such key.
        found = [each for each in lost(resource["spec"], read) if STRING_QUERY not in each]
        assert found == []


def test_every_panel_is_placed_once_in_the_v2_schema() -> None:
    made = written("dashboards*/*.json", "--dashboard-format", "json,v2")
    for path, text in made.items():
        if not path.startswith("dashboards-v2"):
            continue
        spec = json.loads(text)["spec"]
        placed = [
            item["spec"]["element"]["name"]
            for row in spec["layout"]["spec"]["rows"]
            for item in row["spec"]["layout"]["spec"]["items"]
        ]
        assert sorted(placed) == sorted(spec["elements"])
        content = json.loads(made[path.replace("dashboards-v2", "dashboards")])
        panels = [panel for panel in all_panels(content) if panel["type"] != "row"]
        assert len(panels) == len(placed)


# Overlays


def overlay(text: str, name: str = "overlay.jsonnet") -> tuple[str, str]:
    Path(name).write_text(text)
    return "--dashboard-overlay", name


def test_an_overlay_is_a_function_of_dashboard_and_kind() -> None:
    change = "function(dashboard, kind) dashboard { tags+: [kind], title: 'X ' + dashboard.title }"
    kinds = set()
    for content in contents(*overlay(change)):
        kinds.add(content["tags"][-1])
        assert content["title"].startswith("X ")
    assert kinds == set(dashboards.KINDS)


def test_an_overlay_survives_regeneration_and_reaches_every_format() -> None:
    options = (
        *overlay("function(dashboard) dashboard { refresh: '5m' }"),
        "--dashboard-format",
        EVERY,
    )
    assert run(*options) == 0
    assert run(*options, "--check") == 0
    for path in Path("out").rglob("*.*"):
        if "tokenslo.yaml" not in path.name:
            assert "5m" in path.read_text(), path


def test_an_overlay_may_be_an_object_that_is_merged() -> None:
    for content in contents(*overlay("{ time: { from: 'now-1h' }, description: null }")):
        assert content["time"] == {"from": "now-1h", "to": "now"}
        assert "description" not in content


def test_an_overlay_imports_from_its_folder_and_from_libraries() -> None:
    Path("lib").mkdir()
    Path("lib/tags.libsonnet").write_text("['from-lib']")
    Path("own.libsonnet").write_text("['own']")
    change = "function(d) d { tags+: (import 'own.libsonnet') + (import 'tags.libsonnet') }"
    for content in contents(*overlay(change), "-J", "lib"):
        assert content["tags"][-2:] == ["own", "from-lib"]


# What is refused

PANEL = "{ type: 'stat', id: 1, gridPos: { h: 1, w: 1, x: 0, y: 0 } }"


def only_panel(more: str) -> str:
    return f"function(d) d {{ panels: [{PANEL} + {more}] }}"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("{ uid: null }", "uid: is missing. Fix: "),
        ("{ uid: 'mine' }", 'uid: is "mine" instead of "tokenslo-chat-'),
        ("{ title: 3 }", "title: is a number, not text. Fix: write text."),
        ("{ title: '' }", "title: is empty. Fix: "),
        ("{ tags: 'llm' }", "tags: is text, not a list. Fix: write a list."),
        ("{ tags: [1] }", "tags[0]: is a number, not text. Fix: "),
        ("{ panels: {} }", "panels: is an object, not a list. Fix: "),
        ("{ panels: [1] }", "panels[0]: is a number, not a panel. Fix: "),
        ("{ schemaVersion: 'x' }", "schemaVersion: is text, not an integer. Fix: "),
        ("{ templating: { list: [{ name: 'a', type: 'b' }] } }", 'templating.list[0].type: "b" is'),
        ("{ templating: { list: 1 } }", "templating.list: is a number, not a list. Fix: "),
        (only_panel("{ type: 'graf' }"), 'panels[0].type: "graf" is no panel of Grafana. Fix: '),
        (only_panel("{ id: 'x' }"), "panels[0].id: is text, not an integer. Fix: "),
        (only_panel("{ gridPos+: { w: 25 } }"), "panels[0].gridPos.w: is 25, not an integer from"),
        (only_panel("{ targets: [{ expr: 'a' }] }"), "panels[0].targets[0].refId: is missing. Fix"),
        (
            only_panel(
                "{ targets: [{ refId: 'A', expr: 'sum(', datasource: { type: 'prometheus' } }] }"
            ),
            "panels[0].targets[0].expr: is no PromQL: ",
        ),
        (
            f"function(d) d {{ panels: [{PANEL}, {PANEL}] }}",
            "panels: 2 panels have the id 1. Fix: ",
        ),
        ("function(d) []", "is a list, not a dashboard. Fix: return the changed dashboard."),
        ("function(d) null", "is null, not a dashboard. Fix: "),
        ("3", "an overlay is a function(dashboard, kind) or an object, not number. Fix: "),
        ("function(a, b, c) a", "cannot be applied to the dashboard "),
        ("function(d) d + {", "overlay.jsonnet:1: cannot be applied to the dashboard "),
        ("\nfunction(d) d { x: d.nope }", "overlay.jsonnet:2: cannot be applied to the dashboard "),
        ("function(d) (import '/etc/hostname')", "cannot be applied to the dashboard "),
    ],
)
def test_an_overlay_that_breaks_a_dashboard_is_refused(
    change: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*overlay(change), "--dashboards", dashboards.KINDS[-1]) == 2
    message = capsys.readouterr().err
    assert error in message
    assert message.startswith("overlay.jsonnet")
    assert all(". Fix: " in line for line in message.splitlines())
    assert not Path("out").exists()


def test_a_panel_of_a_plugin_is_no_unknown_panel() -> None:
    assert run(*overlay(only_panel("{ type: 'acme-gauge-panel' }"))) == 0


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("--dashboards", "engin", "'engin' is not one of "),
        ("--dashboard-format", "jsn", "'jsn' is not one of json, provisioning, configmap"),
        ("--dashboard-format", "perses", "'perses' is not one of json"),
        ("--dashboard-folder", "a/b", "'a/b' is no title of one folder. Fix: "),
        ("--dashboard-folder", "a\nb", "is no title of one folder. Fix: "),
        ("--dashboard-datasource-uid", "a b", "'a b' is no uid of a data source. Fix: "),
        ("--dashboard-datasource-uid", "$" + "{x}", "is no uid of a data source. Fix: "),
        ("--dashboard-datasource-uid", "x" * 41, "is no uid of a data source. Fix: "),
        ("--dashboard-uid-prefix", "x" * 40, "cannot begin uids, which have at most 40 "),
        ("--dashboard-uid-prefix", "ä", "cannot begin uids, which have at most 40 "),
        ("--dashboard-tag", " ", "' ' is no tag. Fix: "),
        ("--dashboard-overlay", "nowhere.jsonnet", "'nowhere.jsonnet' does not exist"),
    ],
)
def test_bad_values_of_options_are_refused(
    option: str, value: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(option, value) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"tokenslo generate: Invalid value for '{option}': ")
    assert error in message
    assert message.count("\n") == 1
    assert not Path("out").exists()


def test_long_names_keep_uids_within_grafanas_limit() -> None:
    Path("chat.yaml").write_text(SLO.replace("service: chat", f"service: {'c' * 40}"))
    uids = [content["uid"] for content in contents("--dashboard-uid-prefix", "x" * 20)]
    assert all(len(uid) <= 40 for uid in uids)
    assert len({*uids}) == len(dashboards.KINDS)


def test_a_large_dashboard_is_compact_in_its_config_map() -> None:
    long = "std.join('', std.makeArray(2600, function(_) std.repeat('0', 100)))"
    change = f"function(d) d {{ description: {long} }}"
    kinds = ("--dashboards", dashboards.KINDS[-1])
    options = (*overlay(change), "--dashboard-format", "configmap", *kinds)
    for text in written("dashboards/*.configmap.yaml", *options).values():
        (held,) = libyaml.load(text)["data"].values()
        assert "\n" not in held
        json.loads(held)


def test_the_help_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    formats = out[out.index("--dashboard-format") :][:400]
    assert all(name in formats for name in dashboards.FORMATS)
