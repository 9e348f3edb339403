"""Streams of one service: outcomes, client disconnects, wasted work."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from grafanalib import core

from dashboards import panels, scopes
from dashboards.grafana import PanelRow
from dashboards.panels import PanelQuery
from promql.expr import Expr, Matcher, call, decimal_text, number
from slos.durations import format_duration
from slos.events import boundary_matcher
from slos.plan import Plan
from slos.queries import Scope
from slos.signals import AGE_BUCKETS, SIGNALS

TIMEOUTS = (15, 30, 60, 120, 300, 600)
"""Usual time-outs of gateways, in seconds; each has a narrow bucket just above it."""


OUTCOME_COLORS = {
    "ok": panels.GREEN,
    "error": panels.RED,
    "truncated": panels.RED,
    "draining": panels.RED,
    "timeout": panels.ORANGE,
    "shed": panels.YELLOW,
    "client_disconnected": panels.PURPLE,
    "cancelled": panels.BLUE,
    "quota": panels.BLUE,
    "invalid": panels.NEUTRAL,
}


def rows(_: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows of a service."""
    yield PanelRow("Outcomes", list(_outcomes(scope)))
    yield PanelRow("Client disconnects", list(_disconnects(scope)))
    yield PanelRow("Wasted work", list(_waste(scope)))
    yield PanelRow("Clients", list(_clients(scope)))


def _outcomes(scope: Scope) -> Iterator[core.Panel]:
    streams = SIGNALS["streams"].metric
    middle = Matcher("phase", "=", "mid_stream")
    yield panels.time_series(
        "Streams by outcome",
        "Ended streams. A fall of ok without a rise of another outcome is missing traffic.",
        [PanelQuery(scope.rate(streams, by=("outcome",)), "{{outcome}}")],
        unit=panels.REQUESTS_PER_SECOND,
        stacked=True,
        colors=OUTCOME_COLORS,
    )
    yield panels.time_series(
        "Partial responses",
        "Streams that ended after their first token and before their last one, by outcome. Users "
        "have seen a part of the answer.",
        [PanelQuery(scope.rate(streams, middle, by=("outcome",)), "{{outcome}}")],
        unit=panels.REQUESTS_PER_SECOND,
        stacked=True,
        colors=OUTCOME_COLORS,
    )
    yield panels.time_series(
        "Failures by reason",
        "Requests that did not end with ok, with the server's reason.",
        [
            PanelQuery(
                scopes.rate(scope, "request_failures", "outcome", "reason"),
                "{{outcome}} {{reason}}",
            )
        ],
        unit=panels.REQUESTS_PER_SECOND,
        stacked=True,
    )


def _disconnects(scope: Scope) -> Iterator[core.Panel]:
    key = "disconnect_age"
    yield panels.time_series(
        "Disconnects by phase",
        "Streams whose client disconnected. before_first_token is a wait that was too long, "
        "mid_stream slow output or a time-out.",
        [PanelQuery(scopes.rate(scope, "disconnects", "phase"), "{{phase}}")],
        unit=panels.PER_SECOND,
        stacked=True,
    )
    yield panels.heatmap(
        "Age at disconnect",
        "Age of streams when their client disconnects. People disconnect at any age; a band at "
        "one age is a time-out, named in the next panel.",
        scope.histogram(key),
        unit=panels.SECONDS,
        is_native=key in scope.native,
    )
    yield panels.time_series(
        "Disconnects at usual time-outs",
        "Disconnects within 2% after a usual time-out of gateways. Above zero: raise that time-out "
        "or send keep-alives.",
        [
            PanelQuery(_just_after(scope, seconds), format_duration(Decimal(seconds)))
            for seconds in TIMEOUTS
        ],
        unit=panels.PER_SECOND,
        stacked=True,
    )


def _just_after(scope: Scope, seconds: int) -> Expr:
    """Return the disconnects in the bucket just above a time-out."""
    metric = SIGNALS["disconnect_age"].metric
    above = Decimal(repr(AGE_BUCKETS[AGE_BUCKETS.index(seconds) + 1]))
    if "disconnect_age" in scope.native:
        ages = scope.rate(metric)
        share = call("histogram_fraction", number(seconds), number(above), ages)
        return share * call("histogram_count", ages)
    upto, below = (
        scope.rate(f"{metric}_bucket", boundary_matcher(boundary))
        for boundary in (above, Decimal(seconds))
    )
    return upto - below


def _waste(scope: Scope) -> Iterator[core.Panel]:
    yield panels.time_series(
        "Partial and wasted tokens",
        "Partial: sent to clients that disconnected before the end. Wasted: sent after the "
        "disconnect, a lower bound.",
        [
            PanelQuery(scopes.rate(scope, "partial_tokens"), "partial"),
            PanelQuery(scopes.rate(scope, "wasted_tokens"), "wasted"),
        ],
        unit=panels.PER_SECOND,
    )
    yield panels.time_series(
        "Release after a disconnect",
        "Time from a client disconnect to the server's last work for it. Above a second the "
        "server does not cancel: check cancellation.",
        [
            PanelQuery(scopes.quantile(scope, q, "disconnect_release"), f"p{decimal_text(q * 100)}")
            for q in (Decimal("0.5"), Decimal("0.99"))
        ],
        unit=panels.SECONDS,
    )
    yield panels.time_series(
        "Suspected retries",
        "Requests with the prompt of one that failed or was cancelled shortly before. A rise with "
        "disconnects announces a retry storm.",
        [PanelQuery(scopes.rate(scope, "suspected_retries"), "suspected retries")],
        unit=panels.REQUESTS_PER_SECOND,
    )


def _clients(scope: Scope) -> Iterator[core.Panel]:
    yield panels.time_series(
        "Client back-pressure",
        "Clients that do not read data ready for them, on average. Their token gaps are not the "
        "server's.",
        [PanelQuery(scopes.rate(scope, "client_backpressure"), "slow readers")],
        unit=panels.COUNT,
    )
    yield panels.time_series(
        "Live requests by instance",
        "Requests under way. Growth at a constant request rate means that requests take longer or "
        "do not end.",
        [PanelQuery(scopes.each("sum", scope.gauge("live_streams")), scopes.BY_INSTANCE)],
        unit=panels.COUNT,
    )
