"""Metrics pushed into a real receiver, from a sidecar beside a real Triton: the same everywhere."""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from lab import victoriametrics
from lab.process import HOST, ServerProcess, get, serve
from lab.repository import write_repository
from lab.triton import Triton
from lab.victoriametrics import VictoriaMetrics
from tests.polling import read_until, wait_until
from tests.triton_models import ARGUMENTS, write_models

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

GENAI = {
    "llm_time_to_first_token_seconds": "gen_ai_server_time_to_first_token_seconds",
    "llm_request_duration_seconds": "gen_ai_server_request_duration_seconds",
}
RESOURCE = {
    "service.name": "chat-sidecar",
    "service.instance.id": "pod-7",
    "deployment.environment.name": "test",
}
# What moves while nothing happens.
ORIGIN = ("service_", "deployment_")
MOVING = ("_age_seconds", "_read_seconds", "_otlp_exports_total")


@pytest.fixture(scope="module")
def receiver(
    part: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VictoriaMetrics]:
    folder = tmp_path_factory.mktemp("receiver")
    with victoriametrics.start(part("victoria-metrics"), folder) as running:
        yield running


@pytest.fixture(scope="module")
def server(
    triton: Callable[..., Triton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Triton]:
    folder = tmp_path_factory.mktemp("server")
    write_models(folder / "models", ("plain", "vllm_llm"))
    write_repository(folder / "models")
    with triton(folder / "models", folder, arguments=ARGUMENTS) as running:
        yield running


@contextmanager
def sidecar(server: Triton, folder: Path, endpoint: str, interval: str) -> Iterator[ServerProcess]:
    def command(ports: Sequence[int]) -> list[str]:
        return [
            *(sys.executable, "-m", "tokenslo", "exporter", "--triton", server.url),
            *("--triton-metrics", server.metrics, "--listen", f"{HOST}:{ports[0]}"),
            *("--interval", "200ms", "--otlp-endpoint", endpoint, "--otlp-interval", interval),
        ]

    attributes = dict(RESOURCE)
    environ = os.environ | {
        "OTEL_SERVICE_NAME": attributes.pop("service.name"),
        "OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{k}={v}" for k, v in attributes.items()),
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    log = folder / "sidecar.log"
    with serve(ServerProcess, "sidecar", command, log, ready="/healthz", env=environ) as running:
        yield running


def send_request(server: Triton, model: str, **request: object) -> None:
    verb = "generate" if model == "plain" else "generate_stream"
    connection = http.client.HTTPConnection(HOST, server.ports[0], timeout=20)
    connection.request("POST", f"/v2/models/{model}/{verb}", json.dumps(request))
    assert connection.getresponse().read()
    connection.close()


def on_metrics(text: str) -> Series:
    return {
        (sample.name, _labels(sample.labels)): sample.value
        for family in parse(text)
        for sample in family.samples
        if not sample.name.endswith(MOVING) and not sample.name.startswith("process_")
    }


def received(receiver: VictoriaMetrics) -> Series:
    """Return the last pushed values, without resource attributes."""
    series = [one for one in receiver.series() if "service_name" in one["metric"]]
    last = max((one["timestamps"][-1] for one in series), default=0)
    found: Series = {}
    for one in series:
        labels = dict(one["metric"])
        name = labels.pop("__name__")
        if one["timestamps"][-1] == last and not name.endswith(MOVING):
            kept = {k: text for k, text in labels.items() if not k.startswith(ORIGIN)}
            found[name, _labels(kept)] = one["values"][-1]
    return found


def _labels(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Drop empty labels, which are none to Prometheus, and write edges in one way."""
    return frozenset(
        (key, repr(float(text)) if key == "le" else text) for key, text in labels.items() if text
    )


def as_pushed(shown: Series, server: Triton) -> Series:
    """Return the series of ``/metrics``, and some once more under OpenTelemetry's names."""
    pushed: Series = dict(shown)
    for (name, labels), value in shown.items():
        genai = next((name.replace(k, v) for k, v in GENAI.items() if name.startswith(k)), None)
        if genai:
            old = dict(labels)
            model, version = old.pop("model"), old.pop("version")
            more = {
                "gen_ai_operation_name": "text_completion",
                "gen_ai_provider_name": "nvidia.triton",
                "gen_ai_request_model": model,
                "gen_ai_response_model": model,
                "tokenslo_model_version": version,
                "server_address": HOST,
                "server_port": str(server.ports[0]),
            }
            pushed[genai, _labels(old | more)] = value
    return pushed


def test_receiver_has_the_series_of_metrics(
    server: Triton, receiver: VictoriaMetrics, tmp_path: Path
) -> None:
    with sidecar(server, tmp_path, receiver.otlp, "300ms") as running:
        wait_until(lambda: is_ready(running))
        for _ in range(3):
            send_request(server, "plain", text_input="a b c")
            send_request(server, "vllm_llm", text_input="a b c", max_tokens=4)
            send_request(server, "tensorrt_llm", text_input="a b c", max_tokens=20, stream=True)
        settled = steady_metrics(running)
    wanted = as_pushed(settled, server)
    # Received samples can be queried a moment later.
    read_until(lambda: len(received(receiver)), lambda count: count == len(wanted), 5, 0.1)
    pushed_series = received(receiver)
    assert pushed_series.keys() == wanted.keys()
    assert pushed_series == pytest.approx(wanted, rel=1e-12)
    names = {name for name, _ in pushed_series}
    assert {
        "gen_ai_server_time_to_first_token_seconds_bucket",
        "gen_ai_server_request_duration_seconds_sum",
        "llm_inter_token_latency_seconds_bucket",
        "llm_requests_total",
        "llm_sequences",
        "llm_kv_cache_utilization_ratio",
        "llm_memory_bytes",
        "tokenslo_signal_info",
        "tokenslo_ready",
    } <= names


def test_last_values_are_pushed_at_shutdown(
    server: Triton, receiver: VictoriaMetrics, tmp_path: Path
) -> None:
    labels = {"model": "vllm_llm", "version": "1", "direction": "output"}
    output = "llm_tokens_total", _labels(labels)
    with sidecar(server, tmp_path, f"{receiver.otlp}/v1/metrics", "1h") as running:
        wait_until(lambda: is_ready(running))
        send_request(server, "vllm_llm", text_input="a b c", max_tokens=7)
        wait_until(lambda: shown(running).get(output) == 7)
    wait_until(lambda: received(receiver).get(output) == 7)


def test_resource_attributes_come_from_standard_variables(receiver: VictoriaMetrics) -> None:
    sent = [one["metric"] for one in receiver.series() if "service_name" in one["metric"]]
    assert sent
    wanted = {key.replace(".", "_"): text for key, text in RESOURCE.items()}
    for labels in sent:
        assert {key: labels.get(key) for key in wanted} == wanted


def shown(running: ServerProcess) -> Series:
    """Return what a sidecar shows on ``/metrics``."""
    return on_metrics(get(running.ports[0], "/metrics")[1])


def steady_metrics(running: ServerProcess) -> Series:
    """Return the metrics after five intervals of scrapes without a change."""
    previous: Series = {}

    def is_steady(found: Series) -> bool:
        nonlocal previous
        before, previous = previous, found
        return bool(before) and found == before

    found = read_until(lambda: shown(running), is_steady, 20, 1.0)
    assert found == previous
    return found


def is_ready(running: ServerProcess) -> bool:
    return get(running.ports[0], "/readyz")[0] == 200
