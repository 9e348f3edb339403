"""A real Prometheus that has a history, and evaluates recording rules over it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from lab.prometheus import Prometheus
from promql.client import query_range
from promql.expr import vector
from tests.rule_values.recordings import Recording

Samples = Mapping[str, Iterable[tuple[float, float]]]
Start = Callable[..., Prometheus]

EPOCH = 1_750_000_200
"""When histories start: a whole number of evaluations and of blocks, and long ago."""
_POINTS = 11_000  # Prometheus gives no more at once
_KEPT = ("--storage.tsdb.retention.time=10y", "--query.lookback-delta=5m")


@dataclass(frozen=True, slots=True)
class Replay:
    """History in a folder, and the programs that write and read it.

    Times are in seconds since :data:`EPOCH`.  What is added is seen by servers started later.
    """

    promtool: Path
    start: Start
    folder: Path

    def add(self, samples: Samples) -> None:
        """Add samples to the history, by series."""
        text, data = self.folder / "samples.txt", self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        with text.open("w") as file:
            for series, points in samples.items():
                file.writelines(f"{series} {value} {EPOCH + at}\n" for at, value in points)
            file.write("# EOF\n")
        command = [self.promtool, "tsdb", "create-blocks-from", "openmetrics"]
        flags = ["--quiet", "--max-block-duration=8760h"]
        subprocess.run([*command, *flags, text, data], check=True, capture_output=True)
        text.unlink()

    @contextmanager
    def asking(self) -> Iterator[Asked]:
        """Start a server on the history."""
        with self.start(self.folder, scrape={}, arguments=_KEPT) as server:
            yield Asked(server.url)


@dataclass(frozen=True, slots=True)
class Asked:
    """A server that is asked about the history."""

    url: str

    def values(self, expr: str, times: range) -> Mapping[float, float]:
        """Evaluate what has one element at most, at evenly spaced times."""
        found = dict(self._series(expr, times))
        assert len(found) <= 1, f"{len(found)} series of {expr}"
        return next(iter(found.values()), {})

    def recorded(self, recording: Recording, times: range) -> dict[str, list[tuple[float, float]]]:
        """Return what a rule would have recorded, by series."""
        made: dict[str, list[tuple[float, float]]] = {}
        for labels, points in self._series(recording.expr, times):
            series = str(vector(recording.name, {**dict(labels), **recording.labels}))
            made.setdefault(series, []).extend(points.items())
        return made

    def cost(self, expr: str, at: float) -> tuple[int, int]:
        """Return how many series one evaluation gives, and how many samples it reads."""
        asked = urlencode({"query": expr, "time": EPOCH + at, "stats": "all"})
        with urlopen(f"{self.url}/api/v1/query?{asked}") as answer:  # noqa: S310 (http only)
            data = json.load(answer)["data"]
        return len(data["result"]), data["stats"]["samples"]["totalQueryableSamples"]

    def _series(
        self, expr: str, times: range
    ) -> Iterator[tuple[Sequence[tuple[str, str]], Mapping[float, float]]]:
        for first in range(times.start, times.stop, times.step * _POINTS):
            last = min(first + times.step * (_POINTS - 1), times[-1])
            for one in query_range(self.url, expr, EPOCH + first, EPOCH + last, times.step):
                labels = {k: v for k, v in one.labels.items() if k != "__name__"}
                yield tuple(labels.items()), {at - EPOCH: v for at, v in one.values.items()}
