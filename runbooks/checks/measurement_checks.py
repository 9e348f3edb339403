"""Checks of the measurement: sidecars, sources, records."""

from __future__ import annotations

from runbooks import check_queries, service_queries
from runbooks.diagnosis_check import DiagnosisCheck, compares, no_result, service_check
from slos.queries import INSTANCE

MEASUREMENT_CHECKS = (
    service_check(
        "sources",
        "Does the sidecar still scrape the server?",
        service_queries.least("tokenslo_source_up", ("source", INSTANCE)),
        compares("==", 1, " for every source"),
        "the numbers below are current",
        "source_down",
        "While a source is down its series are withdrawn, so nothing below shows old values. "
        "Sidecars of other services may be listed too.",
    ),
    service_check(
        "scraped",
        "Does Prometheus scrape the sidecar?",
        service_queries.sidecars,
        compares(">=", 1, ": one for every sidecar"),
        "the sidecar runs and is scraped",
        "source_down",
    ),
    service_check(
        "source_errors",
        "Why do the sidecar's scrapes fail?",
        service_queries.scrape_errors,
        compares("==", 0),
        "all scrapes succeed",
        "source_down",
        "Label kind is the error: a refused connection is a dead server, a timeout a stuck or "
        "overloaded one.",
    ),
    service_check(
        "lost",
        "Are records of the engine dropped?",
        service_queries.lost_records,
        compares("==", 0),
        "the sidecar reads every record",
        "records_lost",
        "No result: no source of the service can count lost records.",
    ),
    DiagnosisCheck(
        "estimate",
        "Is the objective measured, or estimated?",
        check_queries.estimated_signals,
        lambda _: no_result(": every signal of this objective is exact"),
        "the numbers are exact",
        "estimated",
        "The label method names how the signal is obtained.",
    ),
    DiagnosisCheck(
        "unavailable",
        "Does the sidecar report the signal as unavailable?",
        check_queries.unavailable_signals,
        lambda _: no_result(),
        "the sidecar has a method for every signal of this objective",
        "signal_unavailable",
        "The status page of the sidecar (its address without /metrics) has the reason and the fix.",
    ),
    DiagnosisCheck(
        "selected",
        "Does the signal exist under other labels only?",
        check_queries.other_models,
        lambda _: no_result(),
        "the SLO file selects labels that exist, or no server provides the signal",
        "wrong_selector",
        "The models and versions that have the signal while the selected one has not.",
    ),
    DiagnosisCheck(
        "queries",
        "Does the query of all events have a result?",
        check_queries.event_series,
        lambda _: compares(">=", 1),
        "the events are counted again",
        "no_result",
        "If not, query its metrics one by one, first without labels.",
        per_objective=True,
    ),
    DiagnosisCheck(
        "contradiction",
        "Is the SLI still inconsistent?",
        check_queries.inconsistency,
        lambda _: no_result(),
        "bad and total count the same events again",
        "contradiction",
        per_objective=True,
    ),
    DiagnosisCheck(
        "threshold",
        "Which instances count requests but not against the threshold?",
        check_queries.instances_without_threshold,
        lambda _: no_result(),
        "every sidecar evaluates requests against the threshold",
        "boundary_missing",
        per_objective=True,
    ),
)
