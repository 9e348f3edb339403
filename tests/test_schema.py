"""The JSON Schema agrees with the loader: what it refuses, the loader refuses too."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from language_example import FULL, LEVELS

from slos.errors import InvalidFile
from slos.load import load_file
from tokenslo.commands.schema import schema

ROOT = Path(__file__).parents[1]
PRINTED = CliRunner().invoke(schema).output
SCHEMA = json.loads(PRINTED)
VALIDATOR = Draft202012Validator(SCHEMA)


def accepts(value: object) -> bool:
    return VALIDATOR.is_valid(value)


def loads(value: object, folder: Path) -> bool:
    path = folder / "slo.json"
    path.write_text(json.dumps(value))
    try:
        load_file(path)
    except InvalidFile:
        return False
    return True


def test_published_schema_is_valid_and_current() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    published = (ROOT / "docs/reference/slo.schema.json").read_text(encoding="utf-8")
    assert published == PRINTED, "write it again: make examples"


def test_every_key_is_described() -> None:
    def described(shape: Any) -> None:
        if isinstance(shape, dict):
            for name, part in shape.get("properties", {}).items():
                if "if" not in shape and isinstance(part, dict) and len(shape) > 1:
                    assert part.get("description", "").endswith("."), name
            for key, part in shape.items():
                if key not in ("allOf", "oneOf"):
                    described(part)
        elif isinstance(shape, list):
            for part in shape:
                described(part)

    described(SCHEMA)
    assert SCHEMA["$defs"]["objective"]["properties"]["indicator"]["description"]
    assert SCHEMA["then"]["properties"]["services"]["items"]["properties"]["labels"]["description"]
    assert SCHEMA["else"]["properties"]["labels"]["description"]


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*/slo.yaml")), ids=str)
def test_the_examples_are_valid(path: Path) -> None:
    assert accepts(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("text", [FULL, LEVELS], ids=["one service", "several"])
def test_file_with_every_key_is_valid(text: str) -> None:
    assert list(VALIDATOR.iter_errors(yaml.safe_load(text))) == []


BAD = {
    "a key that there is not": ({"onwer": "x"}, {}),
    "a bare number as window": ({"window": 28}, {}),
    "a calendar window": ({"window": "1M"}, {}),
    "a name in capitals": ({"service": "Chat"}, {}),
    "no URL": ({"dashboards": "grafana.example.com"}, {}),
    "a reserved label": ({"selector": {"le": "1"}}, {}),
    "a label of numbers": ({"labels": {"team": 7}}, {}),
    "an alert that there is not": ({"alerting": {"disable": ["pages"]}}, {}),
    "an objective without causes": ({}, {"alerting": {"disable": ["causes"]}}),
    "a step without words": ({"budget_policy": [{"when": "50%"}]}, {}),
    "no indicator of ours": ({}, {"indicator": "tttf"}),
    "a threshold of another unit": ({}, {"threshold": "90%"}),
    "a threshold that is not wanted": ({}, {"indicator": "availability"}),
    "clauses that are not wanted": ({}, {"clauses": {"ttft": "1s"}}),
    "a target without its unit": ({}, {"target": 99.9}),
    "queries that are no indicator": ({}, {"indicator": {"bad": "x_total"}}),
    "slices of another length": ({}, {"time_slices": {"window": "2m", "target": "95%"}}),
    "slices without a target": ({}, {"time_slices": {"window": "1m"}}),
    "no label to group by": ({}, {"group_by": ["__name__"]}),
    "services beside a service": ({"services": [{"service": "chat"}]}, {}),
    "no services": ({"services": []}, {}),
}


@pytest.mark.parametrize(("service", "objective"), BAD.values(), ids=BAD)
def test_schema_errors_have_their_place(
    service: dict[str, object], objective: dict[str, object], tmp_path: Path
) -> None:
    fast = {"name": "fast", "indicator": "ttft", "threshold": "1s", "target": "95%"}
    good = {"apiVersion": "tokenslo/v1", "service": "chat", "objectives": [fast]}
    assert accepts(good)
    assert loads(good, tmp_path)
    bad = {**good, "objectives": [{**fast, **objective}], **service}
    assert not accepts(bad)
    assert not loads(bad, tmp_path)


WORDS = (
    *("1s", "800ms", "1h30m", "95%", "100%", "0%", "28d", "4w", "60s", "1m", "x", "HTTP://x"),
    *("ttft", "goodput", "availability", "kv_headroom", "tenant", "causes", "page"),
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2_000_000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from([*WORDS, " ", "x" * 1001])
    | st.just([])
    | st.just({})
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, ...]] = []
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        inner = [place for key, part in items for place in places(part, (*path, key))]
    return [path, *inner]


@st.composite
def mutations(draw: st.DrawFn) -> object:
    """Change, drop or add something in a few places of a valid file."""
    whole: Any = copy.deepcopy(yaml.safe_load(draw(st.sampled_from([FULL, LEVELS]))))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(whole)[1:]))
        parent: Any = whole
        for key in path[:-1]:
            parent = parent[key]
        match draw(st.sampled_from(("change", "drop", "move"))):
            case "change":
                parent[path[-1]] = draw(VALUES)
            case "drop":
                del parent[path[-1]]
            case "move" if isinstance(parent, dict):
                other = draw(st.sampled_from(places(whole)[1:]))[-1]
                parent[str(other)] = parent.pop(path[-1])
    return whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(mutations())
def test_loader_refuses_what_the_schema_refuses(tmp_path: Path, value: object) -> None:
    assert accepts(value) or not loads(value, tmp_path)
