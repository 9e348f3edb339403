"""Readiness beside a real Triton: expected models, probes, and an engine that hangs."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.engine_settings import EngineSettings
from lab.process import HOST, ServerProcess, get, serve
from lab.repository import write_repository
from lab.triton import Triton
from tests.packet_capture import need_capture
from tests.polling import read_until, wait_until
from tests.triton_models import ARGUMENTS, write_models

LLM = "tensorrt_llm"


@pytest.fixture(scope="module")
def server(
    triton: Callable[..., Triton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("server")
    write_models(folder / "models", ("plain", "failing", "pipeline", "vllm_llm", "streaming"))
    write_repository(folder / "models", engine=EngineSettings())
    with triton(folder / "models", folder, arguments=ARGUMENTS) as running:
        yield running


@contextmanager
def sidecar(server: Triton, folder: Path, *arguments: str) -> Iterator[ServerProcess]:
    def command(ports: Sequence[int]) -> list[str]:
        return [
            *(sys.executable, "-m", "tokenslo", "exporter", "--triton", server.url),
            *("--triton-metrics", server.metrics, "--listen", f"{HOST}:{ports[0]}"),
            *("--interval", "200ms", *arguments),
        ]

    with serve(ServerProcess, "sidecar", command, folder / "log", ready="/healthz") as running:
        yield running


def layers(running: ServerProcess) -> tuple[int, dict[str, tuple[bool | None, str]]]:
    status, text = get(running.ports[0], "/readyz")
    found: list[dict[str, Any]] = json.loads(text)["layers"]
    return status, {f"{one['layer']} {one['name']}": (one["ready"], one["reason"]) for one in found}


def eventually(
    running: ServerProcess,
    is_so: Callable[[int, dict[str, tuple[bool | None, str]]], bool],
    seconds: float = 20,
) -> None:
    found = read_until(lambda: layers(running), lambda found: is_so(*found), seconds, 0.1)
    assert is_so(*found), found


def send_request(server: Triton, tokens: int, model: str = LLM, port: int = 0) -> None:
    connection = http.client.HTTPConnection(HOST, port or server.ports[0], timeout=60)
    body = {"text_input": "a b c", "max_tokens": tokens} | (
        {"stream": True} if model == LLM else {}
    )
    connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(body))
    connection.getresponse().read()
    connection.close()


def test_expected_models_probes_and_gateway_gauges(server: Triton, tmp_path: Path) -> None:
    models = ("plain", "pipeline", "vllm_llm", LLM)
    probes = [word for model in models for word in ("--probe", model)]
    tap = f"proxy={HOST}:0={HOST}:{server.ports[0]}"
    arguments = (*probes, "--probe-interval", "1s", "--expect-model", "plain:1",
                 "--gateway-metrics", "vllm", "--tap", tap)  # fmt: skip
    with sidecar(server, tmp_path, *arguments) as running:
        eventually(
            running,
            lambda status, found: (
                status == 200
                and all(found[f"probe {model}"] == (True, "") for model in models)
                and found.get(f"backend {LLM}") == (True, "")
                and found.get(f"decode {LLM}") == (True, "")
            ),
        )
        assert layers(running)[1]["model plain"] == (True, "")
        gateway = f'{{model_name="{LLM}",version="1"}}'
        idle = f"vllm:num_requests_running{gateway} 0.0"
        # A probe may be running.
        text = read_until(lambda: get(running.ports[0], "/metrics")[1], lambda found: idle in found)
    # The server counts probes; the tap counts clients' requests, and there were none.
    requests = re.findall(rf'^llm_requests_total{{model="{LLM}",.*}} (.+)$', text, re.MULTILINE)
    assert set(requests) == {"0.0"}
    assert f"vllm:num_requests_waiting{gateway} 0.0" in text
    assert idle in text
    assert f"vllm:kv_cache_usage_perc{gateway} 0." in text
    assert f'vllm:cache_config_info{{block_size="32",model_name="{LLM}",num_gpu_blocks="' in text
    assert f'tokenslo_probe_success{{model="{LLM}"}} 1.0' in text
    assert f'tokenslo_ready{{layer="decode",model="{LLM}",source="",version="1"}} 1.0' in text


def test_missing_expected_model_is_not_ready(server: Triton, tmp_path: Path) -> None:
    arguments = ("--expect-model", "mistral", "--expect-model", "plain:2")
    with sidecar(server, tmp_path, *arguments) as running:
        reasons = {
            "model mistral is not on the server",
            "model plain, version 2, is not on the server",
        }
        eventually(
            running,
            lambda status, found: status == 503 and reasons <= {why for _, why in found.values()},
        )
        assert get(running.ports[0], "/healthz")[0] == 200


def test_hung_engine_is_not_ready_until_it_resumes(server: Triton, tmp_path: Path) -> None:
    # No request may come while the process of the model is stopped: this Triton would crash.
    with sidecar(server, tmp_path, "--stuck-after", "2s") as running:
        send_request(server, 5)
        eventually(running, lambda _, found: found.get(f"decode {LLM}") == (True, ""))
        active = f'llm_sequences{{model="{LLM}",state="active",version="1"}}'
        eventually_metric(running, f"{active} 0.0")
        client = threading.Thread(target=send_request, args=(server, 400))
        client.start()
        eventually_metric(running, f"{active} 1.0")
        process = model_process(server)
        os.kill(process, signal.SIGSTOP)
        try:
            eventually(
                running,
                lambda status, found: (
                    status == 503
                    and found[f"decode {LLM}"][0] is False
                    and "decoding is stuck: 1 active" in found[f"decode {LLM}"][1]
                ),
            )
            assert get(running.ports[0], "/healthz")[0] == 200
        finally:
            os.kill(process, signal.SIGCONT)
        eventually(running, lambda status, _: status == 200)
        client.join()


@pytest.mark.parametrize(
    ("tap", "model"),
    [
        ("proxy", "streaming"),
        pytest.param("capture", LLM, marks=pytest.mark.long),
        pytest.param("proxy", LLM, marks=pytest.mark.long),
        pytest.param("capture", "streaming", marks=pytest.mark.long),
    ],
)
def test_streams_at_a_tap_reveal_a_hang(
    server: Triton, tmp_path: Path, tap: str, model: str
) -> None:
    # The engine is at work before the sidecar starts, so its gauges were never seen idle, and
    # `streaming` publishes none.
    if tap == "capture":
        need_capture()
    before = [threading.Thread(target=send_request, args=(server, 300, model)) for _ in range(2)]
    for client in before:
        client.start()
    spec = {"proxy": f"{HOST}:0={HOST}:{server.ports[0]}", "capture": f"lo:{server.ports[0]}"}[tap]
    with sidecar(server, tmp_path, "--stuck-after", "2s", "--tap", f"{tap}={spec}") as running:
        text = (tmp_path / "log").read_text()
        found = re.search(rf"proxy={HOST}:(\d+)=", text)
        port = int(found[1]) if tap == "proxy" and found else server.ports[0]
        clients = [
            threading.Thread(target=send_request, args=(server, 300, model, port)) for _ in range(3)
        ]
        for client in clients:
            client.start()
        is_ready = f'tokenslo_ready{{layer="decode",model="{model}",source="",version="1"}}'
        eventually(running, lambda _, found: found.get(f"decode {model}") == (True, ""))
        eventually_metric(running, f'llm_live_streams{{model="{model}",version="1"}} 3.0')
        process = model_process(server, model)
        os.kill(process, signal.SIGSTOP)
        try:
            eventually(
                running,
                lambda status, found: (
                    status == 503
                    and found[f"decode {model}"][0] is False
                    and "3 streams wait at the tap" in found[f"decode {model}"][1]
                ),
            )
            # Long enough for the samples that the stopped process published to expire.
            time.sleep(6)
            status, known = layers(running)
            assert (status, known[f"decode {model}"][0]) == (503, False), known
            assert f"{is_ready} 0.0" in get(running.ports[0], "/metrics")[1]
            page = get(running.ports[0], "/")[1]
            assert '<h1 class="bad">Not ready</h1>' in page
            assert "3 streams wait at the tap" in page
            log = (tmp_path / "log").read_text()
            assert f"readiness of decode {model}: {model}: decoding is stuck" in log
        finally:
            os.kill(process, signal.SIGCONT)
        eventually(running, lambda status, _: status == 200)
        for client in (*before, *clients):
            client.join()


def eventually_metric(running: ServerProcess, line: str) -> None:
    wait_until(lambda: line in get(running.ports[0], "/metrics")[1])


def model_process(server: Triton, model: str = LLM) -> int:
    """Return the process of the model."""
    for each in Path(f"/proc/{server.pid}/task").glob("*/children"):
        for child in each.read_text().split():
            if f"/{model}/" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
    raise AssertionError("no process of the model was found")
