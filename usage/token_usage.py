"""Tokens of a tenant on a model, and their weights in the allocation of GPU-hours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

NO_TENANT = ""
"""The tenant of requests that are counted for no tenant."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A tenant on a model: what GPU-hours are allocated to."""

    model: str
    tenant: str


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """Weights of one token: ``input`` without ``cached_input``, and ``output`` with wasted ones."""

    input: float = 1.0
    cached_input: float = 0.1
    output: float = 4.0


DEFAULT_WEIGHTS = TokenWeights()


@dataclass(frozen=True, slots=True)
class TenantTokens:
    """Requests, tokens and an estimate of the KV cache that they held.

    ``cached_input`` is part of ``input``, ``wasted`` not of ``output``.
    """

    requests: float = 0.0
    input: float = 0.0
    cached_input: float = 0.0
    output: float = 0.0
    wasted: float = 0.0
    kv_token_seconds: float = 0.0

    @property
    def tokens(self) -> float:
        """Input and output tokens that reached the client or came from it."""
        return self.input + self.output

    def weighted(self, weights: TokenWeights) -> float:
        """Return the weighted tokens, wasted ones included."""
        cached = min(self.cached_input, self.input)
        return (
            weights.input * (self.input - cached)
            + weights.cached_input * cached
            + weights.output * self.output
            + self.weighted_waste(weights)
        )

    def weighted_waste(self, weights: TokenWeights) -> float:
        """Return the weighted tokens that were sent after a client disconnect."""
        return weights.output * self.wasted

    def beyond(self, part: TenantTokens) -> TenantTokens:
        """Return what this has in addition to ``part``, nothing where it has less."""
        return TenantTokens(
            *(max(0.0, getattr(self, one.name) - getattr(part, one.name)) for one in fields(part))
        )


def total_usage(each: Iterable[TenantTokens]) -> TenantTokens:
    """Return the sum."""
    rows = list(each)
    return TenantTokens(
        *(sum(getattr(row, field.name) for row in rows) for field in fields(TenantTokens))
    )
