"""What the readers of other tools' files share: drafts, notes, and readers for loose values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from promql.expr import Vector, decimal_text
from promql.lexer import InvalidPromQL
from promql.parse import parse
from promql.query import InstantQuery, InvalidQuery
from promql.tree import Binary, Number, bare
from slos.document import Document, Keys
from slos.errors import BadValue, Problem, quoted
from slos.events import matched_edge
from slos.generic import WINDOW, is_counter, parsed
from slos.model import DISABLED
from slos.names import BASE_WINDOW
from slos.schema import MAX_TEXT, Place, Reader, expect, nearest, read_value


@dataclass(frozen=True, slots=True)
class At:
    """A value of a draft and the place that it was taken from."""

    value: Any
    place: Place


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was not taken over; ``problem`` says what and what to do.

    ``lost`` means that the promise itself is another one without it: what counts as good, its
    target or its window.  ``service`` and ``objective`` say whose it is, "" if it is nobody's.
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
    """A service in our own language, as plain values some of which are :class:`At`."""

    tree: Mapping[str, object]
    place: Place

    def document(self) -> Document:
        """Return it as a document whose lines and names are those of the file it comes from."""
        lines: dict[Keys, int] = {}
        names: dict[Keys, str] = {}

        def plain(value: Any, place: Place, path: Keys) -> Any:
            while isinstance(value, At):
                value, place = value.value, value.place
            lines[path], names[path] = place.line, place.name
            if isinstance(value, Mapping):
                return {key: plain(part, place, (*path, key)) for key, part in value.items()}
            if isinstance(value, list):
                return [plain(part, place, (*path, i)) for i, part in enumerate(value)]
            return value

        file = self.place.document.file
        return Document(file, plain(self.tree, self.place, ()), lines, names)


@dataclass(slots=True)
class Notes:
    """Collects notes about one file, each once; :meth:`about` says whose the next ones are."""

    _by_problem: dict[Problem, Note] = field(default_factory=dict)
    _whose: tuple[str, str] = ("", "")

    @property
    def found(self) -> tuple[Note, ...]:
        """The notes in the order in which they were made."""
        return tuple(self._by_problem.values())

    def about(self, service: str = "", objective: str = "") -> None:
        """Say whose the next notes are."""
        self._whose = (service, objective)

    def left_out(self, place: Place, message: str, fix: str) -> None:
        """Note something beside the promise."""
        self._add(place, message, fix, lost=False)

    def lost(self, place: Place, message: str, fix: str) -> None:
        """Note a part of the promise."""
        self._add(place, message, fix, lost=True)

    def _add(self, place: Place, message: str, fix: str, *, lost: bool) -> None:
        problem = Problem(place.document.file, place.line, place.name, message, fix)
        self._by_problem.setdefault(problem, Note(problem, lost, *self._whose))


# Reading what may be anything


def take(value: object, place: Place, readers: Mapping[str, Reader], notes: Notes) -> dict[str, At]:
    """Read the known keys of a mapping; others are noted, as the tools themselves ignore them.

    A key that is there without a value is as good as one that is not.
    """
    found: dict[str, At] = {}
    for key, part in expect(dict, f"a mapping with the keys {', '.join(readers)}", value).items():
        here = place.at(key)
        if key not in readers:
            near = nearest(key, readers)
            fix = f"write {near}" if near else f"known keys are {', '.join(readers)}"
            notes.left_out(here, "is not a key of this format", fix)
        elif part is not None and (read := read_value(readers[key], part, here)) is not None:
            found[key] = At(read, here)
    return found


def taken(
    value: object, place: Place, readers: Mapping[str, Reader], notes: Notes
) -> dict[str, At]:
    """Do the same, but refuse what is no mapping at all; nothing is found in it then."""
    return read_value(lambda v, p: take(v, p, readers, notes), value, place) or {}


def has_all(found: Mapping[str, At], value: object, place: Place, **wanted: str) -> bool:
    """Whether these keys of a mapping were found and could be read; refuse what it lacks.

    ``value`` is the mapping that ``found`` was read from; what is to be added is a key and its
    text here, such as ``": 99.9"``.
    """
    if isinstance(value, dict):  # or else that has been said
        for key, rest in wanted.items():
            if value.get(key) is None:
                place.refuse("is missing", f"add {key}{rest}", key)
    return found.keys() >= wanted.keys()


def items(value: object, place: Place) -> Iterator[tuple[object, Place]]:
    """Yield the entries of a list with their places."""
    found: list[object] = read_value(lambda v, _: expect(list, "a list", v), value, place) or []
    for index, item in enumerate(found):
        yield item, place.at(index)


def anything(value: object, _: Place) -> object:
    """Take any value."""
    return value


def text(value: object, _: Place) -> str:
    """Read text; a number or a truth value is the text that it is written as."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return decimal_text(Decimal(repr(value))) if abs(value) < 1e15 else repr(value)
    found: str = expect(str, "text", value)
    return found


