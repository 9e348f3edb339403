"""A simulated TensorRT-LLM executor: in-flight batching over a paged KV cache, without a GPU.

The engine does no I/O and reads no clock.  Its caller passes the time and receives the duration of
the batch, so the same engine runs in virtual time under test and in real time behind a server.  One
call of :meth:`SimulatedEngine.step` is one pass of the executor's loop (TensorRT-LLM,
executorImpl.cpp, executionLoop): collect the results of the batch in flight, drop cancelled
requests, admit, schedule, launch the next batch, record the iteration's statistics.
"""

# ruff: noqa: N815 - the statistics carry the executor's own field names
from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, get_args

from lab.kvcache import Allocation, BlockPool

Policy = Literal["guaranteed_no_evict", "max_utilization"]
FinishReason = Literal["length", "cancelled", "error"]

# What the allocators of a 70B-class engine report, in bytes; the simulation moves none of them.
_GPU_MEMORY = 36_100_332_423
_CPU_MEMORY = 68_172
_PINNED_MEMORY = 2_952_841_216


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Capacity, scheduling policy and speed of the engine; times are in seconds.

    An iteration takes ``step_seconds``, plus ``sequence_seconds`` for every sequence that decodes
    in it, plus ``context_token_seconds`` for every prompt token computed in it, times a log-normal
    factor of spread ``jitter``.  ``max_batch_size`` sequences and ``max_num_tokens`` tokens fit
    into one; ``chunked_context`` splits prompts that do not.  The policies are TensorRT-LLM's:
    ``guaranteed_no_evict`` starts a sequence only if its KV cache fits up to its last token,
    ``max_utilization`` starts it as soon as it fits now and pauses the newest when it gets tight.

    With ``draft_tokens`` the engine decodes speculatively: a decoding sequence gets one token an
    iteration and those of that many drafts that are accepted, each with the chance ``acceptance``
    if the one before it was.  With ``micro_batches`` the iterations take turns with that many
    batches, as the stages of a pipeline make them: a sequence advances once in a round, and
    ``max_batch_size`` and ``max_num_tokens`` are limits of each.
    """

    max_batch_size: int = 16
    max_num_active_requests: int = 32
    max_num_tokens: int = 2048
    chunked_context: bool = False
    kv_blocks: int = 160
    tokens_per_block: int = 32
    policy: Policy = "guaranteed_no_evict"
    honour_cancel: bool = True
    draft_tokens: int = 0
    acceptance: float = 0.7
    micro_batches: int = 1
    step_seconds: float = 0.020
    sequence_seconds: float = 0.001
    context_token_seconds: float = 0.0003
    jitter: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ValueError(f"policy {self.policy!r} is none of {', '.join(get_args(Policy))}")
        if min(self.max_batch_size, self.tokens_per_block, self.kv_blocks) < 1:
            raise ValueError("max_batch_size, tokens_per_block and kv_blocks must be at least 1")
        if self.max_num_active_requests < self.max_batch_size:
            raise ValueError("max_num_active_requests must be at least max_batch_size")
        if self.draft_tokens < 0 or self.micro_batches < 1 or not 0 <= self.acceptance <= 1:
            raise ValueError(
                "draft_tokens must not be negative, micro_batches at least 1, acceptance 0 to 1"
            )
        decoding = self.max_batch_size * (1 + self.draft_tokens)
        if self.max_num_tokens < decoding + self.tokens_per_block:
            what = "max_batch_size" + " times 1 + draft_tokens" * bool(self.draft_tokens)
            raise ValueError(f"max_num_tokens must exceed {what} by tokens_per_block")
        speeds = (self.step_seconds, self.sequence_seconds, self.context_token_seconds, self.jitter)
        if min(speeds) < 0 or self.step_seconds == 0:
            raise ValueError("step_seconds must be positive, the other speeds not negative")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to the engine: prompt tokens, and the number of tokens to generate.

    With ``fail_after`` the engine fails the request once it has generated that many tokens, 0 being
    before the first.
    """

    prompt: tuple[Hashable, ...]
    max_tokens: int
    fail_after: int | None = None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Metrics of a request (types.h, RequestPerfMetrics); times are on the caller's clock.

    Times and iterations that it did not reach are None.  New blocks were allocated without an
    eviction; reused and missed blocks are those of its prompt.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    last_token_time: float | None
    first_iter: int | None
    last_iter: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    decoding_iterations: int
    num_total_allocated_blocks: int
    num_new_allocated_blocks: int
    num_reused_blocks: int
    num_missed_blocks: int
    total_draft_tokens: int
    total_accepted_draft_tokens: int

    def since(self, epoch: float) -> RequestMetrics:
        """Return the metrics with times relative to ``epoch``."""
        times = {name: getattr(self, name) for name in TIMES}
        return replace(self, **{name: at - epoch for name, at in times.items() if at is not None})


