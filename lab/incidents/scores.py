"""Score results of incidents: alerts in time, pages, diagnoses, confusions of cause alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, get_args

from lab.incidents.incident import Column, Incident
from lab.incidents.result import ColumnResult, FiredAlert, IncidentResult
from slos.causes import CAUSE_ALERTS

Answer = Literal["right", "cannot tell", "wrong"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)
Mark = Literal["expected", "documented", "unexpected"]

CAUSE_NAMES = frozenset(alert.name for alert in CAUSE_ALERTS)
_CAUSES_WITHOUT_PAGE = frozenset(alert.name for alert in CAUSE_ALERTS if alert.tier != "page")


@dataclass(frozen=True, slots=True)
class RunScore:
    """What one column made of one run; times in seconds of the lab after the onset.

    ``first`` is the first page or ticket since the onset, and without any the first expected alert.
    ``false_page`` is a page before the
    onset, or in a harmless incident.  ``answer`` is None without a diagnosis.  ``named`` is the
    cause or state that the diagnosis names with confidence.  ``rank`` is the place of the first
    right cause in the diagnosis, None if the incident has none in this column.
    """

    incident: Incident
    seed: int
    column: Column
    result: ColumnResult
    first: FiredAlert | None
    paged: bool
    false_page: bool
    answer: Answer | None
    named: str
    rank: int | None

    @property
    def expected(self) -> tuple[str, ...]:
        """The names of the alerts that must fire in this column."""
        return tuple(each.name for each in self.incident.alerts if self.column in each.columns)

    @property
    def causes(self) -> tuple[str, ...]:
        """The names of the cause alerts that fired."""
        return tuple(sorted({each.name for each in self.result.alerts} & CAUSE_NAMES))

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the alerts that fired without being expected."""
        return tuple(sorted({each.name for each in self.result.alerts} - {*self.expected}))

    def shows(self, symptom: str) -> bool:
        """Whether the diagnosis found a check sick."""
        return any(
            (each["check"], each["verdict"]) == (symptom, "sick")
            for each in self.result.diagnosis.get("checks", ())
        )

    def mark(self, cause: str) -> Mark:
        """Classify a cause alert that fired in this run.

        One that the incident expects in another column only is documented.
        """
        if cause in self.expected:
            return "expected"
        documented = {*self.incident.confusions, *(each.name for each in self.incident.alerts)}
        return "documented" if cause in documented else "unexpected"


def must_page(incident: Incident) -> bool:
    """Whether an expected alert, in any column, is a page: no cause alert of lower urgency."""
    return any(each.name not in _CAUSES_WITHOUT_PAGE for each in incident.alerts)


def score(incident: Incident, result: IncidentResult) -> list[RunScore]:
    """Score a run, once for each of its columns."""
    return [_score(incident, result.seed, *each) for each in result.columns.items()]


def _score(incident: Incident, seed: int, column: Column, result: ColumnResult) -> RunScore:
    since = [each for each in result.alerts if each.seconds >= 0]
    notified = [each for each in since if each.severity in ("page", "ticket")]
    expected = {each.name for each in incident.alerts if column in each.columns}
    pages = [each.seconds for each in result.alerts if each.severity == "page"]
    right = incident.diagnosis.get(column, ())
    answer, named = _answer(result.diagnosis, right)
    keys = [cause["key"] for cause in result.diagnosis.get("causes", ())]
    ranks = [keys.index(key) + 1 for key in right if key in keys]
    return RunScore(
        incident=incident,
        seed=seed,
        column=column,
        result=result,
        first=min(
            notified or [each for each in since if each.name in expected],
            key=lambda each: (each.seconds, each.severity),
            default=None,
        ),
        paged=any(seconds >= 0 for seconds in pages),
        false_page=any(seconds < 0 or not incident.harmful for seconds in pages),
        answer=answer,
        named=named,
        rank=min(ranks, default=len(keys) + 1) if right else None,
    )


def _answer(diagnosis: Any, right: Sequence[str]) -> tuple[Answer | None, str]:
    """Compare the verdict with the right causes; without one, naming none is right."""
    match diagnosis.get("verdict"):
        case None:
            return None, ""
        case "likely":
            named = str(diagnosis["causes"][0]["key"])
            return "right" if named in right else "wrong", named
        case "no_incident":
            return "wrong" if right else "right", "no incident"
    return "cannot tell", ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Scores of many runs in one column.

    ``true_pages`` are harmful runs with a page since the onset, ``false_pages`` runs with a false
    page, ``missed_pages`` harmful runs without a page although the incident must page.
    ``detection`` are the seconds to the first page or ticket of harmful runs.  ``ranked`` are runs
    with a right cause, ``top1`` and ``top2`` those with it among the first.  ``incidents`` have a
    right cause, and ``top1_most`` of them had it first in more than half of their runs.
    """

    runs: int
    expected_alerts: int
    alerts_in_time: int
    true_pages: int
    false_pages: int
    missed_pages: int
    detection: tuple[float, ...]
    answers: Counter[Answer]
    ranked: int
    top1: int
    top2: int
    incidents: int
    top1_most: int

    @property
    def precision(self) -> float | None:
        """The share of true ones among the runs with pages; None without any."""
        return _ratio(self.true_pages, self.true_pages + self.false_pages)

    @property
    def recall(self) -> float | None:
        """The share of runs with a page among those that must page; None without any."""
        return _ratio(self.true_pages, self.true_pages + self.missed_pages)

    @property
    def median_detection(self) -> float | None:
        """The median seconds to the first page or ticket."""
        return median(self.detection) if self.detection else None


def totals(scores: Iterable[RunScore]) -> Totals:
    """Add up scores."""
    scored = list(scores)
    ranks = [each.rank for each in scored if each.rank is not None]
    first: dict[str, list[bool]] = {}
    for each in scored:
        if each.rank is not None:
            first.setdefault(each.incident.key, []).append(each.rank == 1)
    harmful = [each for each in scored if each.incident.harmful]
    return Totals(
        runs=len(scored),
        expected_alerts=sum(len(each.expected) for each in scored),
        alerts_in_time=sum(len(each.expected) - len(each.result.missed) for each in scored),
        true_pages=sum(each.paged for each in harmful),
        false_pages=sum(each.false_page for each in scored),
        missed_pages=sum(must_page(each.incident) and not each.paged for each in harmful),
        detection=tuple(
            each.first.seconds for each in harmful if each.first and each.first.severity != "info"
        ),
        answers=Counter(each.answer for each in scored if each.answer),
        ranked=len(ranks),
        top1=sum(rank == 1 for rank in ranks),
        top2=sum(rank <= 2 for rank in ranks),
        incidents=len(first),
        top1_most=sum(2 * sum(of) > len(of) for of in first.values()),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
