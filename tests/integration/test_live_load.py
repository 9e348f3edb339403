"""Load tests through a sidecar before real servers, and with a real aiperf."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab import aiperf
from lab.engine_settings import EngineSettings
from lab.process import HOST, ServerProcess, free_ports, get, serve
from lab.repository import write_repository
from lab.triton import Triton
from lab.trtllm_server import start
from tests.polling import read_until

pytestmark = [pytest.mark.alone, pytest.mark.long]

SLO = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: tensorrt_llm}
objectives:
  - {name: first-token, indicator: ttft, threshold: 5s, target: 90%}
  - {name: goodput, indicator: goodput, clauses: {ttft: 5s, max_gap: 5s}, target: 90%}
"""
ENGINE = EngineSettings(step_seconds=0.01, sequence_seconds=0.0, context_token_seconds=0.0)
TOLERANCE = 0.05
"""Seconds between means; clients share two cores with the servers."""


@contextmanager
def sidecar(
    server: ServerProcess, port: int, folder: Path, *sources: str
) -> Iterator[tuple[ServerProcess, str]]:
    """Start a sidecar with a proxy before a server's port; yield it and the proxy's URL."""
    (tap,) = free_ports(1)
    (folder / "slo.yaml").write_text(SLO)

    def command(ports: Sequence[int]) -> list[str]:
        return [
            *(sys.executable, "-m", "tokenslo", "exporter", *sources),
            *("--tap", f"proxy={HOST}:{tap}={HOST}:{port}", "--listen", f"{HOST}:{ports[0]}"),
            *("--slo", str(folder / "slo.yaml")),
        ]

    with serve(ServerProcess, "sidecar", command, folder / "log", ready="/healthz") as running:
        yield running, f"http://{HOST}:{tap}"


def load(url: str, folder: Path, *arguments: str) -> Any:
    """Run a load test; return its report."""
    command = [
        *(sys.executable, "-m", "tokenslo", "load", url, "--model", "tensorrt_llm", "--json"),
        *("--concurrency", "3", "--duration", "2s", "--warm-up", "200ms", "--cool-down", "0s"),
        *("--prompt-tokens", "16", "--output-tokens", "12", *arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.stderr == ""
    return json.loads(done.stdout)


def check_equal_measurements(report: Any, *signals: str) -> None:
    """Check that counts are equal, and means as near as two busy cores allow."""
    found = report["sidecar"]
    assert found["client_requests"] == found["sidecar_requests"] > 3
    assert [each["signal"] for each in found["signals"]] == [*signals]
    for each in found["signals"]:
        # A busy sidecar excludes gaps around chunks that it read late, and counts them.
        missing = each["client_count"] - each["sidecar_count"]
        assert 0 <= missing <= each["excluded"], each["signal"]
        assert abs(each["difference"]) < TOLERANCE, each["signal"]
    [goodput] = found["goodput"]
    assert goodput["client"] == goodput["sidecar"]


@pytest.fixture(scope="module")
def server(
    triton: Callable[..., Triton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("triton")
    write_repository(folder / "models", engine=ENGINE)
    with triton(folder / "models", folder) as running:
        yield running


@pytest.mark.parametrize(("api", "port"), [("generate", 0), ("grpc", 1)])
def test_client_and_sidecar_agree_before_triton(
    server: Triton, api: str, port: int, tmp_path: Path
) -> None:
    sources = ("--triton", server.url, "--triton-metrics", server.metrics)
    with sidecar(server, server.ports[port], tmp_path, *sources) as (running, url):
        report = load(url, tmp_path, "--api", api, "--slo", "slo.yaml", "--sidecar", running.url)
    [level] = report["endpoints"][0]["levels"]
    assert level["outcomes"] == {"ok": level["requests"]}
    # Triton reports no token counts, so the work is not known to be matched.
    assert level["matched_work"]["uncounted"] == level["requests"]
    assert level["matched_work"]["chunks"] == 12
    check_equal_measurements(report, "ttft", "itl", "tpot", "e2e")


def test_client_and_sidecar_agree_before_trtllm_serve(tmp_path: Path) -> None:
    with (
        start(tmp_path / "server", engine=ENGINE) as server,
        sidecar(server, server.ports[0], tmp_path, "--trtllm", server.url) as (running, url),
    ):
        slo = ("--slo", "slo.yaml", "--sidecar", running.url)
        report = load(url, tmp_path, *slo, "--cancel", "20%")
        direct = load(server.url, tmp_path, "--slo", "slo.yaml", "--sidecar", running.url)
    [level] = report["endpoints"][0]["levels"]
    assert level["matched_work"]["matched"] == level["outcomes"]["ok"]
    assert level["tokens_counted_by"] == "server"
    found = report["sidecar"]
    assert found["client_requests"] == found["sidecar_requests"] > 3
    assert abs(found["signals"][0]["difference"]) < TOLERANCE
    # A load that does not pass the tap is not what the sidecar recorded.
    assert direct["sidecar"]["agrees"] is False
    assert direct["sidecar"]["sidecar_requests"] == 0


def token_seconds(request: Mapping[str, float]) -> float:
    """Return the tokens that the engine held for a request x seconds, by the engine's own times."""
    scheduled, first, last = (
        request[f"{name}_time"] for name in ("first_scheduled", "first_token", "last_token")
    )
    prompt, output = request["prompt_tokens"], request["output_tokens"]
    return prompt * (last - scheduled) + output * (last - first) / 2


def test_kv_token_seconds_agree_with_the_engine(tmp_path: Path) -> None:
    with (
        start(tmp_path / "server", engine=ENGINE) as server,
        sidecar(server, server.ports[0], tmp_path, "--trtllm", server.url) as (running, url),
    ):
        long_prompts = ("--prompt-tokens", "300", "--output-tokens", "40")
        load(url, tmp_path, "--slo", "slo.yaml", *long_prompts)
        requests = json.loads(get(server.ports[0], "/lab/truth")[1])["requests"]

        def reported() -> float:
            samples = text_string_to_metric_families(get(running.ports[0], "/metrics")[1])
            return sum(
                sample.value
                for family in samples
                for sample in family.samples
                if sample.name == "llm_kv_cache_token_seconds_total"
            )

        held = pytest.approx(sum(map(token_seconds, requests)), rel=0.15)
        assert read_until(reported, lambda found: found == held, 5.0, 0.2) == held


@pytest.fixture(scope="module")
def aiperf_program() -> Path:
    faulthandler.cancel_dump_traceback_later()  # the download may take longer than a test
    return aiperf.program(print)


def test_aiperf_drives_the_load(
    aiperf_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tmp_path / "tokenizer"
    aiperf.write_tokenizer(aiperf_program, tokenizer)
    monkeypatch.setenv("PATH", str(aiperf_program.parent), prepend=os.pathsep)
    with start(tmp_path / "server", engine=ENGINE) as server:
        driver = ("--driver", "aiperf", "--aiperf-tokenizer", str(tokenizer))
        report = load(server.url, tmp_path, *driver)
    [level] = report["endpoints"][0]["levels"]
    assert report["driver"] == "aiperf"
    assert report["workload"]["cool_down_seconds"] is report["workload"]["max_in_flight"] is None
    assert level["requests"] > 3
    assert level["outcomes"] == {"ok": level["requests"]}
    assert level["matched_work"]["matched"] == level["requests"]
    assert 0.005 < level["latencies"]["itl"]["p50"] < 0.1
