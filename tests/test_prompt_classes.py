"""Prompt classes in SLO files: bounds, label values, and what an objective may select."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slos.errors import InvalidFile
from slos.load import load_file
from slos.model import Service
from slos.prompt_classes import (
    MAX_BOUNDS,
    MAX_TOKENS,
    UNKNOWN,
    PromptClasses,
    parse_tokens,
    shared_classes,
    tokens_text,
)
from slos.writer import text
from tests.service_example import service

BOUNDS = st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=MAX_BOUNDS, unique=True).map(
    sorted
)
HEAD = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: llama}
"""
CLASSES = "prompt_classes: [512, 4k, 32k]\n"


def loaded(folder: Path, more: str) -> Service:
    path = folder / "slo.yaml"
    path.write_text(HEAD + more)
    return load_file(path).services[0]


def problems(folder: Path, more: str) -> list[str]:
    with pytest.raises(InvalidFile) as refused:
        loaded(folder, more)
    return [f"{one.line}: {one.field}: {one.message}. {one.fix}" for one in refused.value.problems]


def objectives(*lines: str) -> str:
    return "objectives:\n" + "".join(f"  - {{{line}}}\n" for line in lines)


def test_bounds_in_tokens_and_in_units_of_1024(tmp_path: Path) -> None:
    found = loaded(tmp_path, CLASSES + objectives("name: a, indicator: availability, target: 99%"))
    assert found.prompt_classes == (512, 4096, 32768)
    assert PromptClasses.of(found.prompt_classes).labels == (
        *("0-512", "513-4096", "4097-32768", "over-32768", UNKNOWN),
    )


def test_a_written_file_has_the_same_bounds(tmp_path: Path) -> None:
    lines = objectives("name: a, indicator: availability, target: 99%")
    found = loaded(tmp_path, "prompt_classes: [1, 1000, 4k]\n" + lines)
    path = tmp_path / "again.yaml"
    path.write_text(text([found]))
    assert load_file(path).services[0].prompt_classes == (1, 1000, 4096)


@given(BOUNDS)
def test_every_number_of_tokens_has_the_class_whose_range_contains_it(bounds: list[int]) -> None:
    classes = PromptClasses.of(bounds)
    assert len(classes.labels) == len(set(classes.labels)) == len(bounds) + 2
    for label in classes.labels[:-2]:
        low, high = map(int, label.split("-"))
        assert classes.label(low) == classes.label(high) == label
        assert classes.label(high + 1) != label
    assert classes.label(bounds[-1] + 1) == classes.labels[-2] == f"over-{bounds[-1]}"
    assert classes.label(None) == UNKNOWN


@given(BOUNDS, st.floats(0, 2 * MAX_TOKENS), st.floats(0, 2 * MAX_TOKENS))
def test_a_longer_prompt_is_never_in_a_lower_class(
    bounds: list[int], one: float, other: float
) -> None:
    classes = PromptClasses.of(bounds)
    low, high = (classes.labels.index(classes.label(tokens)) for tokens in sorted((one, other)))
    assert low <= high


@given(BOUNDS)
def test_classes_sort_by_their_first_number(bounds: list[int]) -> None:
    numbers = [
        int("".join(filter(str.isdigit, label.split("-")[0])) or label.rpartition("-")[2])
        for label in PromptClasses.of(bounds).labels[:-1]
    ]
    assert numbers == sorted(numbers)


@given(st.integers(1, MAX_TOKENS))
def test_numbers_of_tokens_are_read_as_written(tokens: int) -> None:
    assert parse_tokens(tokens_text(tokens)) == tokens


def test_without_bounds_there_are_no_classes() -> None:
    assert PromptClasses.of(()).labels == ()
    assert PromptClasses.of(()).label(7) == ""


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ("[]", "has no upper bound"),
        ("512", "is a number"),
        ("[4k, 512]", "512 follows 4096"),
        ("[512, 512]", "512 follows 512"),
        ("[0]", '"0" is not a number of tokens'),
        ("[4K]", '"4K" is not a number of tokens'),
        ("[1.5]", "holds a value that is not a number of tokens"),
        ("[true]", "holds a value that is not a number of tokens"),
        ("[99999k]", "99999k is above 10,000,000"),
        ("[1, 2, 3, 4, 5, 6, 7]", "has 7 upper bounds"),
    ],
)
def test_wrong_bounds_are_refused(tmp_path: Path, bounds: str, message: str) -> None:
    lines = objectives("name: a, indicator: availability, target: 99%")
    [problem] = problems(tmp_path, f"prompt_classes: {bounds}\n" + lines)
    assert problem.startswith(f"4: prompt_classes: {message}. ")


