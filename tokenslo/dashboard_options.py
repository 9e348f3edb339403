"""Options of commands that generate dashboards.

The package of dashboards, which takes a while to load, is only imported where dashboards are made
or an option names something of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from slos.names import UID_PREFIX, dashboard_url
from slos.plan import Plan
from tokenslo.names_option import names_of

if TYPE_CHECKING:
    import dashboards

Command = TypeVar("Command", bound=Callable[..., Any])

_UID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_UID_PREFIX = re.compile(r"[A-Za-z0-9_-]{0,20}")
_TITLE_MAX, _TAG_MAX = 100, 50


def _kinds(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    import dashboards

    return names_of(text, dashboards.KINDS)


def _formats(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    if text == "json":
        return ("json",)
    import dashboards

    return names_of(text, dashboards.FORMATS)


def _folder(_: click.Context, __: click.Parameter, text: str) -> str:
    if not text.isprintable() or text != text.strip() or "/" in text or len(text) > _TITLE_MAX:
        raise click.BadParameter(
            f"{text!r} is no title of one folder. Fix: write at most {_TITLE_MAX} printable "
            "characters without /"
        )
    return text


def _datasource_uid(_: click.Context, __: click.Parameter, text: str) -> str:
    if text and not _UID.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is no uid of a data source. Fix: write the uid that Grafana shows in the "
            "URL of the data source, at most 40 letters, digits, - and _"
        )
    return text


def _uid_prefix(_: click.Context, __: click.Parameter, text: str) -> str:
    if not _UID_PREFIX.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} cannot begin uids, which have at most 40 letters, digits, - and _. "
            "Fix: write at most 20 of them"
        )
    return text


def _tags(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        if not text.strip() or not text.isprintable() or len(text) > _TAG_MAX:
            raise click.BadParameter(
                f"{text!r} is no tag. Fix: write 1 to {_TAG_MAX} printable characters"
            )
    return tuple(dict.fromkeys(texts))


_OPTIONS = (
    click.option(
        "--dashboards",
        "dashboard_kinds",
        metavar="NAMES",
        callback=_kinds,
        help="Dashboards to generate, separated by commas, such as error-budget; all by default.",
    ),
    click.option(
        "--dashboard-format",
        "dashboard_formats",
        default="json",
        show_default=True,
        metavar="FORMATS",
        callback=_formats,
        help="Formats of dashboards, separated by commas: json, provisioning (a folder for "
        "Grafana), configmap, operator (grafana-operator), v2 (schema of Grafana 12).",
    ),
    click.option(
        "--dashboard-folder",
        default="",
        metavar="TITLE",
        callback=_folder,
        help="Folder in Grafana, in formats that have one.",
    ),
    click.option(
        "--dashboard-datasource-uid",
        default="",
        metavar="UID",
        callback=_datasource_uid,
        help="Data source that is selected when a dashboard opens, instead of Grafana's default.",
    ),
    click.option(
        "--dashboard-uid-prefix",
        default=UID_PREFIX,
        show_default=True,
        metavar="TEXT",
        callback=_uid_prefix,
        help="Start of the uids of dashboards, also in links from alerts and runbooks.",
    ),
    click.option(
        "--dashboard-tag",
        "dashboard_tags",
        multiple=True,
        metavar="TAG",
        callback=_tags,
        help="Tag to add to every dashboard; repeatable.",
    ),
    click.option(
        "--dashboard-overlay",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Jsonnet file with a function(dashboard, kind), or an object to merge, that changes "
        "every dashboard.",
    ),
)


def dashboard_options(command: Command) -> Command:
    """Add the options of dashboards to a command."""
    return reduce(lambda inner, option: option(inner), reversed(_OPTIONS), command)


def options(
    chosen: Mapping[str, Any], *, libraries: Iterable[Path], namespace: str, labels: dict[str, str]
) -> dashboards.DashboardOptions:
    """Return the options of dashboards from the values of their click options."""
    import dashboards

    overlay = chosen["dashboard_overlay"]
    return dashboards.DashboardOptions(
        formats=chosen["dashboard_formats"],
        kinds=chosen["dashboard_kinds"] or dashboards.KINDS,
        folder=chosen["dashboard_folder"],
        datasource_uid=chosen["dashboard_datasource_uid"],
        uid_prefix=chosen["dashboard_uid_prefix"],
        tags=chosen["dashboard_tags"],
        overlay=dashboards.Overlay(str(overlay), tuple(libraries)) if overlay else None,
        namespace=namespace,
        labels=labels,
    )


def dashboard_link(plan: Plan, chosen: Mapping[str, Any]) -> str:
    """Return the URL of a plan's dashboard with the uid prefix."""
    service = plan.service
    return dashboard_url(service.dashboards, service.service, chosen["dashboard_uid_prefix"])
