"""Objectives that a client can measure, and the verdict on each request.

Good and bad events are those of the sidecar (:mod:`exporter.recording.slo_evaluation`), measured
from the scheduled start, so that a request that is sent late is as late as its user sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadtest.confidence import ShareBounds, least_count, wilson
from loadtest.records import RequestRecord
from slos.indicators import threshold_text
from slos.model import Objective, Service
from slos.names import goodput_objective
from slos.outcomes import FAILURES, REFUSALS, failures
from slos.prompt_classes import NO_CLASSES, PromptClasses
from slos.signals import PROMPT_CLASS

MEASURABLE = ("ttft", "itl", "tpot", "e2e", "max_gap", "availability", "stream_completion")
"""Indicators that a client can measure, besides goodput."""
_CLAUSES = ("ttft", "tpot", "max_gap", "e2e")

Verdict = Literal["kept", "missed", "inconclusive"]


@dataclass(frozen=True, slots=True)
class ClientObjective:
    """An objective: the share ``target`` of events is good; limits in seconds.

    ``name`` is service and objective, as in the sidecar's goodput.  ``clauses`` are those of
    goodput.  ``text`` is its limit as written, ``failed`` the outcomes that spend its error budget.
    With a ``prompt_class``, one of ``classes``, only its requests count.
    """

    name: str
    indicator: str
    target: float
    threshold: float = 0.0
    clauses: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    failed: tuple[str, ...] = FAILURES
    prompt_class: str = ""
    classes: PromptClasses = NO_CLASSES

    def counts(self, record: RequestRecord) -> bool:
        """Whether a request is of the objective's prompt class.

        Its length is the server's count, else the planned one.
        """
        planned = int(record.prompt)
        tokens = planned if record.input_tokens is None else record.input_tokens
        return not self.prompt_class or self.classes.label(tokens) == self.prompt_class


@dataclass(frozen=True, slots=True)
class UnmeasuredObjective:
    """An objective that a client cannot measure, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """Events of an objective at one level.

    ``share`` is good / (good + bad), None without events; ``unknown`` events have no verdict.
    ``count`` is the number of independent events that the ``bounds`` assume: gaps of one stream are
    not independent, so for ``itl`` it is that of streams.  ``least`` events, all good, would keep
    the target.
    """

    objective: ClientObjective
    good: int
    bad: int
    unknown: int
    count: int
    share: float | None
    bounds: ShareBounds
    least: int

    @property
    def verdict(self) -> Verdict:
        """Whether the lower bound keeps the target, or the upper bound misses it."""
        if self.bounds.lower >= self.objective.target:
            return "kept"
        return "missed" if self.bounds.upper < self.objective.target else "inconclusive"

    @property
    def acceptable(self) -> bool:
        """Whether it is kept, or good in as many requests as there are, too few for a proof."""
        if self.verdict == "kept":
            return True
        return self.count < self.least and (self.share or 0.0) >= self.objective.target


def client_objectives(
    services: Iterable[Service], model: str
) -> tuple[list[ClientObjective], list[UnmeasuredObjective]]:
    """Return the objectives on ``model`` that a client can measure, and the others."""
    measured, unmeasured = [], []
    for service in services:
        for objective in service.objectives:
            name = goodput_objective(service.service, objective.name)
            if reason := _reason(service, objective, model):
                unmeasured.append(UnmeasuredObjective(name, reason))
            else:
                measured.append(_client_objective(name, service, objective))
    return measured, unmeasured


def _client_objective(name: str, service: Service, objective: Objective) -> ClientObjective:
    return ClientObjective(
        name,
        objective.indicator,
        float(objective.target),
        float(objective.threshold or 0),
        {clause: float(limit) for clause, limit in objective.clauses.items()},
        threshold_text(objective),
        failures(service.spending(objective)),
        service.selects(objective).get(PROMPT_CLASS, ""),
        PromptClasses.of(service.prompt_classes),
    )


