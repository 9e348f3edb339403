"""Causes in clients: retries, disconnects, slow reading."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

_STORM = """\
flowchart LR
  trigger["Trigger: a burst, a slow or missing instance"] --> late["TTFT above a client's timeout"]
  late --> retry["Clients disconnect and retry"]
  late --> abandoned["Abandoned requests keep their slots"]
  retry -->|"1. shed load, 2. limit retries"| queue["Longer queue"]
  abandoned -->|"3. cancel on disconnect"| queue
  queue -->|"4. drop requests that waited too long"| late
"""

CLIENTS = (
    Playbook(
        key="timeout_storm",
        title="Timeout storm with retries",
        layer="client",
        symptoms=(
            "requests rise with the same prompts again",
            "TTFT p99 is at a timeout of clients or gateways",
            "disconnects before the first token, while the engine is fully busy",
        ),
        meaning=(
            "Requests take longer than a timeout of clients or gateways, which send them again. "
            "The engine still computes the abandoned requests, so every retry adds load. The "
            "storm sustains itself after its trigger is gone."
        ),
        impact=(
            "Most users get errors although every GPU is busy: the work is for requests that "
            "have been abandoned. The storm does not end before retries stop or abandoned work "
            "is cancelled."
        ),
        steps=(
            Step(
                "retries",
                "Clients or gateways repeat prompts that failed less than 30 s before: this is a "
                "storm. Without a tap there is no result: judge by the next two steps.",
                "client",
            ),
            Step(
                "arrivals",
                "More requests than a day ago. Compare with the gateway's count of users: more "
                "requests from as many users are retries, more users are overload.",
                "client",
            ),
            Step(
                "gateway",
                "The slowest first tokens take longer than common timeouts. The timeout that "
                "starts the retries is at or below this value.",
                "gateway",
            ),
            Step(
                "disconnects_up",
                "More clients give up than a day ago. Users alone do not change so fast: it is "
                "latency above a timeout.",
                "client",
            ),
            Step(
                "early",
                "Clients disconnect while they wait for the first token, as in a storm.",
                "client",
            ),
            Step(
                "server_timeouts",
                "The server ends requests at a deadline. Clients retry those too.",
                "Triton queue",
            ),
            Step(
                "wasted",
                "The server works on after the disconnect. Cancellation does not reach it: "
                "action 3 comes before action 4.",
                "backend",
            ),
            Step(
                "waiting",
                "The queue holds the storm. Its length is the measure of progress: it must "
                "shrink after each action.",
                "batcher",
            ),
            Step(
                "recent_start",
                "An instance restarted: its missing capacity may be the trigger.",
                "instance",
            ),
        ),
        actions=(
            Action(
                "Shed load first. Refuse new requests at the gateway with status 429 and "
                "`Retry-After`, the lowest priority first, until the queue shrinks. Readmit them "
                "when it is empty, a quarter at a time, five minutes apart.",
                "some users are refused; readmitted at once, they start the storm again",
                setting=(
                    "NGINX: `limit_req`, `limit_req_status 429`, `add_header Retry-After "
                    "$retry_after always` with `map $status $retry_after { 429 10; }`.\n"
                    "Envoy: the filter `local_ratelimit` with `token_bucket` and "
                    "`response_headers_to_add`.\n"
                    "The OpenAI SDK for Python obeys `Retry-After`."
                ),
            ),
            Action(
                "Limit retries at every hop to 10% of the requests, or turn them off.",
                "single failures that a retry would hide reach users",
                setting=(
                    "Envoy: `retry_policy.num_retries` of the route, "
                    "`circuit_breakers.thresholds.retry_budget.budget_percent` of the cluster "
                    "(default 20).\n"
                    "Istio: `http.retries.attempts: 0` of the VirtualService (default 2, on gRPC "
                    "`UNAVAILABLE` too), `trafficPolicy.retryBudget.percent` of the "
                    "DestinationRule.\n"
                    "Gateway API: `rules.retry.attempts` of the HTTPRoute.\n"
                    "NGINX: `proxy_next_upstream error timeout` (the default) repeats no POST that "
                    "a server has received."
                ),
            ),
            Action(
                "Make disconnects cancel the request, so that abandoned requests free their "
                "slots: see the playbook on wasted work.",
                setting="NGINX: `proxy_ignore_client_abort off` (the default).",
            ),
            Action(
                "Drop requests that have waited longer than the client's timeout: their clients "
                "are gone.",
                "late responses become errors; no effect on requests that the backend has accepted",
                "Needs a model reload",
                setting=(
                    "`config.pbtxt`: `dynamic_batching { default_queue_policy { timeout_action: "
                    "REJECT default_timeout_microseconds: 10000000 max_queue_size: 64 } }`.\n"
                    "The C++ TensorRT-LLM backend passes `max_queue_size` to its executor, whose "
                    "refusals are status 500, not 503."
                ),
            ),
            Action(
                "Stop retries in the clients, or lengthen their timeout beyond the TTFT of a busy "
                "hour.",
                "users wait longer before they see an error",
                "Needs a plan",
                setting=(
                    "OpenAI SDK for Python: `max_retries` (default 2) and `timeout` (default "
                    "600 s). `timeout` limits the wait for the next bytes, not the whole response."
                ),
            ),
            Action(
                "Add instances last: before retries are limited, they only fill up as well. Do "
                "not restart the loaded ones.",
                "a new instance loads its model for minutes before it helps",
                "Needs a plan",
            ),
        ),
        verified_by="retries",
        escalate=(
            "One client (tenant, user agent) sends most of the retries: call its owner. The "
            "gateway's own retries cannot be limited: call the owner of the gateway."
        ),
        follow_up=(
            "List every hop that retries. Attempts multiply: three hops with two retries each "
            "send one request 27 times.",
            "Set a retry budget at each of them, and back-off with jitter in the clients.",
            "Find what made the first requests late, and alert on it.",
        ),
        see=("gateway_timeout", "overload", "wasted_work"),
        diagram=_STORM,
    ),
    Playbook(
        key="wasted_work",
        title="Disconnects while work goes on",
        layer="gateway",
        symptoms=(
            "tokens are sent after their client disconnected",
            "slots and KV-cache blocks stay in use after disconnects",
        ),
        meaning=(
            "Clients disconnect and the server computes their responses to the end: the "
            "cancellation is lost on the way. A gateway keeps its upstream connection open, or "
            "the server or the model does not check for it.\n\n"
            "`llm_disconnect_release_seconds` shows how long the server works on. A second or "
            "less is its polling interval, and normal; the rest of the response is a lost "
            "cancellation. A tap behind a gateway that hides disconnects sees none at all."
        ),
        impact=(
            "Capacity is lost to responses that have no reader. Other requests wait for it, with "
            "more disconnects as a result."
        ),
        steps=(
            Step(
                "wasted",
                "The server sends tokens to clients that are gone. The share is a lower bound.",
                "backend",
            ),
            Step(
                "disconnects_up",
                "More clients disconnect than before. Find out why they do: each one wastes work.",
                "client",
            ),
            Step(
                "retries",
                "The disconnected clients come back: a timeout storm, which needs its own order "
                "of actions.",
                "client",
            ),
            Step(
                "batch",
                "The batch is full, in part with abandoned sequences: other requests wait.",
                "batcher",
            ),
            Step(
                "kv",
                "The KV cache is full, in part with blocks of abandoned sequences.",
                "KV cache",
            ),
        ),
        actions=(
            Action(
                "Find the hop that loses the cancellation. Start a long stream against the "
                "server's own port, end it after a second, and watch `llm_live_streams` and the "
                "active sequences. Repeat through each hop, outwards.",
            ),
            Action(
                "Let gateways close their upstream connection when the client disconnects.",
                setting=(
                    "NGINX: `proxy_ignore_client_abort off` (the default).\n"
                    "HAProxy: `option abortonclose`, for requests in its queue.\n"
                    "Own gateways: cancel the upstream call in the handler of the disconnect."
                ),
            ),
            Action(
                "Bound the waste: lower the limit of `max_tokens` at the gateway.",
                "long responses are cut",
            ),
            Action(
                "Use an API that is cancelled. On Triton that is `generate_stream` (23.12 or "
                "later), and a cancelled gRPC call (23.10 or later). A request without streaming "
                "runs to its end, and Triton's OpenAI front end does not cancel.",
                "clients change their API",
                "Needs a plan",
                setting=(
                    "OpenAI front end: `--enable-kserve-frontends` serves the KServe APIs too.\n"
                    "gRPC clients: cancel the call; this ends all requests of a "
                    "`ModelStreamInfer` stream."
                ),
            ),
            Action(
                "Check for cancellation in Python models: between tokens, stop when "
                "`response_sender.is_cancelled()` is true. Decoupled models run to their end "
                "otherwise.",
                "streams under way end at the reload",
                "Needs a model reload",
            ),
            Action(
                "Restore the polling interval of the TensorRT-LLM backend, if it was raised.",
                "as for every reload, streams under way end",
                "Needs a model reload",
                setting="`config.pbtxt`: parameter `cancellation_check_period_ms` (default 100).",
            ),
        ),
        verified_by="wasted",
        escalate=(
            "A disconnect reaches the server and it still works on: call the owner of the model "
            "or backend. It does not reach the server: call the owner of the gateway."
        ),
        follow_up=(
            "Add a disconnect to the load test: the active sequences must fall within a second.",
            "Count cancelled requests with a tap: Triton counts them as successes.",
        ),
        see=("timeout_storm", "gateway_timeout", "kv_pressure"),
    ),
    Playbook(
        key="slow_clients",
        title="Slow clients",
        layer="client",
        symptoms=(
            "gaps are long at the client, while the engine's pace is as before",
            "responses come in bursts",
        ),
        meaning=(
            "Clients do not read the data that is ready for them, so their streams stall while "
            "the engine goes on. The client of the server is the next hop: usually a gateway."
        ),
        impact=(
            "The users of these streams see pauses. The server buffers for them, and their "
            "sequences keep slots and KV-cache blocks. A backend with one thread for all "
            "responses may delay the streams of others."
        ),
        steps=(
            Step(
                "reading",
                "Streams wait for their clients. A few are bad networks; many at once are a "
                "gateway that does not read.",
                "client",
            ),
            Step(
                "pace_slow",
                "The engine itself is slower: slow clients do not explain this incident alone.",
                "backend",
            ),
            Step(
                "stalls",
                "Streams pause. With clients that read, the pauses come from the engine.",
                "backend",
            ),
            Step(
                "instances",
                "Some instances only: look for what their clients have in common, such as one "
                "gateway or one zone.",
                "gateway",
            ),
        ),
        actions=(
            Action(
                "Check the CPU and the memory of the gateway, and its own connections: it reads "
                "slowly when it is overloaded, or when its clients are slow.",
            ),
            Action(
                "Add gateways, or move traffic to others.",
                "streams that move are cut",
            ),
            Action(
                "Disconnect clients that read nothing for a minute.",
                "clients on very bad networks lose their stream",
                setting=(
                    "NGINX: `send_timeout` (default 60 s between two writes).\n"
                    "Envoy: `stream_idle_timeout`, and `flush_timeout` of the route.\n"
                    "HAProxy: `timeout client`."
                ),
            ),
            Action(
                "Responses in bursts with a fast engine: turn off the buffering of responses.",
                "slow clients then slow the server's streams instead of filling the buffers",
                setting=(
                    "NGINX: `proxy_buffering off`, or the response header `X-Accel-Buffering: no`."
                ),
            ),
            Action(
                "Slow clients that delay others: buffer responses in the gateway.",
                "tokens reach clients in bursts",
                setting="NGINX: `proxy_buffering on` (the default), `proxy_buffers`.",
            ),
        ),
        verified_by="reading",
        escalate="The gateway does not read and its load is normal: call its owner.",
        follow_up=(
            "Decide on one limit for clients that do not read, and set it at the outermost hop.",
        ),
        see=("slow_engine", "gateway_timeout"),
    ),
)
