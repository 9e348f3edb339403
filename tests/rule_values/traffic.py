"""Random requests to servers: what happened, and what their counters told of it.

Time is cut into ticks.  In each tick every server gets a random number of requests, some of which
fail; the counters are read at every scrape that does not fail.  Nothing here knows a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import accumulate
from math import pi, sin
from random import Random

from promql.expr import vector

TICK = 10
"""Seconds of a tick; all times are multiples of it."""
SCRAPE = 30
"""Seconds between two scrapes of a server."""
HOUR, DAY = 3600, 86_400
REQUESTS, DURATION = "llm_requests_total", "llm_request_duration_seconds"
EDGE = Decimal(10)
"""Seconds that a good request takes at most, an edge of the histogram."""

_BUSY = 4.0
"""Requests per second of a server under strain."""
Rates = Callable[[int, Random], list[float]]
"""Requests per second of a server, by tick, in so many ticks."""


@dataclass(frozen=True, slots=True)
class Story:
    """How random traffic goes: requests per second of a server, and what befalls it.

    ``..._every`` are mean seconds between two events of a kind, 0 for never.  A server that
    restarts counts from zero; after a rollout it is another version, which is another set of
    series.  With ``newborn`` every incident has a reason of its own, and the series of a reason is
    not there before its first failure.  ``strain`` is the share of requests that fail for the load
    alone, where there are many.
    """

    name: str
    rates: Rates
    restarts_every: int = 0
    rollouts_every: int = 0
    gaps_every: int = 0
    newborn: bool = False
    strain: float = 0.0


@dataclass(slots=True)
class Traffic:
    """What came of a story: samples by series, and good and bad events of every tick."""

    samples: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    total: Sequence[int] = ()
    bad: Sequence[int] = ()

    def sums(self) -> Truth:
        """Return what truly happened, to be asked for any window."""
        return Truth([0, *accumulate(self.total)], [0, *accumulate(self.bad)])


@dataclass(frozen=True, slots=True)
class Truth:
    """Running totals of events by tick."""

    total: Sequence[int]
    bad: Sequence[int]

    def ratio(self, end: int, window: int) -> float | None:
        """Return bad / all events in the ``window`` seconds before ``end``; None without any."""
        to, since = end // TICK, max(end - window, 0) // TICK
        total = self.total[to] - self.total[since]
        return (self.bad[to] - self.bad[since]) / total if total else None

    def lately(self, end: int, window: int, late: int) -> tuple[float, float] | None:
        """Return the least and the highest ratio over windows that end up to ``late`` s before."""
        ratios = [self.ratio(moment, window) for moment in range(end - late, end + 1, TICK)]
        known = [ratio for ratio in ratios if ratio is not None]
        return (min(known), max(known)) if known else None


def play(story: Story, seconds: int, *, servers: int = 2, seed: int = 1) -> Traffic:
    """Let a story happen for so long, on so many servers."""
    random = Random(f"{story.name} {seed}")
    traffic, ticks = Traffic(), seconds // TICK
    rates = story.rates(ticks, random)
    reasons, shares = _incidents(ticks, random)
    failing = [
        max(share, story.strain if rate > _BUSY else 0.0)
        for share, rate in zip(shares, rates, strict=True)
    ]
    total, bad = [0] * ticks, [0] * ticks
    for number in range(servers):
        server = _Server(story, f"{story.name}-{number}", random)
        phase = TICK * (1 + number) % SCRAPE
        for tick in range(ticks):
            if server.down(tick * TICK):
                continue
            requests = _poisson(rates[tick] * TICK, random)
            failures = min(_poisson(requests * failing[tick], random), requests)
            server.serve(requests, failures, reasons[tick])
            total[tick] += requests
            bad[tick] += failures
            now = (tick + 1) * TICK
            if now % SCRAPE == phase and not server.unreachable(now):
                for series, value in server.counters():
                    traffic.samples.setdefault(series, []).append((now, value))
    traffic.total, traffic.bad = total, bad
    return traffic


class _Server:
    def __init__(self, story: Story, name: str, random: Random) -> None:
        self._story, self._name, self._random = story, name, random
        self._version = 1
        self._next = {
            kind: self._later(0, mean)
            for kind, mean in (
                ("restart", story.restarts_every),
                ("rollout", story.rollouts_every),
                ("gap", story.gaps_every),
            )
        }
        self._down_until = self._gap_until = 0
        self._start()

    def down(self, now: int) -> bool:
        """Restart or change its version if it is time to; whether it is gone for now."""
        for kind, mean in (
            ("restart", self._story.restarts_every),
            ("rollout", self._story.rollouts_every),
        ):
            if now >= self._next[kind]:
                self._next[kind] = self._later(now, mean)
                self._version += kind == "rollout"
                self._down_until = now + self._random.randrange(20, 120, TICK)
                self._start()
        return now < self._down_until

    def serve(self, requests: int, failures: int, reason: int) -> None:
        self._good += requests - failures
        if failures:
            known = reason if self._story.newborn else 0
            self._failed[known] = self._failed.get(known, 0) + failures

    def unreachable(self, now: int) -> bool:
        """Whether its scrapes fail for now: mostly for a few, once in a while for some minutes."""
        if now >= self._next["gap"]:
            self._next["gap"] = self._later(now, self._story.gaps_every)
            longest = 900 if self._random.random() < 0.1 else 180
            self._gap_until = now + self._random.randrange(SCRAPE, longest)
        return now < self._gap_until

    def counters(self) -> Iterator[tuple[str, int]]:
        """Yield what a scrape finds: requests by outcome, and how long they took.

        What fails is slow as well, so that both tell of the same good and bad events.
        """
        yield self._ok, self._good
        yield self._bucket, self._good
        yield self._count, self._good + sum(self._failed.values())
        for reason, count in self._failed.items():
            yield self._error.format(reason), count

    def _start(self) -> None:
        self._good = 0
        self._failed = {} if self._story.newborn else {0: 0}
        own = {"model": self._story.name, "version": str(self._version), "instance": self._name}

        def series(metric: str, **labels: str) -> str:
            return str(vector(metric, {**own, **labels}))

        self._ok = series(REQUESTS, outcome="ok", reason="")
        error = series(REQUESTS, outcome="error", reason="REASON")
        self._error = error.replace("{", "{{").replace("}", "}}").replace("REASON", "{}")
        self._bucket = series(f"{DURATION}_bucket", le=str(EDGE))
        self._count = series(f"{DURATION}_count")

    def _later(self, now: int, mean: int) -> float:
        return now + self._random.expovariate(1 / mean) if mean else float("inf")


def _incidents(ticks: int, random: Random) -> tuple[list[int], list[float]]:
    """Return why requests fail and which share of them, by tick: hardly any but in incidents."""
    reasons, shares = [0] * ticks, [random.uniform(0.0005, 0.002)] * ticks
    at = random.expovariate(1 / DAY)
    while at < ticks * TICK:
        length, share = random.choice((60, 300, 1200, 3600)), random.uniform(0.03, 0.6)
        first = int(at) // TICK
        last = min(first + length // TICK, ticks)
        shares[first:last] = [share] * (last - first)
        reasons[first:last] = [max(reasons) + 1] * (last - first)
        at += length + random.expovariate(1.5 / DAY)
    return reasons, shares


def _poisson(mean: float, random: Random) -> int:
    """Draw a count; above 20 a normal one, rounded, is as good."""
    if mean > 20:
        return max(0, round(random.gauss(mean, mean**0.5)))
    count, left = 0, random.expovariate(1)
    while left < mean:
        count, left = count + 1, left + random.expovariate(1)
    return count


def _diurnal(ticks: int, _: Random) -> list[float]:
    return [1.05 + sin(2 * pi * tick * TICK / DAY) for tick in range(ticks)]


def _bursty(ticks: int, random: Random) -> list[float]:
    """Go from a trickle to a hundred times as much, and back."""
    rates = list[float]()
    while len(rates) < ticks:
        rates += [0.05] * int(random.expovariate(1 / (5 * HOUR)) / TICK)
        rates += [5.0] * int(random.uniform(600, HOUR) / TICK)
    return rates[:ticks]


def _idle(ticks: int, _: Random) -> list[float]:
    """Nobody is there at night, nor at all on two days of seven."""
    times = (divmod(tick * TICK, DAY) for tick in range(ticks))
    return [1.0 if 8 * HOUR < now < 18 * HOUR and day % 7 < 5 else 0.0 for day, now in times]


STORIES = (
    Story("diurnal", _diurnal),
    Story("bursty", _bursty, strain=0.02),
    Story("idle", _idle),
    Story("resets", _diurnal, restarts_every=12 * HOUR),
    Story("births", _diurnal, rollouts_every=12 * HOUR, newborn=True),
    Story("labels", _diurnal, rollouts_every=12 * HOUR),
    Story("gaps", _diurnal, gaps_every=8 * HOUR),
    Story(
        "all",
        _bursty,
        rollouts_every=12 * HOUR,
        gaps_every=8 * HOUR,
        newborn=True,
        strain=0.02,
    ),
)
