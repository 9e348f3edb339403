"""Causes in SLO files: selectors, thresholds, queries and methods that do not fit the metrics."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

SLO_FILES = (
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
