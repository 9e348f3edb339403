"""Record the traces that a real Triton exports: ``python -m tests.captures.record_traces``.

Writes ``traces_SCENARIO.jsonl`` to the folder of this file, or to the folder given: one export
request per line, byte for byte, in the order of arrival.
"""

from __future__ import annotations

import queue
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lab import triton
from tests import traced_triton

WAIT_SECONDS = 10


class _SpanReceiver(BaseHTTPRequestHandler):
    """Accepts every export."""

    bodies: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def do_POST(self) -> None:
        self.bodies.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collecting() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _SpanReceiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def main(folder: Path) -> None:
    with collecting() as url, tempfile.TemporaryDirectory() as scratch:
        traced_triton.write_models(Path(scratch, "models"))
        home = triton.install(print)
        arguments = traced_triton.arguments(url)
        with triton.start(
            home, Path(scratch, "models"), Path(scratch), arguments=arguments
        ) as server:
            for name, (send, requests) in traced_triton.SCENARIOS.items():
                send(server)
                lines = []
                while sum(line.count(b'"InferRequest"') for line in lines) < requests:
                    lines.append(_SpanReceiver.bodies.get(timeout=WAIT_SECONDS))
                (folder / f"traces_{name}.jsonl").write_bytes(b"".join(x + b"\n" for x in lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
