"""The latency thresholds of a service that limits follow from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from slos.durations import format_duration
from slos.errors import InvalidFile, Problem
from slos.model import Service


@dataclass(frozen=True, slots=True)
class LatencyThreshold:
    """A threshold in seconds of an objective, or of a clause of goodput."""

    objective: str
    indicator: str
    seconds: Decimal

    def __str__(self) -> str:
        return f"{self.objective} ({self.indicator} {format_duration(self.seconds)})"


@dataclass(frozen=True, slots=True)
class ServiceThresholds:
    """The tightest thresholds limit a queue, the loosest ones limit the time of a request.

    A pace is the time of a token: ITL or TPOT.
    """

    ttft: LatencyThreshold
    loose_ttft: LatencyThreshold
    pace: LatencyThreshold
    loose_pace: LatencyThreshold
    queue: LatencyThreshold | None = None
    max_gap: LatencyThreshold | None = None
    e2e: LatencyThreshold | None = None

    @property
    def longest_gap(self) -> LatencyThreshold:
        """The longest silence that an objective allows: before the first token, or after it."""
        after = self.max_gap or self.loose_pace
        return max(self.loose_ttft, after, key=lambda one: one.seconds)


def thresholds_of(service: Service) -> ServiceThresholds:
    """Return the thresholds of a service; raises InvalidFile without one for TTFT or a pace."""
    problems = []
    for indicators, needed in (
        (("ttft",), "the length of a queue needs it"),
        (("itl", "tpot"), "the time of an answer needs it"),
    ):
        if not any(_found(service, *indicators)):
            names = " or ".join(indicators)
            problems.append(
                Problem(
                    service.file,
                    service.line,
                    "objectives",
                    f"none of {service.service} has a threshold for {names}; {needed}",
                    f"add an objective with the indicator {indicators[0]}, or a goodput objective "
                    f"with the clause {indicators[-1]}",
                )
            )
    if problems:
        raise InvalidFile(problems)
    return ServiceThresholds(
        ttft=_least(service, "ttft"),
        loose_ttft=_most(service, "ttft"),
        pace=_least(service, "itl", "tpot"),
        loose_pace=_most(service, "itl", "tpot"),
        queue=_least(service, "queue") if any(_found(service, "queue")) else None,
        max_gap=_most(service, "max_gap") if any(_found(service, "max_gap")) else None,
        e2e=_most(service, "e2e") if any(_found(service, "e2e")) else None,
    )


def _found(service: Service, *indicators: str) -> Iterator[LatencyThreshold]:
    for objective in service.objectives:
        if objective.indicator in indicators and objective.threshold is not None:
            yield LatencyThreshold(objective.name, objective.indicator, objective.threshold)
        for key, seconds in objective.clauses.items():
            if key in indicators:
                yield LatencyThreshold(objective.name, key, seconds)


def _least(service: Service, *indicators: str) -> LatencyThreshold:
    return min(_found(service, *indicators), key=lambda one: one.seconds)


def _most(service: Service, *indicators: str) -> LatencyThreshold:
    return max(_found(service, *indicators), key=lambda one: one.seconds)
