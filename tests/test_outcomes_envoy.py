"""Outcomes of what a real Envoy sent when it refused, limited or ended requests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from exporter.protocol.events import ObserverSettings
from exporter.protocol.http1 import Http1Observer
from tests.captures.record_envoy import HTTP_ONLY, OVERLOAD, ROUTES
from tests.event_log import CAPTURES, WireLog, recorded, show
from tests.grpc_connection import observe_lines

Ended = tuple[str, str]
SHED: Ended = ("shed", "capacity")
IDLE: Ended = ("timeout", "idle")
TOTAL: Ended = ("timeout", "total")
OUTCOMES: Mapping[str, tuple[Ended, Ended | None]] = {
    "overflow": (SHED, SHED),
    "overload": (SHED, SHED),
    "local_limit": (("quota", "429"), ("quota", "UNAVAILABLE")),
    "global_limit": (("quota", "429"), ("quota", "UNAVAILABLE")),
    "idle_timeout": (IDLE, IDLE),
    "upstream_duration": (TOTAL, TOTAL),
    "downstream_duration": (TOTAL, TOTAL),
    "request_timeout": (("timeout", "504"), ("timeout", "UNAVAILABLE")),
    "connect_failure": (("error", "503"), ("error", "UNAVAILABLE")),
    "no_endpoints": (("error", "503"), ("error", "UNAVAILABLE")),
    "stream_timeout": (("truncated", "closed"), None),
    "stream_idle": (("truncated", "closed"), None),
}
"""Outcome and reason over HTTP/1 and, where it is recorded, over gRPC."""
CASES = [
    (f"{name}{suffix}", ended)
    for name, both in OUTCOMES.items()
    for suffix, ended in zip(("", "_grpc"), both, strict=True)
    if ended
]


@pytest.mark.parametrize(("name", "ended"), CASES)
def test_each_recorded_response_of_envoy_has_its_outcome(name: str, ended: Ended) -> None:
    lines = recorded(f"envoy_{name}")
    if name.endswith("_grpc"):
        log = observe_lines(lines)
    else:
        log = WireLog()
        show(Http1Observer(log, ObserverSettings()), lines)
    kind, _, outcome, reason, _ = log.of(0)[-1]
    assert (kind, outcome, reason) == ("ended", *ended)


def test_every_scenario_of_envoy_is_recorded_and_tested() -> None:
    files = {path.stem.removeprefix("wire_envoy_") for path in CAPTURES.glob("wire_envoy_*.jsonl")}
    assert files == {name for name, _ in CASES}
    assert set(OUTCOMES) == {*ROUTES, OVERLOAD}
    assert {name for name, (_, over_grpc) in OUTCOMES.items() if over_grpc is None} == set(
        HTTP_ONLY
    )
