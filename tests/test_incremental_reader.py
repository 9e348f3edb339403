"""Repeated reads of an exposition: same results as a full parse, at less cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exporter.sources.exposition.incremental_reader import ExpositionReader
from exporter.sources.exposition.text_parser import ExpositionError, ParsedFamily, read

CAPTURE = (Path(__file__).parent / "captures/triton_traffic.txt").read_bytes()
WANTED = ("requests_total", "latency_seconds", "queued")


def exposition(values: list[str], *, more: str = "") -> bytes:
    first, second, third, fourth, other = values
    return (
        "# HELP requests_total Requests since 1\n# TYPE requests_total counter\n"
        f'requests_total{{model="a b",version="1"}} {first}\n'
        f'requests_total{{model="c}} 5",version="1"}} {second}\n'
        "# TYPE latency_seconds histogram\n"
        f'latency_seconds_bucket{{le="+Inf"}} {third}\n'
        f"latency_seconds_sum {fourth}\n"
        f"{more}"
        f'# TYPE other gauge\nother{{pod="x"}} {other}\n'
    ).encode()


def samples(families: dict[str, ParsedFamily]) -> str:
    return repr({name: (one.type, one.help, list(one.samples)) for name, one in families.items()})


def outcome(parse: object, body: bytes) -> str:
    assert callable(parse)
    try:
        return samples(parse(body))
    except ExpositionError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("wanted", [WANTED, ("nv_inference_request_success",)])
def test_a_real_exposition_is_read_like_a_full_parse(wanted: tuple[str, ...]) -> None:
    reader = ExpositionReader(wanted)
    for _ in range(3):
        assert samples(reader.read(CAPTURE)) == samples(read(CAPTURE, wanted))


def test_unchanged_names_and_labels_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def counted(body: bytes, wanted: tuple[str, ...]) -> dict[str, ParsedFamily]:
        parsed.append(body)
        return read(body, wanted)

    monkeypatch.setattr("exporter.sources.exposition.incremental_reader.read", counted)
    reader = ExpositionReader(WANTED)
    caches = []
    for step in range(5):
        families = reader.read(exposition([str(step), "1", "NaN", "2e3", "7"]))
        assert families["requests_total"].samples[0][2] == step
        caches.append(families["requests_total"].cache)
    assert len(parsed) == 1
    assert all(cache is caches[0] for cache in caches)
    reader.read(exposition(["1"] * 5, more="queued 3\n"))
    assert len(parsed) == 2


VALUES = st.one_of(
    st.sampled_from(["0", "1", "1.5e3", "NaN", "+Inf", "1_000", "", "x", "3 1700000000", "7\r"]),
    st.floats().map(repr),
)
MORE = st.sampled_from(
    ["", "queued 3\n", "queued  3\n", "queued\t3\n", "# TYPE queued gauge\n", "# TYPE queued x\n",
     "queued\n", "\n", "queued 3", 'queued{a="1"} 1\nqueued{a="2"} 2\n', "# a comment 5\n"]
)  # fmt: skip


@given(st.lists(st.tuples(st.lists(VALUES, min_size=5, max_size=5), MORE), max_size=6))
def test_every_body_is_read_like_the_first(
    bodies: list[tuple[list[str], str]],
) -> None:
    reader = ExpositionReader(WANTED)
    for values, more in bodies:
        body = exposition(values, more=more)
        assert outcome(reader.read, body) == outcome(lambda body: read(body, WANTED), body)


@given(st.lists(st.binary(max_size=40), max_size=4), st.integers(0, 3000))
@example([b"\x80"], 1104)
def test_damaged_bodies_are_read_like_the_first(damages: list[bytes], place: int) -> None:
    wanted = ("nv_inference_request_success", "nv_inference_first_response_histogram_ms")
    reader = ExpositionReader(wanted)
    for damage in (b"", *damages, b""):
        body = CAPTURE[:place] + damage + CAPTURE[place:]
        assert outcome(reader.read, body) == outcome(lambda body: read(body, wanted), body)


def test_of_a_duplicate_series_the_first_value_counts() -> None:
    more = 'queued{a="1",b="2"} 1\nqueued{b="2",a="1"} 5\nqueued{a="1"} 9\n'
    reader = ExpositionReader(WANTED)
    caches = []
    for _ in range(3):
        family = reader.read(exposition(["1"] * 5, more=more))["queued"]
        assert [value for _, _, value in family.samples] == [1, 9]
        assert family.duplicate == 'queued{b="2",a="1"}'
        caches.append(family.cache)
    assert caches[1] is caches[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"a 1\n" * 2_000_000, "line 200001: expected at most 200,000 lines"),
        (b"".join(b"a%d 1\n" % n for n in range(20_000)), "expected at most 10,000 families"),
        (b"".join(b"# TYPE a%d gauge\n" % n for n in range(20_000)), "at most 10,000 families"),
    ],
)
def test_oversized_bodies_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(ExpositionError, match=message):
        ExpositionReader(WANTED).read(body)
