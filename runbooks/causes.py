"""The catalogue of causes by key, and the causes common to all services.

Each cause lists its mitigations in the order to try them: reversible ones come first.
"""

from __future__ import annotations

from collections.abc import Mapping

from runbooks.client_causes import CLIENT_CAUSES
from runbooks.engine_causes import ENGINE_CAUSES
from runbooks.measurement_causes import MEASUREMENT_CAUSES
from runbooks.mitigations import Action, Cause

_SERVICE_CAUSES = (
    Cause(
        "cause_alert",
        "A cause alert fires",
        "The signals show a known cause. Each cause alert has a page of its own, with "
        "the name of the alert.",
        (Action("Mitigate as on the page of the cause alert."),),
    ),
    Cause(
        "failing_clause",
        "One clause fails most requests",
        "The clause that most bad requests failed first shows what users notice.",
        (
            Action(
                "ttft or queue: requests wait. Continue with the steps about waiting, the batch "
                "and the KV cache.",
            ),
            Action(
                "tpot or max_gap: streams are slow or stall. Continue with the steps about paused "
                "sequences, prompts and output.",
            ),
            Action(
                "e2e: responses are long, or everything is slow. Continue with the step about "
                "responses.",
            ),
            Action(
                "outcome: requests fail, whatever their times. Continue with the step about "
                "errors.",
            ),
        ),
    ),
    Cause(
        "budget_spent",
        "The budget is spent",
        "More events of the period were bad than the objective allows, in one long incident or in "
        "many short ones: the burn rate on the dashboard shows which.",
        (
            Action(
                "Stop rollouts that do not improve reliability until the budget is back.",
                "features are late",
            ),
            Action(
                "List the incidents of the period by the budget that each spent; fix the largest "
                "first.",
            ),
            Action(
                "If users did not notice, the target is stricter than needed: agree on another one "
                "with the users, and change the SLO file.",
                "a target that follows the failures is no objective",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "service",
        "The service or a dependency fails",
        "The objective has queries of its own; tokenslo has no other signals of the service. Find "
        "the time at which the burn rate rose on the dashboard.",
        (
            Action(
                "Revert the last change before that time: a rollout, a configuration, a feature "
                "flag.",
                "the change is lost",
            ),
            Action("Read the service's own dashboard and logs, then those of its dependencies."),
        ),
    ),
    Cause(
        "more_traffic",
        "More traffic than usual",
        "Events per second are far above the day before, and the errors came with them.",
        (
            Action(
                "Shed load at the gateway, the lowest priority first.",
                "some users are refused",
            ),
            Action("Add instances.", effort="Needs a plan"),
        ),
    ),
    Cause(
        "bad_instance",
        "Some instances are worse than others",
        "The share of bad events differs between instances under the same traffic.",
        (
            Action(
                "Take them out of traffic, and leave one running for diagnosis.",
                "the others take their load: check that they have headroom",
            ),
            Action("Compare their version, configuration and node with those of the others."),
        ),
    ),
    Cause(
        "still_burning",
        "The budget still burns",
        "The burn rate over the short window is above 1: the incident is not over.",
        (Action("Work on the page of the burn-rate alert first."),),
    ),
)

CAUSES: Mapping[str, Cause] = {
    cause.key: cause
    for cause in (*_SERVICE_CAUSES, *ENGINE_CAUSES, *CLIENT_CAUSES, *MEASUREMENT_CAUSES)
}
