"""How right the recorded rules are and what they cost, beside those of Sloth and Pyrra.

``python -m bench.rules`` from the checkout; README.md says what the tables mean.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from math import isinf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from lab import parts, prometheus
from slos.durations import parse_duration
from tests.rule_values.compare import BUDGET, Compared, compare, record
from tests.rule_values.recordings import Tool, tools
from tests.rule_values.replay import Asked, Replay
from tests.rule_values.traffic import DAY, HOUR, STORIES, play

PERIOD = Decimal(28 * DAY)
HISTORY = 30 * DAY
CHECKS = range(5 * DAY, HISTORY + 1, 12 * HOUR + 450)
INDICATORS = ("availability", "e2e")
SERVERS = (2, 10)
COSTLY = STORIES[0]


def accuracy(replay: Replay) -> list[Compared]:
    """Compare all tools in all stories, one at a time: a long history of all is a lot to write."""
    return [
        one
        for story in STORIES
        for indicator in INDICATORS
        for one in compare(
            replace(replay, folder=replay.folder / story.name / indicator),
            [story],
            {story.name: tools(story.name, indicator, PERIOD)},
            HISTORY,
            CHECKS,
        )
    ]


def print_accuracy(results: Sequence[Compared]) -> None:
    windows = sorted({w for one in results for w in one.checks if w != BUDGET}, key=parse_duration)
    columns = [*windows, BUDGET]
    print(f"{'story':<8} {'rules':<22}", *(f"{column:>6}" for column in columns), "    now")
    for one in results:
        cells = [_percent(one.error(c)) if c in one.checks else "-" for c in columns]
        now = _percent(median(check.error_now for check in one.checks[BUDGET]))
        row = " ".join(f"{cell:>6}" for cell in cells)
        print(f"{one.story:<8} {one.tool.name:<22} {row} {now:>6}")


def _percent(error: float) -> str:
    return "none" if isinf(error) else f"{100 * error:.2f}"


def print_costs(replay: Replay) -> None:
    print(
        f"{'servers':>7} {'rules':<22} {'series':>6} {'samples read, once':>19} "
        f"{'read / minute':>14} {'written / minute':>17}"
    )
    for servers in SERVERS:
        place = replace(replay, folder=replay.folder / str(servers))
        place.add(play(COSTLY, HISTORY, servers=servers).samples)
        each = [tool for name in INDICATORS for tool in tools(COSTLY.name, name, PERIOD)]
        record(place, each, HISTORY, range(HISTORY, HISTORY + 1, 30))
        with place.asking() as asked:
            for tool in each:
                cost = _cost(asked, tool)
                print(
                    f"{servers:>7} {tool.name:<22} {cost['series']:>6,.0f} {cost['once']:>19,.0f} "
                    f"{cost['read']:>14,.0f} {cost['written']:>17,.0f}"
                )


def _cost(asked: Asked, tool: Tool) -> Mapping[str, float]:
    """Return what one evaluation of all rules reads and gives, and what that is in a minute."""
    recorded = [(asked.cost(one.expr, HISTORY), one.every) for one in tool.recordings]
    alerting = [(asked.cost(expr, HISTORY), every) for expr, every in tool.alerts]
    return {
        "series": sum(series for (series, _), _ in recorded),
        "once": sum(read for (_, read), _ in recorded + alerting),
        "read": sum(read * 60 / every for (_, read), every in recorded + alerting),
        "written": sum(series * 60 / every for (series, _), every in recorded),
    }


def main(release: str = "") -> None:
    """Print both tables; ``release`` is the Debian release whose Prometheus is asked."""
    at = f"@{release}" if release else ""
    server, promtool = (parts.program(f"{name}{at}", print) for name in ("prometheus", "promtool"))
    print(parts.run("promtool", [promtool, "--version"]).splitlines()[0], end="\n\n")
    with TemporaryDirectory() as folder:
        replay = Replay(promtool, partial(prometheus.start, server), Path(folder))
        print_accuracy(accuracy(replay))
        print()
        print_costs(replace(replay, folder=Path(folder) / "costs"))


if __name__ == "__main__":
    main(*sys.argv[1:])
