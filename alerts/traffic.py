"""Synthetic traffic as input series of promtool."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain, groupby
from math import frexp

from alerts.example_labels import Labels, example
from promql.expr import Vector, decimal_text, vector
from slos.events import MINUTE
from slos.generic import parsed
from slos.indicators import sidecar_evaluates_slices
from slos.model import Objective, Service
from slos.names import BAD, TOTAL, goodput_objective, series_labels
from slos.plan import Plan, PlannedObjective
from slos.signals import SIGNALS, metric_with, slo_events, threshold_label

STEP = Decimal(30)
"""Seconds between two samples of every input series."""
# An event is visible after the next scrape and the next evaluation; and up to
# Prometheus 3 a range holds one sample more than its share.
DELAY = 4 * STEP

GAUGES = ("kv_headroom", "sequence_headroom")
"""Indicators of gauges, in which time slices count as events."""

_SEATS = Decimal(1_000)
_NEAR = Decimal("0.01")
"""How far from its threshold a gauge is, as a share of it."""
_EXACT = Decimal("1e-9")
_ONE = Decimal(1)
_GUARDED = Decimal(600)
"""Seconds in which bad events reach the guard of every alert."""
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Phase:
    """A number of ``events`` in each step for ``seconds``, the share ``bad`` of them bad.

    ``events`` of ``None`` means that scrapes fail; meanwhile ``unseen`` good events occur in each
    step, and as many bad ones.
    """

    seconds: Decimal
    events: Decimal | None
    bad: Decimal = Decimal(0)
    unseen: Decimal = Decimal(0)

    @property
    def steps(self) -> int:
        """The number of samples of each series."""
        return int(self.seconds / STEP)


@dataclass(frozen=True, slots=True)
class InputSeries:
    """An input series: a counter's increase for each good and each bad event, or a gauge's values.

    With ``rate`` it is the recorded rate of such a counter, and with ``boundary`` a native
    histogram whose observations are slow above it; ``healthy`` marks a group without bad events.
    ``pace`` is a fixed number of events per step.
    """

    metric: str
    labels: tuple[tuple[str, str], ...]
    gauge: bool
    good: Decimal
    bad: Decimal
    rate: bool = False
    healthy: bool = False
    boundary: Decimal | None = None
    pace: Decimal | None = None

    @property
    def series(self) -> str:
        """The series as a selector."""
        return str(vector(self.metric, dict(self.labels)))


_TESTED, _HEALTHY = "one", "two"
"""The groups of synthetic traffic: tests are about the first."""


def groups(planned: PlannedObjective, service: Service) -> tuple[Labels, ...]:
    """Return the labels of the group under test, and of one that is always healthy.

    If the selector fixes all labels of ``group_by``, there is one group without labels.
    """
    objective = planned.objective
    known = set(service.selects(objective))
    for query in map(parsed, objective.queries.values()):
        counter = query.selector or query.rated
        known |= {matcher.label for matcher in counter.matchers} if counter else set()
    free = [label for label in objective.group_by if label not in known]
    return tuple(dict.fromkeys(free, value) for value in (_TESTED, _HEALTHY)) if free else ({},)


def inputs(planned: PlannedObjective, service: Service) -> Iterator[InputSeries]:
    """Yield the series that an objective is measured by, of every group."""
    for made in _inputs(planned, service):
        for index, group in enumerate(groups(planned, service)):
            yield replace(made, labels=(*made.labels, *group.items()), healthy=index > 0)


def _inputs(planned: PlannedObjective, service: Service) -> Iterator[InputSeries]:
    objective = planned.objective
    if service.native(objective) and "histogram" in objective.queries:
        yield from _native(planned, service)
        return
    if sidecar_evaluates_slices(objective, service):
        assert objective.slices is not None  # noqa: S101  (else there are none to judge)
        of_slices = {"objective": goodput_objective(service.service, objective.name)}
        for result, good in (("good", Decimal(1)), ("bad", Decimal(0))):
            labels = {**service.selects(objective), **of_slices, "result": result}
            metric, pace = SIGNALS["slo_slices"].metric, STEP / objective.slices.window
            yield InputSeries(metric, tuple(labels.items()), False, good, 1 - good, pace=pace)
        return
    if objective.queries:
        yield from _generic(planned) or _recorded(planned, service)
        return
    none, one = Decimal(0), Decimal(1)

    def made(metric: str, good: Decimal, bad: Decimal, **labels: str) -> InputSeries:
        every = {**service.selects(objective), **labels}
        own = metric_with(metric, (*every, *objective.group_by))
        return InputSeries(own, tuple(every.items()), objective.indicator in GAUGES, good, bad)

    match objective.indicator:
        case "availability":
            requests = SIGNALS["requests"].metric
            yield made(requests, one, none, outcome="ok")
            yield made(requests, none, one, outcome="error")
        case "stream_completion":
            streams = SIGNALS["streams"].metric
            yield made(streams, one, none, outcome="ok", phase="complete")
            yield made(streams, none, one, outcome="error", phase="mid_stream")
        case "disconnects":
            streams = SIGNALS["streams"].metric
            yield made(streams, one, none, outcome="ok", phase="complete")
            yield made(streams, none, one, outcome="client_disconnected", phase="mid_stream")
        case "goodput":
            judged, clause = SIGNALS["goodput"].metric, next(iter(objective.clauses))
            own = goodput_objective(service.service, objective.name)
            yield made(judged, one, none, objective=own, result="good", clause="")
            yield made(judged, none, one, objective=own, result="bad", clause=clause)
        case "kv_headroom":
            yield made(SIGNALS["kv_utilization"].metric, *_around_threshold(objective))
        case "sequence_headroom":
            active = SIGNALS["sequences_active"]
            good, bad = _around_threshold(objective)
            yield made(active.metric, good * _SEATS, bad * _SEATS, **active.fixed)
            yield made(SIGNALS["sequences_max"].metric, _SEATS, _SEATS)
        case _:
            assert objective.threshold is not None  # noqa: S101  (the others are latencies)
            events = SIGNALS[slo_events(objective.indicator)]
            of = {**events.fixed, "threshold": threshold_label(objective.threshold)}
            yield made(events.metric, one, none, **of, result="good")
            yield made(events.metric, none, one, **of, result="bad")


def _around_threshold(objective: Objective) -> tuple[Decimal, Decimal]:
    """Return a value of a gauge just within its threshold, and one just beyond."""
    limit = objective.threshold
    assert limit is not None  # noqa: S101  (gauges of tokenslo have one)
    return limit * (1 - _NEAR), min(limit * (1 + _NEAR), (limit + 1) / 2)


def _native(planned: PlannedObjective, service: Service) -> Iterator[InputSeries]:
    objective, one = planned.objective, Decimal(1)
    selector = parsed(objective.queries["histogram"]).selector
    assert selector is not None  # noqa: S101  (read_generic requires it)
    metric, labels = selector.metric, example(selector.matchers)
    if labels is None:
        yield from _recorded(planned, service)
    else:
        yield InputSeries(
            metric, tuple(labels.items()), False, one, one, boundary=objective.threshold
        )


def contradiction(planned: PlannedObjective, service: Service) -> Decimal | None:
    """Return a share of bad events outside 0 to 1 that an objective's series can report.

    None if they cannot contradict each other: with separate counters of good and bad events, more
    bad events than events would need a counter that decreases.
    """
    made = [*inputs(planned, service)]
    if any(series.rate for series in made):
        return None
    for bad in (Decimal("1.5"), Decimal("-0.5")):
        if all(bad * series.bad + (1 - bad) * series.good >= 0 for series in made):
            return bad
    return None


def apart(plan: Plan) -> list[tuple[PlannedObjective, ...]]:
    """Group the objectives of a plan so that none reads the synthetic series of another.

    Two that read the same metric differently cannot share a test: good events of one may be bad
    for the other.
    """
    groups: list[list[PlannedObjective]] = []
    readers: dict[str, int] = defaultdict(int)  # bit n: group n reads the metric
    alike: dict[tuple[str, Hashable], int] = defaultdict(int)  # and all in it read it alike
    for planned in plan.objectives:
        series_ = _synthetic_series(planned, plan.service)
        disturbed = 0
        for metric, way in series_.items():
            disturbed |= readers[metric] & ~alike[metric, way]
        first = ~disturbed & (disturbed + 1)  # the lowest bit that is not set
        for metric, way in series_.items():
            readers[metric] |= first
            alike[metric, way] |= first
        if first >> len(groups):
            groups.append([])
        groups[first.bit_length() - 1].append(planned)
    return [*map(tuple, groups)]


def _synthetic_series(planned: PlannedObjective, service: Service) -> dict[str, Hashable]:
    """Return the synthetic series of an objective by metric.

    Built-in indicators never conflict: all read a metric in the same way.
    """
    objective = planned.objective
    made: dict[str, set[InputSeries]] = defaultdict(set)
    for each in inputs(planned, service):
        made[each.metric] |= set() if each.rate else {each}
    for text in objective.queries.values():
        for metric in parsed(text).metrics:
            made[metric] |= set()
    own = not objective.queries
    return {
        metric: (objective.group_by, own or frozenset(series)) for metric, series in made.items()
    }


def _generic(planned: PlannedObjective) -> list[InputSeries]:
    """Return series that the queries of an SLO file read; none if they are not plain selectors."""
    objective = planned.objective
    queries = {role: parsed(text) for role, text in objective.queries.items()}
    of = {role: query.selector or query.rated for role, query in queries.items()}
    none, one = Decimal(0), Decimal(1)
    match of:
        case {"histogram": Vector() as histogram} if objective.threshold is not None:
            found = example(histogram.matchers)
            boundary = {**(found or {}), "le": decimal_text(objective.threshold)}
            return _made(
                (f"{histogram.metric}_bucket", boundary, one, none),
                (f"{histogram.metric}_count", found, one, one),
            )
        case {"gauge": Vector() as gauge}:
            return _made((gauge.metric, example(gauge.matchers), one, none), gauge=True)
        case {"total": Vector() as total, "bad": Vector() as some}:
            good, bad = none, one
        case {"total": Vector() as total, "good": Vector() as some}:
            good, bad = one, none
        case _:
            return []
    if some.metric != total.metric:
        return _made(
            (some.metric, example(some.matchers), good, bad),
            (total.metric, example(total.matchers), one, one),
        )
    return _made(
        (some.metric, example((*some.matchers, *total.matchers)), good, bad),
        (total.metric, example(total.matchers, unwanted=some.matchers), bad, good),
    )


def _made(
    *series: tuple[str, Labels | None, Decimal, Decimal], gauge: bool = False
) -> list[InputSeries]:
    """Return these series, or none if one has no labels."""
    made = [
        InputSeries(metric, tuple(labels.items()), gauge, good, bad)
        for metric, labels, good, bad in series
        if labels is not None
    ]
    return made if len(made) == len(series) else []


def _recorded(planned: PlannedObjective, service: Service) -> Iterator[InputSeries]:
    """Yield the recorded rates themselves: an arbitrary query has no known input series."""
    labels = series_labels(service.service, planned.objective.name)
    slice_ = planned.indicator.slice
    each = MINUTE / slice_ if slice_ else Decimal(1)
    for name, good in ((TOTAL, each), (BAD, Decimal(0))):
        yield InputSeries(name, tuple(labels.items()), slice_ is not None, good, each, rate=True)


def values(series: InputSeries, phases: Iterable[Phase]) -> str:
    """Write a series in promtool's notation, from a first sample before the first phase on."""
    if series.healthy:
        phases = [replace(phase, bad=Decimal(0)) for phase in phases]
    if series.rate:
        return _rates(series, phases)
    if series.boundary is not None:
        return " ".join(_histograms(series.boundary, phases))
    value = series.good if series.gauge else Decimal(0)
    words = [decimal_text(value)]
    for phase in phases:
        more = phase.steps - 1
        if phase.events is None:
            words.append(f"stale _x{more}")
            if not series.gauge:
                value += phase.unseen * phase.steps * (series.good + series.bad)
            continue
        if series.gauge:
            value, rise = (series.bad if phase.bad else series.good), Decimal(0)
        else:
            events = phase.events if series.pace is None else series.pace
            rise = events * (phase.bad * series.bad + (1 - phase.bad) * series.good)
            value += rise
        words.append(f"{decimal_text(value)}+{decimal_text(rise)}x{more}")
        value += rise * more
    return " ".join(words)


