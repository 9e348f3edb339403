"""``--tap-inject perf-metrics``: the proxy requests engine timing, and clients never see it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from exporter.sources.trtllm.request_timing import SPANS
from lab import trtllm_server
from lab.engine_settings import EngineSettings
from lab.process import HOST, ServerProcess, free_ports, get, serve
from lab.repository import write_repository
from lab.triton import Triton
from lab.trtllm_serve.settings import ServeSettings
from tests.polling import wait_until

PATIENCE = 20.0
# Prefill takes 30 ms for a prompt of this length and decode 20 ms for a token.
ENGINE = EngineSettings(step_seconds=0.02, sequence_seconds=0.0, jitter=0)
TOKENS = 6
REQUESTS = 5
STAGES = ("queue", "prefill", "decode")
LEAST_DECODE = (TOKENS - 1) * ENGINE.step_seconds


class ProxySidecar(ServerProcess):
    """A sidecar with a proxy before a server; `url` is that of its own pages."""

    proxy: int

    def value(self, pattern: str) -> float | None:
        """Return the value of the series whose line matches."""
        match = re.search(rf"^{pattern} (\S+)$", get(self.ports[0], "/metrics")[1], re.MULTILINE)
        return float(match[1]) if match else None


def sidecar(folder: Path, upstream: int, *flags: str) -> ProxySidecar:
    (proxy,) = free_ports(1)

    def command(ports: Sequence[int]) -> list[str | Path]:
        return [
            *(sys.executable, "-m", "tokenslo", "exporter", "--listen", f"{HOST}:{ports[0]}"),
            *("--tap", f"proxy={HOST}:{proxy}={HOST}:{upstream}", "--interval", "200ms", *flags),
        ]

    running = serve(ProxySidecar, "sidecar", command, folder / "sidecar.log", ready="/healthz")
    running.proxy = proxy
    return running


def answer(port: int, path: str, body: dict[str, object], **headers: str) -> tuple[str, str]:
    """Return the head's fields and the body of an answer."""
    connection = HTTPConnection(HOST, port, timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 200
    text = response.read().decode()
    connection.close()
    return str(response.headers), text


def seconds(of: ProxySidecar, stage: str, model: str) -> float:
    """Return the mean of a stage."""
    labels = rf'\{{model="{model}",version="1?"\}}'
    total, count = (
        of.value(f"llm_request_{stage}_seconds_{part}{labels}") for part in ("sum", "count")
    )
    assert total is not None
    assert count
    return total / count


def truth(server: ServerProcess, since: float = 0.0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(server.ports[0], f"/lab/truth?since={since}")[1])
    return found


@pytest.fixture(scope="module")
def triton_server(
    triton: Callable[..., Triton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("injection")
    write_repository(folder / "models", engine=ENGINE)
    with triton(folder / "models", folder) as running:
        yield running


@pytest.fixture(scope="module")
def look_alike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = ServeSettings(model="chat")
    with trtllm_server.start(tmp_path_factory.mktemp("look-alike"), settings, ENGINE) as running:
        yield running


BODY: dict[str, object] = {"text_input": "one two three four", "max_tokens": TOKENS, "stream": True}
STREAM = "/v2/models/tensorrt_llm/generate_stream"


def test_triton_reports_timing_and_clients_get_unchanged_responses(
    triton_server: Triton, tmp_path: Path
) -> None:
    direct = answer(triton_server.ports[0], STREAM, BODY)[1]
    with sidecar(tmp_path, triton_server.ports[0], "--tap-inject", "perf-metrics") as beside:
        for verb in ("generate_stream", "generate"):
            path, body = STREAM.replace("generate_stream", verb), dict(BODY)
            body["stream"] = verb == "generate_stream"
            plain = answer(triton_server.ports[0], path, body)[1]
            timed = answer(triton_server.ports[0], path, body | {"return_perf_metrics": True})[1]
            assert "arrival_time_ns" in timed
            assert "arrival_time_ns" not in plain
            for _ in range(REQUESTS):
                assert answer(beside.proxy, path, body)[1] == plain
        # A client that requests the field gets it.
        requested = answer(beside.proxy, STREAM, BODY | {"return_perf_metrics": True})[1]
        assert "arrival_time_ns" in requested
        assert answer(beside.proxy, STREAM, BODY)[1] == direct

        def asked_for_all_but_the_first() -> bool:
            count = beside.value(
                r'llm_request_prefill_seconds_count\{model="tensorrt_llm",version="1"\}'
            )
            return count == 2 * REQUESTS + 1

        wait_until(asked_for_all_but_the_first)
        # The engine's own clock: five gaps of 20 ms between six tokens.
        assert seconds(beside, "decode", "tensorrt_llm") == pytest.approx(0.1, abs=0.03)
        assert 0 < seconds(beside, "prefill", "tensorrt_llm") < 0.1
        assert seconds(beside, "queue", "tensorrt_llm") < 0.05
        # The first request was sent before the inputs of the model were known.
        info = r'tokenslo_signal_info\{method="(\w+)",model="tensorrt_llm",.*signal="prefill",.*\}'
        (method,) = re.findall(info, get(beside.ports[0], "/metrics")[1])
        assert method == "wire_stages_sampled"


def test_without_injection_requests_are_unchanged(triton_server: Triton, tmp_path: Path) -> None:
    with sidecar(tmp_path, triton_server.ports[0]) as beside:
        for _ in range(3):
            assert "_time_ns" not in answer(beside.proxy, STREAM, BODY)[1]
        wait_until(
            lambda: beside.value(r'llm_requests_total\{model="tensorrt_llm".*outcome="ok".*\}')
        )
        assert beside.value(r"llm_request_prefill_seconds_count\{.*\}") is None


@pytest.mark.parametrize(
    ("streaming", "injecting"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.long),
        pytest.param(False, True, marks=pytest.mark.long),
    ],
)
def test_trtllm_serve_reports_timing_in_headers_and_events(
    look_alike: ServerProcess, tmp_path: Path, injecting: bool, streaming: bool
) -> None:
    """With the injection for all clients, without it for clients that request the timing."""
    body: dict[str, object] = {
        "model": "chat",
        "prompt": "one two three four",
        "max_tokens": TOKENS,
        "stream": streaming,
    }
    flags = ("--tap-inject", "perf-metrics") if injecting else ()
    extra = {} if injecting else {"X-TRTLLM-return-metrics": "1"}
    since = truth(look_alike)["mark"]
    with sidecar(tmp_path, look_alike.ports[0], *flags) as beside:
        for _ in range(REQUESTS):
            head, text = answer(beside.proxy, "/v1/completions", body, **extra)
            has_timing = "server_queue;dur=" in head + text
            assert has_timing != injecting
            assert ("[DONE]" in text) == streaming
        count = r'llm_request_queue_seconds_count\{model="chat",version=""\}'
        wait_until(lambda: beside.value(count) == REQUESTS)
        reported = {stage: seconds(beside, stage, "chat") for stage in STAGES}
    ended = truth(look_alike, since)["requests"]
    assert len(ended) == REQUESTS
    true = {
        stage: fmean(one[end] - one[begin] for one in ended)
        for stage, (begin, end) in SPANS.items()
        if stage in STAGES
    }
    assert true["decode"] > LEAST_DECODE
    if streaming:  # then the tap has seen for itself how long that took
        assert reported.pop("decode") == pytest.approx(true.pop("decode"), abs=0.03)
    assert reported == pytest.approx(true, abs=1e-5)
    assert reported["prefill"] > 0
