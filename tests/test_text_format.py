"""The text of a scrape is what prometheus_client writes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import exposition as prometheus_text
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from exporter.families import MetricFamily, Series
from exporter.samples import Distribution
from exporter.web import text_format
from exporter.web.text_format import MAX_HEADS, UNITS, TextWriter
from tests.traced_memory import traced_memory

TEXT = st.text(max_size=8) | st.sampled_from(['a"b', "a\\b", "a\nb", "é", "\U0001f600"])
LABELS = st.dictionaries(st.sampled_from(["model", "version", "a", "z", "outcome"]), TEXT)
# Without -0.0: the writer keeps the text of a family whose values are equal to those before.
NUMBERS = st.floats().map(lambda value: value + 0.0) | st.integers(0, 10**12).map(float)
BOUNDARIES = st.lists(st.floats(0, 1e9), unique=True, max_size=4).map(lambda e: (*sorted(e), inf))


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    boundaries = draw(BOUNDARIES)
    counts = draw(
        st.lists(st.integers(0, 10**7), min_size=len(boundaries), max_size=len(boundaries))
    )
    return Distribution(boundaries, tuple(map(float, accumulate(counts))), draw(NUMBERS))


@st.composite
def families(draw: st.DrawFn) -> MetricFamily:
    kind = draw(st.sampled_from(["counter", "gauge", "histogram"]))
    name = draw(st.sampled_from(["llm_wait_seconds", "llm_requests", "llm_memory_bytes"]))
    values = distributions() if kind == "histogram" else NUMBERS
    series: list[Series] = draw(st.lists(st.tuples(LABELS, values), min_size=1, max_size=4))
    return MetricFamily(name, kind, draw(TEXT), tuple(series))  # type: ignore[arg-type]


class FamilyCollector(Collector):
    def __init__(self, shown: Iterable[MetricFamily]) -> None:
        self._shown = shown

    def collect(self) -> Iterable[Metric]:
        for family in self._shown:
            unit = family.name.rpartition("_")[2]
            metric = Metric(family.name, family.help, family.kind, unit if unit in UNITS else "")
            for labels, value in family.series:
                if not isinstance(value, Distribution):
                    suffix = "_total" if family.kind == "counter" else ""
                    metric.add_sample(family.name + suffix, labels, value)
                    continue
                for edge, count in zip(value.boundaries, value.counts, strict=True):
                    le = floatToGoString(edge)  # type: ignore[no-untyped-call]
                    metric.add_sample(f"{family.name}_bucket", {**labels, "le": le}, count)
                metric.add_sample(f"{family.name}_count", labels, value.count)
                metric.add_sample(f"{family.name}_sum", labels, value.sum)
            yield metric


@settings(max_examples=40)
@given(st.lists(families(), max_size=3))
def test_text_equals_that_of_prometheus_client(shown: list[MetricFamily]) -> None:
    writer = TextWriter()
    for _ in range(2):
        assert writer.render(shown, openmetrics=False) == prometheus_text.generate_latest(
            FamilyCollector(shown), openmetrics.ALLOWUTF8
        )
        assert writer.render(shown, openmetrics=True) == openmetrics.generate_latest(  # type: ignore[no-untyped-call]
            FamilyCollector(shown), openmetrics.ALLOWUTF8
        )


def test_cached_heads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.web.text_format.MAX_HEADS", 10)
    assert MAX_HEADS > 10
    writer = TextWriter()

    def family(number: int) -> MetricFamily:
        pair = {"model": "m" * 1_000 + str(number % 10), "version": "v" * 1_000 + str(number // 10)}
        return MetricFamily("llm_requests", "counter", "", ((pair, 1.0),))

    with traced_memory() as held:
        for number in range(20):
            writer.render([family(number)], openmetrics=False)
        before = held()
        for number in range(20, 100):
            writer.render([family(number)], openmetrics=False)
        assert held() - before < 40 * 2_000  # of 80 new heads of 2,000 bytes


def test_only_families_whose_values_change_are_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    written: list[float] = []
    number = text_format._number

    class ReadLabels(dict[str, str]):
        def items(self) -> Any:
            read.append(self["of"])
            return {"model": "a"}.items()

    def counted_number(value: float) -> str:
        written.append(value)
        return number(value)

    monkeypatch.setattr(text_format, "_number", counted_number)
    writer = TextWriter()
    for value, labels_read, numbers in (
        (1.0, ["memory", "requests"], [5.0, 1.0]),
        (2.0, [], [2.0]),
        (2.0, [], []),
    ):
        read.clear()
        written.clear()
        labels = ReadLabels(of="memory"), ReadLabels(of="requests")
        still = MetricFamily("llm_memory_bytes", "gauge", "", ((labels[0], 5.0),))
        moving = MetricFamily("llm_requests", "counter", "", ((labels[1], value),))
        text = writer.render([still, moving], openmetrics=False).decode()
        assert f'llm_requests_total{{model="a"}} {value}\n' in text
        assert 'llm_memory_bytes{model="a"} 5.0\n' in text
        assert ([*dict.fromkeys(read)], written) == (labels_read, numbers)
