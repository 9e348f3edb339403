"""``tokenslo load``: run a controlled load test.

The declarations of its options take more than half of the file.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from secrets import randbelow
from typing import get_args

import click

from loadtest.aiperf import AiperfDriver, AiperfError
from loadtest.objectives import ClientObjective, UnmeasuredObjective, client_objectives
from loadtest.presets import MLPERF_SECONDS, PRESETS, preset_objectives
from loadtest.report import LoadReport
from loadtest.report_csv import as_csv
from loadtest.report_html import as_html
from loadtest.report_json import as_json
from loadtest.report_text import as_text
from loadtest.served_model import ServedModelError, served_model
from loadtest.session import (
    LoadTest,
    LoadTestResult,
    RateSearchSettings,
    UnusableEndpointError,
    run_load_test,
)
from loadtest.settings import ApiName, LoadEndpoint, LoadLevel, PromptClass, Workload
from promql.client_config import DIRECT, HttpClientConfig, current_config
from slos.http_client_config import read_http_client_config
from slos.model import Service
from slos.terminal_text import terminal_text
from tokenslo import load_options as values
from tokenslo.extras import require
from tokenslo.file_name import FILE_NAME
from tokenslo.files import libraries_option, load_all
from tokenslo.http_config import http_config_option
from tokenslo.load_progress import ProgressLine
from tokenslo.output import apply, changes
from tokenslo.sidecar_samples import sidecar_scrape

_URL = values.LoadValue("URL", values.read_url)
_TIME = values.LoadValue("TIME", values.read_seconds)
_SHARE = values.LoadValue("SHARE", values.read_ratio)
_DEFAULT_LEVELS = tuple(LoadLevel("concurrency", value) for value in (1, 2, 4, 8, 16))
_LEAST_RESOLUTION, _LEAST_CONFIDENCE = 0.001, 0.5
_SEEDS = 1_000_000
"""Random seeds are below this, short enough to type."""


def _http(_: click.Context, __: click.Parameter, given: str | None) -> HttpClientConfig | None:
    return read_http_client_config(given) if given else None


@click.command()
@click.argument("url", type=_URL, metavar="URL")
@click.option(
    "--api",
    type=click.Choice(get_args(ApiName)),
    default="chat",
    show_default=True,
    help="chat and completions as of OpenAI, generate: KServe's generate_stream, grpc: "
    "ModelStreamInfer.",
)
@click.option("--model", default="", metavar="NAME", help="Model, if the server has several.")
@click.option(
    "--slo", multiple=True, metavar="FILE", type=FILE_NAME, help="SLO file to keep; repeatable."
)
@libraries_option
@click.option(
    "--preset",
    type=click.Choice([*PRESETS]),
    metavar="NAME",
    help=f"Latency limits of MLPerf Inference: {', '.join(PRESETS)}.",
)
@click.option(
    "--concurrency",
    "concurrencies",
    type=values.LoadValue("LIST", values.read_concurrencies),
    metavar="N,N,...",
    help="Closed loop: concurrent requests, one level each. Default: 1,2,4,8,16.",
)
@click.option(
    "--rate",
    "rates",
    type=values.LoadValue("LIST", values.read_rates),
    metavar="R,R,...",
    help="Open loop: Poisson arrivals, requests per second, one level each.",
)
@click.option(
    "--search",
    is_flag=True,
    help="Open loop: find the highest rate that keeps every objective, by doubling and bisection.",
)
@click.option(
    "--search-from",
    type=click.FloatRange(0, values.MAX_RATE, min_open=True),
    default=1.0,
    show_default=True,
    metavar="R",
    help="First rate of --search.",
)
@click.option(
    "--search-to",
    type=click.FloatRange(0, values.MAX_RATE, min_open=True),
    default=1000.0,
    show_default=True,
    metavar="R",
    help="Highest rate of --search.",
)
@click.option(
    "--resolution",
    type=_SHARE,
    default="5%",
    show_default=True,
    help="Precision of the rate that --search finds.",
)
@click.option(
    "--confidence",
    type=_SHARE,
    default="95%",
    show_default=True,
    help="One-sided confidence that a level keeps an objective.",
)
@click.option(
    "--prompt-tokens",
    "prompts",
    type=values.LoadValue("LIST", values.read_prompts),
    default=(PromptClass(512),),
    show_default="512",
    metavar="N[:WEIGHT],...",
    help="Prompt lengths, in words of about one token, and their weights.",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(1, values.MAX_TOKENS),
    default=128,
    show_default=True,
    metavar="N",
    help="Tokens of every response (ignore_eos, minimum = maximum).",
)
@click.option(
    "--cancel",
    "cancelled",
    type=_SHARE,
    default="0%",
    show_default=True,
    help="Share of the requests that the client cancels in mid-stream.",
)
@click.option(
    "--extra-body",
    "extra",
    type=values.LoadValue("FILE", values.read_body),
    metavar="FILE",
    help="JSON object with further members of each request body.",
)
@click.option(
    "--duration",
    type=_TIME,
    default="30s",
    show_default=True,
    help="Measured time of each level; --search extends it to prove an objective.",
)
@click.option(
    "--max-duration",
    type=_TIME,
    default="5m",
    show_default=True,
    help="Longest measured time of a level of --search.",
)
@click.option(
    "--warm-up", type=_TIME, default="5s", show_default=True, help="Load before, not measured."
)
@click.option(
    "--cool-down", type=_TIME, default="2s", show_default=True, help="Load after, not measured."
)
@click.option(
    "--timeout", type=_TIME, default="60s", show_default=True, help="Time limit of a request."
)
@click.option(
    "--max-in-flight",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="Limit of an open loop; requests beyond it are sent late, which the report shows.",
)
@click.option(
    "--seed",
    type=int,
    help="Of prompts, arrivals, cancellations; random by default, because a prefix cache may have "
    "the prompts of an earlier test.",
)
@click.option(
    "--sidecar",
    type=_URL,
    metavar="URL",
    help="tokenslo exporter that observes this server: compare its measurements.",
)
@click.option(
    "--sidecar-http-config",
    "sidecar_http",
    metavar="FILE",
    type=FILE_NAME,
    callback=_http,
    help="HTTP client configuration for the sidecar, as --http-config for URL.",
)
@click.option(
    "--against",
    type=_URL,
    metavar="URL",
    help="Second server: it gets the same requests in alternating rounds.",
)
@click.option(
    "--against-http-config",
    "against_http",
    metavar="FILE",
    type=FILE_NAME,
    callback=_http,
    help="HTTP client configuration for --against, as --http-config for URL.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    metavar="N",
    help="Rounds of each level with --against.",
)
@click.option(
    "--driver",
    "driver",
    type=click.Choice(["tokenslo", "aiperf"]),
    default="tokenslo",
    show_default=True,
    help="Load generator; aiperf must be on the PATH, and has no --cool-down and --max-in-flight.",
)
@click.option(
    "--aiperf-tokenizer",
    "tokenizer",
    default="builtin",
    show_default=True,
    metavar="NAME|DIR",
    help="Tokenizer of aiperf's prompts; builtin is downloaded at its first use.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"Folder for {', '.join(values.FILES)}.",
)
@click.option("--force", is_flag=True, help="Replace the files if they exist.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@http_config_option
def load(
    url: str,
    api: ApiName,
    model: str,
    slo: tuple[str, ...],
    libraries: tuple[Path, ...],
    preset: str | None,
    concurrencies: tuple[LoadLevel, ...] | None,
    rates: tuple[LoadLevel, ...] | None,
    search: bool,
    search_from: float,
    search_to: float,
    resolution: float,
    confidence: float,
    prompts: tuple[PromptClass, ...],
    output_tokens: int,
    cancelled: float,
    extra: Mapping[str, object] | None,
    duration: float,
    max_duration: float,
    warm_up: float,
    cool_down: float,
    timeout: float,
    max_in_flight: int,
    seed: int | None,
    sidecar: str | None,
    sidecar_http: HttpClientConfig | None,
    against: str | None,
    against_http: HttpClientConfig | None,
    rounds: int,
    driver: str,
    tokenizer: str,
    folder: Path | None,
    force: bool,
    json_: bool,
) -> int:
    """Run a controlled load test: latencies, throughput and objectives by load.

    URL is that of an OpenAI-compatible server or of a Triton. Every request has the same number of
    output tokens, so that results are comparable. Prints a report, and with --output writes it as
    JSON, CSV (one line per request) and HTML. Ctrl-C ends the test with a report of what was
    measured.

    The exit code is 1 if no load keeps every objective, if the sidecar disagrees, or if equal work
    of two servers is not proven.
    """
    if sum(map(bool, (concurrencies, rates, search))) > 1:
        raise click.UsageError("Give one of --concurrency, --rate and --search.")
    if search and against:
        raise click.UsageError("--search tests one server: leave out --against.")
    if search and not (slo or preset):
        raise click.UsageError("--search needs objectives: give --slo FILE or --preset NAME.")
    if resolution < _LEAST_RESOLUTION or confidence < _LEAST_CONFIDENCE:
        raise click.UsageError("--resolution must be at least 0.1%, --confidence at least 50%.")
    if duration <= 0 or timeout <= 0:
        raise click.UsageError("--duration and --timeout must be above 0s.")
    if driver == "aiperf" and api not in ("chat", "completions"):
        raise click.UsageError(f"aiperf has no API {api}: leave out --driver.")
    if driver == "aiperf" and (cancelled or len(prompts) > 1):
        raise click.UsageError("--cancel and several prompt lengths need the driver tokenslo.")
    if driver == "aiperf" and (current_config() != DIRECT or against_http):
        raise click.UsageError("aiperf takes keys on its command line only: use another driver.")
    if folder:
        values.check_folder(folder, force=force)
    configs = [current_config(), against_http or HttpClientConfig()]
    if api == "grpc":
        require("grpc")
        if any(config.tls or config.proxy for config in configs):
            raise click.UsageError("--api grpc supports neither tls_config nor proxy_url.")
    services = load_all(slo, libraries)
    urls = [url, against] if against else [url]
    bare = [
        LoadEndpoint(each, api, model, config) for each, config in zip(urls, configs, strict=False)
    ]
    try:
        endpoints = tuple(_with_models(bare, services))
    except ServedModelError as error:
        raise click.ClickException(str(error)) from None
    objectives, unmeasured = _objectives(services, preset, endpoints[0].model)
    if (slo or preset) and not objectives:
        first = unmeasured[0]
        raise click.ClickException(
            f"no objective can be measured by a client ({first.name}: {first.reason}). Fix: add "
            "one on ttft, itl, tpot, e2e, max_gap, availability, stream_completion or goodput."
        )
    work = Workload(
        prompts, output_tokens, cancelled, extra or {}, warm_up, duration, cool_down, timeout,
        max_in_flight, randbelow(_SEEDS) if seed is None else seed,
    )  # fmt: skip
    test = LoadTest(
        endpoints,
        work,
        () if search else concurrencies or rates or _DEFAULT_LEVELS,
        tuple(objectives),
        confidence,
        RateSearchSettings(search_from, search_to, resolution, max_duration) if search else None,
        rounds if against else 1,
        sidecar_scrape(sidecar, sidecar_http) if sidecar else None,
        sidecar or "",
    )
    started = datetime.now(UTC).isoformat(timespec="seconds")
    result = _run(test, tokenizer if driver == "aiperf" else "")
    report = LoadReport(
        result, version("tokenslo"), started, driver, tuple(unmeasured), _notes(preset, duration)
    )
    if folder:
        texts = (as_json(report), as_csv(result), as_html(report))
        apply(changes(folder, dict(zip(values.FILES, texts, strict=True))))
    click.echo(as_json(report) if json_ else terminal_text(as_text(report)), nl=False)
    if result.interrupted:
        return 130
    return 0 if _passed(result) else 1


def _with_models(
    endpoints: Iterable[LoadEndpoint], services: Sequence[Service]
) -> Iterable[LoadEndpoint]:
    selected = {each.selector["model"] for each in services if "model" in each.selector}
    for endpoint in endpoints:
        if endpoint.model:
            yield endpoint
        elif len(selected) == 1:
            yield replace(endpoint, model=min(selected))
        else:
            yield replace(endpoint, model=asyncio.run(served_model(endpoint)))


def _objectives(
    services: Sequence[Service], preset: str | None, model: str
) -> tuple[list[ClientObjective], list[UnmeasuredObjective]]:
    measured, unmeasured = client_objectives(services, model)
    return [*measured, *(preset_objectives(preset) if preset else ())], unmeasured


def _notes(preset: str | None, duration: float) -> tuple[str, ...]:
    if not preset:
        return ()
    note = (
        f"{preset} has MLPerf's latency limits, as shares of 99 % of the requests; this is not an "
        "MLPerf result, whose data set and rules differ."
    )
    short = f" MLPerf runs at least {MLPERF_SECONDS} s." if duration < MLPERF_SECONDS else ""
    return (note + short,)


def _run(test: LoadTest, tokenizer: str) -> LoadTestResult:
    """Run the test; with aiperf if a tokenizer is given."""
    program = shutil.which("aiperf") if tokenizer else None
    if tokenizer and program is None:
        raise click.ClickException(
            "aiperf is not on the PATH. Fix: install it into an environment of its own, and add "
            "its bin folder to PATH."
        )

    async def run() -> LoadTestResult:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            stop.set()
            loop.remove_signal_handler(signal.SIGINT)  # the second one ends the command

        with suppress(ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(signal.SIGINT, interrupt)
        aiperf = AiperfDriver(program, tokenizer, stop) if program else None
        with ProgressLine() as line:
            return await run_load_test(test, stop, line.of, aiperf)

    try:
        return asyncio.run(run())
    except (UnusableEndpointError, AiperfError) as error:
        raise click.ClickException(str(error)) from None


def _passed(result: LoadTestResult) -> bool:
    """Return whether a load keeps every objective, the sidecar agrees, and work is equal."""
    kept = any(each.acceptable for each in result.sides[0].results)
    agrees = result.sidecar is None or result.sidecar.agrees
    equal = result.stacks is None or result.stacks.work.proven
    return kept and agrees and equal and not result.sidecar_error
