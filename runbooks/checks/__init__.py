"""The catalogue of diagnosis steps.

A check has a question, the PromQL that answers it, the result of a healthy service, and the
playbook that another result points to.
"""

from __future__ import annotations

from collections.abc import Mapping

from runbooks.checks.client_checks import CLIENT_CHECKS
from runbooks.checks.engine_checks import ENGINE_CHECKS
from runbooks.checks.latency_checks import LATENCY_CHECKS
from runbooks.checks.measurement_checks import MEASUREMENT_CHECKS
from runbooks.checks.objective_checks import OBJECTIVE_CHECKS
from runbooks.checks.rollout_checks import ROLLOUT_CHECKS
from runbooks.diagnosis_check import DiagnosisCheck

CHECKS: Mapping[str, DiagnosisCheck] = {
    check.key: check
    for check in (
        *OBJECTIVE_CHECKS,
        *MEASUREMENT_CHECKS,
        *ENGINE_CHECKS,
        *LATENCY_CHECKS,
        *ROLLOUT_CHECKS,
        *CLIENT_CHECKS,
    )
}
