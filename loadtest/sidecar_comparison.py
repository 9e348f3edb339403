"""Compare the client's measurements with what a sidecar recorded meanwhile.

The sidecar's side is the increase of its counters and buckets between two scrapes.  Both sides
count all requests between them, the unmeasured ones included, and time them from the send.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose

from loadtest.level_result import values
from loadtest.objectives import ClientObjective, verdict
from loadtest.quantiles import nearest_rank
from loadtest.records import RequestRecord
from slos.outcomes import REFUSALS
from slos.signals import SIGNALS

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels and value of a sample of an exposition."""

COMPARED = ("ttft", "itl", "tpot", "e2e")
"""Signals that both sides measure."""
LATE_GAPS = "tokenslo_tap_late_gaps_total"
"""Gaps that the sidecar excludes, because it read a chunk late."""
TOLERANCE_SECONDS, TOLERANCE_SHARE = 0.005, 0.05
"""Both sides agree within 5 ms or 5 %, whichever is more: the network is on the client's side."""
_QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class HistogramIncrease:
    """Observations between two scrapes: cumulative ``counts`` by upper bound in seconds, sum."""

    counts: Mapping[float, float]
    sum: float

    @property
    def count(self) -> float:
        """The number of observations."""
        return self.counts.get(inf, 0.0)

    def bucket(self, q: float) -> tuple[float, float]:
        """Return the bounds of the bucket with a quantile."""
        low = 0.0
        for bound in sorted(self.counts):
            if self.counts[bound] >= q * self.count:
                return low, bound
            low = bound
        return low, inf


@dataclass(frozen=True, slots=True)
class QuantileComparison:
    """A quantile in seconds: the client's, and the bounds of the sidecar's bucket with it."""

    q: float
    client: float
    bucket: tuple[float, float]
    agrees: bool


@dataclass(frozen=True, slots=True)
class ShareComparison:
    """The share of observations within an SLO threshold in seconds."""

    threshold: float
    client: float
    sidecar: float
    agrees: bool


@dataclass(frozen=True, slots=True)
class SignalComparison:
    """A latency on both sides: numbers of observations, means in seconds, quantiles, shares.

    The sidecar reports that it ``excluded`` up to a number of observations.
    """

    signal: str
    client_count: int
    sidecar_count: float
    excluded: float
    client_mean: float
    sidecar_mean: float
    tolerance: float
    quantiles: tuple[QuantileComparison, ...]
    shares: tuple[ShareComparison, ...]

    @property
    def difference(self) -> float:
        """The client's mean minus the sidecar's."""
        return self.client_mean - self.sidecar_mean

    @property
    def agrees(self) -> bool:
        """Whether counts are equal, and means, quantiles and shares within the tolerance."""
        return (
            0 <= self.client_count - self.sidecar_count <= self.excluded
            and abs(self.difference) <= self.tolerance
            and all(each.agrees for each in self.quantiles)
            and all(each.agrees for each in self.shares)
        )


@dataclass(frozen=True, slots=True)
class GoodputComparison:
    """Good and bad requests of a goodput objective on both sides.

    ``least`` and ``most`` good ones would be on the client's side within the tolerance.
    """

    objective: str
    client: tuple[int, int]
    sidecar: tuple[float, float]
    least: int
    most: int

    @property
    def agrees(self) -> bool:
        """Whether the sidecar's good ones are within the tolerance, and the totals equal."""
        in_range = self.least <= self.sidecar[0] <= self.most
        return in_range and sum(self.client) == sum(self.sidecar)


@dataclass(frozen=True, slots=True)
class SidecarComparison:
    """Both sides of all requests; ``missing`` are reasons why a signal is not compared."""

    url: str
    client_requests: int
    sidecar_requests: float
    signals: tuple[SignalComparison, ...]
    goodput: tuple[GoodputComparison, ...]
    missing: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether both sides agree on everything that both measured."""
        return (
            self.client_requests == self.sidecar_requests
            and bool(self.signals or self.goodput)
            and all(each.agrees for each in self.signals)
            and all(each.agrees for each in self.goodput)
        )


class SidecarRestartError(ValueError):
    """A counter of the sidecar has fallen between two scrapes."""


def compare_sidecar(
    url: str,
    before: Sequence[Sample],
    after: Sequence[Sample],
    records: Sequence[RequestRecord],
    model: str,
    objectives: Iterable[ClientObjective],
) -> SidecarComparison:
    """Compare the requests between two scrapes; raises SidecarRestartError."""
    objectives = tuple(objectives)
    signals, missing = [], []
    for signal in COMPARED:
        found = histogram_increase(before, after, SIGNALS[signal].metric, model)
        observed = values(records, signal)
        left = sum(record.outcome in ("client_disconnected", "timeout") for record in records)
        if signal == "itl" and left:
            missing.append(
                f"itl: {left} clients disconnected mid-stream, and what was in flight then is on "
                "one side only"
            )
        elif found is None:
            missing.append(f"{signal}: the sidecar has no {SIGNALS[signal].metric} of {model}")
        elif not observed or not found.count:
            missing.append(
                f"{signal}: {len(observed)} observations here, {found.count:g} at the sidecar"
            )
        else:
            excluded = _late_gaps(before, after) if signal == "itl" else 0.0
            thresholds = _thresholds(signal, objectives)
            signals.append(_compare(signal, observed, found, excluded, thresholds))
    goodput = []
    for objective in objectives:
        if objective.indicator == "goodput":
            results = _goodput_increase(before, after, objective, model)
            if results is None:
                missing.append(f"{objective.name}: the sidecar does not evaluate it")
            else:
                goodput.append(_compare_goodput(objective, records, results))
    requests = requests_increase(before, after, model)
    return SidecarComparison(
        url, len(records), requests, tuple(signals), tuple(goodput), tuple(missing)
    )


def requests_increase(before: Sequence[Sample], after: Sequence[Sample], model: str) -> float:
    """Return how many requests of a model ended between two scrapes."""
    metric = SIGNALS["requests"].metric
    return sum(_by_label(before, after, metric, model, "outcome").values())


def histogram_increase(
    before: Sequence[Sample], after: Sequence[Sample], metric: str, model: str
) -> HistogramIncrease | None:
    """Return the increase of a model's histogram over all its series; None without any."""
    counts = _by_label(before, after, f"{metric}_bucket", model, "le")
    if not counts:
        return None
    total = sum(_by_label(before, after, f"{metric}_sum", model, "").values())
    return HistogramIncrease({float(bound): count for bound, count in counts.items()}, total)


