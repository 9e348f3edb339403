"""Run diagnosis checks against Prometheus, and compare their results with healthy ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from diagnosis.presence import missing, needed, presence_queries
from promql.client import PrometheusError, QueryResult, Sample
from promql.expr import Expr, equal, selector_text
from runbooks.check_queries import Subject
from runbooks.diagnosis_check import DiagnosisCheck, HealthyResult, verdict

PARALLEL = 4
"""The maximum number of queries at once."""

_SHOWN = 3
_HIDDEN = frozenset({"__name__", "job", "service", "slo"})

Query = Callable[[str], list[Sample]]
"""Evaluate a PromQL query; raises PrometheusError."""
CheckVerdict = Literal["healthy", "sick", "no_data", "failed"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check with its result.

    ``samples`` are its elements, the sick ones first; ``reason`` is why there is no verdict.
    ``objective`` is empty if the check is the same for all objectives.
    """

    key: str
    question: str
    objective: str
    query: str
    healthy: str
    verdict: CheckVerdict
    samples: tuple[Sample, ...] = ()
    reason: str = ""
    rules_out: str = ""
    note: str = ""

    @property
    def has_data(self) -> bool:
        """Whether the check is healthy or sick."""
        return self.verdict in ("healthy", "sick")

    @property
    def value(self) -> str:
        """The result as text: its first elements with their labels, empty without any."""
        shown = ", ".join(map(_element, self.samples[:_SHOWN]))
        more = len(self.samples) - _SHOWN
        return f"{shown} and {more} more" if more > 0 else shown


def _element(sample: Sample) -> str:
    labels = {name: value for name, value in sample.labels.items() if name not in _HIDDEN}
    if "alertname" in labels:  # its value is always 1
        return " ".join(labels[name] for name in ("alertname", "instance") if name in labels)
    value = f"{sample.value:.4g}"
    return f"{value} {selector_text('', equal(labels))}" if labels else value


@dataclass(frozen=True, slots=True)
class PlannedCheck:
    """A check of an objective, with its query."""

    check: DiagnosisCheck
    subject: Subject

    @property
    def expr(self) -> Expr:
        """The query."""
        return self.check.query(self.subject)


Answer = QueryResult | str
"""A result, or the reason why there is none."""


class Queries:
    """Concurrent queries with a limit on their number and on the time of all of them.

    ``seconds`` is the limit; no query is sent after it.
    """

    def __init__(
        self, query: Query, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._query = query
        self._seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds
        self._answers: dict[str, Answer] = {}
        self._stopped = ""

    def run(self, exprs: Iterable[str]) -> Mapping[str, Answer]:
        """Return the answers to all queries so far, each sent once."""
        new = [expr for expr in dict.fromkeys(exprs) if expr not in self._answers]
        with ThreadPoolExecutor(PARALLEL) as pool:
            self._answers |= dict(zip(new, pool.map(self._answer, new), strict=True))
        return self._answers

    def stop(self, reason: str) -> None:
        """Send no further query; ``reason`` is the answer to all that were not sent."""
        self._stopped = reason

    def _answer(self, expr: str) -> Answer:
        if self._stopped:
            return self._stopped
        if self._clock() >= self._deadline:
            return f"not queried: the checks before took {self._seconds:g} s"
        try:
            result = self._query(expr)
        except PrometheusError as error:
            return str(error)
        return result if isinstance(result, QueryResult) else QueryResult(result)


def run_checks(checks: Sequence[PlannedCheck], queries: Queries) -> list[CheckResult]:
    """Run checks and return their results in the same order."""
    exprs = [each.expr for each in checks]
    texts = [str(expr) for expr in exprs]
    answers = queries.run(texts)
    answered = list(zip(checks, exprs, (answers[text] for text in texts), strict=True))
    present = _present(
        [(each.subject, expr) for each, expr, answer in answered if answer == []], queries
    )
    return [
        _result(each, expr, answer, present.get(id(each.subject)))
        for each, expr, answer in answered
    ]


def _present(
    empty: Sequence[tuple[Subject, Expr]], queries: Queries
) -> Mapping[int, frozenset[str] | str]:
    """Return the metrics with series by subject, or the reason why they are unknown."""
    metrics: dict[int, set[str]] = {}
    scopes = {}
    for subject, expr in empty:
        scopes[id(subject)] = subject.scope
        metrics.setdefault(id(subject), set()).update(*needed(expr))
    counts = {
        key: [str(each) for each in presence_queries(metrics[key], scope)]
        for key, scope in scopes.items()
    }
    answers = queries.run(each for every in counts.values() for each in every)
    return {key: _names([answers[each] for each in every]) for key, every in counts.items()}


def _names(answers: Sequence[Answer]) -> frozenset[str] | str:
    found: set[str] = set()
    for answer in answers:
        if isinstance(answer, str):
            return answer
        found.update(sample.labels.get("__name__", "") for sample in answer)
    return frozenset(found)


def _result(
    planned: PlannedCheck, expr: Expr, answer: Answer, present: frozenset[str] | str | None
) -> CheckResult:
    check, subject = planned.check, planned.subject
    healthy = check.healthy(subject)

    def result(
        verdict_: CheckVerdict, samples: Sequence[Sample] = (), reason: str = ""
    ) -> CheckResult:
        objective = subject.planned.objective.name if check.per_objective else ""
        return CheckResult(
            check.key,
            check.question,
            objective,
            str(expr),
            str(healthy),
            verdict_,
            tuple(samples),
            reason,
            check.rules_out,
            check.note,
        )

    if isinstance(answer, str):
        return result("failed", reason=answer)
    known = [sample for sample in answer if isfinite(sample.value)]
    if answer and not known:
        return result("no_data", answer, "the result is not a number")
    if not known and (unknown := _unanswered(healthy, expr, present)):
        return result(*unknown)
    sick = [each for each in known if verdict(healthy, [each.value]) == "sick"]
    fine = [each for each in known if each not in sick]
    warnings = "; ".join(answer.warnings)
    if warnings and not sick:
        return result("no_data", fine, f"the result may be partial: {warnings}")
    if check.key in _COMPARED and sick and not fine:
        return result("healthy", sick, "all elements are alike")
    found: CheckVerdict = "sick" if sick else "healthy"
    return result(found, [*sorted(sick, key=_size, reverse=True), *fine], reason=warnings)


def _unanswered(
    healthy: HealthyResult, expr: Expr, present: frozenset[str] | str | None
) -> tuple[CheckVerdict, tuple[Sample, ...], str] | None:
    """Return why an empty result is no answer, None if it is one."""
    if isinstance(present, str):
        return "failed", (), present
    if present is not None and (absent := missing(expr, present)):
        return "no_data", (), f"Prometheus has no {absent}"
    return None if healthy.value is None else ("no_data", (), "the result is empty")


def _size(sample: Sample) -> float:
    return abs(sample.value)


_COMPARED = frozenset({"instances"})
"""Checks that compare elements with each other: if all are sick, none is worse than the rest."""
