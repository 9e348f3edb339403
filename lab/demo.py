"""The demo: run the product on this machine, with a live view."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lab.load import LoadSummary
from lab.process import ServerError, get
from lab.stack import Stack, StackSettings, running
from promql.client import PrometheusError, query
from promql.expr import vector
from promql.http_client import HttpError
from slos import names

_REFRESH_SECONDS = 1.0
_QUALITY = {"exact": "green", "estimate": "yellow", "unavailable": "red"}

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _DemoState:
    """One snapshot: the sidecar's status, the SLOs in Prometheus, the client-side results."""

    status: Json
    slos: Mapping[str, Mapping[str, float]]
    firing: tuple[str, ...]
    clients: LoadSummary


def run(settings: StackSettings, *, seconds: float | None, console: Console) -> None:
    """Run the demo for `seconds`, or until Ctrl-C, then print a summary.

    On a terminal the view is live; in a pipe the URLs are printed first, then the summary.
    Progress goes to the terminal, or to standard error in a pipe.  Raises
    lab.toolchain.UnavailableProgram, lab.toolchain.InstallError or lab.process.ServerError.
    """
    terminal = console if console.is_terminal else Console(stderr=True)

    def progress(text: str) -> None:
        if terminal.is_terminal:
            terminal.print(f"[dim]·[/dim] {text}")

    with suppress(KeyboardInterrupt):
        with running(settings, progress) as stack:
            if not console.is_terminal:
                console.print(urls(stack))
                console.file.flush()
            end = math.inf if seconds is None else time.monotonic() + seconds
            state = _watch(stack, settings, end, console)
            state = read_state(stack, settings.service) or state
            progress("stopping everything")
        if state:  # not stopped before the first response
            console.print(_summary(state, stack, settings))


def _watch(
    stack: Stack, settings: StackSettings, end: float, console: Console
) -> _DemoState | None:
    """Update the view every second until ``end`` or Ctrl-C; return the last state."""
    state = None
    screen = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
    with suppress(KeyboardInterrupt), screen as live:
        while state is None or time.monotonic() < end:
            _check(stack)
            state = read_state(stack, settings.service) or state
            if state and console.is_terminal:
                live.update(live_view(state, stack), refresh=True)
            time.sleep(_REFRESH_SECONDS)
    return state


def _check(stack: Stack) -> None:
    for server in stack.servers:
        if not server.alive:
            raise ServerError(f"{server.name} exited unexpectedly; its log is {server.log}")


def read_state(stack: Stack, service: str) -> _DemoState | None:
    """Query sidecar, Prometheus and load; None while the sidecar has no models."""
    with suppress(HttpError, ValueError):
        status = json.loads(get(stack.sidecar.ports[0], "/", accept="application/json")[1])
        if status["models"]:
            slos, firing = _slos(stack, service)
            return _DemoState(status, slos, firing, stack.load.summary())
    return None


def _slos(stack: Stack, service: str) -> tuple[dict[str, dict[str, float]], tuple[str, ...]]:
    if stack.prometheus is None:
        return {}, ()
    url, of = stack.prometheus.url, {"service": service}
    table: dict[str, dict[str, float]] = {}
    with suppress(PrometheusError):
        for series in (names.TARGET, names.PERIOD_ERROR_RATIO, names.BUDGET_REMAINING):
            for sample in query(url, str(vector(series, of))):
                table.setdefault(sample.labels["slo"], {})[series] = sample.value
        alerts = query(url, str(vector("ALERTS", {**of, "alertstate": "firing"})))
        return table, tuple(sorted({sample.labels["alertname"] for sample in alerts}))
    return table, ()


# The view


def live_view(state: _DemoState, stack: Stack) -> RenderableType:
    """Show as much as fits on a screen, the most important first."""
    return Group(urls(stack), *_external(state, stack), *map(_measured, _models(state)))


def _summary(state: _DemoState, stack: Stack, settings: StackSettings) -> RenderableType:
    """Show all results."""
    tables = (
        table for model in _models(state) for table in (_measured(model), _unavailable(model))
    )
    return Group(*tables, *_external(state, stack), urls(stack), _generated(settings))


