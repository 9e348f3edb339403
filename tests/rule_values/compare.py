"""How far the ratios that rules record are from what truly happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite

from slos.durations import parse_duration
from slos.names import BASE_WINDOW
from tests.rule_values.recordings import EVERY, TARGET, Tool
from tests.rule_values.replay import Asked, Replay, Samples
from tests.rule_values.traffic import DAY, SCRAPE, Story, Truth, play

BUDGET = "budget"
"""What is left of the budget, among the windows of a comparison."""
LATE = int(parse_duration(BASE_WINDOW)) + SCRAPE
"""Seconds in which an event is seen in full: a rate looks back, and a scrape comes after it."""
_BUDGET = float(1 - TARGET)


@dataclass(frozen=True, slots=True)
class Check:
    """What a tool said of a window at a time, and what was true.

    ``said`` and ``true`` are error ratios, None where there is none; ``lately`` are the least and
    the highest that was true in the last :data:`LATE` seconds.  ``least`` is the smallest ratio
    that errors are measured by.
    """

    said: float | None
    true: float | None
    lately: tuple[float, float] | None
    least: float

    @property
    def error(self) -> float:
        """Return how far this is from anything lately true, as a share of it.

        Infinite if nothing is said although there were events, or something although there were
        none.
        """
        if self.said is None or self.lately is None:
            return 0.0 if self.said is None and self.true is None else inf
        low, high = self.lately
        nearest = min(max(self.said, low), high)
        return _share(abs(self.said - nearest), max(nearest, self.least))

    @property
    def error_now(self) -> float:
        """Return how far this is from what is true at this moment, as a share of it."""
        if self.said is None or self.true is None:
            return 0.0 if self.said is self.true else inf
        return _share(abs(self.said - self.true), max(self.true, self.least))


def _share(part: float, whole: float) -> float:
    return part / whole if part else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """One tool in one story: its rules, and the checks of each window, the period's last."""

    story: str
    tool: Tool
    checks: Mapping[str, Sequence[Check]]

    def error(self, window: str, share: float = 1.0) -> float:
        """Return the error of a window that a ``share`` of its checks do not exceed."""
        errors = sorted(check.error for check in self.checks[window])
        return errors[ceil(share * len(errors)) - 1]


def compare(
    replay: Replay,
    stories: Sequence[Story],
    tools_: Mapping[str, Sequence[Tool]],
    history: int,
    checks: range,
) -> list[Compared]:
    """Play stories for ``history`` seconds, let tools record them, and look at check times."""
    truths: dict[str, Truth] = {}
    for story in stories:
        traffic = play(story, history)
        truths[story.name] = traffic.sums()
        replay.add(traffic.samples)
    record(replay, [tool for each in tools_.values() for tool in each], history, checks)
    with replay.asking() as asked:
        return [
            Compared(name, tool, dict(_checks(asked, tool, truths[name], checks)))
            for name, of in tools_.items()
            for tool in of
        ]


def record(replay: Replay, tools_: Sequence[Tool], history: int, checks: range) -> None:
    """Add what the rules record: always where that is summed up over time, else at the checks."""
    always = range(0, history + 1, EVERY)
    layers = [tool.layers() for tool in tools_]
    for depth in range(max(map(len, layers))):
        samples: dict[str, Samples] = {}
        with replay.asking() as asked:
            for tool, layered in zip(tools_, layers, strict=True):
                for recording in layered[depth] if depth < len(layered) else ():
                    times = always if tool.is_summed(recording) else checks
                    samples |= asked.recorded(recording, times)
        replay.add(samples)


def _checks(
    asked: Asked, tool: Tool, truth: Truth, checks: range
) -> Iterator[tuple[str, list[Check]]]:
    def check(said: Mapping[float, float], window: str) -> list[Check]:
        seconds = int(parse_duration(window))
        return [
            Check(
                said.get(at),
                truth.ratio(at, seconds),
                truth.lately(at, seconds, LATE),
                # A share of next to no failures is no use to anyone, unless it is of a long time.
                0.0 if seconds >= DAY else _BUDGET,
            )
            for at in checks
        ]

    for window, expr in tool.ratios.items():
        yield window, check(_numbers(asked.values(expr, checks)), window)
    left = _numbers(asked.values(tool.budget, checks))
    spent = {at: (1 - share) * _BUDGET for at, share in left.items()}
    yield BUDGET, check(spent, [*tool.ratios][-1])


def _numbers(values: Mapping[float, float]) -> Mapping[float, float]:
    return {at: value for at, value in values.items() if isfinite(value)}
