"""Play one incident: a healthy phase, the fault, the alerts, and the diagnosis."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnosis import Diagnosis, as_json
from diagnosis.report_text import verdict_text
from lab.incidents import stage as stages
from lab.incidents.diagnose import diagnose_column
from lab.incidents.incident import Column, Incident, Script
from lab.incidents.result import ColumnResult, FiredAlert, IncidentResult, Severity
from lab.incidents.stage import Stage
from lab.process import ServerError, ServerProcess
from lab.toolchain import Progress
from promql.client import PrometheusError, Sample, query

_POLL_SECONDS = 0.5
_DIAGNOSIS_DELAY = 5.0
"""Seconds from a page to the diagnosis: the windows of its queries fill."""
_GRACE_SECONDS = 5.0
"""Seconds that a run goes on after everything expected has happened, for false alerts."""
_SEVERITIES: Mapping[str, Severity] = {"critical": "page", "warning": "ticket", "info": "info"}
_FIRING = 'ALERTS{alertstate="firing"}'

Observe = Callable[["IncidentRun"], None]


@dataclass(slots=True)
class IncidentRun:
    """The state of a run; times on the monotonic clock."""

    incident: Incident
    script: Script
    stage: Stage
    onset: float
    phase: str = "healthy"
    fired: dict[Column, dict[tuple[str, str, str], FiredAlert]] = field(default_factory=dict)
    diagnoses: dict[Column, tuple[float, Diagnosis]] = field(default_factory=dict)
    steps_done: int = 0

    @property
    def seconds(self) -> float:
        """Seconds since the onset; negative before it."""
        return time.monotonic() - self.onset

    def paged_at(self, column: Column) -> float | None:
        """Return the time of a column's first page."""
        alerts = self.fired[column].values()
        pages = [alert.seconds for alert in alerts if alert.severity == "page"]
        return min(pages, default=None)

    @property
    def last_alert(self) -> float:
        """Return the time at which the latest alert began to fire."""
        times = [alert.seconds for each in self.fired.values() for alert in each.values()]
        return max(times, default=0.0)

    @property
    def all_expected_fire(self) -> bool:
        """Whether all steps are done and every expected alert has fired; never without any."""
        return (
            bool(self.incident.alerts)
            and self.seconds >= 0
            and self.steps_done == len(self.script.steps)
            and not any(self.missed(column, self.seconds) for column in self.stage.sidecars)
        )

    def missed(self, column: Column, at: float) -> list[str]:
        """Return the expected alerts of a column that have not fired, or too late."""
        times: dict[str, float] = {}
        for alert in self.fired[column].values():
            times[alert.name] = min(alert.seconds, times.get(alert.name, alert.seconds))
        return [
            expected.name
            for expected in self.incident.alerts
            if column in expected.columns
            and times.get(expected.name, float("inf")) > min(at, expected.seconds)
        ]


def play(
    incident: Incident,
    seed: int,
    folder: Path,
    *,
    columns: Sequence[Column] | None = None,
    progress: Progress = lambda _: None,
    observe: Observe = lambda _: None,
) -> IncidentResult:
    """Play an incident with the parameters that the seed draws; ``folder`` must be empty.

    ``columns`` are by default all that this process can fill.  ``observe`` is called twice a
    second.  Raises lab.toolchain.UnavailableProgram, lab.toolchain.InstallError or
    lab.process.ServerError.
    """
    script = incident.script(random.Random(f"{incident.key}/{seed}"))
    began, own = time.monotonic(), time.process_time()
    with stages.running(script, folder, columns or stages.available_columns(), progress) as stage:
        onset = time.monotonic() + script.healthy_seconds
        run = IncidentRun(
            incident, script, stage, onset, fired={column: {} for column in stage.sidecars}
        )
        progress(f"healthy for {script.healthy_seconds:g} s")
        for _ in _ticks():
            _take_steps(run, progress)
            _poll(run)
            _diagnose_due(run, progress)
            observe(run)
            if _is_over(run):
                break
        for column in stage.sidecars.keys() - run.diagnoses.keys():
            _diagnose(run, column, progress)
        lasted, cpu = run.seconds, {each.name: _cpu_seconds(each) for each in stage.servers}
        outcomes = {f"{key}": n for key, n in stage.load.summary().outcomes.items()}
        observe(run)
        progress("stopping the servers")
    return IncidentResult(
        incident=incident.key,
        seed=seed,
        parameters=dict(script.parameters),
        healthy_seconds=script.healthy_seconds,
        fault_seconds=round(lasted, 1),
        wall_seconds=round(time.monotonic() - began, 1),
        cpu_seconds=cpu | {"clients": round(time.process_time() - own, 1)},
        outcomes=outcomes,
        columns={column: _result(run, column, lasted) for column in stage.sidecars},
    )


