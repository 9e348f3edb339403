"""Limits with their arithmetic, and the settings that they depend on."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

MAX_RATE = (1 << 32) - 1
"""The largest number of a rate limit of Envoy Gateway."""
MAX_COUNT = (1 << 31) - 1
"""The largest length of a queue and number of requests that all servers and gateways accept."""


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What clients may request, and what is around the measured server.

    ``lower_priorities`` are the TTFT thresholds of the priorities below the first, in seconds.
    ``retries`` is the share of requests that a gateway may send again.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    lower_priorities: tuple[Decimal, ...] = ()
    replicas: int = 1
    gateways: int = 1
    retries: Decimal = Decimal("0.1")


@dataclass(frozen=True, slots=True)
class AdmissionLimit:
    """A row of the table of limits."""

    name: str
    value: str
    arithmetic: str
    follows_from: str


class Computed(NamedTuple, Generic[T]):
    """A value, the limits that show it, and sentences that a reader must consider with it."""

    value: T
    limits: tuple[AdmissionLimit, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayRate:
    """A number per ``unit``, as Envoy Gateway has them: ``Second`` or ``Minute``."""

    number: int
    unit: str

    def __str__(self) -> str:
        return f"{self.number} per {self.unit.lower()}"
