"""Measure CPU, latency and memory of the taps, next to nginx and to a direct connection.

Run ``python -m bench.taps`` from the checkout; README.md explains the tables.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.exposition import exposition
from bench.streams.processes import Cpu, Worker, child, memory, proxying, sidecar
from lab import gateway
from lab.gateway import NginxSettings
from lab.process import HOST, ServerError, ServerProcess, free_ports, get

ROUNDS = 4
WARM_UP, SECONDS = 0.5, 1.5
MODEL = "llama"
LINES = 25_500
"""Lines of Triton's metrics, for 13,000 series of the sidecar."""
SCRAPED = (200, 10_000)
SCRAPED_SECONDS = 3.0
LIVE = (0, 1_000, 5_000)


@dataclass(frozen=True)
class StreamCase:
    """A number of streams of one form; ``rate`` is their total tokens per second."""

    form: str
    streams: int
    rate: int


CASES = (
    StreamCase("triton", 1, 200),
    StreamCase("triton", 100, 5_000),
    StreamCase("openai", 100, 5_000),
    StreamCase("triton", 1_000, 10_000),
)


@dataclass(frozen=True)
class Peer:
    """The process between clients and server, if any; clients connect to ``port``."""

    name: str
    port: int
    pid: int | None

    def cpu(self) -> Cpu:
        """Return its CPU time so far."""
        return Cpu.of(self.pid) if self.pid else Cpu(0.0, 0.0)


@dataclass(frozen=True)
class TapCost:
    """One run: CPU seconds per token by either clock, and the age of tokens on arrival."""

    run: float
    clock: float
    p50: float
    p99: float


class Bench:
    """Run the server and its clients, and measure the peer between them."""

    def __init__(self, stack: ExitStack) -> None:
        self.ports = free_ports(2)
        listen = ",".join(map(str, self.ports))
        self._server = Worker(stack, "bench.streams.server", listen)
        self._clients = Worker(stack, "bench.streams.clients")
        self._server.line()

    def measure(self, case: StreamCase, peer: Peer, seconds: float = SECONDS) -> TapCost:
        """Measure one peer on one case."""
        with self.streaming(case, peer.port, WARM_UP, seconds):
            before, used = self.sent(), peer.cpu()
            after, used_then = self.sent(), peer.cpu()
        used, tokens = used_then - used, after - before
        return TapCost(used.run / tokens, used.clock / tokens, self._ages["p50"], self._ages["p99"])

    @contextmanager
    def streaming(
        self, case: StreamCase, port: int, warm_up: float, seconds: float
    ) -> Iterator[None]:
        """Start streams; ``sent`` returns first after the warm-up, then at the end."""
        command = {"form": case.form, "model": MODEL, "streams": case.streams, "warm_up": warm_up}
        self._server.send(**command, rate=case.rate, seconds=seconds)
        self._clients.send(**command, port=port)
        yield
        self._ages: Mapping[str, float] = self._clients.result()

    def sent(self) -> int:
        """Wait for the server's next report; return the number of tokens sent so far."""
        return int(self._server.line().split()[1])


def main() -> None:
    """Print the three tables."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(stack)
        _costs(bench, folder)
        _scraped(bench, folder)
        _sizes(bench, folder)


def _costs(bench: Bench, folder: Path) -> None:
    plain, captured = bench.ports
    with ExitStack() as stack:
        url, progress = f"http://{HOST}:{plain}", lambda text: print(text, file=sys.stderr)
        other = stack.enter_context(gateway.start(NginxSettings(), folder, url, progress))
        tap, port = proxying(folder, plain)
        stack.enter_context(tap)
        peers = [
            Peer("direct", plain, None),
            Peer("nginx", other.ports[0], child(other)),
            Peer("proxy", port, child(tap)),
        ]
        try:
            capture = stack.enter_context(sidecar(folder, "--tap", f"capture=lo:{captured}"))
            peers.append(Peer("capture", captured, child(capture)))
        except ServerError as error:
            print(f"The capture tap is omitted: {error}\n")
        print(
            "CPU in microseconds per token of the proxy or the capture, and the tokens' age in "
            f"milliseconds\nat the client: medians of {ROUNDS} rounds of {SECONDS:g} s, and the "
            "least and most.\n"
        )
        print(
            f"{'form':<7} {'streams':>7} {'tokens/s':>8}  {'':<8} {'CPU':>6} {'least':>6} "
            f"{'most':>6} {'ticks':>6} {'/nginx':>6}   {'p50':>6} {'added':>6}   "
            f"{'p99':>6} {'least':>6} {'most':>6} {'/nginx':>6}"
        )
        for case in CASES:
            samples: dict[str, list[TapCost]] = {peer.name: [] for peer in peers}
            for _ in range(ROUNDS):
                for peer in peers:
                    samples[peer.name].append(bench.measure(case, peer))
            for name in samples:
                print(_row(case, name, samples))
        print()


def _row(case: StreamCase, name: str, samples: Mapping[str, list[TapCost]]) -> str:
    def of(field: str, peer: str = name) -> list[float]:
        return [getattr(sample, field) for sample in samples[peer]]

    def ratio(field: str) -> str:
        """Return the median of the rounds' ratios; other load affects both alike."""
        rounds = zip(of(field), of(field, "nginx"), strict=True)
        return f"{statistics.median(ours / theirs for ours, theirs in rounds):>6.2f}"

    row = f"{case.form:<7} {case.streams:>7,} {case.rate:>8,}  {name:<8} "
    if name == "direct":
        row += " " * 34
    else:
        clock = statistics.median(of("clock"))
        row += "".join(f"{each * 1e6:>6.1f} " for each in (*_spread(of("run")), clock))
        row += ratio("run")
    p50 = statistics.median(of("p50"))
    added = p50 - statistics.median(of("p50", "direct"))
    row += f"   {p50 * 1e3:>6.3f} {added * 1e3:>6.3f}   "
    return row + "".join(f"{each * 1e3:>6.2f} " for each in _spread(of("p99"))) + ratio("p99")


