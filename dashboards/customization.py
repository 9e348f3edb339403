"""Apply a user's changes to generated dashboards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dashboards import overlay
from dashboards.dashboard_set import KINDS, GeneratedDashboard
from dashboards.options import DashboardOptions
from dashboards.panels import Json
from slos.names import UID_PREFIX, dashboard_uid

_UID_IN_URL = re.compile(r"(?<=/d/)[^/?#]+")


def customized(
    dashboards: Iterable[GeneratedDashboard], service: str, options: DashboardOptions
) -> list[GeneratedDashboard]:
    """Apply uid prefix, data source, tags and overlay, in this order.

    Raises InvalidFile if the overlay makes an invalid dashboard.
    """
    uids = {
        dashboard_uid(of, kind): dashboard_uid(of, kind, options.uid_prefix)
        for of in (service, "")
        for kind in KINDS
    }
    changed = []
    for each in dashboards:
        content = each.content
        if options.uid_prefix != UID_PREFIX:
            content = _with_uids(content, uids, options.uid_prefix)
            content["uid"] = uids[content["uid"]]
        if options.datasource_uid:
            _select_datasource(content, options.datasource_uid)
        tags = content.get("tags", [])
        content["tags"] = [*tags, *(tag for tag in options.tags if tag not in tags)]
        changed.append(replace(each, content=content))
    return overlay.applied(changed, options.overlay) if options.overlay else changed


def _with_uids(value: Json, uids: Mapping[str, str], prefix: str) -> Json:
    """Change the uids in the URLs of links; one with a variable keeps its end."""

    def changed(found: re.Match[str]) -> str:
        own = found[0]
        ours = own.startswith(UID_PREFIX)
        return uids.get(own, prefix + own.removeprefix(UID_PREFIX) if ours else own)

    if isinstance(value, str):
        return _UID_IN_URL.sub(changed, value)
    if isinstance(value, dict):
        return {key: _with_uids(item, uids, prefix) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_uids(item, uids, prefix) for item in value]
    return value


def _select_datasource(content: dict[str, Json], uid: str) -> None:
    """Select a data source when the dashboard opens; its variable still offers the others."""
    for variable in content["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["current"] = {"selected": True, "text": uid, "value": uid}
