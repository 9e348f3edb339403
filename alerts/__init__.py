"""Prometheus rule files from SLO plans: recording rules, burn-rate and absence alerts."""

from __future__ import annotations

from alerts import inhibition, rule_tests, rules
from slos.plan import Plan

__all__ = ["files"]


def files(plan: Plan, *, source: str, version: str) -> dict[str, str]:
    """Return what to write for a service: text by path, relative to the output folder.

    ``source`` is the SLO file as the user named it and ``version`` that of tokenslo; both go into
    each file's first line.
    """
    made = {
        "rules": rules.text(plan, source=source, version=version),
        "test": rule_tests.text(plan, source=source, version=version),
        "inhibit": inhibition.text(plan, source=source, version=version),
    }
    service = plan.service.service
    return {f"alerts/{service}.{kind}.yaml": text for kind, text in made.items()}