TIMES = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")
"""The times among a request's metrics, in their order."""


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """A token of a request, its end, or both: the last token ends a request that ran its length.

    ``time`` is the caller's clock at the step that brought it.  ``index`` counts the request's
    tokens from 0 and is None where an end comes without a token.  ``more`` says that the same step
    has another event of this request.  An end comes with the request's metrics.
    """

    request_id: int
    time: float
    index: int | None = None
    finish_reason: FinishReason | None = None
    more: bool = False
    metrics: RequestMetrics | None = None

    @property
    def final(self) -> bool:
        """Whether this is the request's last event."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class KvCacheStats:
    """Blocks of the KV cache; the last five run since the start of the engine (types.h)."""

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

    ``numPausedRequests`` are those that this very iteration paused, not those that are paused
    (trtGptModelInflightBatching.cpp, fillIterationStats).  Of tokens that were in the KV cache
    before, the last three count those of the batch's prompts, of its decoding sequences and of
    those paused; only PyTorch's executor reports them.
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
    """Drafts of the batch that was launched; how many are accepted is known here beforehand."""

    numDraftTokens: int
    numAcceptedTokens: int
    numRequestsWithDraftTokens: int


@dataclass(frozen=True, slots=True)
class IterationStats:
    """One record of the C++ executor's iteration statistics, under its names.

    Taken right after the launch of batch ``iter``; ``timestamp`` is that moment on the caller's
    clock in seconds (the executor writes it as local time).  ``iterLatencyMS`` is therefore the
    latency of the *previous* batch, and 0 where there was none just before: in the first record,
    in the extra one an engine writes when it runs empty, and in the first after that.  The last
    batch before the engine runs empty is thus never reported.  ``numActiveRequests`` are admitted,
    scheduled or not; ``numQueuedRequests`` wait for admission; ``numCompletedRequests`` ended since
    the record before, cancelled and failed ones included.  ``seconds`` is how long the batch takes,
    None if there is none, and ``generationBlocks`` the KV blocks that decoding took in it.
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


@dataclass(frozen=True, slots=True)
class EngineStep:
    """The result of one pass; ``seconds`` until the launched batch is done, None without one."""

    events: tuple[EngineEvent, ...]
    stats: IterationStats | None
    seconds: float | None


@dataclass(slots=True)
class _Sequence:
    id: int
    request: EngineRequest
    arrived: float
    keys: list[int]
    allocation: Allocation | None = None
    context_left: int = 0
    generated: int = 0
    cancelled: bool = False
    micro_batch: int | None = None
    cached: int = 0
    blocks: tuple[int, ...] = (0, 0, 0, 0)
    advances: int = 0
    drafted: int = 0
    accepted: int = 0
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    first_iteration: int | None = None
    last_iteration: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens in its KV cache after the next iteration."""
        return len(self.request.prompt) + self.generated

    @property
    def tokens_at_end(self) -> int:
        """The same for its last iteration: the last token needs no cache."""
        return len(self.request.prompt) + self.request.max_tokens - 1

    @property
    def metrics(self) -> RequestMetrics:
        """Its metrics so far."""
        total, new, reused, missed = self.blocks
        return RequestMetrics(
            arrival_time=self.arrived,
            first_scheduled_time=self.first_scheduled,
            first_token_time=self.first_token,
            last_token_time=self.last_token,
            first_iter=self.first_iteration,
            last_iter=self.last_iteration,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached,
            output_tokens=self.generated,
            decoding_iterations=self.advances,
            num_total_allocated_blocks=total,
            num_new_allocated_blocks=new,
            num_reused_blocks=reused,
            num_missed_blocks=missed,
            total_draft_tokens=self.drafted,
            total_accepted_draft_tokens=self.accepted,
        )


@dataclass(frozen=True, slots=True)
class _DraftCounts:
    """How many tokens were drafted for a sequence, and how many of them will be accepted."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class _Batch:
    generation: list[_Sequence]
    context: list[tuple[_Sequence, int]]
    paused: list[_Sequence]
    drafts: dict[int, _DraftCounts]
    grown: int
    iteration: int

    def __len__(self) -> int:
        return len(self.generation) + len(self.context)

    @property
    def context_tokens(self) -> int:
        return sum(size for _, size in self.context)


