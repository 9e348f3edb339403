"""A diagnosis as JSON; docs/reference/json-output.md describes the keys."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from typing import Any

from diagnosis.check_results import CheckResult
from diagnosis.diagnosis import Diagnosis, RankedCause
from promql.client import Sample

_MOST_SAMPLES = 20


def as_json(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as one JSON object."""
    return json.dumps(as_object(diagnosis), indent=2, ensure_ascii=False) + "\n"


def as_object(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as values of JSON."""
    decision, sidecar = diagnosis.decision, diagnosis.sidecar
    return {
        "service": diagnosis.service,
        "alert": diagnosis.alert or None,
        "alert_state": diagnosis.alert_state or None,
        "firing": list(diagnosis.firing),
        "objectives": [asdict(each) for each in diagnosis.objectives],
        "verdict": diagnosis.verdict,
        "because": decision.because,
        "between": list(decision.between),
        "decided_by": decision.decided_by or None,
        "decide": decision.decide or None,
        "causes": [_cause(each) for each in diagnosis.causes],
        "checks": [_check(each) for each in diagnosis.checks],
        "sidecar": asdict(sidecar) if sidecar else None,
    }


def _cause(cause: RankedCause) -> dict[str, Any]:
    playbook = cause.playbook
    return {
        "key": cause.key,
        "title": cause.title,
        "probability": round(cause.probability, 4),
        "layer": playbook.layer if playbook else None,
        "page": cause.page or None,
        "supports": list(cause.supports),
        "contradicts": list(cause.contradicts),
        "mitigation": asdict(playbook.actions[0]) if playbook else None,
        "verified_by": playbook.verified_by if playbook else None,
    }


def _check(check: CheckResult) -> dict[str, Any]:
    return {
        "check": check.key,
        "objective": check.objective or None,
        "question": check.question,
        "query": check.query,
        "healthy": check.healthy,
        "verdict": check.verdict,
        "value": check.value or None,
        "samples": [_sample(each) for each in check.samples[:_MOST_SAMPLES]],
        "reason": check.reason or None,
    }


def _sample(sample: Sample) -> dict[str, Any]:
    finite = isfinite(sample.value)
    return {"labels": dict(sample.labels), "value": sample.value if finite else None}
