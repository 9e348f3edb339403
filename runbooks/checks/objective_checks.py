"""Checks of one objective: its error ratio, its events, and how they are distributed."""

from __future__ import annotations

from runbooks import check_queries as queries
from runbooks.checks.comparison import THAN_BEFORE
from runbooks.diagnosis_check import DiagnosisCheck, compares, no_result, within_budget

OBJECTIVE_CHECKS = (
    DiagnosisCheck(
        "cause_alerts",
        "Which cause alerts fire?",
        queries.firing_causes,
        lambda _: no_result(),
        "none of the causes that have an alert is detected",
        "",
        "The annotation `causes` of a page names them as well.",
        per_objective=True,
    ),
    DiagnosisCheck(
        "goes_on",
        "Is the incident still active?",
        queries.error_ratio,
        within_budget(),
        "it is over, and the alert ends with its short window",
        "service",
        per_objective=True,
    ),
    DiagnosisCheck(
        "still_burning",
        "Does the budget still burn?",
        queries.error_ratio,
        within_budget(),
        "the incident is over",
        "still_burning",
        per_objective=True,
    ),
    DiagnosisCheck(
        "more_events",
        "Is there more traffic than yesterday?",
        queries.traffic_ratio,
        lambda _: compares("<=", 2, THAN_BEFORE),
        "it is not the load",
        "more_traffic",
        per_objective=True,
    ),
    DiagnosisCheck(
        "versions",
        "Is one version worse than the rest?",
        queries.version_excess,
        within_budget(" for every version"),
        "no version stands out: this is no rollout",
        "bad_rollout",
        "The result is a version's bad share less that of all versions.",
        per_objective=True,
    ),
    DiagnosisCheck(
        "instances",
        "Are some instances worse than others?",
        queries.bad_share_by_instance,
        within_budget(" for every instance"),
        "it is not a single instance",
        "bad_instance",
        "If every instance is worse, the cause is not one of them.",
        per_objective=True,
    ),
    DiagnosisCheck(
        "clause",
        "Which clause fails?",
        queries.failing_clause,
        within_budget(" for every clause"),
        "no clause alone spends the budget",
        "",
        "Label clause is the first clause, in the order of the SLO file, that a bad request "
        "failed. ttft or queue: requests wait; tpot or max_gap: streams are slow; e2e: responses "
        "are long; outcome: requests fail in the server.",
        per_objective=True,
    ),
)
