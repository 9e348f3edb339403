"""Gauges for the endpoint picker of the Gateway API inference extension.

An unavailable value has no series: a 0 would draw all traffic.  A model with a stale value has no
series at all: the picker keeps the last value of a missing metric, and an endpoint is fresh for it
as long as one metric is present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from exporter.families import MetricFamily
from exporter.gateway_names import ROLES, VALUE, GatewayMetric
from exporter.samples import UNLABELLED, Distribution, Labels
from exporter.store.view import SignalState, View, gauge

Sample = tuple[Labels, float]


def families(view: View, wanted: Iterable[GatewayMetric]) -> tuple[MetricFamily, ...]:
    """Return the configured metrics of every model; the last metric of a role wins."""
    by_role = {one.role: one for one in wanted}
    by_metric: dict[str, list[GatewayMetric]] = {}
    for one in by_role.values():
        by_metric.setdefault(one.metric, []).append(one)
    models = _samples_by_role(view) if by_metric else []
    return tuple(
        MetricFamily(
            metric,
            "gauge",
            " ".join(dict.fromkeys(ROLES[one.role] for one in places)),
            tuple(series for model, values in models for series in _series(model, values, places)),
        )
        for metric, places in by_metric.items()
    )


def _series(
    model: tuple[str, str], values: Mapping[str, Sample], places: Iterable[GatewayMetric]
) -> list[tuple[dict[str, str], float]]:
    """Return a model's series of one metric; values exported as labels share one series."""
    own = {"model_name": model[0], "version": model[1]}
    found: list[tuple[dict[str, str], float]] = []
    shared: dict[str, str] = {}
    for one in places:
        if one.role not in values:
            continue
        more, value = values[one.role]
        labels = {**dict(one.labels), **dict(more)}
        if VALUE in labels.values():
            shared |= {k: f"{value:.15g}" if text == VALUE else text for k, text in labels.items()}
        else:
            found.append(({**own, **labels}, value))
    return [*found, *([({**own, **shared}, 1.0)] if shared else [])]


def _samples_by_role(view: View) -> list[tuple[tuple[str, str], dict[str, Sample]]]:
    """Return the available samples by model and role."""
    return [
        (
            model,
            {
                role: sample
                for role, sample_of in _SAMPLE_OF.items()
                if (sample := sample_of(states)) is not None
            },
        )
        for model, states in view.by_model().items()
        if not any(signal in states and states[signal].stale for signal in SIGNALS_READ)
    ]


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

SIGNALS_READ = (
    *_SEQUENCE_GAUGES,
    "kv_utilization",
    "kv_block_tokens",
    "kv_blocks_max",
    "lora_adapters",
)
"""Every signal that a gauge is made of."""
