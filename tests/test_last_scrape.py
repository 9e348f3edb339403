"""The scrape that the sidecar waits for before it exits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic

import pytest

from exporter.samples import UNLABELLED
from exporter.store.view import SignalState, View, grouped_by_model
from exporter.web.last_scrape import LastScrape

EMPTY = View({}, (), (), {})
ONE = replace(
    EMPTY,
    by_model=grouped_by_model(
        [SignalState("requests", "chat", "1", "", "exact", {UNLABELLED: 1.0})]
    ),
)


def scraped(*times: float) -> LastScrape:
    """Return scrapes at these times, without requests."""
    given = iter(times)
    last = LastScrape(lambda: next(given))
    for _ in times:
        last.rendered(EMPTY)
    return last


async def test_waits_for_a_scrape_with_the_new_requests() -> None:
    last = LastScrape()
    for _ in range(2):
        last.rendered(EMPTY)
    waiting = asyncio.create_task(last.wait(lambda: ONE, 60.0))
    await asyncio.sleep(0.05)
    last.rendered(EMPTY)  # a response that was begun before
    await asyncio.sleep(0.05)
    assert not waiting.done()
    last.rendered(ONE)
    await asyncio.wait_for(waiting, 0.5)


@pytest.mark.parametrize(
    ("last", "view"),
    [
        (scraped(0.0, 15.0), EMPTY),  # nothing new
        (scraped(), ONE),
        (scraped(0.0), ONE),  # no interval
    ],
)
async def test_returns_at_once_without_new_requests_or_a_scraper(
    last: LastScrape, view: View
) -> None:
    await asyncio.wait_for(last.wait(lambda: view, 60.0), 0.5)


@pytest.mark.parametrize(
    ("last", "limit", "seconds"),
    [
        (scraped(0.0, 15.0), 0.1, 0.1),  # the rest of the drain
        (scraped(0.0, 0.7), 60.0, 1.4),  # two intervals
        (scraped(0.0, 0.1), 60.0, 1.0),
    ],
)
async def test_waits_for_two_intervals_at_most(
    last: LastScrape, limit: float, seconds: float
) -> None:
    began = monotonic()
    await last.wait(lambda: ONE, limit)
    assert seconds <= monotonic() - began + 0.01
