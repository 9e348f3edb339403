"""Run generated tests of windows in promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

Result = subprocess.CompletedProcess[str]


def run_window_tests(promtool: str | Path, *files: str, folder: Path) -> Result:
    """Run test files over weeks of samples; a failure counts if it happens twice.

    While promtool evaluates them, its storage compacts the samples in the background.  In about one
    of 150 runs on a busy machine a sample is missing then (Prometheus 2.42).
    """
    command = [promtool, "test", "rules", *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done
