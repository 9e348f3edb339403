"""The shutdown of a pod with a proxy tap: first the server, then the sidecar."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from lab.process import free_ports
from lab.triton import Triton
from tests.kubernetes_objects import environment, objects, only, sidecar
from tests.polling import wait_until
from tests.triton_models import write_models
from tools.kubernetes import limits
from tools.kubernetes.examples import RENDERED, ROOT

WORDS = 60
STARTED = re.compile(r"metrics (http://127\.0\.0\.1:\d+)/metrics")


@contextmanager
def rendered_sidecar(
    triton: Triton, port: int, slo: Path
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the sidecar of a rendered example on ports of this machine; yield URL and process."""
    found = objects((RENDERED / "kustomize-proxy-tap.yaml").read_text(encoding="utf-8"))
    container = sidecar(only(found, "Deployment")["spec"]["template"]["spec"])
    slo.write_text(only(found, "ConfigMap")["data"]["slo.yaml"])
    changed = {
        "TOKENSLO_TRITON": triton.url,
        "TOKENSLO_TRITON_METRICS": triton.metrics,
        "TOKENSLO_SLO": str(slo),
        "TOKENSLO_LISTEN": "127.0.0.1:0",
        "TOKENSLO_TAP": f"proxy=127.0.0.1:{port}={triton.url.removeprefix('http://')}",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenslo", *container["args"]],
        cwd=ROOT,
        env=os.environ | environment(container) | changed,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout
        started = STARTED.search(process.stdout.readline())
        assert started
        yield started[1], process
    finally:
        process.kill()
        process.communicate()


def ended_streams(url: str) -> str:
    """Return the series of streams that have ended."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:  # noqa: S310 (our own)
        lines = answer.read().decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("llm_streams_total"))


@pytest.mark.long
@pytest.mark.needs("triton")
def test_the_sidecar_counts_the_stream_that_the_server_ends_before_it_stops(
    triton: Callable[..., Triton], tmp_path: Path
) -> None:
    write_models(tmp_path / "models")
    [port] = free_ports(1)
    arguments = ["--exit-timeout-secs=60"]
    with (
        triton(tmp_path / "models", tmp_path, load=["streaming"], arguments=arguments) as server,
        rendered_sidecar(server, port, tmp_path / "slo.yaml") as (url, process),
        closing(HTTPConnection("127.0.0.1", port, timeout=60)) as client,
    ):
        body = f'{{"text_input": "hello", "max_tokens": {WORDS}}}'
        client.request("POST", "/v2/models/streaming/generate_stream", body)
        response = client.getresponse()
        words = response.readline()
        os.kill(server.pid, signal.SIGTERM)
        words += response.read()
        client.close()  # Triton waits for idle connections too
        assert words.count(b"data:") >= WORDS, "the stream was cut"
        server.supervisor.wait(60)
        ok = re.compile(r'model="streaming",outcome="ok",phase="complete",version="[^"]*"} 1\.0')
        wait_until(lambda: ok.search(ended_streams(url)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(limits.SIDECAR_EXIT) == 0
