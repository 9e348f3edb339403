"""Compute KV-cache gauges from the blocks that TensorRT-LLM reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KV_GAUGES = ("kv_utilization", "kv_blocks_used", "kv_blocks_free", "kv_blocks_max")

# Used and free blocks are read one after the other and may be of neighbouring iterations.
TOLERANCE = 0.05


def contradict(used: float, free: float | None, most: float) -> bool:
    """Return whether block counts contradict each other: used > max, or used + free is not max."""
    slack = max(1.0, TOLERANCE * most)
    return used > most or (free is not None and abs(used + free - most) > slack)


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """The gauges by signal, None for parts that are not reported, and their method."""

    gauges: Mapping[str, float | None]
    method: str
    note: str = ""


def blocks(
    used: float, free: float | None, most: float, *, pool: float | None, method: str
) -> KvBlocks:
    """Return the gauges of a cache of ``most`` > 0 blocks.

    ``pool`` is the size of the host's pool: engines that offload to it count its blocks as used.
    """
    note = ""
    if pool and pool < most and used >= pool:
        method, note = "trtllm_without_host_pool", f"{pool:g} blocks are subtracted"
        used, most = used - pool, most - pool
    values = (used / most, used, free, most)
    return KvBlocks(dict(zip(KV_GAUGES, values, strict=True)), method, note)
