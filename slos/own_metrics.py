"""The metrics of the sidecar about itself."""

from __future__ import annotations

from collections.abc import Mapping

from slos.signals import MODEL_LABELS, Kind

OWN_METRICS: Mapping[str, tuple[Kind, str, tuple[str, ...]]] = {
    "tokenslo_build_info": ("gauge", "Version of tokenslo; always 1.", ("version",)),
    "tokenslo_signal_info": (
        "gauge",
        "How each signal is obtained, or the reason why it is unavailable; always 1.",
        ("signal", *MODEL_LABELS, "method", "quality", "reason"),
    ),
    "tokenslo_model_info": (
        "gauge",
        "Models that the server reports, with their backend; always 1.",
        (*MODEL_LABELS, "backend", "decoupled"),
    ),
    "tokenslo_source_up": (
        "gauge",
        "Whether the last scrape of a source succeeded.",
        ("source",),
    ),
    "tokenslo_source_age_seconds": (
        "gauge",
        "Time since the last successful scrape of a source.",
        ("source",),
    ),
    "tokenslo_source_read_seconds": (
        "gauge",
        "Duration of the last scrape of a source.",
        ("source",),
    ),
    "tokenslo_source_errors": (
        "counter",
        "Failed scrapes of a source, by kind of failure.",
        ("source", "kind"),
    ),
    "tokenslo_source_lost_records": (
        "counter",
        "Records of a source known to be missing: consumed by another reader, or dropped from a "
        "full queue.",
        ("source",),
    ),
    "tokenslo_engine_stats_age_seconds": (
        "gauge",
        "Time since the engine last published an iteration; grows while the engine is idle or "
        "stuck.",
        MODEL_LABELS,
    ),
    "tokenslo_ready": (
        "gauge",
        "Whether a layer of readiness holds; absent where it cannot be determined.",
        ("layer", "source", *MODEL_LABELS),
    ),
    "tokenslo_probe_success": (
        "gauge",
        "Whether the last probe of a model succeeded.",
        ("model",),
    ),
    "tokenslo_probe_duration_seconds": (
        "gauge",
        "Duration of the last successful probe of a model.",
        ("model",),
    ),
    "tokenslo_probe_requests": (
        "counter",
        "Probe requests by result; the server's own counters include them.",
        ("model", "result"),
    ),
    "tokenslo_tap_connections": (
        "gauge",
        "Open connections of a tap.",
        ("tap",),
    ),
    "tokenslo_tap_connections_opened": (
        "counter",
        "Connections that a tap has opened or observed.",
        ("tap",),
    ),
    "tokenslo_tap_refused": (
        "counter",
        "Connections and requests refused by the proxy tap, by reason.",
        ("tap", "reason"),
    ),
    "tokenslo_tap_skipped": (
        "counter",
        "Requests and connections that a tap skipped because it cannot parse them, by reason.",
        ("tap", "reason"),
    ),
    "tokenslo_tap_lossy_streams": (
        "counter",
        "Streams skipped because some of their bytes were not captured.",
        ("tap",),
    ),
    "tokenslo_tap_dropped_packets": (
        "counter",
        "Packets that the kernel dropped because the capture tap was behind.",
        ("tap",),
    ),
    "tokenslo_tap_late_reads": (
        "counter",
        "Reads of a proxy tap delayed by its event loop; their time is that at which the kernel "
        "received the last of the bytes.",
        ("tap",),
    ),
    "tokenslo_tap_late_gaps": (
        "counter",
        "Gaps between chunks excluded from histograms because a chunk was read late.",
        ("tap",),
    ),
    "tokenslo_tap_limited_labels": (
        "counter",
        "Requests with the value other in a label (model, tenant, reason), because their value is "
        "unknown or the cardinality limit is reached.",
        ("label",),
    ),
    "tokenslo_tap_restarts": (
        "counter",
        "Restarts of the tap process after an unexpected end.",
        (),
    ),
    "tokenslo_tap_process_cpu_seconds": ("counter", "CPU time of the tap process.", ()),
    "tokenslo_tap_process_resident_memory_bytes": (
        "gauge",
        "Resident memory of the tap process.",
        (),
    ),
    "tokenslo_tap_process_open_fds": ("gauge", "Open file descriptors of the tap process.", ()),
    "tokenslo_tap_process_max_fds": (
        "gauge",
        "Maximum number of open file descriptors of the tap process.",
        (),
    ),
    "tokenslo_task_restarts": (
        "counter",
        "Restarts of failed background tasks; each one is a bug to report.",
        ("task",),
    ),
    "tokenslo_otlp_exports": (
        "counter",
        "Exports of metrics over OTLP, by result.",
        ("result",),
    ),
}
"""Kind, help and labels by name; names of counters lack ``_total``."""
