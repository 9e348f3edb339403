"""Iteration statistics of the C++ executor, under its own field names (types.h)."""

# ruff: noqa: N815 - the executor's own field names
from __future__ import annotations

from dataclasses import dataclass

# What the allocators of a 70B-class engine report, in bytes; the simulation moves none of them.
_GPU_MEMORY = 36_100_332_423
_CPU_MEMORY = 68_172
_PINNED_MEMORY = 2_952_841_216


@dataclass(frozen=True, slots=True)
class KvCacheStats:
    """Blocks of the KV cache; the last five fields are cumulative since the engine started."""

    maxNumBlocks: int
    freeNumBlocks: int
    usedNumBlocks: int
    tokensPerBlock: int
    allocTotalBlocks: int
    allocNewBlocks: int
    reusedBlocks: int
    missedBlocks: int
    cacheHitRate: float


@dataclass(frozen=True, slots=True)
class InflightBatchingStats:
    """The batch that was launched.

    ``numPausedRequests`` were paused by this iteration; those paused earlier are not counted
    (trtGptModelInflightBatching.cpp, fillIterationStats).  The last three fields count the tokens
    that were already in the KV cache, of prompts, decoding sequences and paused sequences; only
    PyTorch's executor reports them.
    """

    numScheduledRequests: int
    numContextRequests: int
    numGenRequests: int
    numPausedRequests: int
    numCtxTokens: int
    microBatchId: int
    avgNumDecodedTokensPerIter: float
    numCtxKvTokens: int = 0
    numGenKvTokens: int = 0
    numPausedKvTokens: int = 0


@dataclass(frozen=True, slots=True)
class SpecDecodingStats:
    """Drafts of the batch that was launched; the simulation draws acceptance at launch."""

    numDraftTokens: int
    numAcceptedTokens: int
    numRequestsWithDraftTokens: int


@dataclass(frozen=True, slots=True)
class IterationStats:
    """One record of the C++ executor's iteration statistics, under its names.

    A record is taken right after the launch of batch ``iter``; ``timestamp`` is that moment on the
    caller's clock in seconds (the executor writes local time).  ``iterLatencyMS`` is therefore the
    latency of the *previous* batch, and 0 without one: in the first record, in the extra record of
    an engine that becomes idle, and in the next one.  The last batch before the engine becomes idle
    is never reported.  ``numActiveRequests`` are admitted, scheduled or not; ``numQueuedRequests``
    wait for admission; ``numCompletedRequests`` ended since the previous record, cancelled and
    failed ones included.  ``seconds`` is the duration of the batch, None without one, and
    ``generationBlocks`` the number of KV blocks allocated for decoding.
    """

    timestamp: float
    iter: int
    iterLatencyMS: float
    newActiveRequestsQueueLatencyMS: float
    numNewActiveRequests: int
    numActiveRequests: int
    numQueuedRequests: int
    numCompletedRequests: int
    maxNumActiveRequests: int
    kvCacheStats: KvCacheStats
    inflightBatchingStats: InflightBatchingStats
    specDecodingStats: SpecDecodingStats | None = None
    seconds: float | None = None
    generationBlocks: int = 0
    gpuMemUsage: int = _GPU_MEMORY
    cpuMemUsage: int = _CPU_MEMORY
    pinnedMemUsage: int = _PINNED_MEMORY
