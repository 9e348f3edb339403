"""Lint files: read them, find their queries, run every check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from promql.lint.catalogue import Catalogue
from promql.lint.checks import aggregations, dashboards, names, rates, rules, units
from promql.lint.findings import CHECKS, Finding, Hit
from promql.lint.queries import Query, find
from promql.lint.reading import Unreadable, read
from promql.lint.surroundings import Surroundings
from promql.parse import Node, NotPromQL, has_variable, parse

_CHECKS: tuple[Callable[[Query, Node, Surroundings], Iterator[Hit]], ...] = (
    names.check,
    rates.check,
    aggregations.check,
    rules.check,
    units.check,
)
_LONGEST_PART = 200


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, in the order of the files.

    ``notes`` are about what was not checked, ``unreadable`` are files with the reason.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    unreadable: tuple[tuple[str, Unreadable], ...]
    queries: int


def lint(
    files: Iterable[str],
    known: Catalogue,
    emitted: Catalogue | None = None,
    *,
    scrape_interval: float = 30.0,
    disabled: Collection[str] = (),
) -> Report:
    """Check every query of every file.

    ``known`` are the metrics of any server, ``emitted`` those of the servers that the files are for
    (None: any).  ``scrape_interval`` is in seconds; ``disabled`` are checks by id.
    """
    queries: list[Query] = []
    notes: list[str] = []
    unreadable: list[tuple[str, Unreadable]] = []
    for file in files:
        name = _printable(file)
        try:
            found = find(name, read(Path(file)))
        except Unreadable as problem:
            unreadable.append((name, problem))
        else:
            queries += found.queries
            notes += found.notes
    hits: list[tuple[Query, Hit]] = []
    parsed: list[tuple[Query, Node]] = []
    for query in queries:
        try:
            parsed.append((query, parse(query.text)))
        except NotPromQL as problem:
            if query.dashboard and has_variable(query.text):
                notes.append(
                    f"{query.file}:{query.line()}: {query.place} was not checked: its variables "
                    f"hide its structure ({problem.message})"
                )
                continue
            at = Node(problem.offset, len(query.text))
            hits.append(
                (query, Hit("TL001", at, f"this is not PromQL: {problem.message}", "correct it"))
            )
    known_here = Surroundings(
        emitted,
        known,
        frozenset(query.name for query in queries if query.use == "record"),
        frozenset(name for _, root in parsed for name in rules.summed(root)),
        scrape_interval,
        frozenset(label for each in known.metrics.values() for label in each.labels or ()),
    )
    for query, root in parsed:
        hits += ((query, hit) for check in _CHECKS for hit in check(query, root, known_here))
    boards: dict[tuple[str, int], list[tuple[Query, Node]]] = {}
    for query, root in parsed:
        if query.dashboard:
            boards.setdefault((query.file, query.dashboard), []).append((query, root))
    for board in boards.values():
        hits += dashboards.check(board, known_here)
    order = {id(query): index for index, query in enumerate(queries)}
    findings = (
        (order[id(query)], _finding(query, hit)) for query, hit in hits if hit.check not in disabled
    )
    ordered = sorted(findings, key=lambda pair: (pair[0], pair[1].check))
    unique = dict.fromkeys(
        finding for _, finding in ordered
    )  # one selector may stand several times in a query
    return Report(tuple(unique), tuple(notes), tuple(unreadable), len(queries))


def _finding(query: Query, hit: Hit) -> Finding:
    start, end = (hit.part.start, hit.part.end) if hit.part else (0, len(query.text))
    part = _printable(" ".join(query.text[start:end].split()))
    return Finding(
        query.file,
        query.line(start),
        query.place,
        tuple(key if isinstance(key, int) else str(key) for key in query.path),
        hit.check,
        CHECKS[hit.check].severity,
        part if len(part) <= _LONGEST_PART else f"{part[:_LONGEST_PART]}…",
        _printable(hit.why),
        _printable(hit.fix),
    )


def _printable(text: str) -> str:
    """Return what a terminal may be given: pieces of the file are in it."""
    return "".join(c if c.isprintable() else "�" for c in text)
