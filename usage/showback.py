"""The showback report: usage and cost of each tenant on each model, with what remains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from usage.allocation import ConsumerShare, CostAllocation, ServerUsage, allocate
from usage.prometheus_usage import ServerPeriod, UsagePeriod
from usage.token_usage import DEFAULT_WEIGHTS, NO_TENANT, TokenWeights

OTHER = "other"
NAMELESS = "the model without a name"
_DIRECTIONS = ("input", "cached_input", "output", "wasted")
_KV = "kv_token_seconds"
_HOUR = 60.0
_MILLION = 1_000_000
_FULL = 0.9995
"""A coverage above this is printed as 100.0%."""


@dataclass(frozen=True, slots=True)
class ShowbackRules:
    """How GPU-hours become costs.

    ``gpus_per_server`` is None where DCGM counts the GPUs; ``price`` is that of a GPU-hour.
    """

    price: float
    gpus_per_server: float | None = 1.0
    weights: TokenWeights = DEFAULT_WEIGHTS
    spread_idle: bool = False

    @property
    def sentence(self) -> str:
        """The rule of the allocation."""
        weights = self.weights
        idle = (
            "Idle GPU-hours are spread by the allocated ones."
            if self.spread_idle
            else "Idle GPU-hours are not allocated."
        )
        return (
            "A server's GPU-hours with at least one request are divided by weighted tokens: input "
            f"{weights.input:g}, cached input {weights.cached_input:g}, output and wasted "
            f"{weights.output:g}. {idle}"
        )


@dataclass(frozen=True, slots=True)
class Showback:
    """Usage and cost over a period."""

    period: UsagePeriod
    rules: ShowbackRules
    allocation: CostAllocation
    gpus_per_server: float
    version: str

    @property
    def time_coverage(self) -> float:
        """The share of the period in which Prometheus has data."""
        return min(1.0, self.period.measured / self.period.minutes)

    @property
    def scrape_coverage(self) -> float:
        """The share of the servers' time in which their scrapes succeeded."""
        return self.period.present / (self.period.present + self.period.unscraped)

    @property
    def coverage(self) -> float:
        """The share of time and servers that the report covers."""
        return self.time_coverage * self.scrape_coverage

    def cost(self, hours: float) -> float:
        """Return the cost of GPU-hours."""
        return hours * self.rules.price

    def share(self, hours: float) -> float:
        """Return GPU-hours as a share of all."""
        return hours / self.allocation.gpu_hours

    def per_million(self, share: ConsumerShare) -> float | None:
        """Return the cost of a million input and output tokens, None without tokens."""
        tokens = share.usage.tokens
        return self.cost(share.charged_hours) / tokens * _MILLION if tokens else None

    def kv_token_seconds(self, share: ConsumerShare) -> float | None:
        """Return the KV-cache token-seconds of a consumer, None if its model has none."""
        measured = self.period.has_kv_token_seconds(share.consumer.model)
        return share.usage.kv_token_seconds if measured else None

    def qualities(self, model: str) -> Mapping[str, str]:
        """Return the quality of a model's usage: exact, estimate or unknown.

        The keys are the directions of tokens, and ``kv_token_seconds``.
        """
        signals = {**{each: f"{each}_tokens" for each in _DIRECTIONS}, _KV: _KV}
        return {each: self._quality(model, signal) for each, signal in signals.items()}

    def _quality(self, model: str, signal: str) -> str:
        keys = (signal, f"tenant_{signal}")
        found = {one for key in keys for one in self.period.qualities.get((model, key), ())}
        return next((one for one in ("estimate", "exact") if one in found), "unknown")


def showback(period: UsagePeriod, rules: ShowbackRules, version: str) -> Showback:
    """Allocate the GPU-hours of a period by these rules."""
    gpus = rules.gpus_per_server
    if gpus is None:
        gpus = (period.gpu_minutes or 0.0) / period.present
    servers = [_server(name, one, gpus) for name, one in sorted(period.servers.items())]
    allocation = allocate(servers, rules.weights, spread_idle=rules.spread_idle)
    return Showback(period, rules, allocation, gpus, version)


def _server(name: str, server: ServerPeriod, gpus: float) -> ServerUsage:
    observed = min(server.observed, server.present)
    busy = min(server.busy, observed)
    hours = gpus / _HOUR
    return ServerUsage(
        name, server.present * hours, busy * hours, (observed - busy) * hours, server.served()
    )


def unavailable(report: Showback) -> Iterator[tuple[str, str]]:
    """Yield measures of usage that are unavailable, with the reason."""
    missing = [one for one in _models(report) if not report.period.has_kv_token_seconds(one)]
    if missing:
        names = ", ".join(one or NAMELESS for one in missing)
        yield _KV, f"no tap observed streams of {names} with their number of input tokens"