def _reason(service: Service, objective: Objective, model: str) -> str:
    """Return why a client cannot measure an objective; empty if it can."""
    if objective.queries:
        return "its queries are about Prometheus' series"
    if objective.slices:
        return "it counts time slices"
    if objective.indicator == "goodput":
        foreign = [clause for clause in objective.clauses if clause not in _CLAUSES]
        if foreign:
            return f"clients cannot measure {', '.join(foreign)}"
    elif objective.indicator not in MEASURABLE:
        return f"clients cannot measure {objective.indicator}"
    selected = service.selects(objective).get("model", model)
    if selected != model:
        return f"it is about the model {selected}"
    selected = service.selects(objective).get(PROMPT_CLASS, "")
    if selected and selected not in PromptClasses.of(service.prompt_classes).labels:
        return f"it selects the prompt class {selected}, which the file does not have"
    return ""


def evaluate(
    objective: ClientObjective, records: Sequence[RequestRecord], confidence: float
) -> ObjectiveResult:
    """Count the events of an objective."""
    records = [record for record in records if objective.counts(record)]
    if objective.indicator == "itl":
        gaps = [gap <= objective.threshold for record in records for gap in waits(record)]
        good, bad, unknown = sum(gaps), len(gaps) - sum(gaps), 0
        count = sum(1 for record in records if waits(record))
    else:
        verdicts = [verdict(objective, record) for record in records]
        good, bad, unknown = (verdicts.count(each) for each in ("good", "bad", "unknown"))
        count = good + bad
    share = good / (good + bad) if good + bad else None
    bounds = wilson(share or 0.0, count, confidence)
    least = least_count(objective.target, confidence)
    return ObjectiveResult(objective, good, bad, unknown, count, share, bounds, least)


def verdict(objective: ClientObjective, record: RequestRecord) -> str:
    """Return ``good``, ``bad``, ``unknown``, or an empty string for no event."""
    if not objective.counts(record):
        return ""
    if objective.indicator == "goodput":
        return _goodput(objective, record)
    return _of_indicator(objective, objective.threshold, record)


def _of_indicator(objective: ClientObjective, threshold: float, record: RequestRecord) -> str:
    ok, late = record.outcome == "ok", record.lag
    is_exempt = record.outcome == "invalid" or _is_exempt(objective, record)
    match objective.indicator:
        case "ttft" if record.ttft is not None:
            return _within(record.ttft + late, threshold)
        case "ttft":
            return "" if is_exempt else "bad"
        case "e2e" if ok or record.e2e + late > threshold:
            return _within(record.e2e + late, threshold)
        case "tpot" if ok and len(record.chunks) > 1:
            return "unknown" if record.tpot is None else _within(record.tpot, threshold)
        case "max_gap" if len(record.chunks) > 1:
            return _within(max(waits(record)), threshold)
        case "availability":
            return "good" if ok else "bad" if record.outcome in objective.failed else ""
        case "stream_completion" if record.chunks:
            return "good" if ok else "bad" if record.outcome in objective.failed else ""
    return ""


def _is_exempt(objective: ClientObjective, record: RequestRecord) -> bool:
    """Return whether a request was refused without spending the error budget."""
    return record.outcome in REFUSALS and record.outcome not in objective.failed


def _goodput(objective: ClientObjective, record: RequestRecord) -> str:
    clauses = objective.clauses
    if record.outcome in objective.failed:
        return "bad"
    if record.outcome == "invalid" or _is_exempt(objective, record):
        return ""
    known: dict[str, float | None] = {
        "ttft": None if record.ttft is None else record.ttft + record.lag,
        "e2e": record.e2e + record.lag,
        "max_gap": max(waits(record), default=0.0) if record.chunks else None,
        "tpot": record.tpot,
    }
    if record.ttft is None and "ttft" in clauses:
        return "bad"
    times = {clause: known[clause] for clause in clauses}
    if any(seconds is not None and seconds > clauses[name] for name, seconds in times.items()):
        return "bad"
    if record.outcome == "client_disconnected":
        return ""
    return "unknown" if None in times.values() else "good"


def waits(record: RequestRecord) -> Sequence[float]:
    """Return the gaps of a stream, with the wait in which it timed out."""
    if record.outcome == "timeout" and record.chunks:
        return [*record.gaps, record.ended - record.chunks[-1]]
    return record.gaps


def _within(seconds: float, threshold: float) -> str:
    return "good" if seconds <= threshold else "bad"
