"""An idle, healthy deployment pages no one for an hour: every engine, with every kind of tap.

Real sidecars beside idle servers are scraped from their start.  A real Prometheus then gets an hour
of history that goes on as the last scrapes did: what was unchanged stays unchanged, and ages and
counters of the sidecar itself grow at the pace they had.  Every rule that the SLO file generates
is evaluated over that hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lab import trtllm_server
from lab.engine_settings import EngineSettings
from lab.process import HOST, free_ports
from lab.prometheus import Prometheus
from lab.repository import write_repository
from lab.triton import Triton
from tests.fake_server import fake_server
from tests.fake_triton import config, core, fake_triton
from tests.packet_capture import need_capture
from tests.rule_values.replay import replaying
from tests.rule_values.rule_files import Alert, firing, generated_rules, history, parsed
from tests.rule_values.traffic import Samples
from tests.test_exporter_command import get, start

CAPTURES = Path(__file__).parent.parent / "captures"
SCRAPE = 15
"""Seconds between scrapes in the history; in truth a second passes between them."""
STARTING = 8
"""Scrapes of the sidecar as it starts."""
HOUR = 3600
TAPS = ("none", "proxy", "capture")
ABSOLUTE = "process_start_time_seconds"
SLO = """\
apiVersion: tokenslo/v1
service: {service}
owner: inference
selector: {{model: {model}, cluster: {service}}}
window: 28d
objectives:
  - {{name: first-token, indicator: ttft, threshold: 800ms, target: 95%}}
  - {{name: token-gap, indicator: itl, threshold: 60ms, target: 99%}}
  - {{name: stall, indicator: max_gap, threshold: 2s, target: 99%}}
  - {{name: availability, indicator: availability, target: 99.9%}}
  - {{name: completion, indicator: stream_completion, target: 99%}}
  - {{name: goodput, indicator: goodput, clauses: {{ttft: 800ms, tpot: 60ms}}, target: 95%}}
  - {{name: kv-headroom, indicator: kv_headroom, threshold: 90%, target: 99%}}
  - {{name: sequence-headroom, indicator: sequence_headroom, threshold: 95%, target: 99%}}
alerting:
  page: {{labels: {{severity: critical}}}}
  ticket: {{labels: {{severity: warning}}}}
"""
IDLE_TENSORRT_LLM = """\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="chat",request_type="active",version="1"} 0
nv_trt_llm_request_metrics{model="chat",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="chat",request_type="scheduled",version="1"} 0
nv_trt_llm_request_metrics{model="chat",request_type="context",version="1"} 0
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="chat",version="1"} 1000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="chat",version="1"} 0
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="chat",version="1"} 1000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="chat",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="chat",version="1"} 0
"""

Start = Callable[..., Prometheus]


@dataclass(frozen=True, slots=True)
class IdleServer:
    """A running server: its ``model``, its ``port``, and the sidecar's ``flags`` to read it."""

    model: str
    port: int
    flags: tuple[str, ...]


@pytest.fixture(scope="module")
def triton_python(
    triton: Callable[..., Triton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[IdleServer]:
    folder = tmp_path_factory.mktemp("triton-python")
    write_repository(folder / "models", engine=EngineSettings())
    with triton(folder / "models", folder) as server:
        flags = ("--triton", server.url, "--triton-metrics", server.metrics)
        yield IdleServer("tensorrt_llm", server.ports[0], flags)


@pytest.fixture(scope="module")
def trtllm_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdleServer]:
    with trtllm_server.start(tmp_path_factory.mktemp("trtllm-serve")) as server:
        yield IdleServer("simulated", server.ports[0], ("--trtllm", server.url))


@asynccontextmanager
async def triton_tensorrtllm() -> AsyncIterator[IdleServer]:
    """Serve what an idle C++ backend reports: the backend itself needs a GPU."""
    answers = {
        "metrics": core() + IDLE_TENSORRT_LLM,
        "configs": {"chat": config("tensorrtllm")},
    }
    async with fake_triton(**answers) as server:
        flags = ("--triton", server.url, "--triton-metrics", f"{server.url}/metrics")
        yield IdleServer("chat", urlsplit(server.url).port or 0, flags)


@asynccontextmanager
async def vllm() -> AsyncIterator[IdleServer]:
    answers = {
        "/health": "",
        "/version": {"version": "0.33.0"},
        "/metrics": (CAPTURES / "vllm_standalone_by_hand.txt").read_text(),
    }
    async with fake_server(dict(answers)) as server:
        port = urlsplit(server.url).port or 0
        yield IdleServer("example/chat-8b", port, ("--vllm", server.url))


@pytest.mark.long
@pytest.mark.parametrize("engine", ["triton-tensorrtllm", "triton-python", "trtllm-serve", "vllm"])
async def test_idle_deployments_page_no_one(
    engine: str, request: pytest.FixtureRequest, prometheus: Start, tmp_path: Path
) -> None:
    need_capture()
    async with AsyncExitStack() as stack:
        served = await _served(engine, request, stack)
        deployments = await asyncio.gather(
            *(_scraped(served, tap, f"{engine}-{tap}", tmp_path) for tap in TAPS)
        )
    fired = await asyncio.to_thread(_fired, deployments, prometheus, tmp_path)
    pages = {alert: at for alert, at in fired.items() if alert[1] == "critical"}
    assert pages == {}, fired


async def _served(engine: str, request: pytest.FixtureRequest, stack: AsyncExitStack) -> IdleServer:
    if engine == "triton-tensorrtllm":
        return await stack.enter_async_context(triton_tensorrtllm())
    if engine == "vllm":
        return await stack.enter_async_context(vllm())
    found: IdleServer = request.getfixturevalue(engine.replace("-", "_"))
    return found


async def _scraped(served: IdleServer, tap: str, service: str, folder: Path) -> Samples:
    """Run a sidecar and return an hour of history as its scrapes begin it."""
    slo = folder / f"{service}.yaml"
    slo.write_text(SLO.format(service=service, model=served.model))
    (listen, proxy) = free_ports(2)
    taps = {
        "none": (),
        "proxy": ("--tap", f"proxy={HOST}:{proxy}={HOST}:{served.port}"),
        "capture": ("--tap", f"capture=lo:{served.port}"),
    }
    process = await start(
        *(*served.flags, *taps[tap], "--slo", str(slo), "--listen", f"{HOST}:{listen}")
    )
    try:
        assert process.stdout is not None
        first = await asyncio.wait_for(process.stdout.readline(), 30)
        assert b"metrics http" in first, first
        texts = []
        for _ in range(STARTING):
            status, text = await get(f"http://{HOST}:{listen}/metrics")
            assert status == 200
            texts.append(text)
            await asyncio.sleep(1)
        assert (await get(f"http://{HOST}:{listen}/readyz"))[0] == 200
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()
    return history([parsed(text) for text in texts], SCRAPE, HOUR, cluster=service)


def _fired(
    deployments: Sequence[Samples], prometheus: Start, folder: Path
) -> Mapping[Alert, float]:
    files = sorted(folder.glob("*.yaml"))
    rules = [path for slo in files for path in generated_rules(slo, folder / "out")]
    with replaying(prometheus, folder / "prometheus") as replay:
        for scraped in deployments:
            replay.add(scraped)
        return firing(replay, rules, HOUR)
