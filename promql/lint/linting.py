"""Lint files: read them, find their queries, run all checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from promql.lexer import InvalidPromQL, PromQLTooLarge, has_variable
from promql.lint.catalogue import Catalogue
from promql.lint.checks import (
    aggregations,
    dashboards,
    matching,
    names,
    rates,
    rules,
    scalers,
    units,
)
from promql.lint.context import DEFAULT_INTERVAL, LintContext
from promql.lint.findings import CHECKS, Finding, Hit, ScalerHit
from promql.lint.located_query import LocatedQuery
from promql.lint.located_query import Path as KeyPath
from promql.lint.located_text import STANDARD_INPUT, NoQueries, UnreadableFile, files_below, read
from promql.lint.queries import find_queries
from promql.lint.scalers import Scaler
from promql.parse import parse
from promql.tree import Expr
from promql.types import check as type_of

_CHECKS: tuple[Callable[[LocatedQuery, Expr, LintContext], Iterator[Hit]], ...] = (
    names.check,
    rates.check,
    aggregations.check,
    rules.check,
    matching.check,
    units.check,
    scalers.check,
)
_MAX_PART = 200
_NO_QUERY = UnreadableFile(
    0, "is a folder without any query", "give the folder of the dashboards or rules"
)


@dataclass(frozen=True, slots=True)
class Report:
    """Findings in the order of the files.

    ``notes`` name queries that were not checked, ``unreadable`` files with the reason.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    unreadable: tuple[tuple[str, UnreadableFile], ...]
    queries: int


@dataclass(frozen=True, slots=True)
class _LocatedScaler:
    """A scaler with its file, the number of queries before it, and the path of its manifest."""

    file: str
    before: int
    path: KeyPath
    scaler: Scaler


def lint(
    files: Iterable[str],
    known: Catalogue,
    emitted: Catalogue | None = None,
    *,
    scrape_interval: float | None = None,
    disabled: Collection[str] = (),
) -> Report:
    """Check all queries of files, and of the files below folders.

    ``known`` are the metrics of all servers, ``emitted`` those of the servers that the files are
    for (None: any).  ``scrape_interval`` is in seconds; the default is the shortest one in the
    scrape configurations among the files.  ``disabled`` are identifiers of checks.
    """
    queries, notes, unreadable, intervals, found_scalers = _collect(files)
    interval = scrape_interval or min(intervals, default=None)
    hits: list[tuple[LocatedQuery, Hit]] = []
    parsed: list[tuple[LocatedQuery, Expr]] = []
    for query in queries:
        try:
            root = parse(query.text, variables=query.dashboard > 0)
        except InvalidPromQL as problem:
            if reason := _skip_reason(query, problem):
                notes.append(
                    f"{query.file}:{query.line()}: {query.place} was not checked: {reason}"
                )
            else:
                hits.append((query, _syntax_hit(problem, len(query.text))))
        else:
            parsed.append((query, root))
    context = LintContext(
        emitted,
        known,
        frozenset(query.name for query in queries if query.use == "record"),
        frozenset(name for _, root in parsed for name in rules.summed(root)),
        interval or DEFAULT_INTERVAL,
        interval is not None,
        frozenset(label for each in known.metrics.values() for label in each.labels or ()),
        {query.name: root for query, root in parsed if query.use == "record"},
    )
    for query, root in parsed:
        here = [hit for check in _CHECKS for hit in check(query, root, context)]
        hits += ((query, hit) for hit in (*here, *_type_hits(query, root, here)))
    boards: dict[tuple[str, int], list[tuple[LocatedQuery, Expr]]] = {}
    for query, root in parsed:
        if query.dashboard:
            boards.setdefault((query.file, query.dashboard), []).append((query, root))
    for board in boards.values():
        hits += dashboards.check(board, context)
    order = {id(query): index for index, query in enumerate(queries)}
    findings = [
        (order[id(query)], _finding(query, hit)) for query, hit in hits if hit.check not in disabled
    ]
    findings += (
        (each.before, _scaler_finding(each, hit))
        for each in found_scalers
        for hit in scalers.check_scaler(each.scaler)
        if hit.check not in disabled
    )
    ordered = sorted(findings, key=lambda pair: (pair[0], pair[1].check))
    # A query may contain the same selector several times.
    unique = dict.fromkeys(finding for _, finding in ordered)
    return Report(tuple(unique), tuple(notes), tuple(unreadable), len(queries))


