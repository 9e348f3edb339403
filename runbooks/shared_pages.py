"""Pages with the steps and the mitigations that the alerts of many objectives have in common.

A service with few objectives has all of it on the page of each alert.  With many, a page keeps what
is the objective's own: its numbers, its queries, and the first mitigation for each of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

from runbooks.check_queries import Subject
from runbooks.diagnosis_check import DiagnosisCheck
from runbooks.markdown import INDEX, MITIGATIONS, diagnosis, document, link, mitigation
from runbooks.playbooks import PLAYBOOKS
from runbooks.triage import causes
from slos import names
from slos.plan import PlannedAlert

_TITLES = {
    "burn": names.BURN,
    "exhausted": names.EXHAUSTED,
    "policy": names.POLICY,
    "absent": names.ABSENT,
    "inconsistent": names.INCONSISTENT,
}


class SharedPages:
    """The shared pages of a service's runbooks, by file name."""

    def __init__(self, service: str) -> None:
        title = f"# Mitigations of {service}"
        self.files = {MITIGATIONS: document([title, *mitigation(PLAYBOOKS.values())])}
        self._steps: dict[object, str] = {}

    def diagnosis(
        self, subject: Subject, alert: PlannedAlert, steps: Sequence[DiagnosisCheck]
    ) -> Iterator[str]:
        """Yield the diagnosis and mitigation of one alert, with links to shared sections."""
        own = [step for step in steps if step.per_objective]
        common = [step for step in steps if not step.per_objective]
        yield from diagnosis(own, subject, lambda cause: cause.title)
        if common:
            page = self._steps_page(subject, alert, common)
            more = f"{len(common)} more steps" if len(common) > 1 else "1 more step"
            indicator = subject.planned.objective.indicator
            steps_link = f"[{page.removesuffix('.md')}]({page})"
            yield f"{more}, common to `{indicator}` objectives: {steps_link}."
        yield "## Mitigation"
        remedies = (
            f"- {link(cause, MITIGATIONS)}: {cause.actions[0].do}" for cause in causes(own, alert)
        )
        yield "\n".join([*remedies, f"- [All mitigations]({MITIGATIONS})"])

    def _steps_page(
        self, subject: Subject, alert: PlannedAlert, steps: list[DiagnosisCheck]
    ) -> str:
        """Return the file name of common steps; equal scopes have one page."""
        indicator, scope = subject.planned.objective.indicator, subject.scope
        selector = tuple(sorted(scope.selector.items()))
        key = (alert.kind, indicator, selector, tuple(sorted(scope.native)))
        if key not in self._steps:
            name = f"{_TITLES[alert.kind]}-{indicator}"
            if f"{name}.md" in self.files:
                name = f"{name}-{crc32(repr(key).encode()):08x}"
            self._steps[key] = f"{name}.md"
            service = subject.plan.service.service
            self.files[f"{name}.md"] = document(
                [
                    f"# {_TITLES[alert.kind]} of `{indicator}` objectives",
                    f"Steps that these alerts of {service} have in common.",
                    *diagnosis(steps, subject, lambda cause: link(cause, MITIGATIONS)),
                    "## Related",
                    f"- [All mitigations]({MITIGATIONS})\n- [All pages of {service}]({INDEX})",
                ]
            )
        return self._steps[key]
