"""Choose the checks of a diagnosis, and the objectives that they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from diagnosis.alert_states import AlertStates
from diagnosis.check_results import PlannedCheck
from diagnosis.evidence import Evidence
from runbooks import triage
from runbooks.check_queries import Subject
from runbooks.checks import CHECKS
from runbooks.playbooks import PLAYBOOKS
from slos.causes import CAUSE_ALERTS
from slos.generic_events import bad_share
from slos.plan import Plan, PlannedObjective

_MOST_OBJECTIVES = 4
"""Checks with a query for each objective run for at most this number of objectives."""


def chosen_objectives(plan: Plan, alert: str, states: AlertStates) -> tuple[PlannedObjective, ...]:
    """Return the objectives of an alert; else those that fire, burn, or have no data; else all.

    The first of these kinds that has any is returned.
    """
    named = [planned for planned, each in plan.alerts() if each.name == alert]
    explained = [each for one in plan.causes if one.alert.name == alert for each in one.explains]
    firing = [each for each in plan.objectives if states.incidents(each.objective.name)]
    burning = [each for each in plan.objectives if _burns(each, states)]
    if explained and not named:
        both = [each for each in explained if each in firing or each in burning]
        return tuple(both or explained)
    silent = [each for each in plan.objectives if each.objective.name not in states.burn_rates]
    first = tuple(dict.fromkeys((*named, *firing)))
    return first or tuple(burning) or tuple(silent) or plan.objectives


def _burns(planned: PlannedObjective, states: AlertStates) -> bool:
    return states.burn_rates.get(planned.objective.name, 0.0) > 1


def planned_checks(
    plan: Plan, objectives: Sequence[PlannedObjective], alert: str, evidence: Evidence
) -> Iterator[PlannedCheck]:
    """Yield the checks of a diagnosis: in the order of the alert's page, then all others."""
    subjects = [Subject(plan, each, plan.causes_of(each)) for each in objectives]
    of_page = (*_page_checks(subjects[0], alert),)
    weighed = (key for key in CHECKS if key in evidence.likelihoods)
    for key in dict.fromkeys((*of_page, *weighed)):
        able = [each for each in subjects if _applies(key, each)]
        check = CHECKS[key]
        yield from (
            PlannedCheck(check, each)
            for each in able[: _MOST_OBJECTIVES if check.per_objective else 1]
        )


def _page_checks(subject: Subject, alert: str) -> Iterator[str]:
    """Yield the checks of an alert's page or playbook; else those of the burn-rate alert."""
    for cause in CAUSE_ALERTS:
        if cause.name == alert:
            yield from (step.check for step in PLAYBOOKS[cause.runbook].steps)
    planned = subject.planned
    own = next((each for each in planned.alerts if each.name == alert), planned.burn)
    if own.kind == "low_traffic":  # its page refers to the other
        own = planned.burn
    yield from (check.key for check in triage.checks(subject, own))


def _applies(key: str, subject: Subject) -> bool:
    return _APPLIES.get(key, _measures_signals)(subject)


def _always(_: Subject) -> bool:
    return True


def _measures_signals(subject: Subject) -> bool:
    """Whether the objective is on the sidecar's signals, not on queries of its own."""
    return bool(subject.planned.indicator.signals)


def _has_versions(subject: Subject) -> bool:
    return _measures_signals(subject) and not subject.planned.indicator.in_slices


def _has_bad_share(subject: Subject) -> bool:
    return bad_share(subject.planned.objective, ()) is not None


def _has_threshold(subject: Subject) -> bool:
    return _measures_signals(subject) and subject.planned.measures_latency


def _is_goodput(subject: Subject) -> bool:
    return subject.planned.objective.indicator == "goodput"


def _has_queries(subject: Subject) -> bool:
    return bool(subject.planned.objective.queries)


def _can_contradict(subject: Subject) -> bool:
    return subject.planned.events.inconsistent is not None


_APPLIES: Mapping[str, Callable[[Subject], bool]] = {
    "cause_alerts": lambda subject: bool(subject.causes),
    "still_burning": _always,
    "goes_on": _always,
    "more_events": _always,
    "versions": _has_versions,
    "instances": _has_bad_share,
    "threshold": _has_threshold,
    "clause": _is_goodput,
    "queries": _has_queries,
    "contradiction": _can_contradict,
}
"""For which objectives a check exists; others need objectives on the sidecar's signals."""