def _spread(values: list[float]) -> tuple[float, float, float]:
    """Return the median, the least and the most."""
    return statistics.median(values), min(values), max(values)


def _scraped(bench: Bench, folder: Path) -> None:
    streams, rate = SCRAPED
    case = StreamCase("triton", streams, rate)
    with _triton() as url:
        tap, port = proxying(folder, bench.ports[0], "--triton-metrics", url)
        with tap:
            peer = Peer("proxy", port, child(tap))
            samples: dict[str, list[TapCost]] = {"not scraped": [], "scraped": []}
            statuses: list[int] = []
            for _ in range(ROUNDS + 2):
                for name, taken in samples.items():
                    with _scraping(tap, statuses) if name == "scraped" else ExitStack():
                        taken.append(bench.measure(case, peer, SCRAPED_SECONDS))
            series = len(re.findall(rb"^[a-z]", get(tap.ports[0], "/metrics")[1].encode(), re.M))
    print(
        f"Tokens' age in milliseconds at {streams} streams with {rate:,} tokens per second, with "
        f"and without\na scrape of {series:,} series every second: medians of "
        f"{ROUNDS + 2} rounds of {SCRAPED_SECONDS:g} s; {statuses.count(200)} scrapes.\n"
    )
    print(f"{'':<12} {'p50':>6} {'p99':>6} {'least':>6} {'most':>6}  {'ratio':>6}")
    least = statistics.median(sample.p99 for sample in samples["not scraped"]) * 1e3
    for name, taken in samples.items():
        p99s = [sample.p99 * 1e3 for sample in taken]
        p50, p99 = statistics.median(sample.p50 for sample in taken) * 1e3, statistics.median(p99s)
        print(
            f"{name:<12} {p50:>6.2f} {p99:>6.2f} {min(p99s):>6.2f} {max(p99s):>6.2f}  "
            f"{p99 / least:>6.2f}"
        )
    print()


@contextmanager
def _triton() -> Iterator[str]:
    """Serve the metrics of Triton with many models."""
    body = exposition(LINES).encode()

    class MetricsHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), MetricsHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}/metrics"
        server.shutdown()


@contextmanager
def _scraping(tap: ServerProcess, statuses: list[int]) -> Iterator[None]:
    """Scrape /metrics every second; append the status of each response to ``statuses``."""
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(1.0):
            with suppress(TimeoutError):
                statuses.append(get(tap.ports[0], "/metrics")[0])

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _sizes(bench: Bench, folder: Path) -> None:
    print("Memory in MiB of the sidecar and of the process of its taps.\n")
    print(f"{'live streams':>12}  {'process':<8} {'Rss':>6} {'Pss':>6}")
    tap, port = proxying(folder, bench.ports[0], "--otlp-traces", f"{HOST}:{free_ports(1)[0]}")
    with tap:
        pids = {"sidecar": tap.pid, "taps": child(tap)}
        for streams in LIVE:
            case = StreamCase("triton", max(1, streams), max(1, streams))
            with bench.streaming(case, port, 3.0, 1.0):
                bench.sent()
                sizes = {name: memory(pid) for name, pid in pids.items()}
                bench.sent()
            both = {kind: sum(size[kind] for size in sizes.values()) for kind in ("Rss", "Pss")}
            for name, size in (sizes | {"both": both}).items():
                print(f"{streams:>12,}  {name:<8} {size['Rss']:>6.1f} {size['Pss']:>6.1f}")


if __name__ == "__main__":
    main()
