"""What the sidecar and the process of its taps say to each other: a line of JSON each.

The sidecar sends :class:`TapSettings` and gets ``started`` or ``problems``.  Then it may send
``{"survey": number, "known": [names], "reported": [names]}`` any time, which is answered by a line
for every model that has changed since the previous one and a last line with the same number, and
``{"drain": seconds}`` once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from exporter.genai import GenAiSeries
from exporter.recording.goodput import GoodputObjective
from exporter.samples import Distribution, Measurement, Value
from exporter.taps.tap import TapTraffic
from slos.errors import Problem

MAX_LINE = 16 * 2**20
"""Bytes; a model with every series that there can be takes about a tenth of it."""


@dataclass(frozen=True, slots=True)
class TapSettings:
    """What the process of the taps is told to do; ``taps`` are texts as people write them.

    ``drain`` is for how many seconds connections may go on when it has to end, ``connections`` how
    many a proxy lets through at once.  Without ``certificate`` (a PEM file, as all of these)
    clients are not spoken to in TLS, without ``upstream_name`` servers are not; it is the name in
    the server's certificate, and without ``upstream_ca`` the system's CAs vouch for it.  With
    ``inject`` proxies ask engines for their timing.  ``tenants`` are those that selectors name, by
    model; an empty model is every one.
    """

    taps: Sequence[str]
    tenant_header: str = ""
    drain: float = 30.0
    connections: int = 8_000
    certificate: str = ""
    key: str = ""
    upstream_name: str = ""
    upstream_ca: str = ""
    inject: bool = False
    thresholds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    goals: Sequence[GoodputObjective] = ()
    tenants: Mapping[str, Sequence[str]] = field(default_factory=dict)
    expected: Sequence[str] = ()
    probe: str = ""
    genai: Mapping[str, Sequence[float]] = field(default_factory=dict)
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class TapState:
    """What a tap has counted; ``passed`` is by reason, ``lossy`` counts streams."""

    tap: str
    traffic: TapTraffic
    passed: Mapping[str, int]
    lossy: int
    late_gaps: int = 0


def settings_line(settings: TapSettings) -> bytes:
    """Write settings."""
    return line(asdict(settings))


def read_settings(text: bytes) -> TapSettings:
    """Read settings."""
    message = json.loads(text)
    return TapSettings(
        **{**message, "goals": tuple(GoodputObjective(**goal) for goal in message["goals"])}
    )


def line(message: Mapping[str, Any]) -> bytes:
    """Write any message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def readings_line(measurements: Sequence[Measurement]) -> bytes:
    """Write the readings of one model, of which there is one at least."""
    return line(
        {
            "model": measurements[0].model,
            "version": measurements[0].version,
            "readings": [
                [
                    measurement.signal,
                    measurement.method,
                    [[labels, _packed(value)] for labels, value in measurement.samples.items()],
                ]
                for measurement in measurements
            ],
        }
    )


def read_readings(message: Mapping[str, Any]) -> tuple[Measurement, ...]:
    """Return what :func:`readings_line` wrote."""
    return tuple(
        Measurement(
            signal,
            message["model"],
            message["version"],
            method,
            {
                tuple((name, text) for name, text in labels): _unpacked(value)
                for labels, value in samples
            },
        )
        for signal, method, samples in message["readings"]
    )


def state(tap: TapState) -> Mapping[str, Any]:
    """Return what is said of a tap."""
    return asdict(tap)


def read_state(message: Mapping[str, Any]) -> TapState:
    """Return what :func:`state` wrote."""
    return TapState(**{**message, "traffic": TapTraffic(**message["traffic"])})


def read_genai(found: Sequence[Any]) -> GenAiSeries:
    """Return a histogram of requests by endpoint."""
    signal, model, version, endpoint, error, edges, counts, total = found
    value = Distribution(tuple(edges), tuple(counts), total)
    return GenAiSeries(signal, model, version, value, endpoint, error)


def read_problems(message: Sequence[Mapping[str, Any]]) -> tuple[Problem, ...]:
    """Return problems that were written by ``asdict``."""
    return tuple(Problem(**problem) for problem in message)


def _packed(value: Value) -> Any:
    if isinstance(value, Distribution):
        return [value.edges, value.counts, value.sum]
    return value


def _unpacked(value: Any) -> Value:
    if isinstance(value, list):
        edges, counts, total = value
        return Distribution(tuple(edges), tuple(counts), total)
    return float(value)
