"""JSON in segments, against the json module."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.protocol.json_scan import COMMAS, MEMBERS, NAME_BYTES, JsonScanner, Keep, Wanted

NAME, MARK = Keep.NAME, Keep.MARK
WANTED: Mapping[str, Wanted] = {
    "name": NAME,
    "mark": MARK,
    "object": {"name": NAME, "*": MARK},
    "list": [{"name": NAME, "mark": MARK}],
    "marks": [MARK],
}


def scanned(data: bytes, sizes: list[int] | None = None, limit: int = 1 << 20) -> Any:
    scanner, at = JsonScanner(WANTED, limit), 0
    for size in sizes or [len(data)]:
        scanner.feed(data[at : at + size])
        at += size
    scanner.feed(data[at:])
    assert scanner.held <= NAME_BYTES + 1
    return scanner.found


def abridged(value: object, wanted: Wanted | None) -> object:
    """Return what is to be found of a value that was read whole."""
    if isinstance(value, dict):
        if isinstance(wanted, Mapping):
            trees = {key: wanted.get(key, wanted.get("*")) for key in value}
            return {key: abridged(value[key], tree) for key, tree in trees.items() if tree}
        return bool(value)
    if isinstance(value, list):
        if isinstance(wanted, list):
            return [abridged(element, wanted[0]) for element in value]
        return bool(value)
    if isinstance(value, str) and wanted is not NAME:
        return "x" if value else ""
    return value


TEXTS = st.one_of(
    st.text(max_size=6), st.sampled_from(['"', "\\", '\\"', "{", "]", '{"name":"x"}', ",", ":"])
)
KEYS = st.one_of(st.sampled_from(["name", "mark", "object", "list", "marks"]), TEXTS)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(-1e9, 1e9), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    document=st.dictionaries(KEYS, VALUES, max_size=5),
    spaced=st.booleans(),
    raw=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_what_is_found_is_what_the_json_module_finds(
    document: dict[str, object], spaced: bool, raw: bool, seed: int
) -> None:
    text = json.dumps(document, indent=1 if spaced else None, ensure_ascii=not raw)
    data, chance = text.encode("utf-8", "replace"), random.Random(seed)
    sizes = [chance.randint(0, 9) for _ in range(len(data))]

    wanted = abridged(json.loads(data), WANTED)
    assert scanned(data) == wanted
    assert scanned(data, sizes) == wanted
    assert scanned(data + b' {"name":"more"}') == wanted


@settings(max_examples=300, deadline=None)
@given(data=st.one_of(st.binary(max_size=80), st.text('{}[]":,\\ name0tru', max_size=80)))
def test_what_is_no_json_does_no_harm(data: bytes | str) -> None:
    raw = data.encode() if isinstance(data, str) else data

    assert scanned(raw) == scanned(raw, [1] * len(raw))


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"name": "n" * NAME_BYTES}, {"name": "n" * NAME_BYTES}),
        ({"name": "n" * (NAME_BYTES + 1)}, {"name": None}),
        ({"n" * 1000: {"name": "x"}, "mark": "m" * 1000}, {"mark": "x"}),
        ({"marks": [1] * (MEMBERS + 5)}, {"marks": [1] * MEMBERS}),
        ({"object": {str(n): n for n in range(MEMBERS + 5)}, "mark": 1},
         {"object": {str(n): n for n in range(MEMBERS)}, "mark": 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sizes", [None, [1] * 3000])
def test_what_is_too_much_is_not_kept(
    document: object, found: object, sizes: list[int] | None
) -> None:
    assert scanned(json.dumps(document).encode(), sizes) == found


def test_scan_stops_before_the_end_of_the_members() -> None:
    few, many = (b'"n":1,' * count for count in (COMMAS - 1, COMMAS + 1))

    assert scanned(b"{" + few + b'"name":"a"}') == {"name": "a"}
    assert scanned(b"{" + many + b'"name":"a"}') == {}


def test_bytes_after_the_limit_are_skipped() -> None:
    data = b'{"mark":1,"name":"a"}'

    assert scanned(data, limit=len(data) - 1) == {"mark": 1, "name": "a"}
    assert scanned(data, limit=len(data) - 3) == {"mark": 1}
    assert scanned(data, [1] * len(data), limit=len(data) - 3) == {"mark": 1}


@pytest.mark.parametrize(
    "repeated",
    [
        b"[",
        b"{",
        b"[]",
        b"[[]]",
        b'{"',
        b'"',
        b"\\",
        b'\\"',
        b'"a":',
        b'{"a":',
        b"{[",
        b'"[{',
        b" ",
    ],
)
@pytest.mark.parametrize("within", [b"", b'{"a":', b'{"name":', b'{"list":[', b'{"a":"'])
def test_no_document_takes_long(repeated: bytes, within: bytes) -> None:
    size = 200_000
    data = within + repeated * (size // len(repeated))
    began = time.process_time()
    scanned(data)
    scanned(data, [1000] * (size // 1000))
    assert time.process_time() - began < 2
