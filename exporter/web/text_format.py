"""Write families as Prometheus text or OpenMetrics, byte for byte as prometheus_client does.

prometheus_client sorts and escapes the labels of every line at every scrape.  Here the head of a
line (all but the value) is cached, and so are the lines of a family without changed values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import add
from threading import Lock

from prometheus_client.utils import floatToGoString

from exporter.families import LabelSet, MetricFamily, Series
from exporter.samples import Distribution, Labels

MAX_HEADS = 200_000
"""Maximum cached heads of lines."""

UNITS = ("seconds", "bytes", "ratio")
"""Units that OpenMetrics can state, because our metric names end in them."""

Key = tuple[str, str, LabelSet | Labels, tuple[float, ...]]
"""Name and kind of the family, labels and bucket boundaries."""


class TextWriter:
    """Render families, with text cached between scrapes.  Threads may share a writer."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._heads: dict[Key, tuple[str, ...]] = {}
        self._cached = 0
        self._last: dict[tuple[str, str], tuple[tuple[Series, ...], str]] = {}

    def render(self, families: Iterable[MetricFamily], *, openmetrics: bool) -> bytes:
        """Return the families as Prometheus text 0.0.4 or OpenMetrics 1.0."""
        parts: list[str] = []
        for family in families:
            parts += _comments(family, openmetrics=openmetrics)
            parts.append(self._lines_of(family))
        if openmetrics:
            parts.append("# EOF\n")
        return "".join(parts).encode()

    def _lines_of(self, family: MetricFamily) -> str:
        kind = (family.name, family.kind)
        series, text = self._last.get(kind, ((), ""))
        if series != family.series:
            text = "".join(self._lines(family))
            self._last[kind] = family.series, text
        return text

    def _lines(self, family: MetricFamily) -> Iterator[str]:
        for labels, value in family.series:
            if isinstance(value, Distribution):
                heads = self._heads_of(family, labels, value.boundaries)
                yield from map(add, heads, map(_number, (*value.counts, value.count, value.sum)))
            else:
                [head] = self._heads_of(family, labels, ())
                yield head + _number(value)

    def _heads_of(
        self, family: MetricFamily, labels: Mapping[str, str], boundaries: tuple[float, ...]
    ) -> tuple[str, ...]:
        label_set = labels if isinstance(labels, LabelSet) else tuple(labels.items())
        key = (family.name, family.kind, label_set, boundaries)
        heads = self._heads.get(key)
        if heads is None:
            heads = tuple(_heads(family, labels, boundaries))
            with self._lock:
                if self._cached + len(heads) > MAX_HEADS:
                    self._heads.clear()
                    self._cached = 0
                if key not in self._heads:
                    self._heads[key] = heads
                    self._cached += len(heads)
        return heads


def _comments(family: MetricFamily, *, openmetrics: bool) -> Iterator[str]:
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        name, text = family.name, text.replace('"', r"\"")
    else:
        name = f"{family.name}_total" if family.kind == "counter" else family.name
    yield f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n"
    unit = family.name.rpartition("_")[2]
    if openmetrics and unit in UNITS:
        yield f"# UNIT {name} {unit}\n"


def _heads(
    family: MetricFamily, labels: Mapping[str, str], boundaries: tuple[float, ...]
) -> Iterator[str]:
    pairs = sorted(labels.items())
    texts = list(map(_pair, pairs))
    if not boundaries:
        suffix = "_total" if family.kind == "counter" else ""
        yield _head(family.name + suffix, texts)
        return
    before = [text for text, (label, _) in zip(texts, pairs, strict=True) if label < "le"]
    after = [text for text, (label, _) in zip(texts, pairs, strict=True) if label > "le"]
    for boundary in boundaries:
        le = _number(boundary).rstrip("\n")
        yield _head(f"{family.name}_bucket", [*before, f'le="{le}"', *after])
    yield _head(f"{family.name}_count", texts)
    yield _head(f"{family.name}_sum", texts)


def _head(name: str, pairs: Sequence[str]) -> str:
    return f"{name}{{{','.join(pairs)}}} " if pairs else f"{name} "


@lru_cache(maxsize=65_536)
def _pair(pair: tuple[str, str]) -> str:
    """Format a label pair."""
    label, value = pair
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{label}="{escaped}"'


@lru_cache(maxsize=65_536)
def _number(value: float) -> str:
    """Format a value as the end of a line."""
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return f"{text}\n"
