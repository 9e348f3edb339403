"""Causes in clients and gateways, and failures of requests."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

CLIENTS = (
    Playbook(
        key="timeout_storm",
        title="A retry storm, or a surge",
        layer="client",
        symptoms=("A retry storm, or a surge",),
        meaning=(
            "Requests increase when latency exceeds a client's or gateway's timeout, "
            "with the same prompts again (llm_suspected_retries_total). The engine "
            "still computes abandoned requests, so the storm outlasts its trigger."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("arrivals", "The result is outside its healthy range.", "client"),
            Step("retries", "The result is outside its healthy range.", "client"),
        ),
        actions=(
            Action(
                (
                    "Answer 429 with Retry-After at the gateway, and limit retries to a share "
                    "of the requests (10% is plenty) with jitter."
                ),
                "some users are refused",
            ),
            Action(
                "Make sure that a client disconnect cancels the request. A gateway that "
                "keeps its upstream connection open hides it from Triton."
            ),
            Action("Cancel requests at the gateway that are older than their client's timeout."),
            Action(
                "Lengthen the client's timeout, or let it count from the first token.",
                "users wait longer before they see an error",
                effort="Needs a plan",
            ),
        ),
        verified_by="retries",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="gateway_timeout",
        title="A gateway cuts the streams",
        layer="gateway",
        symptoms=("A gateway cuts the streams",),
        meaning=(
            "Streams end at one age (10, 15, 30, 60, 300 s), or after a constant idle "
            "time, with status 200 and no final event. Triton counts such a request as "
            "a success. A sidecar with a tap counts a client disconnect; the spike in "
            "llm_disconnect_age_seconds is the timeout."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("gateway", "The result is outside its healthy range.", "gateway"),
            Step("ages", "The result is outside its healthy range.", "gateway"),
        ),
        actions=(
            Action(
                "Search the gateway's log for durations that repeat exactly. Check every "
                "hop: there may be two deadlines."
            ),
            Action(
                (
                    "Replace the route's total timeout by an idle timeout of about 300 s for "
                    "streaming paths."
                ),
                "a hung upstream is noticed later",
            ),
            Action(
                "Send SSE comments until the first token, so that the stream is never idle.",
                "clients must ignore SSE comments, as the standard requires",
                effort="Needs a plan",
            ),
        ),
        verified_by="ages",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="wasted_work",
        title="The server works for disconnected clients",
        layer="gateway",
        symptoms=("The server works for disconnected clients",),
        meaning=(
            "llm_wasted_tokens_total increases, llm_disconnect_release_seconds is long:"
            " the server does not detect the disconnect, and slots and KV-cache blocks "
            "stay in use."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("wasted", "The result is outside its healthy range.", "gateway"),),
        actions=(
            Action(
                "Make every hop forward a disconnect: a gateway that keeps its upstream "
                "connection open hides it from the server."
            ),
            Action(
                (
                    "Cancel on disconnect in the model where the server does not: Python models"
                    " must call response_sender.is_cancelled(), and gRPC clients must cancel "
                    "their stream."
                ),
                effort="Needs a model reload",
            ),
            Action(
                ("Until then, lower the limit of max_tokens at the gateway: it bounds the waste."),
                "long responses are cut",
                effort="Needs a plan",
            ),
        ),
        verified_by="wasted",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="slow_clients",
        title="Clients do not read",
        layer="client",
        symptoms=("Clients do not read",),
        meaning=(
            "llm_client_backpressure_seconds_total increases: clients do not read the "
            "data that is ready for them. A few clients on bad networks are normal; "
            "many at once are a gateway or proxy."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("reading", "The result is outside its healthy range.", "client"),),
        actions=(
            Action(
                "Compare with the gateway's metrics: a gateway that does not read is "
                "overloaded, or waits for its own clients."
            ),
            Action(
                (
                    "Set a write timeout at the gateway: disconnect a client that reads nothing"
                    " for a minute."
                ),
                "clients on very bad networks lose their stream",
            ),
            Action(
                "Turn off buffering of responses on the streaming paths of every hop.",
                effort="Needs a plan",
            ),
        ),
        verified_by="reading",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="failures",
        title="Requests fail in the server",
        layer="backend",
        symptoms=("Requests fail in the server",),
        meaning=(
            "Outcome error. Reason BACKEND: the engine or the model. Reason OTHER: a "
            "step of an ensemble, or before execution. Triton's Python backends report "
            "only raised exceptions: an error sent as a response counts as a success."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("died", "The result is outside its healthy range.", "backend"),
            Step("errors", "The result is outside its healthy range.", "backend"),
        ),
        actions=(
            Action(
                "Read the server's log at the time of the first failure; one kind of "
                "request (tools, guided decoding, images, very long) often explains all of "
                "them."
            ),
            Action("Refuse that kind of request at the gateway.", "those users are refused"),
            Action(
                "Take failing instances out of traffic; restart them one at a time.",
                "their active streams are lost",
                effort="Needs a restart",
            ),
        ),
        verified_by="errors",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="broken_streams",
        title="Streams break off in the middle",
        layer="instance",
        symptoms=("Streams break off in the middle",),
        meaning=(
            "llm_streams_total has failures in the phase mid_stream: an error event "
            "under status 200, an incomplete response, a reset, a deadline. Each is a "
            "user with half a response."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("broken", "The result is outside its healthy range.", "instance"),),
        actions=(
            Action(
                "Compare the outcomes: timeout is a deadline of the request or of the "
                "server's queue; error with many streams at the same moment is an engine or"
                " an instance that died."
            ),
            Action(
                "Take the instance with most of them out of traffic.", "the others take its load"
            ),
            Action(
                (
                    "If they come with rollouts or scaling down, drain first: no new requests, "
                    "and a grace period as long as the longest response."
                ),
                "rollouts take longer",
                effort="Needs a plan",
            ),
        ),
        verified_by="broken",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
        see=(
            "failures",
            "engine_death",
        ),
    ),
)
