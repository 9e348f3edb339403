"""Track the state of an engine from its iteration records.

Rows come from several sequences of records: with attention data parallelism one per rank and
iteration.  Unless every rank reports itself (``rank``), the executor copies all of rank 0's numbers
into the rows of the others except those of the batch (PyTorch, adp_iter_stats.py), so only the
batch may be summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from exporter.recording.metric_recorder import MetricRecorder
from exporter.sources.trtllm.iterations.continuity import Continuity
from exporter.sources.trtllm.iterations.records import Dialect, Record
from exporter.sources.trtllm.iterations.token_gaps import TokenGaps

NAMELESS = ("", "")
"""Model and version; records name neither."""

MAX_RANKS = 256
MAX_MICRO_BATCHES = 64

GAPS_METHOD: Mapping[Dialect, str] = {
    "cpp": "trtllm_iteration_latency",
    "pytorch": "trtllm_iteration_ends",
}

RankKey = tuple[int, int]
"""Rank, 0 where it is not given, and attention-DP rank."""


@dataclass(slots=True)
class RankState:
    """The state of one rank, from its sequence of records.

    ``batches`` are the last records by micro-batch.  ``remaining`` is the number of active
    sequences after the last iteration, None if the record does not have it.  ``pooled`` is the last
    record with KV-cache pools: the engine may report them less often.
    """

    continuity: Continuity = field(default_factory=Continuity)
    gaps: TokenGaps = field(default_factory=TokenGaps)
    batches: dict[int, Record] = field(default_factory=dict)
    latest: Record | None = None
    remaining: float | None = None
    pooled: Record | None = None

    def scheduled(self) -> list[Record]:
        """Return the last record of every micro-batch that is still scheduled."""
        if self.latest is None:
            return []
        horizon = self.latest.iteration - 2 * len(self.batches)
        return [record for record in self.batches.values() if record.iteration > horizon]


@dataclass(slots=True)
class QueueTime:
    """The queue time of requests: count, sum in seconds, and the last value read."""

    count: float = 0.0
    seconds: float = 0.0
    last: float | None = None
    refused: bool = False


@dataclass(slots=True)
class HostPool:
    """Blocks of the host's KV pool that the engine counts as used, of a cache of ``most`` blocks.

    ``idle`` is the minimum of used blocks while no sequence was active; ``surplus`` is the maximum
    of used blocks beyond all blocks that were ever allocated.
    """

    most: float | None = None
    idle: float | None = None
    surplus: float = 0.0


class EngineState:
    """The state of one engine; counts run since its creation.

    ``thresholds`` are the SLO thresholds by signal in seconds.  ``repeated`` counts
    duplicate rows, ``refused`` rows beyond the limits of ranks and micro-batches, and ``restarts``
    the number of restarts.  ``untimed``: the records of a PyTorch engine have no timestamps.
    ``tokens_per_sequence`` is the number of tokens per decoding sequence in the last iteration.
    """

    def __init__(self, thresholds: Mapping[str, Iterable[float]] | None = None) -> None:
        self.recorder = MetricRecorder(thresholds or {})
        self.dialect: Dialect | None = None
        self.ranks: dict[RankKey, RankState] = {}
        self.queue = QueueTime()
        self.host_pool = HostPool()
        self.records = self.repeated = self.refused = self.restarts = 0
        self.untimed = False
        self.tokens_per_sequence = 1.0
        self._lost = 0

    @property
    def lost(self) -> int:
        """The number of lost records."""
        return self._lost + sum(state.continuity.lost for state in self.ranks.values())

    @property
    def interval(self) -> int:
        """The sampling interval: one in this many iterations is recorded."""
        return max((state.continuity.interval for state in self.ranks.values()), default=1)

    @property
    def copied(self) -> bool:
        """Whether rows of several ranks repeat the numbers of the first."""
        return len(self.ranks) > 1 and len({rank for rank, _ in self.ranks}) == 1

    @property
    def first(self) -> RankState | None:
        """The state of the rank whose rows count for the whole engine where ranks are copied."""
        return self.ranks[min(self.ranks)] if self.ranks else None

    def add(self, record: Record) -> None:
        """Add the next record."""
        if record.dialect and record.dialect != self.dialect:
            if self.dialect:
                self._reset()
            self.dialect = record.dialect
        key = (record.rank or 0, record.dp_rank)
        state = self.ranks.get(key)
        if state is None:
            if len(self.ranks) >= MAX_RANKS:
                self.refused += 1
                return
            state = self.ranks[key] = RankState()
        if _is_repeated(record, state):
            self.repeated += 1
            return
        if record.micro_batch not in state.batches and len(state.batches) >= MAX_MICRO_BATCHES:
            self.refused += 1
            return
        self._add_to(state, record, own_numbers=key == min(self.ranks) or record.rank is not None)

    def _add_to(self, state: RankState, record: Record, *, own_numbers: bool) -> None:
        """Add a record to the state of its rank; ``own_numbers``: no copies of rank 0."""
        self.records += 1
        alone = len(self.ranks) == 1
        was_idle = self.dialect == "pytorch" and state.gaps.was_idle(record, alone=alone)
        stride = state.continuity.follow(record.iteration, was_idle=was_idle)
        if stride is None and state.latest is not None:
            state.gaps, state.remaining, state.pooled = TokenGaps(), None, None
            state.batches.clear()
            if own_numbers:
                self.queue.last, self.host_pool = None, HostPool()
                self.restarts += 1
        unbroken = stride is not None and stride <= 1
        before = state.latest if unbroken else None
        overlaps = state.gaps.overlaps(record)
        self._observe_gaps(state, record, unbroken=unbroken, was_idle=was_idle)
        self._count_tokens(record, own_numbers=own_numbers)
        state.remaining = _remaining(record, before, overlaps=overlaps, dialect=self.dialect)
        state.latest = record
        if record.kv_pools:
            state.pooled = record
        state.batches[record.micro_batch] = record
        if own_numbers:
            # An idle loop has an iteration number and no record.
            complete = stride is not None and stride - was_idle <= self.interval
            self._observe_queue(record, complete=complete)
            self._observe_blocks(record, state.remaining)

    def _observe_gaps(
        self, state: RankState, record: Record, *, unbroken: bool, was_idle: bool
    ) -> None:
        if self.dialect is None:
            return
        series = ("itl", *NAMELESS, GAPS_METHOD[self.dialect])
        if self.dialect == "pytorch":
            self.untimed = record.timestamp is None
        self.recorder.observe(series, 0.0, 0.0)
        for gap in state.gaps.follow(record, self.dialect, unbroken=unbroken, was_idle=was_idle):
            self.recorder.observe(series, gap.seconds, gap.sequences)

    def _count_tokens(self, record: Record, *, own_numbers: bool) -> None:
        def count(signal: str, method: str, increase: float | None) -> None:
            if increase is not None:
                self.recorder.count((signal, *NAMELESS, method), (), increase)

        if record.batching:
            count("input_tokens", "trtllm_context_tokens", record.context_tokens)
            count("output_tokens", "trtllm_iteration_tokens", self._generated(record))
            count("preemptions", "trtllm_paused", _sum(record.paused, record.suspended))
        if record.drafts and own_numbers:
            count("draft_tokens", "trtllm_drafts", record.drafts.drafted)
            count("accepted_draft_tokens", "trtllm_drafts", record.drafts.accepted)

    def _generated(self, record: Record) -> float | None:
        """Return the tokens of an iteration: those of decoding sequences, and one per context."""
        if record.generating is None:
            return None
        extra = 0.0
        if record.drafts:
            # In rows of other ranks the drafts are rank 0's, but not how many sequences there are.
            drafting = min(record.drafts.sequences, record.generating)
            extra = max(0.0, record.drafts.length - 1) * drafting
        elif record.decoded_per_iteration:
            extra = (record.decoded_per_iteration - 1) * record.generating
        if record.generating:
            self.tokens_per_sequence = 1 + max(0.0, extra) / record.generating
        return record.generating + max(0.0, extra) + (record.contexts or 0.0)

    def _observe_queue(self, record: Record, *, complete: bool) -> None:
        """Add a record's queue time: C++ reports milliseconds, PyTorch seconds since its start.

        ``complete`` is false if records are missing before this one.  Their requests and their
        queue time are then both omitted.
        """
        value, new = record.queue_latency, record.new
        if value is None or new is None or self.dialect is None:
            return
        if self.dialect == "cpp":
            self.queue.count += new
            self.queue.seconds += value / 1000
            return
        last, self.queue.last = self.queue.last, value
        if last is None or not complete:
            return
        if value < last:
            self.queue.refused = True
        self.queue.count += new
        self.queue.seconds += max(0.0, value - last)

    def _observe_blocks(self, record: Record, remaining: float | None) -> None:
        cache, pool = record.kv_cache, self.host_pool
        if cache is None or cache.used is None or not cache.most:
            return
        if pool.most != cache.most:
            pool = self.host_pool = HostPool(cache.most)
        if remaining == 0:
            pool.idle = cache.used if pool.idle is None else min(pool.idle, cache.used)
        if cache.allocated:
            surplus = cache.used - cache.allocated - (cache.reused or 0.0)
            pool.surplus = max(pool.surplus, surplus)

    def _reset(self) -> None:
        """Reset the state for another engine; counts continue."""
        self._lost = self.lost
        self.ranks.clear()
        self.queue.last, self.queue.refused = None, False
        self.host_pool = HostPool()
        self.restarts += 1


def _is_repeated(record: Record, state: RankState) -> bool:
    same = state.batches.get(record.micro_batch)
    return same is not None and same == record


def _remaining(
    record: Record, before: Record | None, *, overlaps: bool, dialect: Dialect | None
) -> float | None:
    """Return the number of active sequences after the iteration.

    The C++ executor counts active sequences after completions.  PyTorch counts them at the top of
    its loop: subtract the completions of the batch, and those of the previous one if its results
    were still outstanding.
    """
    if record.active is None:
        return None
    if dialect != "pytorch":
        return record.active
    done = record.completed or 0.0
    if overlaps and before:
        done += before.completed or 0.0
    return max(0.0, record.active - done)


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
