"""Diagnose an incident of one service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from diagnosis.alert_states import AlertStates, read_alert_states
from diagnosis.check_results import CheckResult, Queries, Query, run_checks
from diagnosis.check_selection import chosen_objectives, planned_checks
from diagnosis.evidence import Evidence, Hypothesis, default_evidence
from diagnosis.posterior import posterior, weights
from diagnosis.sidecar_status import SidecarStatus
from diagnosis.verdict import Decision, Verdict, decide, title
from runbooks.markdown import playbook_file
from runbooks.playbook import Playbook
from runbooks.playbooks import PLAYBOOKS
from runbooks.service import folder
from slos import names
from slos.plan import Plan, PlannedObjective

SECONDS = 60.0
"""The default time limit of all queries of a diagnosis."""
_SEVERITY = ("sick", "healthy", "no_data", "failed")


class UnknownAlertError(ValueError):
    """A service has no such alert; ``known`` are those that it has."""

    def __init__(self, alert: str, known: Sequence[str]) -> None:
        self.alert, self.known = alert, tuple(known)
        super().__init__(f"there is no alert {alert}; the service has {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class RankedCause:
    """A hypothesis with its probability.

    ``playbook`` is None for ``healthy`` and ``unknown``, and ``page`` its path or URL.
    ``supports`` and ``contradicts`` are keys of the checks that count, the heaviest first.
    """

    key: str
    title: str
    probability: float
    supports: tuple[str, ...]
    contradicts: tuple[str, ...]
    playbook: Playbook | None
    page: str


@dataclass(frozen=True, slots=True)
class BurnState:
    """An objective: its burn rate over its shortest window, None without data."""

    name: str
    burn_rate: float | None
    firing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of the checks, and what follows from them.

    ``causes`` are all hypotheses, the most probable first.  ``alert`` is the requested alert, empty
    without one, and ``alert_state`` its state; ``firing`` are the alerts that fire, those of causes
    included.  ``unanswered`` is the error of a Prometheus that answers no query at all, else empty.
    """

    service: str
    alert: str
    alert_state: str
    firing: tuple[str, ...]
    objectives: tuple[BurnState, ...]
    checks: tuple[CheckResult, ...]
    causes: tuple[RankedCause, ...]
    decision: Decision
    sidecar: SidecarStatus | None = None
    unanswered: str = ""

    @property
    def verdict(self) -> Verdict:
        """The conclusion that the evidence permits."""
        return self.decision.verdict

    @property
    def cause(self) -> RankedCause | None:
        """The most likely cause, None if the verdict names none."""
        return self.causes[0] if self.verdict == "likely" else None

    def check(self, key: str) -> CheckResult | None:
        """Return the result of a check, the worst of several objectives; None if it did not run."""
        found = [each for each in self.checks if each.key == key]
        return min(found, key=lambda each: _SEVERITY.index(each.verdict), default=None)


def diagnose(
    plan: Plan,
    query: Query,
    *,
    alert: str = "",
    evidence: Evidence | None = None,
    sidecar: SidecarStatus | None = None,
    seconds: float = SECONDS,
) -> Diagnosis:
    """Run the checks of the playbooks and weigh their results.

    Without an alert, the objectives that fire or burn are diagnosed.  ``seconds`` limits the time
    of all queries.  If neither alerts nor burn rates can be queried, all checks fail with that
    reason, and only the sidecar has evidence.  Raises :class:`UnknownAlertError`.
    """
    known = alert_names(plan)
    if alert and alert not in known:
        raise UnknownAlertError(alert, known)
    model = evidence or default_evidence()
    queries = Queries(query, seconds)
    states = read_alert_states(plan, queries)
    if states.unanswered:
        queries.stop(states.unanswered)
    objectives = chosen_objectives(plan, alert, states)
    planned = [*planned_checks(plan, objectives, alert, model)]
    checks = [*states.checks(), *run_checks(planned, queries)]
    if sidecar:
        checks = [_with_sidecar(each, sidecar) for each in checks]
    results = sick_by_check(checks, model)
    probabilities = posterior(model, results, applicable(model, objectives))
    return Diagnosis(
        plan.service.service,
        alert,
        states.of(alert) if alert else "",
        states.firing,
        tuple(_objectives(objectives, states)),
        tuple(checks),
        tuple(
            _ranked(plan, key, probability, weights(model, results, key))
            for key, probability in probabilities.items()
        ),
        decide(model, probabilities, results, checks),
        sidecar,
        states.unanswered,
    )


def alert_names(plan: Plan) -> tuple[str, ...]:
    """Return the names of all alerts of a service, those on causes last."""
    own = (alert.name for _, alert in plan.alerts())
    return tuple(dict.fromkeys((*own, *(each.alert.name for each in plan.causes))))


def sick_by_check(checks: Sequence[CheckResult], evidence: Evidence) -> dict[str, bool]:
    """Return whether each weighed check with data is sick, for any objective."""
    found: dict[str, bool] = {}
    for each in checks:
        if each.has_data and each.key in evidence.likelihoods:
            found[each.key] = found.get(each.key, False) or each.verdict == "sick"
    return found


def applicable(evidence: Evidence, objectives: Sequence[PlannedObjective]) -> tuple[str, ...]:
    """Return the hypotheses that can explain objectives of these kinds."""
    kinds = {"signals" if each.indicator.signals else "queries" for each in objectives}

    def applies(hypothesis: Hypothesis) -> bool:
        return hypothesis.objectives == "any" or hypothesis.objectives in kinds

    return tuple(key for key, each in evidence.hypotheses.items() if applies(each))


def page(plan: Plan, playbook: str) -> str:
    """Return the URL of a playbook's page, or its path below the output of ``generate``."""
    file, base = playbook_file(playbook), plan.service.runbooks
    if base and "{alert}" not in base:
        return names.runbook_url(base, plan.service.service, file.removesuffix(".md"))
    return f"{folder(plan.service.service)}/{file}"


def _objectives(objectives: Sequence[PlannedObjective], states: AlertStates) -> Iterator[BurnState]:
    for planned in objectives:
        name = planned.objective.name
        yield BurnState(name, states.burn_rates.get(name), states.incidents(name))


def _ranked(plan: Plan, key: str, probability: float, found: dict[str, float]) -> RankedCause:
    heaviest = sorted(found, key=lambda check: (-abs(found[check]), check))
    return RankedCause(
        key,
        title(key),
        probability,
        tuple(check for check in heaviest if found[check] > 0),
        tuple(check for check in heaviest if found[check] < 0),
        PLAYBOOKS.get(key),
        page(plan, key) if key in PLAYBOOKS else "",
    )


def _with_sidecar(check: CheckResult, sidecar: SidecarStatus) -> CheckResult:
    """Add what the sidecar reports to a check without data; its failures make a check sick."""
    if check.has_data:
        return check
    if found := sidecar.failures(check.key):
        return replace(check, verdict="sick", reason=f"the sidecar reports {'; '.join(found)}")
    reasons = [why for metric, why in sidecar.unavailable.items() if metric in check.query]
    if not reasons:
        return check
    return replace(check, reason=f"{check.reason}; the sidecar reports: {reasons[0]}")
