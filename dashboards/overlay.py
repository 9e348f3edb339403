"""Apply a Jsonnet overlay to dashboards, and check the result.

An overlay is a function ``function(dashboard, kind)`` that returns the changed dashboard, or an
object that is merged into every dashboard as by ``std.mergePatch``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dashboards.dashboard_schema import violations
from dashboards.dashboard_set import GeneratedDashboard
from dashboards.options import Overlay
from slos.errors import InvalidFile, Problem
from slos.jsonnet import JsonnetError, evaluate

_SNIPPET = """\
local overlay = import {file};
local dashboard = {dashboard};
if std.isFunction(overlay) then
  if std.length(overlay) == 1 then overlay(dashboard) else overlay(dashboard, {kind})
else if std.isObject(overlay) then std.mergePatch(dashboard, overlay)
else error 'an overlay is a function(dashboard, kind) or an object, not ' + std.type(overlay)
"""


def applied(dashboards: Iterable[GeneratedDashboard], overlay: Overlay) -> list[GeneratedDashboard]:
    """Return the dashboards with the overlay applied.

    Raises InvalidFile if the overlay fails, or makes an invalid dashboard.
    """
    changed, problems = list[GeneratedDashboard](), list[Problem]()
    for each in dashboards:
        content = _evaluated(each, overlay)
        problems += _problems(each, content, overlay)
        changed.append(replace(each, content=content))
    if problems:
        raise InvalidFile(problems)
    return changed


def _evaluated(dashboard: GeneratedDashboard, overlay: Overlay) -> dict[str, object]:
    path = Path(overlay.file)
    source = _SNIPPET.format(
        file=json.dumps(path.name),
        dashboard=json.dumps(dashboard.content),
        kind=json.dumps(dashboard.kind),
    )
    snippet = str(path.with_name(f"<{dashboard.kind}>"))
    try:
        return json.loads(evaluate(snippet, source, overlay.libraries))  # type: ignore[no-any-return]
    except JsonnetError as error:
        known = error.file != snippet
        place = (error.file, error.line) if known else (overlay.file, 0)
        problem = Problem(
            *place,
            "",
            f"cannot be applied to the dashboard {dashboard.kind}: {error.message.rstrip('.')}",
            "return a dashboard from function(dashboard, kind), or write an object to merge",
        )
        raise InvalidFile([problem]) from None


def _problems(
    dashboard: GeneratedDashboard, content: object, overlay: Overlay
) -> Iterator[Problem]:
    for field, message, fix in violations(content, uid=dashboard.content["uid"]):
        where = f"{dashboard.kind}: {field}" if field else dashboard.kind
        yield Problem(overlay.file, 0, where, message, fix)
