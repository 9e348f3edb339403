"""The Helm chart: its values, what it refuses, and generated rules and dashboards in it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from tests.kubernetes_objects import RELEASES, objects, only, schema_errors
from tokenslo.commands.generate import generate
from tools.kubernetes.examples import CHART, EXAMPLE_CHART, ROOT, ci_values, helm, templated

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_bytes())
CI = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir())
needs_helm = pytest.mark.skipif(not shutil.which("helm"), reason="helm is not installed")


def test_the_application_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == version("tokenslo")


def test_default_and_ci_values_are_valid() -> None:
    jsonschema.validate(VALUES, SCHEMA)
    for name in CI:
        jsonschema.validate(ci_values(name), SCHEMA)


def keys(values: Mapping[str, Any], schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the keys that only one of values and schema has."""
    known = schema.get("properties")
    if known is None:
        return
    yield from (f"{path}{key}" for key in values.keys() ^ known.keys())
    for key in values.keys() & known.keys():
        if isinstance(values[key], dict):
            yield from keys(values[key], known[key], f"{path}{key}.")


def test_the_schema_has_the_keys_of_the_values() -> None:
    assert set(keys(VALUES, SCHEMA)) == {"enabled", "global"}, "these are for parent charts"


@pytest.mark.parametrize(
    "values",
    [
        {"tap": {"mod": "proxy"}},
        {"tap": {"mode": "sniff"}},
        {"tap": {"proxies": [{"name": "A", "port": 9000, "upstream": "127.0.0.1:8000"}]}},
        {"image": {"digest": "latest"}},
        {"podMonitor": {"models": 257}},
        {"sidecar": {"port": 70000}},
        {"server": {"url": "127.0.0.1:8000"}},
    ],
)
def test_the_schema_refuses_wrong_values(values: Mapping[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, SCHEMA)


@needs_helm
@pytest.mark.parametrize("name", CI)
def test_helm_accepts_the_chart_with_ci_values(name: str) -> None:
    values = str(CHART / f"ci/{name}-values.yaml")
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), "--values", values)


@needs_helm
def test_the_chart_alone_installs_without_the_operator() -> None:
    assert objects(helm("template", "chat", str(CHART), "--kube-version", "1.29.0")) == []


@needs_helm
def test_generated_rules_and_dashboards_are_valid_resources(tmp_path: Path) -> None:
    slo = ROOT / "deploy/kustomize/examples/triton/slo.yaml"
    arguments = [str(slo), "-o", str(tmp_path), "--format", "operator", "--only",
                 "alerts,dashboards", "--dashboards", "engine"]  # fmt: skip
    done = CliRunner().invoke(generate, arguments)
    assert done.exit_code == 0, done.output
    rules = sorted((tmp_path / "alerts").glob("*.prometheusrule.yaml"))
    files = {
        **{f"prometheusRule.files.{path.name.split('.prom')[0]}": path for path in rules},
        "dashboards.files.chat-engine\\.json": tmp_path / "dashboards/chat-engine.json",
    }
    options = [f"--set-file=tokenslo.{key.replace('chat.c', 'chat-c')}={path}"
               for key, path in files.items()]  # fmt: skip
    enabled = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
    found = objects(templated(enabled, *options))
    assert [error for one in found for error in schema_errors(one, RELEASES[-1])] == []
    expected = [yaml.safe_load(path.read_text())["spec"]["groups"] for path in rules]
    groups = [one["spec"]["groups"] for one in found if one["kind"] == "PrometheusRule"]
    assert sorted(groups, key=_first_name) == sorted(expected, key=_first_name)
    dashboard = only(found, "ConfigMap")["data"]["chat-engine.json"]
    assert json.loads(dashboard) == json.loads(
        files["dashboards.files.chat-engine\\.json"].read_text()
    )


def _first_name(groups: list[Mapping[str, str]]) -> str:
    return groups[0]["name"]


def unittest_command() -> list[str]:
    """Return the command of helm-unittest, as a program or a plugin; empty without it."""
    if shutil.which("untt"):
        return ["untt"]
    if shutil.which("helm"):
        plugins = subprocess.run(["helm", "plugin", "list"], capture_output=True, text=True)
        return ["helm", "unittest"] * ("unittest" in plugins.stdout)
    return []


def test_suites_of_helm_unittest_pass(tmp_path: Path) -> None:
    command = unittest_command()
    if not command:
        pytest.skip("helm-unittest is not installed")
    built = shutil.ignore_patterns("charts", "*.lock")
    shutil.copytree(EXAMPLE_CHART, tmp_path / "example", ignore=built)
    shutil.copytree(CHART, tmp_path / "example/charts/tokenslo")
    for arguments in ([str(CHART)], ["--with-subchart=false", str(tmp_path / "example")]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
