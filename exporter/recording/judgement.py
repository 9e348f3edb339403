"""Judge requests by the thresholds of SLO files, requests under way included.

A request is late for ``ttft``, ``e2e`` or ``max_gap`` from the moment it crosses the threshold, and
bad for a goodput objective from the moment it breaks the first of these clauses.  Both are counted
once: at the scrape after that moment, or at its end if that comes first.  The outcome of a request
that was late does not matter, so the totals do not depend on when scrapes happen.

The wait for the next token counts as a gap, also the wait between the last token and the end.  What
happens after a client has disconnected does not count.  Of an answer that cannot be read nothing is
judged but ``e2e`` and the wait until it begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.protocol.events import Outcome, Stream
from exporter.recording.goodput import GoodputObjective, GoodputVerdict, verdict_at_end
from exporter.recording.model_metrics import ModelMetrics


@dataclass(slots=True)
class Judgement:
    """What has been counted for one request.

    ``late`` are signals and thresholds counted as bad, ``goals`` the objectives that have a
    verdict, and ``first`` says that the first token is judged.  ``gaps`` is when a gap first
    exceeded each limit, and ``pending`` are the thresholds of ``itl`` that the wait for the next
    token has exceeded.
    """

    late: frozenset[tuple[str, float]] = frozenset()
    goals: frozenset[str] = frozenset()
    first: bool = False
    gaps: dict[float, float] = field(default_factory=dict)
    pending: frozenset[float] = frozenset()

    def note_gap(self, model: ModelMetrics, began: float, gap: float) -> None:
        """Remember when a gap that began at ``began`` exceeded each limit of the model."""
        for limit in model.gap_limits:
            if gap > limit and limit not in self.gaps:
                self.gaps[limit] = began + limit

    def token_came(self, model: ModelMetrics) -> None:
        """Leave the wait that has ended to the histogram of gaps."""
        for threshold in self.pending:
            model.late_gaps[threshold] -= 1
        self.pending = frozenset()


def judge_first_token(model: ModelMetrics, stream: Stream, done: Judgement) -> None:
    """Judge a first token that the client was there to get."""
    if not done.first:
        done.first = True
        seconds = stream.first - stream.arrived
        for threshold in model.thresholds.get("ttft", ()):
            if ("ttft", threshold) not in done.late:
                model.event("ttft", threshold, good=seconds <= threshold)


def evaluate_active(
    model: ModelMetrics, stream: Stream, done: Judgement, until: float, tenant: str
) -> None:
    """Count what a request under way has crossed by ``until``."""
    _late(model, stream, done, until)
    for goal in model.goals:
        clause = "" if goal.name in done.goals else _broken_first(goal, stream, done, until)
        if clause:
            done.goals |= {goal.name}
            model.judged(goal, GoodputVerdict("bad", clause), tenant)


def judge_ended(
    model: ModelMetrics,
    stream: Stream,
    done: Judgement,
    until: float,
    outcome: Outcome,
    tenant: str,
    known: Mapping[str, float],
) -> None:
    """Count what is left to count of a request that ended, or whose client left, at ``until``.

    ``known`` are its times in seconds, by signal.
    """
    evaluate_active(model, stream, done, until, tenant)
    ok = outcome == "ok"
    if stream.streaming:
        if stream.chunks:
            judge_first_token(model, stream, done)
        elif outcome not in ("ok", "invalid") and not stream.unread:
            # It died before its first token: no latency histogram has it.
            _remaining(model, "ttft", done, good=False)
        if stream.chunks > 1 and not stream.opaque:
            _remaining(model, "max_gap", done, good=True)
    if ok:
        _remaining(model, "e2e", done, good=True)
    for goal in model.goals:
        if goal.name not in done.goals:
            verdict = verdict_at_end(goal, outcome, known)
            if verdict:
                model.judged(goal, verdict, tenant)


def _late(model: ModelMetrics, stream: Stream, done: Judgement, until: float) -> None:
    for signal in ("ttft", "max_gap", "e2e"):
        if signal == "ttft" and done.first:
            continue
        for threshold in model.thresholds.get(signal, ()):
            if (signal, threshold) in done.late:
                continue
            if _broken_at(signal, threshold, stream, done, until) is not None:
                done.late |= {(signal, threshold)}
                model.event(signal, threshold, good=False)
    if stream.chunks and not (stream.silent_end or stream.opaque):
        for threshold in model.thresholds.get("itl", ()):
            if until - stream.last > threshold and threshold not in done.pending:
                done.pending |= {threshold}
                model.late_gaps[threshold] += 1


def _remaining(model: ModelMetrics, signal: str, done: Judgement, *, good: bool) -> None:
    for threshold in model.thresholds.get(signal, ()):
        if (signal, threshold) not in done.late:
            model.event(signal, threshold, good=good)


def _broken_first(goal: GoodputObjective, stream: Stream, done: Judgement, until: float) -> str:
    """Return the clause that a request broke first, empty if it broke none by ``until``."""
    broken = [
        (at, place, clause)
        for place, (clause, limit) in enumerate(goal.clauses.items())
        if (at := _broken_at(clause, limit, stream, done, until)) is not None
    ]
    return min(broken)[2] if broken else ""


def _broken_at(
    signal: str, limit: float, stream: Stream, done: Judgement, until: float
) -> float | None:
    """Return when a request crossed a limit in seconds; None if it did not by ``until``."""
    match signal:
        case "ttft" if stream.streaming and (stream.chunks or not stream.unread):
            waited = (min(stream.first, until) if stream.chunks else until) - stream.arrived
            return stream.arrived + limit if waited > limit else None
        case "e2e":
            return stream.arrived + limit if until - stream.arrived > limit else None
        case "max_gap" if stream.chunks and not stream.opaque:
            if limit in done.gaps and done.gaps[limit] < until:
                return done.gaps[limit]
            waiting = until - stream.last > limit and not stream.silent_end
            return stream.last + limit if waiting else None
    return None
