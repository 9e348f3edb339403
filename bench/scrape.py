"""Measure scrapes and health checks while the sidecar reads many models, next to a peer.

Run ``python -m bench.scrape`` from the checkout; README.md explains the columns.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from bench.child_server import child_port
from bench.figures import Figure, PeerComparison, limits, median_interval, repeat

CAPTURES = Path(__file__).parents[1] / "tests/captures"
SERVERS = {
    "vllm": ("vllm_standalone_by_hand.txt", "example/chat-8b"),
    "triton": ("triton_traffic.txt", "vllm_llm"),
}
"""Capture and its model, by server."""
MODELS = (10, 50, 200, 256)
GROWING = ("_bucket", "_sum", "_count", "_total", "_success", "_failure", "_us")
"""Suffixes of counters' names."""
SECONDS = 45
COMPARED_MODELS, COMPARED_SECONDS = 200, 12.0
SETTLE_SECONDS = 9.0
"""Time to read all configurations: the sidecar reads 32 in a scrape, and renders those models."""
CORE_TARGET = 0.1
"""Largest share of a core for the compared models."""
PERIODS = (0.6, 1.4)
"""Shortest and longest time between two scrapes, in seconds: some coincide with the sidecar's."""
AS_PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0",
    "Accept-Encoding": "gzip",
}


def expositions(server: str, models: int, measurements: int) -> list[bytes]:
    """Return the consecutive expositions of a server with a number of models."""
    capture, model = SERVERS[server]
    bodies = []
    for scrape in range(1, measurements + 1):
        lines = []
        for line in (CAPTURES / capture).read_text().splitlines(keepends=True):
            if line.startswith("#"):
                lines.append(line)
            elif model in line:
                head, _, value = line.rpartition(" ")
                grows = head.partition("{")[0].endswith(GROWING)
                end = f" {float(value) * (scrape if grows else 1)}\n"
                lines += [head.replace(model, f"{model}-{n}") + end for n in range(models)]
        bodies.append("".join(lines).encode())
    return bodies


def triton_api(models: int) -> dict[str, object]:
    """Return the responses of Triton's HTTP API, by the last part of their path."""
    names = [f"{SERVERS['triton'][1]}-{number}" for number in range(models)]
    counts = {"success": {"count": 1, "ns": 1}, "fail": {"count": 0, "ns": 0}}
    return {
        "index": [{"name": name, "version": "1", "state": "READY"} for name in names],
        "stats": {
            "model_stats": [
                {"name": name, "version": "1", "inference_stats": counts} for name in names
            ]
        },
        "config": {"backend": "vllm", "model_transaction_policy": {"decoupled": True}},
    }


@dataclass(frozen=True, slots=True)
class ScrapeCost:
    """Scrapes of one sidecar, in seconds: durations, CPU time, and the peer's for one rendering."""

    lines: int
    scrapes: list[float]
    health: list[float]
    elapsed: float
    cpu: float
    peer: float

    @property
    def cpu_per_scrape(self) -> float:
        """CPU time of the sidecar per scrape, its own scrapes of the server included."""
        return self.cpu / len(self.scrapes)


@contextmanager
def served(bodies: list[bytes], documents: dict[str, object]) -> Iterator[str]:
    """Serve consecutive expositions, then the last one, in a child process."""
    with child_port(partial(serve_consecutive, bodies, documents)) as port:
        yield f"http://127.0.0.1:{port}"


def serve_consecutive(bodies: list[bytes], documents: dict[str, object], port: int) -> None:
    """Serve until the process ends; write the chosen port to the descriptor ``port``."""
    remaining = iter(bodies)
    api = {name: json.dumps(document).encode() for name, document in documents.items()}

    class TritonHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            end = self.path.rpartition("/")[2]
            body = next(remaining, bodies[-1]) if end == "metrics" else api.get(end, b"{}")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), TritonHandler)
    os.write(port, str(server.server_port).encode())
    server.serve_forever()


