"""The exposition parser agrees with prometheus_client, or refuses the text."""

from __future__ import annotations

import math
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import prometheus_client
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from exporter.sources.exposition.text_parser import ExpositionError, ParsedFamily, read
from tests.parser_comparison import (
    as_prometheus_client,
    by_prometheus_client,
    our_samples,
    their_samples,
)
from tests.traced_memory import traced_memory

CAPTURES = sorted(
    path
    for path in (Path(__file__).parent / "captures").iterdir()
    if path.suffix in {".prom", ".txt"}
)


# --- what it returns ---------------------------------------------------------------------------


def test_triton_histogram_with_its_buckets_last() -> None:
    body = (
        b"# HELP first_response_ms Duration, in \\\\ms\n"
        b"# TYPE first_response_ms histogram\n"
        b'first_response_ms_count{model="llm",version="1"} 3\n'
        b'first_response_ms_sum{model="llm",version="1"} 420.5\n'
        b'first_response_ms_bucket{model="llm",version="1",le="100"} 1\n'
        b'first_response_ms_bucket{model="llm",version="1",le="+Inf"} 3\n'
    )
    model = {"model": "llm", "version": "1"}
    assert read(body) == {
        "first_response_ms": ParsedFamily(
            "first_response_ms",
            "histogram",
            "Duration, in \\ms",
            [
                ("first_response_ms_count", model, 3.0),
                ("first_response_ms_sum", model, 420.5),
                ("first_response_ms_bucket", {**model, "le": "100"}, 1.0),
                ("first_response_ms_bucket", {**model, "le": "+Inf"}, 3.0),
            ],
        )
    }


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("m 1", {}, 1.0),
        ("m\t1", {}, 1.0),
        ("m{} 1", {}, 1.0),
        ("m{ } 1", {}, 1.0),
        ('m{a="b"} 1', {"a": "b"}, 1.0),
        ('m{a="b"}1', {"a": "b"}, 1.0),
        ('m{a="b",} 1', {"a": "b"}, 1.0),
        ('  m \t{ a = "b" , c\t=\t"d" , }  1  ', {"a": "b", "c": "d"}, 1.0),
        ('m{a=""} 1', {"a": ""}, 1.0),
        ('m{a="} 2,c=\\"# {"} 1', {"a": '} 2,c="# {'}, 1.0),
        (r'm{a="\\ \n \" \x \\n"} 1', {"a": '\\ \n " \\x \\n'}, 1.0),
        ('m{a="größer 大"} 1', {"a": "größer 大"}, 1.0),
        ('m{a="b"} 1 1700000000000', {"a": "b"}, 1.0),
        ("m 1\t-5", {}, 1.0),
        ('m{a="b"} 1.5e3\r', {"a": "b"}, 1500.0),
        ("m +Inf", {}, math.inf),
        ('m{a="b"} -Inf', {"a": "b"}, -math.inf),
        ("m 18446744073709551615", {}, 18446744073709551615.0),
    ],
)
def test_sample_lines(line: str, labels: dict[str, str], value: float) -> None:
    for declared in ("", "# TYPE m gauge\n"):
        body = f"{declared}{line}\n".encode()
        assert read(body)["m"].samples == [("m", labels, value)]
        assert our_samples(read(body)) == their_samples(body)


@pytest.mark.parametrize("written", ["Nan", "NaN", "nan"])
def test_not_a_number(written: str) -> None:
    [(_, _, value)] = read(f'# TYPE s summary\ns{{quantile="0.5"}} {written}\n'.encode())[
        "s"
    ].samples
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("body", "families"),
    [
        ("", {}),
        ("\n \n\r\n", {}),
        ("# a comment\n#another\n#\n# \n", {}),
        ("# TYPE m counter\n", {"m": ParsedFamily("m", "counter")}),
        ("# HELP m What it is. \n", {"m": ParsedFamily("m", help="What it is.")}),
        ("  #\tTYPE  m \t gauge \n", {"m": ParsedFamily("m", "gauge")}),
        ("#TYPE m gauge\n", {}),
        ("# TYPE m gauge\n# HELP m \n# TYPE m gauge\n", {"m": ParsedFamily("m", "gauge")}),
        ("# TYPE m gauge\r\nm 1\r\n", {"m": ParsedFamily("m", "gauge", "", [("m", {}, 1.0)])}),
        ("m_total 1\n", {"m_total": ParsedFamily("m_total", samples=[("m_total", {}, 1.0)])}),
        (
            "# TYPE ns:m_total counter\nns:m_total 1\n# TYPE ns:m_created gauge\nns:m_created 2\n",
            {
                "ns:m_total": ParsedFamily("ns:m_total", "counter", "", [("ns:m_total", {}, 1.0)]),
                "ns:m_created": ParsedFamily(
                    "ns:m_created", "gauge", "", [("ns:m_created", {}, 2.0)]
                ),
            },
        ),
        (
            "# TYPE h histogram\n# TYPE h_count counter\nh_count 1\n"
            "# TYPE h histogram\nh_count 2\n",
            {
                "h": ParsedFamily("h", "histogram", "", [("h_count", {}, 2.0)]),
                "h_count": ParsedFamily("h_count", "counter", "", [("h_count", {}, 1.0)]),
            },
        ),
    ],
)
def test_families(body: str, families: dict[str, ParsedFamily]) -> None:
    assert read(body.encode()) == families


