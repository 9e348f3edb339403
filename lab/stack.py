"""The demo's stack: a model server under load through the sidecar's tap, and Prometheus.

The server is a real Triton, or a simulated trtllm-serve where Triton is unavailable.  tokenslo
runs as its users run it: as commands in separate processes.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from lab import prometheus, toolchain, triton, trtllm_server
from lab.load import Load, LoadSettings, running_load
from lab.process import HOST, ServerError, ServerProcess, free_ports, serve
from lab.prometheus import Prometheus
from lab.repository import ModelSettings, write_repository
from lab.toolchain import Progress
from lab.trtllm_serve.settings import ServeSettings

EngineName = Literal["triton", "trtllm-serve"]
ENGINES: Mapping[EngineName, str] = {"triton": "Triton", "trtllm-serve": "trtllm-serve"}
"""Display names of the model servers."""

_MARKER = ".tokenslo-demo"
_INTERVAL = 1.0
"""Seconds between scrapes and between evaluations; a demo lasts a minute."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    """Settings of the stack: the SLO file of ``service``, the output folder, the load.

    ``model`` configures Triton's model; the load must use the protocol of the ``engine``.
    ``output`` also gets a folder ``run`` with logs and data of the servers, emptied each time.
    ``generate`` are further arguments of ``tokenslo generate``.
    """

    slo: Path
    service: str
    output: Path
    model: ModelSettings
    load: LoadSettings
    prometheus: bool = True
    engine: EngineName = "triton"
    generate: tuple[str, ...] = ()

    @property
    def run(self) -> Path:
        """The folder of the servers' logs and data."""
        return self.output / "run"


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A running model server, the URL of its metrics, and the sidecar's flags to read it."""

    name: str
    server: ServerProcess
    metrics: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """The running servers and the load on them; ``tap`` is the URL that clients use."""

    served: ModelServer
    sidecar: ServerProcess
    tap: str
    prometheus: Prometheus | None
    load: Load

    @property
    def servers(self) -> tuple[ServerProcess, ...]:
        """All servers of the stack."""
        return tuple(filter(None, (self.served.server, self.sidecar, self.prometheus)))


@contextmanager
def running(settings: StackSettings, progress: Progress) -> Iterator[Stack]:
    """Run the stack until the scope exits.

    Raises lab.toolchain.UnavailableProgram, lab.toolchain.InstallError or lab.process.ServerError.
    """
    home = triton.install(progress) if settings.engine == "triton" else None
    program = toolchain.program("prometheus", progress) if settings.prometheus else None
    with ExitStack() as stack:
        stack.enter_context(locked_folder(settings.run))
        progress("generating rules, dashboards and runbooks")
        tokenslo("generate", settings.slo, "-o", settings.output, *settings.generate)
        progress(f"starting {ENGINES[settings.engine]}")
        served = _triton(home, settings) if home else _trtllm_serve(settings)
        stack.enter_context(served.server)
        progress("starting the sidecar")
        (port,) = free_ports(1)
        sidecar = stack.enter_context(_sidecar(served, settings, port))
        scraper = None
        if program:
            progress("starting Prometheus")
            scraper = stack.enter_context(_prometheus(program, sidecar, settings))
        tap = f"http://{HOST}:{port}"
        load = stack.enter_context(running_load(Load(tap, settings.load)))
        yield Stack(served, sidecar, tap, scraper, load)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Empty and lock the servers' folder until the scope exits.

    Raises ServerError if another demo uses it, or if it is not a demo's folder.
    """
    marker = folder / _MARKER
    if folder.exists() and not marker.exists():
        raise ServerError(f"{folder} is not from an earlier demo; choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    # The lock is on the marker file, which is kept; it ends with the process.
    with marker.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServerError(
                f"another demo is running in {folder}; stop it or choose another --output"
            ) from None
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != marker:
                path.unlink()
        yield


def tokenslo(*arguments: str | Path) -> str:
    """Run a tokenslo command and return its output; raises ServerError if it fails."""
    command = [sys.executable, "-m", "tokenslo", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ServerError(f"`tokenslo {arguments[0]}` failed:\n{done.stderr.strip()}")
    return done.stdout


def _triton(home: Path, settings: StackSettings) -> ModelServer:
    models = settings.run / "models"
    write_repository(models, model=settings.model)
    (port,) = free_ports(1)
    traces = f"{HOST}:{port}"
    server = triton.start(home, models, settings.run, arguments=[*_tracing(traces)])
    flags = ("--triton", server.url, "--triton-metrics", server.metrics, "--otlp-traces", traces)
    return ModelServer(ENGINES["triton"], server, server.metrics, flags)


def _tracing(collector: str) -> Iterator[str]:
    """Yield Triton's flags to export a trace of every request, in small and frequent batches."""
    url = f"opentelemetry,url=http://{collector}/v1/traces"
    batching = (
        "opentelemetry,bsp_schedule_delay=500",
        "opentelemetry,bsp_max_export_batch_size=32",
    )
    for setting in ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", url, *batching):
        yield f"--trace-config={setting}"


def _trtllm_serve(settings: StackSettings) -> ModelServer:
    requests = settings.run / "requests"
    serve_settings = ServeSettings(model=settings.load.model, perf_metrics_output_dir=str(requests))
    server = trtllm_server.start(settings.run / "trtllm-serve", serve_settings)
    metrics = f"{server.url}/prometheus/metrics"
    flags = ("--trtllm", server.url, "--trtllm-requests", f"{requests}/perf_metrics-*.jsonl")
    return ModelServer(ENGINES["trtllm-serve"], server, metrics, flags)


def _sidecar(served: ModelServer, settings: StackSettings, tap: int) -> ServerProcess:
    spec = f"proxy={HOST}:{tap}={HOST}:{served.server.ports[0]}"

    def command(ports: Sequence[int]) -> list[str | Path]:
        return [
            *(sys.executable, "-m", "tokenslo", "exporter"),
            *served.flags,
            *("--tap", spec, "--tap-inject", "perf-metrics"),
            *("--slo", settings.slo, "--listen", f"{HOST}:{ports[0]}"),
        ]

    return serve(ServerProcess, "sidecar", command, settings.run / "sidecar.log", ready="/healthz")


def _prometheus(program: Path, sidecar: ServerProcess, settings: StackSettings) -> Prometheus:
    return prometheus.start(
        program,
        settings.run / "prometheus",
        scrape={"tokenslo": f"{sidecar.url}/metrics"},
        rules=rule_files(settings),
        interval=_INTERVAL,
    )


def rule_files(settings: StackSettings) -> list[Path]:
    """Copy the generated rule files for a Prometheus of the stack, and return the copies."""
    rules = sorted((settings.output / "alerts").glob(f"{settings.service}.*rules.yaml"))
    return [_without_intervals(each, settings.run) for each in rules]


def _without_intervals(rules: Path, folder: Path) -> Path:
    """Copy a rule file without its groups' intervals, so that rules are evaluated every second.

    Alerts then fire within the minutes of a demo: the guard ``min_bad_events`` is reached sooner.
    """
    content = yaml.safe_load(rules.read_text())
    for group in content["groups"]:
        group.pop("interval", None)
    copy = folder / rules.name
    copy.write_text(json.dumps(content, indent=1))  # which is YAML
    return copy
