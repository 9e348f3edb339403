"""Measure ``/gateway`` while ``/metrics`` is rendered, next to prometheus_client.

Run ``python -m bench.gateway`` from the checkout; README.md explains the columns.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from importlib.metadata import version
from statistics import median, quantiles
from urllib.parse import quote

from prometheus_client import start_http_server
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from bench.arguments import positive_integer
from bench.child_server import child_port
from bench.figures import Figure, PeerComparison, limits, median_interval, repeat
from bench.scrape import expositions, served, sidecar, timed, wait

MODELS = 150
"""Number of vLLM models with which ``/metrics`` has 13,000 series."""
PICKERS = 3
"""Replicas of the endpoint picker; each scrapes on a connection of its own."""
PERIOD = 0.05
"""Seconds between two scrapes of an endpoint picker."""
SCRAPE_PERIODS = {"every second": 1.0, "without a pause": 0.0}
"""Seconds between two scrapes of ``/metrics``."""
REQUESTS, COMPARED_REQUESTS = 200, 100
"""Responses of endpoint pickers during a rendering."""
TARGET_SECONDS = 0.005
"""Largest 99th percentile of the page."""
GAUGES = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc")
HEADERS = {"Accept-Encoding": "gzip"}
SWITCH_SECONDS = 0.0005
"""Time slice of the bench's own threads, so that they do not wait for each other."""


@dataclass(frozen=True, slots=True)
class ResponseTime:
    """Start and duration of a response, in seconds."""

    start: float
    seconds: float


class Poller(threading.Thread):
    """Request a path on one connection until stopped, every ``period`` seconds on average.

    Periods vary by up to ``jitter``, a share, so that the requests of several pollers do not stay
    in phase.
    """

    def __init__(
        self, port: int, path: str, period: float, stop: threading.Event, jitter: float = 0.0
    ) -> None:
        super().__init__()
        self._port, self._path, self._period, self._stopped = port, path, period, stop
        self._jitter = jitter
        self.times: list[ResponseTime] = []

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        due = time.perf_counter()
        while not self._stopped.is_set():
            start = time.perf_counter()
            connection.request("GET", self._path, headers=HEADERS)
            response = connection.getresponse()
            response.read()
            self.times.append(ResponseTime(start, time.perf_counter() - start))
            varied = self._period * (1 + self._jitter * random.uniform(-1, 1))
            due = max(due + varied, time.perf_counter())
            self._stopped.wait(due - time.perf_counter())
        connection.close()


def overlapping(
    times: Sequence[ResponseTime], renderings: Sequence[ResponseTime]
) -> Sequence[float]:
    """Return the durations of the responses that overlap a rendering."""
    spans = [(one.start, one.start + one.seconds) for one in renderings]
    return [
        one.seconds
        for one in times
        if any(begin < one.start + one.seconds and one.start < end for begin, end in spans)
    ]


def peer(text: str) -> AbstractContextManager[int]:
    """Serve the same families by prometheus_client's own server in a child; yield its port."""
    return child_port(partial(_serve_peer, text))


def _serve_peer(text: str, port: int) -> None:
    families = {family.name: family for family in text_string_to_metric_families(text)}

    class PeerCollector(Collector):
        def __init__(self, name: str) -> None:
            self.family = families[name]

        def collect(self) -> Iterator[Metric]:
            yield self.family

        def describe(self) -> Iterator[Metric]:
            yield self.family

    registry = CollectorRegistry()
    for name in families:
        registry.register(PeerCollector(name))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    os.write(port, str(server.server_port).encode())
    thread.join()


def measure(port: int, path: str, requests: int, period: float) -> list[Poller]:
    """Request ``path`` as endpoint pickers do, beside scrapes of everything every ``period``.

    Stop after a number of responses during a rendering.  Return the pollers; the last one scraped
    everything.
    """
    stop = threading.Event()
    pollers = [Poller(port, path, PERIOD, stop, jitter=0.5) for _ in range(PICKERS)]
    pollers.append(Poller(port, "/metrics", period, stop))
    for poller in pollers:
        poller.start()
    try:
        while len(_times(pollers)) < requests:
            time.sleep(PERIOD)
    finally:
        stop.set()
        for poller in pollers:
            poller.join()
    return pollers


def p99(pollers: Sequence[Poller]) -> float:
    """Return the 99th percentile of the responses that overlap a rendering, in seconds."""
    return quantiles(_times(pollers), n=100, method="inclusive")[98]


def _times(pollers: Sequence[Poller]) -> Sequence[float]:
    *pickers, full = pollers
    return overlapping([one for poller in pickers for one in poller.times], full.times)


