"""The SLO file of the example, which the demo and the incidents use."""

from __future__ import annotations

from pathlib import Path

_LAB = Path(__file__).parent
_IN_CHECKOUT = _LAB.parent / "examples/chat/slo.yaml"

EXAMPLE_SLO = _IN_CHECKOUT if _IN_CHECKOUT.exists() else _LAB / "slo.yaml"
"""In a checkout the example itself, otherwise the copy that the wheel has."""