@contextmanager
def sidecar(
    server: str, url: str, *arguments: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run the sidecar on a server; yield its port and process."""
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
        *(f"--{server}", url, "--interval", "1s", "--max-bytes", "64MiB"),
        *(("--triton-metrics", f"{url}/metrics") if server == "triton" else ()),
        *arguments,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port, process
    finally:
        process.terminate()
        process.wait()


def timed(port: int, path: str) -> tuple[float, int, bytes]:
    """Return seconds, status and body of a response."""
    start = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=AS_PROMETHEUS)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    return time.perf_counter() - start, response.status, body


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peer_seconds(body: bytes) -> float:
    """Return the CPU seconds of prometheus_client for rendering the same scrape."""
    metrics = list(text_string_to_metric_families(body.decode()))

    class ScrapeCollector(Collector):
        def collect(self) -> object:
            return metrics

    start = time.process_time()
    generate_latest(ScrapeCollector())  # type: ignore[no-untyped-call]
    return time.process_time() - start


def measure(
    server: str,
    models: int,
    seconds: float,
    *,
    health_checks: bool = True,
    settle: float = 0.0,
) -> ScrapeCost:
    """Scrape about once a second and, with ``health_checks``, request /healthz every 20 ms.

    Nothing is measured in the first ``settle`` seconds.
    """
    with ExitStack() as stack:
        documents = triton_api(models) if server == "triton" else {}
        bodies = expositions(server, models, round(seconds + settle) + 5)
        source = stack.enter_context(served(bodies, documents))
        port, process = stack.enter_context(sidecar(server, source))
        wait(port, "/healthz")
        health: list[float] = []
        stop = threading.Event()

        def poll_health() -> None:
            while not stop.wait(0.02):
                health.append(timed(port, "/healthz")[0])

        poller = threading.Thread(target=poll_health)
        if health_checks:
            poller.start()
        try:
            wait(port, "/readyz")
            time.sleep(settle)
            began, before = time.perf_counter(), cpu_seconds(process)
            scrapes = []
            periods = random.Random(1)
            while time.perf_counter() - began < seconds:
                took, _, body = timed(port, "/metrics")
                scrapes.append(took)
                time.sleep(max(0.0, periods.uniform(*PERIODS) - took))
            elapsed = time.perf_counter() - began
            cpu = cpu_seconds(process) - before
        finally:
            stop.set()
            if health_checks:
                poller.join()
    text = gzip.decompress(body)
    return ScrapeCost(text.count(b"\n"), scrapes, health, elapsed, cpu, peer_seconds(text))


def row(server: str, models: int, cost: ScrapeCost) -> str:
    """Return a row of the table."""
    return (
        f"{server:>6}  {models:>6,}  {cost.lines:>9,}  "
        f"{1000 * cost.scrapes[0]:>8.1f}  {_ms(cost.scrapes, 0.5)}  {_ms(cost.scrapes, 0.99)}  "
        f"{_ms(cost.health, 0.5)}  {_ms(cost.health, 0.99)}  "
        f"{1000 * cost.cpu / cost.elapsed:>8.0f}  {1000 * cost.peer:>8.0f}  "
        f"{cost.peer / cost.cpu_per_scrape:>6.1f}"
    )


def figures(long: bool) -> Iterator[Figure]:
    """Compare the CPU time of scrapes with prometheus_client's for rendering alone."""
    models = COMPARED_MODELS
    rounds = repeat(
        lambda: measure(
            "triton", models, COMPARED_SECONDS, health_checks=False, settle=SETTLE_SECONDS
        ),
        lambda done: [
            median_interval(each.cpu_per_scrape / each.peer for each in done),
            median_interval(each.cpu / each.elapsed for each in done),
        ],
        limits(long, most=6, seconds=150),
    )
    subject = f"{models} Triton models, {rounds[-1].lines:,} lines, read and scraped every second"
    yield PeerComparison(
        f"CPU per scrape: {subject}, parsed, rendered and compressed",
        f"prometheus_client {version('prometheus_client')}, which only renders",
        "ms",
        [1e3 * each.cpu_per_scrape for each in rounds],
        [1e3 * each.peer for each in rounds],
    )
    yield PeerComparison(
        f"CPU: {subject}",
        "a core",
        "cores",
        [each.cpu / each.elapsed for each in rounds],
        [1.0] * len(rounds),
        CORE_TARGET,
    )


def wait(port: int, path: str) -> None:
    """Wait until a path returns 200; raises TimeoutError after 30 s."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if timed(port, path)[1] == 200:
                return
        except OSError:
            pass
        time.sleep(0.01)
    raise TimeoutError(f"{path} did not return 200 within 30 s")


def _ms(seconds: list[float], share: float) -> str:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"{1000 * cuts[round(share * 100) - 1]:>8.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.scrape", description=__doc__)
    parser.add_argument("--server", nargs="+", choices=SERVERS, default=[*SERVERS])
    parser.add_argument("--models", nargs="+", type=int, default=MODELS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time measured per line")
    parser.add_argument("--runs", type=int, default=1, help="lines per number of models")
    options = parser.parse_args()
    print("milliseconds; CPU: of each second, peer CPU: to write one such scrape\n")
    print(
        f"{'server':>6}  {'models':>6}  {'lines':>9}  {'first':>8}  {'scrape50':>8}  "
        f"{'scrape99':>8}  {'health50':>8}  {'health99':>8}  {'CPU':>8}  {'peer CPU':>8}  "
        f"{'ratio':>6}"
    )
    for server in options.server:
        for models in options.models:
            for _ in range(options.runs):
                print(row(server, models, measure(server, models, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