def _models(state: _DemoState) -> list[Json]:
    """Return the models to show; one without a version only if it has no other."""
    shown = [model for model in state.status["models"] if not model["excluded"]]
    versioned = {model["model"] for model in shown if model["version"]}
    return [model for model in shown if model["version"] or model["model"] not in versioned]


def _external(state: _DemoState, stack: Stack) -> tuple[RenderableType, ...]:
    """Show the SLOs in Prometheus and the client-side results."""
    slos = (_objectives(state), _firing(state)) if stack.prometheus else ()
    return (*slos, *_clients(state.clients))


def _measured(model: Json) -> Table:
    title = f"{model['model']} version {model['version']}, backend {model['backend']}"
    table = _table(title, "signal", "now", "last minute", "quality", "method")
    for signal in model["signals"]:
        if signal["samples"]:
            quality = Text(signal["quality"], style=_QUALITY[signal["quality"]])
            table.add_row(
                signal["signal"], _latest(signal), signal["recent"], quality, signal["method"]
            )
    return table


def _unavailable(model: Json) -> Table:
    """Show the unavailable signals, by reason, with the fix."""
    table = _table("Unavailable from this server", "signals", "reason", "fix")
    causes: dict[tuple[str, str], list[str]] = {}
    for signal in model["signals"]:
        if not signal["samples"]:
            causes.setdefault((signal["note"], signal["fix"]), []).append(signal["signal"])
    for (reason, fix), signals in causes.items():
        table.add_row(Text("\n".join(signals), style="red"), reason, fix)
    return table


def _latest(signal: Json) -> str:
    samples = signal["samples"]
    if "count" in samples[0]:
        return f"{sum(sample['count'] for sample in samples):,.0f} observed"
    value = sum(sample["value"] for sample in samples)
    if signal["unit"] == "ratio":
        return f"{value:.0%}"
    if signal["unit"] == "B":
        return f"{value / 2**20:,.0f} MiB"
    return f"{value:,.0f}"


def _objectives(state: _DemoState) -> Table:
    table = _table("SLOs in Prometheus", "slo", "target", "bad so far", "budget left")
    for slo, values in state.slos.items():
        left = values.get(names.BUDGET_REMAINING)
        spent = left is not None and left <= 0
        table.add_row(
            slo,
            _share(values.get(names.TARGET)),
            _share(values.get(names.PERIOD_ERROR_RATIO)),
            Text(_share(left), style="red" if spent else "green"),
        )
    return table


def _firing(state: _DemoState) -> Text:
    style = "red" if state.firing else "green"
    return Text.assemble("alerts firing: ", (", ".join(state.firing) or "none", style), "\n")


def _clients(summary: LoadSummary) -> tuple[RenderableType, ...]:
    """Show the client-side results, to compare the signals with."""
    counts = ((count, name.replace("_", " ")) for name, count in summary.outcomes.items() if count)
    outcomes = ", ".join(f"{count} {outcome}" for count, outcome in counts)
    table = _table("Measured by the clients", "measured", "times", "p50", "p95", "p99")
    for name, quantiles in (("first token", summary.ttft), ("gap between tokens", summary.gap)):
        if quantiles:
            values = (quantiles.p50, quantiles.p95, quantiles.p99)
            table.add_row(name, f"{quantiles.count:,}", *(f"{v * 1000:.0f} ms" for v in values))
    return table, Text(f"requests: {outcomes or 'none yet'}\n")


def urls(stack: Stack) -> Table:
    """Return the addresses of a stack."""
    rows = {"status page": f"{stack.sidecar.url}/", "metrics": f"{stack.sidecar.url}/metrics"}
    if stack.prometheus:
        rows["Prometheus"] = f"{stack.prometheus.url}/"
    return _pairs({**rows, stack.served.name: stack.served.metrics})


def _generated(settings: StackSettings) -> Table:
    folders = {"rules": "alerts", "dashboards": "dashboards", "runbooks": "runbooks", "logs": "run"}
    return _pairs({name: f"{settings.output / folder}/" for name, folder in folders.items()})


def _table(title: str, *columns: str) -> Table:
    table = Table(
        *columns,
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.columns[0].no_wrap = True
    return table


def _pairs(rows: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), value)
    return table


def _share(value: float | None) -> str:
    return "no data yet" if value is None else f"{value:.2%}"
