"""``tokenslo demo``: the whole product on a real Triton with a simulated engine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from exporter.doctor.server_config import first_response_boundaries
from lab import demo as lab_demo
from lab.example_slo import EXAMPLE_SLO
from lab.incidents.catalogue import CATALOGUE
from lab.incidents.demo import run_incident
from lab.incidents.incident import Incident
from lab.load import LoadSettings, Protocol
from lab.process import ServerError
from lab.repository import ModelSettings
from lab.stack import ENGINES, EngineName, StackSettings
from lab.toolchain import InstallError, UnavailableProgram
from slos.durations import parse_duration
from slos.errors import BadValue
from tokenslo.extras import require
from tokenslo.files import load_all

MODEL = "tensorrt_llm"
_NOT_WITH_INCIDENT = ("seconds", "prometheus", "engine", "slo")

_PROTOCOLS: Mapping[EngineName, Protocol] = {"triton": "generate", "trtllm-serve": "chat"}


def _seconds(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else float(parse_duration(text))
    except BadValue as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "--for",
    "seconds",
    metavar="DURATION",
    callback=_seconds,
    help="Stop after this time, such as 60s; Ctrl-C stops earlier.",
)
@click.option("--prometheus/--no-prometheus", default=True, help="Run a Prometheus.")
@click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default="triton",
    show_default=True,
    help="A real Triton, or a simulated trtllm-serve (no download).",
)
@click.option(
    "--slo",
    metavar="FILE",
    default=EXAMPLE_SLO,
    type=click.Path(path_type=Path),
    help="SLO file for the model tensorrt_llm. Default: examples/chat/slo.yaml.",
)
@click.option(
    "--incident",
    metavar="NAME",
    type=click.Choice(list(CATALOGUE)),
    help=f"Play an incident with its own server, load and time, and diagnose it: "
    f"{', '.join(CATALOGUE)}.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the incident's parameters."
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    default="demo-out",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder for generated files.",
)
@click.pass_context
def demo(
    context: click.Context,
    seconds: float | None,
    prometheus: bool,
    engine: EngineName,
    slo: Path,
    incident: str | None,
    seed: int,
    output: Path,
) -> None:
    """Run a model server with a simulated TensorRT-LLM engine under load, and measure it.

    The server is a real Triton, or a simulated trtllm-serve. The sidecar reads it, and a real
    Prometheus evaluates the rules of the SLO file. The first run downloads Triton and Prometheus
    (about 120 MB).

    With --incident, load and faults follow a script, the rules have compressed time, and the demo
    ends with what `tokenslo diagnose` reports.
    """
    require("exporter", "generate", "otlp", "terminal")
    if incident:
        _play(context, CATALOGUE[incident], seed, output)
        return
    services = load_all([str(slo)])
    settings = StackSettings(
        slo=slo,
        service=services[0].service,
        output=output,
        model=ModelSettings(first_response_buckets_ms=first_response_boundaries(services, MODEL)),
        load=LoadSettings(
            seconds=math.inf, requests=1_000_000, model=MODEL, protocol=_PROTOCOLS[engine]
        ),
        prometheus=prometheus,
        engine=engine,
    )
    with _one_line_errors():
        lab_demo.run(settings, seconds=seconds, console=_console())


def _play(context: click.Context, incident: Incident, seed: int, output: Path) -> None:
    for name in _NOT_WITH_INCIDENT:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = "for" if name == "seconds" else name
            raise click.UsageError(f"--incident decides --{flag} itself; leave out --{flag}")
    with _one_line_errors():
        run_incident(incident, seed, output, _console())


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (UnavailableProgram, InstallError, ServerError) as error:
        raise click.ClickException(str(error)) from None


def _console() -> Console:
    console = Console()
    # A pipe has no width of its own, and 80 columns would fold every table.
    return console if console.is_terminal else Console(width=120)
