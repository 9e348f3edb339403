"""Simulate pages for total outages, incidents and steady errors, next to the peers.

Run ``python -m bench.paging [SEEDS]`` from the checkout; README.md explains the tables.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, reduce
from itertools import product
from operator import add, or_
from typing import Any

import numpy as np

from bench import peers
from bench.arguments import positive_integer
from promql.expr import decimal_text
from slos.durations import parse_duration
from slos.events import MINUTE
from slos.model import Objective, Service
from slos.plan import plan
from tests.rule_values.paging import (
    BurnRateCondition,
    Count,
    Flags,
    begins,
    increases,
    rates,
    truth,
)
from tests.rule_values.recordings import IndicatorSelectors
from tests.rule_values.traffic import (
    DAY,
    HOUR,
    REQUESTS,
    SCENARIOS,
    SCRAPE,
    TICK,
    Counts,
    Samples,
    Traffic,
    labelled,
    play,
    points,
)

HISTORY = 90 * DAY
SEEDS = 4
TARGETS = tuple(map(Decimal, ("0.9", "0.95", "0.99", "0.999", "0.9999")))
SCENARIO_TARGETS = TARGETS[:3]
"""At higher targets the background errors of the scenarios page."""
BACKGROUNDS = tuple(map(Decimal, ("0.05", "0.1", "0.2")))
BACKGROUND_TARGETS = tuple(map(Decimal, ("0.8", "0.9", "0.95")))
PER_MINUTE = (0.2, 1, 10, 100)
OUTAGE_PER_MINUTE = (2, 60)
HEALTHY, OUTAGE = 8 * HOUR, 6 * HOUR
LATE = 330
"""Seconds for which an event affects rates: the base window and a scrape."""


_Conditions = Mapping[Decimal, Sequence[BurnRateCondition]]


@dataclass(frozen=True, slots=True)
class PagingRules:
    """Page conditions of a tool by target; ``every`` is its evaluation interval in seconds."""

    conditions: _Conditions
    every: int
    count: Callable[[Samples, Counts], Count]

    def firing(
        self, samples: Samples, seconds: int
    ) -> Iterator[tuple[Decimal, Counts, Sequence[Flags]]]:
        """Yield for each target the evaluations, and whether each condition fires at them."""
        evaluations = np.arange(0, seconds + 1, self.every)
        count = cache(self.count(samples, evaluations))
        for target, conditions in self.conditions.items():
            yield target, evaluations, [each.fires(count, self.every) for each in conditions]


def rules(targets: Sequence[Decimal]) -> Mapping[str, PagingRules]:
    """Return the page conditions of each tool; without Go, only tokenslo's."""
    found = {
        "tokenslo": PagingRules({each: own_conditions(each) for each in targets}, MINUTE, increases)
    }
    if not shutil.which("go"):
        return found
    selected = IndicatorSelectors.of("chat", "availability")

    def pages_of(generate: Callable[..., Sequence[Mapping[str, Any]]]) -> _Conditions:
        found = {each: peers.conditions(generate(selected, each)) for each in targets}
        return {target: [one for one in each if one.pages] for target, each in found.items()}

    return found | {
        "Sloth": PagingRules(pages_of(peers.sloth), MINUTE, rates),
        "Pyrra": PagingRules(pages_of(peers.pyrra), 30, rates),
    }


def own_conditions(target: Decimal) -> Sequence[BurnRateCondition]:
    """Return tokenslo's page conditions, with the default guard."""
    objective = Objective("availability", "availability", target)
    service = Service("", "chat", window=peers.PERIOD, objectives=(objective,))
    (planned,) = plan(service).objectives
    return [
        BurnRateCondition(
            True,
            parse_duration(pair.long),
            parse_duration(pair.short),
            pair.threshold,
            least_bad=planned.min_bad_events,
        )
        for pair in planned.alerting_pairs
        if pair.tier == "page"
    ]


@dataclass(frozen=True, slots=True)
class Pages:
    """Numbers of pages: all, those without an incident, and those not in the truth.

    A page is without an incident if its long window has none.  It is in the truth if the same
    condition holds for all requests, scraped or not.
    """

    all: int
    without_incident: int
    not_in_truth: int


def pages(rules_: PagingRules, traffic: Traffic, seconds: int) -> Mapping[Decimal, Pages]:
    """Count the pages in simulated traffic, by target."""
    made = dict[Decimal, Pages]()
    late = LATE // rules_.every + 1
    for target, evaluations, firing in rules_.firing(traffic.samples, seconds):
        requests = truth(reduce(add, traffic.requests), evaluations, TICK)
        incidents = truth(traffic.full, evaluations, TICK)
        begun = begins(reduce(or_, firing))
        excused, true = (np.zeros(len(begun), dtype=bool) for _ in range(2))
        for condition, fires in zip(rules_.conditions[target], firing, strict=True):
            seen, _ = incidents(int(condition.long) + LATE)
            excused |= fires[begun] & (seen[begun] > 0)
            holds = np.concatenate(([0], np.cumsum(condition.fires(requests, rules_.every))))
            true |= holds[begun + 1] > holds[np.maximum(begun - late, 0)]
        made[target] = Pages(len(begun), int((~excused).sum()), int((~true).sum()))
    return made


