"""The targets of the Makefile, with a Python that only records how it is run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def no_outer_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the flags of the make that may run these tests, like ``ALONE=``."""
    for name in ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize(("first", "second", "code"), [(0, 0, 0), (3, 0, 2), (0, 4, 2), (3, 4, 2)])
@pytest.mark.parametrize(("target", "size"), [("test", "not long"), ("test-long", "long")])
def test_both_parts_of_the_suite_run_and_either_failure_is_reported(
    target: str, size: str, first: int, second: int, code: int, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/runs\n'
        f'case "$*" in *"-m not alone"*) exit {first};; *) exit {second};; esac\n'
    )
    python.chmod(0o755)
    (tmp_path / "ready").touch()
    make = ["make", target, f"BIN={tmp_path}", f"READY={tmp_path}/ready"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True)
    runs = (tmp_path / "runs").read_text().splitlines()
    parts = [run.rpartition("-m ")[2].partition(" tests")[0].strip() for run in runs]
    assert parts == [f"not alone and {size}", f"alone and {size}"]
    assert done.returncode == code  # make's own code for a failed command is 2


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_alone_tests_can_be_excluded(tmp_path: Path) -> None:
    (tmp_path / "ready").touch()
    make = ["make", "--dry-run", "test-long", "ALONE=", f"READY={tmp_path}/ready"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("pytest") == 1
    assert '-m "not alone and long"' in done.stdout


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_tests_run_with_bytecode_whatever_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "[$PYTHONDONTWRITEBYTECODE]" >> {tmp_path}/runs\n')
    python.chmod(0o755)
    (tmp_path / "ready").touch()
    make = ["make", "test", f"BIN={tmp_path}", f"READY={tmp_path}/ready"]
    subprocess.run(make, cwd=ROOT, check=True)
    assert (tmp_path / "runs").read_text() == "[]\n[]\n"


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_faults_are_selected(tmp_path: Path) -> None:
    (tmp_path / "ready").touch()
    make = ["make", "--dry-run", "faults", "FAULTS=a,b", f"READY={tmp_path}/ready"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "-m lab.faults --faults a,b" in done.stdout
