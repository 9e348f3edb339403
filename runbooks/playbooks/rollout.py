"""Causes in what is deployed: model, configuration, image."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

ROLLOUT = (
    Playbook(
        key="bad_rollout",
        title="A bad rollout",
        layer="artifact or configuration",
        symptoms=("A bad rollout",),
        meaning=(
            "One version, or the instances that restarted last, are worse than the rest"
            " at the same mix of prompts, often without any error."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step(
                "versions", "The result is outside its healthy range.", "artifact or configuration"
            ),
        ),
        actions=(
            Action(
                "Send the traffic back to the previous version.",
                ("the previous version must still be loaded; otherwise its load time comes first"),
            ),
            Action(
                (
                    "If only some nodes are worse on the same version, compare drivers, clocks "
                    "and NVLink state; drain the node that differs."
                ),
                "less capacity",
            ),
            Action(
                "Roll back.",
                (
                    "loading a model takes minutes in which capacity is missing: one instance "
                    "at a time"
                ),
                effort="Needs a model reload",
            ),
        ),
        verified_by="versions",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="cold_start",
        title="A cold start",
        layer="instance",
        symptoms=("A cold start",),
        meaning="An instance or a model has started recently and is slow until it is warm.",
        impact="Users notice what the alert's page states.",
        steps=(
            Step("sources", "The result is outside its healthy range.", "instance"),
            Step("recent_start", "The result is outside its healthy range.", "instance"),
        ),
        actions=(Action("Follow the steps of the diagnosis; mitigate what they find."),),
        verified_by="waiting",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="load_failure",
        title="A model fails to load",
        layer="artifact or configuration",
        symptoms=("A model fails to load",),
        meaning="The server runs, but the model is not ready to serve.",
        impact="Users notice what the alert's page states.",
        steps=(
            Step(
                "sources", "The result is outside its healthy range.", "artifact or configuration"
            ),
            Step(
                "not_ready", "The result is outside its healthy range.", "artifact or configuration"
            ),
        ),
        actions=(Action("Follow the steps of the diagnosis; mitigate what they find."),),
        verified_by="sources",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="bad_inference",
        title="The model is ready, but its responses are bad",
        layer="artifact or configuration",
        symptoms=("The model is ready, but its responses are bad",),
        meaning=(
            "Health endpoints return 200 and requests succeed, but the responses are "
            "empty or garbage."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step(
                "answers", "The result is outside its healthy range.", "artifact or configuration"
            ),
            Step(
                "probe_fails",
                "The result is outside its healthy range.",
                "artifact or configuration",
            ),
            Step(
                "short_answers",
                "The result is outside its healthy range.",
                "artifact or configuration",
            ),
        ),
        actions=(Action("Follow the steps of the diagnosis; mitigate what they find."),),
        verified_by="answers",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="slow_stage",
        title="One stage of an ensemble is slow",
        layer="backend",
        symptoms=("One stage of an ensemble is slow",),
        meaning=("The engine is as fast as before; another stage of the ensemble takes the time."),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("output", "The result is outside its healthy range.", "backend"),
            Step("stage_slow", "The result is outside its healthy range.", "backend"),
        ),
        actions=(Action("Follow the steps of the diagnosis; mitigate what they find."),),
        verified_by="output",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="canary_mix",
        title="The canary passed and production failed",
        layer="client",
        symptoms=("The canary passed and production failed",),
        meaning=(
            "The canary received other traffic than production: shorter prompts, fewer "
            "concurrent requests."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("prompts", "The result is outside its healthy range.", "client"),
            Step("mix_by_version", "The result is outside its healthy range.", "client"),
        ),
        actions=(Action("Follow the steps of the diagnosis; mitigate what they find."),),
        verified_by="versions",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
)
