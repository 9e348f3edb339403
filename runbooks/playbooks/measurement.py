"""Causes in the measurement: sidecars, sources and signals."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

_LINKS = """\
flowchart TD
  build{"Does Prometheus scrape the sidecar?"} -->|no| healthz{"curl /healthz in its pod"}
  healthz -->|no answer| dead["Sidecar down: restart it"]
  healthz -->|200| address["Its --listen address or the scrape configuration is wrong"]
  build -->|yes| up{"Does the sidecar scrape the server?"}
  up -->|yes| other["Signal unavailable, or wrong selector"]
  up -->|no| kind{"Which kind of error?"}
  kind -->|empty, status, malformed| path["Wrong path or wrong server: --triton-metrics"]
  kind -->|refused, unreachable| ready{"curl /v2/health/ready"}
  kind -->|timeout| busy["Stuck decode or overload"]
  ready -->|200| port["Wrong port, or metrics are off"]
  ready -->|no answer| engine["Engine death"]
"""

MEASUREMENT = (
    Playbook(
        key="source_down",
        title="Exporter source down",
        layer="measurement",
        symptoms=(
            "`tokenslo_source_up` is 0, or absent",
            "the dashboard and the objectives have no data",
        ),
        meaning=(
            "A link of the chain server, sidecar, Prometheus is broken. The sidecar withdraws "
            "the series of a source that it cannot scrape, so there are gaps instead of old "
            "values.\n\n"
            "Two commands in the pod find the link: `curl -i http://127.0.0.1:9464/healthz` is "
            "the sidecar, `curl -i http://127.0.0.1:8000/v2/health/ready` is Triton. Both answer "
            "200: the address or the path between them is wrong."
        ),
        impact=(
            "Objectives of this server are not measured, and their alerts cannot fire. Requests "
            "fail only if the server itself is down, or if a proxy tap is in their path and down."
        ),
        steps=(
            Step(
                "scraped",
                "Prometheus gets nothing from the sidecar: it is down, or not scraped. The steps "
                "below have no result then.",
                "measurement",
            ),
            Step(
                "sources",
                "The sidecar runs. The label `source` names what it cannot scrape: `taps` is its "
                "own tap process, the others are servers.",
                "measurement",
            ),
            Step(
                "source_errors",
                "`refused`, `unreachable`: no server at this address. `timeout`: a stuck or "
                "overloaded server; trtllm-serve up to 1.1 answers `/metrics` only while no "
                "request is under way. `status`: a wrong path. `empty`: status 200 without a "
                "body, as Triton's metrics port answers any path but `/metrics`. `malformed`: "
                "another server.",
                "measurement",
            ),
            Step(
                "not_ready",
                "The model is not ready either: the engine has died or is loading. This is an "
                "incident of the server.",
                "instance",
            ),
            Step(
                "probe_fails",
                "Requests fail as well: this is an incident of the server.",
                "backend",
            ),
        ),
        actions=(
            Action(
                "Query the server: `curl -i http://SERVER:8000/v2/health/ready` and "
                "`curl -i http://SERVER:8000/v2/models/MODEL/ready`. If they fail, continue with "
                "the playbook on engine death.",
            ),
            Action(
                "Query its metrics: `curl -s http://SERVER:8002/metrics | wc -c`. 0 bytes is a "
                "wrong path, a refused connection a wrong port or metrics that are off.",
                setting=(
                    "Triton: `--metrics-port` (default 8002), `--metrics-address` (default: that "
                    "of HTTP), `--allow-metrics`."
                ),
            ),
            Action(
                "Query the sidecar in its pod, then read Prometheus's page of targets. Its status "
                "page (the address without /metrics) has the error of each source.",
            ),
            Action(
                "If the sidecar is a proxy and does not answer, send clients to the server's own "
                "port.",
                "streams and goodput are not measured meanwhile",
            ),
            Action(
                "Correct the sidecar's address of the metrics: `--triton-metrics`.",
                effort="Needs a restart of the sidecar",
                setting=(
                    "`--triton-metrics http://127.0.0.1:8002/metrics`, `--timeout` (default 2s), "
                    "`--max-bytes` (default 8MiB)."
                ),
            ),
            Action(
                "If it answers in its pod and not to Prometheus, correct the address it listens "
                "on (`--listen`, by default loopback only) or the scrape configuration.",
                effort="Needs a restart of the sidecar",
                setting=(
                    "`--listen 0.0.0.0:9464`, with `--web-config FILE` or "
                    "`--allow-unauthenticated`.\n"
                    "Prometheus Operator: the PodMonitor's "
                    "`podMetricsEndpoints.port` must be a declared container port."
                ),
            ),
            Action(
                "Restart the sidecar's container.",
                effort="Needs a restart of the sidecar",
                setting="`kubectl exec POD -c CONTAINER -- kill 1`: the server runs on",
            ),
        ),
        verified_by="sources",
        escalate="The server is down too: call the owner of the model.",
        follow_up=(
            "Alert on `tokenslo_source_up == 0` (ExporterSourceDown) if it did not fire.",
            "Run `tokenslo doctor URL` after each change of the server's ports or flags.",
        ),
        see=("engine_death", "load_failure", "stuck_decode", "signal_unavailable"),
        diagram=_LINKS,
    ),
    Playbook(
        key="records_lost",
        title="Engine records lost",
        layer="measurement",
        symptoms=("`tokenslo_source_lost_records_total` increases",),
        meaning=(
            "Records of the engine's iterations are missing. Another reader consumes them, as "
            "the engine returns each record once, or its queue was full before the sidecar's "
            "next scrape."
        ),
        impact="Rates and estimates from these records are too low. Users notice nothing.",
        steps=(
            Step(
                "lost",
                "Records are missing now; the label `source` names the server.",
                "measurement",
            ),
            Step(
                "sources",
                "Scrapes fail, and records are dropped between them: solve this first.",
                "measurement",
            ),
        ),
        actions=(
            Action(
                "Find the second reader of trtllm-serve's `/metrics` or `/perf_metrics`: another "
                "sidecar, a Prometheus job, a script. Stop it.",
                "its own data ends",
            ),
            Action(
                "Shorten the sidecar's `--interval`: the engine queues a fixed number of records "
                "and drops the oldest.",
                "a little more work for the server",
                "Needs a restart of the sidecar",
                setting="`--interval 500ms` (default 1s).",
            ),
            Action(
                "Lengthen the engine's queue.",
                "more memory in the server",
                "Needs a restart",
                setting="trtllm-serve: `iter_stats_max_iterations` (default 1000).",
            ),
        ),
        verified_by="lost",
        escalate="Records are lost with one reader and a short interval: report a bug.",
        follow_up=("Keep one reader per server: other tools can scrape the sidecar.",),
        see=("estimated",),
    ),
    Playbook(
        key="signal_unavailable",
        title="Signal unavailable",
        layer="measurement",
        symptoms=(
            "`tokenslo_signal_info` has quality `unavailable`",
            "an alert on an absent metric, while the server serves requests",
        ),
        meaning=(
            "The server or its configuration does not provide the signal, so the sidecar serves "
            "no series for it. The status page and `tokenslo doctor` have the reason and the fix."
        ),
        impact="The objective is not measured: its requests count as neither good nor bad.",
        steps=(
            Step(
                "unavailable",
                "The labels `signal` and `reason` name the signal and what it lacks.",
                "measurement",
            ),
            Step("sources", "A source is down: its signals come back with it.", "measurement"),
        ),
        actions=(
            Action(
                "Run `tokenslo server-config FILE` with this SLO file. It prints Triton's flag "
                "and the `model_metrics` stanza for `config.pbtxt`, with a bucket at each "
                "threshold.",
            ),
            Action(
                "For streams and goodput start the sidecar with a tap: `--tap "
                "proxy=:9000=127.0.0.1:8000`, with clients sent to port 9000, or `--tap "
                "capture=eth0:8000` where it may have CAP_NET_RAW.",
                effort="Needs a restart of the sidecar",
            ),
            Action(
                "Load the model again after changing `config.pbtxt`.",
                "active streams are lost: one instance at a time",
                "Needs a model reload",
                setting=(
                    'vLLM backend: `parameters: { key: "REPORT_CUSTOM_METRICS" value: { '
                    'string_value: "true" } }`.'
                ),
            ),
            Action(
                "Restart the server with the flags of the signal.",
                "active streams are lost: one instance at a time",
                "Needs a restart",
                setting=(
                    "Triton 24.11 or later: `--metrics-config histogram_latencies=true`; never "
                    "`counter_latencies=false`, which freezes its request counters at 0.\n"
                    "trtllm-serve: `enable_iter_perf_stats: true` and `return_perf_metrics: true`."
                ),
            ),
            Action(
                "If the backend has no such metric, remove the objective from the SLO file: its "
                "alerts cannot work.",
                "the objective is no longer monitored: notify its users",
                "Needs a plan",
            ),
        ),
        verified_by="unavailable",
        escalate="The server may not be restarted or tapped: the owner of the service decides.",
        follow_up=(
            "Run `tokenslo doctor URL --slo FILE` in the server's rollout: it exits with 1.",
        ),
        see=("source_down", "boundary_missing"),
    ),
)