def test_scattered_samples_come_together() -> None:
    body = (
        b"# TYPE a counter\na 1\n"
        b'# TYPE s summary\ns_sum 2\na 3\ns{quantile="0.5"} 4\n'
        b"# TYPE b gauge\ns_count 5\nb 6\na 7\n"
    )
    families = read(body)
    assert {name: [value for *_, value in f.samples] for name, f in families.items()} == {
        "a": [1, 3, 7],
        "s": [2, 4, 5],
        "b": [6],
    }
    assert read(body, {"a"}) == {"a": families["a"]}


def test_labels_are_read_only_and_shared() -> None:
    body = b'# TYPE a gauge\na{x="1"} 1\n# TYPE b gauge\nb{x="1"} 2\n'
    labels = read(body)["a"].samples[0][1]
    assert labels is read(body)["b"].samples[0][1]
    with pytest.raises(TypeError):
        labels["x"] = "2"  # type: ignore[index]


def test_cached_labels_are_bounded() -> None:
    """Of each round's labels 9,000 may be cached, at most 16,384 of all, and no long ones."""
    after = [0]
    with traced_memory() as held:
        for start in range(0, 54_000, 9_000):
            numbers = range(start, start + 9_000)
            lines = "".join(f'a{{x="{number}"}} {number}\n' for number in numbers)
            long = "".join(f'b{{x="{"y" * 2_000}{number}"}} 1\n' for number in numbers[:500])
            families = read(f"# TYPE a gauge\n{lines}# TYPE b gauge\n{long}".encode())
            found = [labels["x"] for _, labels, _ in families["a"].samples]
            assert found == list(map(str, numbers))
            assert families["b"].samples[0][1]["x"].endswith(f"y{start}")
            del families, found, lines, long
            after.append(held())
    # Labels of earlier tests may be in the cache, which is emptied when it is full: of two rounds
    # at least one adds all of its labels.
    once = max(later - earlier for earlier, later in pairwise(after))
    assert max(after) < 1.9 * once
    assert once < 9_000 * 1_000


def test_lines_of_unwanted_families_are_not_parsed() -> None:
    body = b"# TYPE a gauge\na{broken 1\na what\n# TYPE b gauge\nb 2\n"
    assert read(body, ["b"])["b"].samples == [("b", {}, 2.0)]
    with pytest.raises(ExpositionError):
        read(body)


# --- what it refuses ---------------------------------------------------------------------------

