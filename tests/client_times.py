"""Compare the times of a tap with those that clients measured."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import median_low

from lab.load import LoadSettings, LoadSummary, Protocol
from tests.event_log import WireLog

TOLERANCE = 0.02
"""Seconds; clients share two cores with the servers. Millisecond bounds are in test_truth.py."""


def load_of(protocol: Protocol) -> LoadSettings:
    """Return a load of one second, with completed, refused and disconnected streams."""
    return LoadSettings(
        rate=30,
        requests=40,
        max_tokens=(8, 16, 40),
        prompt_words=(20, 60),
        protocol=protocol,
        disconnect_before_first_token=0,
        failing=0,
    )


def outcomes(log: WireLog) -> dict[str, int]:
    return dict(Counter(event[3] for event in log.events if event[0] == "ended"))


def chunk_times(log: WireLog) -> list[list[float]]:
    """Return the times of each stream's chunks, in seconds since its arrival."""
    return [
        [event[1] - stream.arrived for event in log.of(number) if event[0] == "chunk"]
        for number, stream in enumerate(log.streams)
    ]


def agree(recorded: list[list[float]], seen: list[list[float]]) -> None:
    """Compare counts exactly, and medians of times: a busy CPU delays single clients."""
    assert sorted(map(len, recorded)) == sorted(map(len, seen))
    for pick in (firsts, gaps):
        assert abs(median_low(pick(recorded)) - median_low(pick(seen))) < TOLERANCE


def agree_with_load(log: WireLog, saw: LoadSummary) -> None:
    """Compare the log with the results of a load that was the only traffic."""
    expected = {
        "ok": saw.outcomes["ok"],
        "invalid": saw.outcomes["rejected"],
        "client_disconnected": saw.outcomes["disconnected_mid_stream"],
    }
    assert outcomes(log) == {outcome: count for outcome, count in expected.items() if count}
    streams = [times for times in chunk_times(log) if times]
    assert saw.ttft
    assert saw.gap
    assert saw.ttft.count == len(streams)
    assert abs(saw.ttft.p50 - median_low(firsts(streams))) < TOLERANCE
    assert abs(saw.gap.p50 - median_low(gaps(streams))) < TOLERANCE


def firsts(streams: list[list[float]]) -> list[float]:
    return [times[0] for times in streams]


def gaps(streams: list[list[float]]) -> list[float]:
    return [later - sooner for times in streams for sooner, later in pairwise(times)]
