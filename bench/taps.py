"""What the taps cost: CPU, latency and memory beside nginx and beside nothing at all.

``python -m bench.taps`` from the checkout; README.md explains the tables.
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
from bench.streams.processes import Cpu, Worker, child, memory, nginx, proxying, sidecar
from lab import toolchain
from lab.process import HOST, ServerError, ServerProcess, free_ports, get

ROUNDS = 4
WARM_UP, SECONDS = 0.5, 1.5
MODEL = "llama"
LINES = 25_500
"""Of Triton's metrics, which make the sidecar's 13,000 series."""
SCRAPED = (200, 10_000)
SCRAPED_SECONDS = 3.0
LIVE = (0, 1_000, 5_000)


@dataclass(frozen=True)
class Case:
    """A count of streams of one form, and their tokens per second in total."""

    form: str
    streams: int
    rate: int


CASES = (
    Case("triton", 1, 200),
    Case("triton", 100, 5_000),
    Case("openai", 100, 5_000),
    Case("triton", 1_000, 10_000),
)


@dataclass(frozen=True)
class Peer:
    """A program between clients and server, or none: its port and its CPU time."""

    name: str
    port: int
    pid: int | None

    def cpu(self) -> Cpu:
        """Return what it has used so far."""
        return Cpu.of(self.pid) if self.pid else Cpu(0.0, 0.0)


@dataclass(frozen=True)
class TapCost:
    """One run: CPU seconds per token by either clock, and how old tokens were when they came."""

    run: float
    clock: float
    p50: float
    p99: float


class Bench:
    """The server, its clients, and how to measure what is between them."""

    def __init__(self, stack: ExitStack) -> None:
        self.ports = free_ports(2)
        listen = ",".join(map(str, self.ports))
        self._server = Worker(stack, "bench.streams.server", listen)
        self._clients = Worker(stack, "bench.streams.clients")
        self._server.line()

    def measure(self, case: Case, peer: Peer, seconds: float = SECONDS) -> TapCost:
        """Let clients follow streams by way of a peer."""
        with self.streaming(case, peer.port, WARM_UP, seconds):
            before, used = self.sent(), peer.cpu()
            after, used_then = self.sent(), peer.cpu()
        used, tokens = used_then - used, after - before
        return TapCost(used.run / tokens, used.clock / tokens, self._ages["p50"], self._ages["p99"])

    @contextmanager
    def streaming(self, case: Case, port: int, warm_up: float, seconds: float) -> Iterator[None]:
        """Stream; ``sent`` then returns twice, when the streams are warm and at their end."""
        command = {"form": case.form, "model": MODEL, "streams": case.streams, "warm_up": warm_up}
        self._server.send(**command, rate=case.rate, seconds=seconds)
        self._clients.send(**command, port=port)
        yield
        self._ages: Mapping[str, float] = self._clients.answer()

    def sent(self) -> int:
        """Return the number of tokens sent so far, once the server prints it."""
        return int(self._server.line().split()[1])


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(stack)
        _costs(bench, folder)
        _scraped(bench, folder)
        _sizes(bench, folder)


def _costs(bench: Bench, folder: Path) -> None:
    plain, captured = bench.ports
    with ExitStack() as stack:
        program = toolchain.program("nginx", lambda text: print(text, file=sys.stderr))
        other = stack.enter_context(nginx(program, folder, plain))
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
            print(f"Without the capture tap: {error}\n")
        print(
            "CPU in microseconds per token, of the process that forwards or captures it, and the "
            f"tokens' age\nin milliseconds when a client has them: medians of {ROUNDS} rounds of "
            f"{SECONDS:g} s, and the least and most.\n"
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


def _row(case: Case, name: str, samples: Mapping[str, list[TapCost]]) -> str:
    def of(field: str, peer: str = name) -> list[float]:
        return [getattr(sample, field) for sample in samples[peer]]

    def ratio(field: str) -> str:
        """Return the median of the rounds' ratios: other load on the machine affects both."""
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
    case = Case("triton", streams, rate)
    with _triton() as url:
        tap, port = proxying(folder, bench.ports[0], "--triton-metrics", url)
        with tap:
            peer = Peer("proxy", port, child(tap))
            samples: dict[str, list[TapCost]] = {"left alone": [], "scraped": []}
            answers: list[int] = []
            for _ in range(ROUNDS + 2):
                for name, taken in samples.items():
                    with _scraping(tap, answers) if name == "scraped" else ExitStack():
                        taken.append(bench.measure(case, peer, SCRAPED_SECONDS))
            series = len(re.findall(rb"^[a-z]", get(tap.ports[0], "/metrics")[1].encode(), re.M))
    print(
        f"Tokens' age in milliseconds at {streams} streams with {rate:,} tokens per second, when "
        f"/metrics with\n{series:,} series is scraped every second and when not: medians of "
        f"{ROUNDS + 2} rounds of {SCRAPED_SECONDS:g} s; {answers.count(200)} scrapes.\n"
    )
    print(f"{'':<12} {'p50':>6} {'p99':>6} {'least':>6} {'most':>6}  {'ratio':>6}")
    least = statistics.median(sample.p99 for sample in samples["left alone"]) * 1e3
    for name, taken in samples.items():
        late = [sample.p99 * 1e3 for sample in taken]
        p50, p99 = statistics.median(sample.p50 for sample in taken) * 1e3, statistics.median(late)
        print(
            f"{name:<12} {p50:>6.2f} {p99:>6.2f} {min(late):>6.2f} {max(late):>6.2f}  "
            f"{p99 / least:>6.2f}"
        )
    print()


@contextmanager
def _triton() -> Iterator[str]:
    """Serve the metrics of a Triton with many models."""
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
def _scraping(tap: ServerProcess, answers: list[int]) -> Iterator[None]:
    """Ask for metrics every second; ``answers`` gets the status of each that came in time."""
    enough = threading.Event()

    def scrape() -> None:
        while not enough.wait(1.0):
            with suppress(TimeoutError):
                answers.append(get(tap.ports[0], "/metrics")[0])

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def _sizes(bench: Bench, folder: Path) -> None:
    print("Memory in MiB of the sidecar and of the process of its taps.\n")
    print(f"{'live streams':>12}  {'process':<8} {'Rss':>6} {'Pss':>6}")
    tap, port = proxying(folder, bench.ports[0], "--otlp-traces", f"{HOST}:{free_ports(1)[0]}")
    with tap:
        pids = {"sidecar": tap.pid, "taps": child(tap)}
        for streams in LIVE:
            case = Case("triton", max(1, streams), max(1, streams))
            with bench.streaming(case, port, 3.0, 1.0):
                bench.sent()
                sizes = {name: memory(pid) for name, pid in pids.items()}
                bench.sent()
            both = {kind: sum(size[kind] for size in sizes.values()) for kind in ("Rss", "Pss")}
            for name, size in (sizes | {"both": both}).items():
                print(f"{streams:>12,}  {name:<8} {size['Rss']:>6.1f} {size['Pss']:>6.1f}")


if __name__ == "__main__":
    main()
