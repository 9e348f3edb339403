"""Gauges for the endpoint picker of the Gateway API inference extension.

An unavailable value has no series: a 0 would draw all traffic.  A model with a stale value has no
series at all: the picker keeps the last value of a missing metric, and an endpoint is fresh for it
as long as one metric is present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from exporter.families import MetricFamily
from exporter.gateway_names import ROLES, VALUE, GatewayMetric
from exporter.samples import UNLABELLED, Distribution, Labels, Model
from exporter.store.view import SignalState, gauge

Sample = tuple[Labels, float]
GatewaySeries = tuple[dict[str, str], float]
Places = Mapping[str, Sequence[GatewayMetric]]
"""The roles of every metric name."""


def places(wanted: Iterable[GatewayMetric]) -> Places:
    """Return the configured metrics by name; the last metric of a role wins."""
    found: dict[str, list[GatewayMetric]] = {}
    for one in {one.role: one for one in wanted}.values():
        found.setdefault(one.metric, []).append(one)
    return found


def family(
    metric: str, of_metric: Iterable[GatewayMetric], series: tuple[GatewaySeries, ...]
) -> MetricFamily:
    """Return a metric with the series of all models."""
    text = " ".join(dict.fromkeys(ROLES[one.role] for one in of_metric))
    return MetricFamily(metric, "gauge", text, series)


def model_series(
    model: Model, states: Mapping[str, SignalState], by_metric: Places
) -> tuple[list[GatewaySeries], ...]:
    """Return the series of one model by metric; ``states`` are those of ``SIGNALS_READ``."""
    if any(state.stale for state in states.values()):
        return tuple([] for _ in by_metric)
    values = {
        role: sample
        for role, sample_of in _SAMPLE_OF.items()
        if (sample := sample_of(states)) is not None
    }
    own = {"model_name": model[0], "version": model[1]}
    return tuple(_series(own, values, of_metric) for of_metric in by_metric.values())


def _series(
    own: Mapping[str, str], values: Mapping[str, Sample], of_metric: Iterable[GatewayMetric]
) -> list[GatewaySeries]:
    """Return a model's series of one metric; values exported as labels share one series."""
    found: list[GatewaySeries] = []
    shared: dict[str, str] = {}
    for one in of_metric:
        if one.role not in values:
            continue
        more, value = values[one.role]
        labels = {**dict(one.labels), **dict(more)}
        if VALUE in labels.values():
            shared |= {k: f"{value:.15g}" if text == VALUE else text for k, text in labels.items()}
        else:
            found.append(({**own, **labels}, value))
    return [*found, *([({**own, **shared}, 1.0)] if shared else [])]


def _lora(states: Mapping[str, SignalState]) -> Sample | None:
    """Return the time of the last update with the labels of the protocol."""
    state = states.get("lora_adapters")
    for labels, value in state.samples.items() if state else ():
        if not isinstance(value, Distribution):
            return labels, value
    return None


def _running(states: Mapping[str, SignalState]) -> float | None:
    """Return the scheduled sequences; other servers already report those as running."""
    active = gauge(states, "sequences_active")
    methods = tuple(states[signal].method for signal in _SEQUENCE_GAUGES if signal in states)
    if active is None or methods != _UNSCHEDULED_WAIT:
        return active
    waiting = gauge(states, "sequences_waiting")
    return None if waiting is None else max(0.0, active - waiting)


_SEQUENCE_GAUGES = ("sequences_active", "sequences_waiting")
_UNSCHEDULED_WAIT = ("trtllm_iteration", "trtllm_waiting")
"""Methods that count waiting sequences as active."""


def _plain(
    value_of: Callable[[Mapping[str, SignalState]], float | None],
) -> Callable[[Mapping[str, SignalState]], Sample | None]:
    """Wrap a value function to return a sample without labels."""

    def sample(states: Mapping[str, SignalState]) -> Sample | None:
        value = value_of(states)
        return None if value is None else (UNLABELLED, value)

    return sample


_SAMPLE_OF: Mapping[str, Callable[[Mapping[str, SignalState]], Sample | None]] = {
    "queued": _plain(lambda states: gauge(states, "sequences_waiting")),
    "running": _plain(_running),
    "kv_utilization": _plain(lambda states: gauge(states, "kv_utilization")),
    "block_size": _plain(lambda states: gauge(states, "kv_block_tokens")),
    "blocks": _plain(lambda states: gauge(states, "kv_blocks_max")),
    "lora": _lora,
}

SIGNALS_READ = frozenset(
    {*_SEQUENCE_GAUGES, "kv_utilization", "kv_block_tokens", "kv_blocks_max", "lora_adapters"}
)
"""Every signal that a gauge is made of."""
