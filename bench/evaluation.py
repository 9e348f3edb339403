"""Measure the CPU time of a real Prometheus for rules of tokenslo, Sloth and Pyrra.

Run ``python -m bench.evaluation [young] [full]`` from the checkout; README.md explains the table.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import numpy.typing as npt
import yaml

from bench import peers, programs
from bench.arguments import check_names
from bench.figures import (
    Figure,
    MissingPeer,
    PeerComparison,
    RepeatLimits,
    median_interval,
    repeat,
)
from bench.peers import COMPARED
from lab import prometheus, toolchain
from slos.durations import parse_duration
from slos.events import MINUTE
from slos.generated_yaml import document
from slos.names import BAD, TARGET, TOTAL, series_labels
from tests.rule_values.recordings import IndicatorSelectors
from tests.rule_values.replay import EPOCH, Replay, Start, replaying
from tests.rule_values.traffic import (
    BOUNDARY,
    DAY,
    DURATION,
    EVENTS,
    REQUESTS,
    SCRAPE,
    Counts,
    Labels,
    labelled,
    points,
)

COUNT = 50
"""Number of objectives that the costs are scaled to."""
TARGETS = 20
AHEAD = 480
"""Seconds of scrapes written in advance, instead of live targets; Prometheus accepts 10 minutes."""
DEFAULT_INTERVAL = f"{MINUTE}s"
"""Evaluation interval of groups without one, such as Sloth's."""
COSTLIEST = 4
LONG_ROUNDS, LONG_SECONDS = 7, 3600.0
_CPU = "process_cpu_seconds_total"
_EVALUATION = "prometheus_rule_evaluation_duration_seconds_sum"
_ITERATIONS = "prometheus_rule_group_iterations_total"
_GOOD, _FAILED = 30, 0.2
"""Mean numbers of good requests and of each kind of failure per scrape of a target."""


@dataclass(frozen=True, slots=True)
class SampleHistory:
    """Length in days of the samples in Prometheus, and number of objectives."""

    days: int
    objectives: int


HISTORIES = {"young": SampleHistory(1, COUNT), "full": SampleHistory(30, 4)}
"""A full history of 50 objectives is 345 million samples, so 4 are measured and scaled up."""


class BenchError(Exception):
    """An invalid measurement."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost per minute of the rules of :data:`COUNT` objectives, in seconds.

    ``cpu`` is CPU time of the whole process; ``wall`` is the evaluation time that Prometheus
    reports, and ``rules`` the same by rule.
    """

    cpu: float
    wall: float
    rules: Mapping[str, float]


