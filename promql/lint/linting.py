"""Lint files: read them, find their queries, run every check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from promql.lexer import NotPromQL, TooLarge, has_variable
from promql.lint.catalogue import Catalogue
from promql.lint.checks import aggregations, dashboards, matching, names, rates, rules, units
from promql.lint.findings import CHECKS, Finding, Hit
from promql.lint.located_text import STANDARD_INPUT, NoQueries, UnreadableFile, files_below, read
from promql.lint.queries import Query, find
from promql.lint.surroundings import USUAL_INTERVAL, Surroundings
from promql.parse import parse
from promql.tree import Expr
from promql.types import check as type_of

_CHECKS: tuple[Callable[[Query, Expr, Surroundings], Iterator[Hit]], ...] = (
    names.check,
    rates.check,
    aggregations.check,
    rules.check,
    matching.check,
    units.check,
)
_LONGEST_PART = 200
_NOTHING = UnreadableFile(
    0, "is a folder without any query", "give the folder of the dashboards or rules"
)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, in the order of the files.

    ``notes`` are about what was not checked, ``unreadable`` are files with the reason.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    unreadable: tuple[tuple[str, UnreadableFile], ...]
    queries: int


def lint(
    files: Iterable[str],
    known: Catalogue,
    emitted: Catalogue | None = None,
    *,
    scrape_interval: float | None = None,
    disabled: Collection[str] = (),
) -> Report:
    """Check every query of every file, and of the files of every folder.

    ``known`` are the metrics of any server, ``emitted`` those of the servers that the files are for
    (None: any).  ``scrape_interval`` is in seconds; without it the shortest of the scrape
    configurations among the files counts.  ``disabled`` are checks by id.
    """
    queries, notes, unreadable, intervals = _gathered(files)
    interval = scrape_interval or min(intervals, default=None)
    hits: list[tuple[Query, Hit]] = []
    parsed: list[tuple[Query, Expr]] = []
    for query in queries:
        try:
            root = parse(query.text, variables=query.dashboard > 0)
        except NotPromQL as problem:
            if reason := _unchecked(query, problem):
                notes.append(
                    f"{query.file}:{query.line()}: {query.place} was not checked: {reason}"
                )
            else:
                hits.append((query, _refused(problem, len(query.text))))
        else:
            parsed.append((query, root))
    known_here = Surroundings(
        emitted,
        known,
        frozenset(query.name for query in queries if query.use == "record"),
        frozenset(name for _, root in parsed for name in rules.summed(root)),
        interval or USUAL_INTERVAL,
        interval is not None,
        frozenset(label for each in known.metrics.values() for label in each.labels or ()),
        {query.name: root for query, root in parsed if query.use == "record"},
    )
    for query, root in parsed:
        here = [hit for check in _CHECKS for hit in check(query, root, known_here)]
        hits += ((query, hit) for hit in (*here, *_type(query, root, here)))
    boards: dict[tuple[str, int], list[tuple[Query, Expr]]] = {}
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


def _gathered(
    files: Iterable[str],
) -> tuple[list[Query], list[str], list[tuple[str, UnreadableFile]], list[float]]:
    """Return the queries of all files and folders, what is not checked, what cannot be read.

    The last list has the scrape intervals of the files and of a prometheus.yml beside them.
    """
    queries: list[Query] = []
    intervals: list[float] = []
    notes: list[str] = []
    unreadable: list[tuple[str, UnreadableFile]] = []
    for file in files:
        folder = Path(file).is_dir()
        passed_over, read_before = 0, len(queries)
        for each in map(str, files_below(Path(file))) if folder else (file,):
            name = _printable("<stdin>" if each == STANDARD_INPUT else each)
            try:
                found = find(name, read(each))
            except NoQueries as problem:
                passed_over += 1
                if not folder:
                    unreadable.append((name, problem))
            except UnreadableFile as problem:
                unreadable.append((name, problem))
            else:
                queries += found.queries
                notes += found.notes
                intervals += found.intervals
        intervals += _beside(Path(file))
        if folder and len(queries) == read_before:
            unreadable.append((_printable(file), _NOTHING))
        elif folder and passed_over:
            many = f"{passed_over} file{'s' * (passed_over > 1)}"
            notes.append(f"{_printable(file)}: {many} without dashboards or rules passed over")
    return queries, notes, unreadable, intervals


def _beside(file: Path) -> list[float]:
    """Return the scrape intervals of the prometheus.yml in the folder of a file."""
    for name in ("prometheus.yml", "prometheus.yaml"):
        path = file.parent / name
        if not file.is_dir() and file.exists() and path.is_file() and path != file:
            try:
                return find(name, read(str(path))).intervals
            except UnreadableFile:
                return []
    return []


def _unchecked(query: Query, problem: NotPromQL) -> str:
    """Say why a text that could not be parsed may be right all the same, "" if it cannot."""
    if isinstance(problem, TooLarge):
        return f"it {problem.message}"
    if query.text[problem.offset : problem.offset + 1] == "|":
        return "it is LogQL, which Loki reads"
    if query.dashboard and has_variable(query.text):
        return f"its variables hide its structure ({problem.message})"
    return ""


def _refused(problem: NotPromQL, length: int) -> Hit:
    end = length if problem.end is None else problem.end
    return Hit(
        "TL001",
        Expr(start=problem.offset, end=end),
        f"this is not PromQL: {problem.message}",
        problem.fix,
    )


def _type(query: Query, root: Expr, found: Iterable[Hit]) -> Iterator[Hit]:
    """Check functions and types, unless another finding says more about the same part."""
    try:
        gives = type_of(root)
    except NotPromQL as problem:
        hit = _refused(problem, len(query.text))
        if all(_span(each.part) != _span(hit.part) for each in found):
            yield hit
        return
    if query.use in ("record", "alert") and gives in ("range", "text"):
        what = "a range" if gives == "range" else "text"
        why = f"a rule needs an instant vector or a number, and this is {what}"
        yield Hit("TL001", root, why, "take a function of it, such as rate(…)")


def _span(part: Expr | None) -> tuple[int, int] | None:
    return (part.start, part.end) if part else None


def _finding(query: Query, hit: Hit) -> Finding:
    start, end = (hit.part.start, hit.part.end) if hit.part else (0, len(query.text))
    part = _printable(" ".join(query.text[start:end].split()))
    return Finding(
        query.file,
        query.line(start),
        query.place,
        tuple(key if isinstance(key, int) else str(key) for key in query.path),
        hit.check,
        hit.severity or CHECKS[hit.check].severity,
        part if len(part) <= _LONGEST_PART else f"{part[:_LONGEST_PART]}…",
        _printable(hit.why),
        _printable(hit.fix),
    )


def _printable(text: str) -> str:
    """Return what a terminal may be given: pieces of the file are in it."""
    return "".join(c if c.isprintable() else "�" for c in text)
