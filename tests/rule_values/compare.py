"""How far the ratios that rules record are from what truly happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf, isfinite
from operator import add

from slos.durations import parse_duration
from slos.events import MINUTE
from slos.names import BASE_WINDOW
from tests.rule_values.recordings import MOST, OBJECTIVES, TARGET, Tool
from tests.rule_values.replay import Replay
from tests.rule_values.traffic import DAY, SCRAPE, Traffic, Truth

PERIOD, BUDGET = "period", "budget"
"""The ratio of the whole period and what is left of its budget, among the windows compared."""
_BUDGET = float(1 - TARGET)


@dataclass(frozen=True, slots=True)
class Check:
    """What a tool said of a window at a time, and what was true.

    ``said`` and ``true`` are error ratios, None where there is none; ``lately`` are the least and
    the highest that was true while the last event was still fading in.  ``least`` is the smallest
    ratio that errors are measured by.
    """

    computed: float | None
    true: float | None
    lately: tuple[float, float] | None
    least: float

    def of_budget(self) -> Check:
        """Return the same of a budget, of which nothing is spent while nothing happens."""
        return replace(self, true=self.true or 0.0, lately=self.lately or (0.0, 0.0))

    @property
    def error(self) -> float:
        """Return how far this is from anything lately true, as a share of it.

        Infinite if nothing is said although there were events, or something although there were
        none.
        """
        if self.computed is None or self.lately is None:
            return 0.0 if self.computed is None and self.true is None else inf
        low, high = self.lately
        nearest = min(max(self.computed, low), high)
        return _share(abs(self.computed - nearest), max(nearest, self.least))

    @property
    def error_now(self) -> float:
        """Return how far this is from what is true at this moment, as a share of it."""
        if self.computed is None or self.true is None:
            return 0.0 if self.computed is self.true else inf
        return _share(abs(self.computed - self.true), max(self.true, self.least))


def _share(part: float, whole: float) -> float:
    return part / whole if part else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """One tool in one scenario: its rules, and the checks of each window."""

    scenario: str
    tool: Tool
    checks: Mapping[str, Sequence[Check]]

    def error(self, window: str) -> float:
        """Return the worst error of a window."""
        return max(check.error for check in self.checks[window])


def compare(
    replay: Replay,
    played: Mapping[str, Traffic],
    tools_: Mapping[str, Sequence[Tool]],
    history: int,
    checks: range,
) -> list[Compared]:
    """Let tools record what scenarios of ``history`` seconds made, and look at check times."""
    for traffic in played.values():
        replay.add(traffic.samples)
    apart = {scenario: [tool.apart() for tool in of] for scenario, of in tools_.items()}
    record(replay, [tool for each in apart.values() for tool in each], history, checks)
    return [
        Compared(scenario, tool, dict(_checks(replay, tool, played[scenario], checks)))
        for scenario, of in apart.items()
        for tool in of
    ]


def record(replay: Replay, tools_: Sequence[Tool], history: int, checks: range) -> None:
    """Add what the rules record: always where that is summed up over time, else at the checks."""
    layers = [tool.layers() for tool in tools_]
    for depth in range(max(map(len, layers))):
        wanted = {
            str(recording): (
                recording,
                range(0, history + 1, recording.every) if tool.is_summed(recording) else checks,
            )
            for tool, layered in zip(tools_, layers, strict=True)
            for recording in (layered[depth] if depth < len(layered) else ())
        }
        for recording, times in wanted.values():
            replay.add(replay.recorded(recording, times))


def _checks(
    replay: Replay, tool: Tool, traffic: Traffic, checks: range
) -> Iterator[tuple[str, list[Check]]]:
    truth, late = _truth(tool, traffic)

    def check(computed: Mapping[float, float], window: str) -> list[Check]:
        seconds = int(parse_duration(window))
        return [
            Check(
                computed.get(at),
                truth.ratio(at, seconds),
                truth.lately(at, seconds, late),
                # A share of next to no failures is no use to anyone, unless it is of a long time.
                0.0 if seconds >= DAY else _BUDGET,
            )
            for at in checks
        ]

    for window, expr in tool.ratios.items():
        yield window, check(_numbers(replay.values(expr, checks)), window)
    # Ours are of the events of the whole period, most of which a young history does not have.
    ours, period = tool.name == "tokenslo", float(parse_duration(tool.period))
    had = {at: min(at / period, 1.0) if ours else 1.0 for at in checks}
    whole = _numbers(replay.values(tool.whole, checks))
    yield PERIOD, check({at: ratio / had[at] for at, ratio in whole.items()}, tool.period)
    left = _numbers(replay.values(tool.budget, checks))
    spent = {at: (1 - share) * _BUDGET / had[at] for at, share in left.items()}
    yield BUDGET, [one.of_budget() for one in check(spent, tool.period)]


def _truth(tool: Tool, traffic: Traffic) -> tuple[Truth, int]:
    """Return what happened of what an objective is about, and how late it is seen in full.

    A rate looks back over the base window, ours over the minute since the last evaluation; a scrape
    comes after an event, and a slice is judged when it is over.
    """
    ours = tool.name == "tokenslo"
    late = (2 * MINUTE if ours else int(parse_duration(BASE_WINDOW))) + SCRAPE
    objective = OBJECTIVES[tool.objective]
    every = reduce(add, traffic.requests)
    if objective.indicator == "kv_headroom":
        return traffic.full, late
    if objective.group_by:
        return traffic.requests[0], late
    if objective.slices:
        seconds = int(objective.slices.window)
        return every.slices(seconds, float(1 - MOST)), late + seconds
    return every, late


def _numbers(values: Mapping[float, float]) -> Mapping[float, float]:
    return {at: value for at, value in values.items() if isfinite(value)}