def row(name: str, scraped: str, pollers: Sequence[Poller]) -> str:
    """Return a row of the table."""
    times = _times(pollers)
    whole = median(one.seconds for one in pollers[-1].times)
    cuts = quantiles(times, n=100, method="inclusive")
    cells = (1000 * cuts[49], 1000 * cuts[98], 1000 * max(times), 1000 * whole)
    return (
        f"{name:<18} {scraped:<16} {len(times):>8,}  "
        + "  ".join(f"{cell:>8.1f}" for cell in cells)
        + f"  {whole / cuts[98]:>11.1f}"
    )


@contextmanager
def scraped_sidecar(models: int) -> Iterator[tuple[int, str]]:
    """Run a sidecar of a vLLM server; yield its port and its page of metrics."""
    with (
        served(expositions("vllm", models, 60), {}) as source,
        sidecar("vllm", source, "--gateway-metrics", "vllm") as (port, _),
    ):
        wait(port, "/readyz")
        yield port, _complete_page(port, models)


def _complete_page(port: int, models: int) -> str:
    """Return the page of metrics once it has all models; raises TimeoutError after 30 s.

    The first snapshot is stored in steps.
    """
    until = time.monotonic() + 30
    while time.monotonic() < until:
        text = gzip.decompress(timed(port, "/metrics")[2]).decode()
        if text.count("llm_time_to_first_token_seconds_count{") == models:
            return text
        time.sleep(PERIOD)
    raise TimeoutError(f"/metrics did not have all {models} models within 30 s")


def count_series(text: str) -> int:
    """Return the number of series of a page of metrics."""
    return sum(not line.startswith("#") for line in text.splitlines())


SELECTED = "/metrics?" + "&".join(f"name[]={quote(name)}" for name in GAUGES)
"""The path that selects the gauges of the peer."""


def figures(long: bool) -> Iterator[Figure]:
    """Compare the page during scrapes with prometheus_client's selection of the same gauges."""
    sys.setswitchinterval(SWITCH_SECONDS)
    with ExitStack() as stack:
        port, text = stack.enter_context(scraped_sidecar(MODELS))
        other = stack.enter_context(peer(text))
        for scraped, period in SCRAPE_PERIODS.items():
            yield from _compared(port, other, count_series(text), scraped, period, long)


def _compared(
    port: int, other: int, series: int, scraped: str, period: float, long: bool
) -> Iterator[Figure]:
    rounds = repeat(
        lambda: (
            p99(measure(port, "/gateway", COMPARED_REQUESTS, period)),
            p99(measure(other, SELECTED, COMPARED_REQUESTS, period)),
        ),
        lambda done: [median_interval(ours / theirs for ours, theirs in done)],
        limits(long, seconds=75),
    )
    subject = f"p99 of /gateway while {series:,} series are scraped {scraped}"
    ours = [1e3 * each for each, _ in rounds]
    yield PeerComparison(
        subject,
        f"prometheus_client {version('prometheus_client')}, the same gauges by name[]",
        "ms",
        ours,
        [1e3 * theirs for _, theirs in rounds],
    )
    limit = [1e3 * TARGET_SECONDS] * len(rounds)
    yield PeerComparison(subject, f"{limit[0]:g} ms", "ms", ours, limit, target=1.0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--requests", default=str(REQUESTS), help="of the endpoint pickers, a row")
    parser.add_argument("--models", default=str(MODELS), help="number of models")
    options = parser.parse_args()
    requests = positive_integer(options.requests, "--requests")
    models = positive_integer(options.models, "--models")
    sys.setswitchinterval(SWITCH_SECONDS)
    with ExitStack() as stack:
        port, text = stack.enter_context(scraped_sidecar(models))
        print(
            f"{models:,} models, {count_series(text):,} series on /metrics, {PICKERS} endpoint "
            "pickers at 20/s"
        )
        print("milliseconds of responses during a rendering of /metrics\n")
        print(
            f"{'page':<18} {'/metrics':<16} {'requests':>8}  {'p50':>8}  {'p99':>8}  {'max':>8}  "
            f"{'/metrics':>8}  {'/metrics/p99':>11}"
        )
        other = stack.enter_context(peer(text))
        pages = (
            ("/gateway", port, "/gateway"),
            ("/healthz", port, "/healthz"),
            ("prometheus_client", other, SELECTED),
        )
        for name, of_page, path in pages:
            for scraped, period in SCRAPE_PERIODS.items():
                print(row(name, scraped, measure(of_page, path, requests, period)), flush=True)


if __name__ == "__main__":
    main()
