"""Playbooks as data types: a cause of incidents, its diagnosis and its mitigations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layer = Literal[
    "client",
    "gateway",
    "Triton queue",
    "batcher",
    "instance",
    "backend",
    "KV cache",
    "GPU",
    "artifact or configuration",
    "measurement",
]
"""The layer that owns a cause, from the client inwards."""

Effort = Literal[
    "Reversible at once",
    "Needs a model reload",
    "Needs a restart",
    "Needs a restart of the sidecar",
    "Needs a plan",
]


@dataclass(frozen=True, slots=True)
class Action:
    """One mitigation: what to do, the setting that does it, its risk (empty: none), its effort.

    ``setting`` names the real parameter and its place, in Markdown: of config.pbtxt, of the engine
    or the server's command line, or of a gateway.
    """

    do: str
    risk: str = ""
    effort: Effort = "Reversible at once"
    setting: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a diagnosis: a check, what a sick result means here, and which layer owns it.

    ``check`` is a key of :data:`runbooks.checks.CHECKS`, which has the query, the healthy result
    and what that rules out.
    """

    check: str
    sick: str
    layer: Layer


@dataclass(frozen=True, slots=True)
class Playbook:
    """A cause of incidents; texts are Markdown without headings.

    ``layer`` owns the cause; it is None for a procedure that finds the layer.
    ``symptoms`` are short phrases for the index.  ``actions`` are in the order to try them:
    reversible ones come first.  ``verified_by`` is the key of the check whose healthy result shows
    that a mitigation has worked.  ``see`` are keys of playbooks that look alike.
    """

    key: str
    title: str
    layer: Layer | None
    symptoms: tuple[str, ...]
    meaning: str
    impact: str
    steps: tuple[Step, ...]
    actions: tuple[Action, ...]
    verified_by: str
    escalate: str
    follow_up: tuple[str, ...]
    see: tuple[str, ...] = ()
    diagram: str = ""
