"""Generate rules with the real Sloth and the real Pyrra.

Run ``python -m bench.peers [TABLE…]`` from the checkout to print their sizes and times to page.
Both are built from their Go modules if Go is installed; nothing else in this project requires Go.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

import alerts.rules
from bench.arguments import check_names
from bench.figures import Figure, MissingPeer, PeerComparison
from lab import toolchain
from promql.expr import decimal_text
from slos.burn import pairs
from slos.durations import format_duration, parse_duration
from slos.generated_yaml import document
from slos.model import Service
from slos.plan import plan
from tests.rule_values.paging import BurnRateCondition
from tests.rule_values.recordings import (
    EVERY,
    OBJECTIVES,
    TARGET,
    IndicatorSelectors,
    RecordingRule,
    Tool,
    tokenslo,
)
from tests.rule_values.traffic import DAY

MODULES = {
    "sloth": ("github.com/slok/sloth", "v0.16.0", "./cmd/sloth"),
    "pyrra": ("github.com/pyrra-dev/pyrra", "v0.10.1", "."),
}
COMPARED = ("availability", "e2e")
PERIOD = Decimal(30 * DAY)
DAYS = format_duration(PERIOD)
TARGETS = tuple(map(Decimal, ("0.9999", "0.999", "0.99", "0.95", "0.9")))
ERROR_RATIOS = (Decimal(1), Decimal("0.5"), Decimal("0.2"))
WORKBOOK = (("1h", Decimal("14.4")), ("6h", Decimal(6)))
"""Long windows and burn rates that page, for 30 days: table 5-8 of the SRE workbook."""
_BUDGET = 1 - TARGET
_NOT_OPTIMIZED = {
    "chain": [
        {"id": "sloth.dev/core/sli_rules/v1", "priority": 1, "config": {"disableOptimized": True}}
    ]
}
_CONDITION = re.compile(
    r"(?:ratio_rate|burnrate)(\w+)(?:\{[^}]*\})? > \(([0-9.]+) \* ([0-9.]+|\(1-[0-9.]+\))\)"
)


def built(name: str) -> Path:
    """Build a peer's program, once, and return its path; raises InstallError without Go."""
    module, version, package = MODULES[name]

    def build(home: Path) -> None:
        found = json.loads(
            toolchain.run(name, ["go", "mod", "download", "-json", f"{module}@{version}"])
        )
        source = home / "source"
        shutil.copytree(found["Dir"], source)
        for path in (source, *source.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
        (source / "ui/build").mkdir(parents=True, exist_ok=True)  # embedded; not in the module
        (source / "ui/build/index.html").touch()
        toolchain.run(name, ["go", "build", "-o", home / name, package], cwd=source)
        shutil.rmtree(source)

    return toolchain.install(f"go-{name}-{version}", build, print) / name


def sloth(
    selected: IndicatorSelectors, target: Decimal, *, optimized: bool = True
) -> list[dict[str, Any]]:
    """Return the rule groups that Sloth generates."""
    window = "[{{.window}}]"
    total = f"sum(rate({selected.total}{window}))"
    error = (
        f"sum(rate({selected.failed}{window}))"
        if selected.failed
        else f"{total} - sum(rate({selected.good}{window}))"
    )
    slo: dict[str, Any] = {
        # Different names, as one server records both variants.
        "name": selected.indicator + ("" if optimized else "-raw"),
        "objective": float(target * 100),
        "sli": {"events": {"error_query": error, "total_query": total}},
        "alerting": {"name": "Burn"},
    }
    if not optimized:
        slo["plugins"] = _NOT_OPTIMIZED
    spec = {"version": "prometheus/v1", "service": selected.model, "slos": [slo]}
    with TemporaryDirectory() as folder:
        slo_file, rule_files = Path(folder, "slo.yaml"), Path(folder, "rules.yaml")
        slo_file.write_text(yaml.safe_dump(spec))
        toolchain.run("sloth", [built("sloth"), "generate", "-i", slo_file, "-o", rule_files])
        return yaml.safe_load(rule_files.read_text())["groups"]  # type: ignore[no-any-return]


def pyrra(
    selected: IndicatorSelectors, target: Decimal, *, native: bool = False
) -> list[dict[str, Any]]:
    """Return the rule groups that Pyrra generates, with its generic rules."""
    if native:
        total = selected.total.replace("_count{", "{")
        indicator: dict[str, Any] = {
            "latencyNative": {"latency": "10s", "total": {"metric": total}}
        }
    elif selected.failed:
        indicator = {
            "ratio": {"errors": {"metric": selected.failed}, "total": {"metric": selected.total}}
        }
    else:
        indicator = {
            "latency": {"success": {"metric": selected.good}, "total": {"metric": selected.total}}
        }
    spec = {
        "apiVersion": "pyrra.dev/v1alpha1",
        "kind": "ServiceLevelObjective",
        "metadata": {"name": f"{selected.model}-{selected.indicator}{'-native' * native}"},
        "spec": {"target": str(target * 100), "window": DAYS, "indicator": indicator},
    }
    with TemporaryDirectory() as folder:
        slo_file, rule_files = Path(folder, "slo.yaml"), Path(folder, "rules")
        rule_files.mkdir()
        slo_file.write_text(yaml.safe_dump(spec))
        command = [built("pyrra"), "generate", f"--config-files={folder}/*.yaml"]
        toolchain.run("pyrra", [*command, f"--prometheus-folder={rule_files}", "--generic-rules"])
        return [
            group
            for path in sorted(rule_files.iterdir())
            for group in yaml.safe_load(path.read_text())["groups"]
        ]


def conditions(groups: Iterable[Mapping[str, Any]]) -> Iterator[BurnRateCondition]:
    """Yield the burn-rate conditions of rule groups, each pair of windows once."""
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        labels = rule.get("labels", {})
        pages = "page" in labels.values() or labels.get("severity") == "critical"
        found = _CONDITION.findall(rule["expr"])
        for pair in zip(found[::2], found[1::2], strict=True):
            short, long = sorted(parse_duration(window) for window, _, _ in pair)
            factor, budget = Decimal(pair[0][1]), pair[0][2]
            share = 1 - Decimal(budget[3:-1]) if budget[0] == "(" else Decimal(budget)
            wait = parse_duration(rule.get("for", "0s"))
            yield BurnRateCondition(pages, long, short, factor * share, wait)


def tool(name: str, selected: IndicatorSelectors, groups: Iterable[Mapping[str, Any]]) -> Tool:
    """Convert rule groups for the replay."""
    recordings, alerting = list[RecordingRule](), list[tuple[str, int]]()
    ratios, period, budget = dict[str, str](), "", ""
    for group in groups:
        every = int(parse_duration(group.get("interval", f"{EVERY}s")))
        for rule in group["rules"]:
            if "alert" in rule:
                alerting.append((rule["expr"], every))
                continue
            labels = rule.get("labels", {})
            recordings.append(RecordingRule(rule["record"], rule["expr"], labels, every))
            series = f"{rule['record']}{{{_matchers(labels)}}}"
            if found := re.search(r"(?:ratio_rate|burnrate)(\w+)$", rule["record"]):
                if found[1] == DAYS:
                    period = series
                else:
                    ratios[found[1]] = series
            elif rule["record"] == "slo:period_error_budget_remaining:ratio":
                budget = series
            elif rule["record"] == "pyrra_availability":
                period = f"1 - {series}"
                budget = f"({_BUDGET} - (1 - {series})) / {_BUDGET}"
    return Tool(name, selected.indicator, DAYS, recordings, alerting, ratios, period, budget)


def _matchers(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def real_tools(model: str, name: str) -> Sequence[Tool]:
    """Return the rules of tokenslo and of the real tools, for 30 days."""
    selected, target = IndicatorSelectors.of(model, name), TARGET
    native = () if selected.failed else (pyrra(selected, target, native=True),)
    return [
        tokenslo(model, name, PERIOD),
        tool("Sloth", selected, sloth(selected, target)),
        tool("Sloth -o", selected, sloth(selected, target, optimized=False)),
        tool("Pyrra", selected, pyrra(selected, target)),
        *(tool("Pyrra -n", selected, groups) for groups in native),
    ]


def own(model: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return tokenslo's rule groups for objectives of a model."""
    objectives = tuple(OBJECTIVES[name] for name in names)
    service = Service("", model, window=PERIOD, selector={"model": model}, objectives=objectives)
    return alerts.rules.groups(plan(service))


@dataclass(frozen=True, slots=True)
class RuleSizes:
    """Numbers of rules, of lines of YAML, and of characters of the longest query."""

    rules: int
    lines: int
    longest: int


def rule_sizes(name: str) -> Mapping[str, RuleSizes]:
    """Return the sizes of each tool's rules for an objective."""
    selected = IndicatorSelectors.of("chat", name)
    generated = {
        "tokenslo": own("chat", [name]),
        "Sloth": sloth(selected, TARGET),
        "Sloth -o": sloth(selected, TARGET, optimized=False),
        "Pyrra": pyrra(selected, TARGET),
    }
    if not selected.failed:
        generated["Pyrra -n"] = pyrra(selected, TARGET, native=True)
    found = {}
    for title, groups in generated.items():
        rules = [rule for group in groups for rule in group["rules"]]
        text = (
            document("", {"groups": groups}, source="", version="")
            if title == "tokenslo"
            else yaml.safe_dump({"groups": groups}, width=1000)
        )
        longest = max(len(" ".join(rule["expr"].split())) for rule in rules)
        found[title] = RuleSizes(len(rules), text.count("\n"), longest)
    return found


def print_sizes() -> None:
    """Print numbers of rules, lines and the longest query of each tool."""
    print(f"{'rules':<14} {'objective':<12} {'rules':>5} {'lines':>5} {'longest query':>13}")
    for name in COMPARED:
        for title, sizes in rule_sizes(name).items():
            cells = f"{sizes.rules:>5} {sizes.lines:>5} {sizes.longest:>13}"
            print(f"{title:<14} {name:<12} {cells}")


def page_times(target: Decimal) -> Mapping[str, Sequence[Decimal | None]]:
    """Return each tool's seconds to page at each error ratio, for a target."""
    selected = IndicatorSelectors.of("chat", "availability")
    budget = 1 - target
    of_workbook = [
        BurnRateCondition(True, parse_duration(long), parse_duration(long) / 12, rate * budget)
        for long, rate in WORKBOOK
    ]
    each = {
        "workbook": of_workbook,
        "Sloth": [*conditions(sloth(selected, target))],
        "Pyrra": [*conditions(pyrra(selected, target))],
    }
    ours = [pair for pair in pairs(PERIOD, target) if pair.tier == "page"]
    return {
        "tokenslo": [
            _first(pair.seconds_to_fire(ratio) for pair in ours) for ratio in ERROR_RATIOS
        ],
        **{
            name: [
                _first(each.seconds_to_fire(ratio) for each in found if each.pages)
                for ratio in ERROR_RATIOS
            ]
            for name, found in each.items()
        },
    }


def _first(times: Iterable[Decimal | None]) -> Decimal | None:
    return min((time for time in times if time is not None), default=None)


def title(tool: str) -> str:
    """Return the name of a tool with its version: ``Sloth v0.16.0``, ``Pyrra v0.10.1 -n``."""
    name, _, option = tool.partition(" ")
    return f"{name} {MODULES[name.lower()][1]} {option}".strip()


def figures(_: bool) -> Iterator[Figure]:
    """Compare sizes of rules and times to page with the tools' own rules."""
    if not shutil.which("go"):
        for tool in MODULES:
            yield MissingPeer("rules of an objective", tool.capitalize(), "Go is not installed")
        return
    for name in COMPARED:
        ours, *others = rule_sizes(name).items()
        for tool, sizes in others:
            for field in ("rules", "lines"):
                yield PeerComparison(
                    f"{field} of an objective ({name})",
                    title(tool),
                    "",
                    [getattr(ours[1], field)],
                    [getattr(sizes, field)],
                    exact=True,
                )
    for target in TARGETS:
        outage = {tool: times[0] for tool, times in page_times(target).items()}
        for tool in ("Sloth", "Pyrra"):
            if outage["tokenslo"] and (theirs := outage[tool]):
                yield PeerComparison(
                    f"time to page of a total outage, target {decimal_text(100 * target)} %",
                    title(tool),
                    "min",
                    [float(outage["tokenslo"] / 60)],
                    [float(theirs / 60)],
                    exact=True,
                )


def print_page_times() -> None:
    """Print each tool's minutes to page, by target and error ratio."""
    print(
        f"{'target':>6} {'rules':<9}",
        *(f"{decimal_text(100 * r) + ' % bad':>10}" for r in ERROR_RATIOS),
    )
    for target in TARGETS:
        for name, times in page_times(target).items():
            cells = ("never" if time is None else f"{time / 60:.1f} min" for time in times)
            print(
                f"{decimal_text(100 * target) + '%':>6} {name:<9}",
                *(f"{cell:>10}" for cell in cells),
            )


def main(*tables: str) -> None:
    """Print the named tables, ``sizes`` and ``pages`` by default."""
    check_names(tables, TABLES, "table")
    if not shutil.which("go"):
        print("Go is not installed, so Sloth and Pyrra cannot be built.")
        print("`python -m bench.rules` compares with copies of their rules.")
        return
    for table in tables or TABLES:
        TABLES[table]()
        print()


TABLES = {"sizes": print_sizes, "pages": print_page_times}


if __name__ == "__main__":
    main(*sys.argv[1:])