def background(per_minute: float, bad: Decimal, seconds: int, seed: int) -> Samples:
    """Return the scrapes of one server with Poisson traffic and a constant error ratio."""
    draw = np.random.RandomState(seed)
    times = np.arange(SCRAPE, seconds + 1, SCRAPE)
    requests = draw.poisson(per_minute * SCRAPE / 60, len(times))
    failed = draw.binomial(requests, float(bad))
    return _counters(times, requests - failed, failed)


def _counters(times: Counts, good: Counts, failed: Counts) -> Samples:
    present = np.full(len(times), True)
    return {
        labelled(REQUESTS, outcome=outcome): points(times, np.cumsum(counts), present)
        for outcome, counts in (("ok", good), ("error", failed))
    }


def outage(per_minute: int, phase: int) -> Samples:
    """Return the scrapes of steady traffic with a total outage after :data:`HEALTHY`.

    ``phase`` seconds pass from the last evaluation to the outage, and scrapes are 10 s after
    evaluations.
    """
    times = np.arange(10, HEALTHY + OUTAGE, SCRAPE)
    good, failed = (
        np.floor_divide(np.maximum(seconds, 0) * per_minute, 60)
        for seconds in (np.minimum(times, HEALTHY + phase), times - HEALTHY - phase)
    )
    return _counters(times, np.diff(good, prepend=0), np.diff(failed, prepend=0))


def seconds_to_page(rules_: PagingRules, per_minute: int) -> Mapping[Decimal, int | None]:
    """Return the worst-case seconds from a total outage to the page, by target."""
    slowest: dict[Decimal, int | None] = dict.fromkeys(rules_.conditions, 0)
    for phase in range(0, MINUTE, TICK):
        samples = outage(per_minute, phase)
        for target, evaluations, firing in rules_.firing(samples, HEALTHY + OUTAGE):
            begun = evaluations[begins(reduce(or_, firing))]
            longest = slowest[target]
            found = int(begun[0]) - HEALTHY - phase if len(begun) else None
            slowest[target] = None if None in (longest, found) else max(longest or 0, found or 0)
    return slowest


def print_outages() -> None:
    """Print the minutes from a total outage to the page."""
    print("Minutes from a total outage to the page, scrape and evaluation included, at worst:")
    print(f"{'rules':<9} {'requests':>9}", *(f"{_percent(target):>7}" for target in TARGETS))
    for tool, each in rules(TARGETS).items():
        for per_minute in OUTAGE_PER_MINUTE:
            found = seconds_to_page(each, per_minute).values()
            cells = ("none" if time is None else f"{time / 60:.1f}" for time in found)
            print(f"{tool:<9} {f'{per_minute}/min':>9}", *(f"{cell:>7}" for cell in cells))


def print_scenarios() -> None:
    """Print the pages in 90 days of each scenario."""
    print("Pages in 90 days of each scenario, those without an incident, those not in the truth:")
    print(
        f"{'scenario':<8} {'rules':<9}", *(f"{_percent(target):>14}" for target in SCENARIO_TARGETS)
    )
    of = rules(SCENARIO_TARGETS)
    for scenario in SCENARIOS:
        traffic = play(scenario, HISTORY, families=[REQUESTS])
        for tool, each in of.items():
            found = pages(each, traffic, HISTORY).values()
            cells = (f"{p.all:>4} {p.without_incident:>4} {p.not_in_truth:>4}" for p in found)
            print(f"{scenario.name:<8} {tool:<9}", *cells)


def print_backgrounds(seeds: int) -> None:
    """Print the pages at steady error ratios."""
    print(f"Pages in {seeds} x 90 days of a steady share of bad requests, by requests a minute:")
    columns = "".join(f"{rate:>8g}" for rate in PER_MINUTE)
    print(f"{'target':>6} {'bad':>5} {'burn':>5} {'rules':<9}{columns}")
    of = rules(BACKGROUND_TARGETS)
    counts = Counter[tuple[Decimal, Decimal, str, float]]()
    for bad, rate, seed in product(BACKGROUNDS, PER_MINUTE, range(seeds)):
        samples = background(rate, bad, HISTORY, seed)
        for tool, each in of.items():
            for target, _, firing in each.firing(samples, HISTORY):
                counts[target, bad, tool, rate] += len(begins(reduce(or_, firing)))
    for target, bad, tool in product(BACKGROUND_TARGETS, BACKGROUNDS, of):
        burn = decimal_text(bad / (1 - target))
        cells = "".join(f"{counts[target, bad, tool, rate]:>8}" for rate in PER_MINUTE)
        print(f"{_percent(target):>6} {_percent(bad):>5} {burn:>5} {tool:<9}{cells}")


def _percent(share: Decimal) -> str:
    return f"{decimal_text(100 * share)}%"


def main(seeds: str = str(SEEDS)) -> None:
    """Print the three tables."""
    histories = positive_integer(seeds, "SEEDS")
    if not shutil.which("go"):
        print("Go is not installed: Sloth and Pyrra are omitted.", end="\n\n")
    print_outages()
    print()
    print_scenarios()
    print()
    print_backgrounds(histories)


if __name__ == "__main__":
    main(*sys.argv[1:])
