"""Generated window tests: promtool's series notation, and the choice among many objectives."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from service_example import example, objective

import alerts
from alerts.window_test_series import promtool_values
from tests import libyaml

RUNS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2).map(Decimal)), max_size=6)


def expanded(text):
    """Read promtool's notation: ``_x2 1+0x3`` is two missing samples and four ones."""
    for word in text.split():
        value, _, more = word.partition("x")
        count = int(more)
        yield from [None] * count if value == "_" else [int(value.split("+")[0])] * (count + 1)


@given(RUNS, st.integers(0, 20))
def test_the_last_value_is_at_the_end(spells, end):
    values = [int(value) for samples, value in spells for _ in range(samples)][-end - 1 :]
    missing = [None] * (end + 1 - len(values))
    assert list(expanded(promtool_values(spells, end))) == missing + values


def windows_tested(count):
    objectives = [
        replace(objective(kind), name=f"{kind.replace('_', '-')}-{n}")
        for n in range(count)
        for kind in ("availability", "kv_headroom")
    ]
    files = alerts.files(example(*objectives), source="slo.yaml", version="0.1.0")
    text = files["alerts/chat.windows.test.yaml"]
    series = [one["series"] for test in libyaml.load(text)["tests"] for one in test["input_series"]]
    return text, {f"{each.name}" for each in objectives if any(each.name in one for one in series)}


def test_of_many_objectives_some_of_each_kind_are_tested():
    text, tested = windows_tested(25)
    assert len(tested) == 50
    text, tested = windows_tested(26)
    assert text.startswith("# Tests of the windows and budgets of 10 of 52 objectives. ")
    kinds = ("availability", "kv-headroom")
    assert tested == {f"{kind}-{n}" for kind in kinds for n in range(5)}
