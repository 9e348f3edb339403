"""Catalogues of the metrics that servers emit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache, reduce
from math import isfinite
from typing import Literal

Spelling = Literal["", "1", "1.0"]
Kind = Literal["counter", "gauge", "histogram", "summary", "untyped"]
Unit = Literal["", "s", "ms", "us", "bytes", "ratio"]
Part = Literal["", "bucket", "sum", "count", "created"]
Labels = Mapping[str, str]

_LONGEST_NAME = 100

_KINDS: Mapping[str, Kind] = {
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
    "summary": "summary",
}

_PARTS: Mapping[str, tuple[Part, ...]] = {
    "counter": ("", "created"),
    "histogram": ("", "bucket", "sum", "count", "created"),  # "": a native histogram
    "summary": ("", "sum", "count", "created"),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric family.

    ``name`` is that of its series; a histogram's or summary's is without ``_bucket``, ``_sum`` and
    ``_count``.  ``labels`` exclude those that Prometheus adds to a target, and are None if unknown.
    ``values`` are all values that a label can have, where they are known.  ``kinds`` is a
    label that splits the family into quantities that cannot be added up: of different units, or
    contained in each other.  ``growing`` are the values of that label whose gauge only grows, so
    that its rate makes sense; ``ratios`` those that are ratios from 0 to 1.  ``boundaries`` are
    bucket boundaries, ``boundaries_from`` names the setting that changes them (empty: fixed), and
    ``whole_boundaries`` is how the server writes the boundary 1.  ``caution`` is the reason
    why the name of the metric is misleading.
    """

    name: str
    kind: Kind
    labels: frozenset[str] | None = frozenset()
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    kinds: str = ""
    growing: frozenset[str] = frozenset()
    ratios: frozenset[str] = frozenset()
    unit: Unit = ""
    boundaries: tuple[float, ...] = ()
    boundaries_from: str = ""
    whole_boundaries: Spelling = ""
    caution: str = ""


