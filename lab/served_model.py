"""The Triton model `tensorrt_llm`: a decoupled Python-backend model around the simulated engine.

Inputs are ``text_input``, ``max_tokens`` and ``stream``; the output is ``text_output``, one
response per token and an empty one with the final flag, as TensorRT-LLM's backends send them.  With
``return_perf_metrics`` the last response with text has the times of arrival, scheduling, first and
last token, in nanoseconds of a steady clock (docs/model_config.md of tensorrtllm_backend).  A
prompt has one token per word.  The request parameter ``fail_after`` makes the engine fail the
request after that number of tokens.

:func:`lab.repository.write_repository` copies this file into a model repository as ``model.py``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from lab.backend_metrics import BackendMetrics
from lab.driver import Driver
from lab.engine import SimulatedEngine
from lab.engine_events import TIMES, EngineEvent, EngineRequest, RequestMetrics
from lab.engine_faults import simulate_load
from lab.repository import read_settings

# The backends' stats_check_period_ms and cancellation_check_period_ms (config.pbtxt).
_CHECK_SECONDS = 0.1


@dataclass(slots=True)
class _SimulatedStream:
    """A running request; ``arrived`` is monotonic, in seconds."""

    sender: Any
    streaming: bool
    timed: bool
    input_tokens: int
    arrived: float
    words: list[str] = field(default_factory=list)
    responded: bool = False


class TritonPythonModel:
    """The class that Triton's Python backend loads from a model.py."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the engine, and the thread that detects cancellations and updates gauges."""
        engine, self._settings = read_settings(json.loads(args["model_config"]))
        name, version = args["model_name"], args["model_version"]
        faults_file = engine.faults_file.format(model=name, version=version)
        engine = replace(engine, faults_file=faults_file)
        simulate_load(faults_file)
        self._metrics = BackendMetrics(pb_utils.MetricFamily, name, version, self._settings.publish)
        self._first_response = self._make_first_response({"model": name, "version": version})
        self._frozen = False
        self._streams: dict[int, _SimulatedStream] = {}
        # Serializes senders: none may be used after its final flag.
        self._lock = threading.Lock()
        self._driver = Driver(SimulatedEngine(engine))
        self._closing = threading.Event()
        self._checks = threading.Thread(target=self._check, name="checks", daemon=True)
        self._checks.start()

    def execute(self, requests: list[Any]) -> None:
        """Submit the requests to the engine; responses are sent asynchronously."""
        for request in requests:
            self._start(request)

    def finalize(self) -> None:
        """Stop both threads."""
        self._closing.set()
        self._checks.join()
        self._driver.close()

    def _start(self, request: Any) -> None:
        prompt = tuple(_input(request, "text_input", b"").decode(errors="replace").split())
        max_tokens = int(_input(request, "max_tokens", 0))
        fail_after = json.loads(request.parameters() or "{}").get("fail_after")
        sender, streaming = request.get_response_sender(), bool(_input(request, "stream", False))
        timed = bool(_input(request, "return_perf_metrics", False))
        stream = _SimulatedStream(sender, streaming, timed, len(prompt), time.monotonic())
        try:
            with self._lock:
                work = EngineRequest(prompt, max_tokens, fail_after)
                self._streams[self._driver.submit(work, partial(self._deliver, stream))] = stream
        except ValueError as error:
            self._send(stream, pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _deliver(self, stream: _SimulatedStream, event: EngineEvent) -> None:
        """Forward one engine event to the client; runs on the engine's thread."""
        if event.index is not None:
            stream.words.append(event.text)
            if stream.streaming:
                self._send(stream, _text(stream.words[-1], self._times(stream, event)))
        if not event.final:
            return
        if event.finish_reason == "error":
            failed = pb_utils.TritonError("the engine failed while it generated")
            self._send(stream, pb_utils.InferenceResponse(error=failed))
        else:
            self._metrics.request(stream.input_tokens, len(stream.words))
            # The executor ends a cancelled request without an error, and so do its backends.
            if event.finish_reason == "length" and not stream.streaming:
                self._send(stream, _text("".join(stream.words), self._times(stream, event)))
        with self._lock:
            self._streams.pop(event.request_id, None)
            stream.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _times(self, stream: _SimulatedStream, event: EngineEvent) -> list[Any]:
        """Return the tensors of ``return_perf_metrics``, if requested and available."""
        if not (stream.timed and event.metrics):
            return []
        return list(_time_tensors(event.metrics.since(self._driver.epoch)))

    def _send(self, stream: _SimulatedStream, response: Any) -> None:
        stream.sender.send(response)
        if not stream.responded and self._first_response:
            # Truncated to whole milliseconds, as in Triton.
            self._first_response.observe(int((time.monotonic() - stream.arrived) * 1000))
        stream.responded = True

    def _check(self) -> None:
        while not self._closing.wait(_CHECK_SECONDS):
            for request_id in list(self._streams):
                if self._is_cancelled(request_id):
                    self._driver.cancel(request_id)
            self._publish()

    def _is_cancelled(self, request_id: int) -> bool:
        """Whether the client of a running request has disconnected; true only once."""
        with self._lock:
            stream = self._streams.get(request_id)
            disconnected = stream is not None and stream.sender.is_cancelled()
            if disconnected:
                del self._streams[request_id]
            return disconnected

    def _publish(self) -> None:
        records = self._driver.drain_stats()
        if records and not self._frozen:
            self._metrics.iteration(records[-1])
            self._frozen = self._settings.freeze and records[-1].numActiveRequests > 0

    def _make_first_response(self, labels: dict[str, str]) -> Any:
        boundaries = [float(boundary) for boundary in self._settings.first_response_buckets_ms]
        if not boundaries:
            return None
        self._family = pb_utils.MetricFamily(
            name="nv_inference_first_response_histogram_ms",
            description="Time from request to first response, in whole milliseconds",
            kind=pb_utils.MetricFamily.HISTOGRAM,
        )
        return self._family.Metric(labels=labels, buckets=boundaries)


def _input(request: Any, name: str, default: Any) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def _text(text: str, extra: list[Any]) -> Any:
    tensor = pb_utils.Tensor("text_output", np.array([text], dtype=np.object_))
    return pb_utils.InferenceResponse(output_tensors=[tensor, *extra])


def _time_tensors(metrics: RequestMetrics) -> Iterator[Any]:
    """Yield a tensor for each available time."""
    for name in TIMES:
        at = getattr(metrics, name)
        if at is not None:
            yield pb_utils.Tensor(f"{name}_ns", np.array([round(at * 1e9)], dtype=np.int64))
