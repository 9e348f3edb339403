"""A real Triton with traced requests: its models, its arguments, and measuring clients.

Besides the model ``streaming`` of tests/triton_models there are ``chained``, an ensemble of it, and
``calling``, a model that calls it and hands on its trace.
"""

from __future__ import annotations

import json
import queue
import socket
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc

from lab.triton import Triton
from tests import triton_models

MODELS = ("plain", "streaming", "chained", "calling")

_TENSORS = """\
input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
"""
_CHAINED = f"""\
platform: "ensemble"
{_TENSORS}
ensemble_scheduling {{
  step {{
    model_name: "streaming" model_version: -1
    input_map {{ key: "text_input" value: "text_input" }}
    input_map {{ key: "max_tokens" value: "max_tokens" }}
    output_map {{ key: "text_output" value: "text_output" }}
  }}
}}
"""
_CALLING = f"""\
backend: "python"
model_transaction_policy {{ decoupled: true }}
{_TENSORS}
instance_group {{ kind: KIND_CPU count: 1 }}
"""
_CALLING_CODE = """\
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            call = pb_utils.InferenceRequest(
                model_name="streaming",
                requested_output_names=["text_output"],
                inputs=[
                    pb_utils.get_input_tensor_by_name(request, name)
                    for name in ("text_input", "max_tokens")
                ],
                trace=request.trace(),
            )
            for response in call.exec(decoupled=True):
                if response.output_tensors():
                    sender.send(pb_utils.InferenceResponse(response.output_tensors()))
            sender.send(flags=FINAL)
"""


def write_models(repository: Path) -> None:
    """Write the models into a model repository."""
    triton_models.write_models(repository, ("plain", "streaming"))
    for name, config in (("chained", _CHAINED), ("calling", _CALLING)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    (repository / "calling/1/model.py").write_text(_CALLING_CODE)


def arguments(url: str, rate: int = 1) -> list[str]:
    """Return the arguments with which Triton sends its traces to ``url``, within 0.2 s."""
    settings = (
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        f"rate={rate}",
        f"opentelemetry,url={url}/v1/traces",
        "opentelemetry,bsp_schedule_delay=200",
        "opentelemetry,bsp_max_export_batch_size=32",
    )
    return [f"--trace-config={setting}" for setting in settings]


def by_http(
    triton: Triton,
    model: str,
    text: str = "some words",
    headers: Mapping[str, str] | None = None,
    **more: int | str,
) -> list[float]:
    """Stream a response; return the seconds since sending of each event and of the end."""
    connection = HTTPConnection("127.0.0.1", triton.ports[0], timeout=60)
    verb = "generate_stream" if more else "generate"
    body = json.dumps({"text_input": text, **more})
    began = time.monotonic()
    connection.request("POST", f"/v2/models/{model}/{verb}", body, dict(headers or {}))
    response, times = connection.getresponse(), []
    while line := response.readline():
        if line.startswith(b"data: "):
            times.append(time.monotonic() - began)
    times.append(time.monotonic() - began)
    connection.close()
    return times


def disconnect_http(triton: Triton, model: str, after: float, **more: int) -> None:
    """Send a request, and disconnect after ``after`` seconds."""
    connection = HTTPConnection("127.0.0.1", triton.ports[0])
    body = json.dumps({"text_input": "some words", **more})
    connection.request("POST", f"/v2/models/{model}/generate_stream", body)
    time.sleep(after)
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()


def by_grpc(
    triton: Triton,
    model: str,
    words: int,
    *,
    text: str = "some words",
    requests: int = 1,
    final: bool = False,
    disconnect_after: float | None = None,
) -> list[list[float]]:
    """Send requests on one stream, 50 ms apart.

    Returns the seconds from each request to each of its responses.
    """
    found: list[list[float]] = []
    with grpc.InferenceServerClient(triton.grpc) as client:
        came: queue.SimpleQueue[float] = queue.SimpleQueue()
        client.start_stream(lambda result, error: came.put(time.monotonic()))
        for _ in range(requests):
            began = time.monotonic()
            client.async_stream_infer(
                model,
                [
                    _tensor("text_input", "BYTES", text.encode()),
                    _tensor("max_tokens", "INT32", words),
                ],
                enable_empty_final_response=final,
            )
            if disconnect_after is not None:
                time.sleep(disconnect_after)
                client.stop_stream(cancel_requests=True)
                return []
            expected = min(words, 3) if text == "mid" else words
            times = [came.get(timeout=30) - began for _ in range(expected + final)]
            found.append(times)
            time.sleep(0.05)
        client.stop_stream()
    return found


def _tensor(name: str, kind: str, value: bytes | int) -> grpc.InferInput:
    tensor = grpc.InferInput(name, [1], kind)
    tensor.set_data_from_numpy(np.array([value], np.object_ if kind == "BYTES" else np.int32))
    return tensor


TRACE_CONTEXT = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

RECORDED_PROBE = "tokenslo-probe"
"""The id in captures of the sidecar's own requests, whose real ids are random."""


def _probe(model: str) -> Callable[[Triton], object]:
    return lambda triton: by_http(triton, model, id=RECORDED_PROBE, max_tokens=2)


# Name: the traffic, and its number of requests.
SCENARIOS: Mapping[str, tuple[Callable[[Triton], object], int]] = {
    "whole": (lambda triton: by_http(triton, "plain"), 1),
    "http": (lambda triton: by_http(triton, "streaming", max_tokens=4), 1),
    "http_one_word": (lambda triton: by_http(triton, "streaming", max_tokens=1), 1),
    "http_no_word": (lambda triton: by_http(triton, "streaming", max_tokens=0), 1),
    "http_mid_error": (lambda triton: by_http(triton, "streaming", "mid", max_tokens=9), 1),
    "http_first_error": (lambda triton: by_http(triton, "streaming", "error", max_tokens=9), 1),
    "http_left": (lambda triton: disconnect_http(triton, "streaming", 0.07, max_tokens=50), 1),
    "http_context": (
        lambda triton: by_http(triton, "streaming", headers=TRACE_CONTEXT, max_tokens=2),
        1,
    ),
    "http_probe": (_probe("streaming"), 1),
    "ensemble_probe": (_probe("chained"), 1),
    "ensemble": (lambda triton: by_http(triton, "chained", max_tokens=3), 1),
    "called": (lambda triton: by_http(triton, "calling", max_tokens=3), 1),
    "grpc": (lambda triton: by_grpc(triton, "streaming", 4, requests=2), 2),
    "grpc_final": (lambda triton: by_grpc(triton, "streaming", 4, final=True), 1),
    "grpc_mid_error": (lambda triton: by_grpc(triton, "streaming", 9, text="mid"), 1),
    "grpc_left": (lambda triton: by_grpc(triton, "streaming", 50, disconnect_after=0.07), 1),
}
