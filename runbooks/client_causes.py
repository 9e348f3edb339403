"""Causes in clients and gateways, and their mitigations."""

from __future__ import annotations

from runbooks.mitigations import Action, Cause

CLIENT_CAUSES = (
    Cause(
        "retry_storm",
        "A retry storm, or a surge",
        "Requests increase when latency exceeds a client's or gateway's timeout, with the same "
        "prompts again (llm_suspected_retries_total). The engine still computes abandoned "
        "requests, so the storm outlasts its trigger.",
        (
            Action(
                "Answer 429 with Retry-After at the gateway, and limit retries to a share of the "
                "requests (10% is plenty) with jitter.",
                "some users are refused",
            ),
            Action(
                "Make sure that a client disconnect cancels the request. A gateway that keeps its "
                "upstream connection open hides it from Triton.",
            ),
            Action(
                "Cancel requests at the gateway that are older than their client's timeout.",
            ),
            Action(
                "Lengthen the client's timeout, or let it count from the first token.",
                "users wait longer before they see an error",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "gateway_timeout",
        "A gateway cuts the streams",
        "Streams end at one age (10, 15, 30, 60, 300 s), or after a constant idle time, with "
        "status 200 and no final event. Triton counts such a request as a success. A sidecar with "
        "a tap counts a client disconnect; the spike in llm_disconnect_age_seconds is the timeout.",
        (
            Action(
                "Search the gateway's log for durations that repeat exactly. Check every hop: "
                "there may be two deadlines.",
            ),
            Action(
                "Replace the route's total timeout by an idle timeout of about 300 s for "
                "streaming paths.",
                "a hung upstream is noticed later",
            ),
            Action(
                "Send SSE comments until the first token, so that the stream is never idle.",
                "clients must ignore SSE comments, as the standard requires",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "broken_streams",
        "Streams break off in the middle",
        "llm_streams_total has failures in the phase mid_stream: an error event under status 200, "
        "an incomplete response, a reset, a deadline. Each is a user with half a response.",
        (
            Action(
                "Compare the outcomes: timeout is a deadline of the request or of the server's "
                "queue; error with many streams at the same moment is an engine or an instance "
                "that died.",
            ),
            Action(
                "Take the instance with most of them out of traffic.",
                "the others take its load",
            ),
            Action(
                "If they come with rollouts or scaling down, drain first: no new requests, and "
                "a grace period as long as the longest response.",
                "rollouts take longer",
                "Needs a plan",
            ),
        ),
        see=("failures", "engine_death"),
    ),
    Cause(
        "slow_clients",
        "Clients do not read",
        "llm_client_backpressure_seconds_total increases: clients do not read the data that is "
        "ready for them. A few clients on bad networks are normal; many at once are a gateway or "
        "proxy.",
        (
            Action(
                "Compare with the gateway's metrics: a gateway that does not read is overloaded, "
                "or waits for its own clients.",
            ),
            Action(
                "Set a write timeout at the gateway: disconnect a client that reads nothing for a "
                "minute.",
                "clients on very bad networks lose their stream",
            ),
            Action(
                "Turn off buffering of responses on the streaming paths of every hop.",
                "",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "wasted_work",
        "The server works for disconnected clients",
        "llm_wasted_tokens_total increases, llm_disconnect_release_seconds is long: the server "
        "does not detect the disconnect, and slots and KV-cache blocks stay in use.",
        (
            Action(
                "Make every hop forward a disconnect: a gateway that keeps its upstream "
                "connection open hides it from the server.",
            ),
            Action(
                "Cancel on disconnect in the model where the server does not: Python models must "
                "call response_sender.is_cancelled(), and gRPC clients must cancel their stream.",
                "",
                "Needs a model reload",
            ),
            Action(
                "Until then, lower the limit of max_tokens at the gateway: it bounds the waste.",
                "long responses are cut",
                "Needs a plan",
            ),
        ),
    ),
)
