"""Simulate random requests to servers: the true events, and the counters that servers report.

Time is divided into ticks.  In each tick every server gets a random number of requests, some of
which fail; the counters are read at every successful scrape.  The simulation is independent of
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import add
from random import Random

import numpy as np
import numpy.typing as npt

TICK = 10
"""Seconds of a tick; all times are multiples of it."""
SCRAPE = 30
"""Seconds between two scrapes of a server."""
HOUR, DAY = 3600, 86_400
REQUESTS, DURATION = "llm_requests_total", "llm_request_duration_seconds"
EVENTS = "llm_slo_events_total"
GOODPUT, FULLNESS = "llm_goodput_requests_total", "llm_kv_cache_utilization_ratio"
FAMILIES = (REQUESTS, DURATION, EVENTS)
"""Metrics that servers have by default."""
METRICS = (*FAMILIES, GOODPUT, FULLNESS)
"""All metrics that servers can have."""
BOUNDARY = Decimal(10)
"""Maximum seconds of a good request and its first token, a bucket boundary."""
FULL = Decimal("0.9")
"""KV cache utilization that incidents exceed."""

_BUSY = 4.0
"""Requests per second above which a server is under strain."""
_JUDGED = {
    REQUESTS: ("outcome", "ok", ("error", "timeout")),
    GOODPUT: ("result", "good", ("bad",)),
    EVENTS: ("result", "good", ("bad",)),
}
"""The label that distinguishes good requests from bad ones, and its values."""

Counts = npt.NDArray[np.int64]
"""Counts by tick."""
Rates = Callable[[npt.NDArray[np.float64], Random], npt.NDArray[np.float64]]
"""Requests per second of a server, at given times in seconds."""
Labels = tuple[tuple[str, str], ...]
"""The labels of a series, including its name."""
Points = tuple[Counts, npt.NDArray[np.uint64]]
"""Times in seconds, and the bits of the values; :data:`ENDED` where a series ends."""
Samples = Mapping[Labels, Points]
ENDED = 0x7FF0_0000_0000_0002
"""The bits of the NaN that is Prometheus' staleness marker."""


def labelled(metric: str, **labels: str) -> Labels:
    """Return the series of a metric."""
    return tuple(sorted({"__name__": metric, **labels}.items()))


def points(
    times: Counts, values: npt.NDArray[np.generic], is_sample: npt.NDArray[np.bool_]
) -> Points:
    """Return the samples at evenly spaced times, and a staleness marker after each run of them."""
    bits = np.where(is_sample, values.astype(np.float64).view(np.uint64), np.uint64(ENDED))
    reported = is_sample | np.concatenate(([False], is_sample[:-1]))
    return times[reported], bits[reported]


@dataclass(frozen=True, slots=True)
class TrafficScenario:
    """A scenario of random traffic: requests per second of a server, and its incidents.

    ``..._every`` are mean seconds between two events of a kind, 0 for never.  A restarted server
    counts from zero; a rollout changes the version and so starts new series at zero.  ``strain`` is
    the share of requests that fail at high load.
    """

    name: str
    rates: Rates
    restarts_every: int = 0
    rollouts_every: int = 0
    gaps_every: int = 0
    strain: float = 0.0


