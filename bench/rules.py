"""Measure accuracy and cost of recorded rules, next to those of Sloth and Pyrra.

Run ``python -m bench.rules`` from the checkout; README.md explains the tables.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from math import isinf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import peers, programs
from bench.arguments import check_names
from bench.figures import Figure, PeerComparison
from bench.peers import COMPARED
from lab import prometheus, toolchain
from slos.durations import format_duration
from tests.rule_values.compare import BUDGET, PERIOD, ToolComparison, compare, record
from tests.rule_values.recordings import EVERY, OBJECTIVES, Tool, tokenslo, tools
from tests.rule_values.replay import Replay, Start, replaying
from tests.rule_values.traffic import DAY, HOUR, METRICS, SCENARIOS, TrafficScenario, play

PERIODS = [Decimal(days * DAY) for days in (1, 7, 28, 30, 90)]
*EACH, WORST = SCENARIOS
# Only the hardest scenario has a history for periods of 90 days.
HISTORY = {scenario.name: (93 if scenario == WORST else 30) * DAY for scenario in SCENARIOS}
# An interval that reaches every time of day.
CHECK_EVERY = 22 * HOUR + 450
# The sidecar evaluates time slices from every request: scrapes do not affect them.
OTHERS = [name for name, one in OBJECTIVES.items() if name not in COMPARED and not one.slices]
OTHERS_HISTORY = 8 * DAY
OTHERS_CHECKS = range(2 * DAY, OTHERS_HISTORY + 1, 4 * HOUR + 450)
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
SERVERS = (2, 10)
USUAL = Decimal(28 * DAY)
COSTLY, COSTLY_HISTORY = SCENARIOS[0], 30 * DAY
REAL_HISTORIES = (DAY, 30 * DAY)
TABLES = ("peers", "generated", "written", "others", "costs")
REQUIRE_GO = {"peers", "generated"}
WITHOUT_GO = """\
Go is not installed, so Sloth and Pyrra cannot be built.  Their rules are copied in
tests/rule_values/recordings.py.  Omitted: the tables peers and generated, which are their sizes,
times to page, and the accuracy and cost of the rules that they generate.
"""


def accuracy(start: Start, folder: Path, scenario: TrafficScenario) -> list[ToolComparison]:
    """Compare all tools in one scenario, over all periods."""
    history = HISTORY[scenario.name]
    periods = [period for period in PERIODS if period <= history]
    selected_tools = [
        tool
        for name in COMPARED
        for period in periods
        for tool in tools(scenario.name, name, period)
    ]
    checks = range(2 * DAY, history + 1, CHECK_EVERY)
    with replaying(start, folder / scenario.name) as replay:
        return compare(
            replay,
            {scenario.name: play(scenario, history)},
            {scenario.name: selected_tools},
            history,
            checks,
        )


def others(start: Start, folder: Path, scenario: TrafficScenario) -> list[ToolComparison]:
    """Compare tokenslo's other kinds of objectives with the truth."""
    selected_tools = [
        tokenslo(scenario.name, name, Decimal(days * DAY)) for name in OTHERS for days in (1, 7)
    ]
    with replaying(start, folder / f"{scenario.name} others") as replay:
        traffic = {scenario.name: play(scenario, OTHERS_HISTORY, families=METRICS)}
        return compare(
            replay, traffic, {scenario.name: selected_tools}, OTHERS_HISTORY, OTHERS_CHECKS
        )


def print_errors(results: Iterable[ToolComparison], periods: Sequence[Decimal]) -> None:
    """Print the worst errors by window and period, in percent."""
    rows: dict[tuple[str, str, str], dict[str, ToolComparison]] = {}
    for one in results:
        key = (one.scenario, one.tool.objective, one.tool.name)
        rows.setdefault(key, {})[one.tool.period] = one
    for (scenario, objective, name), by_period in rows.items():
        windows: dict[str, float] = {}
        for one in by_period.values():
            for window in {*WINDOWS} & one.checks.keys():
                windows[window] = max(windows.get(window, 0.0), one.error(window))
        cells = [_percent(windows[w]) if w in windows else "-" for w in WINDOWS]
        period_errors = [
            _percent(max(one.error(PERIOD), one.error(BUDGET))) if one else "-"
            for one in (by_period.get(format_duration(period)) for period in periods)
        ]
        (*_, longest) = by_period.values()
        now = _percent(median(check.error_now for check in longest.checks[BUDGET]))
        row = " ".join(f"{cell:>6}" for cell in [*cells, *period_errors, now])
        print(f"{scenario:<8} {objective:<12} {name:<8} {row}")


def print_head(periods: Sequence[Decimal]) -> None:
    """Print the column heads of :func:`print_errors`."""
    columns = [*WINDOWS, *(f"P{format_duration(period)}" for period in periods), "now"]
    print(f"{'scenario':<8} {'objective':<12} {'rules':<8}", *(f"{each:>6}" for each in columns))


def _percent(error: float) -> str:
    return "none" if isinf(error) else f"{100 * error:.2f}"


