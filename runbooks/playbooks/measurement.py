"""Causes in the measurement."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

MEASUREMENT = (
    Playbook(
        key="source_down",
        title="A source of the exporter is down",
        layer="measurement",
        symptoms=("A source of the exporter is down",),
        meaning=(
            "tokenslo_source_up is 0; the sidecar's status page has the error. If the "
            "model is not ready either, the engine has died; if it is ready, only the "
            "metrics are missing."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("sources", "The result is outside its healthy range.", "measurement"),
            Step("scraped", "The result is outside its healthy range.", "measurement"),
            Step("source_errors", "The result is outside its healthy range.", "measurement"),
        ),
        actions=(
            Action(
                "Query the server: `curl -i http://SERVER:8000/v2/health/ready` and `curl "
                "-i http://SERVER:8000/v2/models/MODEL/ready`."
            ),
            Action(
                "Query it in its pod: `curl -i http://127.0.0.1:9464/healthz`, then check "
                "Prometheus's page of targets."
            ),
            Action(
                ("If it is a proxy and does not answer, send clients to the server's own port."),
                "streams and goodput are not measured meanwhile",
            ),
            Action(
                (
                    "If the model is ready, compare the sidecar's `--triton-metrics` with the "
                    "port and path of Triton, which answers 200 with an empty body on a wrong "
                    "path."
                ),
                effort="Needs a restart of the sidecar",
            ),
            Action(
                (
                    "If it answers there and not to Prometheus, correct the address it listens "
                    "on (`--listen`, by default loopback only) or the scrape configuration."
                ),
                effort="Needs a restart of the sidecar",
            ),
            Action("Restart the sidecar's container.", effort="Needs a restart of the sidecar"),
        ),
        verified_by="sources",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
        see=("engine_death",),
    ),
    Playbook(
        key="records_lost",
        title="Records of the engine are dropped",
        layer="measurement",
        symptoms=("Records of the engine are dropped",),
        meaning=(
            "tokenslo_source_lost_records_total increases: iterations are missing, so "
            "rates and estimates from them are too low."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("lost", "The result is outside its healthy range.", "measurement"),),
        actions=(
            Action(
                "Look for a second reader: an engine returns each record once, to the first"
                " request."
            ),
            Action(
                (
                    "Shorten the sidecar's `--interval`: the engine queues a fixed number of "
                    "records and drops the oldest."
                ),
                "a little more work for the server",
                effort="Needs a restart of the sidecar",
            ),
        ),
        verified_by="lost",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="signal_unavailable",
        title="The server does not provide the signal",
        layer="measurement",
        symptoms=("The server does not provide the signal",),
        meaning=(
            "tokenslo_signal_info has quality unavailable. For time to first token on "
            "Triton (24.11 or later): the first-response histogram is off by default, "
            "and exists for decoupled models; with `counter_latencies=false` Triton "
            "freezes all its request counters at 0. Signals of streams and goodput need"
            " a tap."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("unavailable", "The result is outside its healthy range.", "measurement"),),
        actions=(
            Action(
                "Run `tokenslo server-config FILE` with this SLO file: it prints the flag "
                "(`--metrics-config histogram_latencies=true`) and the model_metrics stanza"
                " for config.pbtxt with a bucket at this objective's threshold."
            ),
            Action(
                (
                    "For streams and goodput start the sidecar with a tap: `--tap "
                    "proxy=:9000=127.0.0.1:8000`, with clients sent to port 9000, or `--tap "
                    "capture=eth0:8000` where it may have CAP_NET_RAW. `tokenslo doctor URL` "
                    "reports what any other signal needs."
                ),
                effort="Needs a restart of the sidecar",
            ),
            Action(
                (
                    "Restart Triton with the flag, and load the model again after changing "
                    "config.pbtxt."
                ),
                "active streams are lost: one instance at a time",
                effort="Needs a restart",
            ),
            Action(
                (
                    "If the backend has no such metric, remove the objective from the SLO file:"
                    " its alerts cannot work."
                ),
                "the objective is no longer monitored: notify its users",
                effort="Needs a plan",
            ),
        ),
        verified_by="unavailable",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="wrong_selector",
        title="The SLO file selects labels that do not exist",
        layer="measurement",
        symptoms=("The SLO file selects labels that do not exist",),
        meaning=(
            "The signal exists, under another model or version name: a renamed model, "
            "or a label that Prometheus's relabelling dropped."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("selected", "The result is outside its healthy range.", "measurement"),),
        actions=(
            Action(
                "Correct the selector in the SLO file, run `tokenslo generate`, and load "
                "the rules again."
            ),
        ),
        verified_by="selected",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="boundary_missing",
        title="The histogram lacks the threshold's bucket",
        layer="measurement",
        symptoms=("The histogram lacks the threshold's bucket",),
        meaning=(
            "A share within a threshold needs a bucket boundary at the threshold; "
            "without one there is no result."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("threshold", "The result is outside its healthy range.", "measurement"),),
        actions=(
            Action(
                (
                    "Start the sidecar with `--slo FILE` of this service: its own histograms "
                    "then have a boundary at every threshold."
                ),
                effort="Needs a restart of the sidecar",
            ),
            Action(
                (
                    "Where the histogram is Triton's own, add the boundary with the stanza that"
                    " `tokenslo server-config FILE` prints; unload and load the model."
                ),
                "active streams are lost: one instance at a time",
                effort="Needs a model reload",
            ),
        ),
        verified_by="threshold",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="no_result",
        title="The queries have no result",
        layer="measurement",
        symptoms=("The queries have no result",),
        meaning=(
            "Prometheus has no series for the objective's queries: the target is gone, "
            "its metrics or labels were renamed, or the query leaves out an idle "
            "service."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("queries", "The result is outside its healthy range.", "measurement"),),
        actions=(
            Action("Check Prometheus's page of targets for the jobs in the query."),
            Action("If metrics or labels were renamed, change the SLO file and generate again."),
        ),
        verified_by="queries",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="contradiction",
        title="The SLI is inconsistent",
        layer="measurement",
        symptoms=("The SLI is inconsistent",),
        meaning=(
            "Bad or good exceeds total, or a ratio is outside 0 to 1. The error ratio "
            "is meaningless until this is fixed."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("contradiction", "The result is outside its healthy range.", "measurement"),),
        actions=(
            Action(
                "Query bad and total separately, by job and instance: events that are "
                "counted twice, or by one query only, show as a factor between them."
            ),
            Action(
                "Find the change at its start: a release that gave a metric another meaning"
                " or unit (percent instead of a ratio), a second scrape job or recording "
                "rule with the same series."
            ),
            Action(
                "Correct the selector or the queries in the SLO file so that both sides "
                "count the same events, run `tokenslo generate`, and load the rules again."
            ),
        ),
        verified_by="contradiction",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="estimated",
        title="The number is an estimate",
        layer="measurement",
        symptoms=("The number is an estimate",),
        meaning=(
            'tokenslo_signal_info has quality="estimate" and the method. Estimates '
            "follow the trend; they need not agree with a client's clock."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("estimate", "The result is outside its healthy range.", "measurement"),),
        actions=(
            Action(
                "Confirm with a client or the gateway's log before an expensive mitigation.",
                "it takes minutes",
            ),
            Action(
                "Read the status page of the sidecar (its address without /metrics): it "
                "lists what the method leaves out, and what an exact method needs."
            ),
        ),
        verified_by="estimate",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
)
