"""Queries of a file, with their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from promql.lint.located_text import LocatedText
from promql.lint.scalers import Scaler, TriggerSettings

Use = Literal["panel", "annotation", "variable", "record", "alert", "trigger", "adapter"]
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class LocatedQuery:
    """One PromQL expression of a file.

    ``place`` describes its place for messages, ``path`` gives its keys.  ``name`` is the title of
    the panel, or the record or alert of the rule.  ``unit`` is the panel's unit in Grafana's terms,
    empty if unknown.  ``shortest`` is the minimum step of a panel in seconds, if it sets one.
    ``labels`` are those of a rule, ``templates`` its annotations.  ``settings`` are those of a
    scaler's trigger; ``unselective`` marks an adapter's rule that has the same value for every pod.
    """

    file: str
    text: LocatedText
    use: Use
    place: str
    path: Path
    name: str = ""
    unit: str = ""
    shortest: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    settings: TriggerSettings | None = None
    unselective: bool = False
    dashboard: int = 0
    """Number of the dashboard in the file, from 1; 0 for rules."""

    def line(self, offset: int = 0) -> int:
        """Return the line of a character of the expression."""
        return self.text.line + (self.text.count("\n", 0, offset) if self.text.block else 0)


@dataclass(slots=True)
class FileQueries:
    """The queries of a file, and notes about parts that cannot be checked."""

    queries: list[LocatedQuery] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    intervals: list[float] = field(default_factory=list)
    """Scrape intervals, in seconds."""
    scalers: list[tuple[Path, Scaler]] = field(default_factory=list)
    """Scalers, with the paths of their manifests."""
    recognized: bool = False
    dashboards: int = 0
