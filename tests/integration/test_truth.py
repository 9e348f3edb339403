"""Compare metrics of the taps with what clients measured: counts, TTFT, ITL.

More than two thousand streams go to a real Triton and to a simulated trtllm-serve, once through
proxy taps and once straight to the servers, observed by packet capture.  Counts must be equal;
times may differ by the delay between client and tap.  The short test runs a share of the streams
and compares medians; the long one runs all.

On a busy machine the scheduler delays clients: their measured times include the delay, and a client
that disconnects late has been sent a token that it did not count.  A run with differences and late
clients is therefore repeated; a defect of a tap shows in every run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab import trtllm_server
from lab.engine_settings import EngineSettings
from lab.process import HOST, ServerProcess, free_ports, get, serve
from lab.repository import ModelSettings, write_repository
from lab.triton import Triton
from lab.trtllm_serve.settings import ServeSettings
from loadtest.quantiles import nearest_rank
from promql.histogram import histogram_quantile
from tests import triton_models
from tests.packet_capture import need_capture
from tests.polling import read_until
from tests.truth.client_record import ClientRecord, Sample, counts, first_tokens, gaps
from tests.truth.crowd import UNKNOWN

pytestmark = pytest.mark.alone

STREAMS = 2_000
PART = 0.07
"""The share of the streams in the short test."""
ENGINE = EngineSettings(step_seconds=0.022, sequence_seconds=0.0005, kv_blocks=2000)
SIMULATED = ("http", "http_stalled", "grpc")
OPENAI = ("openai", "openai_stalled")
AT_ONCE = {
    "triton_http": 4,
    "openai_http": 4,
    "openai_package": 2,
    "triton_grpc": 3,
    "triton_whole": 2,
}
"""Clients of each kind at a time: about half of what two cores can serve."""
CROWD_SECONDS = 120.0
COUNTERS = (
    "llm_requests_total",
    "llm_request_failures_total",
    "llm_streams_total",
    "llm_streaming_disconnects_total",
    "llm_requests_without_first_token_total",
    "llm_tokens_total",
    "llm_partial_response_tokens_total",
)
SETTLED_SECONDS = 15.0
"""A gRPC stream that its client cancelled ends after five seconds of silence."""

TIMED = {"http": "SSE", "openai": "OpenAI", "grpc": "gRPC"}
"""Models whose clients read at once, and the protocol."""
TIMES: Mapping[str, tuple[str, Callable[[list[ClientRecord]], list[float]]]] = {
    "ttft": ("llm_time_to_first_token_seconds", first_tokens),
    "itl": ("llm_inter_token_latency_seconds", gaps),
}
BOUNDS = {0.5: 0.001, 0.99: 0.002}
"""Quantile: the maximum difference between tap and clients, in seconds.

A share of the streams has too few times for the second one.
"""
THRESHOLDS = {"ttft": (*range(40, 180, 2), *range(180, 400, 20)), "itl": range(30, 120)}
"""Bucket boundaries, in half milliseconds, around the latencies of these engines.

Each is the threshold of an objective.  A tap compares every first token with every threshold, so
more of them would slow it down.
"""
WARM_UP = 0.03
"""The share of all requests sent before the test: first requests are slow."""
ATTEMPTS = 3
LATE_SECONDS = 0.001
"""The machine is busy if the p99 of the clients' wake-up delay exceeds this."""
TIMERS = {
    "SSE": ("triton_http",),
    "OpenAI": ("openai_http", "openai_package"),
    "gRPC": ("triton_grpc",),
}
"""The kinds of clients that measure times, by protocol."""

