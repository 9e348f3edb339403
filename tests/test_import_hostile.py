"""Any content of another tool's file is read, or refused with a line and a fix."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_import_openslo import SEARCH, SLIS
from test_import_pyrra import GATEWAY, HEAD
from test_import_sloth import CHECKOUT, RESOURCE

from slos.errors import InvalidFile
from slos.load import load_file
from tokenslo.commands.convert import convert

GROUPED = f"{HEAD}    bool_gauge: {{metric: up, grouping: [job]}}\n"
TEXTS = [CHECKOUT, RESOURCE, GATEWAY, GROUPED, SEARCH, *(text for text, _ in SLIS.values())]
FILES = [list(yaml.safe_load_all(dedent(text))) for text in TEXTS]
ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1e300,
        10**30,
        "",
        " ",
        "x",
        "sum(",
        "{{",
        "up",
        "99",
        "1w",
        "5M",
        "$",
        "é\n",
    ]
) | st.sampled_from([[], {}, [None], [[]], {"a": None}, {"name": 3}, [{"x": 1}], {"metric": "up"}])


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value."""
    if not isinstance(value, dict | list):
        return [path]
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(each for key, part in parts for each in paths(part, (*path, key)))]


@st.composite
def spoilt(draw: st.DrawFn) -> list[Any]:
    """Return a file's documents with some values replaced or removed."""
    documents = copy.deepcopy(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(1, 3))):
        candidates = [path for path in paths(documents) if path]
        *where, last = draw(st.sampled_from(candidates))
        parent = documents
        for key in where:
            parent = parent[key]
        if draw(st.booleans()):
            parent[last] = copy.deepcopy(draw(ODD))
        else:
            del parent[last]
        if not documents:
            break
    return documents


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(spoilt())
def test_any_change_of_a_file_is_read_or_refused_with_place_and_fix(
    tmp_path: Path, documents: list[Any]
) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text("---\n".join(f"{json.dumps(each)}\n" for each in documents))
    try:
        loaded = load_file(path, partly=True)
    except InvalidFile as refused:
        problems = refused.problems
    else:
        problems = ()
    for problem in problems:
        assert problem.message
        assert problem.fix
        assert "\n" not in str(problem)
    if problems:
        return
    for note in loaded.notes:
        assert note.problem.line
        assert "\n" not in str(note)
    done = CliRunner().invoke(convert, [str(path)])
    assert done.exit_code == any(note.lost for note in loaded.notes)
    if loaded.services:
        path.write_text(done.stdout)
        again = load_file(path)
        assert [each.service for each in again.services] == [
            each.service for each in loaded.services
        ]


@pytest.mark.parametrize(
    "text",
    [
        "version: prometheus/v1\nservice: a\nslos: &a [{name: *a}]\n",
        "apiVersion: openslo/v1\n" + "---\n" * 60_000,
        "- " * 40 + "{apiVersion: openslo/v1}\n",
        "\n---\n".join(["apiVersion: pyrra.dev/v1alpha1\nkind: ServiceLevelObjective"] * 20_000),
    ],
)
def test_files_that_grow_without_bound_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(text)
    with pytest.raises(InvalidFile):
        load_file(path)


def test_long_lists_are_read_in_linear_time(tmp_path: Path) -> None:
    """Thousands of objects and notes take linear time, not quadratic."""
    path = tmp_path / "slo.yaml"
    other, one = "- {apiVersion: v1, kind: A}\n", json.dumps(yaml.safe_load(dedent(CHECKOUT)))
    path.write_text(other * 9_000 + f"- {one}\n")
    began = time.process_time()
    loaded = load_file(path)
    assert time.process_time() - began < 15
    assert len(loaded.notes) > 9_000
