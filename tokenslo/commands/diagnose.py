"""``tokenslo diagnose``: diagnose an incident with the checks of the playbooks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from diagnosis.diagnosis import Diagnosis, UnknownAlertError, diagnose
from diagnosis.recorded_plans import RecordedRulesError, recorded_plans
from diagnosis.report_json import as_json, as_object
from diagnosis.report_text import as_markdown, as_text
from diagnosis.service_choice import ServiceChoiceError, choose_plan
from diagnosis.sidecar_status import read_sidecar_status
from diagnosis.watch import follow
from promql.client import PrometheusError, query
from promql.client_config import DIRECT, HttpClientConfig, http_client_config
from promql.http_client import Headers
from slos.durations import parse_duration
from slos.http_client_config import read_http_client_config
from slos.plan import Plan, plan
from slos.terminal_text import terminal_text
from tokenslo.file_name import FILE_NAME
from tokenslo.files import inputs, libraries_option, load_all
from tokenslo.http_config import http_config_option, without_credentials
from tokenslo.prometheus import headers_option, prometheus_option
from tokenslo.time_option import FORMS, read_time

_QUERY_SECONDS = 10.0
_STYLES = {"  SICK": "bold red", "  FAILED": "yellow", "  no data": "dim", "Verdict": "bold"}


def _url(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given is None or given.startswith(("http://", "https://")):
        return given and without_credentials(given)
    raise click.BadParameter(f"{given!r} is not an http or https URL.")


@click.command("diagnose")
@click.argument("alert", required=False, default="", metavar="[ALERT]")
@click.option(
    "--slo",
    "files",
    multiple=True,
    metavar="FILE",
    type=FILE_NAME,
    help="SLO file, or a folder of them; repeatable. By default Prometheus is queried for the "
    "services whose rules it evaluates.",
)
@libraries_option
@click.option("--service", default="", metavar="NAME", help="Service, if there are several.")
@prometheus_option
@headers_option
@http_config_option
@click.option(
    "--at",
    callback=read_time,
    metavar="TIME",
    help=f"Diagnose a time in the past: {FORMS}, such as 2h.",
)
@click.option(
    "--sidecar",
    metavar="URL",
    callback=_url,
    help="Sidecar whose status page explains missing signals and failing sources.",
)
@click.option(
    "--sidecar-http-config",
    "sidecar_http",
    metavar="FILE",
    type=FILE_NAME,
    callback=lambda _, __, given: read_http_client_config(given) if given else DIRECT,
    help="HTTP client configuration for the sidecar, as --http-config for Prometheus.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Repeat every 15 s and print changes, until the mitigation has worked.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON; with --watch one object a line.")
@click.option("--markdown", is_flag=True, help="Print Markdown for an incident channel.")
def diagnose_(
    alert: str,
    files: tuple[str, ...],
    libraries: tuple[Path, ...],
    service: str,
    url: str,
    headers: Headers,
    at: float | None,
    sidecar: str | None,
    sidecar_http: HttpClientConfig,
    watch: bool,
    json_: bool,
    markdown: bool,
) -> int:
    """Diagnose an incident: run the checks of the playbooks, and name the most likely cause.

    ALERT is the name of a firing alert; without it the objectives that fire or burn are diagnosed.
    Prints each check with its value and its healthy range, then the cause, the evidence for and
    against it, what would decide between the two likeliest, and the first mitigation. If Prometheus
    does not answer, the exit code is 1; with --slo the report still has what the sidecar reports.
    """
    _refuse_conflicts(at, sidecar, watch, json_, markdown)
    evaluate = partial(query, url, timeout=_QUERY_SECONDS, headers=headers, time=at)
    try:
        plans = _plans(files, libraries, lambda: recorded_plans(evaluate))
        chosen = choose_plan(plans, service, alert, evaluate)

        def read() -> Diagnosis:
            status = None
            if sidecar:
                with http_client_config(sidecar_http):  # not with Prometheus' credentials
                    status = read_sidecar_status(sidecar)
            return diagnose(chosen, evaluate, alert=alert, sidecar=status)

        if watch:
            _watch(chosen, read, json_, markdown)
        else:
            diagnosis = read()
            _print(_report(diagnosis, json_, markdown), plain=json_ or markdown)
            if diagnosis.unanswered:
                return _not_answered(diagnosis.unanswered)
    except PrometheusError as error:
        return _not_answered(str(error))
    except RecordedRulesError as error:
        raise click.ClickException(f"{error}.") from None
    except (UnknownAlertError, ServiceChoiceError) as error:
        raise click.UsageError(f"{error}.") from None
    return 0


def _not_answered(error: str) -> int:
    """Print why Prometheus does not answer, and return the exit code."""
    click.echo(terminal_text(f"tokenslo: {error}"), err=True)
    return 1


def _refuse_conflicts(
    at: float | None, sidecar: str | None, watch: bool, json_: bool, markdown: bool
) -> None:
    if json_ and markdown:
        raise click.UsageError("Give --json or --markdown, not both.")
    if at is not None and watch:
        raise click.UsageError("--watch follows the present: leave out --at.")
    if at is not None and sidecar:
        raise click.UsageError("--sidecar reports the present: leave out --at.")


def _plans(
    files: tuple[str, ...], libraries: tuple[Path, ...], recorded: Callable[[], tuple[Plan, ...]]
) -> tuple[Plan, ...]:
    if not files:
        return recorded()
    return tuple(plan(service) for service in load_all(inputs(files), libraries))


def _report(diagnosis: Diagnosis, json_: bool, markdown: bool) -> str:
    if json_:
        return as_json(diagnosis)
    return terminal_text(as_markdown(diagnosis) if markdown else as_text(diagnosis))


def _print(text: str, *, plain: bool) -> None:
    """Print a report; on a terminal, with styles."""
    console = Console(highlight=False)
    if plain or not console.is_terminal:
        click.echo(text, nl=False)
        return
    for line in text.splitlines():
        style = next((style for start, style in _STYLES.items() if line.startswith(start)), "")
        console.print(Text(line, style=style), soft_wrap=True)


def _watch(chosen: Plan, read: Callable[[], Diagnosis], json_: bool, markdown: bool) -> None:
    window = max(float(parse_duration(each.windows[0])) for each in chosen.objectives)
    first = True
    for update in follow(read, window, time.monotonic, time.sleep):
        if json_:
            found = as_object(update.diagnosis) if update.diagnosis else None
            changed = {"time": time.time(), "changes": list(update.lines), "diagnosis": found}
            click.echo(json.dumps(changed, ensure_ascii=False))
            continue
        if update.diagnosis and first:
            _print(_report(update.diagnosis, False, markdown), plain=markdown)
            first = False
        for line in _stamped(update.lines, markdown):
            click.echo(terminal_text(line))


def _stamped(lines: tuple[str, ...], markdown: bool) -> Iterator[str]:
    stamp = time.strftime("%H:%M:%S")
    yield from (f"- {stamp} {line}" if markdown else f"{stamp} {line}" for line in lines)