WHOLE_LINE = "expected a comment or a metric name, its labels in braces and a value"
LABELS = 'expected name="value" and commas between (no name starts with __)'
VALUE = "expected a number (or NaN, +Inf, -Inf) and at most an integer timestamp"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>\n<body>404</body>\n", f"line 1: found '<html>', {WHOLE_LINE}"),
        ('{"error":"x"}', f"""line 1: found '{{"error":"x"}}', {WHOLE_LINE}"""),
        ('{"error":\n', f"""line 1: found '{{"error":', {WHOLE_LINE}"""),
        ("a 1\n\x00\x01\n", f"line 2: found '\\x00\\x01', {WHOLE_LINE}"),
        ("a 1\n\n1a 2\n", f"line 3: found '1a 2', {WHOLE_LINE}"),
        ("a-b 2\n", f"line 1: found 'a-b 2', {WHOLE_LINE}"),
        ("a\n", f"line 1: found 'a', {WHOLE_LINE}"),
        ('a{b="c"}\n', f"line 1: found nothing, {VALUE}"),
        ("a  \n", f"line 1: found 'a', {WHOLE_LINE}"),
        ("# TYPE a gauge\na one\n", f"line 2: found 'one', {VALUE}"),
        ("# TYPE a gauge\na 1_000\n", f"line 2: found '1_000', {VALUE}"),
        ('# TYPE a gauge\na{b="c"} 1_000\n', f"line 2: found '1_000', {VALUE}"),
        ("a 0x10\n", f"line 1: found '0x10', {VALUE}"),
        ("a 1 1.5\n", f"line 1: found '1 1.5', {VALUE}"),
        ("a 1 2 3\n", f"line 1: found '1 2 3', {VALUE}"),
        ('a 1 # {id="x"} 1\n', f"""line 1: found '1 # {{id="x"}} 1', {VALUE}"""),
        ('a{b="c} 1\n', f"""line 1: found 'a{{b="c}} 1', {WHOLE_LINE}"""),
        ('a{b="c"d="e"} 1\n', f"""line 1: found 'b="c"d="e"', {LABELS}"""),
        ('a{b="c",,d="e"} 1\n', f"""line 1: found ',d="e"', {LABELS}"""),
        ("a{,} 1\n", f"line 1: found ',', {LABELS}"),
        ("a{b=c} 1\n", f"line 1: found 'b=c', {LABELS}"),
        ('a{__b="c"} 1\n', f"""line 1: found '__b="c"', {LABELS}"""),
        ('a{b:c="d"} 1\n', f"""line 1: found 'b:c="d"', {LABELS}"""),
        ('a{b="c",b="d"} 1\n', """line 1: found 'b="c",b="d"', expected each label once"""),
        ("# TYPE\n", "line 1: found nothing, expected the name of a metric after # TYPE"),
        ("# HELP 1a x\n", "line 1: found '1a', expected the name of a metric after # HELP"),
        (
            "\n# TYPE a\n",
            "line 2: found nothing, expected the type of a: "
            "counter, gauge, histogram, summary, untyped",
        ),
        (
            "# TYPE a gauge\na 1\n# TYPE a counter\n",
            "line 3: found 'counter', expected a to stay gauge, as lines above have it",
        ),
        (
            "a 1\n# TYPE a counter\n",
            "line 2: found 'counter', expected a to stay untyped, as lines above have it",
        ),
        (
            "# TYPE h histogram\nh 1\n",
            "line 2: found 'h 1', expected h_bucket or h_sum or h_count, as h is a histogram",
        ),
        ("a 1\nb 2", "line 2: expected a line feed at the end: the body was cut off"),
        ("a 1\n# HELP b Cut o", "line 2: expected a line feed at the end: the body was cut off"),
        ("x" * 100 + "\n", f"line 1: found '{'x' * 59}…', {WHOLE_LINE}"),
    ],
)  # fmt: skip
def test_refusals(body: str, message: str) -> None:
    with pytest.raises(ExpositionError) as refusal:
        read(body.encode())
    assert str(refusal.value) == message
    assert message.startswith(f"line {refusal.value.line}: ")


def test_text_that_is_not_utf_8() -> None:
    with pytest.raises(
        ExpositionError, match=r"^line 2: found the byte 0xff, expected UTF-8 text$"
    ):
        read(b"a 1\n\xff\n")


@pytest.mark.parametrize("wanted", [None, {"absent"}])
def test_garbage_is_refused_though_nothing_in_it_is_wanted(wanted: set[str] | None) -> None:
    for body in (
        b"<html></html>\n",
        b'{"a":1}\n',
        b"# TYPE a gauge\na 1\n<html>\n",
        b"a{",
        b"\x1f\x8b",
    ):
        with pytest.raises(ExpositionError):
            read(body, wanted)


# --- agreement ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_captures_are_read_as_by_prometheus_client(path: Path) -> None:
    body = path.read_bytes()
    families = read(body)
    assert families
    assert as_prometheus_client(families) == by_prometheus_client(body)


