"""Causes in the measurement, and their mitigations.

Facts about TensorRT-LLM and Triton are from their sources and documentation
(``batch_scheduler_policy``, ``kv_cache_free_gpu_mem_fraction``, ``--metrics-config``).
"""

from __future__ import annotations

from runbooks.mitigations import Action, Cause

MEASUREMENT_CAUSES = (
    Cause(
        "estimated",
        "The number is an estimate",
        'tokenslo_signal_info has quality="estimate" and the method. Estimates follow the '
        "trend; they need not agree with a client's clock.",
        (
            Action(
                "Confirm with a client or the gateway's log before an expensive mitigation.",
                "it takes minutes",
            ),
            Action(
                "Read the status page of the sidecar (its address without /metrics): it lists what "
                "the method leaves out, and what an exact method needs.",
            ),
        ),
    ),
    Cause(
        "no_result",
        "The queries have no result",
        "Prometheus has no series for the objective's queries: the target is gone, its metrics or "
        "labels were renamed, or the query leaves out an idle service.",
        (
            Action("Check Prometheus's page of targets for the jobs in the query."),
            Action(
                "If metrics or labels were renamed, change the SLO file and generate again.",
            ),
        ),
    ),
    Cause(
        "contradiction",
        "The SLI is inconsistent",
        "Bad or good exceeds total, or a ratio is outside 0 to 1. The error ratio is meaningless "
        "until this is fixed.",
        (
            Action(
                "Query bad and total separately, by job and instance: events that are counted "
                "twice, or by one query only, show as a factor between them.",
            ),
            Action(
                "Find the change at its start: a release that gave a metric another meaning or "
                "unit (percent instead of a ratio), a second scrape job or recording rule with the "
                "same series.",
            ),
            Action(
                "Correct the selector or the queries in the SLO file so that both sides count the "
                "same events, run `tokenslo generate`, and load the rules again.",
            ),
        ),
    ),
    Cause(
        "records_lost",
        "Records of the engine are dropped",
        "tokenslo_source_lost_records_total increases: iterations are missing, so rates and "
        "estimates from them are too low.",
        (
            Action(
                "Look for a second reader: an engine returns each record once, to the first "
                "request.",
            ),
            Action(
                "Shorten the sidecar's `--interval`: the engine queues a fixed number of records "
                "and drops the oldest.",
                "a little more work for the server",
                "Needs a restart of the sidecar",
            ),
        ),
    ),
    Cause(
        "sidecar_down",
        "The sidecar is down or not scraped",
        "Prometheus has no tokenslo_build_info. Requests are affected only where the sidecar is a "
        "proxy (`--tap proxy=…`): then clients are refused while it is down.",
        (
            Action(
                "Query it in its pod: `curl -i http://127.0.0.1:9464/healthz`, then check "
                "Prometheus's page of targets.",
            ),
            Action(
                "If it is a proxy and does not answer, send clients to the server's own port.",
                "streams and goodput are not measured meanwhile",
            ),
            Action(
                "If it answers there and not to Prometheus, correct the address it listens on "
                "(`--listen`, by default loopback only) or the scrape configuration.",
                effort="Needs a restart of the sidecar",
            ),
            Action(
                "Restart the sidecar's container.",
                effort="Needs a restart of the sidecar",
            ),
        ),
    ),
    Cause(
        "signal_off",
        "The server does not provide the signal",
        "tokenslo_signal_info has quality unavailable. For time to first token on Triton (24.11 or "
        "later): the first-response histogram is off by default, and exists for decoupled models; "
        "with `counter_latencies=false` Triton freezes all its request counters at 0. Signals of "
        "streams and goodput need a tap.",
        (
            Action(
                "Run `tokenslo server-config FILE` with this SLO file: it prints the flag "
                "(`--metrics-config histogram_latencies=true`) and the model_metrics stanza for "
                "config.pbtxt with a bucket at this objective's threshold.",
            ),
            Action(
                "For streams and goodput start the sidecar with a tap: `--tap "
                "proxy=:9000=127.0.0.1:8000`, with clients sent to port 9000, or `--tap "
                "capture=eth0:8000` where it may have CAP_NET_RAW. `tokenslo doctor URL` reports "
                "what any other signal needs.",
                effort="Needs a restart of the sidecar",
            ),
            Action(
                "Restart Triton with the flag, and load the model again after changing "
                "config.pbtxt.",
                "active streams are lost: one instance at a time",
                "Needs a restart",
            ),
            Action(
                "If the backend has no such metric, remove the objective from the SLO file: its "
                "alerts cannot work.",
                "the objective is no longer monitored: notify its users",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "boundary_missing",
        "The histogram lacks the threshold's bucket",
        "A share within a threshold needs a bucket boundary at the threshold; without one there is "
        "no result.",
        (
            Action(
                "Start the sidecar with `--slo FILE` of this service: its own histograms then "
                "have a boundary at every threshold.",
                effort="Needs a restart of the sidecar",
            ),
            Action(
                "Where the histogram is Triton's own, add the boundary with the stanza that "
                "`tokenslo server-config FILE` prints; unload and load the model.",
                "active streams are lost: one instance at a time",
                "Needs a model reload",
            ),
        ),
    ),
    Cause(
        "wrong_selector",
        "The SLO file selects labels that do not exist",
        "The signal exists, under another model or version name: a renamed model, or a label that "
        "Prometheus's relabelling dropped.",
        (
            Action(
                "Correct the selector in the SLO file, run `tokenslo generate`, and load the rules "
                "again.",
            ),
        ),
    ),
)
