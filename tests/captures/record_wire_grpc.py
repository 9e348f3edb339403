"""Record the traffic between gRPC clients and a real Triton.

``python -m tests.captures.record_wire_grpc`` writes ``wire_grpc_SCENARIO.jsonl`` beside this file,
or into the folder given, in the format of :mod:`tests.captures.record_wire`; and in
``wire_grpc_saw.json``, by scenario, what the client received: id, kind and text of every response.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from lab import triton
from lab.engine_settings import EngineSettings
from lab.repository import write_repository
from tests.captures.record_wire import Relay
from tests.polling import wait_until
from tests.triton_models import write_models

MODELS = ("plain", "failing", "slow", "streaming")
PATIENCE_SECONDS = 10
Saw = tuple[str, str, str]


class RecordedClient:
    """A tritonclient and the id, kind and text of every response it received."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.url = ":".join(map(str, relay.address))
        self.saw: list[Saw] = []
        self._came = threading.Semaphore(0)

    def infer(self, *requests: tuple[str, str, Mapping[str, Any]]) -> None:
        """Send requests (model, text, options) one after the other."""
        with grpc.InferenceServerClient(self.url) as client:
            for model, text, options in requests:
                try:
                    self._take(client.infer(model, _inputs(model, text, 3), **options), None)
                except InferenceServerException as error:
                    self._take(None, error)

    def stream(
        self,
        requests: Sequence[tuple[str, str, str]],
        *,
        words: int = 4,
        gap: float = 0.0,
        wait_for: int = 0,
        each: bool = False,
        final: bool = False,
        cancel: bool = False,
        **options: Any,
    ) -> None:
        """Send requests (id, model, text) on one stream, and wait for ``wait_for`` responses."""
        with grpc.InferenceServerClient(self.url) as client:
            client.start_stream(self._take, **options)
            for request_id, model, text in requests:
                client.async_stream_infer(
                    model,
                    _inputs(model, text, words),
                    request_id=request_id,
                    enable_empty_final_response=final,
                )
                time.sleep(gap)
                for _ in range(wait_for * each):
                    self._came.acquire(timeout=PATIENCE_SECONDS)
            for _ in range(wait_for * (not each)):
                self._came.acquire(timeout=PATIENCE_SECONDS)
            client.stop_stream(cancel_requests=cancel)

    def _take(self, result: Any, error: InferenceServerException | None) -> None:
        if error:
            self.saw.append(("", "error", error.status() or "in_band"))
        else:
            answer = result.get_response()
            texts = [] if not answer.outputs else result.as_numpy("text_output").reshape(-1)
            text = b"".join(texts).decode()
            self.saw.append((answer.id, "text" if text else "empty", text))
        self._came.release()


def _inputs(model: str, text: str, words: int) -> list[grpc.InferInput]:
    if model not in {"streaming", "tensorrt_llm"}:
        return [_tensor("text_input", "BYTES", np.object_, [[text]])]
    inputs = [
        _tensor("text_input", "BYTES", np.object_, [text]),
        _tensor("max_tokens", "INT32", np.int32, [words]),
    ]
    if model == "tensorrt_llm":
        inputs.append(_tensor("stream", "BOOL", np.bool_, [True]))
    return inputs


def _tensor(name: str, kind: str, of: Any, value: list[Any]) -> grpc.InferInput:
    array = np.array(value, of)
    tensor = grpc.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor


def died(client: RecordedClient) -> None:
    """Send a request from another process, and kill it during the stream."""
    code = (
        "import sys\nfrom tests.captures.record_wire_grpc import stream_for_long\n"
        "stream_for_long(sys.argv[1], int(sys.argv[2]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, *client.url.split(":")]) as process:
        wait_until(lambda: len(client.relay.lines) >= 15)
        process.kill()


def stream_for_long(host: str, port: int) -> None:
    with grpc.InferenceServerClient(f"{host}:{port}") as client:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer("streaming", _inputs("streaming", "one", 99), request_id="a")
        time.sleep(PATIENCE_SECONDS)


def _streams(*texts: str, ids: str = "abcdefgh") -> list[Saw]:
    return [(ids[i : i + 1], "streaming", text) for i, text in enumerate(texts)]


# The last scenario crashes the server: Triton 2.51 does not survive a stream closed by an error.
SCENARIOS: Mapping[str, Callable[[RecordedClient], None]] = {
    "unary": lambda to: to.infer(
        ("plain", "hello", {"request_id": "one"}),
        ("plain", "hello", {"request_id": "two"}),
        ("plain", "hello " * 100, {"request_id": "zip", "compression_algorithm": "gzip"}),
    ),
    "unary_failures": lambda to: to.infer(
        ("absent", "hello", {}),
        ("failing", "error", {}),
        ("streaming", "hello", {}),
        ("slow", "sleep 1", {"client_timeout": 0.1}),
    ),
    "stream": lambda to: to.stream(_streams("one"), wait_for=4),
    "at_once": lambda to: to.stream(
        _streams("one", "two", "three"), gap=0.03, wait_for=15, final=True
    ),
    "in_turn": lambda to: to.stream(
        _streams("one", "one", "two", ids=""), gap=0.01, wait_for=4, each=True
    ),
    "whole": lambda to: to.stream(
        [("a", "plain", "one"), ("b", "plain", "two"), ("", "plain", "three")], wait_for=3
    ),
    "empty": lambda to: to.stream(_streams("one"), words=0, wait_for=1, final=True),
    "errors": lambda to: to.stream(
        [("x", "absent", "one"), *_streams("error", "raise", "mid", "one")],
        gap=0.01,
        wait_for=11,
        final=True,
    ),
    "errors_without_ids": lambda to: to.stream(
        _streams("mid", "one", ids=""), gap=0.01, wait_for=7
    ),
    "half_closed": lambda to: to.stream(_streams("one"), words=8, wait_for=2),
    "left": lambda to: to.stream(_streams("one", "two"), words=99, wait_for=10, cancel=True),
    "left_at_once": lambda to: to.stream(_streams("one"), words=99, gap=0.01, cancel=True),
    "died": died,
    "zipped": lambda to: to.stream(
        _streams("many words " * 50), wait_for=4, compression_algorithm="gzip"
    ),
    "engine": lambda to: to.stream(
        [("a", "tensorrt_llm", "some words")], words=5, wait_for=6, final=True
    ),
    "closed_by_error": lambda to: to.stream(
        _streams("mid"), wait_for=3, headers={"triton_grpc_error": "true"}
    ),
}


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch, "models")
        write_models(models, MODELS)
        write_repository(models, engine=EngineSettings())
        with triton.start(triton.install(print), models, Path(scratch)) as server:
            saw = {}
            for name, scenario in SCENARIOS.items():
                client = RecordedClient(Relay(server.ports[1]))
                scenario(client)
                lines = "".join(json.dumps(line) + "\n" for line in client.relay.join())
                (folder / f"wire_grpc_{name}.jsonl").write_text(lines)
                saw[name] = client.saw
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in saw.items())
        (folder / "wire_grpc_saw.json").write_text(f"{{\n{rows}\n}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
