"""Written YAML is read back unchanged by any reader."""

from __future__ import annotations

from decimal import Decimal

import yaml
from hypothesis import given
from hypothesis import strategies as st

from slos.yaml_text import Commented, Inline, block, entry, indented

CHARACTERS = st.characters(codec="utf-8", exclude_categories=("Cs",))
LINES = st.text(CHARACTERS | st.just("\n"), max_size=40).filter(lambda text: "\ufeff" not in text)
SCALARS = LINES | st.sampled_from(["no", "1e3", "5m", "- a", "a: b", "a #b", "~", "0x1", " a"])
LEAVES = SCALARS | st.integers(-(10**6), 10**6) | st.booleans()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(SCALARS, inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(SCALARS, VALUES, min_size=1, max_size=4) | st.lists(VALUES, min_size=1))
def test_any_value_is_read_back(value):
    assert yaml.safe_load("\n".join(block(value))) == value
    assert block(value, "  ") == [*indented(block(value))]


@given(SCALARS, VALUES)
def test_any_entry_is_read_back(key, value):
    assert yaml.safe_load("\n".join(entry(key, value))) == {key: value}


@given(st.dictionaries(SCALARS, SCALARS, min_size=1, max_size=4))
def test_a_mapping_on_one_line_is_read_back(value):
    (line,) = entry("labels", Inline(value))
    assert yaml.safe_load(line) == {"labels": value}


def test_comment_is_before_its_item():
    assert block([Commented("one\ntwo", {"a": "x", "b": [{"c": "y"}]})], "  ") == [
        "  # one two",
        "  - a: x",
        "    b:",
        "      - c: 'y'",
    ]


def test_long_texts_are_blocks_and_numbers_are_exact():
    value = {"expr": "a\n  + b", "list": [], "half": Decimal("0.50"), "items": [{"a": ["x", 1]}]}
    assert block(value) == [
        "expr: |-",
        "  a",
        "    + b",
        "list: []",
        "half: 0.5",
        "items:",
        "  - a:",
        "      - x",
        "      - 1",
    ]
