"""Drafts of services, notes on what is not converted, and conversions that all formats share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from promql.expr import Vector
from promql.lexer import InvalidPromQL
from promql.parse import parse
from promql.query import InstantQuery, InvalidQuery
from promql.tree import Binary, Number, bare
from slos.document import Document, Keys
from slos.errors import Problem, quoted
from slos.events import matched_boundary
from slos.generic import WINDOW, is_counter, parsed
from slos.model import DISABLED
from slos.names import BASE_WINDOW
from slos.schema import MAX_TEXT, Place


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """A value of a draft, and its place in the original file."""

    value: Any
    place: Place


@dataclass(frozen=True, slots=True)
class Note:
    """A part of a file that was not converted.

    ``lost`` marks a change of the objective itself: its good events, its target or its window.
    ``service`` and ``objective`` are the subject of the note, or empty.
    """

    problem: Problem
    lost: bool
    service: str = ""
    objective: str = ""

    def __str__(self) -> str:
        field = self.problem.field
        return str(replace(self.problem, field=f"warning: {field}" if field else "warning"))


@dataclass(frozen=True, slots=True)
class Draft:
    """A service as plain values of tokenslo's language, some of them :class:`PlacedValue`."""

    tree: Mapping[str, object]
    place: Place

    def document(self) -> Document:
        """Return the draft as a document with the lines and names of the original file."""
        lines: dict[Keys, int] = {}
        names: dict[Keys, str] = {}

        def plain(value: Any, place: Place, path: Keys) -> Any:
            while isinstance(value, PlacedValue):
                value, place = value.value, value.place
            lines[path], names[path] = place.line, place.name
            if isinstance(value, Mapping):
                return {key: plain(each, place, (*path, key)) for key, each in value.items()}
            if isinstance(value, list):
                return [plain(each, place, (*path, i)) for i, each in enumerate(value)]
            return value

        file = self.place.document.file
        return Document(file, plain(self.tree, self.place, ()), lines, names)


@dataclass(slots=True)
class Notes:
    """Collects notes about one file, each once; :meth:`about` sets the subject of the next ones."""

    _by_problem: dict[Problem, Note] = field(default_factory=dict)
    _subject: tuple[str, str] = ("", "")

    @property
    def found(self) -> tuple[Note, ...]:
        """The notes in the order of their creation."""
        return tuple(self._by_problem.values())

    def about(self, service: str = "", objective: str = "") -> None:
        """Set service and objective of the next notes."""
        self._subject = (service, objective)

    def left_out(self, place: Place, message: str, fix: str) -> None:
        """Note a part that does not change the objective."""
        self._add(place, message, fix, lost=False)

    def lost(self, place: Place, message: str, fix: str) -> None:
        """Note a part without which the objective differs."""
        self._add(place, message, fix, lost=True)

    def _add(self, place: Place, message: str, fix: str, *, lost: bool) -> None:
        problem = Problem(place.document.file, place.line, place.name, message, fix)
        self._by_problem.setdefault(problem, Note(problem, lost, *self._subject))


def name(value: PlacedValue, notes: Notes) -> PlacedValue:
    """Convert a name to lower case with dashes."""
    given = str(value.value)
    converted = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
    if converted == given or not converted:
        return value
    fix = f"expect {converted} in labels, alerts and file names"
    notes.left_out(value.place, f"{quoted(given)} is written {converted}", fix)
    return PlacedValue(converted, value.place)


def one_line(value: PlacedValue | None) -> Mapping[str, PlacedValue]:
    """Return a description as one line; nothing if it is missing."""
    line = " ".join(str(value.value).split())[:MAX_TEXT] if value else ""
    return {"description": PlacedValue(line, value.place)} if value and line else {}


_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
SET_BY_ALERTS = ("alertname", "service", "slo", "window", "burn_rate")
"""Labels that generated alerts set."""
SET_BY_TIERS = (*SET_BY_ALERTS, "severity")
"""Labels that services and objectives cannot set."""


def labels(
    given: Mapping[str, PlacedValue], notes: Notes, reserved: tuple[str, ...] = SET_BY_ALERTS
) -> dict[str, PlacedValue]:
    """Drop labels or annotations that alerts cannot have, with a note.

    ``reserved`` is empty for annotations, which may be templates.
    """
    kept = {}
    for key, value in given.items():
        if key in reserved:
            notes.left_out(value.place, "is a label that generated alerts set", "rename it")
        elif not _LABEL.fullmatch(key):
            notes.left_out(value.place, "is not a label name", "use letters, digits and _")
        elif reserved and "{{" in str(value.value):
            notes.left_out(value.place, "is a template", "write a fixed value, or an annotation")
        elif value.value:
            kept[key] = value
    return kept


