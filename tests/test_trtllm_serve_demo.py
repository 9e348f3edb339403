"""The demo on the look-alike, which needs no part that would have to be downloaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_the_demo_runs_without_any_download(tmp_path: Path) -> None:
    flags = ("--engine", "trtllm-serve", "--no-prometheus", "--for", "5s", "-o", tmp_path)
    command = [sys.executable, "-m", "tokenslo", "demo", *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    seen = re.search(r"requests: ([0-9]+) ok", done.stdout)
    assert seen is not None
    assert int(seen[1]) > 0
    assert re.search(r"^ *ttft +[0-9]+ observed", done.stdout, re.MULTILINE)
    assert re.search(
        r"^trtllm-serve +http://127\.0\.0\.1:[0-9]+/prometheus/metrics", done.stdout, re.MULTILINE
    )
    log = tmp_path / "run/trtllm-serve/trtllm-serve.log"
    assert log.read_text() == ""
