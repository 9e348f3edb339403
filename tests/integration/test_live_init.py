"""A first SLO file from a real Triton, from the look-alike, and from a sidecar that watches it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path

import pytest

from lab import process, trtllm_server
from lab.process import HOST, ServerProcess, free_ports, get
from lab.triton import Triton
from lab.trtllm_serve.settings import RELEASES
from slos.load import load_file
from tests.polling import wait_until

ROOT = Path(__file__).parents[2]


def tokenslo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tokenslo", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def first_file(folder: Path, *urls: str) -> str:
    """Let ``init`` write a file; it must be valid, and the doctor content with it."""
    path = folder / "slo.yaml"
    done = tokenslo("init", *urls, "-o", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"wrote {path}\n"
    assert tokenslo("validate", str(path)).returncode == 0
    return path.read_text(encoding="utf-8")


def objectives_of(folder: Path) -> dict[str, dict[str, str]]:
    return {
        service.selector["model"]: {each.name: each.indicator for each in service.objectives}
        for service in load_file(folder / "slo.yaml").services
    }


def complete(port: int, requests: int) -> None:
    body = {"model": "tensorrt_llm", "prompt": "a b c", "max_tokens": 9, "stream": True}
    headers = {"Content-Type": "application/json"}
    for _ in range(requests):
        connection = HTTPConnection(HOST, port, timeout=20)
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        assert connection.getresponse().read()
        connection.close()


def test_a_triton_with_models_of_every_kind(test_triton: Triton, tmp_path: Path) -> None:
    urls = (test_triton.url, test_triton.metrics)
    text = first_file(tmp_path, *urls)
    services = objectives_of(tmp_path)
    assert services["vllm_llm"]["first-token"] == "ttft"
    assert services["pipeline"] == {"availability": "availability"}, "there are no first tokens"
    assert "streaming" not in services, "nothing can be measured there"
    assert "run the sidecar with --tap" in " ".join(text.replace("#", "").split())
    path = str(tmp_path / "slo.yaml")
    doctor = tokenslo("doctor", *urls, "--slo", path)
    assert (doctor.returncode, doctor.stderr) == (0, ""), doctor.stdout


@pytest.mark.long
def test_fake_trtllm_serve_under_load(tmp_path: Path) -> None:
    with trtllm_server.start(tmp_path / "serve", RELEASES["1.4"]) as server:
        complete(server.ports[0], 12)
        text = first_file(tmp_path, server.url)
        complete(server.ports[0], 2)  # it gives its records once, and those of before are gone
        doctor = tokenslo("doctor", server.url, "--slo", str(tmp_path / "slo.yaml"))
    assert (doctor.returncode, doctor.stderr) == (0, ""), doctor.stdout
    [objectives] = objectives_of(tmp_path).values()
    assert objectives["first-token"] == "ttft"
    assert re.search(r"p95 now about [0-9.]+ s, [0-9]+ requests", text)


def test_a_sidecar_that_watches_the_streams(tmp_path: Path) -> None:
    (proxy,) = free_ports(1)
    with trtllm_server.start(tmp_path / "serve", RELEASES["1.4"]) as server:

        def command(ports: Sequence[int]) -> list[str | Path]:
            return [
                *(sys.executable, "-m", "tokenslo", "exporter", "--interval", "200ms"),
                *("--listen", f"{HOST}:{ports[0]}", "--trtllm", server.url),
                *("--tap", f"proxy={HOST}:{proxy}={HOST}:{server.ports[0]}"),
            ]

        log = tmp_path / "sidecar.log"
        with process.serve(ServerProcess, "sidecar", command, log, ready="/healthz") as sidecar:
            complete(proxy, 8)
            wait_until(lambda: "llm_streams_total{" in get(sidecar.ports[0], "/metrics")[1])
            text = first_file(tmp_path, f"http://{HOST}:{sidecar.ports[0]}/metrics")
    [objectives] = objectives_of(tmp_path).values()
    assert {"goodput", "completion"} <= objectives.keys()
    assert "--tap" not in text
    assert "p95 now about" in text


def test_existing_file_is_not_overwritten(test_triton: Triton, tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text("mine\n")
    done = tokenslo("init", test_triton.url, "-o", str(path))
    assert done.returncode == 2
    assert done.stderr == f"tokenslo: {path}: is there already. Fix: give --force to replace it.\n"
    assert path.read_text() == "mine\n"
    assert tokenslo("init", test_triton.url, "-o", str(path), "--force").returncode == 0
    assert path.read_text().startswith("# Begun by tokenslo")


def test_missing_server_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        done = tokenslo("init", url, "-o", str(tmp_path / "slo.yaml"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"tokenslo init: {url}/v2 refused the connection: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "slo.yaml").exists()
