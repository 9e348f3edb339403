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
from dashboards.panels import Json
from slos.errors import InvalidFile, Problem
from slos.jsonnet import MAX_BYTES, JsonnetError, evaluate

_SNIPPET = """\
local overlay = import {file};
local applied(dashboard, kind) =
  if std.isFunction(overlay) then
    if std.length(overlay) == 1 then overlay(dashboard) else overlay(dashboard, kind)
  else if std.isObject(overlay) then std.mergePatch(dashboard, overlay)
  else error 'an overlay is a function(dashboard, kind) or an object, not ' + std.type(overlay);
[applied(each.dashboard, each.kind) for each in {dashboards}]
"""
_BATCH = MAX_BYTES // 2
"""Bytes of dashboards that one evaluation changes: its output is limited."""


def applied(dashboards: Iterable[GeneratedDashboard], overlay: Overlay) -> list[GeneratedDashboard]:
    """Return the dashboards with the overlay applied.

    Raises InvalidFile if the overlay fails, or makes an invalid dashboard.
    """
    changed, problems = list[GeneratedDashboard](), list[Problem]()
    for batch in _batches(dashboards):
        for each, content in zip(batch, _contents(batch, overlay), strict=True):
            problems += _problems(each, content, overlay)
            changed.append(replace(each, content=content))
    if problems:
        raise InvalidFile(problems)
    return changed


def _batches(dashboards: Iterable[GeneratedDashboard]) -> Iterator[list[GeneratedDashboard]]:
    used, batch = 0, list[GeneratedDashboard]()
    for each in dashboards:
        size = len(json.dumps(each.content))
        if batch and used + size > _BATCH:
            yield batch
            used, batch = 0, []
        batch.append(each)
        used += size
    yield batch


def _contents(batch: list[GeneratedDashboard], overlay: Overlay) -> list[dict[str, Json]]:
    try:
        return _evaluated(batch, overlay)
    except JsonnetError:
        return [_contents_of_one(each, overlay) for each in batch]


def _contents_of_one(dashboard: GeneratedDashboard, overlay: Overlay) -> dict[str, Json]:
    try:
        (content,) = _evaluated([dashboard], overlay)
    except JsonnetError as error:
        known = error.file != _snippet(overlay)
        place = (error.file, error.line) if known else (overlay.file, 0)
        problem = Problem(
            *place,
            "",
            f"cannot be applied to the dashboard {dashboard.kind}: {error.message.rstrip('.')}",
            "return a dashboard from function(dashboard, kind), or write an object to merge",
        )
        raise InvalidFile([problem]) from None
    return content


def _evaluated(batch: list[GeneratedDashboard], overlay: Overlay) -> list[dict[str, Json]]:
    source = _SNIPPET.format(
        file=json.dumps(Path(overlay.file).name),
        dashboards=json.dumps([{"kind": one.kind, "dashboard": one.content} for one in batch]),
    )
    text = evaluate(_snippet(overlay), source, overlay.libraries)
    return json.loads(text)  # type: ignore[no-any-return]


def _snippet(overlay: Overlay) -> str:
    """Return the name of the code that imports the overlay, in the folder of its imports."""
    return str(Path(overlay.file).with_name("<overlay>"))


def _problems(
    dashboard: GeneratedDashboard, content: object, overlay: Overlay
) -> Iterator[Problem]:
    for field, message, fix in violations(content, uid=dashboard.content["uid"]):
        where = f"{dashboard.kind}: {field}" if field else dashboard.kind
        yield Problem(overlay.file, 0, where, message, fix)
