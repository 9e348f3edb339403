"""The script of an incident, and what alerts and diagnosis are expected to make of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

from lab.engine_settings import EngineSettings
from lab.gateway import GatewaySettings
from lab.load import LoadSettings
from lab.repository import ModelSettings
from lab.trtllm_serve.settings import ServeSettings

if TYPE_CHECKING:
    from lab.incidents.stage import Stage

Column = Literal["proxy", "capture", "scrape"]
COLUMNS: tuple[Column, ...] = get_args(Column)
"""The sidecars of a run: with a proxy tap, with a capture tap, without a tap."""
WITH_TAP: tuple[Column, ...] = ("proxy", "capture")

MODEL = "tensorrt_llm"
ENSEMBLE = "ensemble"
HEALTHY_LOAD = LoadSettings(
    rate=3.0,
    seconds=3600.0,
    requests=1_000_000,
    model=MODEL,
    prompt_words=(40, 80, 150),
    max_tokens=(16, 32, 60),
    disconnect_before_first_token=0.0,
    disconnect_mid_stream=0.01,
    invalid=0.0,
    failing=0.0,
)
"""A load that the default engine serves within every objective."""
COMPLETIONS_LOAD = replace(HEALTHY_LOAD, protocol="completions")
"""The same load on the API of trtllm-serve."""


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """A change of the stage, ``at`` seconds after the onset; see :mod:`lab.incidents.faults`."""

    at: float
    title: str
    apply: Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Script:
    """One run of an incident: the servers, the load, and the steps of the fault.

    ``parameters`` are the values that were drawn, for the report.  The onset of the fault is
    ``healthy_seconds`` after the start of the load, which is at least half a minute, so that
    comparisons with "before" have a whole window; the run ends ``fault_seconds`` later, or when
    every expected alert fires and the diagnosis is made.

    ``model`` are settings of Triton's model, ``serve`` of trtllm-serve.  ``versions`` of the model
    are served at once.  With ``ensemble`` clients call the model :data:`ENSEMBLE`, whose stages are
    preprocessing, the engine and postprocessing; the SLO files select the model that clients call.

    ``gateway`` is between the clients and the server; its settings may change while it runs.
    ``inner_gateway`` is behind it once a step routes requests through it.  ``server_gateway`` is
    between the taps and the server.  With ``metrics_gateway`` the sidecars read Triton's metrics
    through an nginx, which a fault can stop.
    """

    parameters: Mapping[str, float | int | str]
    steps: tuple[ScriptStep, ...] = ()
    load: LoadSettings = HEALTHY_LOAD
    engine: EngineSettings = field(default_factory=EngineSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    server: Literal["triton", "trtllm-serve"] = "triton"
    serve: ServeSettings = field(default_factory=ServeSettings)
    versions: tuple[int, ...] = (1,)
    ensemble: bool = False
    gateway: GatewaySettings | None = None
    inner_gateway: GatewaySettings | None = None
    server_gateway: GatewaySettings | None = None
    metrics_gateway: bool = False
    healthy_seconds: float = 30.0
    fault_seconds: float = 75.0


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    """An alert that must fire within ``seconds`` after the onset.

    ``name`` is the alert's name without the service: ``FirstTokenErrorBudgetBurn``.
    """

    name: str
    seconds: float
    columns: tuple[Column, ...] = COLUMNS


@dataclass(frozen=True, slots=True)
class Incident:
    """A scripted incident.

    ``script`` draws a run's parameters.  ``alerts`` are expected.  ``symptoms`` are the checks of
    the diagnosis that must be sick with a tap.  ``diagnosis`` are the playbook keys that are right,
    by column; in a column without keys the right answer is that there is no incident, or that the
    cause is unclear.  ``confusions`` are cause alerts of other incidents that may fire as well,
    with the reason.
    """

    key: str
    title: str
    script: Callable[[random.Random], Script]
    harmful: bool = True
    alerts: tuple[ExpectedAlert, ...] = ()
    symptoms: tuple[str, ...] = ()
    diagnosis: Mapping[Column, tuple[str, ...]] = field(default_factory=dict)
    confusions: Mapping[str, str] = field(default_factory=dict)


def in_columns(*keys: str, columns: tuple[Column, ...] = COLUMNS) -> dict[Column, tuple[str, ...]]:
    """Return the same right diagnoses for several columns."""
    return dict.fromkeys(columns, keys)
