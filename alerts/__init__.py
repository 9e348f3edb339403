"""Prometheus rule files from SLO plans: recording rules, burn-rate and absence alerts."""

from __future__ import annotations

from alerts import budget_tests, formats, inhibition, routing, rule_tests
from alerts.formats import Options
from slos.plan import Plan

__all__ = ["Options", "files"]


_USUAL = Options()


def files(plan: Plan, *, source: str, version: str, options: Options = _USUAL) -> dict[str, str]:
    """Return what to write for a service: text by path, relative to the output folder.

    ``source`` is the SLO file as the user named it and ``version`` that of tokenslo; both go into
    each file's first line.  Tests come with Prometheus's own format, which promtool reads.
    """
    service, about = plan.service.service, {"source": source, "version": version}
    made = {
        path: text
        for form in options.formats
        for path, text in formats.files(form, plan, options, **about)
    }
    if "prometheus" in options.formats:
        made[f"alerts/{service}.test.yaml"] = rule_tests.text(plan, **about)
        made[f"alerts/{service}.budget.test.yaml"] = budget_tests.text(plan, **about)
    made[f"alerts/{service}.inhibit.yaml"] = inhibition.text(plan, **about)
    made[f"alerts/{service}.route.yaml"] = routing.text(plan, **about)
    return made
