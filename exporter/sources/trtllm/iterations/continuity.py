"""Which iterations are missing from a sequence of records: lost ones, and ones never emitted.

Records are given to whoever asks first and dropped from full queues without a trace, but they are
numbered.  Two things look like loss and are none: with ``iter_perf_stats_interval: N`` PyTorch
emits every Nth record only, and a loop of PyTorch that finds nothing to run has a number and no
record.
"""

from __future__ import annotations

from dataclasses import dataclass

SAMPLING_STRIDES = 5
"""So many equal strides in a row are a sampling interval."""

MAX_STRIDE = 10_000_000
"""A number further ahead than this is another engine's."""


@dataclass(slots=True)
class Continuity:
    """Follows the numbers of one sequence of records; ``lost`` counts the missing ones.

    Whether a stride of more than one is loss or sampling shows with the records that follow, so
    loss is counted one record late.
    """

    last: int | None = None
    lost: int = 0
    _stride: int = 1
    _strides: int = 0
    _suspects: int = 0

    @property
    def interval(self) -> int:
        """Every how manyth iteration is recorded, as far as is known."""
        return self._stride if self._strides >= SAMPLING_STRIDES else 1

    def follow(self, iteration: int, *, was_idle: bool) -> int | None:
        """Take in the next number; return how far it is from the last, None at a new start.

        ``was_idle`` says that the engine ran empty just before.
        """
        last, self.last = self.last, iteration
        if last is None:
            return None
        stride = iteration - last
        if stride < 0 or stride > MAX_STRIDE:
            self._judge(1)
            return None
        if stride == 0:
            return 0
        missing = stride - 1 - was_idle
        if missing <= 0 and stride > 1:
            return stride
        if self.interval > 1 and stride % self._stride == 0:
            self.lost += stride // self._stride - 1
        else:
            self._judge(stride)
            self._suspects += max(0, missing)
            if self.interval > 1:
                self._suspects = 0
        return stride

    def _judge(self, stride: int) -> None:
        """Count what a stride that did not last has left out."""
        if stride == self._stride:
            self._strides += stride > 1
            return
        self.lost += self._suspects
        self._suspects = 0
        self._stride, self._strides = stride, int(stride > 1)
