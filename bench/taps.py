"""Measure CPU, latency and memory of the taps, next to gateways and to a direct connection.

Run ``python -m bench.taps`` from the checkout; README.md explains the tables.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.exposition import exposition
from bench.figures import (
    Figure,
    MissingPeer,
    PeerComparison,
    RepeatLimits,
    limits,
    median_interval,
    repeat,
)
from bench.streams.load import SECONDS, Costs, StreamCase, StreamLoad, TapCost, ratio
from bench.streams.peers import STARTS, StreamPeer, start
from bench.streams.processes import child, memory, proxying
from lab.process import HOST, ServerProcess, free_ports, get

ROUNDS = 4
LINES = 25_500
"""Lines of Triton's metrics, for 13,000 series of the sidecar."""
SCRAPED = (200, 10_000)
SCRAPED_SECONDS = 3.0
LIVE = {0: 50, 1_000: 64, 5_000: 90}
"""Numbers of live streams, and the target for memory in MiB."""
DCGM_LIMIT = 512
"""Memory limit in MiB in the values of dcgm-exporter's Helm chart."""
GATEWAYS = ("nginx", "haproxy", "envoy")
CPU_TARGETS = {"proxy": 1.2, "capture": 0.35}
"""Largest ratios to nginx."""
CAPTURE_TARGET_ONE_STREAM = 0.5

CASES = (
    StreamCase("triton", 1, 200),
    StreamCase("triton", 100, 5_000),
    StreamCase("openai", 100, 5_000),
    StreamCase("triton", 1_000, 10_000),
)


def main() -> None:
    """Print the three tables."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load = StreamLoad(stack)
        _print_costs(load, folder)
        _print_scraped(load, folder)
        _print_sizes(load, folder)


# CPU time and latency


def _print_costs(load: StreamLoad, folder: Path) -> None:
    with ExitStack() as stack:
        found, missing = start(stack, folder, load.ports, STARTS)
        for name, reason in missing.items():
            print(f"{name} is omitted: {reason}\n")
        print(
            "CPU in microseconds per token of the process in between, and the tokens' age in "
            f"milliseconds\nat the client: medians of {ROUNDS} rounds of {SECONDS:g} s, and the "
            "least and most.\n"
        )
        print(
            f"{'form':<7} {'streams':>7} {'tokens/s':>8}  {'':<8} {'CPU':>6} {'least':>6} "
            f"{'most':>6} {'ticks':>6} {'/nginx':>6}   {'p50':>6} {'added':>6}   "
            f"{'p99':>6} {'least':>6} {'most':>6} {'/nginx':>6}"
        )
        peers = [StreamPeer("direct", load.ports[0], None), *found]
        fixed = RepeatLimits(least=ROUNDS, most=ROUNDS)
        for case in CASES:
            rounds = load.rounds(case, peers, fixed)
            for peer in peers:
                print(_row(case, peer.name, rounds))
        print()


def _row(case: StreamCase, name: str, rounds: Sequence[Costs]) -> str:
    def of(field: str, peer: str = name) -> list[float]:
        return [getattr(costs[peer], field) for costs in rounds]

    def to_nginx(field: str) -> str:
        found = f"{ratio(rounds, name, field).median:.2f}" if "nginx" in rounds[0] else "-"
        return f"{found:>6}"

    row = f"{case.form:<7} {case.streams:>7,} {case.rate:>8,}  {name:<8} "
    if name == "direct":
        row += " " * 34
    else:
        clock = statistics.median(of("clock"))
        row += "".join(f"{each * 1e6:>6.1f} " for each in (*_range(of("run")), clock))
        row += to_nginx("run")
    p50 = statistics.median(of("p50"))
    added = p50 - statistics.median(of("p50", "direct"))
    row += f"   {p50 * 1e3:>6.3f} {added * 1e3:>6.3f}   "
    return row + "".join(f"{each * 1e3:>6.2f} " for each in _range(of("p99"))) + to_nginx("p99")


def _range(values: list[float]) -> tuple[float, float, float]:
    """Return the median, the least and the most."""
    return statistics.median(values), min(values), max(values)


def proxy_figures(long: bool) -> Iterator[Figure]:
    """Compare CPU time and latency of the proxy tap with each gateway."""
    yield from _cost_figures("proxy", GATEWAYS, limits(long, seconds=150))


def capture_figures(long: bool) -> Iterator[Figure]:
    """Compare CPU time and latency of the capture tap with nginx."""
    yield from _cost_figures("capture", GATEWAYS[:1], limits(long, seconds=90))


def _cost_figures(tap: str, gateways: Sequence[str], most: RepeatLimits) -> Iterator[Figure]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load = StreamLoad(stack)
        peers, missing = start(stack, folder, load.ports, (*gateways, tap))
        if tap in missing:
            yield MissingPeer(f"{tap} tap", ", ".join(gateways), missing[tap])
            return
        for name, reason in missing.items():
            yield MissingPeer(f"{tap} tap", name, reason)
        for case in CASES:
            rounds = load.rounds(case, peers, most)
            for peer in peers[:-1]:
                yield from _cost_comparisons(tap, peer, case, rounds)


def _cost_comparisons(
    tap: str, peer: StreamPeer, case: StreamCase, rounds: Sequence[Costs]
) -> Iterator[PeerComparison]:
    cpu = CPU_TARGETS[tap]
    if tap == "capture" and case.streams == 1:
        cpu = CAPTURE_TARGET_ONE_STREAM
    title = f"{peer.name} {peer.version}".strip()
    for name, unit, field, factor, target in (
        ("CPU per token", "µs", "run", 1e6, cpu),
        ("p99 of tokens' age", "ms", "p99", 1e3, 1.0),
    ):
        ours, theirs = (
            [factor * getattr(costs[each], field) for costs in rounds] for each in (tap, peer.name)
        )
        allowed = target if peer.name == "nginx" else None
        yield PeerComparison(f"{name}: {case}", title, unit, ours, theirs, allowed)


# Scrapes


def _print_scraped(load: StreamLoad, folder: Path) -> None:
    rounds, series, scrapes = _scraped(load, folder, RepeatLimits(ROUNDS + 2, ROUNDS + 2))
    streams, rate = SCRAPED
    print(
        f"Tokens' age in milliseconds at {streams} streams with {rate:,} tokens per second, with "
        f"and without\na scrape of {series:,} series every second: medians of "
        f"{len(rounds)} rounds of {SCRAPED_SECONDS:g} s; {scrapes} scrapes.\n"
    )
    print(f"{'':<12} {'p50':>6} {'p99':>6} {'least':>6} {'most':>6}  {'ratio':>6}")
    least = statistics.median(costs["not scraped"].p99 for costs in rounds)
    for name in rounds[0]:
        p50 = statistics.median(costs[name].p50 for costs in rounds)
        p99, low, high = _range([costs[name].p99 for costs in rounds])
        cells = " ".join(f"{1e3 * each:>6.2f}" for each in (p50, p99, low, high))
        print(f"{name:<12} {cells}  {p99 / least:>6.2f}")
    print()


def _scraped(load: StreamLoad, folder: Path, most: RepeatLimits) -> tuple[list[Costs], int, int]:
    """Measure rounds without and with scrapes; also return the numbers of series and of scrapes."""
    streams, rate = SCRAPED
    case = StreamCase("triton", streams, rate)
    statuses: list[int] = []
    with _triton() as url:
        tap, port = proxying(folder, load.ports[0], "--triton-metrics", url)
        with tap:
            peer = StreamPeer("proxy", port, child(tap))

            def measure() -> Mapping[str, TapCost]:
                quiet = load.measure(case, peer, SCRAPED_SECONDS)
                with _scraping(tap, statuses):
                    return {
                        "not scraped": quiet,
                        "scraped": load.measure(case, peer, SCRAPED_SECONDS),
                    }

            rounds = repeat(
                measure, lambda done: [ratio(done, "scraped", "p99", "not scraped")], most
            )
            series = len(re.findall(rb"^[a-z]", get(tap.ports[0], "/metrics")[1].encode(), re.M))
    return rounds, series, statuses.count(200)


def scraped_figures(long: bool) -> Iterator[Figure]:
    """Compare the age of tokens with and without scrapes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rounds, series, _ = _scraped(StreamLoad(stack), folder, limits(long, seconds=90))
    streams, rate = SCRAPED
    yield PeerComparison(
        f"p99 of tokens' age, {streams} streams, {rate:,} tokens/s, {series:,} series scraped "
        "every second",
        "the same proxy tap, not scraped",
        "ms",
        [1e3 * costs["scraped"].p99 for costs in rounds],
        [1e3 * costs["not scraped"].p99 for costs in rounds],
        target=1.1,
    )


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


