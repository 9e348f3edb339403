"""The servers of one run: one model server under load, and a sidecar of each kind beside it.

The sidecars watch the same traffic at once, so one run shows what each of them can see: clients
connect to the proxy tap of the first, the second captures the packets of the same port, and the
third only scrapes.  One Prometheus scrapes them as three jobs, whose label ``column`` is part of
the selector of the SLO file of each, and evaluates their rules in compressed time.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from exporter.doctor.server_config import first_response_boundaries
from lab import gateway as gateways
from lab import prometheus, toolchain, triton, trtllm_server
from lab.example_slo import EXAMPLE_SLO
from lab.gateway import Gateway, NginxSettings
from lab.incidents.compression import TimeScale
from lab.incidents.history import write_history
from lab.incidents.incident import COLUMNS, ENSEMBLE, MODEL, WITH_TAP, Column, Script
from lab.load import Load, running_load
from lab.process import HOST, ServerProcess, free_ports, serve
from lab.prometheus import Prometheus
from lab.repository import write_ensemble, write_repository
from lab.stack import ENGINES, ModelServer, Stack, tokenslo
from lab.toolchain import Progress
from slos.load import load_file

_SCRAPE_SECONDS = 1.0
_LOOKBACK = "15s"
"""Prometheus' lookback of five minutes, compressed."""
_STUCK_SECONDS = 5
"""The sidecar's --stuck-after: above the longest prefill of the lab, which is real time."""
_SERVICE = "chat"
_TAP_ONLY = frozenset({"stream_completion", "disconnects", "goodput"})
_DISCONNECTS = {"name": "disconnects", "indicator": "disconnects", "target": "97%"}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Stage:
    """The running servers; faults act on them.

    ``clients_url`` is what clients connect to, ``slo_files`` and ``sidecars`` are by column.
    """

    folder: Path
    served: ModelServer
    sidecars: Mapping[Column, ServerProcess]
    slo_files: Mapping[Column, Path]
    prometheus: Prometheus
    clients_url: str
    load: Load
    gateway: Gateway | None = None
    inner_gateway: Gateway | None = None
    server_gateway: Gateway | None = None
    metrics_gateway: ServerProcess | None = None

    @property
    def server(self) -> ServerProcess:
        """The model server."""
        return self.served.server

    @property
    def servers(self) -> tuple[ServerProcess, ...]:
        """All servers."""
        optional = (self.gateway, self.inner_gateway, self.server_gateway, self.metrics_gateway)
        watching = (*self.sidecars.values(), self.prometheus)
        return (self.server, *watching, *(each for each in optional if each))

    @property
    def stack(self) -> Stack:
        """The stage as the demo's stack, with the proxy's sidecar."""
        sidecar = self.sidecars["proxy"]
        return Stack(self.served, sidecar, self.clients_url, self.prometheus, self.load)

    def faults_file(self, model: str, version: int) -> Path:
        """Return the file of faults of a model's version."""
        return _faults_file(self.folder, model, version)


def service_name(column: Column) -> str:
    """Return the service of a column's SLO file."""
    return f"{_SERVICE}-{column}"


