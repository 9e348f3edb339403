"""The Markdown that all runbook pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import ROUND_HALF_UP, Decimal

from promql.expr import Expr, decimal_text, pretty
from runbooks.causes import CAUSES, Action, Cause, Effort
from runbooks.checks import Check
from runbooks.questions import Subject
from slos import names
from slos.durations import format_duration
from slos.plan import Plan, PlannedAlert

INDEX = "README.md"
"""The file name of a service's list of pages."""
MITIGATIONS = "Mitigations.md"
"""The file name of the mitigations that many pages share."""

_HOW = (
    "The steps go from what is checked fastest to what takes thought. Stop at the first one that "
    "answers otherwise than expected, mitigate, and come back if it did not help."
)


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
    """Put blocks together; empty ones are left out."""
    return "\n\n".join(block for block in blocks if block) + "\n"


def diagnosis(steps: Iterable[Check], subject: Subject) -> Iterator[str]:
    """Yield the blocks of the steps to take, in order."""
    yield "## Diagnosis"
    yield _HOW
    for number, check in enumerate(steps, 1):
        yield from _step(number, check, subject)


def mitigation(causes: Iterable[Cause], page: str = "") -> Iterator[str]:
    """Yield the blocks of what to do about each cause; or links to ``page``, which has them."""
    yield "## Mitigation"
    if page:
        yield "\n".join(f"- {link(each, page)}" for each in causes)
        return
    restarts = False
    for each in causes:
        yield from _cause(each)
        restarts |= any(action.effort == _RESTART for action in each.actions)
    if restarts:
        yield f"### {_RESTART_TITLE}"
        yield _RESTART_TABLE


def _step(number: int, check: Check, subject: Subject) -> Iterator[str]:
    yield f"### {number}. {check.question}"
    yield promql(check.query(subject))
    cause = link(CAUSES[check.points_to], subject.mitigations)
    yield (f"Expect {check.healthy(subject)}. If so, {check.rules_out}; if not, see {cause}.")
    yield check.note


def _cause(cause: Cause) -> Iterator[str]:
    yield f"### {cause.title}"
    yield cause.signs
    yield "\n".join(f"- {action.do}\n  *{_cost(action)}*" for action in cause.actions)


def _cost(action: Action) -> str:
    if action.effort == _RESTART:
        also = f", and {action.risk}" if action.risk else ""
        return f"{action.effort}. Risk: see [{_RESTART_TITLE}](#{_anchor(_RESTART_TITLE)}){also}."
    risk = f"Risk: {action.risk}." if action.risk else "No risk."
    return f"{action.effort}. {risk}"


def whom(owner: str) -> str:
    """Name who answers for a service."""
    return f"**{plain(owner)}**" if owner else "the service's owner (the SLO file names none)"


def call_owner(owner: str) -> str:
    """Say when to call the owner."""
    return (
        f"Call {whom(owner)} when two mitigations have not helped, when the cause is none of the "
        "above, or before anything that restarts all instances. Say which steps were taken and "
        "what they showed; of a stuck or dead engine keep the stacks and logs."
    )


def dashboard(plan: Plan) -> str:
    """Return where a service's dashboard is."""
    url = plan.dashboard_url.replace("(", "%28").replace(")", "%29")  # they would end the link
    return url or f"../../dashboards/{plan.service.service}.json"


def page_link(alert: PlannedAlert) -> str:
    """Link to the page of an alert."""
    return f"[{alert.name}]({names.runbook_file(alert.name)})"


def plain(text: str) -> str:
    """Escape a text of the SLO file: it holds no HTML, link or other markup, also in tables."""
    return _MARKUP.sub(r"\\\g<0>", text)


def link(cause: Cause, page: str = "") -> str:
    """Link to a cause's heading, as Markdown renderers name it, on this page or another."""
    return f"[{cause.title}]({page}#{_anchor(cause.title)})"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def promql(expr: Expr) -> str:
    """Show a query."""
    return f"```promql\n{pretty(expr)}\n```"


def percent(share: Decimal) -> str:
    """Write a share as a percentage."""
    return f"{decimal_text(share * 100)}%"


def about(seconds: Decimal) -> str:
    """Write a duration as people need it: to the second below 10 minutes, else to the minute."""
    unit = 1 if seconds < 600 else 60
    rounded = (seconds / unit).quantize(Decimal(1), ROUND_HALF_UP) * unit
    return format_duration(rounded)
