"""The result of a run, as dataclasses and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lab.incidents.incident import Column

Severity = Literal["page", "ticket", "info"]


@dataclass(frozen=True, slots=True)
class FiredAlert:
    """An alert that fired, ``seconds`` after the onset in the lab's time; negative before it.

    ``name`` is the alert's name without the service.  Burn-rate alerts of several windows have one
    name; ``window`` distinguishes them.  ``is_cause`` marks cause alerts, which mostly have the
    severity info.
    """

    name: str
    severity: Severity
    seconds: float
    window: str = ""
    is_cause: bool = False


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """What one sidecar's alerts and diagnosis made of the incident.

    ``diagnosis`` is the JSON form of the diagnosis, made ``diagnosed_at`` seconds after the onset;
    ``missed`` are expected alerts that did not fire in time.
    """

    alerts: tuple[FiredAlert, ...] = ()
    missed: tuple[str, ...] = ()
    diagnosis: Mapping[str, Any] = field(default_factory=dict)
    diagnosed_at: float | None = None

    @property
    def pages(self) -> tuple[FiredAlert, ...]:
        """The pages."""
        return tuple(alert for alert in self.alerts if alert.severity == "page")


@dataclass(frozen=True, slots=True)
class IncidentResult:
    """The result of one run; times in seconds of the lab, ``cpu_seconds`` by server.

    ``outcomes`` are the clients' results.
    """

    incident: str
    seed: int
    parameters: Mapping[str, float | int | str]
    healthy_seconds: float
    fault_seconds: float
    wall_seconds: float
    cpu_seconds: Mapping[str, float]
    outcomes: Mapping[str, int]
    columns: Mapping[Column, ColumnResult]

    def json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return asdict(self)


def read_result(data: Mapping[str, Any]) -> IncidentResult:
    """Return the result in a JSON form."""
    columns = {
        column: ColumnResult(
            alerts=tuple(FiredAlert(**alert) for alert in each["alerts"]),
            missed=tuple(each["missed"]),
            diagnosis=each["diagnosis"],
            diagnosed_at=each["diagnosed_at"],
        )
        for column, each in data["columns"].items()
    }
    return IncidentResult(**{**data, "columns": columns})
