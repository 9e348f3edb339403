"""Check the configurations that a live Triton serves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import quote

import aiohttp

from admission.plan import AdmissionPlan
from config_checks.checking import check
from config_checks.configuration import Configuration
from config_checks.findings import ConfigReport
from config_checks.loading import served_model
from config_checks.rendering import place
from config_checks.table import CHECKS
from config_checks.triton_model import TritonModel
from exporter.samples import SourceError
from exporter.sources.fetch import fetch, parse_json
from exporter.sources.triton import model_repository
from promql.http_client import FetchLimits, new_session, public
from slos.model import Service


async def check_served(
    url: str,
    services: Sequence[Service],
    limits: FetchLimits,
    plan: AdmissionPlan | None = None,
) -> ConfigReport | None:
    """Check the ready models of the Triton at ``url``; None if it does not list them.

    ``plan`` has the limits of a measured capacity.
    """
    async with new_session() as session:
        index = f"{url}/v2/repository/index"
        try:
            response = await fetch(session, "POST", index, limits=limits, body=b"{}")
            listed = model_repository.index(parse_json(response, index))
        except SourceError:
            return None
        names = sorted({entry.name for entry in listed if entry.ready})
        found = await asyncio.gather(*(_served(session, url, name, limits) for name in names))
    models = tuple(model for model in found if model is not None)
    notes = [
        f"{name}: its configuration could not be read"
        for name, model in zip(names, found, strict=True)
        if model is None
    ]
    config = Configuration(models=models, services=tuple(services), plan=plan)
    return check(config, notes=notes)


async def _served(
    session: aiohttp.ClientSession, url: str, name: str, limits: FetchLimits
) -> TritonModel | None:
    """Return a model; None if its configuration cannot be read."""
    where = f"{url}/v2/models/{quote(name, safe='')}/config"
    try:
        document = parse_json(await fetch(session, "GET", where, limits=limits), where)
    except SourceError:
        return None
    return served_model(public(where), name, document)


def unseen(reason: str) -> ConfigReport:
    """Return the report on a server without a visible configuration."""
    return ConfigReport((), tuple((id_, reason) for id_ in CHECKS))


def configuration_rows(report: ConfigReport) -> list[tuple[str, str]]:
    """Return severity and text of each finding, then the checks that need files."""
    rows: list[tuple[str, str]] = []
    for each in report.findings:
        row = CHECKS[each.check]
        rows.append((each.severity, f"{each.check} {row.name}: {each.evidence} ({place(each)})"))
        rows.append(("", f"Threatens {', '.join(each.objectives)}: {row.costs}. Fix: {row.fix}"))
    rows += [("", note) for note in report.notes]
    hidden = list(dict.fromkeys(id_ for id_, _ in report.unchecked))
    fix = "run `tokenslo check-config` on the model repository, the options and the manifests"
    shown = "all checks" if len(hidden) == len(CHECKS) else ", ".join(hidden)
    rows.append(("", f"Not visible remotely: {shown}. Fix: {fix}"))
    return rows