def models(objectives: int) -> Sequence[str]:
    """Return the models of a number of objectives, one of each kind per model."""
    return [f"m{number}" for number in range(objectives // len(COMPARED))]


def generated(objectives: int, tools: Collection[str] = ()) -> Mapping[str, str]:
    """Return the rule file of each tool, or of the named ones; without Go, only tokenslo's."""
    names = models(objectives)
    ours = [group for model in names for group in peers.own(model, COMPARED)]
    files = {"tokenslo": document("", {"groups": ours}, source="", version="")}
    if not shutil.which("go"):
        return files
    selected = [IndicatorSelectors.of(model, name) for model, name in product(names, COMPARED)]
    theirs: Mapping[str, Callable[[IndicatorSelectors], Sequence[Mapping[str, Any]]]] = {
        "Sloth": partial(peers.sloth, target=peers.TARGET),
        "Sloth -o": partial(peers.sloth, target=peers.TARGET, optimized=False),
        "Pyrra": partial(peers.pyrra, target=peers.TARGET),
    }
    return files | {
        tool: yaml.safe_dump({"groups": [*chain(*map(generate, selected))]})
        for tool, generate in theirs.items()
        if tool in tools or not tools
    }


def add_history(replay: Replay, history: SampleHistory, now: int) -> None:
    """Write the scrapes of all targets, and the recorded series that rules sum over time."""
    draw = np.random.RandomState(1)
    names = models(history.objectives)
    since = now - history.days * DAY
    scrapes = np.arange(since, now + AHEAD, SCRAPE) - EPOCH
    for target in range(TARGETS):
        good, error, timeout = (
            np.cumsum(draw.poisson(mean, len(scrapes))) for mean in (_GOOD, _FAILED, _FAILED)
        )
        bad = error + timeout
        of_slo = {"signal": "e2e", "threshold": str(BOUNDARY)}
        scraped: Sequence[tuple[str, Mapping[str, str], Counts]] = (
            (REQUESTS, {"outcome": "ok"}, good),
            (REQUESTS, {"outcome": "error"}, error),
            (REQUESTS, {"outcome": "timeout"}, timeout),
            (REQUESTS, {"outcome": "shed"}, np.zeros_like(good)),
            (f"{DURATION}_bucket", {"le": str(BOUNDARY)}, good),
            (f"{DURATION}_count", {}, good + bad),
            (EVENTS, {**of_slo, "result": "good"}, good),
            (EVENTS, {**of_slo, "result": "bad"}, bad),
        )
        # Targets are scraped at different moments.
        times = scrapes + target * SCRAPE // TARGETS
        for (metric, labels, values), model in product(scraped, names):
            at = {"model": model, "instance": str(target)}
            _add(replay, labelled(metric, **at, **labels), times, values)
    minutes = np.arange(since, now, MINUTE) - EPOCH
    total = draw.poisson(2 * TARGETS * _GOOD, len(minutes))
    failed = draw.binomial(total, 2 * _FAILED / _GOOD)
    for model, name in product(names, COMPARED):
        mine = series_labels(model, name)
        _add(replay, labelled(TOTAL, **mine), minutes, total)
        _add(replay, labelled(BAD, **mine), minutes, failed)
        _add(replay, labelled(TARGET, **mine), minutes, np.full(len(minutes), peers.TARGET))
        slo = {"sloth_id": f"{model}-{name}", "sloth_service": model, "sloth_slo": name}
        ratio = labelled("slo:sli_error:ratio_rate5m", **slo, sloth_window="5m")
        _add(replay, ratio, minutes, failed / total)


def _add(replay: Replay, series: Labels, times: Counts, values: npt.NDArray[Any]) -> None:
    replay.add({series: points(times, values, np.full(len(times), True))})


def measure(replay: Replay, rules: Path, text: str, objectives: int) -> Cost:
    """Measure the evaluation of a rule file, for a whole number of its intervals."""
    intervals = {
        group["name"]: int(parse_duration(group.get("interval", DEFAULT_INTERVAL)))
        for group in yaml.safe_load(text)["groups"]
    }
    seconds = max(intervals.values())
    rules.write_text(text)
    _get(replay, "/-/reload", "POST")
    before = _metrics(replay)
    time.sleep(seconds)
    after = _metrics(replay)
    groups = json.loads(_get(replay, "/api/v1/rules"))["data"]["groups"]
    rules.unlink()
    _get(replay, "/-/reload", "POST")
    _check(groups, intervals, seconds, after)
    share = COUNT / objectives * 60
    of_rules: dict[str, float] = {}
    for group in groups:
        for rule in group["rules"]:
            seconds_per_minute = rule["evaluationTime"] * share / intervals[group["name"]]
            of_rules[rule["name"]] = of_rules.get(rule["name"], 0.0) + seconds_per_minute
    cpu, wall = (after[name] - before[name] for name in (_CPU, _EVALUATION))
    return Cost(cpu * share / seconds, wall * share / seconds, of_rules)


def _check(
    groups: Sequence[Mapping[str, Any]],
    intervals: Mapping[str, int],
    seconds: int,
    metrics: Mapping[str, float],
) -> None:
    """Raise BenchError for rules that failed or missed evaluations."""
    bad = [rule for group in groups for rule in group["rules"] if rule["health"] != "ok"]
    if bad:
        raise BenchError(f"Prometheus did not evaluate {bad[0]['name']}: {bad[0]}")
    for group in groups:
        times = metrics[f'{_ITERATIONS}{{rule_group="{group["file"]};{group["name"]}"}}']
        if abs(times - seconds / intervals[group["name"]]) > 1:
            raise BenchError(
                f"{group['name']}: {times:g} evaluations in {seconds} s, too few; use more cores"
            )


def _metrics(replay: Replay) -> Mapping[str, float]:
    lines = _get(replay, "/metrics").splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {series: float(value) for series, _, value in pairs}


def _get(replay: Replay, path: str, method: str = "GET") -> str:
    with urlopen(Request(replay.url + path, method=method)) as response:  # noqa: S310 (http only)
        return response.read().decode()  # type: ignore[no-any-return]


def costs(
    start: Start, folder: Path, history: SampleHistory, tools: Collection[str] = ()
) -> Mapping[str, Cost]:
    """Measure the rules of each tool, or of tokenslo and the named ones, on a history."""
    rules = folder / "rules.yaml"
    texts = generated(history.objectives, tools)
    begin = partial(start, rules=[folder / "rules*.yaml"], interval=float(MINUTE))
    with replaying(begin, folder) as replay:
        now = int(time.time()) // MINUTE * MINUTE
        add_history(replay, history, now)
        found = {
            tool: measure(replay, rules, text, history.objectives) for tool, text in texts.items()
        }
    if time.time() > now + AHEAD:
        raise BenchError(f"the scrapes ended before all rules were measured, after {AHEAD} s")
    return found


def figures(long: bool) -> Iterator[Figure]:
    """Compare the CPU time of rules; a long run repeats it, and adds the full history."""
    if not shutil.which("go"):
        for tool in peers.MODULES:
            yield MissingPeer("evaluation of rules", tool.capitalize(), "Go is not installed")
        return
    server = toolchain.program("prometheus", programs.progress)
    for history in HISTORIES.values() if long else [HISTORIES["young"]]:
        rounds = _rounds(server, history, long)
        for tool in peers.MODULES:
            title = tool.capitalize()
            yield PeerComparison(
                f"CPU of Prometheus for the rules of {COUNT} objectives, history of "
                f"{history.days}d",
                peers.title(title),
                "s/min",
                [each["tokenslo"].cpu for each in rounds],
                [each[title].cpu for each in rounds],
                target=1.0,
            )


def _rounds(server: Path, history: SampleHistory, long: bool) -> list[Mapping[str, Cost]]:
    tools = [name.capitalize() for name in peers.MODULES]

    def measured() -> Mapping[str, Cost]:
        with TemporaryDirectory() as name:
            return costs(partial(prometheus.start, server), Path(name), history, tools)

    return repeat(
        measured,
        lambda done: [
            median_interval(each["tokenslo"].cpu / each[tool].cpu for each in done)
            for tool in tools
        ],
        RepeatLimits(most=LONG_ROUNDS if long else 1, seconds=LONG_SECONDS),
    )


def main(*histories: str) -> None:
    """Print the costs on the named histories, on both by default."""
    check_names(histories, HISTORIES, "history")
    if not shutil.which("go"):
        print("Go is not installed: Sloth and Pyrra are omitted.", end="\n\n")
    server = toolchain.program("prometheus", print)
    print(toolchain.run("prometheus", [server, "--version"]).splitlines()[0], end="\n\n")
    print(f"{'history':<7} {'rules':<8} {'CPU s / minute':>14} {'evaluation s / minute':>21}")
    with TemporaryDirectory() as name:
        for title in histories or HISTORIES:
            found = costs(partial(prometheus.start, server), Path(name, title), HISTORIES[title])
            for tool, cost in found.items():
                print(f"{title:<7} {tool:<8} {cost.cpu:>14.2f} {cost.wall:>21.2f}")
            print_costliest(found)


def print_costliest(found: Mapping[str, Cost]) -> None:
    """Print the costliest rules of each tool."""
    for tool, cost in found.items():
        costliest = sorted(cost.rules.items(), key=lambda item: item[1])[: -1 - COSTLIEST : -1]
        print(f"{tool}:", *(f"{name} {wall:.2f} s" for name, wall in costliest), sep="  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