def truth(value: object, _: Place) -> bool:
    """Read ``true`` or ``false``."""
    if not isinstance(value, bool):
        raise BadValue("is neither true nor false", "write true or false")
    return value


def texts(value: object, place: Place) -> dict[str, At]:
    """Read a mapping of names to text."""
    given: dict[str, object] = expect(dict, "a mapping of names to text", value)
    read = {key: read_value(text, part, place.at(key)) for key, part in given.items()}
    return {key: At(part, place.at(key)) for key, part in read.items() if part is not None}


def percent(value: object, place: Place) -> str:
    """Read a percentage without its sign: 99.9 or ``"99.9"``."""
    return f"{decimal_text(_number(value, '99.9'))}%"


def share(value: object, place: Place) -> str:
    """Read a ratio such as 0.999 as a percentage."""
    return f"{decimal_text(_number(value, '0.999') * 100)}%"


def number(value: object, place: Place) -> str:
    """Read a number as text."""
    return decimal_text(_number(value, "0.95"))


def _number(value: object, example: str) -> Decimal:
    written = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,8}(?:\.[0-9]{1,9})?", written):
        raise BadValue("is not a number", f"write a number such as {example}")
    return Decimal(written)


METADATA: dict[str, Reader] = {
    **dict.fromkeys(("name", "namespace"), text),
    **dict.fromkeys(("labels", "annotations"), texts),
    **dict.fromkeys(
        ("uid", "generation", "resourceVersion", "creationTimestamp", "managedFields"), anything
    ),
}
"""What a Kubernetes object says about itself."""


def said_about_object(
    found: Mapping[str, At], notes: Notes, kept: str = "", *, annotate: str
) -> None:
    """Note what of its :data:`METADATA` is about the Kubernetes object alone.

    Not so are labels and annotations that begin with ``kept``; ``annotate`` says how alerts get
    an annotation.
    """
    if "namespace" in found:
        notes.left_out(
            found["namespace"].place,
            "is left out: it is where the rules were, not what they are about",
            "add labels: {namespace: …} if alerts are to tell it",
        )
    said = {
        "labels": (
            "is left out: it only chose which Prometheus loads the rules",
            "put it on the PrometheusRule that holds the generated ones",
        ),
        "annotations": ("is left out: it is not about alerts", annotate),
    }
    for part, (why, fix) in said.items():
        for key, value in (found[part].value if part in found else {}).items():
            if not (kept and key.startswith(kept)):
                notes.left_out(value.place, why, fix)


# Telling it in our language


def name(value: At, notes: Notes) -> At:
    """Write a name as ours are, in lower case with dashes."""
    given = str(value.value)
    ours = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
    if ours == given or not ours:
        return value
    fix = f"expect {ours} in labels, alerts and file names"
    notes.left_out(value.place, f"{quoted(given)} is written {ours}", fix)
    return At(ours, value.place)


def one_line(value: At | None) -> Mapping[str, At]:
    """Return a description as ours are, on one line; nothing if there is none."""
    words = " ".join(str(value.value).split())[:MAX_TEXT] if value else ""
    return {"description": At(words, value.place)} if value and words else {}


_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
SET_BY_US = ("alertname", "service", "slo", "window", "burn_rate")
"""Labels that our alerts set themselves."""
OF_TIERS = (*SET_BY_US, "severity")
"""Those that the labels of a service or an objective cannot set."""


