"""Metric names of the gauges that the Gateway API inference extension scrapes.

Its model-server protocol (docs/proposals/003-model-server-protocol) has six: queued and running
requests, KV-cache utilization, and optionally the size and number of KV-cache blocks, and the LoRA
adapters with requests.  Each name is configurable.  The named sets are the defaults of its endpoint
picker for these servers.  Only vLLM's set names a gauge of LoRA adapters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slos.errors import BadValue, quoted

ROLES = {
    "queued": "Requests that wait to be scheduled.",
    "running": "Requests that are scheduled.",
    "kv_utilization": "Blocks held by live sequences / all blocks of the KV cache.",
    "block_size": "Tokens that a KV-cache block holds.",
    "blocks": "KV-cache blocks.",
    "lora": "Unix time of the last update of the LoRA adapters with running and waiting requests.",
}
VALUE = "*"
"""Placeholder for the value in a label: vLLM exports some numbers as labels of a gauge of 1."""

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
    """Metric name and labels of a gauge; a label ``*`` gets the value, and the sample is 1."""

    role: str
    metric: str
    labels: tuple[tuple[str, str], ...]


def parse(text: str) -> tuple[GatewayMetric, ...]:
    """Parse the name of a set or ROLE=METRIC, as in ``queued=queue{kind=all}``; raises BadValue."""
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
