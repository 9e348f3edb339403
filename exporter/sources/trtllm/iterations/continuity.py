"""Count lost iteration records by their numbers.

Records are delivered once and dropped silently from full queues, but they are numbered.  Two kinds
of missing numbers are not lost records: with ``iter_perf_stats_interval: N`` PyTorch
emits every Nth record only, and a loop of PyTorch that finds nothing to run has a number and no
record.
"""

from __future__ import annotations

from dataclasses import dataclass

SAMPLING_STRIDES = 5
"""Consecutive equal strides that make a sampling interval."""

MAX_STRIDE = 10_000_000
"""The maximum stride; a larger one belongs to another engine."""


@dataclass(slots=True)
class Continuity:
    """Tracks the numbers of one sequence of records; ``lost`` counts the missing ones.

    Whether a stride of more than one is loss or sampling shows with the records that follow, so
    loss is counted one record late.
    """

    last: int | None = None
    lost: int = 0
    _stride: int = 1
    _strides: int = 0
    _possibly_lost: int = 0

    @property
    def interval(self) -> int:
        """The sampling interval: one in this many iterations is recorded."""
        return self._stride if self._strides >= SAMPLING_STRIDES else 1

    def follow(self, iteration: int, *, was_idle: bool) -> int | None:
        """Add the next number; return its distance from the last, None after a restart.

        ``was_idle``: the engine was idle just before it.
        """
        last, self.last = self.last, iteration
        if last is None:
            return None
        stride = iteration - last
        if stride < 0 or stride > MAX_STRIDE:
            self._track_stride(1)
            return None
        if stride == 0:
            return 0
        missing = stride - 1 - was_idle
        if missing <= 0 and stride > 1:
            return stride
        if self.interval > 1 and stride % self._stride == 0:
            self.lost += stride // self._stride - 1
        else:
            self._track_stride(stride)
            self._possibly_lost += max(0, missing)
            if self.interval > 1:
                self._possibly_lost = 0
        return stride

    def _track_stride(self, stride: int) -> None:
        """Count the records that a stride skipped, unless it is the sampling interval."""
        if stride == self._stride:
            self._strides += stride > 1
            return
        self.lost += self._possibly_lost
        self._possibly_lost = 0
        self._stride, self._strides = stride, int(stride > 1)
