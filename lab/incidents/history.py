"""Three days of healthy history for the windows of the burn-rate alerts, in compressed time.

Without them the alerts of the longest windows would fire as soon as those of the shortest: their
windows would hold nothing but the incident.  The recorded events are backfilled as Prometheus
blocks, with every request good, at the rate of the healthy phase.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from lab.incidents.compression import FACTOR
from lab.incidents.incident import Column
from lab.process import ServerError
from slos import names
from slos.load import load_file
from slos.plan import PlannedObjective, plan

_SECONDS = 3 * 86_400 / FACTOR
_STEP = 15.0
"""A sample has the events of this time: windows sum samples, however many there are."""
_EVALUATION = 60 / FACTOR
"""Seconds between evaluations of the rules: one slice of time of an objective on a gauge."""
_NEEDS_TAP = frozenset({"streams", "goodput"})


def write_history(
    promtool: Path, slo_files: Mapping[Column, Path], rate: float, folder: Path, data: Path
) -> None:
    """Write the history of all columns into Prometheus' folder `data`; raises ServerError.

    ``rate`` is in requests per second.  A sidecar without a tap has no history of objectives that
    need one.
    """
    text, now = folder / "history.txt", time.time()
    series: dict[str, list[str]] = {names.TOTAL: [], names.BAD: []}
    for column, file in slo_files.items():
        (service,) = load_file(file).services
        for planned in plan(service).objectives:
            if column == "scrape" and _NEEDS_TAP.intersection(planned.indicator.signals):
                continue
            labels = f'{{service="{service.service}",slo="{planned.objective.name}"}}'
            series[names.TOTAL] += _samples(names.TOTAL, labels, _events(planned, rate), now)
            series[names.BAD] += _samples(names.BAD, labels, 0.0, now)
    lines = [line for name, each in series.items() for line in (f"# TYPE {name} gauge", *each)]
    text.write_text("\n".join([*lines, "# EOF\n"]))
    arguments = ("tsdb", "create-blocks-from", "openmetrics", text, data, "--quiet")
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ServerError(f"promtool could not write the history:\n{done.stderr.strip()}")


def _events(planned: PlannedObjective, rate: float) -> float:
    """Return the events of one sample: requests, or slices of time."""
    return round(_STEP / _EVALUATION if planned.indicator.slice else _STEP * rate, 3)


def _samples(name: str, labels: str, value: float, now: float) -> Iterator[str]:
    for index in range(round(_SECONDS / _STEP), 0, -1):
        yield f"{name}{labels} {value} {now - index * _STEP:.3f}"