Buckets = Mapping[tuple[str, str], list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class ServedMetrics:
    """Metrics that a sidecar served: ``buckets`` are cumulative, by metric and model."""

    counters: Mapping[Sample, float]
    buckets: Buckets
    everything: Mapping[Sample, float]

    def total(self, metric: str) -> float:
        """Add up all samples of a metric."""
        return sum(value for (name, _), value in self.everything.items() if name == metric)


@dataclass(frozen=True, slots=True)
class Row:
    """A quantile of the clients' and of the tap's times, in seconds.

    ``late`` is the maximum delay of the clients' clock readings on a busy machine, else 0.
    """

    protocol: str
    time: str
    q: float
    count: int
    seen: float
    reported: float
    late: float

    @property
    def good(self) -> bool:
        """Whether both agree within the bound and the clients' delay."""
        return abs(self.reported - self.seen) <= BOUNDS[self.q] + self.late

    def __str__(self) -> str:
        values = " ".join(f"{1000 * value:8.2f}" for value in (self.seen, self.reported))
        differs = f"{1000 * (self.reported - self.seen):+8.2f}{'' if self.good else ' !'}"
        what = f"{self.protocol:8} {self.time:5} {self.count:6} p{self.q * 100:<3.0f}"
        return f"{what} {values} {differs}"


@dataclass(frozen=True, slots=True)
class TapRun:
    """One run of all clients at one tap; ``wakeup_delays`` are by kind of client."""

    tap: str
    seconds: float
    seen: list[ClientRecord]
    wakeup_delays: Mapping[str, list[float]]
    reported: ServedMetrics
    engine: list[Mapping[str, Any]]
    share: float

    @property
    def busy(self) -> bool:
        """Whether the scheduler delayed any clients."""
        return any(map(self.late, self.wakeup_delays))

    def late(self, kind: str) -> float:
        """Return the p99 wake-up delay of a kind of clients in seconds; 0 if it is normal."""
        delays = self.wakeup_delays[kind]
        late = exact(0.99, delays) if delays else 0.0
        return late if late > LATE_SECONDS else 0.0

    def lag(self, protocol: str, name: str) -> float:
        """Return the maximum delay of the clients' times for a protocol, in seconds.

        The scheduler also delays the proxy before it reads a request: the clients' time to first
        token includes that delay, the proxy's does not.
        """
        clients = max(map(self.late, TIMERS[protocol]))
        waits = self.tap == "proxy" and name == "ttft"
        return clients + (max(map(self.late, self.wakeup_delays)) if waits else 0.0)

    def rows(self) -> list[Row]:
        """Compare quantiles of each protocol."""
        return [
            Row(
                protocol,
                name,
                q,
                len(seen),
                nearest(q, seen, quantile(q, reported)),
                quantile(q, reported),
                late,
            )
            for model, protocol in TIMED.items()
            for name, (metric, pick) in TIMES.items()
            for late in [self.lag(protocol, name)]
            for seen in [pick([one for one in self.seen if one.model == model])]
            for reported in [self.reported.buckets[metric, model]]
            for q in (BOUNDS if self.share == 1 else (0.5,))
        ]


@pytest.fixture(scope="module")
def servers(
    triton: Callable[..., Triton], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Triton, list[ServerProcess]]]:
    folder = tmp_path_factory.mktemp("servers")
    for name in SIMULATED:
        plain = ModelSettings(publish="none", first_response_buckets_ms=())
        write_repository(folder / "models", name, ENGINE, plain)
    triton_models.write_models(folder / "models", ("plain", "bounded"))
    with ExitStack() as stack:
        one = stack.enter_context(triton(folder / "models", folder / "triton"))
        others = [
            stack.enter_context(
                trtllm_server.start(folder / name, ServeSettings(model=name), ENGINE)
            )
            for name in OPENAI
        ]
        gather([*one.ports[:2], *(other.ports[0] for other in others)], WARM_UP)
        yield one, others


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((tap, share), id=f"{tap}-{share:g}", marks=marks)
        for share, marks in ((PART, ()), (1.0, pytest.mark.long))
        for tap in ("proxy", "capture")
    ],
)
def runs(
    request: pytest.FixtureRequest,
    servers: tuple[Triton, list[ServerProcess]],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[TapRun]:
    """Run all clients; repeat while a busy machine may explain the differences."""
    tap, share = request.param
    if tap == "capture":
        need_capture()
    found: list[TapRun] = []
    while len(found) < ATTEMPTS:
        found.append(run(tap, share, *servers, tmp_path_factory.mktemp("run")))
        differs = different_counts(found) or different_times(found) or fewest_losses(found)
        if not (found[-1].busy and differs):
            break
    return found


def run(
    tap: str, share: float, triton: Triton, others: list[ServerProcess], folder: Path
) -> TapRun:
    ports = [*triton.ports[:2], *(other.ports[0] for other in others)]
    if tap == "proxy":
        listen = list(free_ports(len(ports)))
        both = zip(listen, ports, strict=True)
        taps = [f"proxy={HOST}:{mine}={HOST}:{theirs}" for mine, theirs in both]
    else:
        listen, taps = ports, [f"capture=lo:{','.join(map(str, ports))}"]
    since = [truth(other)["mark"] for other in others]
    with sidecar(folder, taps) as server:
        began = time.monotonic()
        crowds = gather(listen, share)
        seconds = time.monotonic() - began
        seen = [ClientRecord(**one) for crowd in crowds.values() for one in crowd["seen"]]
        reported = settled(server, known(seen))
    pairs = zip(others, since, strict=True)
    engine = [request for other, mark in pairs for request in truth(other, mark)["requests"]]
    delays = {kind: crowd["wakeup_delays"] for kind, crowd in crowds.items()}
    return TapRun(tap, seconds, seen, delays, reported, engine, share)


def truth(server: ServerProcess, since: float = 0.0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(server.ports[0], f"/lab/truth?since={since}")[1])
    return found


def sidecar(folder: Path, taps: Sequence[str]) -> ServerProcess:
    slo = folder / "slo.yaml"
    slo.write_text(objectives())

    def command(ports: Sequence[int]) -> list[str | Path]:
        options = [word for tap in taps for word in ("--tap", tap)]
        return [
            *(sys.executable, "-m", "tokenslo", "exporter", "--listen", f"{HOST}:{ports[0]}"),
            *("--slo", slo, "--tap-drain", "1s", "--log-level", "error", *options),
        ]

    return serve(ServerProcess, "sidecar", command, folder / "sidecar.log", ready="/healthz")


def objectives() -> str:
    """Return an SLO file with a threshold at every bucket boundary."""
    lines = [
        f"  - {{name: {name}-{half}, indicator: {name}, threshold: {half / 2:g}ms, target: 99%}}\n"
        for name, thresholds in THRESHOLDS.items()
        for half in thresholds
    ]
    return f"apiVersion: tokenslo/v1\nservice: truth\nobjectives:\n{''.join(lines)}"


def gather(listen: Sequence[int], share: float = 1.0) -> dict[str, dict[str, list[Any]]]:
    """Run all crowds at the same time; return their results."""
    with ExitStack() as stack:
        crowds = {
            kind: stack.enter_context(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "tests.truth.crowd", kind),
                        *map(str, listen[2:] if kind.startswith("openai") else listen[:2]),
                        *(f"--at-once={at_once}", f"--share={share}"),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for kind, at_once in AT_ONCE.items()
        }
        for crowd in crowds.values():
            stack.callback(crowd.kill)
            assert crowd.stdout
            assert crowd.stdout.readline() == "ready\n"
        with ThreadPoolExecutor(len(crowds)) as pool:
            reported = pool.map(
                lambda one: one.communicate("go\n", CROWD_SECONDS)[0], crowds.values()
            )
            return dict(zip(crowds, map(json.loads, reported), strict=True))


def known(seen: list[ClientRecord]) -> dict[Sample, float]:
    """Return the expected counters, without requests for unknown models."""
    return counts(one for one in seen if one.model != UNKNOWN)


def settled(server: ServerProcess, expected: Mapping[Sample, float]) -> ServedMetrics:
    """Scrape a sidecar until its counters are as expected, at most for SETTLED_SECONDS."""
    return read_until(
        lambda: read(get(server.ports[0], "/metrics")[1]),
        lambda reported: reported.counters == expected,
        SETTLED_SECONDS,
        0.5,
    )


def read(text: str) -> ServedMetrics:
    everything: dict[Sample, float] = {}
    buckets: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "version"}
            if sample.name.endswith("_bucket"):
                edges = buckets.setdefault((family.name, labels["model"]), [])
                edges.append((float(labels["le"]), sample.value))
            else:
                key = sample.name, tuple(sorted(labels.items()))
                everything[key] = everything.get(key, 0.0) + sample.value
    counters = {
        (name, labels): value
        for (name, labels), value in everything.items()
        if name in COUNTERS and value and dict(labels).get("direction", "output") == "output"
    }
    return ServedMetrics(counters, buckets, everything)


