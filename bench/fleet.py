"""Scrape many sidecars with one real Prometheus, and evaluate the rules of many services.

Run ``python -m bench.fleet`` from the checkout; README.md explains the columns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from bench import evaluation
from bench.arguments import check_names, positive_integer
from bench.child_server import child_port
from bench.peers import COMPARED
from exporter.protocol.events import Stream
from exporter.recording.stream_recorder import StreamRecorder
from exporter.samples import Snapshot
from exporter.store.store import Store
from exporter.store.unavailability import TAPS
from exporter.web.collector import expose
from lab import toolchain
from lab.process import HOST
from lab.prometheus import Prometheus, start_configured
from promql.client import query
from tests.rule_values.traffic import BOUNDARY

SIDECARS, SERVICES, MINUTES = 1_000, 50, 10
SCRAPE_SECONDS = 15
TICK = 5.0
"""Seconds between increases of the counters."""
NO_RULES = "none"
TOOLS = (NO_RULES, "tokenslo", "Sloth", "Pyrra")
GROWING = ("_bucket", "_count", "_sum", "_total")
BAD = ('result="bad"', 'outcome="error"', 'outcome="timeout"', 'outcome="shed"')
UP_SECONDS = 120.0
MEASURED = (
    "prometheus_tsdb_head_series",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "prometheus_rule_evaluation_duration_seconds_sum",
    "prometheus_rule_group_last_duration_seconds",
    "prometheus_rule_group_last_evaluation_samples",
    "prometheus_rule_group_iterations_missed_total",
)
MiB = 2**20


class FleetError(Exception):
    """An invalid measurement."""


# Sidecars


@cache
def page_parts(model: str) -> tuple[tuple[str, str, int], ...]:
    """Return the lines of a sidecar's page: text, fixed end, and events per tick.

    The sidecar has one model, whose streams a tap sees.
    """
    recorder = StreamRecorder({"e2e": (float(BOUNDARY),)}, expected=[model])
    stream = Stream("chat", model, streaming=True)
    recorder.started(stream, 0.0)
    recorder.chunk(stream, 0.1, 1)
    store = Store(5.0)
    measurements = tuple(one for part in recorder.measurements() for one in part)
    store.update(Snapshot(TAPS, measurements), 0.0, 0.0)
    text = expose(store.view(0.0), "1").body.decode()
    # As the rules of Sloth and Pyrra select it.
    text = text.replace(f'le="{float(BOUNDARY)}"', f'le="{BOUNDARY}"')
    return tuple(_line(line) for line in text.splitlines())


def _line(line: str) -> tuple[str, str, int]:
    head = line.rpartition(" ")[0]
    grows = head.partition("{")[0].endswith(GROWING) and not line.startswith("#")
    if not grows:
        return line, "\n", 0
    return f"{head} ", "\n", 1 if any(label in line for label in BAD) else 1_000


def page(model: str, ticks: int) -> bytes:
    """Return the page of a sidecar after a number of ticks."""
    return "".join(
        f"{text}{events * ticks}{end}" if events else text + end
        for text, end, events in page_parts(model)
    ).encode()


def served(services: Sequence[str]) -> AbstractContextManager[int]:
    """Serve ``/SERVICE/NUMBER/metrics`` in a child process; yield its port."""
    return child_port(partial(_serve, services))


def _serve(services: Sequence[str], port: int) -> None:
    began = time.monotonic()
    pages: dict[str, tuple[int, bytes]] = dict.fromkeys(services, (-1, b""))

    class SidecarHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def do_GET(self) -> None:
            service = self.path.split("/")[1]
            ticks = int((time.monotonic() - began) / TICK) + 1
            if pages[service][0] != ticks:
                pages[service] = ticks, page(service, ticks)
            body = pages[service][1]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # a Prometheus that ends
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class SidecarServer(ThreadingHTTPServer):
        request_queue_size = 1_024
        daemon_threads = True

    server = SidecarServer((HOST, 0), SidecarHandler)
    os.write(port, str(server.server_port).encode())
    server.serve_forever()


# Prometheus


def configuration(
    port: int, services: Sequence[str], sidecars: int, rules: Path | None
) -> Mapping[str, object]:
    """Return the configuration of a Prometheus that scrapes every sidecar."""
    targets = [
        {
            "targets": [f"{HOST}:{port}"],
            "labels": {
                "__metrics_path__": f"/{services[number % len(services)]}/{number}/metrics",
                "instance": f"pod-{number}",
            },
        }
        for number in range(sidecars)
    ]
    return {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": evaluation.DEFAULT_INTERVAL,
        },
        "rule_files": [str(rules)] if rules else [],
        "scrape_configs": [{"job_name": "sidecars", "static_configs": targets}],
    }


@dataclass(frozen=True, slots=True)
class FleetCost:
    """What one Prometheus holds and needs: times are seconds per minute."""

    rules: int
    scraped: int
    recorded: int
    resident: float
    cpu: float
    evaluation: float
    longest_group: float
    missed: float


def measure(server: Prometheus, sidecars: int, minutes: int) -> FleetCost:
    """Measure for some minutes, from the moment when every sidecar has been scraped.

    Raises FleetError if a sidecar was not scraped, or a rule failed.
    """
    _wait_until_up(server, sidecars)
    before = _metrics(server)
    time.sleep(60 * minutes)
    after = _metrics(server)
    _wait_until_up(server, sidecars)
    groups = json.loads(_get(server, "/api/v1/rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    bad = [rule for rule in rules if rule["health"] not in ("ok", "unknown")]
    if bad:
        raise FleetError(f"Prometheus did not evaluate {bad[0]['name']}: {bad[0]}")
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    names = "|".join(sorted(recorded))
    found = query(server.url, f'count({{__name__=~"{names}"}})', timeout=60.0) if recorded else []
    whole = sum(after["prometheus_tsdb_head_series"])
    own = int(found[0].value) if found else 0
    cpu, wall = (
        (sum(after[name]) - sum(before[name])) / minutes for name in (MEASURED[2], MEASURED[3])
    )
    return FleetCost(
        rules=len(rules),
        scraped=int(whole) - own,
        recorded=own,
        resident=sum(after["process_resident_memory_bytes"]),
        cpu=cpu,
        evaluation=wall,
        longest_group=max(after["prometheus_rule_group_last_duration_seconds"], default=0.0),
        missed=sum(after["prometheus_rule_group_iterations_missed_total"]),
    )


def _wait_until_up(server: Prometheus, sidecars: int) -> None:
    until = time.monotonic() + UP_SECONDS
    while time.monotonic() < until:
        found = query(server.url, "sum(up)")
        if found and found[0].value == sidecars:
            return
        time.sleep(1.0)
    raise FleetError(f"{sidecars} sidecars, and not all were scraped within {UP_SECONDS:g} s")


def _metrics(server: Prometheus) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in MEASURED}
    for line in _get(server, "/metrics").splitlines():
        head, _, value = line.rpartition(" ")
        name = head.partition("{")[0]
        if name in found:
            found[name].append(float(value))
    return found


def _get(server: Prometheus, path: str) -> str:
    with urlopen(server.url + path) as response:  # noqa: S310 (http only)
        return response.read().decode()  # type: ignore[no-any-return]


COLUMNS = (
    "rules of",
    "rules",
    "scraped series",
    "recorded series",
    "memory, MiB",
    "KiB per series",
    "CPU, s/min",
    "evaluation, s/min",
    "longest group, s",
    "missed",
)


def row(tool: str, cost: FleetCost) -> Sequence[str]:
    """Return the cells of a row."""
    series = cost.scraped + cost.recorded
    return (
        tool,
        f"{cost.rules:,}",
        f"{cost.scraped:,}",
        f"{cost.recorded:,}",
        f"{cost.resident / MiB:,.0f}",
        f"{cost.resident / series / 1024:.1f}",
        f"{cost.cpu:.2f}",
        f"{cost.evaluation:.2f}",
        f"{cost.longest_group:.3f}",
        f"{cost.missed:.0f}",
    )


def line(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--sidecars", default=str(SIDECARS))
    parser.add_argument("--services", default=str(SERVICES), help="two objectives each")
    parser.add_argument("--minutes", default=str(MINUTES), help="of each row")
    parser.add_argument("--rules", nargs="+", default=TOOLS, metavar="TOOL", help=", ".join(TOOLS))
    options = parser.parse_args()
    numbers = (
        positive_integer(getattr(options, name), f"--{name}")
        for name in ("sidecars", "services", "minutes")
    )
    sidecars, count, minutes = numbers
    check_names(options.rules, TOOLS, "rules")
    objectives = count * len(COMPARED)
    services = evaluation.models(objectives)
    files = {NO_RULES: "", **evaluation.generated(objectives, options.rules)}
    if not shutil.which("go"):
        print("Go is not installed: Sloth and Pyrra are omitted.", end="\n\n")
    version = toolchain.run("prometheus", [toolchain.program("prometheus", print), "--version"])
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Prometheus {version.split()[2]}: "
        f"{sidecars:,} sidecars scraped every {SCRAPE_SECONDS} s, {count} services of "
        f"{len(COMPARED)} objectives, {minutes} min from the moment when all were scraped.\n"
    )
    print(line(COLUMNS))
    print(line("---" for _ in COLUMNS))
    for tool in (one for one in options.rules if one in files):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            rules = folder / "rules.yaml" if files[tool] else None
            if rules:
                rules.write_text(files[tool])
            port = stack.enter_context(served(services))
            config = configuration(port, services, sidecars, rules)
            server = stack.enter_context(
                start_configured(toolchain.program("prometheus", print), folder, config)
            )
            print(line(row(tool, measure(server, sidecars, minutes))), flush=True)


if __name__ == "__main__":
    main()
