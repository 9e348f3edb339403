"""Markdown of runbook pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal

from promql.expr import Expr, decimal_text, pretty
from runbooks.playbook import Playbook
from slos import names
from slos.durations import format_duration
from slos.plan import Plan, PlannedAlert

INDEX = "README.md"
"""The file name of a service's list of pages."""
PLAYBOOKS_FOLDER = "playbooks"
"""The folder of a service's playbooks, next to its alert pages."""
BY_SYMPTOM = "By symptom"
"""The heading of the index above a service's playbooks."""
TRIAGE = "Triage in five minutes"
DETAILS = "Details"
"""The heading below which the page of an alert may be longer than two screens."""
CAUSE_ALERTS = "Cause alerts"
"""The heading of the index above a service's cause alerts."""
SCREEN_COLUMNS = 100
"""The width for which pages are laid out; long selectors may exceed it."""

_WORD = re.compile(r"[a-z]+(?![\w.-]*\w)")
# Underscores within words are no markup, and escaped they would break addresses.
_MARKUP = re.compile(r"[\\`*\[\]<>&|~#!]|(?<!\w)_|_(?!\w)")


def document(blocks: Iterable[str]) -> str:
    """Join blocks with empty lines, without empty blocks."""
    return "\n\n".join(block for block in blocks if block) + "\n"


def screen_lines(blocks: Iterable[str]) -> int:
    """Count the lines that blocks take on a screen, each with an empty line after it."""
    return sum(
        1 + sum(max(1, -(-len(line) // SCREEN_COLUMNS)) for line in block.splitlines())
        for block in blocks
        if block
    )


def owner_text(owner: str) -> str:
    """Name the owner of a service or an objective."""
    return f"**{plain(owner)}**" if owner else "the service's owner"


def escalation(owner: str) -> str:
    """Say whom to call, and when."""
    return (
        f"Call {owner_text(owner)} when two mitigations have not helped, or before you restart all "
        "instances."
    )


def dashboard(plan: Plan) -> str:
    """Link to a service's dashboard; without an address, name its file."""
    if url := plan.dashboard_url:
        url = url.replace("(", "%28").replace(")", "%29")  # they would end the link
        return f"[Dashboard of {plan.service.service}]({url})"
    file = names.dashboard_file(plan.service.service, names.ERROR_BUDGET)
    return f"Dashboard of {plan.service.service}: `dashboards/{file}`"


def page_link(alert: PlannedAlert, folder: str = "") -> str:
    """Link to the page of an alert, in ``folder`` relative to the page with the link."""
    return f"[{alert.name}]({folder}{names.runbook_file(alert.name)})"


def playbook_file(key: str) -> str:
    """Return the path of a playbook below the folder of a service."""
    return f"{PLAYBOOKS_FOLDER}/{key.replace('_', '-')}.md"


def playbook_link(playbook: Playbook) -> str:
    """Link to a playbook from the page of an alert."""
    return f"[{playbook.title}]({playbook_file(playbook.key)})"


def neighbour_link(playbook: Playbook) -> str:
    """Link to a playbook from the page of another one."""
    return f"[{playbook.title}]({playbook_file(playbook.key).rpartition('/')[2]})"


def plain(text: str) -> str:
    """Escape a text of the SLO file: it holds no HTML, link or other markup, also in tables."""
    return _MARKUP.sub(r"\\\g<0>", text)


def anchor(heading: str) -> str:
    """Return the fragment by which renderers of Markdown link to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def promql(expr: Expr) -> str:
    """Show a query."""
    return f"```promql\n{pretty(expr, SCREEN_COLUMNS)}\n```"


def bullets(lines: Iterable[str]) -> str:
    """Write a list."""
    return "\n".join(f"- {line}" for line in lines)


def sentence(text: str) -> str:
    """Return a text with a full stop, and a capital unless it starts with a name: `vLLM`."""
    if _WORD.match(text):
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?", ":", "```")) else f"{text}."


def percent(share: Decimal) -> str:
    """Write a share as a percentage."""
    return f"{decimal_text(share * 100)}%"


def about(seconds: Decimal) -> str:
    """Write a duration: to the second below 10 minutes, else to the minute."""
    unit = 1 if seconds < 600 else 60
    rounded = (seconds / unit).quantize(Decimal(1), ROUND_HALF_UP) * unit
    return format_duration(rounded)