def _ticks() -> Iterator[None]:
    while True:
        started = time.monotonic()
        yield
        time.sleep(max(0.0, started + _POLL_SECONDS - time.monotonic()))


def _take_steps(run: IncidentRun, progress: Progress) -> None:
    if run.phase == "healthy" and run.seconds >= 0:
        run.phase = "fault"
        progress(f"onset: {run.incident.title}")
    for step in sorted(run.script.steps, key=lambda step: step.at)[run.steps_done :]:
        if run.seconds < step.at:
            return
        progress(f"{step.at:g} s after the onset: {step.title}")
        step.apply(run.stage)
        run.steps_done += 1


def _poll(run: IncidentRun) -> None:
    """Record the alerts that fire now."""
    _check_prometheus(run)
    with suppress(PrometheusError):
        for sample in query(run.stage.prometheus.url, _FIRING):
            column, alert = _alert(sample, run.seconds)
            if column in run.fired:
                key = (alert.name, alert.severity, alert.window)
                run.fired[column].setdefault(key, alert)


def _check_prometheus(run: IncidentRun) -> None:
    server = run.stage.prometheus
    if not server.alive:
        raise ServerError(f"{server.name} exited unexpectedly; its log is {server.log}")


def _alert(sample: Sample, seconds: float) -> tuple[Column, FiredAlert]:
    """Return a firing alert and its column, from the labels of its SLO or of its cause."""
    labels = sample.labels
    service = labels.get("service", "")
    column: Any = labels.get("column") or service.rpartition("-")[2]
    prefix = "".join(word.capitalize() for word in service.split("-"))
    name = labels["alertname"].removeprefix(prefix)
    return column, FiredAlert(
        name,
        _SEVERITIES[labels["severity"]],
        round(seconds, 1),
        labels.get("window", ""),
        is_cause="cause" in labels,
    )


def _diagnose_due(run: IncidentRun, progress: Progress) -> None:
    """Diagnose each column after its first page, or after all expected alerts without one."""
    for column in run.stage.sidecars.keys() - run.diagnoses.keys():
        at = run.paged_at(column)
        if at is None and run.all_expected_fire:
            at = run.last_alert
        if at is not None and run.seconds >= max(0.0, at) + _DIAGNOSIS_DELAY:
            _diagnose(run, column, progress)


def _diagnose(run: IncidentRun, column: Column, progress: Progress) -> None:
    seconds = run.seconds
    try:
        found = diagnose_column(run.stage, column, since_onset=max(0.0, seconds))
    except PrometheusError as error:
        raise ServerError(f"no diagnosis from the {column} sidecar: {error}") from error
    run.diagnoses[column] = (round(seconds, 1), found)
    progress(f"{column} sidecar: {verdict_text(found)}")


def _is_over(run: IncidentRun) -> bool:
    if run.seconds >= run.script.fault_seconds:
        return True
    return (
        run.all_expected_fire
        and run.diagnoses.keys() == run.stage.sidecars.keys()
        and run.seconds
        >= max(run.last_alert, *(at for at, _ in run.diagnoses.values())) + _GRACE_SECONDS
    )


def _result(run: IncidentRun, column: Column, lasted: float) -> ColumnResult:
    at, diagnosis = run.diagnoses[column]
    alerts = sorted(run.fired[column].values(), key=lambda alert: alert.seconds)
    missed = tuple(run.missed(column, lasted))
    return ColumnResult(tuple(alerts), missed, json.loads(as_json(diagnosis)), at)


def _cpu_seconds(server: ServerProcess) -> float:
    """Return the CPU seconds of a server's process group, as far as its processes still run."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == server.pid:
                ticks += sum(map(int, fields[11:13]))
    return round(ticks / os.sysconf("SC_CLK_TCK"), 1)