def _by_label(
    before: Sequence[Sample], after: Sequence[Sample], name: str, model: str, label: str
) -> dict[str, float]:
    """Return increases of a model's series by one label; a series that is new began at zero."""
    found: dict[str, float] = defaultdict(float)
    for sign, samples in ((1, after), (-1, before)):
        for sample, labels, value in samples:
            if sample == name and labels.get("model") == model:
                found[labels.get(label, "")] += sign * value
    if any(increase < 0 and not isclose(increase, 0, abs_tol=1e-9) for increase in found.values()):
        raise SidecarRestartError(f"{name} has fallen: the sidecar restarted during the test")
    return found


def _late_gaps(before: Sequence[Sample], after: Sequence[Sample]) -> float:
    return sum(
        sign * value
        for sign, samples in ((1, after), (-1, before))
        for name, _, value in samples
        if name == LATE_GAPS
    )


def _goodput_increase(
    before: Sequence[Sample], after: Sequence[Sample], objective: ClientObjective, model: str
) -> tuple[float, float] | None:
    def of_objective(samples: Sequence[Sample]) -> list[Sample]:
        return [each for each in samples if each[1].get("objective") == objective.name]

    metric = SIGNALS["goodput"].metric
    found = _by_label(of_objective(before), of_objective(after), metric, model, "result")
    bad = ("bad", *(each for each in REFUSALS if each in objective.failed))
    return (found.get("good", 0.0), sum(found.get(each, 0.0) for each in bad)) if found else None


def _thresholds(signal: str, objectives: Iterable[ClientObjective]) -> Iterator[float]:
    for objective in objectives:
        if objective.indicator == signal:
            yield objective.threshold
        elif signal in objective.clauses:
            yield objective.clauses[signal]


def _compare(
    signal: str,
    observed: list[float],
    found: HistogramIncrease,
    excluded: float,
    thresholds: Iterable[float],
) -> SignalComparison:
    ordered = sorted(observed)
    mean = sum(ordered) / len(ordered)
    tolerance = max(TOLERANCE_SECONDS, TOLERANCE_SHARE * mean)
    return SignalComparison(
        signal,
        len(ordered),
        found.count,
        excluded,
        mean,
        found.sum / found.count,
        tolerance,
        tuple(_quantile(q, ordered, found) for q in _QUANTILES),
        tuple(
            _share(threshold, ordered, found, tolerance)
            for threshold in sorted({*thresholds})
            if threshold in found.counts
        ),
    )


def _quantile(q: float, ordered: Sequence[float], found: HistogramIncrease) -> QuantileComparison:
    client, (low, high) = nearest_rank(q, ordered), found.bucket(q)
    tolerance = max(TOLERANCE_SECONDS, TOLERANCE_SHARE * client)
    agrees = low - tolerance <= client <= high + tolerance
    return QuantileComparison(q, client, (low, high), agrees)


def _share(
    threshold: float, ordered: Sequence[float], found: HistogramIncrease, tolerance: float
) -> ShareComparison:
    def within(limit: float) -> float:
        return sum(seconds <= limit for seconds in ordered) / len(ordered)

    sidecar = found.counts[threshold] / found.count
    one = 1 / len(ordered)
    agrees = within(threshold - tolerance) - one <= sidecar <= within(threshold + tolerance) + one
    return ShareComparison(threshold, within(threshold), sidecar, agrees)


def _compare_goodput(
    objective: ClientObjective, records: Sequence[RequestRecord], sidecar: tuple[float, float]
) -> GoodputComparison:
    sent = [replace(record, scheduled=record.sent) for record in records]

    def good(slack: float) -> int:
        limits = {
            clause: limit + slack * max(TOLERANCE_SECONDS, TOLERANCE_SHARE * limit)
            for clause, limit in objective.clauses.items()
        }
        moved = replace(objective, clauses=limits)
        return sum(verdict(moved, record) == "good" for record in sent)

    bad = sum(verdict(objective, record) == "bad" for record in sent)
    return GoodputComparison(objective.name, (good(0), bad), sidecar, good(-1), good(1))
