"""Catalogue of Dynamo: frontend, router, workers, and the TensorRT-LLM engine.

Names and labels are in ``data/dynamo.json``.  Workers forward the metrics of their engine: add the
catalogue of vLLM or SGLang for those.
"""

from __future__ import annotations

from dataclasses import replace

from promql.lint.catalogue import Catalogue, Metric
from slos.catalogues.stored import release_of, stored
from slos.catalogues.trtllm import PREFIXES as TRTLLM_PREFIXES
from slos.catalogues.trtllm import trtllm_prefixed

PREFIXES = (
    "dynamo_component_", "dynamo_engine_", "dynamo_frontend_", "dynamo_kvindexer_",
    "dynamo_kvrouter_", "dynamo_quic_", "dynamo_rejection_", "dynamo_request_", "dynamo_router_",
    "dynamo_tokio_", "dynamo_transport_", "dynamo_work_handler_", "kvbm_",
)  # fmt: skip
_BOUNDARIES_FROM = "the frontend's DYN_METRICS_… variables"

# Names that are composed at run time, and the families that its TensorRT-LLM worker adds.
_VAGUE = (
    "dynamo_component_", "trtllm_num_aborted_requests", "trtllm_kv_transfer_", "trtllm_kv_event_",
    "trtllm_request_type_",
)  # fmt: skip


def dynamo() -> Catalogue:
    """Return the metrics of a deployment with TensorRT-LLM workers."""
    known, engine = stored("dynamo"), trtllm_prefixed("1.4")
    own = {name: _metric(metric) for name, metric in known.metrics.items()}
    return replace(
        engine,
        title=f"Dynamo {release_of(known)} with TensorRT-LLM",
        metrics={**engine.metrics, **own},
        prefixes=(*TRTLLM_PREFIXES, *PREFIXES),
        vague=_VAGUE,
    )


def _metric(metric: Metric) -> Metric:
    """Set the spelling of whole bucket boundaries, which the Rust client writes without a point."""
    spelling = metric.whole_boundaries and "1"
    configured = _BOUNDARIES_FROM if metric.boundaries and "frontend" in metric.name else ""
    return replace(metric, whole_boundaries=spelling, boundaries_from=configured)
