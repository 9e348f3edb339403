"""Scrape sidecars in intervals and keep the rows of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import aiohttp

from exporter.doctor.sidecar_client import base_url, scrape_sidecar
from exporter.samples import SourceError
from promql.http_client import FetchLimits, new_session, public
from top.history import ScrapeHistory
from top.rows import Scrape, SidecarRows, sidecar_rows


class SidecarScraper:
    """Scrapes one sidecar; ``rows`` are those of its last scrape, or its error.

    ``clock`` returns monotonic seconds.
    """

    def __init__(
        self, url: str, window: float, limits: FetchLimits, clock: Callable[[], float]
    ) -> None:
        self._url, self._limits, self._clock = url, limits, clock
        self._history = ScrapeHistory(window)
        self.rows = SidecarRows(public(base_url(url)).partition("://")[2])

    async def scrape(self, session: aiohttp.ClientSession) -> None:
        """Scrape once; an error replaces the rows."""
        name = self.rows.sidecar
        try:
            report = await scrape_sidecar(session, self._url, self._limits)
        except SourceError as error:
            self.rows = replace(SidecarRows(name), error=str(error))
            return
        now = Scrape(self._clock(), report)
        self.rows = sidecar_rows(name, self._history.add(now), now)


def scrapers(
    urls: Sequence[str], window: float, limits: FetchLimits, clock: Callable[[], float]
) -> list[SidecarScraper]:
    """Return one scraper per sidecar."""
    return [SidecarScraper(url, window, limits, clock) for url in urls]


async def scrape_twice(sidecars: Sequence[SidecarScraper], interval: float) -> None:
    """Scrape all sidecars, and again after ``interval`` seconds those that answered."""
    async with new_session() as session:
        await asyncio.gather(*(one.scrape(session) for one in sidecars))
        answered = [one for one in sidecars if not one.rows.error]
        if answered:
            await asyncio.sleep(interval)
            await asyncio.gather(*(one.scrape(session) for one in answered))


async def scrape_forever(
    sidecars: Sequence[SidecarScraper], interval: float, changed: Callable[[], object]
) -> None:
    """Scrape each sidecar every ``interval`` seconds until cancelled; ``changed`` after each."""

    async def poll(one: SidecarScraper, session: aiohttp.ClientSession) -> None:
        while True:
            await one.scrape(session)
            changed()
            await asyncio.sleep(interval)

    async with new_session() as session, asyncio.TaskGroup() as group:
        for one in sidecars:
            group.create_task(poll(one, session))
