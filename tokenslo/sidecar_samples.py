"""Scrape the samples of a sidecar that a load test compares."""

from __future__ import annotations

from collections.abc import Sequence

import click

from exporter.samples import SourceError
from exporter.sources.exposition.text_parser import ExpositionError, read
from exporter.sources.fetch import fetch
from loadtest.session import Scrape
from loadtest.sidecar_comparison import COMPARED, LATE_GAPS, Sample
from promql.client_config import DIRECT, HttpClientConfig
from promql.http_client import FetchLimits, new_session, public
from slos.signals import SIGNALS

_LIMITS = FetchLimits(10.0, 64 << 20)
_BUILD = "tokenslo_build_info"
_WANTED = {_BUILD, LATE_GAPS, *(SIGNALS[key].metric for key in (*COMPARED, "requests", "goodput"))}


def sidecar_scrape(url: str, http: HttpClientConfig | None) -> Scrape:
    """Return a function that scrapes a sidecar; it raises click.ClickException."""
    place = f"{url.removesuffix('/metrics')}/metrics"

    async def scrape() -> Sequence[Sample]:
        try:
            async with new_session(http or DIRECT) as session:
                answer = await fetch(session, "GET", place, limits=_LIMITS)
            families = read(answer.body, _WANTED)
        except (SourceError, ExpositionError) as error:
            raise click.ClickException(f"--sidecar: {error}.") from None
        if _BUILD not in families:
            raise click.ClickException(
                f"--sidecar: {public(place)} has no {_BUILD}. Fix: give the URL of a tokenslo "
                "exporter."
            )
        return [sample for family in families.values() for sample in family.samples]

    return scrape