def available_columns() -> tuple[Column, ...]:
    """Return the columns that this process can fill: a capture needs a privilege."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM).close()
    except (OSError, AttributeError):
        return tuple(column for column in COLUMNS if column != "capture")
    return COLUMNS


@contextmanager
def running(
    script: Script, folder: Path, columns: Sequence[Column], progress: Progress
) -> Iterator[Stage]:
    """Run the servers of a script and its load, until the scope exits.

    ``folder`` must be empty; ``columns`` must include the proxy, through which clients connect.
    Raises lab.toolchain.UnavailableProgram, lab.toolchain.InstallError or lab.process.ServerError.
    """
    folder = folder.absolute()
    (folder / "faults").mkdir(parents=True)
    with ExitStack() as stack, ThreadPoolExecutor(len(columns)) as threads:
        program = toolchain.program("prometheus", progress)
        promtool = toolchain.program("promtool", progress)
        progress("generating rules and history")
        slo_files = {column: slo_file(script, folder, column) for column in columns}
        rules = threads.submit(_rules, folder, slo_files)
        history = threads.submit(
            write_history, promtool, slo_files, script.load.rate, folder, folder / "prometheus/data"
        )
        progress(f"starting {ENGINES[script.server]}")
        served = stack.enter_context(_model_server(script, folder, slo_files["proxy"], progress))
        origin, server_gateway, metrics_gateway = served.server.ports[0], None, None
        if script.server_gateway:
            behind = gateways.start(
                script.server_gateway, folder / "server-gateway", served.server.url, progress
            )
            server_gateway = stack.enter_context(behind)
            origin = server_gateway.ports[0]
        if script.metrics_gateway:
            metrics_gateway, served = _behind_gateway(served, folder, progress)
            stack.enter_context(metrics_gateway)
        progress(f"starting the sidecars: {', '.join(columns)}")
        taps: list[int] = []
        proxy = stack.enter_context(
            _sidecar("proxy", served, origin, slo_files["proxy"], folder, taps)
        )
        others = [
            (column, threads.submit(_sidecar, column, served, origin, file, folder, taps))
            for column, file in slo_files.items()
            if column != "proxy"
        ]
        sidecars: dict[Column, ServerProcess] = {"proxy": proxy}
        failures = []
        for column, starting in others:
            try:
                sidecars[column] = stack.enter_context(starting.result())
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
        progress("starting Prometheus")
        history.result()
        scraper = stack.enter_context(
            _prometheus(program, folder, served, sidecars, rules.result())
        )
        url, gateway, inner_gateway = f"http://{HOST}:{taps[-1]}", None, None
        if script.inner_gateway:
            inner = gateways.start(script.inner_gateway, folder / "inner-gateway", url, progress)
            inner_gateway = stack.enter_context(inner)
        if script.gateway:
            gateway = gateways.start(script.gateway, folder / "gateway", url, progress)
            url = stack.enter_context(gateway).url
        load = stack.enter_context(running_load(Load(url, script.load)))
        yield Stage(
            folder,
            served,
            sidecars,
            slo_files,
            scraper,
            url,
            load,
            gateway,
            inner_gateway,
            server_gateway,
            metrics_gateway,
        )


def _faults_file(folder: Path, model: str, version: int | str) -> Path:
    return folder / "faults" / f"{model}.{version}.json"


# Rules


def slo_file(script: Script, folder: Path, column: Column) -> Path:
    """Write the SLO file of a column: the example's, for the series of one sidecar.

    It has one more objective, which timeouts of gateways burn.  Without a tap, objectives that need
    one would open a ticket about missing signals.  Releases and replicas are not played.
    """
    content = yaml.safe_load(EXAMPLE_SLO.read_text())
    for section in ("rollout", "autoscaling"):
        del content[section]
    content["service"] = service_name(column)
    content["selector"] = {"model": _called_model(script), "column": column}
    objectives = [*content["objectives"], _DISCONNECTS]
    content["objectives"] = [
        each for each in objectives if column in WITH_TAP or each["indicator"] not in _TAP_ONLY
    ]
    path = folder / f"{column}.slo.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def _called_model(script: Script) -> str:
    return ENSEMBLE if script.ensemble else MODEL


def _rules(folder: Path, slo_files: Mapping[Column, Path]) -> list[Path]:
    """Generate the rules of all columns, and compress their time."""
    tokenslo("generate", *slo_files.values(), "-o", folder, "--only", "alerts", "--quiet")
    scale = TimeScale()
    compressed = []
    for file in sorted((folder / "alerts").glob("*rules.yaml")):
        content: dict[str, Any] = yaml.load(file.read_text(), _Loader)  # noqa: S506 - a safe one
        compressed.append(folder / file.name)
        compressed[-1].write_text(json.dumps(scale.rules(content)))
    return compressed


# Servers


@contextmanager
def _model_server(
    script: Script, folder: Path, slo: Path, progress: Progress
) -> Iterator[ModelServer]:
    if script.server == "triton":
        served = _triton(script, folder, slo, progress)
    else:
        served = _trtllm_serve(script, folder)
    with served.server:
        yield served


def _triton(script: Script, folder: Path, slo: Path, progress: Progress) -> ModelServer:
    home, models = triton.install(progress), folder / "models"
    faults = _faults_file(folder, "{model}", "{version}")
    engine = replace(script.engine, faults_file=str(faults))
    boundaries = first_response_boundaries(load_file(slo).services, _called_model(script))
    model = replace(script.model, first_response_buckets_ms=boundaries)
    write_repository(models, MODEL, engine, model, versions=script.versions)
    if script.ensemble:
        write_ensemble(models, MODEL, ENSEMBLE, str(faults))
    server = triton.start(home, models, folder / "triton", load=[_called_model(script)])
    flags = ("--triton", server.url, "--triton-metrics", server.metrics)
    return ModelServer(ENGINES["triton"], server, server.metrics, flags)


def _trtllm_serve(script: Script, folder: Path) -> ModelServer:
    engine = replace(script.engine, faults_file=str(_faults_file(folder, MODEL, 1)))
    requests = folder / "requests"
    settings = replace(
        script.serve,
        model=MODEL,
        record_copies=len(COLUMNS),
        perf_metrics_output_dir=str(requests),
    )
    server = trtllm_server.start(folder / "trtllm-serve", settings, engine)
    flags = ("--trtllm", server.url, "--trtllm-requests", f"{requests}/perf_metrics-*.jsonl")
    metrics = f"{server.url}/prometheus/metrics"
    return ModelServer(ENGINES["trtllm-serve"], server, metrics, flags)


def _behind_gateway(
    served: ModelServer, folder: Path, progress: Progress
) -> tuple[ServerProcess, ModelServer]:
    """Put an nginx in front of Triton's metrics port."""
    origin = served.metrics.removesuffix("/metrics")
    gateway = gateways.start(NginxSettings(), folder / "metrics-gateway", origin, progress)
    metrics = f"{gateway.url}/metrics"
    flags = tuple(metrics if flag == served.metrics else flag for flag in served.flags)
    return gateway, ModelServer(served.name, served.server, metrics, flags)


