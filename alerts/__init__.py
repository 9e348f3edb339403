"""Generate rule files from SLO plans: recording rules, burn-rate and absence alerts."""

from __future__ import annotations

from alerts import alertmanager, formats, inhibition, routing
from alerts.formats import Options
from slos.plan import Plan

__all__ = ["Options", "files", "promtool_test_files", "rule_files"]


_USUAL = Options()
_TESTED = "tested/"
"""The folder of rule files in Prometheus's format that only tests read."""


def files(plan: Plan, *, source: str, version: str, options: Options = _USUAL) -> dict[str, str]:
    """Return the rules of a service and their tests: text by path below the output folder.

    ``source`` is the SLO file as the user named it and ``version`` that of tokenslo; both go into
    each file's first line.  promtool tests rules in Prometheus's own format only: without that
    format, a copy of the rules in it comes with the tests.
    """
    about = {"source": source, "version": version}
    rules = rule_files(plan, options=options, **about)
    return rules | promtool_test_files(plan, options=options, **about)


def rule_files(
    plan: Plan, *, source: str, version: str, options: Options = _USUAL
) -> dict[str, str]:
    """Return rule files in every format, and the Alertmanager files; see :func:`files`."""
    service, about = plan.service.service, {"source": source, "version": version}
    made = {
        path: text
        for form in options.formats
        for path, text in formats.files(form, plan, options, **about)
    }
    made[f"alerts/{service}.inhibit.yaml"] = inhibition.text(plan, **about)
    made[f"alerts/{service}.route.yaml"] = routing.text(plan, **about)
    return made | dict(alertmanager.files(options, version=version))


def promtool_test_files(
    plan: Plan, *, source: str, version: str, options: Options = _USUAL
) -> dict[str, str]:
    """Return tests for promtool, which reads Prometheus's own format; see :func:`files`."""
    from alerts import (  # not needed for rules alone
        cause_tests,
        quota_tests,
        rule_tests,
        window_tests,
    )

    service, about = plan.service.service, {"source": source, "version": version}
    made, tested = dict[str, str](), "" if "prometheus" in options.formats else _TESTED
    if tested:
        for path, text in formats.files("prometheus", plan, options, **about):
            made[path.replace("alerts/", f"alerts/{tested}")] = text
    rules = [f"{tested}{service}.rules.yaml"]
    made[f"alerts/{service}.test.yaml"] = rule_tests.text(plan, rules, **about)
    made[f"alerts/{service}.windows.test.yaml"] = window_tests.text(plan, rules, **about)
    if plan.service.quotas:
        path = f"alerts/{service}.quotas.test.yaml"
        made[path] = quota_tests.text(plan, rules, **about)
    if plan.causes and plan.alerts_on_causes:
        rules = [f"{tested}{service}.causes.rules.yaml"]
        made[f"alerts/{service}.causes.test.yaml"] = cause_tests.text(plan, rules, **about)
    return made
