"""The ``rollout`` of SLO files, and the files that ``tokenslo generate`` makes of it."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_objects import schema_errors
from language_example import load

from promql.query import read_query
from slos import writer
from slos.errors import InvalidFile
from slos.model import GUARDS, Rollout
from tokenslo.cli import main

EXAMPLE = Path(__file__).parents[1] / "examples/chat"
HEAD = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama}
objectives:
  - {name: first-token, indicator: ttft, threshold: 800ms, target: 95%}
  - {name: up, indicator: availability, target: 99%}
  - {name: room, indicator: kv_headroom, threshold: 90%, target: 99%}
  - {name: shop, indicator: {bad: b_total, total: t_total}, target: 99%}
"""


def problems(one: dict[str, Any]) -> list[str]:
    return list(schema_errors(one, "1.37"))


def written(folder: Path, rollout: str) -> Path:
    path = folder / "slo.yaml"
    path.write_text(f"{HEAD}{rollout}\n")
    return path


def test_defaults_and_keys_of_a_rollout(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")).rollout is None
    assert load(written(tmp_path, "rollout: {}")).rollout == Rollout()
    keys = "{label: track, margin: 50%, window: 1h, warm_up: 0s, objectives: [up], guards: []}"
    assert load(written(tmp_path, f"rollout: {keys}")).rollout == Rollout(
        "track", Decimal("0.5"), Decimal(3600), Decimal(0), ("up",), ()
    )


@pytest.mark.parametrize("keys", ["{}", "{guards: []}", "{window: 1h, objectives: [up]}"])
def test_a_written_rollout_is_read_back(keys: str, tmp_path: Path) -> None:
    service = load(written(tmp_path, f"rollout: {keys}"))
    copy = tmp_path / "copy.yaml"
    copy.write_text(writer.text([service]))
    assert load(copy).rollout == service.rollout


@pytest.mark.parametrize(
    ("rollout", "problem"),
    [
        ("{label: model}", "rollout.label: model is in the selector of the service"),
        ("{label: slo}", "rollout.label: slo is a label of the recorded series. Fix: use another"),
        ("{label: a-b}", 'rollout.label: "a-b" is not the name of a label. Fix: use letters'),
        ("{margin: 0%}", "rollout.margin: 0% is not above 0%. Fix: write a share of the error"),
        ("{window: 1m}", "rollout.window: 1m is not within 3m and 1d. Fix: write whole seconds"),
        ("{warm_up: 500ms}", "rollout.warm_up: 500ms is not within 0s and 1d"),
        ("{objectives: []}", "rollout.objectives: has no name. Fix: name an objective"),
        ("{objectives: [ups]}", 'rollout.objectives[0]: "ups" is not an objective that counts'),
        ("{objectives: [room]}", 'rollout.objectives[0]: "room" is not an objective that counts'),
        ("{objectives: [shop]}", 'rollout.objectives[0]: "shop" is not an objective that counts'),
        ("{guards: [error]}", "rollout.guards[0]: is not a guard. Fix: use some of errors, sheds"),
        ("{prometheus: x}", "rollout.prometheus: is not an http or https URL"),
        ("{windows: 1h}", "rollout.windows: is not a known key. Fix: write window"),
        ("", "rollout: is empty. Fix: write a mapping with the keys label, margin"),
    ],
)
def test_bad_rollouts_are_refused_with_line_and_fix(
    rollout: str, problem: str, tmp_path: Path
) -> None:
    path = written(tmp_path, f"rollout: {rollout}")
    with pytest.raises(InvalidFile) as refused:
        load(path)
    (found,) = refused.value.problems
    assert str(found).startswith(f"{path}:9: {problem}")


def generate(folder: Path, *options: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["generate", str(folder / "slo.yaml"), "-o", str(folder / "out"), "-q", *options])
    return int(end.value.code or 0)


def made(folder: Path) -> set[str]:
    out = folder / "out"
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


URL = "prometheus: http://prometheus:9090"
OBJECTS = {
    "rollouts/chat.argo.yaml",
    "rollouts/chat.flagger.yaml",
    "rollouts/chat.flagger-canary.yaml",
}


def test_files_come_and_go_with_the_rollout(tmp_path: Path) -> None:
    written(tmp_path, f"rollout: {{{URL}}}")
    assert generate(tmp_path, "--only", "rollouts", "--format", "prometheus,operator,mimir") == 0
    rules = {f"alerts/chat.rollout.{form}.yaml" for form in ("rules", "prometheusrule", "mimir")}
    assert made(tmp_path) == OBJECTS | rules
    assert generate(tmp_path, "--only", "rollouts", "--check") == 0
    written(tmp_path, "rollout: {}")
    assert generate(tmp_path, "--only", "rollouts") == 0
    assert made(tmp_path) == {"rollouts/chat.argo.yaml", *rules}
    written(tmp_path, "")
    assert generate(tmp_path, "--only", "rollouts", "--format", "prometheus,operator,mimir") == 0
    assert made(tmp_path) == set()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("rollout")
    written(folder, f"rollout: {{label: rollouts_pod_template_hash, {URL}}}")
    assert generate(folder, "--only", "rollouts") == 0
    return {
        path.name: list(yaml.safe_load_all(path.read_text()))
        for path in (folder / "out/rollouts").iterdir()
    }


TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}


