"""Causes of objectives on other metrics, and of budget policies."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

GENERIC = (
    Playbook(
        key="service",
        title="The service or a dependency fails",
        layer="backend",
        symptoms=("an objective with queries of its own burns its budget",),
        meaning=(
            "The objective has queries of its own, and tokenslo has no other signals of the "
            "service. Its own dashboard and logs have the cause; this page has the order to look."
        ),
        impact="Users of this service get less than its objective requires.",
        steps=(
            Step(
                "goes_on",
                "The incident is active. The time at which the error ratio rose is the time to "
                "look for in logs and changes.",
                "backend",
            ),
            Step(
                "more_events",
                "More traffic than a day ago: overload comes before other causes.",
                "client",
            ),
        ),
        actions=(
            Action(
                "Revert the last change before the error ratio rose: a rollout, a configuration, "
                "a feature flag.",
                "the change is lost",
            ),
            Action(
                "Read the service's own dashboard and logs, then those of its dependencies.",
            ),
            Action(
                "Take failing instances out of traffic.",
                "the others take their load: check that they have headroom",
            ),
        ),
        verified_by="goes_on",
        escalate="No change explains it after 15 minutes: call the owner of the service.",
        follow_up=(
            "Add alerts or objectives for the dependency that failed.",
            "Link the service's own runbook in the description of the SLO file.",
        ),
        see=("more_traffic", "bad_instance"),
    ),
    Playbook(
        key="more_traffic",
        title="More traffic than usual",
        layer="client",
        symptoms=("events per second are over twice those of a day ago",),
        meaning=(
            "Events per second are far above those of the day before, and errors came with them. "
            "The service has less capacity than its clients need."
        ),
        impact="Requests queue, time out or fail, for all clients and not only for the new ones.",
        steps=(
            Step(
                "more_events",
                "The surge is real. Compare with retries: clients repeat failed requests.",
                "client",
            ),
            Step("instances", "Some instances only: the load is not spread evenly.", "gateway"),
        ),
        actions=(
            Action(
                "Limit the client that sends the surge, at the gateway.",
                "that client is refused",
                setting="NGINX `limit_req` with a key of the client, Envoy's local rate limit",
            ),
            Action(
                "Shed load at the gateway: status 429 with `Retry-After`, the lowest priority "
                "first.",
                "some users are refused",
                setting="NGINX: `limit_req`, `limit_req_status 429`.\nEnvoy: `local_ratelimit`.",
            ),
            Action(
                "Add instances.",
                "they help only after their start",
                "Needs a plan",
            ),
        ),
        verified_by="more_events",
        escalate="The surge is an attack or an unknown client: call the owner of the gateway.",
        follow_up=(
            "Set limits for each client at the gateway.",
            "Scale on the queue, not on CPU or GPU utilization.",
        ),
        see=("timeout_storm", "overload"),
    ),
    Playbook(
        key="bad_instance",
        title="Some instances are worse than others",
        layer="instance",
        symptoms=("the share of bad events differs between instances",),
        meaning=(
            "Instances with the same kind of traffic have different shares of bad events. What "
            "differs between them is the cause: version, configuration, node, GPU, or start time."
        ),
        impact="Users whose requests go to these instances notice it; the others do not.",
        steps=(
            Step("instances", "The instances in the result are the bad ones.", "instance"),
            Step("versions", "They run another version: a rollout.", "artifact or configuration"),
            Step("recent_start", "They have just started.", "instance"),
            Step(
                "traffic_one_instance",
                "They get more requests than the others: the load balancer.",
                "gateway",
            ),
        ),
        actions=(
            Action(
                "Take them out of traffic, and keep one running for the diagnosis.",
                "the others take their load: check that they have headroom",
            ),
            Action(
                "Compare version, configuration, node, driver and GPU clocks with those of a good "
                "instance.",
                setting="`nvidia-smi -q`, `nvidia-smi nvlink -s`, XID messages in the kernel log.",
            ),
            Action(
                "Drain the node, if all instances on it are bad.",
                "less capacity",
                "Needs a plan",
                "`kubectl drain NODE --ignore-daemonsets`",
            ),
        ),
        verified_by="instances",
        escalate="The bad instances share a node or a zone: call the owner of the nodes.",
        follow_up=("Add what differed to the readiness check or to the admission of the node.",),
        see=("bad_rollout", "cold_start", "slow_engine"),
    ),
    Playbook(
        key="budget_spent",
        title="The error budget is spent",
        layer="artifact or configuration",
        symptoms=("an alert on an exhausted budget or a budget policy",),
        meaning=(
            "More events of the period were bad than the objective allows: in one long incident, "
            "or in many short ones. The burn rate on the dashboard shows which."
        ),
        impact=(
            "The objective is missed for this period, whatever happens now. Every further "
            "incident adds to it."
        ),
        steps=(
            Step(
                "still_burning",
                "The budget still burns: this is an active incident. Start with the page of the "
                "burn-rate alert.",
                "backend",
            ),
        ),
        actions=(
            Action(
                "Take the action of the budget policy. Without one, stop rollouts that do not "
                "improve reliability until the budget is back.",
                "features are late",
            ),
            Action(
                "List the incidents of the period by the budget that each one spent. Fix the "
                "largest first.",
            ),
            Action(
                "If users did not notice, the target is stricter than they need: agree on another "
                "one with them, and change the SLO file.",
                "a target that follows the failures is no objective",
                "Needs a plan",
                setting="`target` of the objective in the SLO file, then `tokenslo generate`.",
            ),
        ),
        verified_by="still_burning",
        escalate="A rollout cannot wait: the owner of the service decides.",
        follow_up=("Review the objectives with the owner of the service each period.",),
        see=("still_burning",),
    ),
    Playbook(
        key="still_burning",
        title="The error budget still burns",
        layer="backend",
        symptoms=("the budget is spent and the error ratio is above the error budget",),
        meaning="The incident that spends the budget is active.",
        impact="Users notice it now, as the page of the burn-rate alert describes.",
        steps=(
            Step(
                "still_burning",
                "The error ratio of the last minutes is above the error budget.",
                "backend",
            ),
        ),
        actions=(
            Action("Open the page of the objective's burn-rate alert, and work on that first."),
        ),
        verified_by="still_burning",
        escalate="As on the page of the burn-rate alert.",
        follow_up=("Return to the exhausted budget when the incident is over.",),
        see=("latency_spike", "failures"),
    ),
)