@dataclass(frozen=True, slots=True)
class Truth:
    """Events of each tick, and the bad ones among them, as running totals."""

    total: Counts
    bad: Counts

    @classmethod
    def of(cls, total: Counts, bad: Counts) -> Truth:
        """Accumulate the events and bad events of each tick."""
        return cls(*(np.concatenate(([0], np.cumsum(each))) for each in (total, bad)))

    def __add__(self, other: Truth) -> Truth:
        return Truth(self.total + other.total, self.bad + other.bad)

    def ratio(self, end: int, window: int) -> float | None:
        """Return bad / all events in the ``window`` seconds before ``end``; None without any."""
        to, since = end // TICK, max(end - window, 0) // TICK
        total = self.total[to] - self.total[since]
        return float((self.bad[to] - self.bad[since]) / total) if total else None

    def lately(self, end: int, window: int, late: int) -> tuple[float, float] | None:
        """Return the lowest and highest ratio over windows that end up to ``late`` s earlier."""
        ratios = [self.ratio(moment, window) for moment in range(end - late, end + 1, TICK)]
        known = [ratio for ratio in ratios if ratio is not None]
        return (min(known), max(known)) if known else None

    def slices(self, seconds: int, most: float) -> Truth:
        """Return the time slices, bad ones being those with a bad share above ``most``."""
        every = seconds // TICK
        total, bad = (np.diff(each[::every]) for each in (self.total, self.bad))
        ends = np.zeros((2, len(self.total) - 1), dtype=np.int64)
        ends[:, every - 1 :: every] = np.ones_like(total), bad > most * total
        return Truth.of(*ends)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The result of a scenario: the scraped samples and the true events.

    ``requests`` are those of each server.  ``full`` counts ticks with a server up; those in an
    incident are bad.
    """

    samples: Samples
    requests: Sequence[Truth]
    full: Truth


def play(
    scenario: TrafficScenario,
    seconds: int,
    *,
    servers: int = 2,
    seed: int = 1,
    families: Sequence[str] = FAMILIES,
) -> Traffic:
    """Simulate a scenario for ``seconds`` on ``servers`` servers."""
    random = Random(f"{scenario.name} {seed}")
    # RandomState is frozen: it draws the same numbers in every NumPy release.
    draw = np.random.RandomState(random.getrandbits(32))
    ticks = seconds // TICK
    rates = scenario.rates(np.arange(ticks) * float(TICK), random)
    reasons, shares = _incidents(ticks, random)
    failing = np.maximum(shares, np.where(rates > _BUSY, scenario.strain, 0.0))
    samples: dict[Labels, Points] = {}
    requests, full = list[Truth](), list[Truth]()
    for number in range(servers):
        version, started = _lives(scenario, ticks, random)
        is_up = version > 0
        arrivals = draw.poisson(rates * TICK) * is_up
        failed = draw.binomial(arrivals, failing)
        scraped = np.arange(number % 3, ticks, SCRAPE // TICK)
        reported = _ServerScrapes(
            scenario,
            f"{scenario.name}-{number}",
            version,
            started,
            scraped,
            is_up[scraped] & _reachable(scenario, scraped, random),
            reasons,
            arrivals - failed,
            failed,
        )
        for family in families:
            samples |= reported.of(family)
        requests.append(Truth.of(arrivals, failed))
        full.append(Truth.of(is_up * 1, is_up * (reasons > 0)))
    return Traffic(samples, requests, reduce(add, full))


@dataclass(frozen=True, slots=True)
class _ServerScrapes:
    """The scraped series of one server, at the ticks ``scraped`` where ``found`` is true.

    By tick: its ``version``, 0 while it is down; when it ``started``; why requests fail in
    ``reasons``; and its ``good`` and ``failed`` requests.
    """

    scenario: TrafficScenario
    name: str
    version: Counts
    started: Counts
    scraped: Counts
    found: npt.NDArray[np.bool_]
    reasons: Counts
    good: Counts
    failed: Counts

    def of(self, family: str) -> Iterator[tuple[Labels, Points]]:
        """Yield the series of a metric.

        Failed requests are slow, so all metrics of requests count the same good and bad events.
        """
        arrivals = self.good + self.failed
        if family == DURATION:
            yield from self._counter(f"{family}_bucket", self.good, le=str(BOUNDARY))
            yield from self._counter(f"{family}_count", arrivals)
        elif family == FULLNESS:
            yield from self._series(family, np.where(self.reasons > 0, 0.97, 0.5))
        else:
            label, good, bad = _JUDGED[family]
            for of in self._kinds(family):
                yield from self._counter(family, self.good, **of, **{label: good})
                for number, value in enumerate(bad):
                    counted = self.failed * (self.reasons % len(bad) == number)
                    yield from self._counter(family, counted, **of, **{label: value})

    def _kinds(self, family: str) -> list[dict[str, str]]:
        if family == EVENTS:
            return [{"signal": key, "threshold": str(BOUNDARY)} for key in ("e2e", "ttft")]
        return [{"objective": f"{self.scenario.name}/goodput"}] if family == GOODPUT else [{}]

    def _counter(
        self, metric: str, counts: Counts, **labels: str
    ) -> Iterator[tuple[Labels, Points]]:
        running = np.concatenate(([0], np.cumsum(counts)))
        since_start = running[1:] - running[self.started]
        yield from self._series(metric, since_start, **labels)

    def _series(
        self,
        metric: str,
        values: npt.NDArray[np.generic],
        **labels: str,
    ) -> Iterator[tuple[Labels, Points]]:
        """Yield a series of each version, with a stale marker after its last sample."""
        found, version = self.found, self.version[self.scraped]
        times = (self.scraped + 1) * TICK
        for each in np.unique(version[found]):
            named = {"model": self.scenario.name, "instance": self.name, "version": str(each)}
            mine = found & (version == each)
            yield labelled(metric, **named, **labels), points(times, values[self.scraped], mine)


def _lives(scenario: TrafficScenario, ticks: int, random: Random) -> tuple[Counts, Counts]:
    """Return a server's version, 0 while it is down, and when it last started, by tick."""
    version, started = np.ones(ticks, dtype=np.int64), np.zeros(ticks, dtype=np.int64)
    is_up = np.ones(ticks, dtype=bool)
    for mean, is_new in ((scenario.restarts_every, False), (scenario.rollouts_every, True)):
        for at in _moments(mean, ticks, random):
            back = at + random.randrange(20, 120, TICK) // TICK
            version[back:] += is_new
            is_up[at:back] = False
            started[at:] = at
    return version * is_up, started


