"""Classify Triton's models by backend and by decoupled transactions."""

from __future__ import annotations

from typing import Literal

from exporter.samples import ModelInfo

Kind = Literal["tensorrtllm", "ensemble", "vllm", "decoupled", "unary", "unknown"]


def kind_of(info: ModelInfo) -> Kind:
    """Classify a model; the kind decides which of Triton's metrics are valid for it."""
    match info.backend:
        case "":
            return "unknown"
        case "tensorrtllm" | "ensemble" | "vllm" as kind:
            return kind
    return "decoupled" if info.decoupled else "unary"
