"""The demo on the fake trtllm-serve, which needs no download."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from lab.process import get
from tests.polling import wait_until


def test_the_demo_runs_without_any_download(tmp_path: Path) -> None:
    flags = ("--engine", "trtllm-serve", "--no-prometheus", "-o", tmp_path)
    with subprocess.Popen(
        [sys.executable, "-m", "tokenslo", "demo", *map(str, flags)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        name, url = next(filter(None, map(str.split, process.stdout)))[-2:]
        assert name == "page"
        port = urlsplit(url).port or 0

        def ended() -> float:
            """Return the number of requests that the sidecar saw end well."""
            samples = re.findall(r"^(llm_requests_total\S*) (\S+)$", page(), re.MULTILINE)
            return sum(float(value) for labels, value in samples if 'outcome="ok"' in labels)

        def page() -> str:
            return get(port, "/metrics")[1]

        try:
            wait_until(lambda: ended() >= 2, 60)  # the client of the first has seen its end, too
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
    seen = re.search(r"requests: ([0-9]+) ok", out)
    assert seen is not None
    assert int(seen[1]) > 0
    assert re.search(r"^ *ttft +[0-9]+ observed", out, re.MULTILINE)
    assert re.search(
        r"^trtllm-serve +http://127\.0\.0\.1:[0-9]+/prometheus/metrics", out, re.MULTILINE
    )
    log = tmp_path / "run/trtllm-serve/trtllm-serve.log"
    assert log.read_text() == ""
