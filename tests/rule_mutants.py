"""Faults of a rule file: each a name and the mutated text.

Every operator that applies to a rule gives a mutant of its own.  Those that change nothing that an
alert or a recorded series says are left out by name (:data:`EQUIVALENT`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import yaml

Rule = dict[str, Any]

_EXPR = (
    ("forgets time-outs", r"\|timeout", ""),
    ("counts cancelled requests", r'"ok\|', '"ok|cancelled|'),
    ("counts disconnects", r"rejected", "rejected|disconnected"),
    ("drops the model", r'model="\w+",', ""),
    ("drops the signal", r'signal="\w+",', ""),
    ("drops the threshold", r',threshold="[\d.]+"', ""),
    ("counts good as bad", r'result="bad"', 'result="good"'),
    ("forgets the result", r',result="bad"', ""),
    ("drops the objective of goodput", r'objective="[^"]+",', ""),
    ("reads another objective", r'slo="[\w-]+"', 'slo="none"'),
    ("reads further back", r"offset 1m", "offset 2m"),
    ("keeps falls", r"\n\s*>= 0", ""),
    ("swaps 1h and 6h", r"(?<=[\[e])1h", "6h"),
    ("swaps 6h and 1h", r"(?<=[\[e])6h", "1h"),
    ("swaps 5m and 30m", r"(?<=[\[e])5m", "30m"),
    ("swaps 3d and 1d", r"(?<=[\[e])3d", "1d"),
    ("swaps 1d and 3d", r"(?<=[\[e])1d", "3d"),
    ("swaps 2h and 6h", r"(?<=[\[e])2h", "6h"),
    ("swaps 10m and 1h", r"(?<=[\[e])10m", "1h"),
    ("shortens the period", r"28d", "7d"),
    ("shortens the history", r"/ 40320", "/ 10080"),
    ("swaps bad and total", r"slo:bad", "slo:total"),
    ("raises the guard", r">= 10", ">= 11"),
    ("lowers the guard", r">= 10", ">= 9"),
    ("drops the guard", r"\n?and sum_over_time.*>= 10", ""),
    ("needs one window", r"\nand slo:error_ratio[^\n]*", ""),
    ("joins windows by or", r"\nand slo:error", "\nor slo:error"),
    ("inverts a comparison", r"> 0\.(?=\d)", "< 0."),
    ("halves a budget", r"/ 0\.", "/ 0.0"),
    ("ends the upper bound", r"\nand [^\n]* < 10", ""),
    ("takes more events", r"> 2\b", "> 3"),
    ("takes fewer events", r"> 2\b", "> 1"),
    ("spends half", r"<= 0\b", "<= 0.5"),
    ("spends it all", r"<= 0\.5", "<= 0"),
    ("never absent", r"absent\(", "sum("),
)
EQUIVALENT: dict[str, str] = {}


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every mutant of a rule file."""
    document = yaml.safe_load(text)
    for at, group in enumerate(document["groups"]):
        for place, rule in enumerate(group["rules"]):
            for what, mutated in _mutated(rule):
                changed = copy.deepcopy(document)
                rules = changed["groups"][at]["rules"]
                rules[place : place + 1] = [mutated] if mutated else []
                title = rule.get("record") or f"{rule['alert']} {_label(rule, 'window')}"
                yield f"{group['name']}: {title}: {what}", yaml.safe_dump(changed)


def _label(rule: Rule, name: str) -> str:
    return rule["labels"].get(name) or rule["labels"].get("step", "")


def _mutated(rule: Rule) -> Iterator[tuple[str, Rule | None]]:
    yield "is not there", None
    for what, pattern, by in _EXPR:
        changed = re.sub(pattern, by, rule["expr"])
        if changed != rule["expr"]:
            yield what, {**rule, "expr": changed}
    if "alert" not in rule:
        yield "has another slo", {**rule, "labels": {**rule["labels"], "slo": "none"}}
        return
    labels = rule["labels"]
    other = "warning" if labels["severity"] == "critical" else "critical"
    yield "has another severity", {**rule, "labels": {**labels, "severity": other}}
    for name in ("window", "burn_rate", "step"):
        if name in labels:
            yield f"has another {name}", {**rule, "labels": {**labels, name: "1"}}
    if "for" in rule:
        yield "waits an hour", {**rule, "for": "1h"}
        yield "waits for nothing", {k: v for k, v in rule.items() if k != "for"}
    else:
        yield "waits ten minutes", {**rule, "for": "10m"}


def killed(promtool: str, folder: Path, name: str, text: str) -> bool:
    """Whether the tests beside a rule file fail with this text in its place."""
    (folder / f"{name}.rules.yaml").write_text(text)
    for kind in ("windows.test", "test"):
        command = [promtool, "test", "rules", f"{name}.{kind}.yaml"]
        if run(command, cwd=folder, capture_output=True, check=False).returncode:
            return True
    return False