def quantile(q: float, buckets: Sequence[tuple[float, float]]) -> float:
    bounds, counts = zip(*buckets, strict=True)
    return histogram_quantile(q, bounds, counts)


def exact(q: float, values: Sequence[float]) -> float:
    return nearest_rank(q, sorted(values))


def nearest(q: float, values: Sequence[float], reported: float) -> float:
    """Return the observed quantile, or the neighbour that is nearer to the reported one.

    Interpolation in a histogram errs by up to one rank, which is much in a thin tail.
    """
    ordered, rank = sorted(values), ceil(q * len(values)) - 1
    return min(ordered[max(0, rank - 1) : rank + 2], key=lambda value: abs(value - reported))


OF_TOKENS = ("llm_tokens_total", "llm_partial_response_tokens_total")


def different_counts(runs: list[TapRun]) -> list[str]:
    """Return the differences of the run with the fewest."""
    return min(map(differences, runs), key=len)


def fewest_losses(runs: list[TapRun]) -> list[str]:
    """Return the losses of the run with the fewest: a busy machine makes a capture drop packets."""
    return min(map(losses, runs), key=len)


def different_times(runs: list[TapRun]) -> list[str]:
    """Return the quantiles that differ in every run."""
    return [
        "\n".join(map(str, rows))
        for rows in zip(*(one.rows() for one in runs), strict=True)
        if not any(row.good for row in rows)
    ]


