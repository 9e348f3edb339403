"""The whole product at work: a real Triton under load, the sidecar beside it, a real Prometheus.

Everything of tokenslo runs here as its users run it, as commands in processes of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from lab import parts, prometheus, triton
from lab.load import Load, LoadSettings, beside
from lab.parts import Say
from lab.process import HOST, Server, ServerError, serve
from lab.prometheus import Prometheus
from lab.repository import ModelSettings, write_repository
from lab.triton import Triton

_PACE = 1.0
"""Seconds between scrapes and between evaluations: a demo lasts a minute, not a month."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    """What to run: an SLO file of ``service``, where what follows from it goes, under which load.

    ``output`` also gets a folder ``run`` with logs and data of the servers, made anew each time.
    """

    slo: Path
    service: str
    output: Path
    model: ModelSettings
    load: LoadSettings
    prometheus: bool = True

    @property
    def run(self) -> Path:
        """Where the servers' own files are."""
        return self.output / "run"


@dataclass(frozen=True, slots=True)
class Stack:
    """The running servers and the load on them."""

    triton: Triton
    sidecar: Server
    prometheus: Prometheus | None
    load: Load

    @property
    def servers(self) -> tuple[Server, ...]:
        """Every server that is meant to be running."""
        return tuple(filter(None, (self.triton, self.sidecar, self.prometheus)))


@contextmanager
def running(settings: StackSettings, say: Say) -> Iterator[Stack]:
    """Run everything; all of it is over when the block is left.

    Raises lab.parts.MissingPart, lab.parts.PartError or lab.process.ServerError.
    """
    home = triton.install(say)
    program = parts.program("prometheus", say) if settings.prometheus else None
    shutil.rmtree(settings.run, ignore_errors=True)
    settings.run.mkdir(parents=True)
    say("generating rules, dashboards and runbooks")
    tokenslo("generate", settings.slo, "-o", settings.output)
    with ExitStack() as stack:
        say("starting Triton")
        models = settings.run / "models"
        write_repository(models, model=settings.model)
        server = stack.enter_context(triton.start(home, models, settings.run))
        say("starting the sidecar")
        sidecar = stack.enter_context(_sidecar(server, settings))
        scraper = None
        if program:
            say("starting Prometheus")
            scraper = stack.enter_context(_prometheus(program, sidecar, settings))
        load = stack.enter_context(beside(Load(server.url, settings.load)))
        yield Stack(server, sidecar, scraper, load)


def tokenslo(*arguments: str | Path) -> str:
    """Run a command of ours and return what it printed; ServerError if it fails."""
    command = [sys.executable, "-m", "tokenslo", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ServerError(f"`tokenslo {arguments[0]}` failed:\n{done.stderr.strip()}")
    return done.stdout


def _sidecar(server: Triton, settings: StackSettings) -> Server:
    def command(ports: Sequence[int]) -> list[str | Path]:
        return [
            *(sys.executable, "-m", "tokenslo", "exporter"),
            *("--triton", server.url, "--triton-metrics", server.metrics),
            *("--slo", settings.slo, "--listen", f"{HOST}:{ports[0]}"),
        ]

    return serve(Server, "sidecar", command, settings.run / "sidecar.log", ready="/healthz")


def _prometheus(program: Path, sidecar: Server, settings: StackSettings) -> Prometheus:
    rules = settings.output / f"alerts/{settings.service}.rules.yaml"
    return prometheus.start(
        program,
        settings.run / "prometheus",
        scrape={"tokenslo": f"{sidecar.url}/metrics"},
        rules=[_hurried(rules, settings.run)],
        interval=_PACE,
    )


def _hurried(rules: Path, folder: Path) -> Path:
    """Copy a rule file without its groups' intervals, so that a minute is enough to see it work."""
    content = yaml.safe_load(rules.read_text())
    for group in content["groups"]:
        group.pop("interval", None)
    copy = folder / rules.name
    copy.write_text(yaml.safe_dump(content))
    return copy
