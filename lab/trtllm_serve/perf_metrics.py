"""Per-request timing, at /perf_metrics in older releases, in headers and files in newer ones.

Times are on the steady clock: seconds since the machine started, not since the epoch.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.engine_events import RequestMetrics

Json = dict[str, Any]

RETURN_METRICS = "X-TRTLLM-return-metrics"
"""The request header that enables timing headers; its value is 1."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A finished request; times are on the steady clock, in seconds.

    ``metrics`` are the engine's; ``server_arrival`` and ``server_first_token`` the HTTP server's.
    """

    request_id: int
    reason: str
    metrics: RequestMetrics
    server_arrival: float
    server_first_token: float | None


def record(request: FinishedRequest) -> Json:
    """Return the request's record at /perf_metrics, without the times it did not reach."""
    metrics = request.metrics
    timing = {
        "server_arrival_time": request.server_arrival,
        "arrival_time": metrics.arrival_time,
        "first_scheduled_time": metrics.first_scheduled_time,
        "first_token_time": metrics.first_token_time,
        "server_first_token_time": request.server_first_token,
        "last_token_time": metrics.last_token_time,
    }
    found: Json = {
        "first_iter": metrics.first_iter,
        "last_iter": metrics.last_iter,
        "timing_metrics": {name: value for name, value in timing.items() if value is not None},
        "kv_cache_metrics": {
            name: getattr(metrics, name)
            for name in (
                "num_total_allocated_blocks",
                "num_new_allocated_blocks",
                "num_reused_blocks",
                "num_missed_blocks",
            )
        },
    }
    if metrics.total_draft_tokens:
        found["speculative_decoding"] = {
            "acceptance_rate": metrics.total_accepted_draft_tokens / metrics.total_draft_tokens,
            "total_accepted_draft_tokens": metrics.total_accepted_draft_tokens,
            "total_draft_tokens": metrics.total_draft_tokens,
        }
    return {"request_id": request.request_id, "perf_metrics": found}


def headers(request: FinishedRequest) -> dict[str, str]:
    """Return the response headers for a request; durations are in milliseconds."""
    metrics = request.metrics
    start = metrics.arrival_time
    ends = {
        "queue": metrics.first_scheduled_time,
        "ttft": metrics.first_token_time,
        "e2e": metrics.last_token_time,
    }
    timing = [
        f"server_{name};dur={(end - start) * 1000:.6f}"
        for name, end in ends.items()
        if end is not None
    ]
    moments = {"start": start, "end": metrics.last_token_time}
    span = [f"server-{name};ts={at:.9f}" for name, at in moments.items() if at is not None]
    lists = {"Server-Timing": timing, "X-TRTLLM-Start-End-Time": span}
    return {name: ", ".join(items) for name, items in lists.items() if items}


def event(request: FinishedRequest) -> bytes:
    """Return the event with the timing headers of a stream, sent after its [DONE]."""
    data = json.dumps(headers(request), separators=(",", ":"))
    return f"event: trtllm.perf_metrics\ndata: {data}\n\n".encode()


def output_file(folder: Path) -> Path:
    """Create the folder and return the path of this process's record file."""
    folder.mkdir(parents=True, exist_ok=True)
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return folder / f"perf_metrics-server-{socket.gethostname()}-{os.getpid()}-{moment}.jsonl"


def line(request: FinishedRequest) -> str:
    """Return the request's line in the record file."""
    breakdown: Json = {"step_metrics": [], "ctx_chunk_metrics": []}
    whole = record(request) | {"time_breakdown_metrics": breakdown, "status": "complete"}
    return json.dumps(whole, separators=(",", ":")) + "\n"
