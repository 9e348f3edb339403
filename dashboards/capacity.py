"""Capacity of one service: headroom, limiting resource, trend, tokens by tenant."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from grafanalib import core

from dashboards import panels, scopes
from dashboards.engine import headroom_limits
from dashboards.grafana import PanelRow
from dashboards.panels import PanelQuery, levels
from promql.expr import (
    Binary,
    Expr,
    Matcher,
    Subquery,
    Vector,
    aggregate,
    call,
    equal,
    number,
    one_of,
    vector,
)
from slos import names
from slos.causes import cause_labels
from slos.plan import Plan
from slos.queries import INSTANCE, Scope
from slos.signals import TENANT

_HORIZON = "4h"
_HORIZON_SECONDS = 4 * 3600
_TREND = "1h"
_PEAK, _PEAK_STEP = "1d", "5m"
_LIMITING = ("KvCachePressure", "SequencesPaused", "QueueGrowing", "GpuMemoryNearFull")
_LEFT = levels((None, panels.RED), ("0.1", panels.ORANGE), ("0.25", panels.GREEN))


def rows(plan: Plan, scope: Scope) -> Iterator[PanelRow]:
    """Yield the rows of a service."""
    yield PanelRow("Headroom", list(_headroom(scope)), height=4)
    limits = [_limits(plan, scope), _causes(plan), _exhaustion(scope)]
    yield PanelRow("", limits, height=6, widths=(10, 9, 5))
    yield PanelRow("Trend", list(_trend(plan, scope)))
    yield PanelRow("Tokens by tenant", list(_tenants(scope)))


def _limit(plan: Plan, indicator: str, default: str) -> Decimal:
    """Return the lowest threshold of a headroom indicator."""
    lines = headroom_limits(plan, indicator)
    return min((line.value for line in lines if line.value is not None), default=Decimal(default))


def _headroom(scope: Scope) -> Iterator[core.Panel]:
    for title, indicator, of in (
        ("KV cache free", "kv_headroom", "KV cache"),
        ("Slots free", "sequence_headroom", "batch"),
    ):
        yield panels.tiles(
            title,
            f"Free share of the {of} on the fullest instance. Below 10% add instances or admit "
            "less.",
            [PanelQuery(number(1) - aggregate("max", scope.fullest(indicator)))],
            unit=panels.RATIO,
            steps=_LEFT,
        )
    output = scopes.rate(scope, "output_tokens")
    peak = call("max_over_time", Subquery(output, _PEAK, _PEAK_STEP))
    yield panels.tiles(
        "Tokens free (est.)",
        "Estimate: free share of the highest output rate of the last day. The engine may never "
        "have been saturated: the true one is higher.",
        [PanelQuery(call("clamp_min", number(1) - output / peak, number(0)))],
        unit=panels.RATIO,
    )
    yield panels.tiles(
        "Waiting sequences",
        "Queued sequences of all instances. Above zero for minutes: capacity is short.",
        [PanelQuery(scopes.total(scope, "sequences_waiting"))],
        unit=panels.COUNT,
        steps=levels((None, panels.GREEN), (1, panels.ORANGE)),
    )


def _exhaustion(scope: Scope) -> core.Panel:
    used = scope.gauge("kv_utilization")
    slope = call("deriv", Vector(used.metric, used.matchers, _TREND))
    rising = aggregate("max", slope.compare(">", number(0)))
    return panels.tiles(
        "KV cache full in",
        f"Time until the fullest instance reaches 100% at the trend of the last {_TREND}. Below a "
        "day: add instances now.",
        [PanelQuery((number(1) - aggregate("max", used)) / rising)],
        unit=panels.SECONDS,
        steps=levels((None, panels.RED), (_HORIZON_SECONDS, panels.ORANGE), (86_400, panels.GREEN)),
        empty="no upward trend",
    )


def _limits(plan: Plan, scope: Scope) -> core.Panel:
    def over(usage: Expr, limit: Decimal) -> Expr:
        return Binary(usage, ">", number(limit), bool_=True)

    kv_limit = _limit(plan, "kv_headroom", "0.9")
    slot_limit = _limit(plan, "sequence_headroom", "0.95")
    return panels.states(
        "What limits now",
        "Red while the fullest instance is above the limit, or sequences are queued. A queue with "
        "a full KV cache needs memory, with full slots a larger batch.",
        [
            PanelQuery(over(aggregate("max", scope.fullest("kv_headroom")), kv_limit), "KV cache"),
            PanelQuery(
                over(aggregate("max", scope.fullest("sequence_headroom")), slot_limit),
                "batch slots",
            ),
            PanelQuery(over(scopes.total(scope, "sequences_waiting"), Decimal(0)), "queue"),
        ],
        {"0": ("free", panels.GREEN), "1": ("full", panels.RED)},
    )


def _causes(plan: Plan) -> core.Panel:
    of = (
        *equal(cause_labels(plan.service.selector)),
        one_of(names.CAUSE_LABEL, _LIMITING),
        Matcher("alertstate", "=", "firing"),
    )
    firing = aggregate("max", vector("ALERTS", of), (names.CAUSE_LABEL,))
    return panels.states(
        "Capacity causes that fire",
        "Cause alerts about capacity; each has a runbook.",
        [PanelQuery(firing, f"{{{{{names.CAUSE_LABEL}}}}}")],
        {"1": ("firing", panels.RED)},
        empty="no cause fires",
    )


def _trend(plan: Plan, scope: Scope) -> Iterator[core.Panel]:
    used = scope.gauge("kv_utilization")
    ahead = call(
        "predict_linear", Vector(used.metric, used.matchers, _TREND), number(_HORIZON_SECONDS)
    )
    bounded = call("clamp", aggregate("max", ahead), number(0), number(1))
    yield panels.time_series(
        f"KV-cache utilization, now and in {_HORIZON}",
        f"The fullest instance, and its linear trend of the last {_TREND} continued for "
        f"{_HORIZON}. At 100% the cache is exhausted in that time.",
        [
            PanelQuery(aggregate("max", used), "now"),
            PanelQuery(bounded, f"in {_HORIZON}"),
        ],
        unit=panels.RATIO,
        lines=headroom_limits(plan, "kv_headroom"),
        top=1,
    )
    output = scopes.rate(scope, "output_tokens", INSTANCE)
    yield panels.time_series(
        "Output tokens by instance",
        "Tokens per second of each instance. Unequal lines are unequal routing; equal ones at "
        "their peak are the limit.",
        [PanelQuery(output, scopes.BY_INSTANCE)],
        unit=panels.PER_SECOND,
        stacked=True,
    )


def _tenants(scope: Scope) -> Iterator[core.Panel]:
    for key, title, description in (
        (
            "input_tokens",
            "Input tokens by tenant",
            "Prompt tokens per second of each selected tenant. A sudden rise fills the queue.",
        ),
        (
            "output_tokens",
            "Output tokens by tenant",
            "Generated tokens per second of each selected tenant: who uses the capacity.",
        ),
    ):
        yield panels.time_series(
            title,
            description,
            [PanelQuery(scopes.tenant_rate(scope, key, TENANT), "{{tenant}}")],
            unit=panels.PER_SECOND,
            stacked=True,
            empty="no tenants: they are counted with --tap-tenant-header",
        )
