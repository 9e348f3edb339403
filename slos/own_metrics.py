"""The exporter's metrics about itself."""

from __future__ import annotations

from collections.abc import Mapping

from slos.signals import MODEL_LABELS, Kind

OWN_METRICS: Mapping[str, tuple[Kind, str, tuple[str, ...]]] = {
    "tokenslo_build_info": ("gauge", "Version of tokenslo; always 1.", ("version",)),
    "tokenslo_signal_info": (
        "gauge",
        "How each signal is obtained; always 1.",
        ("signal", *MODEL_LABELS, "method", "quality"),
    ),
    "tokenslo_model_info": (
        "gauge",
        "What the server says it runs; always 1.",
        (*MODEL_LABELS, "backend", "decoupled"),
    ),
    "tokenslo_source_up": (
        "gauge",
        "Whether the last reading of a source succeeded.",
        ("source",),
    ),
    "tokenslo_source_age_seconds": (
        "gauge",
        "Age of the last successful scrape of a source.",
        ("source",),
    ),
    "tokenslo_source_read_seconds": (
        "gauge",
        "How long the last reading of a source took.",
        ("source",),
    ),
    "tokenslo_source_errors": (
        "counter",
        "Readings of a source that failed, by kind of failure.",
        ("source", "kind"),
    ),
    "tokenslo_source_lost_records": (
        "counter",
        "Records of a source that are known to be missing: taken by another reader, or dropped "
        "from a full queue.",
        ("source",),
    ),
    "tokenslo_engine_stats_age_seconds": (
        "gauge",
        "Time since the engine last published an iteration; grows while it is idle or stuck.",
        MODEL_LABELS,
    ),
    "tokenslo_ready": (
        "gauge",
        "Whether a layer of readiness holds; absent where nobody knows.",
        ("layer", "source", *MODEL_LABELS),
    ),
    "tokenslo_probe_success": (
        "gauge",
        "Whether the last request of our own to a model was answered.",
        ("model",),
    ),
    "tokenslo_probe_duration_seconds": (
        "gauge",
        "How long the last request of our own that was answered took.",
        ("model",),
    ),
    "tokenslo_probe_requests": (
        "counter",
        "Requests of our own, by what came of them; the server counts them among all others.",
        ("model", "result"),
    ),
    "tokenslo_tap_connections": (
        "gauge",
        "Connections that a tap watches now.",
        ("tap",),
    ),
    "tokenslo_tap_connections_opened": (
        "counter",
        "Connections that a tap has watched.",
        ("tap",),
    ),
    "tokenslo_tap_refused": (
        "counter",
        "Connections and requests that the proxy tap did not let through, by reason.",
        ("tap", "reason"),
    ),
    "tokenslo_tap_passed_over": (
        "counter",
        "Requests and connections that a tap did not understand and left out, by reason.",
        ("tap", "reason"),
    ),
    "tokenslo_tap_lossy_streams": (
        "counter",
        "Streams left out because some of their bytes were not seen.",
        ("tap",),
    ),
    "tokenslo_tap_dropped_packets": (
        "counter",
        "Packets that the kernel dropped because the capture tap was behind.",
        ("tap",),
    ),
    "tokenslo_tap_late_reads": (
        "counter",
        "Reads of a proxy tap that its event loop was late for; they get the time at which the "
        "kernel received the last of the bytes.",
        ("tap",),
    ),
    "tokenslo_tap_late_gaps": (
        "counter",
        "Gaps between chunks that are in no histogram because a chunk was read late.",
        ("tap",),
    ),
    "tokenslo_tap_limited_labels": (
        "counter",
        "Requests counted as other in a label (model, tenant, reason), because the value is not "
        "known or there are too many series.",
        ("label",),
    ),
    "tokenslo_tap_restarts": (
        "counter",
        "Restarts of the tap process after an unexpected end.",
        (),
    ),
    "tokenslo_task_restarts": (
        "counter",
        "Restarts of background tasks that failed; every one is a defect to report.",
        ("task",),
    ),
    "tokenslo_otlp_exports": (
        "counter",
        "Pushes of metrics over OTLP, by what came of them.",
        ("result",),
    ),
}
"""Kind, help and labels by name; names of counters lack ``_total``."""