def non_empty(**fields: object) -> dict[str, object]:
    """Return the fields whose value is not empty."""
    return {key: value for key, value in fields.items() if value}


def disabled(*kinds: str) -> list[str]:
    """Return kinds of alerts in the order of :data:`slos.model.DISABLED`, each once."""
    return [kind for kind in DISABLED if kind in kinds]


def fill_window(value: PlacedValue, notes: Notes) -> PlacedValue | None:
    """Replace Sloth's window template with ``{window}``; return None for other templates."""
    query = re.sub(r"\{\{\s*\.?\s*window\s*\}\}", WINDOW, str(value.value))
    if "{{" in query:
        notes.lost(value.place, "has a template other than {{.window}}", "fill it in")
        return None
    return PlacedValue(query, value.place)


def query_of(written: str) -> InstantQuery | None:
    """Parse a query; return None if it is invalid, which a later check reports."""
    try:
        return parsed(written)
    except InvalidQuery:
        return None


def as_rate(query: str) -> str:
    """Wrap a plain selector of a rate in ``sum``; alone it would be read as a counter."""
    read = query_of(query)
    return f"sum({query})" if read and read.selector else query


def rate_of_counter(selector: str) -> str:
    """Return the rate of a counter: the selector alone if its name ends like a counter's."""
    found = parsed(selector).selector
    return selector if found and is_counter(found) else f"sum(rate({selector}[{WINDOW}]))"


def histogram(within: Vector, total: Vector) -> dict[str, str | int | float] | None:
    """Return the histogram indicator whose bucket ``within`` has the good events of ``total``.

    Returns None for different metrics or labels, or without a single boundary.
    """
    base = within.metric.removesuffix("_bucket")
    boundary = boundary_of(within)
    others = tuple(matcher for matcher in within.matchers if matcher.label != "le")
    if boundary is None or base == within.metric or total.metric != f"{base}_count":
        return None
    if set(others) != set(total.matchers):
        return None
    bare = int(boundary) if boundary == boundary.to_integral_value() else float(boundary)
    return {"histogram": str(Vector(base, others)), "threshold": bare}


def boundary_of(bucket: Vector) -> Decimal | None:
    """Return the bucket boundary that a selector matches, None unless it is a single one."""
    boundaries = [matcher for matcher in bucket.matchers if matcher.label == "le"]
    return matched_boundary(boundaries[0].op, boundaries[0].value) if len(boundaries) == 1 else None


def note_counts_per_window(total: PlacedValue, notes: Notes) -> None:
    """Note queries that count events per window, not per second; the ratio is the same."""
    if any(f"{function}(" in str(total.value) for function in _PER_WINDOW):
        notes.left_out(
            total.place,
            "counts events per window instead of per second, so that min_bad_events is reached too "
            "early",
            "use rate instead of increase, or divide all queries by 300",
        )


_PER_WINDOW = ("increase", "count_over_time", "sum_over_time")


def events_of_ratio(
    ratio: PlacedValue, notes: Notes, fix: str, *, success: bool = False
) -> dict[str, PlacedValue]:
    """Convert an error ratio, or a ratio of ``success``; ``fix`` is the advice for other ratios.

    A quotient becomes counts of events, so that longer windows weight it by events.
    """
    if quotient := _divided(str(ratio.value)):
        other = {"good": "bad", "bad": "good", "total": "total"} if success else {}
        events = {
            other.get(role, role): PlacedValue(query, ratio.place)
            for role, query in quotient.items()
        }
        note_counts_per_window(events["total"], notes)
        return events
    notes.left_out(
        ratio.place,
        "is not a quotient of two sums, so longer windows are averages over time, not over events",
        fix,
    )
    return {"ratio": PlacedValue(f"1 - ({ratio.value})", ratio.place) if success else ratio}


def _divided(ratio: str) -> dict[str, str] | None:
    """Split an error ratio into queries of events.

    ``a / b`` has bad and all events, ``1 - a / b`` good and all; None for other queries.
    """
    # The length of the placeholder keeps positions.
    whole = ratio.replace(WINDOW, BASE_WINDOW.ljust(len(WINDOW)))
    try:
        node = bare(parse(whole))
    except InvalidPromQL:
        return None
    role = "bad"
    if isinstance(node, Binary) and node.op == "-" and not node.matching:
        if not (isinstance(node.left, Number) and node.left.value == 1):
            return None
        role, node = "good", bare(node.right)
    if not isinstance(node, Binary) or node.op != "/" or node.matching:
        return None
    events, total = (ratio[part.start : part.end] for part in (node.left, node.right))
    read = [query_of(query) for query in (events, total)]
    return {role: events, "total": total} if all(read) else None
