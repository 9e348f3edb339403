"""Faults of the engine, of the servers and of the clients: what the steps of a script do."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lab.engine_faults import EngineFaults, write_faults
from lab.gateway import GatewaySettings
from lab.incidents.incident import COLUMNS, MODEL, Column
from lab.incidents.stage import Stage
from lab.load import LoadSettings
from lab.process import ServerError, ServerProcess, get
from lab.trtllm_serve.settings import ServeSettings
from promql.http_client import HttpError

Fault = Callable[[Stage], None]


def break_engine(model: str = MODEL, version: int = 1, **faults: Any) -> Fault:
    """Change the engine of a version; the arguments are fields of lab.engine_faults.EngineFaults.

    Fields without an argument are healthy again.
    """
    values = EngineFaults(**faults)
    return lambda stage: write_faults(stage.faults_file(model, version), values)


def repair_engine(model: str = MODEL, version: int = 1) -> Fault:
    """End all faults of the engine of a version."""
    return lambda stage: stage.faults_file(model, version).unlink(missing_ok=True)


def switch_load(settings: LoadSettings) -> Fault:
    """Let new requests follow other settings."""
    return lambda stage: stage.load.switch(settings)


def reconfigure_gateway(settings: GatewaySettings) -> Fault:
    """Change the settings of the gateway for new requests; the script needs `gateway`."""

    def apply(stage: Stage) -> None:
        if stage.gateway is None:
            raise ServerError("reconfigure_gateway needs a script with a gateway")
        stage.gateway.reload(settings)

    return apply


def route_through_inner_gateway(settings: GatewaySettings) -> Fault:
    """Put the inner gateway behind the gateway, which has these settings, for new requests."""

    def apply(stage: Stage) -> None:
        if stage.gateway is None or stage.inner_gateway is None:
            raise ServerError("route_through_inner_gateway needs a script with both gateways")
        stage.gateway.reload(settings, stage.inner_gateway.url)

    return apply


def stop_server() -> Fault:
    """Stop the model server."""
    return lambda stage: stage.server.stop()


def stop_sidecar(column: Column) -> Fault:
    """Stop a sidecar."""
    return lambda stage: stage.sidecars[column].stop()


def freeze_server() -> Fault:
    """Send SIGSTOP to the model server: its connections stay, and no request is answered."""
    return lambda stage: _signal(stage.server, signal.SIGSTOP)


def resume_server() -> Fault:
    """Send SIGCONT to the model server."""
    return lambda stage: _signal(stage.server, signal.SIGCONT)


def close_metrics() -> Fault:
    """Refuse connections to Triton's metrics; the script needs `metrics_gateway`."""

    def apply(stage: Stage) -> None:
        if stage.metrics_gateway is None:
            raise ServerError("close_metrics needs a script with metrics_gateway=True")
        stage.metrics_gateway.stop()

    return apply


def take_iteration_records(pause: float) -> Fault:
    """Read the iteration records of a trtllm-serve every ``pause`` seconds until it ends."""

    def read(stage: Stage) -> None:
        while stage.server.alive:
            for address in ServeSettings(record_copies=len(COLUMNS)).addresses:
                with suppress(HttpError):
                    get(stage.server.ports[0], "/metrics", host=address)
            time.sleep(pause)

    return lambda stage: threading.Thread(target=read, args=(stage,), daemon=True).start()


def load_model(model: str = MODEL) -> Fault:
    """Load a model of Triton's repository, or load it again, in the background."""
    return lambda stage: _control(stage, model, "load")


def unload_model(model: str = MODEL) -> Fault:
    """Unload a model from Triton, in the background."""
    return lambda stage: _control(stage, model, "unload")


def _control(stage: Stage, model: str, action: str) -> None:
    """Call Triton's model control API; its status is part of the incident, so it may fail."""

    def call() -> None:
        with suppress(HttpError):
            get(stage.server.ports[0], f"/v2/repository/models/{model}/{action}", "POST")

    threading.Thread(target=call, name=f"{action} {model}", daemon=True).start()


def _signal(server: ServerProcess, number: int) -> None:
    os.killpg(server.pid, number)