def notes(report: Showback) -> Iterator[str]:
    """Yield what limits the report."""
    period = report.period
    if report.time_coverage < _FULL:
        missing = (period.minutes - period.measured) / _HOUR
        yield (
            f"Prometheus has no data for {missing:,.1f} of {period.minutes / _HOUR:,.0f} hours: it "
            "was down, or its retention is shorter. Usage and GPU-hours of this time are missing."
        )
    if period.unscraped:
        yield (
            f"Scrapes failed for {period.unscraped / _HOUR:,.1f} server-hours, whose GPU-hours are "
            "missing."
        )
    unobserved = sum(max(0.0, one.present - one.observed) for one in period.servers.values())
    if unobserved:
        yield (
            f"The activity of servers is unknown for {unobserved / _HOUR:,.1f} server-hours, "
            "which are in the residual. Fix: a tap, or an engine that reports active sequences."
        )
    if any(one.busy and not _worked(one) for one in period.servers.values()):
        yield "Some servers were busy and counted no tokens: these GPU-hours are in the residual."
    tenants = {share.consumer.tenant for share in report.allocation.shares}
    if not tenants - {NO_TENANT}:
        yield "No sidecar counts by tenant. Fix: a tap with --tap-tenant-header."
    elif NO_TENANT in tenants:
        yield "Requests without a tenant have a row of their own: no header, or not seen by a tap."
    if OTHER in tenants:
        yield "The tenant other holds all tenants beyond the cardinality limit."
    for model in _models(report):
        rough = [
            direction
            for direction, quality in report.qualities(model).items()
            if quality != "exact" and direction not in ("wasted", _KV)
        ]
        if rough:
            yield f"Tokens of {model or NAMELESS} are not exact: " + (
                ", ".join(f"{one} ({report.qualities(model)[one]})" for one in rough) + "."
            )
    yield "Wasted tokens are a lower bound."
    if any(map(period.has_kv_token_seconds, _models(report))):
        yield (
            "KV-cache token-seconds are an estimate, of streams at taps from their first token to "
            "their end. Divide by llm_kv_cache_block_tokens for block-seconds."
        )


def _models(report: Showback) -> Iterable[str]:
    return dict.fromkeys(share.consumer.model for share in report.allocation.shares)


def _worked(server: ServerPeriod) -> bool:
    return any(used.tokens + used.wasted for used in server.served().values())


def as_object(report: Showback) -> dict[str, object]:
    """Return the report as plain values for JSON."""
    allocation, rules, period = report.allocation, report.rules, report.period
    return {
        "tokenslo": report.version,
        "start": iso_time(period.start),
        "end": iso_time(period.end),
        "coverage": {
            "share": report.coverage,
            "time": report.time_coverage,
            "scrapes": report.scrape_coverage,
        },
        "rules": {
            "allocation": rules.sentence,
            "weights": asdict(rules.weights),
            "idle": "spread" if rules.spread_idle else "separate",
            "gpu_hour_price": rules.price,
            "gpus_per_server": report.gpus_per_server,
            "gpus_from": "option" if rules.gpus_per_server is not None else "dcgm",
        },
        "total": _part(report, allocation.gpu_hours),
        "tenants": [_consumer(report, share) for share in allocation.shares],
        "idle": _part(report, allocation.idle_hours),
        "wasted": _part(report, allocation.wasted_hours),
        "residual": _part(report, allocation.residual_hours),
        "unavailable": [{"name": name, "reason": why} for name, why in unavailable(report)],
        "notes": list(notes(report)),
    }


def _consumer(report: Showback, share: ConsumerShare) -> dict[str, object]:
    used = share.usage
    return {
        "model": share.consumer.model,
        "tenant": share.consumer.tenant or None,
        "requests": used.requests,
        "tokens": {each: getattr(used, each) for each in _DIRECTIONS},
        _KV: report.kv_token_seconds(share),
        "quality": report.qualities(share.consumer.model),
        "weighted_tokens": share.weighted_tokens,
        **_part(report, share.charged_hours),
        "wasted_gpu_hours": share.wasted_hours,
        "wasted_cost": report.cost(share.wasted_hours),
        "idle_gpu_hours": share.idle_hours,
        "idle_cost": report.cost(share.idle_hours),
        "cost_per_million_tokens": report.per_million(share),
    }


def _part(report: Showback, hours: float) -> dict[str, float]:
    return {"gpu_hours": hours, "share": report.share(hours), "cost": report.cost(hours)}


def iso_time(seconds: float) -> str:
    """Return a time in seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
