"""How long scrapes and health checks take while the sidecar reads many models, beside a peer.

``python -m bench.scrape`` from the checkout; README.md says what the table means.
"""

from __future__ import annotations

import gzip
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

CAPTURE = Path(__file__).parents[1] / "tests/captures/vllm_standalone_by_hand.txt"
MODEL = "example/chat-8b"
MODELS = (10, 50, 200, 256)
SECONDS = 20.0
SCRAPES = round(SECONDS) + 8
AS_PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0",
    "Accept-Encoding": "gzip",
}


def expositions(models: int) -> list[bytes]:
    """Return what a vLLM server with so many models says at one scrape after the other."""
    said = []
    for scrape in range(1, SCRAPES + 1):
        lines = []
        for line in CAPTURE.read_text().splitlines(keepends=True):
            if line.startswith("#"):
                lines.append(line)
                continue
            head, _, value = line.rpartition(" ")
            grows = head.partition("{")[0].endswith(("_bucket", "_sum", "_count", "_total"))
            end = f" {float(value) * (scrape if grows else 1)}\n"
            lines += [head.replace(MODEL, f"{MODEL}-{number}") + end for number in range(models)]
        said.append("".join(lines).encode())
    return said


@contextmanager
def served(bodies: list[bytes]) -> Iterator[str]:
    """Serve one body after the other, and then the last one."""
    left = iter(bodies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = next(left, bodies[-1]) if self.path == "/metrics" else b"{}"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@contextmanager
def sidecar(source: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(
            str(Path(sys.executable).with_name("tokenslo")),
            "exporter",
            "--listen",
            f"127.0.0.1:{port}",
        ),
        *("--vllm", source, "--interval", "1s", "--max-bytes", "64MiB"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port, process
    finally:
        process.terminate()
        process.wait()


def timed(port: int, path: str) -> tuple[float, bytes]:
    start = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=AS_PROMETHEUS)
        body = connection.getresponse().read()
    finally:
        connection.close()
    return time.perf_counter() - start, body


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peer_seconds(body: bytes) -> float:
    """Return the CPU seconds that prometheus_client takes to write the same scrape."""
    metrics = list(text_string_to_metric_families(body.decode()))

    class Registry(Collector):
        def collect(self) -> object:
            return metrics

    start = time.process_time()
    generate_latest(Registry())  # type: ignore[no-untyped-call]
    return time.process_time() - start


def measure(models: int) -> str:
    """Scrape once a second and ask /healthz every 20 ms, for some seconds; return a line."""
    with ExitStack() as stack:
        source = stack.enter_context(served(expositions(models)))
        port, process = stack.enter_context(sidecar(source))
        body = b""
        for _ in range(200):
            try:
                _, body = timed(port, "/metrics")
            except OSError:
                time.sleep(0.1)
                continue
            if b"llm_" in gzip.decompress(body):
                break
            time.sleep(0.1)
        time.sleep(2)
        health: list[float] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                health.append(timed(port, "/healthz")[0])
                time.sleep(0.02)

        asking = threading.Thread(target=ask)
        asking.start()
        began, before = time.perf_counter(), cpu_seconds(process)
        scrapes = []
        while time.perf_counter() - began < SECONDS:
            seconds, body = timed(port, "/metrics")
            scrapes.append(seconds)
            time.sleep(max(0.0, 1 - seconds))
        took = cpu_seconds(process) - before
        stop.set()
        asking.join()
    text = gzip.decompress(body)
    peer = peer_seconds(text)
    return (
        f"{models:>6,}  {text.count(chr(10).encode()):>9,}  {_ms(scrapes, 0.5)}  "
        f"{_ms(scrapes, 0.99)}  {_ms(health, 0.5)}  {_ms(health, 0.99)}  "
        f"{1000 * took / len(scrapes):>8.0f}  {1000 * peer:>8.0f}  "
        f"{peer * len(scrapes) / took:>6.1f}"
    )


def _ms(seconds: list[float], share: float) -> str:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"{1000 * cuts[round(share * 100) - 1]:>8.1f}"


def main() -> None:
    print("milliseconds: scrapes and /healthz by the clock; CPU for each second of one scrape.\n")
    print(
        f"{'models':>6}  {'lines':>9}  {'scrape50':>8}  {'scrape99':>8}  {'health50':>8}  "
        f"{'health99':>8}  {'CPU':>8}  {'peer CPU':>8}  {'ratio':>6}"
    )
    for models in MODELS:
        print(measure(models), flush=True)


if __name__ == "__main__":
    main()
