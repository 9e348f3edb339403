"""The log's rate limit."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from exporter.log import RateLimit


@pytest.fixture
def written() -> Iterator[tuple[logging.Logger, io.StringIO, list[float]]]:
    now, stream = [0.0], io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s suppressed=%(suppressed)d"))
    handler.addFilter(RateLimit(burst=2, total=5, seconds=60, clock=lambda: now[0]))
    logger = logging.getLogger("tests.log")
    logger.addHandler(handler)
    yield logger, stream, now
    logger.removeHandler(handler)


Written = tuple[logging.Logger, io.StringIO, list[float]]


def test_similar_records_are_suppressed_and_counted(written: Written) -> None:
    logger, stream, now = written
    for number in range(100):
        logger.error("%s: attempt %d", "accept", number)
    logger.error("%s: attempt %d", "other", 0)
    now[0] = 61.0
    logger.error("%s: attempt %d", "accept", 100)
    assert stream.getvalue().splitlines() == [
        "accept: attempt 0 suppressed=0",
        "accept: attempt 1 suppressed=0",
        "other: attempt 0 suppressed=0",
        "accept: attempt 100 suppressed=98",
    ]


def test_many_different_records_are_bounded_together(written: Written) -> None:
    logger, stream, now = written
    for number in range(5000):
        logger.error(f"record {number}")
    assert len(stream.getvalue().splitlines()) == 5
    now[0] = 60.0
    logger.error("again")
    assert len(stream.getvalue().splitlines()) == 6
