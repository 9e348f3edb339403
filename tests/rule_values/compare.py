"""Compare the ratios that rules record with the simulated events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf, isfinite
from operator import add

from slos.durations import parse_duration
from slos.events import MINUTE
from slos.names import BASE_WINDOW
from tests.rule_values.recordings import OBJECTIVES, SLICE_TARGET, TARGET, Tool
from tests.rule_values.replay import Replay
from tests.rule_values.traffic import DAY, SCRAPE, Traffic, Truth

PERIOD, BUDGET = "period", "budget"
"""Keys of the period's error ratio and remaining budget, next to the windows."""
_BUDGET = float(1 - TARGET)


@dataclass(frozen=True, slots=True)
class Check:
    """The error ratio of a window that a tool computed at a time, and the true one.

    ``computed`` and ``true`` are None without a ratio.  ``lately`` are the lowest and the highest
    true ratio while the last events may not be scraped yet.  Relative errors are relative
    to at least ``least``.
    """

    computed: float | None
    true: float | None
    lately: tuple[float, float] | None
    least: float

    def of_budget(self) -> Check:
        """Return the check of a budget, which is unspent without events."""
        return replace(self, true=self.true or 0.0, lately=self.lately or (0.0, 0.0))

    @property
    def error(self) -> float:
        """Return the relative error to the nearest recent true ratio.

        Infinite if only one of the computed and the true ratio exists.
        """
        if self.computed is None or self.lately is None:
            return 0.0 if self.computed is None and self.true is None else inf
        low, high = self.lately
        nearest = min(max(self.computed, low), high)
        return _share(abs(self.computed - nearest), max(nearest, self.least))

    @property
    def error_now(self) -> float:
        """Return the relative error to the current true ratio."""
        if self.computed is None or self.true is None:
            return 0.0 if self.computed is self.true else inf
        return _share(abs(self.computed - self.true), max(self.true, self.least))


def _share(part: float, whole: float) -> float:
    return part / whole if part else 0.0


@dataclass(frozen=True, slots=True)
class ToolComparison:
    """The checks of one tool in one scenario, by window."""

    scenario: str
    tool: Tool
    checks: Mapping[str, Sequence[Check]]

    def error(self, window: str) -> float:
        """Return the maximum error of a window."""
        return max(check.error for check in self.checks[window])


def compare(
    replay: Replay,
    played: Mapping[str, Traffic],
    tools_: Mapping[str, Sequence[Tool]],
    history: int,
    checks: range,
) -> list[ToolComparison]:
    """Evaluate the rules of tools on scenarios of ``history`` seconds; compare at ``checks``."""
    for traffic in played.values():
        replay.add(traffic.samples)
    isolated = {scenario: [tool.isolated() for tool in of] for scenario, of in tools_.items()}
    record(replay, [tool for each in isolated.values() for tool in each], history, checks)
    return [
        ToolComparison(scenario, tool, dict(_checks(replay, tool, played[scenario], checks)))
        for scenario, of in isolated.items()
        for tool in of
    ]


def record(replay: Replay, tools_: Sequence[Tool], history: int, checks: range) -> None:
    """Add recorded series: at every evaluation if summed over time, else at ``checks`` only."""
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
                # Relative errors of tiny ratios do not matter, except over long windows.
                0.0 if seconds >= DAY else _BUDGET,
            )
            for at in checks
        ]

    for window, expr in tool.ratios.items():
        yield window, check(_numbers(replay.values(expr, checks)), window)
    # tokenslo divides by the events of the whole period, most of which a young history lacks.
    ours, period = tool.name == "tokenslo", float(parse_duration(tool.period))
    share_recorded = {at: min(at / period, 1.0) if ours else 1.0 for at in checks}
    whole = _numbers(replay.values(tool.whole, checks))
    yield (
        PERIOD,
        check({at: ratio / share_recorded[at] for at, ratio in whole.items()}, tool.period),
    )
    left = _numbers(replay.values(tool.budget, checks))
    spent = {at: (1 - share) * _BUDGET / share_recorded[at] for at, share in left.items()}
    yield BUDGET, [one.of_budget() for one in check(spent, tool.period)]


def _truth(tool: Tool, traffic: Traffic) -> tuple[Truth, int]:
    """Return the true events of an objective, and the maximum delay until rules count them.

    A rate covers the base window, the increase the minute since the last evaluation.  A scrape
    follows an event, and a slice is evaluated after its end.
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
        return every.slices(seconds, float(1 - SLICE_TARGET)), late + seconds
    return every, late


def _numbers(values: Mapping[float, float]) -> Mapping[float, float]:
    return {at: value for at, value in values.items() if isfinite(value)}
