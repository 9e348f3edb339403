"""Evaluate requests against the thresholds of SLO files, active requests included.

A request is late for ``ttft``, ``e2e`` or ``max_gap`` from the moment it exceeds the threshold, and
bad for a goodput objective from the moment it breaks the first of these clauses.  Both are counted
once: at the next scrape, or at the end of the request if that comes first.  The outcome of a late
request does not matter, so the totals do not depend on the times of scrapes.

The wait for the next token counts as a gap, also the wait between the last token and the end.
Events after a client disconnect do not count.  Of an opaque response, only ``e2e`` and the wait for
its start are evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.protocol.events import Stream
from exporter.recording.goodput import GoodputObjective, GoodputVerdict, verdict_at_end
from exporter.recording.model_metrics import ModelMetrics
from exporter.recording.request_counts import ended_without_token
from slos.outcomes import REFUSALS, Outcome
from slos.signals import RESULTS


@dataclass(slots=True)
class SloEvaluation:
    """The SLO events already counted for one request.

    ``late``: signals and thresholds counted as bad.  ``objectives``: the objectives with a verdict.
    ``first``: the first token is counted.  ``gaps``: when a gap first exceeded each limit.
    ``pending``: the thresholds of ``itl`` that the wait for the next token has exceeded.
    ``prompt_class``: None before the first event that needs it.
    """

    late: frozenset[tuple[str, float]] = frozenset()
    objectives: frozenset[str] = frozenset()
    first: bool = False
    gaps: dict[float, float] = field(default_factory=dict)
    pending: frozenset[float] = frozenset()
    prompt_class: str | None = None

    def classify(self, model: ModelMetrics, stream: Stream) -> str:
        """Return the prompt class, determined once so that all series of a request agree."""
        if self.prompt_class is None:
            self.prompt_class = model.classify(stream)
        return self.prompt_class

    def record_gap(self, model: ModelMetrics, began: float, gap: float) -> None:
        """Record when a gap that began at ``began`` exceeded each limit of the model."""
        for limit in model.gap_limits:
            if gap > limit and limit not in self.gaps:
                self.gaps[limit] = began + limit

    def resolve_pending_gap(self, model: ModelMetrics) -> None:
        """Uncount the pending wait: the histogram of gaps counts it from now on."""
        for threshold in self.pending:
            model.late_gaps[threshold] -= 1
        self.pending = frozenset()


def evaluate_first_token(model: ModelMetrics, stream: Stream, counted: SloEvaluation) -> None:
    """Count the first token, unless the client disconnected before it."""
    if not counted.first:
        counted.first = True
        seconds = stream.first - stream.arrived
        for threshold in model.thresholds.get("ttft", ()):
            if ("ttft", threshold) not in counted.late:
                result = RESULTS[seconds > threshold]
                prompt_class = counted.classify(model, stream)
                model.count_slo_event("ttft", threshold, result, prompt_class)


def evaluate_active(
    model: ModelMetrics, stream: Stream, counted: SloEvaluation, until: float, tenant: str
) -> None:
    """Count the thresholds and clauses that an active request has exceeded by ``until``."""
    _count_late(model, stream, counted, until)
    for objective in model.objectives:
        done = objective.name in counted.objectives
        clause = "" if done else _broken_first(objective, stream, counted, until)
        if clause:
            counted.objectives |= {objective.name}
            verdict, prompt_class = GoodputVerdict("bad", clause), counted.classify(model, stream)
            model.count_verdict(objective, verdict, tenant, prompt_class)


def evaluate_ended(
    model: ModelMetrics,
    stream: Stream,
    counted: SloEvaluation,
    until: float,
    outcome: Outcome,
    tenant: str,
    known: Mapping[str, float],
) -> None:
    """Count the remaining SLO events of a request that ended or was disconnected at ``until``.

    ``known`` are its times in seconds, by signal.
    """
    evaluate_active(model, stream, counted, until, tenant)
    ok = outcome == "ok"
    empty = stream.streaming and outcome != "invalid" and ended_without_token(stream, outcome)
    if empty:
        # No latency histogram counts it.
        result = outcome if outcome in REFUSALS else "bad"
        _count_remaining(model, stream, "ttft", counted, result)
    if stream.streaming:
        if stream.chunks:
            evaluate_first_token(model, stream, counted)
        if stream.chunks > 1 and not stream.opaque:
            _count_remaining(model, stream, "max_gap", counted, "good")
    if ok:
        _count_remaining(model, stream, "e2e", counted, "good")
    for objective in model.objectives:
        if objective.name not in counted.objectives:
            verdict = verdict_at_end(objective, outcome, known, empty=empty)
            if verdict:
                prompt_class = counted.classify(model, stream)
                model.count_verdict(objective, verdict, tenant, prompt_class)


def _count_late(model: ModelMetrics, stream: Stream, counted: SloEvaluation, until: float) -> None:
    for signal in ("ttft", "max_gap", "e2e"):
        if signal == "ttft" and counted.first:
            continue
        for threshold in model.thresholds.get(signal, ()):
            if (signal, threshold) in counted.late:
                continue
            if _broken_at(signal, threshold, stream, counted, until) is not None:
                counted.late |= {(signal, threshold)}
                prompt_class = counted.classify(model, stream) if signal == "ttft" else ""
                model.count_slo_event(signal, threshold, "bad", prompt_class)
    if stream.chunks and not (stream.silent_end or stream.opaque):
        for threshold in model.thresholds.get("itl", ()):
            if until - stream.last > threshold and threshold not in counted.pending:
                counted.pending |= {threshold}
                model.late_gaps[threshold] += 1


def _count_remaining(
    model: ModelMetrics, stream: Stream, signal: str, counted: SloEvaluation, result: str
) -> None:
    for threshold in model.thresholds.get(signal, ()):
        if (signal, threshold) not in counted.late:
            prompt_class = counted.classify(model, stream)
            model.count_slo_event(signal, threshold, result, prompt_class)


def _broken_first(
    objective: GoodputObjective, stream: Stream, counted: SloEvaluation, until: float
) -> str:
    """Return the first clause that a request broke by ``until``, empty if none."""
    broken = [
        (at, place, clause)
        for place, (clause, limit) in enumerate(objective.clauses.items())
        if (at := _broken_at(clause, limit, stream, counted, until)) is not None
    ]
    return min(broken)[2] if broken else ""


def _broken_at(
    signal: str, limit: float, stream: Stream, counted: SloEvaluation, until: float
) -> float | None:
    """Return when a request exceeded a limit in seconds; None if it did not by ``until``."""
    match signal:
        case "ttft" if stream.streaming and (stream.chunks or not stream.unread):
            waited = (min(stream.first, until) if stream.chunks else until) - stream.arrived
            return stream.arrived + limit if waited > limit else None
        case "e2e":
            return stream.arrived + limit if until - stream.arrived > limit else None
        case "max_gap" if stream.chunks and not stream.opaque:
            if limit in counted.gaps and counted.gaps[limit] < until:
                return counted.gaps[limit]
            waiting = until - stream.last > limit and not stream.silent_end
            return stream.last + limit if waiting else None
    return None
