"""The limits that keep the objectives of a service at a measured capacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from admission.capacity import MeasuredCapacity
from admission.gateway_limits import (
    GatewayRequests,
    gateway_requests,
    request_rate,
    token_rate,
)
from admission.hops import HopTimeouts, hop_timeouts
from admission.limit import AdmissionLimit, AdmissionSettings, GatewayRate
from admission.queues import PriorityQueue, priority_queues
from admission.thresholds import ServiceThresholds, thresholds_of
from admission.work import longest_input, longest_output, running_sequences, tokens_per_iteration
from slos.durations import format_duration
from slos.errors import InvalidFile, Problem, quoted
from slos.indicators import threshold_text
from slos.model import Service
from slos.names import goodput_objective


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """The limits of one service.

    ``max_num_tokens`` and ``token_rate`` are None if the capacity lacks token counts.  Limits of a
    gateway are those of each process, except ``token_rate``.
    """

    service: Service
    capacity: MeasuredCapacity
    settings: AdmissionSettings
    thresholds: ServiceThresholds
    input_tokens: int
    output_tokens: int
    running: int
    max_num_tokens: int | None
    queues: tuple[PriorityQueue, ...]
    gateway: GatewayRequests
    request_rate: GatewayRate
    token_rate: GatewayRate | None
    hops: HopTimeouts
    limits: tuple[AdmissionLimit, ...]
    notes: tuple[str, ...]

    @property
    def queue_size(self) -> int:
        """The length of the queue of a server that has one queue."""
        return self.queues[0].size

    @property
    def sequence_tokens(self) -> int:
        """The longest sequence."""
        return self.input_tokens + self.output_tokens

    @property
    def needs_chunks(self) -> bool:
        """Whether a prompt can be longer than an iteration."""
        return self.max_num_tokens is not None and self.max_num_tokens < self.input_tokens


def admission_plan(
    service: Service, capacity: MeasuredCapacity, settings: AdmissionSettings
) -> AdmissionPlan:
    """Return the limits of a service.

    Raises InvalidFile if the objectives leave no room, or the capacity belongs to others.
    """
    thresholds = thresholds_of(service)
    _check_objectives(service, capacity)
    given = longest_input(service, capacity, thresholds, settings)
    answer = longest_output(service, capacity, thresholds, settings)
    running = running_sequences(capacity)
    per_iteration = tokens_per_iteration(capacity, thresholds, running.value)
    queues = priority_queues(service, capacity, thresholds, settings.lower_priorities)
    queued = sum(queue.size for queue in queues.value)
    gateway = gateway_requests(running.value, queued, settings)
    requests, tokens = request_rate(capacity, settings), token_rate(capacity, settings)
    hops = hop_timeouts(thresholds, answer.value)
    parts = (given, answer, running, per_iteration, queues, gateway, requests, tokens)
    limits = chain.from_iterable(part.limits for part in parts)
    return AdmissionPlan(
        service=service,
        capacity=capacity,
        settings=settings,
        thresholds=thresholds,
        input_tokens=given.value,
        output_tokens=answer.value,
        running=running.value,
        max_num_tokens=per_iteration.value,
        queues=queues.value,
        gateway=gateway.value,
        request_rate=requests.value,
        token_rate=tokens.value,
        hops=hops,
        limits=(*limits, *_timeouts(hops, thresholds, queues.value[0])),
        notes=(*capacity.notes, *chain.from_iterable(part.notes for part in parts)),
    )


def _check_objectives(service: Service, capacity: MeasuredCapacity) -> None:
    """Refuse a capacity that was measured against other objectives, or other limits."""
    own = {
        goodput_objective(service.service, each.name): threshold_text(each)
        for each in service.objectives
    }
    fix = f"run `tokenslo load --slo {service.file}` again"
    shared = own.keys() & capacity.objectives.keys()
    problems = [
        Problem(
            capacity.file,
            0,
            name,
            f"was measured with the limit {quoted(capacity.objectives[name])}, {service.file} "
            f"has {quoted(own[name])}",
            fix,
        )
        for name in sorted(shared)
        if own[name] != capacity.objectives[name]
    ]
    if capacity.objectives and not shared:
        names = ", ".join(map(quoted, sorted(capacity.objectives)))
        message = f"was measured against {names}, none of which is of {service.service}"
        problems.append(Problem(capacity.file, 0, "", message, fix))
    if problems:
        raise InvalidFile(problems)


def _timeouts(
    hops: HopTimeouts, thresholds: ServiceThresholds, queue: PriorityQueue
) -> Iterator[AdmissionLimit]:
    follows = f"{thresholds.loose_ttft}, {thresholds.loose_pace}"
    yield AdmissionLimit("longest answer", str(hops.answer), hops.answer.arithmetic, follows)
    timeout = format_duration(queue.timeout)
    why = "the queue timeout"
    yield AdmissionLimit("timeout: engine queue", timeout, why, str(thresholds.ttft))
    for name, hop in (("server", hops.server), ("gateway", hops.gateway), ("client", hops.client)):
        yield AdmissionLimit(f"timeout: {name}", str(hop), hop.arithmetic, "the longest answer")
    gap = str(thresholds.longest_gap)
    for name, hop in (("gateway", hops.gateway_idle), ("client", hops.client_idle)):
        yield AdmissionLimit(f"idle timeout: {name}", str(hop), hop.arithmetic, gap)
