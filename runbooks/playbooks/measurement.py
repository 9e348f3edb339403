"""Causes in the measurement: sidecars, sources, signals and SLO files."""

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
                    "`--listen 0.0.0.0:9464`.\n"
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
    Playbook(
        key="wrong_selector",
        title="Wrong selector",
        layer="measurement",
        symptoms=("an alert on an absent metric, while other models have the signal",),
        meaning=(
            "The SLO file selects labels that no series has. The signal exists under another "
            "model or version name: a renamed model, or a label that relabelling dropped."
        ),
        impact="The objective is not measured.",
        steps=(
            Step("selected", "No row has the labels that the SLO file selects.", "measurement"),
        ),
        actions=(
            Action(
                "Correct `selector` in the SLO file, run `tokenslo generate`, and load the rules "
                "again.",
            ),
            Action(
                "If a label is missing from all rows, correct `metric_relabel_configs` of the "
                "scrape job, or `metricRelabelings` of the PodMonitor.",
            ),
        ),
        verified_by="selected",
        escalate="The model was renamed without notice: call its owner.",
        follow_up=("Run `tokenslo doctor URL --slo FILE` before a model is renamed.",),
        see=("signal_unavailable", "source_down"),
    ),
    Playbook(
        key="boundary_missing",
        title="Bucket boundary missing",
        layer="measurement",
        symptoms=("an alert on an absent metric of one threshold only",),
        meaning=(
            "The share of requests within a threshold needs a bucket boundary at exactly the "
            "threshold. The histogram has none, so the events are unavailable instead of guessed."
        ),
        impact="The objective is not measured. Dashboards with percentiles still work.",
        steps=(
            Step(
                "threshold",
                "These instances count requests but have no events for the threshold.",
                "measurement",
            ),
        ),
        actions=(
            Action(
                "Start the sidecar with `--slo FILE` of this service: its own histograms then "
                "have a boundary at every threshold.",
                effort="Needs a restart of the sidecar",
            ),
            Action(
                "If the histogram is the server's own, add the boundary there, and unload and "
                "load the model.",
                "active streams are lost: one instance at a time",
                "Needs a model reload",
                setting=(
                    "Triton: the `model_metrics` stanza that `tokenslo server-config FILE` "
                    "prints.\n"
                    "trtllm-serve 1.4 or later: `prometheus_metrics_config`."
                ),
            ),
            Action(
                "Otherwise set the threshold to a boundary that the histogram has.",
                "the objective changes: agree with its users",
                "Needs a plan",
            ),
        ),
        verified_by="threshold",
        escalate="The server's buckets cannot be changed: the owner of the service decides.",
        follow_up=("Deploy the SLO file to sidecars and Prometheus in one change.",),
        see=("signal_unavailable",),
    ),
    Playbook(
        key="no_result",
        title="Queries without a result",
        layer="measurement",
        symptoms=("an alert on an absent metric of an objective with queries of its own",),
        meaning=(
            "Prometheus has no series for the objective's queries. The target is gone, its "
            "metrics or labels were renamed, or the query has no result for an idle service."
        ),
        impact="The objective is not measured.",
        steps=(
            Step(
                "queries",
                "There is no result: the target, a metric or a label is missing.",
                "measurement",
            ),
        ),
        actions=(
            Action("Check the jobs of the query on Prometheus's page of targets."),
            Action(
                "If metrics or labels were renamed, change the SLO file, run `tokenslo generate` "
                "and load the rules again.",
            ),
            Action(
                "If the service was idle, let the query return 0: `… or vector(0)` for the bad "
                "events, never for the total.",
            ),
        ),
        verified_by="queries",
        escalate="The target was removed without notice: call its owner.",
        follow_up=("Run `tokenslo lint` on dashboards and rules when the service is updated.",),
        see=("contradiction",),
    ),
    Playbook(
        key="contradiction",
        title="Inconsistent SLI",
        layer="measurement",
        symptoms=("bad events exceed all events, or a ratio is outside 0 to 1",),
        meaning=(
            "Bad or good events exceed the total, or a ratio is outside 0 to 1. The two queries "
            "do not count the same events, or one of them counts some twice."
        ),
        impact="The error ratio is meaningless, and so are the alerts of this objective.",
        steps=(Step("contradiction", "The SLI is inconsistent now.", "measurement"),),
        actions=(
            Action(
                "Query bad and total separately, by job and instance. A constant factor between "
                "two jobs is a second scrape of the same events.",
            ),
            Action(
                "Find the change at its start: a release that gave a metric another meaning or "
                "unit (percent instead of a ratio), a second scrape job, a recording rule with "
                "the same series.",
            ),
            Action(
                "Correct the selector or the queries in the SLO file so that both sides count the "
                "same events. Run `tokenslo generate`, and load the rules again.",
            ),
        ),
        verified_by="contradiction",
        escalate="The metric of another team changed its meaning: call its owner.",
        follow_up=("Correct or annotate the period in the report: the budget includes it.",),
        see=("no_result",),
    ),
    Playbook(
        key="estimated",
        title="The objective is an estimate",
        layer="measurement",
        symptoms=("`tokenslo_signal_info` has quality `estimate`",),
        meaning=(
            "The signal is derived, not measured. Estimates follow the trend; they need not "
            "agree with a client's clock. The label `method` and the reference of signals have "
            "the error of each."
        ),
        impact="An alert may be early, late or absent by the error of the method.",
        steps=(Step("estimate", "These signals of the objective are estimates.", "measurement"),),
        actions=(
            Action(
                "Confirm with a client or the gateway's log before an expensive mitigation.",
                "it takes minutes",
            ),
            Action(
                "Read the status page of the sidecar (its address without /metrics): it has what "
                "the method leaves out, and what an exact method needs.",
            ),
        ),
        verified_by="estimate",
        escalate="The estimate contradicts the clients: trust the clients, and report a bug.",
        follow_up=("Add a tap where the objective pages: its latencies are exact.",),
        see=("signal_unavailable",),
    ),
)
