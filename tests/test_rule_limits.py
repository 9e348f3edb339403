"""Every generated group of rules is short enough to review.

What a file chooses is not counted as a part of an expression: the selector of the service, the
queries of its objectives, and the names by which recorded series are selected.  The files of
rollouts and of autoscaling are not held to the limits: machines read what they record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from generic_example import FORMS, generic_plan
from service_example import example

import alerts
from slos import names
from slos.model import QUOTA_PERIODS, Objective, Service, TokenQuota
from slos.plan import Plan, plan
from tests import libyaml

ROOT = Path(__file__).parent.parent
MOST_RULES, MOST_LINES = 20, 140
MOST_PAIRS = 4
RULES_PER_PAIR = 2
"""A recorded error ratio and an alert, for a pair 10m/5m next to 1h/5m: at 99 % over 30 days."""
MOST_EXPR_LINES, MOST_EXPR_LENGTH = 6, 250
MOST_EXPR_LENGTH_OF_COUNTERS = 300
"""Length where good and total are counters of the file: three increases, one of late series."""
MOST_EXAMPLE_LINES = 900
OF_MACHINES = (".rollout.rules.yaml", ".autoscaling.rules.yaml")
OF_QUERIES = ("SLIInconsistent", "MetricAbsent")
"""Alerts that only objectives of queries have, or have twice: their servers may disagree."""


class RuleGroup(NamedTuple):
    """A rule group: its file, what it holds, and its lines with the comment above it."""

    file: str
    rules: list[dict[str, Any]]
    lines: list[str]


def over_30_days() -> Plan:
    objectives = (
        Objective("availability", "availability", Decimal("0.99")),
        Objective("e2e", "e2e", Decimal("0.99"), Decimal(10)),
    )
    window = Decimal(30) * 86_400
    selector = {"model": "chat"}
    return plan(Service("", "chat", window=window, selector=selector, objectives=objectives))


def with_quotas() -> Plan:
    quotas = tuple(TokenQuota(f"t{n}", 10**9, per) for n in range(20) for per in QUOTA_PERIODS)
    return example(Objective("up", "availability", Decimal("0.99")), quotas=quotas)


def files() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.glob("examples/*/alerts/*.rules.yaml")):
        if not path.name.endswith(OF_MACHINES):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    plans = (
        ("indicators", example()),
        ("queries", generic_plan()),
        ("30 days", over_30_days()),
        ("quotas", with_quotas()),
    )
    for name, planned in plans:
        for path, text in alerts.files(planned, source="slo.yaml", version="0.1.0").items():
            if path.endswith(".rules.yaml"):
                yield f"{name}/{path}", text


def groups() -> Iterator[tuple[str, RuleGroup]]:
    for file, text in files():
        _, body = text.split("\ngroups:\n")
        parts = body.split("\n\n")
        for group, part in zip(libyaml.load(text)["groups"], parts, strict=True):
            name = f"{file} {group['name']}"
            yield name, RuleGroup(file, group["rules"], part.strip("\n").splitlines())


GROUPS = dict(groups())
QUERIED = [each for _, queries in FORMS.values() for each in queries.values()]


def without_configured_names(expr: str) -> str:
    for query in QUERIED:
        for part in re.findall(r"\w+\{[^}]*\}|\w+_total", query):
            expr = expr.replace(part, "")
    return re.sub(r'(?:model|namespace|service|slo|objective)="[^"]*",?', "", expr)


@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_short_and_begin_with_a_comment(name: str) -> None:
    group = GROUPS[name]
    assert group.lines[0].startswith("  # ")
    if name.endswith("/causes"):
        return
    more = sum(rule.get("alert", "").endswith(OF_QUERIES) for rule in group.rules) - 1
    if "queries" not in group.file:
        pairs = sum("burn_rate" in rule.get("labels", {}) for rule in group.rules)
        more = RULES_PER_PAIR * max(0, pairs - MOST_PAIRS)
    assert len(group.rules) <= MOST_RULES + more
    assert len(group.lines) <= MOST_LINES


@pytest.mark.parametrize("name", GROUPS)
def test_expressions_are_short(name: str) -> None:
    for rule in GROUPS[name].rules:
        what = rule.get("alert") or rule["record"]
        assert len(rule["expr"].splitlines()) <= MOST_EXPR_LINES, what
        of_counters = "queries" in name and what == names.BAD
        most = MOST_EXPR_LENGTH_OF_COUNTERS if of_counters else MOST_EXPR_LENGTH
        assert len(without_configured_names(rule["expr"])) <= most, what


def test_the_example_is_short() -> None:
    text = (ROOT / "examples/chat/alerts/chat.rules.yaml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_EXAMPLE_LINES