def test_objects_are_valid_by_the_schemas_of_their_controllers(
    objects: dict[str, list[dict[str, Any]]],
) -> None:
    (template,) = objects["chat.argo.yaml"]
    assert problems(template) == []
    assert [problem for each in objects["chat.flagger.yaml"] for problem in problems(each)] == []
    (part,) = objects["chat.flagger-canary.yaml"]
    spec = {"targetRef": TARGET, "service": {"port": 8000}, **part}
    canary = {
        "apiVersion": "flagger.app/v1beta1",
        "kind": "Canary",
        "metadata": {"name": "chat"},
        "spec": spec,
    }
    assert problems(canary) == []
    assert problems({**template, "spec": {**template["spec"], "metric": []}}) != []


def test_every_criterion_is_a_metric_with_both_conditions(
    objects: dict[str, list[dict[str, Any]]],
) -> None:
    (template,) = objects["chat.argo.yaml"]
    metrics = template["spec"]["metrics"]
    names = ["first-token", "up", *(f"guard-{guard}".replace("_", "-") for guard in GUARDS)]
    assert [each["name"] for each in metrics] == names
    for each in metrics:
        assert each["successCondition"] == "len(result) > 0 && result[0] == 1"
        assert each["failureCondition"] == "len(result) > 0 && result[0] == 0"
        assert (each["initialDelay"], each["interval"], each["count"]) == ("17m", "5m", 3)
        assert each["failureLimit"] == 0
        assert 0 < each["inconclusiveLimit"] < each["count"]  # at the count, Argo promotes


def test_queries_are_promql_with_one_element(objects: dict[str, list[dict[str, Any]]]) -> None:
    (template,) = objects["chat.argo.yaml"]
    metrics = [each["provider"]["prometheus"]["query"] for each in template["spec"]["metrics"]]
    flagger = [each["spec"]["query"] for each in objects["chat.flagger.yaml"]]
    assert len(metrics) == len(flagger) == 6
    for query in (*metrics, *flagger):
        assert read_query(query).metrics
        assert query.startswith("vector(")
        assert "rollouts_pod_template_hash=" in query


def test_no_example_of_a_gate_compares_quantiles_of_histograms() -> None:
    """Quantiles of two histograms differ by their buckets alone, and have no sample size."""
    files = [*(EXAMPLE / "rollouts").iterdir(), EXAMPLE / "alerts/chat.rollout.rules.yaml"]
    assert len(files) > 2
    assert all("histogram_quantile" not in path.read_text() for path in files)


def test_a_metric_of_flagger_fails_only_on_an_abort(
    objects: dict[str, list[dict[str, Any]]],
) -> None:
    (part,) = objects["chat.flagger-canary.yaml"]
    analysis = part["analysis"]
    templates = {each["metadata"]["name"] for each in objects["chat.flagger.yaml"]}
    assert {each["templateRef"]["name"] for each in analysis["metrics"]} == templates
    assert all(each["thresholdRange"] == {"max": 0} for each in analysis["metrics"])
    assert [each["type"] for each in analysis["webhooks"]] == ["confirm-promotion"]