class SimulatedEngine:
    """The executor.  Not thread-safe; equal settings, requests and times give equal results."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._pool = BlockPool(settings.kv_blocks, settings.tokens_per_block)
        self._random = random.Random(settings.seed)
        self._queued: deque[_Sequence] = deque()
        self._active: dict[int, _Sequence] = {}
        self._in_flight: list[_Batch | None] = [None] * settings.micro_batches
        self._launched = self._done = float("-inf")
        self._submitted = self._iteration = 0
        self._turn = -1

    def submit(self, request: EngineRequest, now: float) -> int:
        """Queue a request and return its id.  Raises ValueError if it can never be served."""
        self._check(request)
        self._submitted += 1
        keys = self._pool.keys(request.prompt)
        self._queued.append(_Sequence(self._submitted, request, now, keys))
        return self._submitted

    def cancel(self, request_id: int) -> None:
        """Cancel a request at the next step, unless the engine does not honour cancellations.

        Unknown and ended requests are ignored.
        """
        if not self.settings.honour_cancel:
            return
        for sequence in (*self._active.values(), *self._queued):
            if sequence.id == request_id:
                sequence.cancelled = True

    def step(self, now: float) -> EngineStep:
        """Run one pass of the loop.

        Call it again after the returned seconds, or, without any, after a submission.  Raises
        ValueError while the batch is still running.
        """
        if now < self._done:
            raise ValueError(f"the batch in flight runs until {self._done}, it is {now}")
        self._turn = (self._turn + 1) % self.settings.micro_batches
        latency = now - self._launched if any(self._in_flight) else 0.0
        events = (*self._drop_cancelled(now), *self._collect(now))
        activated = self._activate()
        batch = self._schedule(now)
        self._in_flight[self._turn] = batch or None
        busy = any(self._in_flight)
        if not batch and not events:
            return EngineStep((), None, self._launch(batch, now) if busy else None)
        self._iteration += 1
        seconds = self._launch(batch, now) if busy else None
        stats = IterationStats(
            timestamp=now,
            iter=self._iteration,
            iterLatencyMS=latency * 1000 if busy else 0.0,
            newActiveRequestsQueueLatencyMS=sum(now - s.arrived for s in activated) * 1000,
            numNewActiveRequests=len(activated),
            numActiveRequests=len(self._active),
            numQueuedRequests=len(self._queued),
            numCompletedRequests=sum(event.final for event in events),
            maxNumActiveRequests=self.settings.max_num_active_requests,
            kvCacheStats=self._kv_cache_stats(),
            inflightBatchingStats=self._inflight_batching_stats(batch),
            specDecodingStats=self._spec_decoding_stats(batch),
            seconds=seconds if batch else None,
            generationBlocks=batch.grown,
        )
        return EngineStep(events, stats, seconds)

    def _check(self, request: EngineRequest) -> None:
        prompt, at_end = len(request.prompt), len(request.prompt) + request.max_tokens - 1
        if not prompt:
            raise ValueError("the prompt is empty")
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.max_tokens}, it must be at least 1")
        capacity = self.settings.kv_blocks * self.settings.tokens_per_block
        if at_end > capacity:
            raise ValueError(
                f"prompt and output are {at_end + 1} tokens, the KV cache holds {capacity}"
            )
        # A paused sequence computes its own tokens again along with its prompt.
        context = at_end if self.settings.policy == "max_utilization" else prompt
        if context > self.settings.max_num_tokens and not self.settings.chunked_context:
            raise ValueError(
                f"the context can grow to {context} tokens, an iteration takes "
                f"{self.settings.max_num_tokens} unless chunked_context is on"
            )

    def _drop_cancelled(self, now: float) -> Iterator[EngineEvent]:
        for sequence in [s for s in (*self._active.values(), *self._queued) if s.cancelled]:
            if sequence.id in self._active:
                self._release(sequence)
            else:
                self._queued.remove(sequence)
            yield EngineEvent(sequence.id, now, finish_reason="cancelled", metrics=sequence.metrics)

    def _collect(self, now: float) -> Iterator[EngineEvent]:
        """Yield the results of the current micro-batch."""
        batch, self._in_flight[self._turn] = self._in_flight[self._turn], None
        if not batch:
            return
        for sequence, size in batch.context:
            sequence.context_left -= size
            if sequence.allocation and not sequence.context_left:
                self._pool.publish(sequence.allocation, sequence.keys)
        for sequence in (*batch.generation, *(sequence for sequence, _ in batch.context)):
            if sequence.id in self._active and not sequence.context_left:
                yield from self._advance(sequence, batch, now)

    def _advance(self, sequence: _Sequence, batch: _Batch, now: float) -> Iterator[EngineEvent]:
        sequence.advances += 1
        sequence.last_iteration = batch.iteration
        drafts = batch.drafts.get(sequence.id, _DraftCounts(0, 0))
        sequence.drafted += drafts.drafted
        sequence.accepted += drafts.accepted
        end = sequence.generated + 1 + drafts.accepted
        for index in range(sequence.generated, end):
            if index == sequence.request.fail_after:
                self._release(sequence)
                yield EngineEvent(sequence.id, now, finish_reason="error", metrics=sequence.metrics)
                return
            sequence.generated += 1
            sequence.last_token = now
            if not index:
                sequence.first_token = now
            if sequence.generated < sequence.request.max_tokens:
                yield EngineEvent(sequence.id, now, index, more=index < end - 1)
        if sequence.generated == sequence.request.max_tokens:
            self._release(sequence)
            yield EngineEvent(sequence.id, now, index, "length", metrics=sequence.metrics)

    def _release(self, sequence: _Sequence) -> None:
        del self._active[sequence.id]
        self._pause(sequence)

    def _pause(self, sequence: _Sequence) -> None:
        if sequence.allocation:
            self._pool.close(sequence.allocation)
            sequence.allocation = sequence.micro_batch = None

    def _activate(self) -> list[_Sequence]:
        room = self.settings.max_num_active_requests - len(self._active)
        activated = [self._queued.popleft() for _ in range(min(room, len(self._queued)))]
        self._active.update((sequence.id, sequence) for sequence in activated)
        return activated

    def _schedule(self, now: float) -> _Batch:
        """Choose the next batch, oldest requests first, which prevents starvation."""
        running = [s for s in self._active.values() if s.micro_batch == self._turn]
        allocated = self._pool.alloc_total
        paused = self._make_room(running)
        grown = self._pool.alloc_total - allocated
        running = [s for s in running if s.allocation]
        generation = [s for s in running if not s.context_left]
        drafts = {s.id: self._draft(wanted) for s in generation if (wanted := self._drafts(s))}
        budget = self.settings.max_num_tokens - len(generation)
        budget -= sum(each.drafted for each in drafts.values())
        context: list[tuple[_Sequence, int]] = []
        for sequence in (s for s in running if s.context_left):
            if size := self._chunk(sequence.context_left, budget):
                context.append((sequence, size))
                budget -= size
        waiting = [s for s in self._active.values() if not s.allocation]
        for sequence in waiting[: self.settings.max_batch_size - len(running)]:
            if not self._fits(sequence) or not self._chunk(sequence.tokens, budget):
                break
            self._begin(sequence, now)
            size = self._chunk(sequence.context_left, budget)
            context.append((sequence, size))
            budget -= size
        return _Batch(generation, context, paused, drafts, grown, self._iteration + 1)

    def _begin(self, sequence: _Sequence, now: float) -> None:
        """Give a sequence its KV cache and a place in this turn's batches."""
        with self._charged(sequence):
            sequence.allocation, known = self._pool.open(sequence.keys, sequence.tokens)
        sequence.context_left = sequence.tokens - known
        sequence.micro_batch = self._turn
        if sequence.first_scheduled is None:
            sequence.first_scheduled, sequence.first_iteration = now, self._iteration + 1
            sequence.cached = known

    def _drafts(self, sequence: _Sequence) -> int:
        """How many tokens are drafted for the sequence's next iteration."""
        if sequence.context_left:
            return 0
        left = sequence.request.max_tokens - sequence.generated - 1
        return min(self.settings.draft_tokens, left)

    def _draft(self, drafted: int) -> _DraftCounts:
        """Draw how many of the drafts are accepted."""
        accepted = 0
        while accepted < drafted and self._random.random() < self.settings.acceptance:
            accepted += 1
        return _DraftCounts(drafted, accepted)

    def _make_room(self, running: list[_Sequence]) -> list[_Sequence]:
        """Give every running sequence its next blocks, at the cost of the newest if need be."""
        paused = []
        for sequence in running:
            wanted = sequence.tokens + self._drafts(sequence)
            while sequence.allocation and self._lacking(sequence, wanted) > self._pool.free:
                paused.append(next(s for s in reversed(running) if s.allocation))
                self._pause(paused[-1])
            if sequence.allocation:
                with self._charged(sequence):
                    self._pool.grow(sequence.allocation, wanted)
        return paused

    @contextmanager
    def _charged(self, sequence: _Sequence) -> Iterator[None]:
        """Count the blocks that are taken from the pool meanwhile as the sequence's."""
        before = self._pool.counts
        yield
        taken = (now - then for now, then in zip(self._pool.counts, before, strict=True))
        sequence.blocks = tuple(map(sum, zip(sequence.blocks, taken, strict=True)))

    def _fits(self, sequence: _Sequence) -> bool:
        """Whether the policy lets a sequence start beside those that run."""
        if self.settings.policy == "max_utilization":
            return self._pool.cost(sequence.keys, sequence.tokens) <= self._pool.free
        running = (s for s in self._active.values() if s.allocation)
        promised = sum(self._lacking(s, s.tokens_at_end) for s in running)
        whole = self._pool.cost(sequence.keys, sequence.tokens)
        whole += self._pool.size(sequence.tokens_at_end) - self._pool.size(sequence.tokens)
        return whole + promised <= self._pool.free

    def _lacking(self, sequence: _Sequence, tokens: int) -> int:
        held = len(sequence.allocation) if sequence.allocation else 0
        return max(0, self._pool.size(tokens) - held)

    def _chunk(self, wanted: int, budget: int) -> int:
        """How many of the wanted context tokens this iteration computes; whole blocks but last."""
        if wanted <= budget:
            return wanted
        return budget - budget % self._pool.tokens_per_block if self.settings.chunked_context else 0

    def _launch(self, batch: _Batch, now: float) -> float:
        seconds = (
            self.settings.step_seconds
            + self.settings.sequence_seconds * len(batch.generation)
            + self.settings.context_token_seconds * batch.context_tokens
        ) * self._random.lognormvariate(0, self.settings.jitter)
        self._launched, self._done = now, now + seconds
        return seconds

    def _inflight_batching_stats(self, batch: _Batch) -> InflightBatchingStats:
        context = [sequence for sequence, _ in batch.context]
        decoded = [s.generated / s.advances for s in batch.generation if s.advances]
        return InflightBatchingStats(
            numScheduledRequests=len(batch),
            numContextRequests=len(context),
            numGenRequests=len(batch.generation),
            numPausedRequests=len(batch.paused),
            numCtxTokens=batch.context_tokens,
            microBatchId=self._turn,
            avgNumDecodedTokensPerIter=fmean(decoded) if decoded else 0.0,
            numCtxKvTokens=sum(s.tokens - s.context_left for s in context),
            numGenKvTokens=sum(s.tokens for s in batch.generation),
            numPausedKvTokens=sum(s.tokens for s in batch.paused),
        )

    def _spec_decoding_stats(self, batch: _Batch) -> SpecDecodingStats | None:
        if not self.settings.draft_tokens:
            return None
        return SpecDecodingStats(
            numDraftTokens=sum(each.drafted for each in batch.drafts.values()),
            numAcceptedTokens=sum(each.accepted for each in batch.drafts.values()),
            numRequestsWithDraftTokens=len(batch.drafts),
        )

    def _kv_cache_stats(self) -> KvCacheStats:
        pool = self._pool
        looked_up = pool.reused + pool.missed
        return KvCacheStats(
            maxNumBlocks=pool.blocks,
            freeNumBlocks=pool.free,
            usedNumBlocks=pool.used,
            tokensPerBlock=pool.tokens_per_block,
            allocTotalBlocks=pool.alloc_total,
            allocNewBlocks=pool.alloc_new,
            reusedBlocks=pool.reused,
            missedBlocks=pool.missed,
            cacheHitRate=pool.reused / looked_up if looked_up else 0.0,
        )
