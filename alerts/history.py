"""What a Prometheus has stored of an objective, asked in parts as large as it takes them."""

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

Ask = Callable[[str, float, float, float], Sequence[Series]]
"""A range query: PromQL, first and last time, and step, in seconds."""
Group = tuple[str, ...]
"""The values of an objective's labels, as in its ``group_by``."""

STEP = 60.0
_POINTS = 2_000
"""At once: less than Prometheus's limit of 11,000, and small enough to see the work go on."""
_LEAST_POINTS = 60
_DAY_POINTS = 288
_BASE_SECONDS = int(parse_duration(names.BASE_WINDOW))
# Something of every target that is scraped: without any, Prometheus itself was down.
_WATCHED = aggregate("count", vector("up"))


@dataclass(frozen=True, slots=True)
class Found:
    """The groups of an objective: the worst ones, in that order, and how many there are."""

    worst: tuple[Group, ...]
    count: int


class Archive:
    """The history of a Prometheus over ``days`` up to ``end`` (epoch seconds).

    ``ask`` is given the queries; ``advance`` is called with how much of :meth:`work` is done.
    Both may raise :class:`promql.client.PrometheusError`, as every method then does.
    """

    def __init__(self, ask: Ask, days: int, end: float, advance: Callable[[int], object]) -> None:
        self._ask, self._advance = ask, advance
        self._end = end // STEP * STEP
        self._count = round(days * 86_400 / STEP)
        self._start = self._end - (self._count - 1) * STEP
        self._points = _POINTS
        self._down: list[bool] | None = None

    def work(self, plans: Sequence[Plan]) -> int:
        """Return how much there is to do for all objectives of these plans."""
        asked = (len(_asked(plan, each)) for plan in plans for each in plan.objectives)
        grouped = sum(bool(each.objective.group_by) for plan in plans for each in plan.objectives)
        return (1 + sum(asked) + 4 * grouped) * self._count

    def whole(self, plan: Plan, planned: PlannedObjective) -> History:
        """Return the history of an objective; of all its groups together if it has any."""
        events, by = planned.events, planned.objective.group_by
        bad, total = (
            self._one(aggregate("sum", expr) if by else expr) for expr in (events.bad, events.total)
        )
        return History(
            self._start,
            STEP,
            bad,
            total,
            missing=() if _asks_rules(plan, planned) else self._flags(events.missing),
            uncovered=self._flags(events.uncovered),
            impossible=() if by else self._flags(events.impossible),
            down=self.down(),
        )

    def groups(self, planned: PlannedObjective, most: int) -> Found:
        """Find the groups of an objective: those that spent most of their budget first.

        Groups with too few bad events for the alerts come after the others.
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
        return Found(tuple(islice(ranked, most)), len(ranked))

    def by_group(
        self, planned: PlannedObjective, found: Found
    ) -> Iterator[tuple[Mapping[str, str], History]]:
        """Yield the history of each of the groups that were found."""
        events, by = planned.events, planned.objective.group_by
        if not found.worst:
            return
        only = None if len(found.worst) == found.count else _only(by, found.worst)
        bad, total = (self._rates(expr, by, only) for expr in (events.bad, events.total))
        impossible = {} if events.impossible is None else self._rates(events.impossible, by, only)
        nothing: Rates = [None] * self._count
        for group in found.worst:
            flags = [value is not None for value in impossible.get(group, nothing)]
            history = History(
                self._start,
                STEP,
                bad.pop(group, nothing),
                total.pop(group, nothing),
                impossible=flags if events.impossible is not None else (),
                down=self.down(),
            )
            yield dict(zip(by, group, strict=True)), history

    def down(self) -> Sequence[bool]:
        """Return when Prometheus had nothing of anybody; never, if it has no ``up`` at all."""
        if self._down is None:
            up = self._one(_WATCHED)
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
        """Return a query's values by its labels, at every step."""
        asked = expr if only is None else expr.and_(only, on(*by))
        found: dict[Group, list[float | None]] = {}
        for series, at, count in self._parts(asked):
            group = tuple(series.labels.get(label, "") for label in by)
            values = aligned(self._time(at), STEP, count, series.values.items())
            found.setdefault(group, [None] * self._count)[at : at + count] = values
        return found

    def _counts(self, expr: Expr) -> Iterator[tuple[Series, int, int]]:
        """Yield sums of a rate, each over a part of the time."""
        step = f"{_BASE_SECONDS}s"

        def summed(at: int, count: int) -> Sequence[Series]:
            last = self._time(at + count - 1)
            whole = Subquery(expr, f"{round(count * STEP)}s", step)
            counted = call("sum_over_time", whole) * number(_BASE_SECONDS)
            return self._ask(str(counted), last, last, STEP)

        yield from self._answers(summed, _DAY_POINTS * _BASE_SECONDS // round(STEP))

    def _parts(self, expr: Expr) -> Iterator[tuple[Series, int, int]]:
        text = str(expr)

        def asked(at: int, count: int) -> Sequence[Series]:
            return self._ask(text, self._time(at), self._time(at + count - 1), STEP)

        yield from self._answers(asked, _POINTS)

    def _answers(
        self, ask: Callable[[int, int], Sequence[Series]], most: int
    ) -> Iterator[tuple[Series, int, int]]:
        """Yield every series of every part, with its part's first step and number of steps.

        Parts get smaller as long as Prometheus says that they are too large, and stay so.
        """
        at = 0
        while at < self._count:
            count = min(self._points, most, self._count - at)
            try:
                answer = ask(at, count)
            except QueryTooLargeError:
                if count <= _LEAST_POINTS:
                    raise
                self._points = max(_LEAST_POINTS, count // 2)
                continue
            for series in answer:
                yield series, at, count
            at += count
            self._advance(count)

    def _time(self, index: int) -> float:
        return self._start + index * STEP


def _asked(plan: Plan, planned: PlannedObjective) -> list[Expr]:
    events = planned.events
    missing = None if _asks_rules(plan, planned) else events.missing
    of = (events.bad, events.total, missing, events.uncovered, events.impossible)
    return [expr for expr in of if expr is not None]


def _asks_rules(plan: Plan, planned: PlannedObjective) -> bool:
    """Whether signals are missed by what the rules record, which follows from the rates."""
    recorded = names.series_labels(plan.service.service, planned.objective.name)
    return planned.events.missing == call("absent", vector(names.TOTAL, recorded))


def _only(by: Sequence[str], groups: Sequence[Group]) -> Expr:
    """Return one element for each of these groups, to choose them out of any query's answer."""
    chosen: Expr | None = None
    for group in groups:
        one: Expr = call("vector", number(1))
        for label, value in zip(by, group, strict=True):
            # A dollar would stand for a part of the source label, of which there is none.
            words = (label, value.replace("$", "$$"), "", "")
            texts = (Text(quote(word), whole=True) for word in words)
            one = call("label_replace", one, *texts)
        chosen = one if chosen is None else chosen.or_(one)
    assert chosen is not None  # noqa: S101  (nobody asks for no group)
    return chosen
