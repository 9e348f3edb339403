"""``tokenslo report``: report usage and cost by tenant."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from math import isfinite

import click

from promql.client import PrometheusError, Sample, query
from promql.expr import Matcher
from promql.http_client import Headers
from promql.query import InvalidQuery, read_query
from slos.terminal_text import terminal_text
from tokenslo.http_config import http_config_option
from tokenslo.prometheus import headers_option, prometheus_option
from usage.prometheus_usage import NoUsageError, read_usage
from usage.showback import Showback, ShowbackRules, showback
from usage.showback_csv import as_csv
from usage.showback_html import as_html
from usage.showback_json import as_json
from usage.showback_text import as_text
from usage.token_usage import DEFAULT_WEIGHTS, TokenWeights

_QUERY_SECONDS = 120.0
_OF_SERIES = frozenset({"model", "version", "tenant", "direction", "outcome", "signal", "quality"})
"""Labels that not all series of a sidecar have."""
_FORMATS: Mapping[str, Callable[[Showback], str]] = {
    "text": lambda report: terminal_text(as_text(report)),
    "csv": as_csv,
    "json": as_json,
    "html": as_html,
}


_MAY_BE_ZERO = frozenset({"gpu_hour_price", "input_weight", "cached_input_weight", "output_weight"})


def _positive(_: click.Context, parameter: click.Parameter, given: float) -> float:
    if isfinite(given) and (given > 0 or (given == 0 and parameter.name in _MAY_BE_ZERO)):
        return given
    least = "of at least 0" if parameter.name in _MAY_BE_ZERO else "above 0"
    raise click.BadParameter(f"{given:g} is not a number {least}.")


def _matchers(
    _: click.Context, parameter: click.Parameter, given: str | None
) -> tuple[Matcher, ...] | None:
    """Read label matchers, with or without braces."""
    if given is None:
        return None
    inner = given.strip().removeprefix("{").removesuffix("}")
    try:
        selector = read_query(f"up{{{inner}}}").selector
    except InvalidQuery as problem:
        raise click.BadParameter(f'{given!r} {problem}. Fix: write namespace="llm".') from None
    if selector is None or selector.metric != "up":
        raise click.BadParameter(f"{given!r} is not a list of label matchers.")
    for matcher in selector.matchers:
        if parameter.name == "selector" and matcher.label in _OF_SERIES:
            raise click.BadParameter(
                f"{matcher.label} is not a label of targets. Fix: select servers, by labels such "
                "as namespace or job; the report has all of their models and tenants."
            )
    return selector.matchers


def _format_option(name: str, text: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    return click.option(f"--{name}", "form", flag_value=name, help=text)


def _weight_option(
    name: str, default: float, of: str
) -> Callable[[click.decorators.FC], click.decorators.FC]:
    return click.option(
        f"--{name}-weight",
        type=float,
        default=default,
        show_default=True,
        callback=_positive,
        help=f"Weight of {of}.",
    )


@click.command("report")
@prometheus_option
@headers_option
@http_config_option
@click.option(
    "--days", type=click.IntRange(1, 366), default=30, show_default=True, help="Days of history."
)
@click.option(
    "--gpu-hour-price",
    type=float,
    required=True,
    callback=_positive,
    help="Price of a GPU-hour, in any currency.",
)
@click.option(
    "--gpus-per-server",
    type=float,
    default=1.0,
    show_default=True,
    callback=_positive,
    help="GPUs of each server that has a sidecar.",
)
@click.option(
    "--dcgm-selector",
    metavar="MATCHERS",
    callback=_matchers,
    help="Count GPUs by DCGM_FI_DEV_GPU_UTIL with these labels instead, such as "
    "'namespace=\"llm\"'; every server then has the average.",
)
@_weight_option("input", DEFAULT_WEIGHTS.input, "an input token that is not cached")
@_weight_option("cached-input", DEFAULT_WEIGHTS.cached_input, "a cached input token")
@_weight_option("output", DEFAULT_WEIGHTS.output, "an output token, also of a wasted one")
@click.option(
    "--idle",
    type=click.Choice(("separate", "spread")),
    default="separate",
    show_default=True,
    help="Whether idle GPU-hours stay separate, or are spread over tenants by their allocated "
    "ones.",
)
@click.option(
    "--selector",
    metavar="MATCHERS",
    callback=_matchers,
    help="Labels of the sidecars' targets, such as 'namespace=\"llm\"'; all by default.",
)
@click.option(
    "--server-label",
    default="instance",
    show_default=True,
    callback=lambda _, __, given: _label(given),
    help="Label that distinguishes servers.",
)
@click.option("--text", "form", flag_value="text", default=True, help="Print a table (default).")
@_format_option("csv", "Print CSV.")
@_format_option("json", "Print JSON.")
@_format_option("html", "Print an HTML page.")
def report(
    url: str,
    headers: Headers,
    days: int,
    gpu_hour_price: float,
    gpus_per_server: float,
    dcgm_selector: Sequence[Matcher] | None,
    input_weight: float,
    cached_input_weight: float,
    output_weight: float,
    idle: str,
    selector: Sequence[Matcher] | None,
    server_label: str,
    form: str,
) -> None:
    """Report usage and cost by tenant and model, from the counters of sidecars in Prometheus.

    Busy GPU-hours of a server are divided by weighted tokens; idle GPU-hours are a row of their
    own. Tenants, idle and the residual add up to GPU-hours x price. Missing data lowers the
    coverage, and is not filled in. Nothing is written to Prometheus.
    """
    weights = TokenWeights(input_weight, cached_input_weight, output_weight)
    if not any((input_weight, cached_input_weight, output_weight)):
        raise click.UsageError("All weights are 0. Fix: give one of them a positive weight.")
    try:
        period = read_usage(
            partial(_query, url, headers),
            days,
            time.time(),
            server_label=server_label,
            selector=selector or (),
            dcgm=dcgm_selector,
        )
    except (PrometheusError, NoUsageError) as error:
        raise click.ClickException(f"{error}") from None
    rules = ShowbackRules(
        gpu_hour_price,
        gpus_per_server if dcgm_selector is None else None,
        weights,
        idle == "spread",
    )
    click.echo(_FORMATS[form](showback(period, rules, version("tokenslo"))), nl=False)


def _query(url: str, headers: Headers, expr: str, at: float) -> Sequence[Sample]:
    return query(url, expr, timeout=_QUERY_SECONDS, headers=headers, time=at)


def _label(given: str) -> str:
    from slos.schema import LABEL_NAME

    if LABEL_NAME.fullmatch(given):
        return given
    raise click.BadParameter(f"{given!r} is not the name of a label.")