names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True).filter(
    lambda name: not re.search(r"_(total|created|bucket|sum|count|info|gsum|gcount)$", name)
)
label_names = st.from_regex(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
characters = st.characters(exclude_categories=["Cs"])
nasty_text = st.text(st.sampled_from('ab \\"{}=,#\n\t ') | characters, max_size=12)
label_sets = st.dictionaries(label_names, nasty_text, max_size=3)
values = st.floats() | st.integers(-(2**70), 2**70)
helps = st.text(characters, max_size=20).map(lambda text: " ".join(text.split()))
# A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
blanks = st.text(" \t", max_size=2)


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@st.composite
def sample_lines(draw: st.DrawFn, name: str, edge: str = "") -> str:
    """One sample of any layout that the format allows."""
    labels = draw(label_sets)
    if edge:
        labels[edge] = draw(st.sampled_from(["0.5", "1", "+Inf"]))
    gap = draw(blanks)
    pairs = [f'{gap}{key}{gap}={gap}"{escaped(value)}"{gap}' for key, value in labels.items()]
    block = ",".join(pairs) + draw(st.sampled_from(["", ","]) if pairs else st.just(""))
    value = draw(values)
    written = draw(st.sampled_from([str(value), str(value).replace("nan", "Nan"), f"{value:+g}"]))
    time = draw(st.sampled_from(["", "", " 1700000000000", "\t0 "]))
    if not block:
        return f"{gap}{name}{draw(st.sampled_from([' ', chr(9), ' {} ']))}{written}{time}"
    return f"{gap}{name}{gap}{{{block}}} {gap}{written}{time}"


PARTS = {
    "counter": [("", "")],
    "gauge": [("", "")],
    "untyped": [("", "")],
    "histogram": [("_count", ""), ("_sum", ""), ("_bucket", "le")],
    "summary": [("_count", ""), ("_sum", ""), ("", "quantile")],
}


@st.composite
def families_of_lines(draw: st.DrawFn) -> list[tuple[list[str], list[str]]]:
    """Families as (declarations, samples), of all types, names unlike each other."""
    drawn = draw(st.lists(names, unique=True, max_size=5))
    families = []
    for name in drawn:
        kind = draw(st.sampled_from(sorted(PARTS)))
        full = name + draw(st.sampled_from(["", "_total"])) if kind == "counter" else name
        written_help = draw(helps).replace("\\", r"\\")
        declarations = [
            f"# HELP {full} {written_help}" if draw(st.booleans()) else "# a { comment",
            f"# TYPE {full} {kind}",
        ]
        samples = [
            draw(sample_lines(full + suffix, edge))
            for suffix, edge in draw(st.lists(st.sampled_from(PARTS[kind]), max_size=6))
        ]
        families.append((declarations, samples))
    return families


def body_of(lines: list[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


@patient
@given(families_of_lines(), st.sampled_from(["\n", "\r\n", " \n", "\n\n"]))
def test_generated_text_is_read_as_by_prometheus_client(
    families: list[tuple[list[str], list[str]]], end: str
) -> None:
    body = body_of([line for family in families for part in family for line in part], end)
    assert as_prometheus_client(read(body)) == by_prometheus_client(body)


@patient
@given(families_of_lines(), st.randoms(use_true_random=False))
def test_scattering_changes_nothing_but_the_order(
    families: list[tuple[list[str], list[str]]], random: Any
) -> None:
    ordered = read(body_of([line for family in families for part in family for line in part]))
    lines = [line for _, samples in families for line in samples]
    random.shuffle(lines)
    body = body_of([line for declarations, _ in families for line in declarations] + lines)
    scattered = read(body)
    assert our_samples(scattered) == their_samples(body)
    assert {name: (f.type, our_samples({name: f})) for name, f in scattered.items()} == {
        name: (f.type, our_samples({name: f})) for name, f in ordered.items()
    }


@patient
@given(families_of_lines(), st.data())
def test_wanted_families_equal_a_selection_of_all(
    families: list[tuple[list[str], list[str]]], data: st.DataObject
) -> None:
    body = body_of([line for family in families for part in family for line in part])
    everything = read(body)
    wanted = data.draw(st.lists(st.sampled_from([*everything, "absent"])))
    some = read(body, wanted)
    assert list(some) == [name for name in everything if name in wanted]
    assert as_prometheus_client(some) == as_prometheus_client(
        {name: everything[name] for name in some}
    )


@st.composite
def registries(draw: st.DrawFn) -> CollectorRegistry:
    """Draw what an application using prometheus_client may serve."""
    metrics: list[Metric] = []
    for name in draw(st.lists(names.filter(lambda name: ":" not in name), unique=True, max_size=4)):
        keys = draw(
            st.lists(
                label_names.filter(lambda k: k not in ("le", "quantile")), unique=True, max_size=2
            )
        )
        metric = draw(
            st.sampled_from(
                [CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily]
            )
        )(name, draw(helps), labels=keys)
        for _ in range(draw(st.integers(0, 3))):
            labels = draw(st.lists(nasty_text, min_size=len(keys), max_size=len(keys)))
            value = draw(values)
            if isinstance(metric, HistogramMetricFamily):
                metric.add_metric(labels, [("0.1", value), ("+Inf", draw(values))], draw(values))
            elif isinstance(metric, SummaryMetricFamily):
                metric.add_metric(labels, value, draw(values))
            elif isinstance(metric, CounterMetricFamily):
                metric.add_metric(labels, value, created=draw(st.none() | st.just(1.7e9)))
            else:
                metric.add_metric(labels, value)
        metrics.append(metric)

    class ListCollector:
        def collect(self) -> Iterator[Metric]:
            return iter(metrics)

    registry = CollectorRegistry()
    registry.register(ListCollector())  # type: ignore[arg-type]
    return registry


@patient
@given(registries())
def test_output_of_prometheus_client_is_read_back(registry: CollectorRegistry) -> None:
    body = prometheus_client.generate_latest(registry)
    assert as_prometheus_client(read(body)) == by_prometheus_client(body)


# --- broken bodies -----------------------------------------------------------------------------

SMALL = (
    b"# HELP nv_requests Requests {all} of \\\\ them\n"
    b"# TYPE nv_requests counter\n"
    b'nv_requests{model="llm",reason="a \\"b\\" }, c",version="1"} 12\n'
    b'nv_requests{model="gr\xc3\xb6\xc3\x9fe",version="1"} 0.5\n'
    b"# TYPE nv_latency summary\n"
    b'nv_latency_count{model="llm"} 3\n'
    b'nv_latency_sum{model="llm"} +Inf\n'
    b'nv_latency{model="llm",quantile="0.5"} Nan\n'
    b"# TYPE nv_first histogram\n"
    b"nv_first_count 3\n"
    b'nv_first_bucket{le="100"} 1e3 1700000000000\n'
    b"plain 1\n"
)  # fmt: skip


def agrees_or_refuses(body: bytes) -> None:
    try:
        families = read(body)
    except ExpositionError:
        return
    assert our_samples(families) == their_samples(without_free_comments(body))


def without_free_comments(body: bytes) -> bytes:
    """Drop lines such as `#x TYPE y`: prometheus_client reads such comments as declarations."""
    return re.sub(rb"(?m)^[ \t]*#(?![ \t]).*$", b"#", body)


def test_every_truncation_is_noticed_but_those_between_lines() -> None:
    agrees_or_refuses(SMALL)
    for end in range(1, len(SMALL)):
        body = SMALL[:end]
        if body.endswith(b"\n"):
            assert our_samples(read(body)) == their_samples(body)
        else:
            with pytest.raises(ExpositionError):
                read(body)
            with pytest.raises(ExpositionError):
                read(body, {"absent"})


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    body = bytearray(SMALL)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(body)))
        end = min(len(body), start + draw(st.integers(0, 3)))
        body[start:end] = draw(
            st.binary(max_size=2) | st.sampled_from([*map(str.encode, ' \n\t"{}\\,=#_0')])
        )
    return bytes(body)


@patient
@given(mutations())
def test_mutations_are_refused_or_read_as_by_prometheus_client(body: bytes) -> None:
    agrees_or_refuses(body)


@patient
@given(st.binary(max_size=60) | st.text('ab_1 \n\t"{}\\,=#\r', max_size=60).map(str.encode))
def test_any_bytes_are_refused_or_read_as_by_prometheus_client(body: bytes) -> None:
    agrees_or_refuses(body)
    with suppress(ExpositionError):
        assert read(body, {"absent"}) == {}


# --- linear time -------------------------------------------------------------------------------

NASTY: dict[str, Callable[[int], bytes]] = {
    "one name": lambda n: b"a" * n + b"\n",
    "an open quote": lambda n: b'a{b="' + b"c" * n + b"\n",
    "backslashes": lambda n: b'a{b="' + b"\\" * n + b'"} 1\n',
    "backslashes, open": lambda n: b'a{b="' + b"\\" * n + b"\n",
    "escaped quotes": lambda n: b'a{b="' + b'\\"' * (n // 2) + b'"} 1\n',
    "quotes": lambda n: b"a{" + b'"' * n + b"} 1\n",
    "braces": lambda n: b"a" + b"{" * n + b"\n",
    "closing braces": lambda n: b"a{" + b"} " * (n // 2) + b"1\n",
    "blanks in labels": lambda n: b"a{" + b" " * n + b"} 1\n",
    "blanks before labels": lambda n: b"a" + b" " * n + b"{\n",
    "blanks after the value": lambda n: b"a 1" + b"\t " * (n // 2) + b"x\n",
    "a long number": lambda n: b"a " + b"1" * n + b"\n",
    "a long label name": lambda n: b"a{" + b"b" * n + b"} 1\n",
    "commas": lambda n: b"a{" + b"," * n + b"} 1\n",
    "equal signs": lambda n: b"a{b" + b"=" * n + b"} 1\n",
    "many labels": lambda n: b"a{" + b"".join(b'b%d="",' % i for i in range(n // 8)) + b"} 1\n",
    "labels, then junk": lambda n: b"a{" + b'b="",' * (n // 5) + b"!} 1\n",
    "comments": lambda n: b"# \n" * (n // 3),
    "hashes": lambda n: b"#\n" * (n // 2),
    "hashes in a line": lambda n: b"# " * (n // 2) + b"\n",
    "line feeds": lambda n: b"\n" * n,
    "declarations": lambda n: b"".join(b"# TYPE h%d histogram\n" % i for i in range(n // 20)),
    "help of one family": lambda n: b"# HELP a b\n" * (n // 11),
    "families without type": lambda n: b"".join(b"a%d 1\n" % i for i in range(n // 8)),
    "strays": lambda n: b"# TYPE a summary\n" + b"a 1\nb 1\n" * (n // 8),
    "not UTF-8": lambda n: b"\n" * n + b"\xff",
}  # fmt: skip


def attempt(body: bytes, wanted: set[str] | None) -> None:
    with suppress(ExpositionError):
        read(body, wanted)


def steps(body: bytes, wanted: set[str] | None) -> int:
    """Return how many lines of Python reading takes."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        attempt(body, wanted)
    finally:
        sys.settrace(before)
    return count


@contextmanager
def seconds(limit: int) -> Iterator[None]:
    """Interrupt what takes longer; regular expressions notice signals while they match."""

    def too_long(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"still reading after {limit} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("wanted", [None, {"absent"}], ids=["all", "none"])
@pytest.mark.parametrize("kind", NASTY)
def test_no_input_takes_more_than_linear_time(kind: str, wanted: set[str] | None) -> None:
    once, twice = (steps(NASTY[kind](size), wanted) for size in (1_000, 2_000))
    assert twice <= 2.1 * once
    # What happens inside one regular expression or string method has no lines to count.  At this
    # size linear work takes a tenth of a second and quadratic work takes hours.
    with seconds(20):
        attempt(NASTY[kind](500_000), wanted)


# --- how long lines may be ---------------------------------------------------------------------

LONGEST = 64 * 1024


def line_of(size: int) -> bytes:
    return b'm{a="' + b"x" * (size - 9) + b'"} 1'


@pytest.mark.parametrize("before", [0, 1, 7, 3000])
def test_a_line_that_is_too_long_is_refused_wherever_it_is(before: int) -> None:
    lines = b"# a comment of some length\n" * before
    read(lines + line_of(LONGEST) + b"\n" + lines)
    for end in (b"\n", b"", b"\n" + lines):
        with pytest.raises(ExpositionError) as refused:
            read(lines + line_of(LONGEST + 1) + end)
        assert str(refused.value) == f"line {before + 1}: expected at most 64 KiB in a line"


@given(st.lists(st.integers(0, 3 * LONGEST), max_size=8))
def test_exactly_the_first_line_that_is_too_long_is_named(sizes: list[int]) -> None:
    body = b"".join(b"#" * size + b"\n" for size in sizes)
    too_long = [number for number, size in enumerate(sizes, 1) if size > LONGEST]
    if too_long:
        with pytest.raises(ExpositionError) as refused:
            read(body)
        assert refused.value.line == too_long[0]
    else:
        assert read(body) == {}
