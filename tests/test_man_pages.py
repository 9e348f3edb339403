"""The manual pages: current, complete and without warnings of the formatters."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tokenslo.cli import COMMANDS
from tools import man_pages

PAGES = Path(__file__).parent.parent / "docs/man"


def test_the_pages_are_current() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*")}
    assert written == man_pages.pages(), "write them again: make examples"
    assert {*written} == {"tokenslo.1", *(f"tokenslo-{name}.1" for name in COMMANDS)}


def test_pages_of_removed_commands_are_removed(tmp_path: Path) -> None:
    (tmp_path / "tokenslo-old.1").touch()
    man_pages.main(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in PAGES.iterdir()}


@pytest.mark.parametrize(
    "command",
    [("groff", "-man", "-Tutf8", "-ww", "-K", "utf8"), ("mandoc", "-T", "lint", "-W", "warning")],
    ids=lambda command: str(command[0]),
)
def test_formatters_have_no_warnings(command: tuple[str, ...]) -> None:
    program = shutil.which(command[0])
    if not program:
        pytest.skip(f"needs {command[0]}")
    done = subprocess.run(
        [program, *command[1:], *sorted(PAGES.glob("*.1"))], capture_output=True, text=True
    )
    expected = "missing date"  # so that the pages are reproducible
    warnings = [line for line in done.stdout.splitlines() if "WARNING" in line]
    assert [line for line in warnings if expected not in line] == []
    assert done.stderr == ""


@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff")
def test_a_page_shows_usage_options_and_their_meaning() -> None:
    page = PAGES / "tokenslo-generate.1"
    command = ["groff", "-man", "-Tascii", "-P-cbou", "-rLL=200n", page]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = " ".join(shown.split())
    assert "tokenslo generate [OPTIONS] FILE..." in words
    assert (
        "-o, --output DIR Folder for alerts/, autoscaling/, dashboards/, rollouts/, runbooks/ and "
        "mkdocs.yml" in words
    )
