"""Incidents of the measurement: requests succeed, and the sidecar cannot see it."""

from __future__ import annotations

import random
from dataclasses import replace

from lab.incidents.faults import close_metrics, take_iteration_records
from lab.incidents.incident import (
    COMPLETIONS_LOAD,
    HEALTHY_LOAD,
    ExpectedAlert,
    Incident,
    Script,
    ScriptStep,
    in_columns,
)
from lab.trtllm_serve.settings import ServeSettings


def _source_down(pick: random.Random) -> Script:
    """Refuse connections to Triton's metrics, while requests succeed."""
    rate, at = round(pick.uniform(2.0, 4.0), 1), round(pick.uniform(0.0, 3.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "down_at": at},
        load=load,
        metrics_gateway=True,
        steps=(ScriptStep(at, "the metrics endpoint is unreachable", close_metrics()),),
        fault_seconds=60.0,
    )


def _records_lost(pick: random.Random) -> Script:
    """Let a second agent read the iteration records, each of which is returned once."""
    rate, pause = round(pick.uniform(2.0, 3.0), 1), round(pick.uniform(0.2, 0.4), 2)
    return Script(
        {"rate": rate, "read_every": pause},
        load=replace(COMPLETIONS_LOAD, rate=rate, seed=pick.getrandbits(32)),
        server="trtllm-serve",
        steps=(ScriptStep(0.0, "a second agent reads", take_iteration_records(pause)),),
        fault_seconds=80.0,
    )


def _statistics_off(pick: random.Random) -> Script:
    """Serve without iteration statistics, as trtllm-serve does by default."""
    rate = round(pick.uniform(2.0, 3.0), 1)
    return Script(
        {"rate": rate},
        load=replace(COMPLETIONS_LOAD, rate=rate, seed=pick.getrandbits(32)),
        server="trtllm-serve",
        serve=ServeSettings(iteration_stats=False),
        fault_seconds=80.0,
    )


INCIDENTS = (
    Incident(
        key="source-down",
        title="metrics are unreachable, and requests succeed",
        script=_source_down,
        alerts=(ExpectedAlert("ExporterSourceDown", 35),),
        symptoms=("sources",),
        diagnosis=in_columns("source_down"),
    ),
    Incident(
        key="records-lost",
        title="a second agent takes the engine's records",
        script=_records_lost,
        alerts=(ExpectedAlert("EngineStatsLost", 75),),
        symptoms=("lost",),
        diagnosis=in_columns("records_lost"),
        confusions={"ExporterSourceDown": "reads that wait for the other reader fail"},
    ),
    Incident(
        key="statistics-off",
        title="the server runs without iteration statistics",
        script=_statistics_off,
        alerts=(ExpectedAlert("SignalUnavailable", 80),),
        symptoms=("unavailable",),
        diagnosis=in_columns("signal_unavailable"),
    ),
)
