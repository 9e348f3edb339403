"""Prometheus rule files from SLO plans: recording rules, burn-rate and absence alerts."""

from __future__ import annotations

from alerts import budget_tests, formats, inhibition, routing, rule_tests
from alerts.formats import Options
from slos.plan import Plan

__all__ = ["Options", "files", "promtool_test_files", "rule_files"]


_USUAL = Options()


def files(plan: Plan, *, source: str, version: str, options: Options = _USUAL) -> dict[str, str]:
    """Return the rules of a service and their tests: text by path below the output folder.

    ``source`` is the SLO file as the user named it and ``version`` that of tokenslo; both go into
    each file's first line.
    """
    about = {"source": source, "version": version}
    rules = rule_files(plan, options=options, **about)
    return rules | promtool_test_files(plan, options=options, **about)


def rule_files(
    plan: Plan, *, source: str, version: str, options: Options = _USUAL
) -> dict[str, str]:
    """Return rule files in every format, and what Alertmanager needs; see :func:`files`."""
    service, about = plan.service.service, {"source": source, "version": version}
    made = {
        path: text
        for form in options.formats
        for path, text in formats.files(form, plan, options, **about)
    }
    made[f"alerts/{service}.inhibit.yaml"] = inhibition.text(plan, **about)
    made[f"alerts/{service}.route.yaml"] = routing.text(plan, **about)
    return made


def promtool_test_files(
    plan: Plan, *, source: str, version: str, options: Options = _USUAL
) -> dict[str, str]:
    """Return tests for promtool, which reads Prometheus's own format; see :func:`files`."""
    if "prometheus" not in options.formats:
        return {}
    service, about = plan.service.service, {"source": source, "version": version}
    return {
        f"alerts/{service}.test.yaml": rule_tests.text(plan, **about),
        f"alerts/{service}.budget.test.yaml": budget_tests.text(plan, **about),
    }
