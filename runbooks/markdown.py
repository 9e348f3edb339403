"""Markdown of runbook pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from decimal import ROUND_HALF_UP, Decimal

from promql.expr import Expr, decimal_text, pretty
from runbooks.check_queries import Subject
from runbooks.diagnosis_check import DiagnosisCheck
from runbooks.playbook import Action, Effort, Playbook
from runbooks.playbooks import PLAYBOOKS
from slos import names
from slos.durations import format_duration
from slos.plan import Plan, PlannedAlert

INDEX = "README.md"
"""The file name of a service's list of pages."""
MITIGATIONS = "Mitigations.md"
"""The file name of the mitigations that the pages of many objectives share."""
CAUSE_ALERTS = "Cause alerts"
"""The heading of the index above a service's cause alerts."""

_HOW = "Stop at the first unexpected result and mitigate; go on if that does not help."


_RESTART: Effort = "Needs a restart of the sidecar"
_RESTART_TITLE = "Restarting the sidecar"
_RESTART_TABLE = """\
What a restart costs depends on the sidecar's tap, which its arguments name:

| argument | requests | metrics |
|---|---|---|
| `--tap proxy=…` | New connections are refused until it listens again. Streams under way have \
`--tap-drain` (30s by default) to end, then they are cut. Take the instance out of traffic first, \
or send clients to the server's own port. | Every series is missing for a scrape or two; streams \
under way are not counted. |
| `--tap capture=…` | Not affected. | Every series is missing for a scrape or two; streams under \
way are not counted. |
| no `--tap` | Not affected. | Every series is missing for a scrape or two. |"""

# Underscores within words are no markup, and escaped they would break addresses.
_MARKUP = re.compile(r"[\\`*\[\]<>&|~#!]|(?<!\w)_|_(?!\w)")


def document(blocks: Iterable[str]) -> str:
    """Join blocks with empty lines, without empty blocks."""
    return "\n\n".join(block for block in blocks if block) + "\n"


def diagnosis(
    steps: Collection[DiagnosisCheck], subject: Subject, refer: Callable[[Playbook], str]
) -> Iterator[str]:
    """Yield the blocks of diagnosis steps, in order; ``refer`` links to a cause's mitigations."""
    yield "## Diagnosis"
    if len(steps) > 1:
        yield _HOW
    for number, check in enumerate(steps, 1):
        yield f"### {number}. {check.question}"
        yield promql(check.query(subject))
        otherwise = f" Otherwise: {refer(PLAYBOOKS[check.points_to])}." if check.points_to else ""
        yield f"Expect {check.healthy(subject)}: {check.rules_out}.{otherwise}"
        yield check.note


def mitigation(causes: Iterable[Playbook]) -> Iterator[str]:
    """Yield the mitigation of each cause, in blocks."""
    yield "## Mitigation"
    restarts = False
    for each in causes:
        yield from _cause(each)
        restarts |= any(action.effort == _RESTART for action in each.actions)
    if restarts:
        yield f"### {_RESTART_TITLE}"
        yield _RESTART_TABLE


def _cause(cause: Playbook) -> Iterator[str]:
    yield f"### {cause.title}"
    yield cause.meaning
    yield "\n".join(f"- {action.do}\n  *{_cost(action)}*" for action in cause.actions)


def _cost(action: Action) -> str:
    if action.effort == _RESTART:
        also = f", and {action.risk}" if action.risk else ""
        return f"{action.effort}. Risk: see [{_RESTART_TITLE}](#{anchor(_RESTART_TITLE)}){also}."
    risk = f"Risk: {action.risk}." if action.risk else "No risk."
    return f"{action.effort}. {risk}"


def owner_text(owner: str) -> str:
    """Name the owner of a service or an objective."""
    return f"**{plain(owner)}**" if owner else "the service's owner"


def escalation(owner: str) -> str:
    """State when to call the owner."""
    return (
        f"Call {owner_text(owner)} when two mitigations have not helped, or before a restart of "
        "all instances."
    )


def dashboard(plan: Plan) -> str:
    """Return where a service's dashboard is."""
    url = plan.dashboard_url.replace("(", "%28").replace(")", "%29")  # they would end the link
    file = names.dashboard_file(plan.service.service, names.ERROR_BUDGET)
    return url or f"../../dashboards/{file}"


def page_link(alert: PlannedAlert) -> str:
    """Link to the page of an alert."""
    return f"[{alert.name}]({names.runbook_file(alert.name)})"


def plain(text: str) -> str:
    """Escape a text of the SLO file: it holds no HTML, link or other markup, also in tables."""
    return _MARKUP.sub(r"\\\g<0>", text)


def link(cause: Playbook, page: str = "") -> str:
    """Link to a cause's heading, as Markdown renderers name it, on this page or another."""
    return f"[{cause.title}]({page}#{anchor(cause.title)})"


def anchor(heading: str) -> str:
    """Return the fragment by which renderers of Markdown link to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def promql(expr: Expr) -> str:
    """Show a query."""
    return f"```promql\n{pretty(expr)}\n```"


def percent(share: Decimal) -> str:
    """Write a share as a percentage."""
    return f"{decimal_text(share * 100)}%"


def about(seconds: Decimal) -> str:
    """Write a duration: to the second below 10 minutes, else to the minute."""
    unit = 1 if seconds < 600 else 60
    rounded = (seconds / unit).quantize(Decimal(1), ROUND_HALF_UP) * unit
    return format_duration(rounded)
