"""The KV cache's blocks as TensorRT-LLM reports them, by whichever way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KV_GAUGES = ("kv_utilization", "kv_blocks_used", "kv_blocks_free", "kv_blocks_max")

# Used and free blocks are read one after the other and may be of neighbouring iterations.
TOLERANCE = 0.05


def contradict(used: float, free: float | None, most: float) -> bool:
    """Tell whether that cannot be: more than all is used, or used and free are not all."""
    slack = max(1.0, TOLERANCE * most)
    return used > most or (free is not None and abs(used + free - most) > slack)


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """The gauges by signal, None where a part is not reported; ``method`` is how they were had."""

    gauges: Mapping[str, float | None]
    method: str
    note: str = ""


def blocks(
    used: float, free: float | None, most: float, *, pool: float | None, method: str
) -> KvBlocks:
    """Return the gauges of a cache of ``most`` blocks, which is not 0.

    ``pool`` blocks, if any, are the host's: engines that may offload to it count them as used.
    """
    note = ""
    if pool and pool < most and used >= pool:
        method, note = "trtllm_without_host_pool", f"{pool:g} blocks are taken off"
        used, most = used - pool, most - pool
    values = (used / most, used, free, most)
    return KvBlocks(dict(zip(KV_GAUGES, values, strict=True)), method, note)
