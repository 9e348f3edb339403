"""A simulated TensorRT-LLM executor: in-flight batching over a paged KV cache, without a GPU.

The engine does no I/O and reads no clock.  Its caller passes the time and receives the duration of
the batch, so the same engine runs in virtual time under test and in real time behind a server.  One
call of :meth:`SimulatedEngine.step` is one pass of the executor's loop (TensorRT-LLM,
executorImpl.cpp, executionLoop): collect the results of the batch in flight, drop cancelled
requests, admit, schedule, launch the next batch, record the iteration's statistics.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from lab.engine_batch import DraftCounts, EngineBatch, EngineSequence
from lab.engine_events import EngineEvent, EngineRequest
from lab.engine_faults import HEALTHY, EngineFaults
from lab.engine_settings import EngineSettings
from lab.iteration_stats import (
    InflightBatchingStats,
    IterationStats,
    KvCacheStats,
    SpecDecodingStats,
)
from lab.kvcache import BlockPool


@dataclass(frozen=True, slots=True)
class EngineStep:
    """The result of one pass; ``seconds`` is the duration of its batch, None without one."""

    events: tuple[EngineEvent, ...]
    stats: IterationStats | None
    seconds: float | None


class SimulatedEngine:
    """A deterministic executor: equal settings, requests and times give equal results.

    It is not thread-safe.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._pool = BlockPool(settings.kv_blocks, settings.tokens_per_block)
        self._random = random.Random(settings.seed)
        self._faults = HEALTHY
        self._queued: deque[EngineSequence] = deque()
        self._active: dict[int, EngineSequence] = {}
        self._in_flight: list[EngineBatch | None] = [None] * settings.micro_batches
        self._launched = self._done = float("-inf")
        self._submitted = self._iteration = 0
        self._micro_batch = -1

    def submit(self, request: EngineRequest, now: float) -> int:
        """Queue a request and return its id; raises ValueError if it exceeds a limit."""
        self._check(request)
        self._submitted += 1
        keys, request = self._pool.keys(request.prompt), self._with_faults(request)
        answers = self._faults.answers
        self._queued.append(EngineSequence(self._submitted, request, now, keys, answers))
        return self._submitted

    def apply(self, faults: EngineFaults) -> None:
        """Replace the faults; a stall, a crash and faults at load are the caller's."""
        self._faults = faults
        self._resize_pool()

    def cancel(self, request_id: int) -> None:
        """Cancel a request at the next step, unless the engine does not honour cancellations.

        Unknown and ended requests are ignored.
        """
        if self._faults.ignore_cancel or not self.settings.honour_cancel:
            return
        for sequence in (*self._active.values(), *self._queued):
            if sequence.id == request_id:
                sequence.cancelled = True

    def step(self, now: float) -> EngineStep:
        """Run one pass of the loop.

        Call it again after ``seconds`` of the result, or, if that is None, after a submission.
        Raises ValueError while the batch is running.
        """
        if now < self._done:
            raise ValueError(f"now is {now}, but the batch in flight runs until {self._done}")
        self._micro_batch = (self._micro_batch + 1) % self.settings.micro_batches
        latency = now - self._launched if any(self._in_flight) else 0.0
        events = (*self._drop_cancelled(now), *self._collect(now))
        self._resize_pool()
        activated = self._activate()
        batch = self._schedule(now)
        self._in_flight[self._micro_batch] = batch or None
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
        capacity = self._pool.blocks * self._pool.tokens_per_block
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

    def _with_faults(self, request: EngineRequest) -> EngineRequest:
        if self._faults.answers == "empty":
            request = replace(request, max_tokens=1)
        if self._faults.fail_share and self._random.random() < self._faults.fail_share:
            request = replace(request, fail_after=self._random.choice((0, request.max_tokens // 2)))
        return request

    def _resize_pool(self) -> None:
        target = self._faults.kv_blocks or self.settings.kv_blocks
        if target != self._pool.blocks:
            kept = 0
            if self.settings.policy == "guaranteed_no_evict":
                kept = self._pool.used + self._reserved()
            self._pool.resize(max(target, kept))

    def _drop_cancelled(self, now: float) -> Iterator[EngineEvent]:
        for sequence in [s for s in (*self._active.values(), *self._queued) if s.cancelled]:
            if sequence.id in self._active:
                self._release(sequence)
            else:
                self._queued.remove(sequence)
            yield EngineEvent(sequence.id, now, finish_reason="cancelled", metrics=sequence.metrics)

    def _collect(self, now: float) -> Iterator[EngineEvent]:
        """Yield the results of the current micro-batch."""
        batch, self._in_flight[self._micro_batch] = self._in_flight[self._micro_batch], None
        if not batch:
            return
        for sequence, size in batch.context:
            sequence.context_left -= size
            if sequence.allocation and not sequence.context_left:
                self._pool.publish(sequence.allocation, sequence.keys)
        for sequence in (*batch.generation, *(sequence for sequence, _ in batch.context)):
            if sequence.id in self._active and not sequence.context_left:
                yield from self._advance(sequence, batch, now)

    def _advance(
        self, sequence: EngineSequence, batch: EngineBatch, now: float
    ) -> Iterator[EngineEvent]:
        sequence.advances += 1
        sequence.last_iteration = batch.iteration
        drafts = batch.drafts.get(sequence.id, DraftCounts(0, 0))
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
                more = index < end - 1
                yield EngineEvent(sequence.id, now, index, more=more, answers=sequence.answers)
        if sequence.generated == sequence.request.max_tokens:
            self._release(sequence)
            yield EngineEvent(
                sequence.id,
                now,
                index,
                "length",
                metrics=sequence.metrics,
                answers=sequence.answers,
            )

    def _release(self, sequence: EngineSequence) -> None:
        del self._active[sequence.id]
        self._pause(sequence)

    def _pause(self, sequence: EngineSequence) -> None:
        if sequence.allocation:
            self._pool.close(sequence.allocation)
            sequence.allocation = sequence.micro_batch = None

    def _activate(self) -> list[EngineSequence]:
        room = self.settings.max_num_active_requests - len(self._active)
        activated = [self._queued.popleft() for _ in range(min(room, len(self._queued)))]
        self._active.update((sequence.id, sequence) for sequence in activated)
        return activated

    def _schedule(self, now: float) -> EngineBatch:
        """Choose the next batch, oldest requests first to prevent starvation."""
        running = [s for s in self._active.values() if s.micro_batch == self._micro_batch]
        allocated = self._pool.alloc_total
        paused = self._allocate_running(running)
        grown = self._pool.alloc_total - allocated
        running = [s for s in running if s.allocation]
        generation = [s for s in running if not s.context_left]
        drafts = {s.id: self._draft(target) for s in generation if (target := self._drafts(s))}
        budget = self.settings.max_num_tokens - len(generation)
        budget -= sum(each.drafted for each in drafts.values())
        context: list[tuple[EngineSequence, int]] = []
        for sequence in (s for s in running if s.context_left):
            if size := self._chunk(sequence.context_left, budget):
                context.append((sequence, size))
                budget -= size
        waiting = [s for s in self._active.values() if not s.allocation]
        for sequence in waiting[: self.settings.max_batch_size - len(running)]:
            if not self._fits(sequence) or not self._chunk(sequence.tokens, budget):
                break
            self._start(sequence, now)
            size = self._chunk(sequence.context_left, budget)
            context.append((sequence, size))
            budget -= size
        return EngineBatch(generation, context, paused, drafts, grown, self._iteration + 1)

    def _start(self, sequence: EngineSequence, now: float) -> None:
        """Allocate a sequence's KV cache and assign it to the current micro-batch."""
        with self._attributed(sequence):
            sequence.allocation, cached = self._pool.open(sequence.keys, sequence.tokens)
        sequence.context_left = sequence.tokens - cached
        sequence.micro_batch = self._micro_batch
        if sequence.first_scheduled is None:
            sequence.first_scheduled, sequence.first_iteration = now, self._iteration + 1
            sequence.cached = cached

    def _drafts(self, sequence: EngineSequence) -> int:
        """Return the number of tokens drafted for the sequence's next iteration."""
        if sequence.context_left:
            return 0
        left = sequence.request.max_tokens - sequence.generated - 1
        return min(self.settings.draft_tokens, left)

    def _draft(self, drafted: int) -> DraftCounts:
        """Draw the number of accepted drafts."""
        accepted = 0
        while accepted < drafted and self._random.random() < self.settings.acceptance:
            accepted += 1
        return DraftCounts(drafted, accepted)

    def _allocate_running(self, running: list[EngineSequence]) -> list[EngineSequence]:
        """Allocate the next blocks of running sequences; pause the newest if none are free."""
        paused = []
        for sequence in running:
            target = sequence.tokens + self._drafts(sequence)
            while sequence.allocation and self._missing_blocks(sequence, target) > self._pool.free:
                paused.append(next(s for s in reversed(running) if s.allocation))
                self._pause(paused[-1])
            if sequence.allocation:
                with self._attributed(sequence):
                    self._pool.grow(sequence.allocation, target)
        return paused

    @contextmanager
    def _attributed(self, sequence: EngineSequence) -> Iterator[None]:
        """Attribute blocks allocated in this scope to the sequence."""
        before = self._pool.counts
        yield
        taken = (now - then for now, then in zip(self._pool.counts, before, strict=True))
        sequence.blocks = tuple(map(sum, zip(sequence.blocks, taken, strict=True)))

    def _fits(self, sequence: EngineSequence) -> bool:
        """Whether the policy allows a sequence to start beside the running ones."""
        if self.settings.policy == "max_utilization":
            return self._pool.cost(sequence.keys, sequence.tokens) <= self._pool.free
        whole = self._pool.cost(sequence.keys, sequence.tokens)
        whole += self._pool.size(sequence.tokens_at_end) - self._pool.size(sequence.tokens)
        return whole + self._reserved() <= self._pool.free

    def _reserved(self) -> int:
        """Return the blocks that running sequences still need up to their last token."""
        running = (s for s in self._active.values() if s.allocation)
        return sum(self._missing_blocks(s, s.tokens_at_end) for s in running)

    def _missing_blocks(self, sequence: EngineSequence, tokens: int) -> int:
        held = len(sequence.allocation) if sequence.allocation else 0
        return max(0, self._pool.size(tokens) - held)

    def _chunk(self, target: int, budget: int) -> int:
        """Return the number of context tokens to compute now: whole blocks, except for the last."""
        if target <= budget:
            return target
        return budget - budget % self._pool.tokens_per_block if self.settings.chunked_context else 0

    def _launch(self, batch: EngineBatch, now: float) -> float:
        decode = (
            self.settings.step_seconds + self.settings.sequence_seconds * len(batch.generation)
        ) * self._faults.step_factor
        prefill = self.settings.context_token_seconds * batch.context_tokens
        seconds = (decode + prefill * self._faults.prefill_factor) * self._random.lognormvariate(
            0, self.settings.jitter
        )
        self._launched, self._done = now, now + seconds
        return seconds

    def _inflight_batching_stats(self, batch: EngineBatch) -> InflightBatchingStats:
        context = [sequence for sequence, _ in batch.context]
        decoded = [s.generated / s.advances for s in batch.generation if s.advances]
        return InflightBatchingStats(
            numScheduledRequests=len(batch),
            numContextRequests=len(context),
            numGenRequests=len(batch.generation),
            numPausedRequests=len(batch.paused),
            numCtxTokens=batch.context_tokens,
            microBatchId=self._micro_batch,
            avgNumDecodedTokensPerIter=fmean(decoded) if decoded else 0.0,
            numCtxKvTokens=sum(s.tokens - s.context_left for s in context),
            numGenKvTokens=sum(s.tokens for s in batch.generation),
            numPausedKvTokens=sum(s.tokens for s in batch.paused),
        )

    def _spec_decoding_stats(self, batch: EngineBatch) -> SpecDecodingStats | None:
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
