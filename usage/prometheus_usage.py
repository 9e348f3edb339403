"""Read the usage of a period from Prometheus, in steps.

Each step is read on its own: ``increase`` handles resets of counters, and no step is estimated from
another.  A step without data is missing in the result.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from promql.client import QueryTooLargeError, Sample
from promql.expr import Matcher
from slos.signals import TENANT
from usage import usage_queries as queries
from usage.token_usage import NO_TENANT, Consumer, TenantTokens, total_usage
from usage.usage_queries import MINUTE, usage_queries

Query = Callable[[str, float], Sequence[Sample]]
"""Evaluates an expression at a time in seconds since the epoch."""
STEP = 86_400
_SHORTEST_STEP = 3_600
_ROUNDING = 0.5
_FIELDS = ("input", "cached_input", "output", "requests", "wasted", queries.KV)


class NoUsageError(Exception):
    """Prometheus has nothing to report on; the text has the reason and the fix."""


@dataclass(slots=True)
class ServerPeriod:
    """Minutes of one server, and the counters that it reported.

    * ``present``: its sidecar was scraped; ``observed`` of these with its activity, ``busy`` of
      these with a request.
    * ``unscraped``: a scrape failed.
    """

    present: float = 0.0
    observed: float = 0.0
    busy: float = 0.0
    unscraped: float = 0.0
    tenants: dict[Consumer, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    models: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def served(self) -> Mapping[Consumer, TenantTokens]:
        """Return the usage by tenant, and that of no tenant: the remainder of each model.

        A remainder below half a token or request is rounding of ``increase``, and left out.
        """
        found = {consumer: TenantTokens(**amounts) for consumer, amounts in self.tenants.items()}
        for model, amounts in self.models.items():
            known = total_usage(one for key, one in found.items() if key.model == model)
            rest = TenantTokens(**amounts).beyond(known)
            if rest.requests + rest.tokens + rest.wasted >= _ROUNDING:
                found[Consumer(model, NO_TENANT)] = rest
        return found


@dataclass(slots=True)
class UsagePeriod:
    """The usage of a period from ``start`` to ``end``, in seconds since the epoch.

    * ``measured``: minutes in which Prometheus has any data.
    * ``gpu_minutes``: those that DCGM reports; None if it is not queried.
    * ``qualities``: the qualities of each signal, by model and signal.
    """

    start: float
    end: float
    measured: float = 0.0
    gpu_minutes: float | None = None
    servers: dict[str, ServerPeriod] = field(default_factory=dict)
    qualities: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    @property
    def minutes(self) -> float:
        """The length of the period."""
        return (self.end - self.start) / MINUTE

    @property
    def present(self) -> float:
        """Minutes of all servers."""
        return sum(server.present for server in self.servers.values())

    @property
    def unscraped(self) -> float:
        """Minutes in which scrapes of these servers failed."""
        return sum(server.unscraped for server in self.servers.values())

    def has_kv_token_seconds(self, model: str) -> bool:
        """Return whether a server reported the KV-cache token-seconds of a model."""
        return any(queries.KV in one.models.get(model, ()) for one in self.servers.values())


def read_usage(
    query: Query,
    days: int,
    now: float,
    *,
    server_label: str = "instance",
    selector: Sequence[Matcher] = (),
    dcgm: Sequence[Matcher] | None = None,
    progress: Callable[[], object] = lambda: None,
) -> UsagePeriod:
    """Read the last ``days`` before ``now``; ``progress`` is called after each step.

    ``server_label`` distinguishes servers.  Raises PrometheusError, and NoUsageError without any
    sidecar in the period.
    """
    end = now // MINUTE * MINUTE
    period = UsagePeriod(end - days * STEP, end, gpu_minutes=None if dcgm is None else 0.0)

    def read(at: float, seconds: int) -> None:
        wanted = usage_queries(seconds, server_label=server_label, selector=selector, dcgm=dcgm)
        try:
            results = {key: query(expr, at) for key, expr in wanted.items()}
        except QueryTooLargeError:
            if seconds <= _SHORTEST_STEP:
                raise
            half = seconds // 2 // MINUTE * MINUTE
            read(at - half, seconds - half)
            read(at, half)
            return
        _add_step(period, results, seconds / MINUTE, server_label)

    for day in range(days):
        read(end - (days - 1 - day) * STEP, STEP)
        progress()
    for server in [name for name, one in period.servers.items() if not one.present]:
        del period.servers[server]
    if not period.servers:
        raise NoUsageError(
            f"Prometheus has no sidecar in these {days} days (tokenslo_build_info with the label "
            f"{server_label}). Fix: scrape the sidecars, or check --selector and --server-label"
        )
    if dcgm is not None and not period.gpu_minutes:
        raise NoUsageError(
            f"Prometheus has no {queries.DCGM_GPU} with these labels. Fix: check --dcgm-selector, "
            "or give --gpus-per-server"
        )
    return period


def _add_step(
    period: UsagePeriod,
    results: Mapping[str, Sequence[Sample]],
    minutes: float,
    server_label: str,
) -> None:
    period.measured += min(minutes, sum(value for _, value in _values(results[queries.MEASURED])))
    if queries.GPUS in results and period.gpu_minutes is not None:
        period.gpu_minutes += sum(value for _, value in _values(results[queries.GPUS]))
    for key in (queries.PRESENT, queries.OBSERVED, queries.BUSY, queries.UNSCRAPED):
        for labels, value in _values(results[key]):
            server = _server(period, labels, server_label)
            setattr(server, key, getattr(server, key) + min(minutes, value))
    for key, name in (
        (queries.REQUESTS, "requests"),
        (queries.TOKENS, ""),
        (queries.WASTED, "wasted"),
        (queries.KV, queries.KV),
    ):
        for labels, value in _values(results[key]):
            server = _server(period, labels, server_label)
            _add(server.models[labels.get("model", "")], name, labels, value)
        for labels, value in _values(results[f"{TENANT}_{key}"]):
            server = _server(period, labels, server_label)
            consumer = Consumer(labels.get("model", ""), labels.get(TENANT, NO_TENANT))
            _add(server.tenants[consumer], name, labels, value)
    for labels, _ in _values(results[queries.QUALITY]):
        signal = labels.get("model", ""), labels.get("signal", "")
        period.qualities.setdefault(signal, set()).add(labels.get("quality", ""))


def _add(counts: Counter[str], name: str, labels: Mapping[str, str], value: float) -> None:
    field_name = name or labels.get("direction", "")
    if field_name in _FIELDS:
        counts[field_name] += value  # type: ignore[assignment]  # a Counter adds floats too


def _server(period: UsagePeriod, labels: Mapping[str, str], server_label: str) -> ServerPeriod:
    return period.servers.setdefault(labels.get(server_label, ""), ServerPeriod())


def _values(samples: Sequence[Sample]) -> Iterator[tuple[Mapping[str, str], float]]:
    """Yield labels and values; a value that is not a finite positive number counts nothing."""
    for sample in samples:
        if isfinite(sample.value) and sample.value >= 0:
            yield sample.labels, sample.value
