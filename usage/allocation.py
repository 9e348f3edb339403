"""Allocate GPU-hours to tenants: arithmetic without queries.

The busy GPU-hours of a server are divided by the weighted tokens that it served.  Its other
GPU-hours are idle.  What can be neither is the residual: the server's activity is not measured, or
it was busy and no token was counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum

from usage.token_usage import Consumer, TenantTokens, TokenWeights, total_usage


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """GPU-hours of one server, and what it served.

    ``busy_hours`` are the GPU-hours with at least one request, ``idle_hours`` those without; both
    together are at most ``gpu_hours``.  The remainder is not measured.
    """

    server: str
    gpu_hours: float
    busy_hours: float
    idle_hours: float
    served: Mapping[Consumer, TenantTokens]


@dataclass(frozen=True, slots=True)
class ConsumerShare:
    """GPU-hours of one tenant on one model.

    ``wasted_hours`` is the part of ``gpu_hours`` for tokens after a client disconnect;
    ``idle_hours`` are spread idle GPU-hours, in addition.
    """

    consumer: Consumer
    usage: TenantTokens
    weighted_tokens: float
    gpu_hours: float
    wasted_hours: float
    idle_hours: float = 0.0

    @property
    def charged_hours(self) -> float:
        """The GPU-hours that the consumer pays for."""
        return self.gpu_hours + self.idle_hours


@dataclass(frozen=True, slots=True)
class CostAllocation:
    """All GPU-hours: those of consumers, idle ones without a consumer, and the residual."""

    gpu_hours: float
    shares: tuple[ConsumerShare, ...]
    idle_hours: float
    residual_hours: float

    @property
    def wasted_hours(self) -> float:
        """The allocated GPU-hours for tokens after a client disconnect."""
        return fsum(share.wasted_hours for share in self.shares)


def allocate(
    servers: Iterable[ServerUsage], weights: TokenWeights, *, spread_idle: bool = False
) -> CostAllocation:
    """Allocate the GPU-hours of servers to consumers.

    ``spread_idle`` divides idle GPU-hours among consumers by their allocated ones.
    """
    every = list(servers)
    hours: dict[Consumer, list[float]] = defaultdict(list)
    wasted: dict[Consumer, list[float]] = defaultdict(list)
    served: dict[Consumer, list[TenantTokens]] = defaultdict(list)
    residual = []
    for server in every:
        work = {consumer: used.weighted(weights) for consumer, used in server.served.items()}
        whole = fsum(work.values())
        unmeasured = max(0.0, server.gpu_hours - server.busy_hours - server.idle_hours)
        residual.append(unmeasured if whole > 0 else unmeasured + server.busy_hours)
        for consumer, used in server.served.items():
            served[consumer].append(used)
            if whole > 0:
                hours[consumer].append(server.busy_hours * (work[consumer] / whole))
                waste = used.weighted_waste(weights) / whole
                wasted[consumer].append(server.busy_hours * waste)
    gpu_hours = fsum(server.gpu_hours for server in every)
    idle = fsum(server.idle_hours for server in every)
    own = {consumer: fsum(hours[consumer]) for consumer in served}
    allocated = fsum(own.values())
    spread = idle if spread_idle and allocated > 0 else 0.0
    shares = tuple(
        ConsumerShare(
            consumer,
            total := total_usage(served[consumer]),
            total.weighted(weights),
            own[consumer],
            fsum(wasted[consumer]),
            spread * (own[consumer] / allocated) if spread else 0.0,
        )
        for consumer in sorted(served, key=lambda one: (one.model, one.tenant))
    )
    return CostAllocation(gpu_hours, shares, 0.0 if spread else idle, fsum(residual))
