"""Causes of incidents with their mitigations, as data types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effort = Literal[
    "Reversible at once",
    "Needs a model reload",
    "Needs a restart",
    "Needs a restart of the sidecar",
    "Needs a plan",
]


@dataclass(frozen=True, slots=True)
class Action:
    """One mitigation, its risk (empty: none), and its effort."""

    do: str
    risk: str = ""
    effort: Effort = "Reversible at once"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause, its signs, and its mitigations in order; ``see`` are keys of its own causes."""

    key: str
    title: str
    signs: str
    actions: tuple[Action, ...]
    see: tuple[str, ...] = ()