@dataclass(frozen=True, slots=True)
class Rename:
    """The current name of a renamed metric, and the reason of the change."""

    now: str
    why: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Metrics by name.

    ``title`` names the servers in messages; ``prefixes`` are those of their metrics.
    ``renamed`` has the families that were renamed.  Names that begin with ``vague`` are not looked
    up; those that begin with ``partial`` may exist in releases without a catalogue.
    """

    title: str
    metrics: Mapping[str, Metric]
    prefixes: tuple[str, ...] = ()
    renamed: Mapping[str, Rename] = field(default_factory=dict)
    vague: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()

    def find(self, series: str) -> tuple[Metric, Part] | None:
        """Return the metric of a series, and its part of that metric."""
        if metric := self.metrics.get(series):
            return metric, ""
        family, _, last = series.rpartition("_")
        for part in ("bucket", "sum", "count", "created"):
            metric = self.metrics.get(family) if last == part else None
            if metric and part in _PARTS.get(metric.kind, ()):
                return metric, part
        if last == "created" and (metric := self.metrics.get(f"{family}_total")):
            return metric, "created"
        return None

    def rename_of(self, series: str) -> Rename | None:
        """Return the new name of a series whose metric was renamed."""
        if found := self.renamed.get(series):
            return found
        family, _, part = series.rpartition("_")
        if part in ("bucket", "sum", "count") and (found := self.renamed.get(family)):
            return replace(found, now=f"{found.now}_{part}")
        return None

    @property
    def series(self) -> Iterator[str]:
        """The names of all series, without the quantiles of summaries."""
        for name, metric in self.metrics.items():
            if metric.kind in ("histogram", "summary"):
                parts = (
                    ("bucket", "sum", "count") if metric.kind == "histogram" else ("sum", "count")
                )
                yield from (f"{name}_{part}" for part in parts)
            else:
                yield name

    def covers(self, series: str) -> bool:
        """Whether a series of this name can only come from the servers of the catalogue.

        A colon after the prefix marks a recorded series.
        """
        prefix = next((each for each in self.prefixes if series.startswith(each)), "")
        recorded = ":" in series[len(prefix) :]
        return bool(prefix) and not recorded and not series.startswith(self.vague)


@lru_cache(maxsize=4096)
def nearest(word: str, choices: tuple[str, ...]) -> str:
    """Return the choice that is most similar to a word, empty if none is similar."""
    if len(word) > _LONGEST_NAME:
        return ""
    return next(iter(get_close_matches(word, choices, 1, 0.7)), "")


def union(catalogues: Iterable[Catalogue]) -> Catalogue:
    """Return the metrics of any of the servers; a metric is renamed only if all renamed it."""
    given = tuple(catalogues)
    metrics: dict[str, Metric] = {}
    for each in given:
        for name, metric in each.metrics.items():
            metrics[name] = _merged_metric(metrics[name], metric) if name in metrics else metric
    renamed = reduce(lambda all_, each: {**all_, **each.renamed}, given, dict[str, Rename]())
    prefixes = {prefix for each in given for prefix in each.prefixes}
    return Catalogue(
        " or ".join(each.title for each in given),
        metrics,
        tuple(sorted(prefixes)),
        {name: rename for name, rename in renamed.items() if name not in metrics},
        tuple(sorted({prefix for each in given for prefix in each.vague})),
    )


def scraped(
    title: str, families: Iterable[tuple[str, str, Iterable[Labels]]], known: Catalogue
) -> Catalogue:
    """Return the catalogue of one exposition: name, type and labels of the samples per family.

    ``known`` adds what an exposition lacks: units, which labels are kinds, and the labels of
    families that have no sample yet.
    """
    metrics: dict[str, Metric] = {}
    for name, kind, samples in families:
        base = known.metrics.get(name) or Metric(name, "untyped", None, unit=unit_of(name))
        labels = [*samples]
        boundaries = {each["le"] for each in labels if "le" in each}
        seen = frozenset(label for each in labels for label in each)
        metrics[name] = replace(
            base,
            kind=base.kind if kind == "untyped" or base.growing else _KINDS.get(kind, "untyped"),
            labels=seen | (base.labels or frozenset()) if labels else base.labels,
            boundaries=tuple(
                sorted(boundary for boundary in map(_finite, boundaries) if boundary is not None)
            ),
            boundaries_from="",
            whole_boundaries=_spelling(boundaries),
        )
    return Catalogue(title, metrics, known.prefixes, known.renamed, known.vague)


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _spelling(boundaries: Iterable[str]) -> Spelling:
    """Return the spelling of whole bucket boundaries."""
    for boundary in boundaries:
        if (value := _finite(boundary)) is not None and value == int(value):
            return "1" if "." not in boundary else "1.0"
    return ""


def _merged_metric(one: Metric, other: Metric) -> Metric:
    """Return the properties that two metrics have in common."""
    if one == other:
        return one
    given = (one, other)
    return Metric(
        one.name,
        one.kind if one.kind == other.kind else "untyped",
        None if one.labels is None or other.labels is None else one.labels | other.labels,
        {
            label: one.values.get(label, frozenset()) | other.values.get(label, frozenset())
            for label in {*one.values, *other.values}
            if all(label in each.values or label not in (each.labels or ()) for each in given)
        },
        one.kinds if one.kinds == other.kinds else "",
        one.growing | other.growing,
        one.ratios | other.ratios,
        one.unit if one.unit == other.unit else "",
        tuple(sorted({*one.boundaries, *other.boundaries}))
        if one.boundaries and other.boundaries
        else (),
        one.boundaries_from or other.boundaries_from,
        one.whole_boundaries if one.whole_boundaries == other.whole_boundaries else "",
        one.caution if one.caution == other.caution else "",
    )


_UNIT_SUFFIXES: Mapping[str, Unit] = {
    "seconds": "s",
    "ms": "ms",
    "milliseconds": "ms",
    "us": "us",
    "microseconds": "us",
    "bytes": "bytes",
    "ratio": "ratio",
}


def guess(series: str) -> tuple[Metric, Part] | None:
    """Return a metric guessed from its name by Prometheus' conventions, None without a hint."""
    match = re.fullmatch(r"(.+?)_(bucket|sum|count)", series)
    if match and match[2] == "bucket":
        return Metric(match[1], "histogram", unit=unit_of(match[1])), "bucket"
    if series.endswith("_total"):
        return Metric(series, "counter", unit=unit_of(series.removesuffix("_total"))), ""
    return None


def unit_of(name: str) -> Unit:
    """Return the unit at the end of a name."""
    return _UNIT_SUFFIXES.get(name.rpartition("_")[2], "")
