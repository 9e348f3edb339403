"""Requests of a load test as CSV, one a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from loadtest.level import LevelRun
from loadtest.records import RequestRecord
from loadtest.session import LoadTestResult
from promql.http_client import public

COLUMNS = (
    "endpoint", "kind", "level", "round", "number", "measured", "prompt_words", "planned_tokens",
    "scheduled", "lag", "ttft", "scheduled_ttft", "tpot", "max_gap", "e2e", "chunks",
    "input_tokens", "output_tokens", "outcome", "reason",
)  # fmt: skip
"""Times in seconds; ``scheduled`` since the start of the measured window.  Empty: unknown."""


def as_csv(result: LoadTestResult) -> str:
    """Return all requests, the unmeasured ones included, without any text."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for side in result.sides:
        for runs in side.runs:
            for number, run in enumerate(runs):
                for record in sorted(run.records, key=lambda each: each.scheduled):
                    row = (public(side.endpoint.url), *_level(run, number), *_row(run, record))
                    writer.writerow(row)
    return file.getvalue()


def _level(run: LevelRun, number: int) -> tuple[object, ...]:
    return run.level.kind, f"{run.level.value:g}", number


def _row(run: LevelRun, record: RequestRecord) -> Iterator[object]:
    yield record.number
    yield int(record.measured)
    yield record.prompt
    yield record.planned_tokens
    yield _seconds(record.scheduled - run.begin)
    yield _seconds(record.lag)
    yield _seconds(record.ttft)
    yield _seconds(None if record.ttft is None else record.ttft + record.lag)
    yield _seconds(record.tpot)
    yield _seconds(max(record.gaps, default=None))
    yield _seconds(record.e2e)
    yield len(record.chunks)
    yield record.input_tokens
    yield record.output_tokens
    yield record.outcome
    yield record.reason


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
