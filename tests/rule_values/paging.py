"""Evaluate burn-rate conditions on scraped samples with NumPy, without Prometheus.

90 days of evaluations take Prometheus minutes, and NumPy a second.  ``test_paging_windows.py``
compares the results with those of Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from slos.events import MINUTE
from slos.outcomes import FAILURES
from tests.rule_values.traffic import ENDED, REQUESTS, Counts, Samples, Truth

Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Count = Callable[[int], tuple[Values, Values]]
"""Bad and all events in the ``window`` before each evaluation, in the same unit."""

_FAILED = FAILURES
_LONGEST_GAP = 1800
_EXTRAPOLATION_LIMIT = 1.1


@dataclass(frozen=True, slots=True)
class BurnRateCondition:
    """A burn-rate condition: an error ratio above ``threshold`` over both windows.

    It fires after ``wait`` seconds, with at least ``least_bad`` bad events in the long window.
    """

    pages: bool
    long: Decimal
    short: Decimal
    threshold: Decimal
    wait: Decimal = Decimal(0)
    least_bad: int = 0

    def seconds_to_fire(self, error_ratio: Decimal) -> Decimal | None:
        """Return the seconds until an error ratio fires this; None for never."""
        if error_ratio <= self.threshold:
            return None
        return self.threshold * self.long / error_ratio + self.wait

    def fires(self, count: Count, every: int) -> Flags:
        """Return whether this fires at each evaluation, one per ``every`` seconds."""
        bad, _ = count(int(self.long))
        holds = bad >= self.least_bad
        for window in (self.long, self.short):
            bad, total = count(int(window))
            holds &= bad > float(self.threshold) * total
        needed = int(self.wait) // every
        if not needed:
            return holds
        at = np.arange(len(holds))
        last_false = np.maximum.accumulate(np.where(holds, -1, at))
        return holds & (at - last_false > needed)


def series(samples: Samples, outcomes: Iterable[str]) -> Iterator[tuple[Counts, Values]]:
    """Yield times and values of the counters of requests with these outcomes, without ends."""
    for labels, (times, bits) in samples.items():
        named = dict(labels)
        if named["__name__"] == REQUESTS and named["outcome"] in outcomes:
            is_sample = bits != np.uint64(ENDED)
            if is_sample.sum() > 1:  # a single sample has no increase
                yield times[is_sample], bits[is_sample].view(np.float64)


def increases(samples: Samples, evaluations: Counts) -> Count:
    """Return counts as tokenslo's rules compute them: sums of increases recorded every minute."""

    def recorded(outcomes: Sequence[str]) -> Values:
        made = np.zeros(len(evaluations))
        for times, values in series(samples, outcomes):
            near = _near(times, evaluations, _LONGEST_GAP)
            now, before = (_last(times, values, evaluations[near] - ago) for ago in (0, MINUTE))
            grown = now - before
            made[near] += np.where(grown >= 0, grown, 0.0)  # not where either is missing: NaN
        return np.concatenate(([0.0], np.cumsum(made)))

    bad, total = recorded(_FAILED), recorded(("ok", *_FAILED))
    ends = np.arange(1, len(evaluations) + 1)

    def count(window: int) -> tuple[Values, Values]:
        # Prometheus 2 includes both ends of a window.
        starts = np.maximum(ends - window // MINUTE - 1, 0)
        return bad[ends] - bad[starts], total[ends] - total[starts]

    return count


def rates(samples: Samples, evaluations: Counts) -> Count:
    """Return counts as Sloth's and Pyrra's rules compute them: sums of rates over each window."""

    def summed(outcomes: Sequence[str], window: int) -> Values:
        made = np.zeros(len(evaluations))
        for times, values in series(samples, outcomes):
            near = _near(times, evaluations, window)
            made[near] += _rate(times, values, evaluations[near], window)
        return made

    def count(window: int) -> tuple[Values, Values]:
        bad = summed(_FAILED, window)
        return bad, bad + summed(("ok",), window)

    return count


def truth(requests: Truth, evaluations: Counts, tick: int) -> Count:
    """Return counts of all requests, independent of scrapes."""

    def count(window: int) -> tuple[Values, Values]:
        ends = evaluations // tick
        starts = np.maximum(ends - window // tick, 0)
        bad, total = (each[ends] - each[starts] for each in (requests.bad, requests.total))
        return bad.astype(np.float64), total.astype(np.float64)

    return count


def begins(firing: Flags) -> Counts:
    """Return the indices at which an alert begins to fire."""
    return np.flatnonzero(firing & ~np.concatenate(([False], firing[:-1])))


def _near(times: Counts, evaluations: Counts, window: int) -> slice:
    """Return the evaluations whose window contains samples of a series."""
    first = np.searchsorted(evaluations, times[0], side="left")
    return slice(first, np.searchsorted(evaluations, times[-1] + window, side="right"))


def _last(times: Counts, values: Values, evaluations: Counts) -> Values:
    """Return ``last_over_time`` over the longest gap; NaN without a sample."""
    index = np.searchsorted(times, evaluations, side="right") - 1
    found = (index >= 0) & (times[index] >= evaluations - _LONGEST_GAP)
    return np.where(found, values[index], np.nan)


def _rate(times: Counts, values: Values, evaluations: Counts, window: int) -> Values:
    """Return ``rate``, as Prometheus extrapolates it to the ends of a window; 0 by default."""
    resets = np.concatenate(([0.0], np.where(np.diff(values) < 0, values[:-1], 0.0)))
    running = values + np.cumsum(resets)
    first = np.searchsorted(times, evaluations - window, side="left")
    last = np.searchsorted(times, evaluations, side="right") - 1
    enough = last > first
    first, last = np.where(enough, first, 0), np.where(enough, last, 1)
    grown = running[last] - running[first]
    sampled = (times[last] - times[first]).astype(np.float64)
    between = sampled / (last - first)
    to_start = times[first] - (evaluations - window)
    with np.errstate(divide="ignore", invalid="ignore"):
        to_zero = np.where(grown > 0, sampled * values[first] / grown, np.inf)
    to_start, to_end = np.minimum(to_start, to_zero), evaluations - times[last]
    length = sampled + sum(
        np.where(gap < _EXTRAPOLATION_LIMIT * between, gap, between / 2)
        for gap in (to_start, to_end)
    )
    return np.where(enough, grown * length / sampled / window, 0.0)
