"""Which alerts of a service fire, and how fast its budgets burn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from diagnosis.check_results import CheckResult, CheckVerdict, Queries
from diagnosis.evidence import ABSENT_ALERTS, ALERTS
from promql.client import QueryResult, Sample
from promql.expr import Expr, Matcher, equal, vector
from slos import names
from slos.causes import cause_labels
from slos.plan import Plan
from slos.queries import burn_rate

_BURNING = (names.BURN, names.LOW_TRAFFIC, names.INCONSISTENT)
"""Ends of the names of alerts on bad events; others report a spent budget."""


@dataclass(frozen=True, slots=True)
class AlertStates:
    """Alerts of a service that fire or are pending, and burn rates by objective.

    ``alerts`` are samples of ALERTS, of objectives and of causes.  ``burn_rates`` are those of the
    shortest window, without objectives that have none.  ``failure`` is why Prometheus did not
    answer the query of alerts, and ``unanswered`` the same if it did not answer those of burn rates
    either.
    """

    alerts: tuple[Sample, ...]
    burn_rates: Mapping[str, float]
    query: str
    failure: str = ""
    warnings: tuple[str, ...] = ()
    unanswered: str = ""

    def names(self, state: str) -> tuple[str, ...]:
        """Return the names of the alerts in a state."""
        named = (
            each.labels.get("alertname", "")
            for each in self.alerts
            if each.labels.get("alertstate") == state
        )
        return tuple(dict.fromkeys(named))

    @property
    def firing(self) -> tuple[str, ...]:
        """The names of the alerts that fire."""
        return self.names("firing")

    def of(self, alert: str) -> str:
        """Return the state of an alert: ``firing``, ``pending``, ``not firing`` or ``unknown``."""
        if self.failure:
            return "unknown"
        states = (state for state in ("firing", "pending") if alert in self.names(state))
        return next(states, "not firing")

    def incidents(self, objective: str) -> tuple[str, ...]:
        """Return the names of an objective's alerts that fire because of an incident."""
        named = (
            each.labels["alertname"]
            for each in self._firing(*_BURNING, names.ABSENT)
            if each.labels["slo"] == objective
        )
        return tuple(dict.fromkeys(named))

    def checks(self) -> tuple[CheckResult, ...]:
        """Return the alerts of objectives as results of checks."""
        return (
            self._check(ALERTS, "Do alerts on bad events fire?", self._firing(*_BURNING)),
            self._check(
                ABSENT_ALERTS, "Do alerts on absent metrics fire?", self._firing(names.ABSENT)
            ),
        )

    def _firing(self, *ends: str) -> tuple[Sample, ...]:
        """Return the firing alerts of objectives whose name ends like this."""
        return tuple(
            each
            for each in self.alerts
            if each.labels.get("alertstate") == "firing"
            and "slo" in each.labels
            and each.labels.get("alertname", "").endswith(ends)
        )

    def _check(self, key: str, question: str, found: tuple[Sample, ...]) -> CheckResult:
        verdict: CheckVerdict = "sick" if found else "healthy"
        reason = self.failure
        if self.failure:
            verdict = "failed"
        elif self.warnings and not found:
            verdict, reason = "no_data", f"the result may be partial: {'; '.join(self.warnings)}"
        elif not found and not self.burn_rates:
            verdict, reason = "no_data", "no objective has a recent error ratio"
        return CheckResult(key, question, "", self.query, "no result", verdict, found, reason)


def read_alert_states(plan: Plan, queries: Queries) -> AlertStates:
    """Read alerts and burn rates."""
    service = plan.service.service
    of_objectives = vector("ALERTS", (*equal({"service": service}), Matcher("slo", "!=", "")))
    has_cause = Matcher(names.CAUSE_LABEL, "!=", "")
    of_causes = vector("ALERTS", (*equal(cause_labels(plan.service.selector)), has_cause))
    alerts: Expr = of_objectives.or_(of_causes)
    burning = [burn_rate(window, service) for window in _windows(plan)]
    answers = queries.run(map(str, (alerts, *burning)))
    first, *rates = (answers[str(each)] for each in (alerts, *burning))
    shortest = {each.objective.name: each.windows[0] for each in plan.objectives}
    found: dict[str, float] = {}
    for window, answer in zip(_windows(plan), rates, strict=True):
        for sample in answer if isinstance(answer, QueryResult) else ():
            objective = sample.labels.get("slo", "")
            if shortest.get(objective) == window and isfinite(sample.value):
                found[objective] = max(sample.value, found.get(objective, 0.0))
    known = tuple(first) if isinstance(first, QueryResult) else ()
    failure, warnings = (first, ()) if isinstance(first, str) else ("", first.warnings)
    unanswered = "" if any(isinstance(each, QueryResult) for each in rates) else failure
    return AlertStates(known, found, str(alerts), failure, warnings, unanswered)


def _windows(plan: Plan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.windows[0] for each in plan.objectives))