def labels(
    given: Mapping[str, At], notes: Notes, ours: tuple[str, ...] = SET_BY_US
) -> dict[str, At]:
    """Leave out, with a note, labels or annotations that cannot be kept, as those of ``ours``."""
    kept = {}
    for key, value in given.items():
        if key in ours:
            notes.left_out(value.place, "is a label that our alerts set themselves", "rename it")
        elif not _LABEL.fullmatch(key):
            notes.left_out(value.place, "is not a name for a label", "use letters, digits and _")
        elif ours and "{{" in str(value.value):
            notes.left_out(value.place, "is a template", "write a fixed value, or an annotation")
        elif value.value:
            kept[key] = value
    return kept


def unless_empty(**parts: object) -> dict[str, object]:
    """Return the parts that hold something."""
    return {key: part for key, part in parts.items() if part}


def disabled(*kinds: str) -> list[str]:
    """Return kinds of alerts in the order of :data:`slos.model.DISABLED`, each once."""
    return [kind for kind in DISABLED if kind in kinds]


def windowed(value: At, notes: Notes) -> At | None:
    """Put our window where a template says theirs; None, with a note, for any other template."""
    query = re.sub(r"\{\{\s*\.?\s*window\s*\}\}", WINDOW, str(value.value))
    if "{{" in query:
        notes.lost(value.place, "holds a template other than {{.window}}", "fill it in")
        return None
    return At(query, value.place)


def query_of(written: str) -> InstantQuery | None:
    """Read a query; None if it is none, which is refused later, where it stands."""
    try:
        return parsed(written)
    except InvalidQuery:
        return None


def as_rate(query: str) -> str:
    """Write a query that is taken as it stands: a plain selector would be taken for a counter."""
    read = query_of(query)
    return f"sum({query})" if read and read.selector else query


def of_counter(selector: str) -> str:
    """Write the rate of a counter: the selector itself if its name says that it is one."""
    found = parsed(selector).selector
    return selector if found and is_counter(found) else f"sum(rate({selector}[{WINDOW}]))"


def histogram(within: Vector, total: Vector) -> dict[str, str | int | float] | None:
    """Tell of a histogram whose bucket ``within`` counts the good ones of ``total``.

    None if they do not say so: another metric, other labels, or no single edge.
    """
    base = within.metric.removesuffix("_bucket")
    edge = edge_of(within)
    others = tuple(matcher for matcher in within.matchers if matcher.label != "le")
    if edge is None or base == within.metric or total.metric != f"{base}_count":
        return None
    if set(others) != set(total.matchers):
        return None
    bare = int(edge) if edge == edge.to_integral_value() else float(edge)
    return {"histogram": str(Vector(base, others)), "threshold": bare}


def edge_of(bucket: Vector) -> Decimal | None:
    """Return the edge that a bucket is selected by; None if it is none, or not a single one."""
    edges = [matcher for matcher in bucket.matchers if matcher.label == "le"]
    return matched_edge(edges[0].op, edges[0].value) if len(edges) == 1 else None


def warn_of_counts(total: At, notes: Notes) -> None:
    """Say where events are counted in a window: the ratio is the same, their number is not."""
    if any(f"{function}(" in str(total.value) for function in _PER_WINDOW):
        notes.left_out(
            total.place,
            "counts events in the window instead of in a second, so that min_bad_events is "
            "reached too early",
            "use rate instead of increase, or divide all queries by 300",
        )


_PER_WINDOW = ("increase", "count_over_time", "sum_over_time")


def of_ratio(ratio: At, notes: Notes, fix: str, *, success: bool = False) -> dict[str, At]:
    """Tell an error ratio, or one of ``success``; ``fix`` is what to do where it says too little.

    A quotient is told as events, so that every window can weigh it by them.
    """
    if parts := _divided(str(ratio.value)):
        other = {"good": "bad", "bad": "good", "total": "total"} if success else {}
        told = {other.get(role, role): At(query, ratio.place) for role, query in parts.items()}
        warn_of_counts(told["total"], notes)
        return told
    notes.left_out(
        ratio.place,
        "is no quotient of two sums, so longer windows average it over time, whatever the traffic",
        fix,
    )
    return {"ratio": At(f"1 - ({ratio.value})", ratio.place) if success else ratio}


def _divided(ratio: str) -> dict[str, str] | None:
    """Take an error ratio apart into events.

    ``a / b`` is bad and all events, ``1 - a / b`` good and all; None where the query is neither.
    """
    # As long as the placeholder, so that places in one are places in the other.
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
