"""The gauges by which the Gateway API inference extension picks a server, under names it knows.

Its model-server protocol (docs/proposals/003-model-server-protocol) has six: queued and running
requests, KV-cache utilization, and optionally the size and number of KV-cache blocks, and the LoRA
adapters with requests.  Names are free, so each is a setting; the sets known by name are those that
its endpoint picker is configured with for these servers.  Only vLLM's set names a gauge of LoRA
adapters.  An unavailable value has no series: a 0 would draw all traffic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from exporter.families import Family
from exporter.readings import UNLABELLED, Distribution, Labels
from exporter.view import SignalState, View
from slos.errors import BadValue, quoted

ROLES = {
    "queued": "Requests that wait to be scheduled.",
    "running": "Requests that are scheduled.",
    "kv_utilization": "Blocks held by live sequences / all blocks of the KV cache.",
    "block_size": "Tokens that a KV-cache block holds.",
    "blocks": "KV-cache blocks.",
    "lora": "Unix time of the last update of the LoRA adapters with running and waiting requests.",
}
Sample = tuple[Labels, float]
_VALUE = "*"
"""Stands in a name for the value itself: vLLM tells some numbers in labels of a gauge of 1."""

NAMES: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "queued": "vllm:num_requests_waiting",
        "running": "vllm:num_requests_running",
        "kv_utilization": "vllm:kv_cache_usage_perc",
        "block_size": "vllm:cache_config_info{block_size=*}",
        "blocks": "vllm:cache_config_info{num_gpu_blocks=*}",
        "lora": "vllm:lora_requests_info",
    },
    "trtllm": {
        "queued": "trtllm_num_requests_waiting",
        "running": "trtllm_num_requests_running",
        "kv_utilization": "trtllm_kv_cache_utilization",
        "block_size": "trtllm_kv_cache_tokens_per_block",
        "blocks": "trtllm_kv_cache_max_blocks",
    },
    "sglang": {
        "queued": "sglang:num_queue_reqs",
        "running": "sglang:num_running_reqs",
        "kv_utilization": "sglang:token_usage",
        "block_size": "sglang:cache_config_info{page_size=*}",
        "blocks": "sglang:cache_config_info{num_pages=*}",
    },
    "triton": {
        "queued": "nv_trt_llm_request_metrics{request_type=waiting}",
        "running": "nv_trt_llm_request_metrics{request_type=scheduled}",
        "kv_utilization": "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        "block_size": "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
        "blocks": "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
    },
}
"""Names by set and role."""

_LABEL = r"[a-zA-Z_]\w*=[\w.*-]+"
_NAME = re.compile(rf"([a-zA-Z_:][\w:]*)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class GatewayMetric:
    """Where one number goes; a label whose text is ``*`` takes the number, and the sample is 1."""

    role: str
    metric: str
    labels: tuple[tuple[str, str], ...]


def parse(text: str) -> tuple[GatewayMetric, ...]:
    """Read a setting: a set's name, or ROLE=METRIC as in ``queued=queue{kind=all}``.

    Raises BadValue.
    """
    if text in NAMES:
        return tuple(_metric(role, name) for role, name in NAMES[text].items())
    role, _, name = text.partition("=")
    if role not in ROLES or not _NAME.fullmatch(name):
        raise BadValue(
            f"{quoted(text)} is neither a set of names nor ROLE=METRIC",
            f"write {', '.join(NAMES)}, or one of {', '.join(ROLES)} and a name, such as "
            f"queued={NAMES['vllm']['queued']}",
        )
    return (_metric(role, name),)


def _metric(role: str, name: str) -> GatewayMetric:
    match = _NAME.fullmatch(name)
    assert match, name  # noqa: S101
    labels = [label.split("=") for label in match[2].split(",")] if match[2] else []
    return GatewayMetric(role, match[1], tuple((key, text) for key, text in labels))


def families(view: View, wanted: Iterable[GatewayMetric]) -> tuple[Family, ...]:
    """Return the metrics with what is known of every model; a role given again takes its place."""
    by_role = {one.role: one for one in wanted}
    by_metric: dict[str, list[GatewayMetric]] = {}
    for one in by_role.values():
        by_metric.setdefault(one.metric, []).append(one)
    known = _known(view)
    return tuple(
        Family(
            metric,
            "gauge",
            " ".join(dict.fromkeys(ROLES[one.role] for one in places)),
            tuple(series for model, values in known for series in _series(model, values, places)),
        )
        for metric, places in by_metric.items()
    )


def _series(
    model: tuple[str, str], values: Mapping[str, Sample], places: Iterable[GatewayMetric]
) -> list[tuple[dict[str, str], float]]:
    """Return a model's series of one metric; numbers that are labels share one series."""
    own = {"model_name": model[0], "version": model[1]}
    found: list[tuple[dict[str, str], float]] = []
    told: dict[str, str] = {}
    for one in places:
        if one.role not in values:
            continue
        more, value = values[one.role]
        labels = {**dict(one.labels), **dict(more)}
        if _VALUE in labels.values():
            told |= {k: f"{value:.15g}" if text == _VALUE else text for k, text in labels.items()}
        else:
            found.append(({**own, **labels}, value))
    return [*found, *([({**own, **told}, 1.0)] if told else [])]


def _known(view: View) -> list[tuple[tuple[str, str], dict[str, Sample]]]:
    """Return by model what is known of each role."""
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
    ]


def _lora(states: Mapping[str, SignalState]) -> Sample | None:
    """Return the time of the last update with the labels of the protocol."""
    state = states.get("lora_adapters")
    for labels, value in state.samples.items() if state else ():
        if not isinstance(value, Distribution):
            return labels, value
    return None


def _gauge(states: Mapping[str, SignalState], signal: str) -> float | None:
    value = states[signal].samples.get(UNLABELLED) if signal in states else None
    return None if isinstance(value, Distribution) else value


def _running(states: Mapping[str, SignalState]) -> float | None:
    """Return the scheduled ones; what other servers call running is already that."""
    active = _gauge(states, "sequences_active")
    methods = tuple(states[signal].method for signal in _COUNTED if signal in states)
    if active is None or methods != _UNSCHEDULED_WAIT:
        return active
    waiting = _gauge(states, "sequences_waiting")
    return None if waiting is None else max(0.0, active - waiting)


_COUNTED = ("sequences_active", "sequences_waiting")
_UNSCHEDULED_WAIT = ("trtllm_iteration", "trtllm_waiting")
"""Methods by which those that wait are among the active ones."""


def _plain(
    value_of: Callable[[Mapping[str, SignalState]], float | None],
) -> Callable[[Mapping[str, SignalState]], Sample | None]:
    """Return a function that gives a value as a sample without labels."""

    def sample(states: Mapping[str, SignalState]) -> Sample | None:
        value = value_of(states)
        return None if value is None else (UNLABELLED, value)

    return sample


_SAMPLE_OF: Mapping[str, Callable[[Mapping[str, SignalState]], Sample | None]] = {
    "queued": _plain(lambda states: _gauge(states, "sequences_waiting")),
    "running": _plain(_running),
    "kv_utilization": _plain(lambda states: _gauge(states, "kv_utilization")),
    "block_size": _plain(lambda states: _gauge(states, "kv_block_tokens")),
    "blocks": _plain(lambda states: _gauge(states, "kv_blocks_max")),
    "lora": _lora,
}
