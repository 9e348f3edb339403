"""The configurations of ``examples/scale-out`` in the programs that they are for.

Two equal servers scrape one sidecar, and rules are evaluated once, elsewhere: what they record must
not be doubled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from service_example import example, objective

import alerts
from lab.process import HOST, ServerProcess, free_ports, serve
from lab.prometheus import Prometheus
from promql.client import PrometheusError, query
from slos import names
from tests.polling import read_until, wait_until
from tests.rule_values.replay import replaying
from tests.rule_values.traffic import labelled, points

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = EXAMPLES / "scale-out"
RULES = EXAMPLES / "chat/alerts/chat.rules.yaml"
Install = Callable[[str], Path]

STEP = 10
"""Seconds between two increases of the sidecar's counters."""
GOOD, BAD = 180, 20
"""Increases of the counters."""
SECONDS, PAUSE = 250.0, 1.0
"""Time limit until the rules have recorded, which is a minute back and a minute later, and the time
between two queries."""
OBJECTIVE = '{service="chat",slo="first-token"}'
FIRING = f'ALERTS{OBJECTIVE[:-1]},alertstate="firing"}}'
ADDED_LABELS = {"alertgroup", "cluster"}
"""External labels, and the label that vmalert adds to ALERTS."""
SLO_EVENTS = 'llm_slo_events_total{model="tensorrt_llm",signal="ttft",threshold="0.8"}'


def written(folder: Path, name: str, replaced: Mapping[str, str]) -> Path:
    """Write an example with other addresses or intervals into a folder."""
    text = (FILES / name).read_text()
    for old, new in replaced.items():
        assert old in text, f"{name} lacks {old}"
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path


def flags(name: str, replaced: Mapping[str, str]) -> list[str]:
    """Return the flags of an example with other addresses or intervals."""
    text = (FILES / name).read_text()
    for old, new in replaced.items():
        assert old in text, f"{name} lacks {old}"
        text = text.replace(old, new)
    return text.splitlines()


def rules_into(folder: Path) -> None:
    """Write the rules of the chat service, evaluated every 5 s."""
    (folder / "rules").mkdir(parents=True)
    text = RULES.read_text()
    assert "interval: 1m" in text
    (folder / "rules/chat.rules.yaml").write_text(text.replace("interval: 1m", "interval: 5s"))


