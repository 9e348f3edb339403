"""Record metrics, statistics and index of a real Triton: ``python -m tests.captures.record``.

Writes to the folder of this file, or to the folder given as argument, and replaces existing files.
README.md describes each capture.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from lab import triton
from lab.engine_settings import EngineSettings
from lab.repository import ModelSettings, write_repository
from tests.polling import wait_until
from tests.triton_models import ARGUMENTS, MODELS, write_models

# Small enough for six requests to fill the batch and the queue.
ENGINE = EngineSettings(max_batch_size=2, max_num_active_requests=4, kv_blocks=40)
ENGINES = {
    "tensorrt_llm": ModelSettings(publish="cpp"),
    "tensorrt_llm_python": ModelSettings(publish="python", first_response_buckets_ms=()),
}
RELOADED = ("plain", "streaming")
SETTLE_SECONDS = 0.6  # the gauges of engine and machine move every 0.1 s


@dataclass(frozen=True)
class Recorder:
    """A Triton whose responses are recorded, and the folder for them."""

    server: triton.Triton
    folder: Path

    def request(self, method: str, path: str, body: object = None) -> bytes:
        connection = HTTPConnection("127.0.0.1", self.server.ports[0], timeout=60)
        try:
            connection.request(method, path, json.dumps(body or {}))
            return connection.getresponse().read()
        finally:
            connection.close()

    def answer(self, name: str, path: str, method: str = "GET") -> None:
        """Record the JSON response of a path, indented."""
        content = json.loads(self.request(method, path))
        (self.folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")

    def metrics(self, name: str) -> None:
        """Record the metrics byte for byte, after the gauges have been updated."""
        time.sleep(SETTLE_SECONDS)
        connection = HTTPConnection("127.0.0.1", self.server.ports[2], timeout=60)
        connection.request("GET", "/metrics")
        (self.folder / f"{name}.txt").write_bytes(connection.getresponse().read())
        connection.close()

    def stage(self, name: str) -> None:
        """Record metrics, statistics and index while there is no traffic."""
        self.metrics(name)
        self.answer(f"{name}_stats", "/v2/models/stats")
        self.answer(f"{name}_index", "/v2/repository/index", "POST")

    def infer(self, model: str, text: str = "some words", **more: int) -> None:
        """Send a request and wait for the end of its response; ``more`` are parameters."""
        verb = "generate_stream" if more else "generate"
        self.request("POST", f"/v2/models/{model}/{verb}", {"text_input": text, **more})

    def disconnect(self, after: float, model: str, text: str, **more: int) -> None:
        """Send a request and disconnect after some seconds."""
        verb = "generate_stream" if more else "generate"
        body = json.dumps({"text_input": text, **more})
        connection = HTTPConnection("127.0.0.1", self.server.ports[0])
        connection.request("POST", f"/v2/models/{model}/{verb}", body)
        time.sleep(after)
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()

    def cancel_in_queue(self, after: float, model: str) -> None:
        """Send a request to a busy model, and cancel it in the queue after some seconds.

        By gRPC: over HTTP Triton notices a disconnect only while it streams.
        """
        text = grpc.InferInput("text_input", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([["never seen"]], dtype=np.object_))
        with (
            grpc.InferenceServerClient(self.server.grpc) as client,
            suppress(InferenceServerException),
        ):
            client.infer(model, [text], client_timeout=after)

    def switch(self, models: Sequence[str], action: str) -> None:
        """Load or unload models, and wait until that is done."""
        for model in models:
            self.request("POST", f"/v2/repository/models/{model}/{action}")
        wait_until(
            lambda: b"LOADING" not in self.request("POST", "/v2/repository/index"), pause=0.1
        )


def at_once(calls: Sequence[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for call in [pool.submit(call) for call in calls]:
            call.result()


def traffic(to: Recorder) -> None:
    """Make requests that all succeed."""
    for model in ("plain", "plain", "plain", "pipeline", "pipeline", "cached", "cached", "cached"):
        to.infer(model)
    for model in ("streaming", "vllm_llm", "first_response"):
        for tokens in (1, 5, 20):
            to.infer(model, "a few words", max_tokens=tokens)
    at_once(
        [
            partial(to.infer, model, "word " * 20 * size, max_tokens=4 * size, stream=True)
            for model in ENGINES
            for size in range(1, 7)
        ]
    )


def streams(to: Recorder, name: str) -> None:
    """Record the metrics while 6 streams of each engine and 2 others are running."""
    running = [
        partial(to.infer, model, "word " * 30, max_tokens=60, stream=True) for model in ENGINES
    ]
    others = [partial(to.infer, "streaming", max_tokens=60)]
    at_once([*running * 6, *others * 2, partial(to.metrics, name)])


def trouble(to: Recorder) -> None:
    """Make requests fail in every way."""
    for model, text in (
        ("failing", "raise"),
        ("failing", "raise"),
        ("failing", "error"),
        ("pipeline", "then raise"),
    ):
        to.infer(model, text)
    for text in ("raise", "error", "mid"):
        to.infer("streaming", text, max_tokens=5)
    to.disconnect(0.1, "streaming", "a few words", max_tokens=200)
    to.disconnect(0.3, "tensorrt_llm", "word " * 30, max_tokens=200, stream=True)
    for model in ("slow", "bounded"):
        at_once([partial(to.infer, model, "sleep 0.3")] * 4)
    busy = partial(to.infer, "bounded", "sleep 0.3")
    at_once([busy, partial(to.cancel_in_queue, 0.1, "bounded")])
    to.infer("bounded")


def everything(to: Recorder) -> None:
    to.answer("triton_server", "/v2")
    for model in (*MODELS, *ENGINES):
        to.answer(f"triton_config_{model}", f"/v2/models/{model}/config")
    to.stage("triton_idle")
    traffic(to)
    to.stage("triton_traffic")
    streams(to, "triton_streams")
    trouble(to)
    to.stage("triton_failures")
    to.switch(RELOADED, "unload")
    to.stage("triton_unloaded")
    to.answer("triton_unloaded_plain_stats", "/v2/models/plain/stats")
    to.switch(RELOADED, "load")
    to.infer("plain")
    to.stage("triton_reloaded")


def summaries(to: Recorder, name: str) -> None:
    """Record metrics of models that were used, and of an unused one."""
    for _ in range(20):
        to.infer("plain")
        to.infer("cached")
    to.infer("streaming", max_tokens=5)
    to.stage(name)


def main(folder: Path) -> None:
    home = triton.install(print)
    few = ("plain", "failing", "cached", "streaming")
    for models, flags, scenario in (
        ((*MODELS, *ENGINES), (), everything),
        (few, ("summary_latencies=true",), partial(summaries, name="triton_summaries")),
        (
            few,
            ("counter_latencies=false", "summary_latencies=true"),
            partial(summaries, name="triton_frozen_counters"),
        ),
    ):
        with tempfile.TemporaryDirectory() as scratch:
            repository = Path(scratch, "models")
            write_models(repository)
            for name, settings in ENGINES.items():
                write_repository(repository, name, ENGINE, settings)
            arguments = (*ARGUMENTS, *(f"--metrics-config={flag}" for flag in flags))
            with triton.start(
                home, repository, Path(scratch), load=models, arguments=arguments
            ) as server:
                scenario(Recorder(server, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
