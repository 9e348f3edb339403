"""The reader of protobuf's text format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_checks.text_proto import MAX_DEPTH, parse_text_proto
from documents.files import UnreadableText


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": "1"}),
        ("a: -1, b: 2; c: 0x1F", {"a": "-1", "b": "2", "c": "0x1F"}),
        ('a: "x" \'y\'\n  "z"', {"a": "xyz"}),
        (r'a: "\x41\102\n\"\u00e9"', {"a": 'AB\n"é'}),
        ("a { b: 1 } c < d: 2 >", {"a": {"b": "1"}, "c": {"d": "2"}}),
        ("a: [1, 2] a: 3", {"a": ["1", "2", "3"]}),
        ("a [ { b: 1 }, { b: 2 } ]", {"a": [{"b": "1"}, {"b": "2"}]}),
        ("a: []", {"a": []}),
        ("# none\na: ${x} # end", {"a": "${x}"}),
        ("a: TYPE_${x}_1", {"a": "TYPE_${x}_1"}),
        ("[a.b/c]: 1", {"[a.b/c]": "1"}),
        ("", {}),
    ],
)
def test_values_are_read(text: str, value: object) -> None:
    assert parse_text_proto(text).plain() == value


def test_fields_have_lines() -> None:
    entries = parse_text_proto('# c\na: "x"\n\nb {\n c: 1\n}').entries or {}
    assert (entries["a"][0], entries["b"][0]) == (2, 4)
    assert (entries["b"][1].entries or {})["c"][0] == 5


@pytest.mark.parametrize(
    ("text", "line"),
    [("a", 1), ("a:", 1), ("\n}", 2), ("a: [1 2]", 1), ("a {\n b: 1", 2), ("1: 2", 1), ("[a", 1)],
)
def test_malformed_text_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(UnreadableText) as raised:
        parse_text_proto(text)
    assert raised.value.flaws[0].line == line


def test_depth_is_bounded() -> None:
    with pytest.raises(UnreadableText, match="nested deeper"):
        parse_text_proto("a {" * (MAX_DEPTH + 1))


@given(st.text(alphabet="ab{}[]<>:,;\"'\\ \n#$-1.", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    lines = [1]
    try:
        parse_text_proto(text)
    except UnreadableText as refused:
        lines = [flaw.line for flaw in refused.flaws]
    assert all(0 < line <= text.count("\n") + 1 for line in lines)


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
VALUES: Any = st.recursive(
    st.text(max_size=8), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def written(value: Any) -> str:
    if isinstance(value, dict):
        fields = (f"{key}: {written(inner)}" for key, inner in value.items())
        return f"{{ {' '.join(fields)} }}"
    return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_written_messages_are_read_back(message: dict[str, Any]) -> None:
    text = "\n".join(f"{key}: {written(value)}" for key, value in message.items())
    assert parse_text_proto(text).plain() == replaced(message)


def replaced(value: Any) -> Any:
    """Return a value as read: halves of surrogate pairs are not characters."""
    if isinstance(value, dict):
        return {key: replaced(inner) for key, inner in value.items()}
    return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in value)
