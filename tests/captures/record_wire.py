"""Record traffic between clients and real servers: ``python -m tests.captures.record_wire``.

Writes ``wire_SCENARIO.jsonl`` beside this file, or into the folder given: one connection each.  A
line is ``[direction, seconds, bytes]`` for what came in one read, as a relay in between saw it,
direction 0 from the client and 1 from the server, the bytes as latin-1; or ``[direction, seconds,
null]`` for the FIN of that side, and ``[direction, seconds, false]`` for its RST.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from lab import triton, trtllm_server
from lab.process import HOST
from lab.trtllm_serve.settings import ServeSettings
from tests import triton_models

LIMIT_SECONDS = 20.0
Line = tuple[int, float, str | bool | None]
Scenario = Callable[[socket.socket], None]


class Relay:
    """Relays one connection to a server, and records its traffic."""

    def __init__(self, port: int) -> None:
        self.lines: list[Line] = []
        self._listener = socket.create_server((HOST, 0))
        self._port = port
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.getsockname()

    def join(self) -> list[Line]:
        self._thread.join(LIMIT_SECONDS)
        return self.lines

    def _run(self) -> None:
        with self._listener:
            client, _ = self._listener.accept()
        server = socket.create_connection((HOST, self._port))
        self._began = time.monotonic()
        threads = [
            threading.Thread(target=self._pump, args=(0, client, server)),
            threading.Thread(target=self._pump, args=(1, server, client)),
        ]
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
        server.close()

    def _pump(self, direction: int, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._keep(direction, data.decode("latin-1"))
                target.sendall(data)
            self._keep(direction, None)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            with suppress(OSError):
                self._keep(direction, False)
                reset(target)

    def _keep(self, direction: int, what: str | bool | None) -> None:
        with self._lock:
            if self.lines and self.lines[-1][2] is False:
                return  # the relay itself causes what follows an RST
            self.lines.append((direction, round(time.monotonic() - self._began, 6), what))


def reset(connection: socket.socket) -> None:
    """Close a connection by RST, and end a read from it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RD)
    connection.close()


def post(path: str, body: Mapping[str, object], *headers: str, version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/{version}",
        f"Host: {HOST}",
        "Content-Type: application/json",
        *headers,
    )
    head = "\r\n".join((*lines, f"Content-Length: {len(data)}", "", ""))
    return head.encode() + data


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


def receive(connection: socket.socket, mark: bytes) -> None:
    """Read until ``mark`` has arrived, or to the end."""
    got = b""
    while mark not in got and (more := connection.recv(65536)):
        got += more


