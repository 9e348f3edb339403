"""Messages between the sidecar and the tap process: one line of JSON each.

The sidecar sends :class:`TapSettings` and gets ``started`` or ``problems``.  Then it may send
``{"snapshot": number, "known": [names], "reported": [names]}`` at any time.  The reply is a
line for each model that changed since the previous reply, and a last line with the same number.
``{"drain": seconds}`` is sent at most once.
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
"""Bytes; the largest possible model takes about a tenth of it."""


@dataclass(frozen=True, slots=True)
class TapSettings:
    """Settings of the tap process; ``taps`` are specs as given on the command line.

    ``drain`` is the time in seconds that connections have to end, ``connections`` the limit of a
    proxy.  ``certificate``, ``key`` and ``upstream_ca`` are PEM files.  Clients use TLS only with
    ``certificate``, servers only with ``upstream_name``, the name in the server's certificate;
    without ``upstream_ca`` the system's CAs verify it.  With ``inject`` proxies request engine
    timing.  ``tenants`` are those that selectors name, by model; an empty model means all.
    ``prompt_classes`` are upper bounds in tokens.
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
    objectives: Sequence[GoodputObjective] = ()
    tenants: Mapping[str, Sequence[str]] = field(default_factory=dict)
    expected: Sequence[str] = ()
    probe: str = ""
    genai: Mapping[str, Sequence[float]] = field(default_factory=dict)
    prompt_classes: Sequence[int] = ()
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class TapState:
    """Counters of a tap.

    ``skipped`` counts requests and connections by reason, ``lossy`` counts streams.
    """

    tap: str
    traffic: TapTraffic
    skipped: Mapping[str, int]
    lossy: int
    late_gaps: int = 0


def settings_line(settings: TapSettings) -> bytes:
    """Encode settings."""
    return line(asdict(settings))


def read_settings(text: bytes) -> TapSettings:
    """Decode settings."""
    message = json.loads(text)
    objectives = tuple(GoodputObjective(**one) for one in message["objectives"])
    prompt_classes = tuple(message["prompt_classes"])
    return TapSettings(**{**message, "objectives": objectives, "prompt_classes": prompt_classes})


def line(message: Mapping[str, Any]) -> bytes:
    """Encode a message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def measurements_line(measurements: Sequence[Measurement]) -> bytes:
    """Encode the measurements of one model, at least one."""
    return line(
        {
            "model": measurements[0].model,
            "version": measurements[0].version,
            "readings": [
                [
                    measurement.signal,
                    measurement.method,
                    [[labels, _packed(value)] for labels, value in measurement.samples.items()],
                    measurement.start_time,
                ]
                for measurement in measurements
            ],
        }
    )


def read_measurements(message: Mapping[str, Any]) -> tuple[Measurement, ...]:
    """Decode the message of :func:`measurements_line`."""
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
            start_time=start_time,
        )
        for signal, method, samples, start_time in message["readings"]
    )


def state(tap: TapState) -> Mapping[str, Any]:
    """Return the message for the state of a tap."""
    return asdict(tap)


def read_state(message: Mapping[str, Any]) -> TapState:
    """Decode the message of :func:`state`."""
    return TapState(**{**message, "traffic": TapTraffic(**message["traffic"])})


def read_genai(found: Sequence[Any]) -> GenAiSeries:
    """Decode a histogram of requests by endpoint."""
    signal, model, version, endpoint, error, boundaries, counts, total = found
    value = Distribution(tuple(boundaries), tuple(counts), total)
    return GenAiSeries(signal, model, version, value, endpoint, error)


def read_problems(message: Sequence[Mapping[str, Any]]) -> tuple[Problem, ...]:
    """Decode problems that ``asdict`` encoded."""
    return tuple(Problem(**problem) for problem in message)


def _packed(value: Value) -> Any:
    if isinstance(value, Distribution):
        return [value.boundaries, value.counts, value.sum]
    return value


def _unpacked(value: Any) -> Value:
    if isinstance(value, list):
        boundaries, counts, total = value
        return Distribution(tuple(boundaries), tuple(counts), total)
    return float(value)