def print_costs(start: Start, folder: Path) -> None:
    """Print the series and samples that rules read and write, with 2 and 10 servers."""
    print(
        f"{'servers':>7} {'objective':<12} {'rules':<8} {'series':>6} {'samples read, once':>19} "
        f"{'read / minute':>14} {'written / minute':>17}"
    )
    for servers in SERVERS:
        with replaying(start, folder / f"cost {servers}") as replay:
            replay.add(play(COSTLY, COSTLY_HISTORY, servers=servers).samples)
            selected_tools = [tool for name in COMPARED for tool in tools(COSTLY.name, name, USUAL)]
            record(
                replay,
                selected_tools,
                COSTLY_HISTORY,
                range(COSTLY_HISTORY, COSTLY_HISTORY + 1, 30),
            )
            for tool in selected_tools:
                each = cost(replay, tool, COSTLY_HISTORY)
                print(
                    f"{servers:>7} {tool.objective:<12} {tool.name:<8} {each['series']:>6,.0f} "
                    f"{each['once']:>19,.0f} {each['read']:>14,.0f} {each['written']:>17,.0f}"
                )


def cost(replay: Replay, tool: Tool, at: int) -> Mapping[str, float]:
    """Return series and samples of one evaluation of all rules, and samples per minute."""
    recorded = [(replay.cost(one.expr, at), one.every) for one in tool.recordings]
    alerting = [(replay.cost(expr, at), every) for expr, every in tool.alerts]
    return {
        "series": sum(series for (series, _), _ in recorded),
        "once": sum(read for (_, read), _ in recorded + alerting),
        "read": sum(read * 60 / every for (_, read), every in recorded + alerting),
        "written": sum(series * 60 / every for (series, _), every in recorded),
    }


def print_generated(start: Start, folder: Path) -> None:
    """Print accuracy and cost over 30 days of the rules that the real tools generate."""
    print_head([peers.PERIOD])
    history, checks = 30 * DAY, range(2 * DAY, 30 * DAY + 1, CHECK_EVERY)
    for scenario in SCENARIOS:
        each = [one for name in COMPARED for one in peers.real_tools(scenario.name, name)]
        with replaying(start, folder / f"{scenario.name} generated") as replay:
            traffic = play(scenario, history)
            replay.add_native(traffic.samples)
            found = compare(
                replay, {scenario.name: traffic}, {scenario.name: each}, history, checks
            )
        print_errors(found, [peers.PERIOD])
    print()
    print(f"{'history':>7} {'objective':<12} {'rules':<9} {'samples read / minute':>21}")
    for history in REAL_HISTORIES:
        for (objective, name), read in reads(start, folder, history).items():
            length = format_duration(Decimal(history))
            print(f"{length:>7} {objective:<12} {name:<9} {read:>21,.0f}")


def reads(start: Start, folder: Path, history: int) -> Mapping[tuple[str, str], float]:
    """Return the samples that rules of the real tools read per minute, by objective and tool."""
    with replaying(start, folder / f"generated {history}") as replay:
        traffic = play(COSTLY, history, servers=SERVERS[0])
        replay.add(traffic.samples)
        replay.add_native(traffic.samples)
        each = [one for name in COMPARED for one in peers.real_tools(COSTLY.name, name)]
        record(replay, each, history, range(history, history + 1, EVERY))
        return {(one.objective, one.name): cost(replay, one, history)["read"] for one in each}


def figures(long: bool) -> Iterator[Figure]:
    """Compare sizes, times to page, and samples read with the tools' own rules."""
    yield from peers.figures(long)
    if not shutil.which("go"):
        return
    server = toolchain.program("prometheus", programs.progress)
    with TemporaryDirectory() as name:
        for history in REAL_HISTORIES:
            found = reads(partial(prometheus.start, server), Path(name), history)
            for (objective, tool), read in found.items():
                if tool != "tokenslo":
                    yield PeerComparison(
                        f"samples read per minute ({objective}), history of "
                        f"{format_duration(Decimal(history))}",
                        peers.title(tool),
                        "",
                        [found[objective, "tokenslo"]],
                        [read],
                        target=1.0,
                        exact=True,
                    )


def main(*tables: str) -> None:
    """Print the named :data:`TABLES`, all by default; ``@forky`` selects a release's Prometheus."""
    release = next((each for each in tables if each.startswith("@")), "")
    check_names({*tables} - {release}, TABLES, "table")
    selected = {*tables} - {release} or {*TABLES}
    if not shutil.which("go") and selected & REQUIRE_GO:
        print(WITHOUT_GO)
        selected -= REQUIRE_GO
    if not selected:
        return
    server = toolchain.program(f"prometheus{release}", print)
    print(toolchain.run("prometheus", [server, "--version"]).splitlines()[0], end="\n\n")
    start = partial(prometheus.start, server)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if "peers" in selected:
            peers.main()
        if "generated" in selected:
            print_generated(start, folder)
            print()
        if "written" in selected:
            print_head(PERIODS)
            for scenario in SCENARIOS:
                print_errors(accuracy(start, folder, scenario), PERIODS)
            print()
        if "others" in selected:
            print_head(PERIODS[:2])
            for scenario in SCENARIOS:
                print_errors(others(start, folder, scenario), PERIODS[:2])
            print()
        if "costs" in selected:
            print_costs(start, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
