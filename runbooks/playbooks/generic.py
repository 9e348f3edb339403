"""Causes of objectives on other metrics, and of budget policies."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

GENERIC = (
    Playbook(
        key="budget_spent",
        title="The budget is spent",
        layer="client",
        symptoms=("The budget is spent",),
        meaning=(
            "More events of the period were bad than the objective allows, in one long "
            "incident or in many short ones: the burn rate on the dashboard shows "
            "which."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("still_burning", "The result is outside its healthy range.", "client"),),
        actions=(
            Action(
                "Stop rollouts that do not improve reliability until the budget is back.",
                "features are late",
            ),
            Action(
                "List the incidents of the period by the budget that each spent; fix the "
                "largest first."
            ),
            Action(
                (
                    "If users did not notice, the target is stricter than needed: agree on "
                    "another one with the users, and change the SLO file."
                ),
                "a target that follows the failures is no objective",
                effort="Needs a plan",
            ),
        ),
        verified_by="still_burning",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="service",
        title="The service or a dependency fails",
        layer="instance",
        symptoms=("The service or a dependency fails",),
        meaning=(
            "The objective has queries of its own; tokenslo has no other signals of the"
            " service. Find the time at which the burn rate rose on the dashboard."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("goes_on", "The result is outside its healthy range.", "instance"),),
        actions=(
            Action(
                (
                    "Revert the last change before that time: a rollout, a configuration, a "
                    "feature flag."
                ),
                "the change is lost",
            ),
            Action("Read the service's own dashboard and logs, then those of its dependencies."),
        ),
        verified_by="goes_on",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="more_traffic",
        title="More traffic than usual",
        layer="client",
        symptoms=("More traffic than usual",),
        meaning=("Events per second are far above the day before, and the errors came with them."),
        impact="Users notice what the alert's page states.",
        steps=(Step("more_events", "The result is outside its healthy range.", "client"),),
        actions=(
            Action(
                "Shed load at the gateway, the lowest priority first.", "some users are refused"
            ),
            Action("Add instances.", effort="Needs a plan"),
        ),
        verified_by="more_events",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="bad_instance",
        title="Some instances are worse than others",
        layer="instance",
        symptoms=("Some instances are worse than others",),
        meaning="The share of bad events differs between instances under the same traffic.",
        impact="Users notice what the alert's page states.",
        steps=(Step("instances", "The result is outside its healthy range.", "instance"),),
        actions=(
            Action(
                "Take them out of traffic, and leave one running for diagnosis.",
                "the others take their load: check that they have headroom",
            ),
            Action("Compare their version, configuration and node with those of the others."),
        ),
        verified_by="instances",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="still_burning",
        title="The budget still burns",
        layer="instance",
        symptoms=("The budget still burns",),
        meaning="The burn rate over the short window is above 1: the incident is not over.",
        impact="Users notice what the alert's page states.",
        steps=(Step("still_burning", "The result is outside its healthy range.", "instance"),),
        actions=(Action("Work on the page of the burn-rate alert first."),),
        verified_by="still_burning",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
)
