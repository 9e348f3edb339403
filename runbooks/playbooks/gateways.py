"""Timeouts of gateways and load balancers."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

_TIMEOUT_KINDS = """\
flowchart TD
  ages{"Disconnects at one age?"} -->|yes| early{"Before the first token?"}
  ages -->|no| stalls{"Long pauses in streams?"}
  early -->|"mostly not"| total["Total timeout: the age is its value"]
  early -->|mostly| either["Idle or total timeout: look it up, TTFT reaches it"]
  stalls -->|yes| idle["Idle timeout: cuts streams that stall"]
  stalls -->|no| users["No timeout: users end their streams"]
"""

GATEWAYS = (
    Playbook(
        key="gateway_timeout",
        title="Gateway timeout, idle or total",
        layer="gateway",
        symptoms=(
            "streams end at one age: 10, 15, 30, 60 or 300 s",
            "status 504 from the gateway, and no error in the server's log",
            "responses under status 200 without a final event",
        ),
        meaning=(
            "A gateway or load balancer closes requests at a fixed age (total timeout), or after "
            "a fixed time without data (idle timeout). Triton sends not even headers before the "
            "first response, so an idle timeout limits TTFT.\n\n"
            "The heatmap of `llm_disconnect_age_seconds` separates them. A total timeout is one "
            "line at its value, with most disconnects mid-stream. An idle timeout is a line only "
            "for disconnects before the first token. Mid-stream it cuts streams of any age that "
            "stall for that long."
        ),
        impact=(
            "Users get status 504, or half a response under status 200. Triton counts these "
            "requests as successes, so its own metrics look healthy. Clients that retry repeat "
            "the whole work."
        ),
        steps=(
            Step("ages", "Most disconnects have one age, which is the timeout.", "gateway"),
            Step(
                "early",
                "Clients lose requests before the first token: idle or total timeout. A healthy "
                "value, with one age in the step above, is a total timeout.",
                "gateway",
            ),
            Step(
                "stalls",
                "Streams pause for long. An idle timeout cuts those that pause longer, at any age, "
                "so the first step may look healthy. Gaps that it cuts are not in the histogram.",
                "backend",
            ),
            Step(
                "gateway",
                "First tokens are so late that they reach a timeout. The timeout only shows it: "
                "find out why TTFT is long.",
                "batcher",
            ),
            Step(
                "pace_slow",
                "Tokens come slower than before, so the same responses reach a total timeout.",
                "backend",
            ),
            Step(
                "answers",
                "Responses are longer than a day ago, and reach a total timeout.",
                "client",
            ),
            Step(
                "server_timeouts",
                "The server's own deadline ends requests, not the gateway.",
                "Triton queue",
            ),
        ),
        actions=(
            Action(
                "Find the hop: search the access logs for durations that repeat. Check every hop "
                "(load balancer, ingress, mesh sidecar, AI gateway): two may have a timeout.",
                setting=(
                    "Envoy: `%RESPONSE_FLAGS%` of the access log: `UT` total timeout, `SI` idle "
                    "timeout, `UMSDR` `max_stream_duration`, `DC` the client.\n"
                    "NGINX: `upstream timed out` in the error log."
                ),
            ),
            Action(
                "Total timeout: turn it off on streaming routes.",
                "a hung request holds its connection until the idle timeout",
                setting=(
                    "Envoy: `timeout: 0s` of the route (default 15 s), and `max_stream_duration`.\n"
                    "Gateway API: `rules.timeouts.request: 0s` and `backendRequest: 0s` of the "
                    "HTTPRoute.\n"
                    "Envoy Gateway: `timeout.http.requestTimeout: 0s` of the "
                    "BackendTrafficPolicy. Envoy AI Gateway sets 60 s by itself.\n"
                    "Istio: `http.timeout` of the VirtualService (off by default).\n"
                    "GKE Ingress: `timeoutSec` of the BackendConfig (default 30).\n"
                    "Caddy: `write` in the `timeouts` of the server options."
                ),
            ),
            Action(
                "Idle timeout: set it above the longest TTFT of a busy hour, 300 s for example.",
                "dead connections are closed later",
                setting=(
                    "NGINX: `proxy_read_timeout`, `grpc_read_timeout` (default 60 s).\n"
                    "Envoy: `idle_timeout` of the route, `stream_idle_timeout` of the connection "
                    "manager (default 5 min), `per_try_idle_timeout`.\n"
                    "Envoy Gateway: `timeout.http.streamIdleTimeout` of the "
                    "BackendTrafficPolicy.\n"
                    "AWS ALB: `idle_timeout.timeout_seconds` (default 60).\n"
                    "HAProxy: `timeout server`, `timeout client`."
                ),
            ),
            Action(
                "If a total timeout cannot be changed, limit `max_tokens` at the gateway to "
                "timeout / time per output token: 60 s at 50 ms are 1,200 tokens.",
                "long responses end with finish reason `length`",
            ),
            Action(
                "Send SSE comments (lines with `:` only) every 15 s until the first token, from "
                "the gateway or the application. Triton's `generate_stream` sends none.",
                "the status is 200 before the engine has the request: errors come in the stream",
                "Needs a plan",
            ),
        ),
        verified_by="ages",
        escalate="The hop with the timeout belongs to another team or to a cloud: call its owner.",
        follow_up=(
            "Write down the timeouts of every hop, from the client inwards. Each hop must wait "
            "longer than the next one.",
            "Check at each change: `max_tokens` times the time per output token stays below every "
            "total timeout.",
            "Let clients treat a stream without finish reason and without `[DONE]` as an error.",
        ),
        see=("timeout_storm", "stuck_decode", "overload", "broken_streams"),
        diagram=_TIMEOUT_KINDS,
    ),
)
