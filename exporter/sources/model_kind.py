"""Kinds of models behind Triton: by backend, and by whether they are decoupled."""

from __future__ import annotations

from typing import Literal

from exporter.samples import ModelInfo

Kind = Literal["tensorrtllm", "ensemble", "vllm", "decoupled", "unary", "unknown"]


def kind_of(info: ModelInfo) -> Kind:
    """Classify a model: the kind decides which of Triton's metrics are right for it."""
    match info.backend:
        case "":
            return "unknown"
        case "tensorrtllm" | "ensemble" | "vllm" as kind:
            return kind
    return "decoupled" if info.decoupled else "unary"
