"""Write a history to a real Prometheus, and evaluate rules over it.

The history is written by remote write, which unlike a backfill accepts the staleness markers that
Prometheus writes when a scrape fails and when a series ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from struct import Struct
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import numpy.typing as npt

from lab.prometheus import Prometheus
from promql.client import query_range
from tests.rule_values.native import encoded, histograms
from tests.rule_values.recordings import RecordingRule
from tests.rule_values.traffic import Counts, Labels, Points, Samples, labelled, points

Start = Callable[..., Prometheus]

EPOCH = 1_750_000_200
"""Start of histories in Unix time: a multiple of evaluation intervals and time slices."""
_BATCH_SAMPLES = 10_000
"""Samples per request of remote write."""
_QUERY_STEPS = 2880
"""Steps per range query: over long ranges, many series come and go."""
_LOOKBACK = 300
# The whole history stays in the head, which accepts samples up to half a block before its latest.
_ARGUMENTS = (
    "--web.enable-remote-write-receiver",
    "--enable-feature=native-histograms",
    "--storage.tsdb.retention.time=10y",
    "--storage.tsdb.min-block-duration=2y",
    "--storage.tsdb.max-block-duration=2y",
    f"--query.lookback-delta={_LOOKBACK}s",
)


@contextmanager
def replaying(start: Start, folder: Path) -> Iterator[Replay]:
    """Yield a server without history; ``start`` is :func:`lab.prometheus.start`."""
    with (
        start(folder, scrape={}, arguments=_ARGUMENTS) as server,
        ThreadPoolExecutor(cpu_count()) as pool,
    ):
        yield Replay(server.url, pool)


@dataclass(frozen=True, slots=True)
class Replay:
    """A server with a written history.

    Times are in seconds since :data:`EPOCH`.
    """

    url: str
    pool: ThreadPoolExecutor

    def add(self, samples: Samples) -> None:
        """Add samples to the history."""
        for labels, (times, bits) in samples.items():
            for first in range(0, len(times), _BATCH_SAMPLES):
                part = slice(first, first + _BATCH_SAMPLES)
                self._write(_series(labels, (times[part], bits[part])))

    def add_native(self, samples: Samples) -> None:
        """Add native histograms with the observations of the classic ones among the samples."""
        for labels, (times, good), (_, total) in histograms(samples):
            for first in range(0, len(times), _BATCH_SAMPLES):
                part = slice(first, first + _BATCH_SAMPLES)
                at = times[part]
                observed = encoded((at, good[part]), (at, total[part]), _varints(at))
                self._write(_of_labels(labels) + observed)

    def values(self, expr: str, times: range) -> Mapping[float, float]:
        """Evaluate an expression with at most one element at evenly spaced times."""
        found = self._evaluated(expr, times)
        assert len(found) <= 1, f"{len(found)} series of {expr}"
        return next(iter(found.values()), {})

    def recorded(self, recording: RecordingRule, times: range) -> Samples:
        """Return the samples that a rule records, by series."""
        every, made = np.array(times), dict[Labels, Points]()
        for labels, found in self._evaluated(recording.expr, times).items():
            is_sample = np.isin(every, [*found])
            values = np.zeros(len(every))
            values[is_sample] = [*found.values()]
            series = labelled(recording.name, **{**dict(labels), **recording.labels})
            made[series] = points(every, values, is_sample)
        return made

    def cost(self, expr: str, at: float) -> tuple[int, int]:
        """Return the numbers of series in a result and of samples that its evaluation reads."""
        parameters = urlencode({"query": expr, "time": EPOCH + at, "stats": "all"})
        with urlopen(f"{self.url}/api/v1/query?{parameters}") as answer:  # noqa: S310 (http only)
            data = json.load(answer)["data"]
        return len(data["result"]), data["stats"]["samples"]["totalQueryableSamples"]

    def _evaluated(self, expr: str, times: range) -> Mapping[Labels, Mapping[float, float]]:
        def fetch(span: range) -> list[tuple[Labels, Mapping[float, float]]]:
            first, last = EPOCH + span[0], EPOCH + span[-1]
            return [
                (tuple(one.labels.items()), one.values)
                for one in query_range(self.url, expr, first, last, times.step)
            ]

        found: dict[Labels, dict[float, float]] = {}
        spans = [times[at : at + _QUERY_STEPS] for at in range(0, len(times), _QUERY_STEPS)]
        for part in self.pool.map(fetch, spans):
            for labels, values in part:
                found.setdefault(labels, {}).update((at - EPOCH, v) for at, v in values.items())
        return found

    def _write(self, series: bytes) -> None:
        body = _bytes_field(1, series)
        # Uncompressed Snappy: the length, and the content as one literal.
        packed = _varint(len(body)) + b"\xfc" + _LENGTH.pack(len(body) - 1) + body
        headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        with urlopen(Request(f"{self.url}/api/v1/write", packed, headers)):  # noqa: S310 (http only)
            pass


# The remote write protocol, the part in use: prometheus.io/docs/specs/remote_write_spec.

_LENGTH = Struct("<I")
_SAMPLE = np.dtype([("head", "u1", 3), ("bits", "<u8"), ("tag", "u1"), ("time", "u1", 6)])


def _series(labels: Labels, points_: Points) -> bytes:
    times, bits = points_
    made = np.empty(len(times), dtype=_SAMPLE)
    made["head"] = 0x12, 16, 0x09  # a sample of 16 bytes, and first its value
    made["bits"] = bits
    made["tag"] = 0x10
    made["time"] = _varints(times)
    return _of_labels(labels) + made.tobytes()


def _of_labels(labels: Labels) -> bytes:
    return b"".join(
        _bytes_field(1, _bytes_field(1, name.encode()) + _bytes_field(2, value.encode()))
        for name, value in sorted(labels)
    )


def _varints(times: Counts) -> npt.NDArray[np.uint8]:
    """Encode times in milliseconds as varints of six groups of seven bits."""
    groups = ((EPOCH + times) * 1000)[:, None] >> np.arange(0, 42, 7) & 0x7F
    return (groups | [0x80, 0x80, 0x80, 0x80, 0x80, 0]).astype(np.uint8)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
