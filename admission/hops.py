"""Timeouts from the client to the engine, so that each hop outlasts the next one.

A hop that times out before the next one leaves work running for a response that it discards.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from admission.thresholds import ServiceThresholds
from slos.durations import format_duration

LEAST_MARGIN = Decimal(5)
MARGIN = Decimal("0.1")
"""Share of the longest answer by which a hop outlasts the next one."""
LEAST_IDLE = Decimal(30)
IDLE_GAPS = 4
"""Idle timeouts in longest gaps: objectives allow a share of longer ones."""


@dataclass(frozen=True, slots=True)
class HopTimeout:
    """The limit in seconds of a whole request, or of its silence, and how it was computed."""

    seconds: Decimal
    arithmetic: str

    def __str__(self) -> str:
        return format_duration(self.seconds)

    @property
    def written(self) -> str:
        """The duration for gateways, whose largest unit is the hour; whole seconds."""
        hours, seconds = divmod(int(self.seconds), 3600)
        return f"{hours}h{seconds}s" if hours >= 24 else f"{int(self.seconds)}s"


@dataclass(frozen=True, slots=True)
class HopTimeouts:
    """Timeouts by hop: ``client > gateway > server`` > the queue of the engine.

    ``answer`` is the longest answer within the objectives.
    """

    answer: HopTimeout
    server: HopTimeout
    gateway: HopTimeout
    client: HopTimeout
    gateway_idle: HopTimeout
    client_idle: HopTimeout


def hop_timeouts(thresholds: ServiceThresholds, output_tokens: int) -> HopTimeouts:
    """Return the timeouts for answers of at most ``output_tokens``."""
    answer = _answer(thresholds, output_tokens)
    margin = max(LEAST_MARGIN, _whole(answer.seconds * MARGIN))
    server = _after("the longest answer", _whole(answer.seconds), margin)
    gateway = _after("server", server.seconds, margin)
    client = _after("gateway", gateway.seconds, margin)
    gap = thresholds.longest_gap.seconds
    idle = max(LEAST_IDLE, _whole(gap * IDLE_GAPS))
    reason = f"{IDLE_GAPS} x the longest gap, {format_duration(gap)}"
    if idle == LEAST_IDLE:
        reason += f", at least {format_duration(LEAST_IDLE)}"
    return HopTimeouts(
        answer,
        server,
        gateway,
        client,
        _at_most(HopTimeout(idle, reason), gateway),
        _at_most(_after("gateway", idle, margin), client),
    )


def _answer(thresholds: ServiceThresholds, tokens: int) -> HopTimeout:
    first, pace = thresholds.loose_ttft.seconds, thresholds.loose_pace.seconds
    seconds = first + tokens * pace
    arithmetic = (
        f"{format_duration(first)} + {tokens} tokens x {format_duration(pace)} = "
        f"{format_duration(seconds)}"
    )
    for other in (thresholds.e2e, thresholds.max_gap):
        if other is not None and other.seconds > seconds:
            arithmetic = f"{other.indicator} {format_duration(other.seconds)}, above {arithmetic}"
            seconds = other.seconds
    return HopTimeout(seconds, arithmetic)


def _after(name: str, seconds: Decimal, margin: Decimal) -> HopTimeout:
    total = seconds + margin
    return HopTimeout(
        total,
        f"{name} {format_duration(seconds)} + margin {format_duration(margin)} = "
        f"{format_duration(total)}",
    )


def _at_most(idle: HopTimeout, total: HopTimeout) -> HopTimeout:
    if idle.seconds < total.seconds:
        return idle
    return HopTimeout(total.seconds, f"{idle.arithmetic}, at most the timeout of the request")


def _whole(seconds: Decimal) -> Decimal:
    return seconds.to_integral_value(ROUND_CEILING)
