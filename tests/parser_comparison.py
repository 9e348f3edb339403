"""Compare our text parser with prometheus_client's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from exporter.sources.exposition.text_parser import ParsedFamily

Plain = dict[str, tuple[str, str, list[tuple[str, dict[str, str], float | str]]]]


def number(value: float) -> float | str:
    """Make NaN equal to itself."""
    return "NaN" if math.isnan(value) else float(value)


def as_prometheus_client(families: Mapping[str, ParsedFamily]) -> Plain:
    """Name families as prometheus_client does: counters without _total, their samples with it."""
    plain: Plain = {}
    for family in families.values():
        counter = family.type == "counter"
        ending = "_total" if counter and not family.name.endswith("_total") else ""
        plain[family.name.removesuffix("_total") if counter else family.name] = (
            "unknown" if family.type == "untyped" else family.type,
            family.help,
            [(name + ending, dict(labels), number(v)) for name, labels, v in family.samples],
        )
    return plain


def by_prometheus_client(body: bytes) -> Plain:
    return {
        metric.name: (
            metric.type,
            metric.documentation,
            [(sample.name, dict(sample.labels), number(sample.value)) for sample in metric.samples],
        )
        for metric in text_string_to_metric_families(body.decode())
    }


Samples = Counter[tuple[str, tuple[tuple[str, str], ...], float | str]]


def our_samples(families: Mapping[str, ParsedFamily]) -> Samples:
    """Return all samples, independent of families and order."""
    return Counter(
        (name.removesuffix("_total"), tuple(sorted(labels.items())), number(value))
        for family in families.values()
        for name, labels, value in family.samples
    )


def their_samples(body: bytes) -> Samples:
    return Counter(
        (
            sample.name.removesuffix("_total"),
            tuple(sorted(sample.labels.items())),
            number(sample.value),
        )
        for metric in text_string_to_metric_families(body.decode())
        for sample in metric.samples
    )
