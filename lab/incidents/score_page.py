"""Write the page of scores: tables of alerts and diagnoses, by incident and column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from lab.incidents.compression import FACTOR
from lab.incidents.incident import COLUMNS, Column, ExpectedAlert, Incident
from lab.incidents.scores import ANSWERS, CAUSE_NAMES, Answer, RunScore, Totals, score, totals
from lab.incidents.seeds import TUNING_SEEDS
from lab.incidents.stored_results import HELD_OUT, TUNING, StoredResult

_TITLES: Mapping[Column, str] = {
    "proxy": "proxy tap",
    "capture": "capture tap",
    "scrape": "scrape only",
}
_NONE = "-"
_TEMPLATE = Path(__file__).with_suffix(".md")


def render(incidents: Iterable[Incident], stored: Iterable[StoredResult]) -> str:
    """Return the page; incidents without a result are listed as missing."""
    known = {each.key: each for each in incidents}
    results = [each for each in stored if each.result.incident in known]
    scores = {
        kind: [
            run
            for each in results
            if each.kind == kind
            for run in score(known[each.result.incident], each.result)
        ]
        for kind in (HELD_OUT, TUNING)
    }
    parts = [*_expectations(known), *_runs(known, results)]
    for kind, title in ((HELD_OUT, "Held-out seeds"), (TUNING, "Tuning seeds")):
        if scores[kind]:
            parts += _section(title, known, scores[kind])
    return _TEMPLATE.read_text().format(factor=f"{FACTOR:g}", tables="\n".join(parts))


def _expectations(known: Mapping[str, Incident]) -> Iterator[str]:
    yield "## Expectations\n"
    yield (
        "The alerts that must fire, each within seconds of the onset, and the cause alerts that "
        "may fire as well, with the reason. The names lack that of the service.\n"
    )
    rows = [
        [
            key if incident.harmful else f"*{key}*",
            incident.title,
            ", ".join(map(_expected, incident.alerts)) or "none",
            "; ".join(f"`{name}`: {why}" for name, why in incident.confusions.items()) or _NONE,
        ]
        for key, incident in known.items()
    ]
    yield _table(("incident", "what happens", "expected alerts", "may fire as well"), rows)


def _expected(alert: ExpectedAlert) -> str:
    columns = f" ({', '.join(map(_TITLES.__getitem__, alert.columns))})"
    return f"`{alert.name}` {_seconds(alert.seconds)}{'' if alert.columns == COLUMNS else columns}"


def _runs(known: Mapping[str, Incident], results: Sequence[StoredResult]) -> Iterator[str]:
    yield "## Runs\n"
    rows = []
    for kind in (HELD_OUT, TUNING):
        of = [each for each in results if each.kind == kind]
        seeds = sorted({each.result.seed for each in of})
        rows.append([kind, _numbers(seeds) or _NONE, str(len(of))])
    yield _table(("seeds", "values", "runs"), rows)
    for name, values in (
        ("Machine", {each.machine for each in results}),
        ("Revision", {each.revision for each in results}),
    ):
        if values:
            yield f"{name}: {'; '.join(sorted(values))}.\n"
    if results:
        walls = [each.result.wall_seconds for each in results]
        yield f"A run takes {median(walls):.0f} s (median), at most {max(walls):.0f} s.\n"
    yield f"Seeds that were used while tuning: {_numbers(TUNING_SEEDS)}.\n"
    yield from _missing(known, results)


def _missing(known: Mapping[str, Incident], results: Sequence[StoredResult]) -> Iterator[str]:
    """Name the incidents that lack a held-out seed which others have."""
    played = {(each.result.incident, each.result.seed) for each in results if each.kind == HELD_OUT}
    seeds = sorted({seed for _, seed in played})
    lacking = {key: [seed for seed in seeds if (key, seed) not in played] for key in known}
    found = [f"{key} ({_numbers(lost)})" for key, lost in lacking.items() if lost]
    if found:
        yield f"Not played: {', '.join(found)}.\n"


def _section(
    title: str, known: Mapping[str, Incident], scores: Sequence[RunScore]
) -> Iterator[str]:
    by_incident = {
        key: {
            column: [each for each in scores if (each.incident.key, each.column) == (key, column)]
            for column in COLUMNS
        }
        for key in known
    }
    played = {key: runs for key, runs in by_incident.items() if any(runs.values())}
    yield f"## {title}\n"
    yield "### Totals\n"
    yield (
        "Precision is the share of true pages among the runs with a page: in a harmful incident, "
        "after its onset. Recall is the share of runs with a page among those of incidents that "
        "must page in some column, so that it shows what a sidecar without a tap misses. Top 1 "
        "and top 2 rank the causes of the diagnosis, also of one that cannot tell.\n"
    )
    yield _totals(
        {column: totals(each for each in scores if each.column == column) for column in COLUMNS}
    )
    yield "### First alert\n"
    yield (
        "The median time from the onset to the first page or ticket, or to the first expected "
        "alert where neither comes. Harmless incidents are in italics: nothing may page.\n"
    )
    yield _by_column(known, played, _first)
    yield "### Symptoms\n"
    yield "In how many runs the checks that must find the fault with a tap were sick.\n"
    yield _symptoms(played)
    yield "### Diagnosis\n"
    yield (
        "Right means that it names a cause of the incident, or reports no incident where the "
        "column can see none; cannot tell, that it names none; wrong, that it names another cause, "
        "or reports no incident although the column can see one.\n"
    )
    yield _by_column(known, played, _diagnosis)
    yield from _late(played)
    yield from _others(played)
    for column in COLUMNS:
        yield from _confusions(column, {key: runs[column] for key, runs in played.items()})


def _totals(of: Mapping[Column, Totals]) -> str:
    def row(name: str, value: Callable[[Totals], str]) -> list[str]:
        return [name, *(value(each) if each.runs else _NONE for each in of.values())]

    rows = [
        row("runs", lambda t: str(t.runs)),
        row("expected alerts in time", lambda t: f"{t.alerts_in_time} of {t.expected_alerts}"),
        row("precision of pages", lambda t: _percent(t.precision)),
        row("recall of pages", lambda t: _percent(t.recall)),
        row("runs with a false page", lambda t: str(t.false_pages)),
        row("median time to detect", lambda t: _seconds(t.median_detection)),
        row("longest time to detect", lambda t: _seconds(max(t.detection, default=None))),
        *(row(f"diagnosis {answer}", _count(answer)) for answer in ANSWERS),
        row("right cause first (top 1)", lambda t: f"{t.top1} of {t.ranked}"),
        row("incidents with it first in most runs", lambda t: f"{t.top1_most} of {t.incidents}"),
        row("right cause first or second (top 2)", lambda t: f"{t.top2} of {t.ranked}"),
    ]
    return _table(("", *_TITLES.values()), rows)


def _count(answer: Answer) -> Callable[[Totals], str]:
    return lambda of: str(of.answers[answer])


def _by_column(
    known: Mapping[str, Incident],
    played: Mapping[str, Mapping[Column, Sequence[RunScore]]],
    cell: Callable[[Sequence[RunScore]], str],
) -> str:
    rows = [
        [
            key if known[key].harmful else f"*{key}*",
            *(cell(runs[column]) if runs[column] else _NONE for column in COLUMNS),
        ]
        for key, runs in played.items()
    ]
    return _table(("incident", *_TITLES.values()), rows)


def _first(runs: Sequence[RunScore]) -> str:
    """Return the median time and the severities of the first alerts, and false pages."""
    first = [each.first for each in runs if each.first]
    if not first:
        return "none"
    severities = Counter(each.severity for each in first)
    named = " or ".join(severity for severity, _ in severities.most_common())
    share = "" if len(first) == len(runs) else f", {len(first)} of {len(runs)}"
    false = f", **{n} false**" if (n := sum(each.false_page for each in runs)) else ""
    return f"{named} {_seconds(median(each.seconds for each in first))}{share}{false}"


def _symptoms(played: Mapping[str, Mapping[Column, Sequence[RunScore]]]) -> str:
    rows = [
        [key, f"`{symptom}`", *(_shown(runs, symptom) for runs in columns.values())]
        for key, columns in played.items()
        for symptom in next(filter(None, columns.values()))[0].incident.symptoms
    ]
    return _table(("incident", "check", *_TITLES.values()), rows)


def _shown(runs: Sequence[RunScore], symptom: str) -> str:
    return f"{sum(each.shows(symptom) for each in runs)} of {len(runs)}" if runs else _NONE


def _diagnosis(runs: Sequence[RunScore]) -> str:
    counts = Counter(each.answer for each in runs if each.answer)
    wrong = sorted({each.named for each in runs if each.answer == "wrong"})
    cells = [f"{counts[answer]} {answer}" for answer in ANSWERS if counts[answer]]
    if wrong:
        cells[-1] = f"**{cells[-1]}: {', '.join(wrong)}**"
    return ", ".join(cells) or _NONE


def _late(played: Mapping[str, Mapping[Column, Sequence[RunScore]]]) -> Iterator[str]:
    """Yield the expected alerts that did not fire in time."""
    rows = []
    for key, columns in played.items():
        for column, runs in columns.items():
            counts = Counter(name for each in runs for name in each.result.missed)
            rows += [
                [key, _TITLES[column], f"`{name}`", f"{count} of {len(runs)}"]
                for name, count in sorted(counts.items())
            ]
    yield "### Expected alerts that did not fire in time\n"
    header = ("incident", "column", "alert", "runs")
    yield _table(header, rows) if rows else "None.\n"


def _others(played: Mapping[str, Mapping[Column, Sequence[RunScore]]]) -> Iterator[str]:
    """Yield the alerts that fired besides the expected ones."""
    rows = []
    for key, columns in played.items():
        counts = Counter(name for runs in columns.values() for each in runs for name in each.others)
        total = sum(map(len, columns.values()))
        names = (f"`{name}` {count}" for name, count in sorted(counts.items()))
        if counts:
            rows.append([key, str(total), ", ".join(names)])
    yield "### Other alerts\n"
    yield "Alerts that fired without being expected, with the number of runs, over all columns.\n"
    yield _table(("incident", "runs", "alerts"), rows) if rows else "None.\n"


def _confusions(column: Column, played: Mapping[str, Sequence[RunScore]]) -> Iterator[str]:
    """Yield the matrix of cause alerts, and the confusions that are not documented."""
    runs = {key: each for key, each in played.items() if each}
    if not runs:
        return
    scores = [each for of in runs.values() for each in of]
    fired = {name for each in scores for name in (*each.causes, *each.expected)} & CAUSE_NAMES
    causes = sorted(fired)
    yield f"### Cause alerts: {_TITLES[column]}\n"
    if not causes:
        yield "None fired, and none was expected.\n"
        return
    yield (
        "The number of runs in which a cause alert fired. Bold: expected; in parentheses: a "
        "documented confusion; with !: neither.\n"
    )
    yield _table(
        ("incident", *(f"`{cause}`" for cause in causes)),
        [[key, *(_confusion(of, cause) for cause in causes)] for key, of in runs.items()],
    )


def _confusion(runs: Sequence[RunScore], cause: str) -> str:
    count = sum(cause in each.causes for each in runs)
    match runs[0].mark(cause):
        case "expected":
            return f"**{count}**"
        case "documented":
            return f"({count})" if count else ""
    return f"{count} !" if count else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _percent(ratio: float | None) -> str:
    return _NONE if ratio is None else f"{ratio:.0%}"


def _seconds(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0f} s"
