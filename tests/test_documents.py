"""Documents: composed values and their lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from documents.composer import compose_json, compose_yaml
from documents.files import UnreadableText
from documents.nodes import ComposeOptions, Scalar

LENIENT = ComposeOptions(lambda scalar: scalar.text, max_nodes=1000, max_depth=10, strict=False)
LINES = ComposeOptions(lambda scalar: scalar.line, max_nodes=1000, max_depth=10, strict=False)

texts = st.text(max_size=8)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=4),
    max_leaves=20,
)


@given(trees, st.sampled_from([None, 0, 2]), st.booleans())
def test_json_has_the_values_that_json_loads(tree: Any, indent: int | None, ascii_: bool) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_)
    expected = json.loads(text, parse_int=lambda n: int(n) if len(n) < 20 else float(n))
    assert compose_json(text, LENIENT).plain() == expected


def test_json_texts_carry_their_lines() -> None:
    text = '{\n  "a": ["\\n", "b"],\n\n  "c": {"d":\n "\\"{[", "e": 7}\n}'
    assert compose_json(text, LINES).plain() == {"2": [2, 2], "4": {"4": 5, "5": 7}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\na: 2\n", {"a": "2"}),
        ("a: &a {b: c}\nd: {<<: *a}\n", {"a": {"b": "c"}, "d": {"<<": {"b": "c"}}}),
        ("a: !!python/name:os.system x\n", {"a": "x"}),
        ("[a]: b\n", {"['a']": "b"}),
    ],
)
def test_lenient_reading_accepts_values_that_strict_reading_refuses(
    text: str, value: object
) -> None:
    ((_, root),), flaws = compose_yaml(text, LENIENT)
    assert (root.plain(), flaws) == (value, [])
    assert compose_yaml(text, ComposeOptions(LENIENT.scalar, 1000, 10))[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" + ", ".join(['"x"'] * 1001) + "]", "holds more than 1,000 values, aliases counted"),
        ("[" * 11 + "]" * 11, "is nested deeper than 10 levels"),
    ],
)
def test_json_is_bounded_like_yaml(text: str, message: str) -> None:
    with pytest.raises(UnreadableText, match=message):
        compose_json(text, LENIENT)


def test_scalars_carry_their_style() -> None:
    seen: list[Scalar] = []
    compose_yaml("- a\n- 'b'\n- |\n  c\n", ComposeOptions(seen.append, 100, 10))
    assert [(each.text, each.line, each.style) for each in seen] == [
        ("a", 1, ""),
        ("b", 2, "'"),
        ("c\n", 3, "|"),
    ]
