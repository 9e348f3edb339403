"""``tokenslo gate``: promote a canary, abort it, or hold it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import sleep, time

import click

from gates.criteria import LOOKS, gate_of
from gates.looks import elapsed, watch
from gates.measurement import ArmLabels, measure
from gates.report import Context, as_json, as_text
from gates.verdict import GateDecision, GateVerdict
from promql.client import PrometheusError, QueryResult, query
from promql.http_client import Headers
from slos.durations import parse_duration
from slos.errors import BadValue
from slos.model import Rollout, Service
from slos.plan import plan
from slos.schema import LABEL_NAME
from slos.terminal_text import terminal_text
from tokenslo.files import files_argument, libraries_option, load_all
from tokenslo.http_config import http_config_option
from tokenslo.prometheus import headers_option, prometheus_option
from tokenslo.time_option import FORMS, read_time

_QUERY_SECONDS = 30.0
_LEAST_SECONDS = 60
EXIT_CODES = {GateVerdict.PROMOTE: 0, GateVerdict.ABORT: 1, GateVerdict.INCONCLUSIVE: 3}


def _arm(_: click.Context, __: click.Parameter, given: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in given.split(","):
        name, equals, value = part.partition("=")
        if not (equals and value and LABEL_NAME.fullmatch(name)):
            raise click.BadParameter(f"{part!r} is not LABEL=VALUE, such as version=2.")
        labels[name] = value
    return labels


def _window(_: click.Context, __: click.Parameter, given: str | None) -> Rollout | None:
    if given is None:
        return None
    try:
        seconds = parse_duration(given)
    except BadValue as error:
        raise click.BadParameter(f"{error.message}. Fix: {error.fix}.") from None
    if seconds < _LEAST_SECONDS or seconds % 1:
        raise click.BadParameter(f"{given} is not whole seconds, at least 1m.")
    return Rollout(window=seconds)


@click.command("gate")
@files_argument
@libraries_option
@click.option(
    "--service", "name", default="", metavar="NAME", help="Service, if there are several."
)
@prometheus_option
@headers_option
@http_config_option
@click.option(
    "--baseline",
    required=True,
    metavar="LABEL=VALUE",
    callback=_arm,
    help="Labels of the present version, such as version=1; several are separated by commas.",
)
@click.option(
    "--canary",
    required=True,
    metavar="LABEL=VALUE",
    callback=_arm,
    help="Labels of the new version, such as version=2.",
)
@click.option(
    "--for",
    "given",
    metavar="DURATION",
    callback=_window,
    help="How long to compare, after the warm-up; the default is rollout.window of the SLO file, "
    "or 15m.",
)
@click.option(
    "--at",
    callback=read_time,
    metavar="TIME",
    help=f"Do not wait: compare the time until then. {FORMS[0].upper()}{FORMS[1:]}, such as 0s.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def gate_(
    files: tuple[str, ...],
    libraries: tuple[Path, ...],
    name: str,
    url: str,
    headers: Headers,
    baseline: dict[str, str],
    canary: dict[str, str],
    given: Rollout | None,
    at: float | None,
    json_: bool,
) -> int:
    """Compare a canary with its baseline, and decide: promote, abort or inconclusive.

    Each objective's share of bad events must be shown to meet the objective, and to exceed the
    baseline's by no more than the margin. A canary that is shown to break one of both is aborted,
    at the first of three looks. Missing, small or unhealthy samples are inconclusive.

    The exit code is 0 to promote, 1 to abort, and 3 if the comparison is inconclusive, also where
    Prometheus does not answer.
    """
    service = _service(load_all(files, libraries), name)
    rollout = service.rollout or Rollout()
    if given:
        rollout = replace(rollout, window=given.window)
    _refuse_conflicts(service, canary, baseline)
    gate, arms = gate_of(plan(service), rollout), ArmLabels(canary, baseline)

    def measure_until(end: float, window: str) -> GateDecision:
        return measure(gate, arms, window, lambda expr: complete(expr, end))

    def complete(expr: str, end: float) -> QueryResult:
        found = query(url, expr, timeout=_QUERY_SECONDS, headers=headers, time=end)
        if found.warnings:  # such as a store of Thanos that did not answer
            raise PrometheusError(f"the answer may be incomplete: {found.warnings[0]}")
        return found

    try:
        if at is None:
            look, decision = watch(
                rollout.window,
                rollout.warm_up,
                lambda window: measure_until(time(), window),
                sleep,
                _report_look,
            )
            window = elapsed(rollout.window, look)
        else:
            window, decision = gate.window, measure_until(at, gate.window)
    except PrometheusError as error:
        click.echo(terminal_text(f"tokenslo: inconclusive: {error}"), err=True)
        return EXIT_CODES[GateVerdict.INCONCLUSIVE]
    end = datetime.fromtimestamp(time() if at is None else at, UTC)
    stamp = end.replace(microsecond=0).isoformat().replace("+00:00", "Z")
    context = Context(service.service, arms, window, stamp)
    made = as_json(context, decision) if json_ else terminal_text(as_text(context, decision))
    click.echo(made, nl=False)
    return EXIT_CODES[decision.verdict]


def _service(services: tuple[Service, ...], name: str) -> Service:
    known = {each.service: each for each in services}
    if not name and len(known) > 1:
        raise click.UsageError(f"There are several services: give --service, {', '.join(known)}.")
    if name and name not in known:
        raise click.UsageError(f"{name!r} is not a service of these files: {', '.join(known)}.")
    return known[name] if name else services[0]


def _refuse_conflicts(service: Service, canary: dict[str, str], baseline: dict[str, str]) -> None:
    if canary == baseline:
        raise click.UsageError("--canary and --baseline select the same series.")
    for label in {**canary, **baseline}:
        if label in service.selector:
            raise click.UsageError(
                f"The SLO file selects {label} itself. Fix: delete it from the selector."
            )


def _report_look(look: int, found: GateDecision | PrometheusError) -> None:
    what = str(found) if isinstance(found, PrometheusError) else f"no abort, {found.verdict.value}"
    click.echo(terminal_text(f"look {look} of {LOOKS}: {what}"), err=True)
