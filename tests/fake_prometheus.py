"""A Prometheus HTTP API that answers instant queries from a function."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

from promql.client import Sample

Result = list[Sample] | str
"""Samples, or the error of a query."""


@dataclass
class FakePrometheus:
    """Evaluates queries with ``evaluate``; ``warnings`` are in every response."""

    evaluate: Callable[[str], Result]
    warnings: list[str] = field(default_factory=list)
    requests: list[Mapping[str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def respond(self, params: Mapping[str, str]) -> tuple[int, dict[str, object]]:
        self.requests.append(params)
        found = self.evaluate(params["query"])
        if isinstance(found, str):
            return 400, {"status": "error", "errorType": "execution", "error": found}
        vector = [{"metric": each.labels, "value": [0, str(each.value)]} for each in found]
        data = {"resultType": "vector", "result": vector}
        return 200, {"status": "success", "data": data, "warnings": self.warnings}


@contextmanager
def serving(fake: FakePrometheus) -> Iterator[FakePrometheus]:
    class FakePrometheusHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(urlsplit(self.path).query)

        def do_POST(self) -> None:
            self.answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def answer(self, text: str) -> None:
            params = {name: values[0] for name, values in parse_qs(text).items()}
            status, document = fake.respond(params)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), FakePrometheusHandler)
    fake.port = server.server_port
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
