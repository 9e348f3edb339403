"""Write families as Prometheus text or OpenMetrics, byte for byte as prometheus_client does.

prometheus_client sorts and escapes the labels of every line at every scrape.  Here the head of a
line (all but the value) is cached, so are those of a family with the same labels, and the text of
a family with the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add
from threading import Lock

from prometheus_client.utils import floatToGoString

from exporter.cooperative import Steps, completed
from exporter.families import LabelSet, MetricFamily, Series
from exporter.samples import Distribution, Labels

MAX_HEADS = 200_000
"""Maximum cached heads of lines."""

STEP_SIZE = 500
"""Lines written in one step, which takes about 0.2 ms."""

UNITS = ("seconds", "bytes", "ratio")
"""Units that OpenMetrics can state, because our metric names end in them."""

Key = tuple[str, str, LabelSet | Labels, tuple[float, ...]]
"""Name and kind of the family, labels and bucket boundaries."""


Shape = Sequence[tuple[Mapping[str, str], tuple[float, ...]]]
"""Labels and bucket boundaries of every series of a family."""


@dataclass(frozen=True, slots=True)
class _WrittenFamily:
    """A family as it was written last: its series, the heads of their lines, and the text."""

    series: tuple[Series, ...] = ()
    shape: Shape = ()
    heads: Sequence[str] = ()
    text: bytes = b""


class TextWriter:
    """Render families, with text cached between scrapes.  Threads may share a writer."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._heads: dict[Key, tuple[str, ...]] = {}
        self._cached = 0
        self._last: dict[tuple[str, str], _WrittenFamily] = {}

    def render(self, families: Iterable[MetricFamily], *, openmetrics: bool) -> bytes:
        """Return the families as Prometheus text 0.0.4 or OpenMetrics 1.0."""
        return completed(self.render_in_steps(families, openmetrics=openmetrics))

    def render_in_steps(
        self, families: Iterable[MetricFamily], *, openmetrics: bool
    ) -> Steps[bytes]:
        """Render as :meth:`render` does, with about ``STEP_SIZE`` lines in a step."""
        parts: list[bytes] = []
        for family in families:
            yield
            parts.append("".join(_comments(family, openmetrics=openmetrics)).encode())
            parts.append((yield from self._lines_of(family)))
        if openmetrics:
            parts.append(b"# EOF\n")
        return b"".join(parts)

    def _lines_of(self, family: MetricFamily) -> Steps[bytes]:
        kind = (family.name, family.kind)
        last = self._last.get(kind, _WrittenFamily())
        if last.series == family.series:
            return last.text
        shape, values = _shape_and_values(family.series)
        heads = last.heads
        if last.shape != shape:
            heads = yield from self._heads_of_all(family, shape)
        texts: list[str] = []
        for start in range(0, len(values), STEP_SIZE):
            yield
            lines = slice(start, start + STEP_SIZE)
            texts += map(add, heads[lines], map(_number, values[lines]))
        text = "".join(texts).encode()
        self._last[kind] = _WrittenFamily(family.series, shape, heads, text)
        return text

    def _heads_of_all(self, family: MetricFamily, shape: Shape) -> Steps[Sequence[str]]:
        heads: list[str] = []
        written = 0
        for labels, boundaries in shape:
            if len(heads) - written >= STEP_SIZE:
                written = len(heads)
                yield
            heads += self._heads_of(family, labels, boundaries)
        return heads

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


def _shape_and_values(series: Sequence[Series]) -> tuple[Shape, list[float]]:
    """Return the labels and boundaries of every series, and the values of all lines."""
    shape: list[tuple[Mapping[str, str], tuple[float, ...]]] = []
    values: list[float] = []
    for labels, value in series:
        if isinstance(value, Distribution):
            shape.append((labels, value.boundaries))
            values += value.counts
            values += (value.counts[-1], value.sum)
        else:
            shape.append((labels, ()))
            values.append(value)
    return shape, values


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