def test_objectives_select_and_group_by_prompt_class(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        CLASSES
        + objectives(
            "name: a, indicator: ttft, threshold: 1s, target: 99%, selector: {prompt_class: 0-512}",
            "name: b, indicator: queue, threshold: 1s, target: 99%, group_by: [prompt_class]",
            "name: c, indicator: availability, target: 99%, group_by: [prompt_class]",
            "name: d, indicator: goodput, clauses: {ttft: 1s}, target: 99%,"
            " selector: {prompt_class: over-32768}",
        ),
    )
    assert found.objectives[0].selector == {"prompt_class": "0-512"}
    assert found.objectives[1].group_by == ("prompt_class",)


AVAILABILITY = "name: a, indicator: availability, target: 99%"


@pytest.mark.parametrize(
    ("classes", "objective", "problem"),
    [
        (
            "",
            f"{AVAILABILITY}, selector: {{prompt_class: 0-512}}",
            "5: objectives[0].selector: prompt_class is selected, but the service has no prompt "
            "classes. add prompt_classes: [512, 4k, 32k] to the service",
        ),
        (
            "",
            f"{AVAILABILITY}, group_by: [prompt_class]",
            "5: objectives[0].group_by: prompt_class is selected, but the service has no prompt "
            "classes. add prompt_classes: [512, 4k, 32k] to the service",
        ),
        (
            CLASSES,
            f"{AVAILABILITY}, selector: {{prompt_class: 0-4096}}",
            '6: objectives[0].selector: "0-4096" is not a prompt class. use one of 0-512, '
            "513-4096, 4097-32768, over-32768, unknown",
        ),
        (
            CLASSES,
            "name: a, indicator: e2e, threshold: 9s, target: 99%, group_by: [prompt_class]",
            "6: objectives[0].group_by: prompt_class is selected, but e2e is not counted by prompt "
            "class. use one of ttft, queue, availability, goodput, or delete prompt_class",
        ),
        (
            CLASSES,
            f"{AVAILABILITY}, selector: {{prompt_class: 0-512, tenant: acme}}",
            "6: objectives[0].selector: prompt_class cannot be combined with tenant, which has its "
            "own counters. use one of them",
        ),
    ],
)
def test_a_prompt_class_that_cannot_be_selected_is_refused(
    tmp_path: Path, classes: str, objective: str, problem: str
) -> None:
    assert problems(tmp_path, classes + objectives(objective)) == [problem]


def test_a_selector_of_the_service_is_refused_at_the_objective(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    lines = objectives("name: a, indicator: itl, threshold: 1s, target: 99%")
    path.write_text(HEAD.replace("llama", "llama, prompt_class: 0-512") + CLASSES + lines)
    with pytest.raises(InvalidFile, match=r"objectives\[0\].indicator: prompt_class is selected"):
        load_file(path)


def test_services_of_one_file_have_the_same_classes(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    lines = objectives("name: a, indicator: availability, target: 99%")
    other = HEAD.replace("chat", "search") + "prompt_classes: [1k]\n" + lines
    path.write_text(f"{HEAD}{CLASSES}{lines}---\n{other}")
    with pytest.raises(InvalidFile) as refused:
        load_file(path)
    [problem] = refused.value.problems
    assert (problem.line, problem.field) == (9, "prompt_classes")
    assert problem.message == f'differs from [512, 4k, 32k] of the service "chat" in {path}'


def test_files_of_one_sidecar_have_the_same_classes() -> None:
    one, same, none = (service(prompt_classes=each) for each in ((512,), (512,), ()))
    assert shared_classes([none, one, same]).bounds == (512,)
    assert shared_classes([none]).labels == ()
    with pytest.raises(InvalidFile, match=r"prompt_classes: differs from \[512\] of the service"):
        shared_classes([one, service(prompt_classes=(1024,))])