def test_counts_equal_the_clients(runs: list[TapRun]) -> None:
    for one in runs:
        assert sum(seen.streaming for seen in one.seen) >= STREAMS * one.share
        assert not one.reported.total("llm_live_streams")
    assert fewest_losses(runs) == []
    assert different_counts(runs) == []


def test_times_agree_with_the_clients(
    runs: list[TapRun], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        for one in runs:
            print(f"\n{report_of(one)}")
    assert different_times(runs) == []


def test_unknown_models_have_no_series(runs: list[TapRun]) -> None:
    for one in runs:
        assert any(seen.model == UNKNOWN for seen in one.seen)
        models = {dict(labels).get("model") for _, labels in one.reported.everything}
        assert UNKNOWN not in models


def test_wasted_tokens_are_within_the_generated_ones(runs: list[TapRun]) -> None:
    for one in runs:
        assert one.reported.total("llm_wasted_tokens_total") >= sum(seen.late for seen in one.seen)
        made, taken, sent = waste(one)
        assert 0 <= sent <= made - taken


def losses(one: TapRun) -> list[str]:
    """Return the tap's non-zero loss counters."""
    names = ("lossy_streams", "dropped_packets", "skipped", "refused", "restarts")
    totals = {name: one.reported.total(f"tokenslo_tap_{name}_total") for name in names}
    return [f"{name}: {count:g}" for name, count in totals.items() if count]


def differences(one: TapRun) -> list[str]:
    """Return every counter that differs from the clients' counts.

    After a client disconnects, its socket may hold a token that it never reads: it was delivered,
    but the client did not count it.
    """
    seen, reported = known(one.seen), one.reported.counters
    disconnects = Counter(each.model for each in one.seen if each.outcome == "client_disconnected")
    found = []
    for name, labels in sorted(seen.keys() | reported.keys()):
        expected_count, tap_count = seen.get((name, labels), 0), reported.get((name, labels), 0)
        unread = disconnects[dict(labels)["model"]] if name in OF_TOKENS else 0
        if not expected_count <= tap_count <= expected_count + unread:
            found.append(f"{name}{dict(labels)}: clients {expected_count:g}, tap {tap_count:g}")
    return found


def report_of(one: TapRun) -> str:
    delays = ", ".join(
        f"{kind} {1000 * exact(0.99, delays):.1f}" for kind, delays in one.wakeup_delays.items()
    )
    streams = sum(seen.streaming for seen in one.seen)
    disconnects = sum(seen.outcome == "client_disconnected" for seen in one.seen)
    made, taken, sent = waste(one)
    return "\n".join(
        [
            f"{one.tap}: {streams} streams in {one.seconds:.0f} s, {disconnects} disconnects",
            f"p99 wake-up delay of clients (ms): {delays}",
            *(differences(one) or ["all counts are equal"]),
            *losses(one),
            "protocol time   count        clients     tap     diff (ms)",
            *map(str, one.rows()),
            f"tokens of trtllm-serve: {made} generated, {taken} read by clients, {sent:g} wasted",
        ]
    )


def waste(one: TapRun) -> tuple[int, int, float]:
    """Return the tokens that trtllm-serve generated, clients read, and taps counted as wasted."""
    made = sum(request["output_tokens"] for request in one.engine)
    taken = sum(seen.tokens for seen in one.seen if seen.model in OPENAI)
    sent = sum(
        value
        for (name, labels), value in one.reported.everything.items()
        if name == "llm_wasted_tokens_total" and dict(labels)["model"] in OPENAI
    )
    return made, taken, sent