@pytest.mark.parametrize(
    ("name", "options"), [("prometheus-pair.yml", ()), ("prometheus-agent.yml", ("--agent",))]
)
@pytest.mark.parametrize(
    "release", ["bookworm", *(pytest.param(one, marks=pytest.mark.long) for one in ("forky",))]
)
def test_promtool_accepts_the_configuration(
    part: Install, tmp_path: Path, name: str, options: Sequence[str], release: str
) -> None:
    rules_into(tmp_path)
    written(tmp_path, name, {})
    command = [part(f"promtool@{release}"), "check", "config", *options, name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert options or "SUCCESS: 1 rule files found" in done.stdout


def test_vmalert_accepts_its_flags(part: Install, tmp_path: Path) -> None:
    rules_into(tmp_path)
    command = [part("vmalert"), *flags("vmalert.flags", {}), "-dryRun"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.needs("thanos")
def test_thanos_accepts_the_rules(part: Install) -> None:
    for file in EXAMPLES.glob("*/alerts/*.rules.yaml"):
        command = [part("thanos"), "tools", "rules-check", f"--rules={file}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


# Late samples and sums


DELAY, PERIOD, MINUTES = 20, 15, 10
"""Seconds from a scrape to the receiver, seconds between scrapes, and minutes of both."""


def test_rules_count_late_samples_only_if_they_are_evaluated_later(
    prometheus: Callable[..., Prometheus], tmp_path: Path
) -> None:
    plan = example(objective("ttft"))
    [total, *_] = (
        rule["expr"]
        for group in alerts.rules.groups(plan)
        for rule in group["rules"]  # type: ignore[attr-defined]
        if rule.get("record") == names.TOTAL
    )
    series = labelled(
        "llm_slo_events_total",
        model="llama",
        namespace="prod",
        signal="ttft",
        threshold="0.8",
        result="good",
    )
    counted = {"at once": 0.0, "a minute later": 0.0}
    scrapes, sent = np.arange(0, 60 * (MINUTES + 1), PERIOD), 0
    with replaying(prometheus, tmp_path) as replay:
        for now in range(120, 60 * (MINUTES + 1), 60):
            arrived = scrapes[(scrapes >= sent) & (scrapes <= now - DELAY)]
            replay.add({series: points(arrived, arrived, np.full(len(arrived), True))})
            sent = int(arrived[-1]) + 1
            for name, at in (("at once", now), ("a minute later", now - 60)):
                counted[name] += sum(replay.values(total, range(at, at + 1, 60)).values())
    # One event per second.  At once, the last scrape that has arrived is 30 s old.
    evaluated = MINUTES - 1
    assert counted == {"at once": 30 * evaluated, "a minute later": 60 * evaluated}


GROUPED = replace(objective("ttft"), name="by-cluster", group_by=("cluster",))


def test_increases_add_up_over_clusters_and_ratios_do_not(scenario: Callable[..., None]) -> None:
    events = 'llm_slo_events_total{model="llama",namespace="prod",signal="ttft",threshold="0.8"'
    series = {
        f'{events},cluster="{cluster}",result="{result}"}}': f"0+{amount}x40"
        for cluster, good, bad in (("a", 90, 10), ("b", 500, 0))
        for result, amount in (("good", good), ("bad", bad))
    }
    one, all_ = 'slo="by-cluster"', 'slo="ttft"'

    def same(whole: str, parts: str) -> str:
        return f"abs({whole} - on () ({parts})) < 1e-9"

    sums = (names.TOTAL, names.BAD, names.PERIOD_BAD)
    ratio = names.error_ratio("5m")
    of_sums = "/".join(
        f"sum(sum_over_time({name}{{{one}}}[5m]))" for name in (names.BAD, names.TOTAL)
    )
    scenario(
        example(objective("ttft"), GROUPED),
        series,
        *(("15m", same(f"{name}{{{all_}}}", f"sum({name}{{{one}}})"), True) for name in sums),
        ("15m", same(f"{ratio}{{{all_}}}", of_sums), True),
        ("15m", same(f"{ratio}{{{all_}}}", f"avg({ratio}{{{one}}})"), False),
    )


# Whole setups


@pytest.fixture
def sidecar() -> Iterator[str]:
    """Serve counters that grow by GOOD and BAD every STEP seconds; yield the address."""

    class CounterHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            steps = int(time.time()) // STEP
            lines = ["# TYPE llm_slo_events_total counter"]
            for result, amount in (("good", GOOD), ("bad", BAD)):
                labels = f'model="tensorrt_llm",signal="ttft",threshold="0.8",result="{result}"'
                lines.append(f"llm_slo_events_total{{{labels}}} {steps * amount}")
            body = "".join(f"{line}\n" for line in lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # a scraper that ends
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), CounterHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"{HOST}:{server.server_port}"
        server.shutdown()
        thread.join()


def running(
    name: str,
    command: Callable[[Sequence[int]], Sequence[str | Path]],
    folder: Path,
    ready: str,
    ports: int = 1,
    **environ: str,
) -> ServerProcess:
    """Run a server in a folder; GET ``ready`` on its first port returns 200."""
    folder.mkdir(parents=True, exist_ok=True)
    return serve(
        ServerProcess,
        name,
        command,
        folder / f"{name}.log",
        ready=ready,
        ports=ports,
        cwd=folder,
        env=os.environ | environ,
        deadline=120.0,
    )


def recorded(url: str, expr: str) -> list[float]:
    """Return the values of an expression, nothing while it cannot be evaluated."""
    try:
        return [one.value for one in query(url, expr)]
    except PrometheusError:
        return []


def check_recorded(url: str) -> None:
    """Wait for what the rules record of the chat service, and compare it with the counters."""
    total, ratio = f"slo:total:increase1m{OBJECTIVE}", f"slo:error_ratio:rate5m{OBJECTIVE}"
    totals = wait_until(lambda: recorded(url, f"{total} > 0"), SECONDS, PAUSE)
    assert len(totals) == 1
    # A counter of both replicas would be twice as much.
    assert abs(totals[0] - 60 / STEP * (GOOD + BAD)) <= GOOD + BAD
    assert wait_until(lambda: recorded(url, ratio), SECONDS, PAUSE) == pytest.approx(
        [0.1], abs=0.03
    )
    assert recorded(url, f"count({SLO_EVENTS})") == [2.0]
    assert recorded(url, f'count({SLO_EVENTS[:-1]},cluster="eu-1"}})') == [2.0]


def check_same(url: str, plain: str) -> None:
    """Compare series and alerts with those of a plain Prometheus at ``plain``."""
    for selector in (SLO_EVENTS, FIRING, f'{{__name__=~"slo:.+",{OBJECTIVE[1:]}'):
        there = wait_until(lambda selector=selector: labels_of(plain, selector), SECONDS, PAUSE)
        # A rule may read what the rule before records only at its next evaluation.
        assert there == read_until(
            lambda selector=selector: labels_of(url, selector),
            lambda found, there=there: found == there,
            SECONDS,
            PAUSE,
        )


def labels_of(url: str, selector: str) -> set[frozenset[tuple[str, str]]]:
    """Return the labels of series, without those that their way to the server adds."""
    try:
        found = query(url, selector)
    except PrometheusError:
        return set()
    return {
        frozenset((name, value) for name, value in one.labels.items() if name not in ADDED_LABELS)
        for one in found
    }


@pytest.fixture
def plain(part: Install, sidecar: str, tmp_path: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes the sidecar and evaluates the rules; yield its address."""
    home = tmp_path / "plain"
    rules_into(home)
    replaced = {"sidecar:9464": sidecar, "scrape_interval: 15s": "scrape_interval: 1s"}
    config = written(home, "prometheus-pair.yml", replaced)
    command = [part("prometheus@bookworm"), f"--config.file={config}"]
    with running(
        "prometheus",
        lambda ports: [*command, f"--web.listen-address={HOST}:{ports[0]}"],
        home,
        "/-/ready",
    ) as server:
        yield server.url


def prometheus_pair(
    part: Install, folder: Path, example: str, replaced: Mapping[str, str], *options: str
) -> Iterator[ServerProcess]:
    """Yield the two servers of a pair, each with its configuration in a folder of its own."""
    for replica in ("a", "b"):
        home = folder / f"prometheus-{replica}"
        home.mkdir()
        config = written(home, example, replaced)
        command = [part("prometheus@bookworm"), f"--config.file={config}", *options]
        yield running(
            "prometheus",
            lambda ports, command=command: [
                *command,
                f"--web.listen-address={HOST}:{ports[0]}",
            ],
            home,
            "/-/ready",
            REPLICA=replica,
        )


def agents(part: Install, folder: Path, sidecar: str, receiver: str) -> Iterator[ServerProcess]:
    """Yield both agents of a pair."""
    replaced = {
        "sidecar:9464": sidecar,
        "http://receiver:8480/api/v1/write": receiver,
        "scrape_interval: 15s": "scrape_interval: 1s",
        "batch_send_deadline: 5s": "batch_send_deadline: 1s",
    }
    features = "--enable-feature=agent,expand-external-labels"
    return prometheus_pair(part, folder, "prometheus-agent.yml", replaced, features)


def start_vmalert(part: Install, folder: Path, select: str, insert: str) -> ServerProcess:
    """Run vmalert with the flags of the example."""
    rules_into(folder / "vmalert")
    addresses = {
        "http://vmselect:8481/select/0/prometheus": select,
        "http://vminsert:8480/insert/0/prometheus": insert,
        "http://alertmanager:9093": f"http://{HOST}:9",
    }
    command = [part("vmalert"), *flags("vmalert.flags", addresses)]
    return running(
        "vmalert",
        lambda ports: [*command, f"-httpListenAddr={HOST}:{ports[0]}"],
        folder / "vmalert",
        "/health",
    )


DEDUPLICATION = {"-dedup.minScrapeInterval=15s": "-dedup.minScrapeInterval=1s"}
NO_LATENCY = "-search.latencyOffset=0s"


def start_victoria_metrics(part: Install, folder: Path) -> ServerProcess:
    """Run the single-node server with the flags of the cluster."""
    home = folder / "victoria-metrics"
    home.mkdir()
    written(home, "vminsert-relabel.yml", {})
    command = [
        part("victoria-metrics"),
        *flags("vmstorage.flags", DEDUPLICATION),
        *(one for one in flags("vminsert.flags", {}) if "storageNode" not in one),
        NO_LATENCY,
    ]
    return running(
        "victoria-metrics",
        lambda ports: [*command, f"-httpListenAddr={HOST}:{ports[0]}"],
        home,
        "/health",
    )


@pytest.mark.long
def test_victoriametrics_records_once_what_two_agents_send(
    part: Install, sidecar: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(start_victoria_metrics(part, tmp_path))
        for agent in agents(part, tmp_path, sidecar, f"{server.url}/api/v1/write"):
            stack.enter_context(agent)
        stack.enter_context(start_vmalert(part, tmp_path, server.url, server.url))
        check_recorded(server.url)


COLLECTOR_METRICS = """\
service:
  telemetry:
    metrics:
      readers: [{{pull: {{exporter: {{prometheus: {{host: {host}, port: {port}}}}}}}}}]
"""


@pytest.mark.long
@pytest.mark.needs("otelcol")
def test_the_collector_forwards_what_the_rules_read(
    part: Install, sidecar: str, plain: str, tmp_path: Path
) -> None:
    home = tmp_path / "otelcol"
    home.mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(start_victoria_metrics(part, tmp_path))
        replaced = {
            "sidecar:9464": sidecar,
            "http://receiver:8480/api/v1/write": f"{server.url}/api/v1/write",
            "scrape_interval: 15s": "scrape_interval: 1s",
            "batch: {timeout: 5s}": "batch: {timeout: 1s}",
        }
        config = written(home, "otel-collector.yaml", replaced)

        def command(ports: Sequence[int]) -> Sequence[str | Path]:
            own = home / "metrics.yaml"
            own.write_text(COLLECTOR_METRICS.format(host=HOST, port=ports[0]))
            return [part("otelcol"), f"--config={config}", f"--config={own}"]

        stack.enter_context(running("otelcol", command, home, "/metrics"))
        stack.enter_context(start_vmalert(part, tmp_path, server.url, server.url))
        check_recorded(server.url)
        check_same(server.url, plain)


@pytest.mark.long
@pytest.mark.needs("vminsert", "vmselect", "vmstorage")
def test_a_victoriametrics_cluster_records_once_what_two_agents_send(
    part: Install, sidecar: str, tmp_path: Path
) -> None:
    (tmp_path / "vminsert").mkdir()
    written(tmp_path / "vminsert", "vminsert-relabel.yml", {})
    with ExitStack() as stack:

        def start(name: str, arguments: Sequence[str], *listen: str) -> ServerProcess:
            options = ("-httpListenAddr", *listen)
            command = [part(name), *arguments]
            return stack.enter_context(
                running(
                    name,
                    lambda ports: [
                        *command,
                        *(
                            f"{option}={HOST}:{port}"
                            for option, port in zip(options, ports, strict=True)
                        ),
                    ],
                    tmp_path / name,
                    "/health",
                    ports=len(options),
                )
            )

        storage = start(
            "vmstorage", flags("vmstorage.flags", DEDUPLICATION), "-vminsertAddr", "-vmselectAddr"
        )
        _, for_insert, for_select = (f"{HOST}:{port}" for port in storage.ports)
        insert = start("vminsert", flags("vminsert.flags", {"vmstorage:8400": for_insert}))
        replaced = {"vmstorage:8401": for_select} | DEDUPLICATION
        select = start("vmselect", [*flags("vmselect.flags", replaced), NO_LATENCY])
        to, url = f"{insert.url}/insert/0/prometheus", f"{select.url}/select/0/prometheus"
        for agent in agents(part, tmp_path, sidecar, f"{to}/api/v1/write"):
            stack.enter_context(agent)
        stack.enter_context(start_vmalert(part, tmp_path, url, to))
        check_recorded(url)


@pytest.mark.long
@pytest.mark.needs("thanos")
def test_thanos_records_once_what_two_prometheus_servers_scrape(
    part: Install, sidecar: str, tmp_path: Path
) -> None:
    thanos = part("thanos")
    [rule_grpc] = free_ports(1)
    query_replaced = {"thanos-rule:10901": f"{HOST}:{rule_grpc}"}
    replaced = {"sidecar:9464": sidecar, "scrape_interval: 15s": "scrape_interval: 1s"}
    with ExitStack() as stack:

        def start(name: str, arguments: Sequence[str], grpc: int = 0) -> ServerProcess:
            return stack.enter_context(
                running(
                    name,
                    lambda ports: [
                        thanos,
                        *arguments,
                        f"--http-address={HOST}:{ports[0]}",
                        f"--grpc-address={HOST}:{grpc or ports[1]}",
                    ],
                    tmp_path / name,
                    "/-/healthy",
                    ports=1 if grpc else 2,
                )
            )

        features = (
            "--enable-feature=expand-external-labels",
            "--storage.tsdb.min-block-duration=2h",
            "--storage.tsdb.max-block-duration=2h",
        )
        pair = prometheus_pair(part, tmp_path, "prometheus-pair.yml", replaced, *features)
        for replica, prometheus in zip("ab", map(stack.enter_context, pair), strict=True):
            data = prometheus.log.parent / "data"
            arguments = ["sidecar", f"--tsdb.path={data}", f"--prometheus.url={prometheus.url}"]
            beside = start(f"sidecar-{replica}", arguments)
            query_replaced[f"thanos-sidecar-{replica}:10901"] = f"{HOST}:{beside.ports[1]}"
        query_server = start("query", flags("thanos-query.flags", query_replaced))
        rules_into(tmp_path / "rule")
        rule_replaced = {
            "http://thanos-query:10902": query_server.url,
            "http://alertmanager:9093": f"http://{HOST}:9",
        }
        start("rule", flags("thanos-rule.flags", rule_replaced), rule_grpc)
        check_recorded(query_server.url)


MIMIR_ADDRESSES = (
    *("ingester.ring", "distributor.ring", "store-gateway.sharding-ring", "compactor.ring"),
    *("querier.ring", "query-scheduler.ring", "ruler.ring", "overrides-exporter.ring"),
    *("query-frontend", "alertmanager.sharding-ring"),
)
"""Parts of Mimir that advertise an address, which would be that of a network interface."""


def start_mimir(part: Install, folder: Path) -> ServerProcess:
    """Run all of Mimir in one process on the loopback interface, with the example's limits."""
    home = folder / "mimir"
    home.mkdir()
    config = written(home, "mimir.yaml", {"http://alertmanager:9093": f"http://{HOST}:9"})

    def command(ports: Sequence[int]) -> Sequence[str | Path]:
        http, grpc, gossip = ports
        return [
            part("mimir"),
            f"-config.file={config}",
            *(f"-server.{name}-listen-address={HOST}" for name in ("http", "grpc")),
            *(f"-server.http-listen-port={http}", f"-server.grpc-listen-port={grpc}"),
            *(f"-memberlist.bind-addr={HOST}", f"-memberlist.bind-port={gossip}"),
            *(f"-{each}.instance-addr={HOST}" for each in MIMIR_ADDRESSES),
            *("-ingester.ring.replication-factor=1", "-usage-stats.enabled=false"),
            *(f"-{each}.backend=filesystem" for each in ("blocks-storage", "ruler-storage")),
            f"-blocks-storage.filesystem.dir={home}/blocks",
            f"-ruler-storage.filesystem.dir={home}/rules",
            f"-ruler.rule-path={home}/evaluated",
        ]

    return running("mimir", command, home, "/ready", ports=3)


@pytest.mark.long
@pytest.mark.needs("mimir", "mimirtool")
def test_mimir_records_once_what_two_agents_send(
    part: Install, sidecar: str, plain: str, tmp_path: Path
) -> None:
    generated = tmp_path / "out"
    command = [sys.executable, "-m", "tokenslo", "generate", EXAMPLES / "chat/slo.yaml"]
    options = ["-o", generated, "--only", "alerts", "--format", "mimir"]
    subprocess.run([*command, *options], check=True, capture_output=True)
    rules = generated / "alerts/chat.mimir.yaml"
    rules.write_text(rules.read_text().replace("interval: 1m", "interval: 5s"))
    with ExitStack() as stack:
        server = stack.enter_context(start_mimir(part, tmp_path))
        url = f"{server.url}/prometheus"
        for agent in agents(part, tmp_path, sidecar, f"{server.url}/api/v1/push"):
            stack.enter_context(agent)
        load = [part("mimirtool"), "rules", "load", rules]
        to = ["--address", server.url, "--id", "anonymous"]
        subprocess.run([*load, *to], check=True, capture_output=True)
        check_recorded(url)
        check_same(url, plain)
