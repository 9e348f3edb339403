"""Checks of clients and gateways: disconnects, retries, timeouts, reading."""

from __future__ import annotations

from runbooks import service_queries as queries
from runbooks.checks.comparison import NEEDS_TAP
from runbooks.diagnosis_check import compares, service_check

CLIENT_CHECKS = (
    service_check(
        "ages",
        "Do clients disconnect at one age of the stream?",
        queries.disconnect_age_ratio,
        compares("<", "0.95"),
        "no timeout cuts streams",
        "gateway_timeout",
        "The median over the 90th percentile of the age at disconnect; near 1, most of these "
        "streams had one age. 0 if few clients disconnect, or most do within 5 s. The dashboard's "
        "heatmap shows the age.",
    ),
    service_check(
        "early",
        "Do clients disconnect before their first token?",
        queries.disconnects(queries.EARLY),
        compares("<", "0.05", " of the requests"),
        "clients get their first token: check token pace and the responses",
        "overload",
        "They waited too long for the first token: fix that first.",
    ),
    service_check(
        "disconnects_up",
        "Do more clients disconnect than yesterday?",
        queries.increase(queries.disconnects()),
        compares("<", "0.05", " of the requests more than at this time yesterday"),
        "clients disconnect as rarely as before",
        "timeout_storm",
        f"The difference of two shares: 0.1 is ten disconnects more in 100 requests. {NEEDS_TAP}",
    ),
    service_check(
        "server_timeouts",
        "Do requests exceed a deadline of the server?",
        queries.outcome_share("timeout"),
        compares("<", "0.01", " of the requests"),
        "no deadline of the server ends requests",
        "timeout_storm",
        "The deadline is the client's own (gRPC, or a timeout parameter of the request), or the "
        "scheduler's. A timeout of a client or a gateway shows as a disconnect.",
    ),
    service_check(
        "retries",
        "Do clients retry the same prompts?",
        queries.per_request("suspected_retries"),
        compares("<", "0.1", " of the requests"),
        "requests are new work",
        "timeout_storm",
        "Requests with the prompt of one that failed or was cancelled shortly before. " + NEEDS_TAP,
    ),
    service_check(
        "reading",
        "Do clients read their streams?",
        queries.backpressure,
        compares("<", "0.05", " of the live streams"),
        "clients do not delay the streams",
        "slow_clients",
        "A client that does not read lengthens the gaps of its stream, and a server that waits for "
        "it may delay others.",
    ),
    service_check(
        "wasted",
        "Does the server work for disconnected clients?",
        queries.wasted_tokens,
        compares("<", "0.05", " of the tokens"),
        "work ends with the disconnect",
        "wasted_work",
        "The share of tokens sent after a disconnect: a lower bound, as a server may compute "
        "without sending.",
    ),
)