def _histograms(boundary: Decimal, phases: Iterable[Phase]) -> Iterator[str]:
    """Write a native histogram, each sample by itself: promtool 2.53 reads nothing after an ``x``.

    Buckets are of powers of two.  That of the boundary stays empty, so nothing is interpolated;
    good events are in the one below and bad ones in the one above.
    """
    part, power = frexp(float(boundary))
    first = power - (2 if part == _HALF else 1)
    good = bad = Decimal(0)
    for phase in chain([Phase(STEP, Decimal(0))], phases):
        if phase.events is None:
            yield f"stale _x{phase.steps - 1}"
            continue
        for _ in range(phase.steps):
            good += phase.events * (1 - phase.bad)
            bad += phase.events * phase.bad
            of = f"{decimal_text(good)} 0 {decimal_text(bad)}"
            yield f"{{{{count:{decimal_text(good + bad)} offset:{first} buckets:[{of}]}}}}"


def _rates(series: InputSeries, phases: Iterable[Phase]) -> str:
    """Write the recorded series of a counter: its increase in the last minute."""
    window: deque[Decimal] = deque(maxlen=1 if series.gauge else int(MINUTE / STEP))
    words = ["0"]
    for phase in phases:
        if phase.events is None:
            words.append(f"stale _x{phase.steps - 1}")
            window.clear()
            continue
        events = Decimal(1) if series.gauge else phase.events
        rise = events * (phase.bad * series.bad + (1 - phase.bad) * series.good)
        recorded = []
        for _ in range(phase.steps):
            window.append(rise)
            recorded.append(sum(window, Decimal(0)).quantize(_EXACT))
        for rate, same in groupby(recorded):
            words.append(f"{decimal_text(rate)}+0x{len(list(same)) - 1}")
    return " ".join(words)


def busy_pace(plan: Plan) -> Decimal:
    """Return events per step, enough to reach the guard of every alert without delay."""
    per_second = max(
        planned.min_bad_events / (pair.threshold * _GUARDED)
        for planned in plan.objectives
        for pair in planned.pairs
    )
    # Twice that, as rates contain only part of the last minutes; rounded up.
    return _ONE.scaleb((2 * STEP * max(per_second, _ONE)).adjusted() + 1)