def _reachable(scenario: TrafficScenario, scraped: Counts, random: Random) -> npt.NDArray[np.bool_]:
    """Return which scrapes succeed: gaps are mostly short, rarely of several minutes."""
    reached = np.ones(len(scraped), dtype=bool)
    for at in _moments(scenario.gaps_every, int(scraped[-1]), random):
        longest = 900 if random.random() < 0.1 else 180
        until = at + random.randrange(SCRAPE, longest) // TICK
        reached[(at <= scraped) & (scraped < until)] = False
    return reached


def _moments(mean: int, ticks: int, random: Random) -> Iterator[int]:
    """Yield ticks that are ``mean`` seconds apart on average, none if that is 0."""
    at = random.expovariate(TICK / mean) if mean else ticks
    while at < ticks:
        yield int(at)
        at += random.expovariate(TICK / mean)


def _incidents(ticks: int, random: Random) -> tuple[Counts, npt.NDArray[np.float64]]:
    """Return reason and share of failed requests by tick; outside incidents few fail."""
    reasons = np.zeros(ticks, dtype=np.int64)
    shares = np.full(ticks, random.uniform(0.0005, 0.002))
    at, reason = random.expovariate(1 / DAY), 0
    while at < ticks * TICK:
        length, share = random.choice((60, 300, 1200, 3600)), random.uniform(0.03, 0.6)
        during = slice(int(at) // TICK, (int(at) + length) // TICK)
        reason += 1
        reasons[during], shares[during] = reason, share
        at += length + random.expovariate(1.5 / DAY)
    return reasons, shares


def _diurnal(times: npt.NDArray[np.float64], _: Random) -> npt.NDArray[np.float64]:
    return 1.05 + np.sin(2 * np.pi * times / DAY)


def _bursty(times: npt.NDArray[np.float64], random: Random) -> npt.NDArray[np.float64]:
    """Return low rates with bursts of a hundred times as much."""
    rates, at = np.full(len(times), 0.05), 0
    while at < len(times):
        at += int(random.expovariate(1 / (5 * HOUR)) / TICK)
        until = at + int(random.uniform(600, HOUR) / TICK)
        rates[at:until] = 5.0
        at = until
    return rates


def _idle(times: npt.NDArray[np.float64], _: Random) -> npt.NDArray[np.float64]:
    """Return rates without traffic at night and at weekends."""
    day, now = np.divmod(times, DAY)
    return np.where((now > 8 * HOUR) & (now < 18 * HOUR) & (day % 7 < 5), 1.0, 0.0)


SCENARIOS = (
    TrafficScenario("diurnal", _diurnal),
    TrafficScenario("bursty", _bursty, strain=0.02),
    TrafficScenario("idle", _idle),
    TrafficScenario("resets", _diurnal, restarts_every=12 * HOUR),
    TrafficScenario("births", _diurnal, rollouts_every=12 * HOUR),
    TrafficScenario("labels", _diurnal, rollouts_every=12 * HOUR),
    TrafficScenario("gaps", _diurnal, gaps_every=8 * HOUR),
    TrafficScenario(
        "all",
        _bursty,
        rollouts_every=12 * HOUR,
        gaps_every=8 * HOUR,
        strain=0.02,
    ),
)
