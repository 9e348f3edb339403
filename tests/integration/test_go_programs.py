"""The programs that ``tools/go_programs.py`` builds with Go."""

from __future__ import annotations

import faulthandler
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.go_programs import PROGRAMS

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("go"), reason="go is not installed"),
]
VERSIONS = {
    "helm": ["version", "--short"],
    "kubeconform": ["-v"],
    "kustomize": ["version"],
    "kube-apiserver": ["--version"],
    "untt": ["--help"],
    "mimir": ["-version"],
    "mimirtool": ["version"],
}


def test_every_program_is_built_and_starts() -> None:
    faulthandler.cancel_dump_traceback_later()  # the builds take minutes
    command = [sys.executable, "-m", "tools.go_programs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folders = map(Path, done.stdout.strip().split(":"))
    for program, folder in zip(PROGRAMS, folders, strict=True):
        subprocess.run([folder / program.name, *VERSIONS[program.name]], check=True)
