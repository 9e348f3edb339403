"""What checks yield, and what a report holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from config_checks.configuration import Configuration
from config_checks.setting import Setting

ConfigSeverity = Literal["note", "warning", "error"]
SEVERITIES: tuple[ConfigSeverity, ...] = ("note", "warning", "error")
"""Severities, the lowest first."""


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """A fault at a setting; ``severity`` overrides that of the check."""

    setting: Setting
    evidence: str
    severity: ConfigSeverity | None = None


@dataclass(frozen=True, slots=True)
class Unseen:
    """A reason why a check could not read what it needs."""

    reason: str


CheckFunction = Callable[[Configuration], Iterator[ConfigFault | Unseen]]


@dataclass(frozen=True, slots=True)
class ConfigCheck:
    """One check: what it finds, what that costs, and the fix.

    ``indicators`` are those of objectives that the fault threatens; ``needs`` are keys of
    :data:`config_checks.table.INPUTS`.
    """

    name: str
    severity: ConfigSeverity
    indicators: tuple[str, ...]
    needs: tuple[str, ...]
    finds: str
    costs: str
    fix: str
    run: CheckFunction


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """A fault with its check; ``objectives`` are the threatened ones, by indicator."""

    check: str
    severity: ConfigSeverity
    file: str
    line: int
    path: str
    evidence: str
    objectives: Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class ConfigReport:
    """The result of all checks; ``unchecked`` are identifiers with the reason."""

    findings: tuple[ConfigFinding, ...]
    unchecked: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
