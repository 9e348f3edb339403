"""The queues of a server, by priority."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from admission.capacity import MeasuredCapacity
from admission.limit import MAX_COUNT, AdmissionLimit, Computed
from admission.thresholds import ServiceThresholds
from promql.expr import decimal_text
from slos.durations import format_duration
from slos.errors import InvalidFile, Problem
from slos.model import Service

_LOWER = "--lower-priorities"


@dataclass(frozen=True, slots=True)
class PriorityQueue:
    """The queue of one priority, 1 for the highest: its length, and its timeout in seconds."""

    priority: int
    timeout: Decimal
    size: int


def priority_queues(
    service: Service,
    capacity: MeasuredCapacity,
    thresholds: ServiceThresholds,
    lower_priorities: tuple[Decimal, ...],
) -> Computed[tuple[PriorityQueue, ...]]:
    """Return the queues: in none of them a request waits longer than its TTFT threshold allows.

    A request waits for all in its queue and in those before it, which leave at the measured rate.
    Raises InvalidFile if the thresholds leave no time, or those of priorities do not ascend.
    """
    _check_ascending(service, thresholds.ttft.seconds, lower_priorities)
    queues: list[PriorityQueue] = []
    limits: list[AdmissionLimit] = []
    before = 0
    for priority, ttft in enumerate((thresholds.ttft.seconds, *lower_priorities), start=1):
        wait, arithmetic, follows_from = _wait(service, capacity, thresholds, priority, ttft)
        fits = wait * capacity.rate
        size = min(max(int(fits) - before, 1), MAX_COUNT)
        shown = f"{format_duration(wait)} x {decimal_text(capacity.rate)}/s = {fits:.1f}"
        if before:
            shown += f", less {before} of higher priorities"
        if int(fits) - before < 1:
            shown += ", at least 1"
        suffix = f", priority {priority}" if lower_priorities else ""
        timeout = format_duration(wait)
        limits += [
            AdmissionLimit(f"queue timeout{suffix}", timeout, arithmetic, follows_from),
            AdmissionLimit(f"queue length{suffix}", str(size), shown, follows_from),
        ]
        queues.append(PriorityQueue(priority, wait, size))
        before += size
    return Computed(tuple(queues), tuple(limits))


def _check_ascending(
    service: Service, first: Decimal, lower_priorities: tuple[Decimal, ...]
) -> None:
    for higher, lower in pairwise((first, *lower_priorities)):
        if lower <= higher:
            message = (
                f"the TTFT threshold {format_duration(lower)} of a lower priority is not above "
                f"{format_duration(higher)}, that of the priority before it"
            )
            fix = "give ascending thresholds above the tightest TTFT threshold of the file"
            raise InvalidFile([Problem(service.file, service.line, _LOWER, message, fix)])


def _wait(
    service: Service,
    capacity: MeasuredCapacity,
    thresholds: ServiceThresholds,
    priority: int,
    ttft: Decimal,
) -> tuple[Decimal, str, str]:
    """Return how long a request may wait, the arithmetic, and what it follows from."""
    unqueued, queue = capacity.unqueued_ttft, thresholds.queue
    wait = ttft - unqueued
    arithmetic = f"ttft {format_duration(ttft)} - {format_duration(unqueued)} without a queue"
    if wait <= 0:
        message = (
            f"TTFT without a queue is {format_duration(unqueued)} ({capacity.file}), which leaves "
            f"no time to wait in {thresholds.ttft}"
        )
        fix = "raise the threshold, or measure a faster server or shorter prompts"
        raise InvalidFile([Problem(service.file, service.line, "objectives", message, fix)])
    if priority > 1:
        return wait, arithmetic, _LOWER
    if queue is not None and queue.seconds < wait:
        return queue.seconds, f"the threshold, below {arithmetic}", str(queue)
    return wait, arithmetic, str(thresholds.ttft)
