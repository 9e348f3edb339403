"""Read the history of objectives from Prometheus, in range queries within its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from alerts.backtest import History, Rates, aligned
from promql.client import QueryTooLargeError, Series
from promql.expr import Expr, Subquery, Text, aggregate, call, number, on, quote, vector
from slos import names
from slos.durations import parse_duration
from slos.plan import Plan, PlannedObjective

RangeQuery = Callable[[str, float, float, float], Sequence[Series]]
"""Run a range query: PromQL, first and last time, and step, in seconds."""
Group = tuple[str, ...]
"""The values of an objective's labels, as in its ``group_by``."""

STEP = 60.0
_POINTS = 2_000
"""Points per query: below Prometheus's limit of 11,000, and few enough to show progress."""
_LEAST_POINTS = 60
_DAY_POINTS = 288
_BASE_SECONDS = int(parse_duration(names.BASE_WINDOW))
# Without any `up`, Prometheus itself was down.
_TARGETS = aggregate("count", vector("up"))


@dataclass(frozen=True, slots=True)
class RankedGroups:
    """The groups of an objective: the worst ones, worst first, and the number of all."""

    worst: tuple[Group, ...]
    count: int


class PrometheusHistory:
    """The history of a Prometheus over ``days`` up to ``end`` (epoch seconds).

    ``query`` runs range queries; ``advance`` reports progress, in units of :meth:`work`.
    Methods pass on :class:`promql.client.PrometheusError` from both.
    """

    def __init__(
        self, query: RangeQuery, days: int, end: float, advance: Callable[[int], object]
    ) -> None:
        self._query, self._advance = query, advance
        self._end = end // STEP * STEP
        self._count = round(days * 86_400 / STEP)
        self._start = self._end - (self._count - 1) * STEP
        self._points = _POINTS
        self._down: list[bool] | None = None

    def work(self, plans: Sequence[Plan]) -> int:
        """Return the number of steps to query for all objectives of these plans."""
        queries = (len(_expressions(plan, each)) for plan in plans for each in plan.objectives)
        grouped = sum(bool(each.objective.group_by) for plan in plans for each in plan.objectives)
        return (1 + sum(queries) + 4 * grouped) * self._count

    def whole(self, plan: Plan, planned: PlannedObjective) -> History:
        """Return the history of an objective, the sum of its groups if it has any."""
        events, by = planned.events, planned.objective.group_by
        bad, total = (
            self._one(aggregate("sum", expr) if by else expr) for expr in (events.bad, events.total)
        )
        return History(
            self._start,
            STEP,
            bad,
            total,
            missing=() if _missing_by_rules(plan, planned) else self._flags(events.missing),
            uncovered=self._flags(events.uncovered),
            inconsistent=() if by else self._flags(events.inconsistent),
            down=self.down(),
        )

    def groups(self, planned: PlannedObjective, most: int) -> RankedGroups:
        """Rank the groups of an objective by spent budget, and return the ``most`` first ones.

        Groups with too few bad events for the alerts come last.
        """
        by, totals = planned.objective.group_by, dict[Group, list[float]]()
        for position, expr in enumerate((planned.events.bad, planned.events.total)):
            for series, _, _ in self._counts(expr):
                key = tuple(series.labels.get(label, "") for label in by)
                totals.setdefault(key, [0.0, 0.0])[position] += sum(series.values.values())

        def spent(key: Group) -> tuple[bool, float, float]:
            bad, total = totals[key]
            ratio = bad / total if total > 0 else 0.0
            return bad < planned.min_bad_events, -ratio, -total

        ranked = sorted(sorted(totals), key=spent)
        return RankedGroups(tuple(islice(ranked, most)), len(ranked))

    def by_group(
        self, planned: PlannedObjective, ranking: RankedGroups
    ) -> Iterator[tuple[Mapping[str, str], History]]:
        """Yield the history of each ranked group."""
        events, by = planned.events, planned.objective.group_by
        if not ranking.worst:
            return
        only = None if len(ranking.worst) == ranking.count else _only(by, ranking.worst)
        bad, total = (self._rates(expr, by, only) for expr in (events.bad, events.total))
        inconsistent = (
            {} if events.inconsistent is None else self._rates(events.inconsistent, by, only)
        )
        nothing: Rates = [None] * self._count
        for group in ranking.worst:
            flags = [value is not None for value in inconsistent.get(group, nothing)]
            history = History(
                self._start,
                STEP,
                bad.pop(group, nothing),
                total.pop(group, nothing),
                inconsistent=flags if events.inconsistent is not None else (),
                down=self.down(),
            )
            yield dict(zip(by, group, strict=True)), history

    def down(self) -> Sequence[bool]:
        """Return, for each step, whether Prometheus was down; False without any ``up`` series."""
        if self._down is None:
            up = self._one(_TARGETS)
            known = any(value is not None for value in up)
            self._down = [known and value is None for value in up]
        return self._down

    def _flags(self, expr: Expr | None) -> Sequence[bool]:
        return () if expr is None else [value is not None for value in self._one(expr)]

    def _one(self, expr: Expr) -> Rates:
        return self._rates(expr, ()).get((), [None] * self._count)

    def _rates(
        self, expr: Expr, by: Sequence[str], only: Expr | None = None
    ) -> dict[Group, list[float | None]]:
        """Return the values of a query at every step, by the values of its labels."""
        limited = expr if only is None else expr.and_(only, on(*by))
        found: dict[Group, list[float | None]] = {}
        for series, at, count in self._parts(limited):
            group = tuple(series.labels.get(label, "") for label in by)
            values = aligned(self._time(at), STEP, count, series.values.items())
            found.setdefault(group, [None] * self._count)[at : at + count] = values
        return found

    def _counts(self, expr: Expr) -> Iterator[tuple[Series, int, int]]:
        """Yield the sums of a rate over parts of the range."""
        step = f"{_BASE_SECONDS}s"

        def summed(at: int, count: int) -> Sequence[Series]:
            last = self._time(at + count - 1)
            whole = Subquery(expr, f"{round(count * STEP)}s", step)
            counted = call("sum_over_time", whole) * number(_BASE_SECONDS)
            return self._query(str(counted), last, last, STEP)

        yield from self._results(summed, _DAY_POINTS * _BASE_SECONDS // round(STEP))

    def _parts(self, expr: Expr) -> Iterator[tuple[Series, int, int]]:
        text = str(expr)

        def values(at: int, count: int) -> Sequence[Series]:
            return self._query(text, self._time(at), self._time(at + count - 1), STEP)

        yield from self._results(values, _POINTS)

    def _results(
        self, query: Callable[[int, int], Sequence[Series]], most: int
    ) -> Iterator[tuple[Series, int, int]]:
        """Yield every series of every part, with the first step and number of steps of its part.

        A part that Prometheus rejects as too large halves the size of all later parts.
        """
        at = 0
        while at < self._count:
            count = min(self._points, most, self._count - at)
            try:
                result = query(at, count)
            except QueryTooLargeError:
                if count <= _LEAST_POINTS:
                    raise
                self._points = max(_LEAST_POINTS, count // 2)
                continue
            for series in result:
                yield series, at, count
            at += count
            self._advance(count)

    def _time(self, index: int) -> float:
        return self._start + index * STEP


def _expressions(plan: Plan, planned: PlannedObjective) -> list[Expr]:
    events = planned.events
    missing = None if _missing_by_rules(plan, planned) else events.missing
    of = (events.bad, events.total, missing, events.uncovered, events.inconsistent)
    return [expr for expr in of if expr is not None]


def _missing_by_rules(plan: Plan, planned: PlannedObjective) -> bool:
    """Whether absence is detected on the recorded rules, so that it follows from the rates."""
    recorded = names.series_labels(plan.service.service, planned.objective.name)
    return planned.events.missing == call("absent", vector(names.TOTAL, recorded))


def _only(by: Sequence[str], groups: Sequence[Group]) -> Expr:
    """Return a vector with one element per group, to filter the result of a query."""
    chosen: Expr | None = None
    for group in groups:
        one: Expr = call("vector", number(1))
        for label, value in zip(by, group, strict=True):
            # `$` would refer to a capture group of the empty source label.
            arguments = (label, value.replace("$", "$$"), "", "")
            texts = (Text(quote(text), whole=True) for text in arguments)
            one = call("label_replace", one, *texts)
        chosen = one if chosen is None else chosen.or_(one)
    assert chosen is not None  # noqa: S101  (callers pass at least one group)
    return chosen
