"""The tables of the installation page have every extra, and the bench measures each."""

from __future__ import annotations

import re
import tomllib

from bench.installation import VARIANTS
from tests.installed_wheel import ROOT

PAGE = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"none", *PROJECT["optional-dependencies"]} - {"test"}
MEASURED = [extras or "none" for extras, _ in VARIANTS]


def first_cells(heading: str) -> list[str]:
    """Return the first cells of the rows of the table below a heading."""
    table = PAGE.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return [cell.strip("`") for cell in re.findall(r"^\| (\S+) \|", table, re.MULTILINE)][1:]


def test_the_table_of_extras_has_each() -> None:
    assert {*first_cells("## 1. Choose the extras")} == EXTRAS


def test_the_table_of_sizes_has_what_the_bench_measures() -> None:
    assert first_cells("## Sizes") == MEASURED


def test_the_bench_measures_every_extra() -> None:
    assert {each for extras in MEASURED for each in extras.split(",")} == EXTRAS


def test_the_classifiers_are_the_versions_of_the_page() -> None:
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    tested = PAGE.partition("| Python | tests")[2].partition("\n\n")[0]
    assert classified == sorted({*re.findall(r"\b3\.\d+(?=\.\d)", tested)}, key=classified.index)
