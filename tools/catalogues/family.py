"""Metric declarations as the readers return them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

KINDS = ("counter", "gauge", "histogram", "summary", "info")


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """A declared metric family; ``labels`` and ``buckets`` are None where they are not constants.

    ``since`` is the first release branch that declares the family, where branches were read.
    """

    name: str
    kind: str
    labels: tuple[str, ...] | None
    buckets: tuple[float, ...] | None
    source: str
    since: str = ""


@dataclass(frozen=True, slots=True)
class Declarations:
    """The declarations of a checkout; ``unread`` are places where a name is not a constant."""

    families: tuple[DeclaredMetric, ...]
    unread: tuple[str, ...]


def merged(families: Iterable[DeclaredMetric]) -> Iterator[DeclaredMetric]:
    """Return each name once, in order; a field on which declarations differ is unknown."""
    known: dict[str, DeclaredMetric] = {}
    for family in families:
        before = known.setdefault(family.name, family)
        if before != family:
            both = before.labels is not None and family.labels is not None
            labels = tuple(dict.fromkeys((*(before.labels or ()), *(family.labels or ()))))
            known[family.name] = replace(
                before,
                labels=labels if both else None,
                buckets=before.buckets if before.buckets == family.buckets else None,
            )
    return (known[name] for name in sorted(known))


def files(root: Path, folders: Iterable[str], suffix: str) -> Iterator[tuple[str, str]]:
    """Yield relative path and text of every source file of some folders; tests are excluded."""
    for folder in folders:
        start = root / folder
        found = [start] if start.is_file() else sorted(start.rglob(f"*{suffix}"))
        for path in found:
            inside = path.relative_to(root)
            if not {"test", "tests", "testing", "benches", "mocker"} & {*inside.parts}:
                yield inside.as_posix(), path.read_text("utf-8", "replace")
