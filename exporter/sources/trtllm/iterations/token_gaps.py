"""Derive token gaps from iteration records.

An iteration gives every sequence that decodes in it one token (several with speculative decoding,
in one chunk).  So in a record with ``numGenRequests`` = g, g gaps end with its batch; their
duration depends on the executor.

* C++: ``iterLatencyMS`` is the latency of the batch *before* the record's own (executorImpl.cpp,
  executionLoop), and 0 where there was none.  The gap of batch n is in record n + 1.  With
  pipeline parallelism a sequence advances once in as many iterations as there are micro-batches:
  its gap lies between the timestamps of its micro-batch.
* PyTorch: a record is stamped once its loop has fetched requests, and ``iterLatencyMS`` runs from
  the top of that loop until the results are processed, which under the overlap scheduler is a loop
  later (py_executor.py).  Either way timestamp + latency is when the tokens of the batch came out,
  and the difference between two of these is the gap.  In the first record after an idle time
  the latency includes the wait for requests, so it is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from exporter.sources.trtllm.iterations.records import Dialect, Record

SLACK = 0.05
"""Seconds of an executor's work between two loops; more is idle time, or the clock was set."""


class IterationGap(NamedTuple):
    """``sequences`` sequences received a token ``seconds`` after the previous one."""

    seconds: float
    sequences: float


@dataclass(slots=True)
class TokenGaps:
    """Derives the gaps of one sequence of records (one rank)."""

    _before: Record | None = None
    _pipelined: bool = False
    _ended: float | None = None
    _token_times: dict[int, float] = field(default_factory=dict)
    _launched: dict[int, Record] = field(default_factory=dict)

    def follow(
        self, record: Record, dialect: Dialect, *, unbroken: bool, was_idle: bool
    ) -> Iterator[IterationGap]:
        """Yield the gaps that the record completes.

        ``unbroken``: no iteration is missing before it.  ``was_idle``: the engine was idle just
        before it.
        """
        if not unbroken:
            self._token_times.clear()
            self._launched.clear()
            self._before = None
        before, self._before = self._before, record
        if before and before.micro_batch != record.micro_batch:
            self._pipelined = True
        gap = (
            self._cpp(record, before)
            if dialect == "cpp"
            else self._pytorch(record, before, was_idle=was_idle)
        )
        if gap and gap.seconds > 0 and gap.sequences > 0:
            yield gap

    def was_idle(self, record: Record, *, alone: bool) -> bool:
        """Return whether a PyTorch engine was idle before this record.

        Then all that it has is new, which one rank's numbers show only if it is ``alone``, or the
        record was made long after the results before it were out.
        """
        if alone and record.new and record.new >= (record.active or 0.0):
            return True
        before = self._before
        if record.timestamp is None or self._ended is None or before is None:
            return False
        # A loop that finds nothing to run has a number too; more missing numbers are lost records.
        follows = 0 <= record.iteration - before.iteration <= 2
        return follows and record.timestamp - self._ended > SLACK

    def overlaps(self, record: Record) -> bool:
        """Return whether the record precedes the results of the previous batch."""
        if self._pipelined or record.timestamp is None:
            return False
        return any(record.timestamp < out for out in self._token_times.values())

    def _cpp(self, record: Record, before: Record | None) -> IterationGap | None:
        if not record.latency:
            self._launched.clear()
        launched = self._launched.get(record.micro_batch)
        self._launched[record.micro_batch] = record
        if not record.latency or not before:
            return None
        if not self._pipelined:
            return IterationGap(record.latency, before.generating or 0.0)
        if launched is None or launched.timestamp is None or record.timestamp is None:
            return None
        return IterationGap(record.timestamp - launched.timestamp, launched.generating or 0.0)

    def _pytorch(
        self, record: Record, before: Record | None, *, was_idle: bool
    ) -> IterationGap | None:
        out = self._token_times.pop(record.micro_batch, None)
        if record.timestamp is None:
            return None if was_idle else self._untimed(record, before)
        if record.latency is None:
            return None
        self._ended = now = record.timestamp + record.latency
        if was_idle:
            # No sequence continues; or the clock was set, and ends are not comparable.
            self._token_times.clear()
            return None
        self._token_times[record.micro_batch] = now
        return None if out is None else IterationGap(now - out, record.generating or 0.0)

    def _untimed(self, record: Record, before: Record | None) -> IterationGap | None:
        """Return the gap without timestamps: a loop's duration is in the next loop's record."""
        if self._pipelined:
            return None
        if record.host_step is not None:
            return IterationGap(record.host_step, before.generating or 0.0) if before else None
        if record.overlap is False and record.latency is not None:
            return IterationGap(record.latency, record.generating or 0.0)
        return None