# Memory


def _print_sizes(load: StreamLoad, folder: Path) -> None:
    print("Memory in MiB of the sidecar and of the process of its taps.\n")
    print(f"{'live streams':>12}  {'process':<8} {'Rss':>6} {'Pss':>6}")
    for streams, sizes in _sizes(load, folder):
        for name, size in (sizes | {"both": _total(sizes)}).items():
            print(f"{streams:>12,}  {name:<8} {size['Rss']:>6.1f} {size['Pss']:>6.1f}")


def _sizes(load: StreamLoad, folder: Path) -> Iterator[tuple[int, dict[str, dict[str, float]]]]:
    """Start a sidecar, and yield the memory of its processes by number of live streams."""
    tap, port = proxying(folder, load.ports[0], "--otlp-traces", f"{HOST}:{free_ports(1)[0]}")
    with tap:
        pids = {"sidecar": tap.pid, "taps": child(tap)}
        for streams in LIVE:
            case = StreamCase("triton", max(1, streams), max(1, streams))
            with load.streaming(case, port, 3.0, 1.0):
                load.sent()
                sizes = {name: memory(pid) for name, pid in pids.items()}
                load.sent()
            yield streams, sizes


def _total(sizes: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {kind: sum(size[kind] for size in sizes.values()) for kind in ("Rss", "Pss")}


def memory_figures(long: bool) -> Iterator[Figure]:
    """Compare the memory of the sidecar and its taps with the limit of dcgm-exporter's chart."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load = StreamLoad(stack)
        rounds = repeat(
            lambda: {streams: _total(sizes)["Pss"] for streams, sizes in _sizes(load, folder)},
            lambda done: [median_interval(each[streams] for each in done) for streams in LIVE],
            limits(long, most=5),
        )
    for streams, target in LIVE.items():
        yield PeerComparison(
            f"proportional memory of the sidecar and its proxy tap, {streams:,} live streams",
            "limit in dcgm-exporter's chart (documented, not run)",
            "MiB",
            [each[streams] for each in rounds],
            [DCGM_LIMIT] * len(rounds),
            target / DCGM_LIMIT,
        )


if __name__ == "__main__":
    main()