def answered(connection: socket.socket) -> None:
    """Read one whole response."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536)
    head, _, body = got.partition(b"\r\n\r\n")
    head = head.lower()
    if b"chunked" in head:
        while not body.endswith(b"0\r\n\r\n"):
            body += connection.recv(65536)
    elif b"content-length: " in head:
        size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(body) < size:
            body += connection.recv(65536)


def one_by_one(*requests: bytes) -> Scenario:
    def run(connection: socket.socket) -> None:
        for request in requests:
            connection.sendall(request)
            answered(connection)

    return run


def all_at_once(*requests: bytes, last: bytes) -> Scenario:
    def run(connection: socket.socket) -> None:
        connection.sendall(b"".join(requests))
        receive(connection, last)

    return run


def closed_after(request: bytes, mark: bytes, close: Callable[[socket.socket], None]) -> Scenario:
    def run(connection: socket.socket) -> None:
        connection.sendall(request)
        receive(connection, mark)
        close(connection)

    return run


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(65536):
        pass


def kserve(model: str, text: str = "some words", verb: str = "generate", **more: object) -> bytes:
    return post(f"/v2/models/{model}/{verb}", {"text_input": text, **more})


def stream(text: str = "some words", words: int = 6, model: str = "streaming") -> bytes:
    return kserve(model, text, "generate_stream", max_tokens=words)


_TENSOR = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["words"]}
BY_TRITON: Mapping[str, Scenario] = {
    "triton_streams": one_by_one(
        stream(), stream(words=1, model="streaming/versions/1"), get("/v2/health/ready"), stream()
    ),
    "triton_whole": one_by_one(
        kserve("plain", id="one"),
        kserve("pipeline", "then more"),
        kserve("plain/versions/1"),
        post("/v2/models/plain/infer", {"id": "two", "inputs": [_TENSOR]}),
        kserve("streaming", max_tokens=1),
    ),
    "triton_errors": one_by_one(
        kserve("unknown"),
        post("/v2/models/plain/generate", {"no_input": 1}),
        kserve("failing", "error"),
        stream("error"),
        stream("mid"),
        kserve("streaming", max_tokens=3),
        get("/v2/models/streaming/generate_stream"),
    ),
    "triton_left": closed_after(stream(words=50), b"word3", socket.socket.close),
    "triton_reset": closed_after(stream(words=50), b"word3", reset),
    "triton_half_closed": closed_after(stream(words=20), b"word3", half_close),
}


def in_chunks(request: bytes, size: int = 40) -> bytes:
    """Return the same request with its body in chunks, and a trailer."""
    head, _, body = request.partition(b"\r\n\r\n")
    head = head.rpartition(b"\r\n")[0] + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x;no=thing\r\n%s\r\n" % (len(part), part) for part in parts)
    return head + chunks + b"0\r\nTrailer: nothing\r\n\r\n"


def after_100_continue(request: bytes) -> Scenario:
    """Send the body only after 100 Continue."""

    def run(connection: socket.socket) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        receive(connection, b"\r\n\r\n")
        connection.sendall(body)
        answered(connection)

    return run


def openai(path: str, words: int = 6, *headers: str, version: str = "1.1", **more: object) -> bytes:
    prompt: dict[str, object] = {"prompt": "one two three four"}
    if path == "chat/completions":
        prompt = {"messages": [{"role": "user", "content": "one two three four"}]}
    body = {"model": "tensorrt_llm", **prompt, "max_tokens": words, "user": "someone", **more}
    return post(f"/v1/{path}", body, *headers, version=version)


CHAT, TEXT = "chat/completions", "completions"
TIMED = "X-TRTLLM-return-metrics: 1"
USAGE = {"include_usage": True}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
BY_TRTLLM: Mapping[str, Scenario] = {
    "trtllm_streams": one_by_one(
        openai(CHAT, stream=True),
        openai(TEXT, stream=True),
        openai(CHAT, stream=True, stream_options=USAGE),
        openai(TEXT, stream=True, stream_options=USAGE),
        openai(CHAT, 6, TIMED, stream=True),
    ),
    "trtllm_continuous": one_by_one(
        openai(CHAT, 12, stream=True, stream_options=CONTINUOUS),
        openai(TEXT, 12, stream=True, stream_options=CONTINUOUS),
    ),
    "trtllm_whole": one_by_one(
        openai(CHAT), openai(TEXT, 6, TIMED), openai(TEXT, stop_after=3), get("/v1/models")
    ),
    "trtllm_pipelined": all_at_once(
        openai(TEXT, 2), openai(TEXT, 3, stream=True), openai(CHAT, 4), last=b"token3"
    ),
    "trtllm_chunked": one_by_one(
        in_chunks(openai(CHAT, stream=True)), in_chunks(openai(TEXT, stream=True))
    ),
    "trtllm_expect": after_100_continue(openai(TEXT, stream=True)),
    "trtllm_until_close": all_at_once(openai(CHAT, stream=True, version="1.0"), last=b"never"),
    "trtllm_refused": one_by_one(openai(TEXT, prompt={}), openai(CHAT, fail_after=2)),
    "trtllm_broken_off": all_at_once(openai(TEXT, stream=True, fail_after=3), last=b"never"),
    "trtllm_left": closed_after(openai(CHAT, 50, stream=True), b"token3", socket.socket.close),
}


def record(port: int, scenarios: Mapping[str, Scenario], folder: Path) -> None:
    for name, run in scenarios.items():
        relay = Relay(port)
        with socket.create_connection(relay.address, timeout=LIMIT_SECONDS) as connection:
            run(connection)
        lines = "".join(json.dumps(line) + "\n" for line in relay.join())
        (folder / f"wire_{name}.jsonl").write_text(lines)


@contextmanager
def servers(scratch: Path) -> Iterator[tuple[int, int]]:
    """Start both servers; yield their HTTP ports."""
    triton_models.write_models(scratch / "models")
    # Every third text comes late, and two iterations come together.
    settings = ServeSettings(withhold=3, stream_interval=2)
    with (
        triton.start(
            triton.install(print),
            scratch / "models",
            scratch / "triton",
            arguments=triton_models.ARGUMENTS,
        ) as one,
        trtllm_server.start(scratch / "trtllm", settings) as other,
    ):
        yield one.ports[0], other.ports[0]


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, servers(Path(scratch)) as (one, other):
        record(one, BY_TRITON, folder)
        record(other, BY_TRTLLM, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
