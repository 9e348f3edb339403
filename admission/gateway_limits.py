"""Limits of gateways: requests in flight, rates of requests and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from admission.capacity import MeasuredCapacity
from admission.limit import (
    MAX_COUNT,
    MAX_RATE,
    AdmissionLimit,
    AdmissionSettings,
    Computed,
    GatewayRate,
)
from promql.expr import decimal_text

_CAPACITY = "the capacity"
_COARSE = 10
"""Requests per second below which a whole number per second is too coarse."""


@dataclass(frozen=True, slots=True)
class GatewayRequests:
    """Requests of one gateway: in flight, and those that wait for a connection."""

    in_flight: int
    pending: int


def gateway_requests(
    running: int, queued: int, settings: AdmissionSettings
) -> Computed[GatewayRequests]:
    """Return how many requests one gateway may have: Envoy counts in each process."""
    in_flight, pending = (
        min(max(number * settings.replicas // settings.gateways, 1), MAX_COUNT)
        for number in (running + queued, queued)
    )
    both = f"({running} running + {queued} queued){_shared(settings)}"
    waiting = f"{queued} queued{_shared(settings)}"
    why = "running sequences, queues"
    return Computed(
        GatewayRequests(in_flight, pending),
        (
            AdmissionLimit("gateway: requests in flight", str(in_flight), both, why),
            AdmissionLimit("gateway: pending requests", str(pending), waiting, why),
        ),
    )


def request_rate(capacity: MeasuredCapacity, settings: AdmissionSettings) -> Computed[GatewayRate]:
    """Return the rate of one gateway that leaves room for its retries within the capacity."""
    share = settings.retries
    percent = f"{decimal_text(share * 100)}%"
    per_second = capacity.rate * settings.replicas / (1 + share) / settings.gateways
    unit, seconds = ("Second", 1) if per_second >= _COARSE else ("Minute", 60)
    found = _limit(per_second * seconds, unit)
    arithmetic = (
        f"{decimal_text(capacity.rate)}/s{_shared(settings)} / (1 + {percent})"
        f"{_times(seconds)}, rounded down"
    )
    retried = "of the requests in flight, for requests that did not reach a server"
    return Computed(
        found,
        (
            AdmissionLimit("gateway: request rate", str(found), arithmetic, _CAPACITY),
            AdmissionLimit("gateway: retry budget", percent, retried, _CAPACITY),
        ),
    )


def token_rate(
    capacity: MeasuredCapacity, settings: AdmissionSettings
) -> Computed[GatewayRate | None]:
    """Return the rate of tokens of all gateways together, None without token counts."""
    if capacity.input_tokens is None or capacity.output_tokens is None:
        note = "The token rate is unknown: the capacity has no tokens of a request."
        return Computed(None, (), (note,))
    per_second = (
        (capacity.input_tokens + capacity.output_tokens) * capacity.rate * settings.replicas
    )
    unit, seconds = ("Minute", 60) if per_second * 60 <= MAX_RATE else ("Second", 1)
    found = _limit(per_second * seconds, unit)
    arithmetic = (
        f"({decimal_text(capacity.input_tokens)} input + {decimal_text(capacity.output_tokens)} "
        f"output) x "
        f"{decimal_text(capacity.rate)}/s{_replicas(settings)}{_times(seconds)}, rounded down"
    )
    row = AdmissionLimit("gateway: token rate", str(found), arithmetic, _CAPACITY)
    return Computed(found, (row,))


def _limit(number: Decimal, unit: str) -> GatewayRate:
    return GatewayRate(min(max(int(number), 1), MAX_RATE), unit)


def _shared(settings: AdmissionSettings) -> str:
    gateways = f" / {settings.gateways} gateways" if settings.gateways > 1 else ""
    return _replicas(settings) + gateways


def _replicas(settings: AdmissionSettings) -> str:
    return f" x {settings.replicas} replicas" if settings.replicas > 1 else ""


def _times(seconds: int) -> str:
    return f" x {seconds} s" if seconds > 1 else ""
