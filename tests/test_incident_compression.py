"""Compression of the time in rules and queries of the incident lab."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lab.incidents.compression import TimeScale
from promql.literals import duration
from promql.parse import parse
from promql.tree import Expr, Subquery, Vector, walk

ROOT = Path(__file__).parents[1]
RULES = sorted(ROOT.glob("examples/*/alerts/*rules.yaml"))
SCALE = TimeScale(20)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rate(a[5m])", "rate(a[15s])"),
        ("rate(a[5m] offset 1h)", "rate(a[15s] offset 180s)"),
        ("rate(a[5m] offset -1h)", "rate(a[15s] offset -180s)"),
        ("rate(a[5m] offset 1d)", "rate(a[15s] offset 40s)"),
        ("min_over_time(a[1d])", "min_over_time(a[4320s])"),
        (
            "max_over_time(rate(a[5m])[1h:1m] offset 1d)",
            "max_over_time(rate(a[15s])[180s:3s] offset 40s)",
        ),
        ("rate(a[5m * 2])", "rate(a[30s])"),
        ("rate(a[10s])", "rate(a[3s])"),
        ("a offset 10s", "a offset 500ms"),
        ("deriv(a[10m]) * 60 > 1", "deriv(a[30s]) * 60 > 1"),
        (
            "max(tokenslo_engine_stats_age_seconds) > 30",
            "max(tokenslo_engine_stats_age_seconds) > 5.0",
        ),
        ("tokenslo_engine_stats_age_seconds > 600", "tokenslo_engine_stats_age_seconds > 30.0"),
        ('-(a{b="5m"} @ end())', '-(a{b="5m"} @ end())'),
    ],
)
def test_an_expression_is_compressed(before: str, after: str) -> None:
    assert replace(SCALE, day_offset=40).expression(before) == after


def test_a_length_that_the_query_decides_is_an_error() -> None:
    with pytest.raises(ValueError, match="no length of its own"):
        SCALE.expression("rate(a[step()])")


def lengths(expr: Expr) -> list[float]:
    """Return the seconds of all durations, in the order of the tree."""
    found = []
    for part, _ in walk(expr):
        if isinstance(part, Vector | Subquery):
            texts = (part.window, getattr(part, "step", None), part.offset)
            found += [duration(text) or 0.0 for text in texts if text]
    return found


def shape(value: Any) -> Any:
    """Return a tree without its durations."""
    if not is_dataclass(value):
        return tuple(map(shape, value)) if isinstance(value, tuple) else value
    skipped = {"start", "end"}
    if isinstance(value, Vector | Subquery):
        skipped |= {"window", "step", "offset"}
    kept = [each.name for each in fields(value) if each.name not in skipped]
    return (type(value).__name__, [(name, shape(getattr(value, name))) for name in kept])


lengths_ = st.integers(60, 10**6).map(lambda seconds: f"{seconds}s")
selectors_ = st.builds(
    lambda window, offset: f'rate(a{{b="1h"}}[{window}]{offset})',
    lengths_,
    st.one_of(st.just(""), lengths_.map(" offset {}".format)),
)
expressions = st.recursive(
    selectors_,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "/", "and", "> bool"]), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
        ),
        inner.map("sum by (c) ({})".format),
        inner.map("topk(3, {})".format),
        st.tuples(inner, lengths_, lengths_).map(
            lambda parts: f"max_over_time(({parts[0]})[{parts[1]}:{parts[2]}])"
        ),
        inner.map("-({})".format),
    ),
    max_leaves=5,
)


@given(expressions, st.integers(1, 50))
def test_structure_stays_and_every_duration_is_divided(text: str, factor: int) -> None:
    before = parse(text, variables=False)
    after = parse(TimeScale(factor).expression(text), variables=False)
    assert shape(after) == shape(before)
    for old, new in zip(lengths(before), lengths(after), strict=True):
        assert new == pytest.approx(old / factor, abs=0.001) or new == 3.0


@pytest.mark.parametrize("file", RULES, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_generated_rules_are_compressed_as_a_whole(file: Path) -> None:
    content = yaml.load(file.read_text(), yaml.CSafeLoader)
    compressed = SCALE.rules(content)
    for old, new in zip(content["groups"], compressed["groups"], strict=True):
        assert duration(new["interval"]) == (duration(old["interval"]) or 0) / 20
        for rule, short in zip(old["rules"], new["rules"], strict=True):
            assert short.keys() == rule.keys() - {"annotations"}
            assert shape(parse(short["expr"])) == shape(parse(rule["expr"]))
            for name in rule.keys() & {"for", "keep_firing_for"}:
                assert duration(short[name]) == (duration(rule[name]) or 0) / 20


def test_a_factor_of_one_changes_nothing() -> None:
    text = 'sum(rate(a{b="c"}[300s] offset 60s)) / 2'
    assert TimeScale(1).expression(text) == text
