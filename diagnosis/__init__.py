"""Diagnose incidents: run the checks of the playbooks, weigh their results, name the cause.

The public API::

    from diagnosis import diagnose

    found = diagnose(plan, query, alert="ChatTtftErrorBudgetBurn")
    found.verdict                  # likely, cannot_tell, no_incident or no_data
    found.cause                    # the most likely cause if the verdict is likely, else None
    found.causes[0].key            # all hypotheses, ranked: a playbook's key, healthy or unknown
    found.causes[0].probability    # they sum to 1
    found.decision.between         # the two likeliest keys; .because, .decided_by, .decide
    found.checks[0].verdict        # healthy, sick, no_data or failed; .value, .reason, .query
    as_json(found)                 # the JSON form, with the same names

``plan`` is a :class:`slos.plan.Plan`, from an SLO file or from
:func:`diagnosis.recorded_plans.recorded_plans`.  ``query``
evaluates one instant query, ``(str) -> list[Sample]`` (:class:`promql.client.Sample`), and raises
:class:`promql.client.PrometheusError`; it may rewrite the durations of an expression, and runs in
up to four threads at once.  The evidence model is ``runbooks/evidence.yaml``.
"""

from diagnosis.check_results import CheckResult
from diagnosis.diagnosis import Diagnosis, RankedCause, UnknownAlertError, diagnose
from diagnosis.report_json import as_json

__all__ = [
    "CheckResult",
    "Diagnosis",
    "RankedCause",
    "UnknownAlertError",
    "as_json",
    "diagnose",
]
