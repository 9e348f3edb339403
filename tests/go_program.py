"""Build a Go program of one file, with modules of other projects."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def build(folder: Path, source: str, *modules: str) -> Path:
    """Return the path of the program; skips the test without Go or a download of the modules."""
    if not shutil.which("go"):
        pytest.skip("needs Go")
    (folder / "main.go").write_text(source)
    for command in (
        ["go", "mod", "init", "program"],
        ["go", "get", *modules],
        ["go", "build", "-buildvcs=false", "-o", "program", "."],
    ):
        environment = os.environ | {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode and command[1] == "get":
            pytest.skip(f"cannot download {' '.join(modules)}: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stderr
    return folder / "program"