def _collect(
    files: Iterable[str],
) -> tuple[
    list[LocatedQuery],
    list[str],
    list[tuple[str, UnreadableFile]],
    list[float],
    list[_LocatedScaler],
]:
    """Return queries, notes, unreadable files, scrape intervals and scalers of files and folders.

    The intervals include those of a prometheus.yml in the folder of a file.
    """
    queries: list[LocatedQuery] = []
    intervals: list[float] = []
    notes: list[str] = []
    unreadable: list[tuple[str, UnreadableFile]] = []
    found_scalers: list[_LocatedScaler] = []
    for file in files:
        folder = Path(file).is_dir()
        skipped, read_before = 0, (len(queries), len(found_scalers))
        for each in map(str, files_below(Path(file))) if folder else (file,):
            name = _printable("<stdin>" if each == STANDARD_INPUT else each)
            try:
                found = find_queries(name, read(each))
            except NoQueries as problem:
                skipped += 1
                if not folder:
                    unreadable.append((name, problem))
            except UnreadableFile as problem:
                unreadable.append((name, problem))
            else:
                found_scalers += (
                    _LocatedScaler(name, len(queries), path, one) for path, one in found.scalers
                )
                queries += found.queries
                notes += found.notes
                intervals += found.intervals
        intervals += _neighbour_intervals(Path(file))
        if folder and (len(queries), len(found_scalers)) == read_before:
            unreadable.append((_printable(file), _NO_QUERY))
        elif folder and skipped:
            many = f"{skipped} file{'s' * (skipped > 1)}"
            notes.append(f"{_printable(file)}: {many} without dashboards or rules skipped")
    return queries, notes, unreadable, intervals, found_scalers


def _neighbour_intervals(file: Path) -> list[float]:
    """Return the scrape intervals of the prometheus.yml in the folder of a file."""
    for name in ("prometheus.yml", "prometheus.yaml"):
        path = file.parent / name
        if not file.is_dir() and file.exists() and path.is_file() and path != file:
            try:
                return find_queries(name, read(str(path))).intervals
            except UnreadableFile:
                return []
    return []


def _skip_reason(query: LocatedQuery, problem: InvalidPromQL) -> str:
    """Return why an unparsable text may be valid, empty if it is not."""
    if isinstance(problem, PromQLTooLarge):
        return f"it {problem.message}"
    if query.text[problem.offset : problem.offset + 1] == "|":
        return "it is LogQL, which Loki reads"
    if query.dashboard and has_variable(query.text):
        return f"its variables hide its structure ({problem.message})"
    return ""


def _syntax_hit(problem: InvalidPromQL, length: int) -> Hit:
    end = length if problem.end is None else problem.end
    return Hit(
        "TL001",
        Expr(start=problem.offset, end=end),
        f"this is not PromQL: {problem.message}",
        problem.fix,
    )


def _type_hits(query: LocatedQuery, root: Expr, found: Iterable[Hit]) -> Iterator[Hit]:
    """Yield defects of functions and types, unless another hit covers the same part."""
    try:
        result = type_of(root)
    except InvalidPromQL as problem:
        hit = _syntax_hit(problem, len(query.text))
        if all(_span(each.part) != _span(hit.part) for each in found):
            yield hit
        return
    if query.use in ("record", "alert") and result in ("range", "text"):
        what = "a range" if result == "range" else "text"
        why = f"a rule needs an instant vector or a number, and this is {what}"
        yield Hit("TL001", root, why, "take a function of it, such as rate(…)")


def _span(part: Expr | None) -> tuple[int, int] | None:
    return (part.start, part.end) if part else None


def _finding(query: LocatedQuery, hit: Hit) -> Finding:
    start, end = (hit.part.start, hit.part.end) if hit.part else (0, len(query.text))
    part = _printable(" ".join(query.text[start:end].split()))
    return Finding(
        query.file,
        query.line(start),
        query.place,
        tuple(key if isinstance(key, int) else str(key) for key in query.path),
        hit.check,
        hit.severity or CHECKS[hit.check].severity,
        part if len(part) <= _MAX_PART else f"{part[:_MAX_PART]}…",
        _printable(hit.why),
        _printable(hit.fix),
    )


def _scaler_finding(located: _LocatedScaler, hit: ScalerHit) -> Finding:
    return Finding(
        located.file,
        hit.name.line,
        _printable(f"{located.scaler.kind} {located.scaler.name}"),
        (*located.path, *hit.path),
        hit.check,
        hit.severity or CHECKS[hit.check].severity,
        _printable(hit.name[:_MAX_PART]),
        _printable(hit.why),
        _printable(hit.fix),
    )


def _printable(text: str) -> str:
    """Replace characters that could control a terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)