def _sidecar(
    column: Column, served: ModelServer, origin: int, slo: Path, folder: Path, taps: list[int]
) -> ServerProcess:
    """Start a sidecar; a proxy appends the port of its tap, which a capture captures.

    The proxy forwards to the port ``origin``.  Each sidecar reads a trtllm-serve at an address of
    its own, because its records can be read once.
    """
    flags = served.flags
    if served.name == ENGINES["trtllm-serve"]:
        own = served.server.url.replace(HOST, f"127.0.0.{1 + COLUMNS.index(column)}")
        flags = tuple(own if flag == served.server.url else flag for flag in flags)

    def command(ports: Sequence[int]) -> list[str | Path]:
        tap: tuple[str, ...] = ()
        if column == "proxy":
            taps.append(*free_ports(1))
            tap = ("--tap", f"proxy={HOST}:{taps[-1]}={HOST}:{origin}")
        elif column == "capture":
            tap = ("--tap", f"capture=lo:{taps[-1]}")
        return [
            *(sys.executable, "-m", "tokenslo", "exporter"),
            *flags,
            *tap,
            *("--stuck-after", f"{_STUCK_SECONDS}s", "--tap-drain", "50ms"),
            *("--slo", slo, "--listen", f"{HOST}:{ports[0]}"),
        ]

    return serve(
        ServerProcess,
        f"{column} sidecar",
        command,
        folder / f"{column}.sidecar.log",
        ready="/healthz",
    )


def _prometheus(
    program: Path,
    folder: Path,
    served: ModelServer,
    sidecars: Mapping[Column, ServerProcess],
    rules: Sequence[Path],
) -> Prometheus:
    scrape, labels = {}, {}
    for column, sidecar in sidecars.items():
        for job, url in (("tokenslo", f"{sidecar.url}/metrics"), ("server", served.metrics)):
            scrape[f"{job}-{column}"] = url
            labels[f"{job}-{column}"] = {"column": column}
    return prometheus.start(
        program,
        folder / "prometheus",
        scrape=scrape,
        labels=labels,
        rules=rules,
        interval=_SCRAPE_SECONDS,
        arguments=[f"--query.lookback-delta={_LOOKBACK}"],
    )
