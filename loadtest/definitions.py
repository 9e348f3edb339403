"""Definitions of the numbers of a load test, which every report has."""

from __future__ import annotations

from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    "ttft": "Time from the send of a request, connection included, to its first chunk with text.",
    "scheduled_ttft, scheduled_e2e": "The same from the scheduled start of the request. In an open "
    "loop a request that the load generator sends late is as late as its user sees it; objectives "
    "use these. Without the difference, a stalled server would hide its delay (coordinated "
    "omission).",
    "itl": "Inter-token latency: the gap between consecutive chunks with text, of all streams "
    "together. It is not a mean for each request, as in other tools; a chunk can have several "
    "tokens.",
    "tpot": "Time per output token of a complete response: (last chunk - first chunk) / (output "
    "tokens - 1). A response of one token has none, and meets a TPOT clause of goodput.",
    "max_gap": "The longest gap between consecutive chunks of a stream.",
    "e2e": "Time from the send of a request to the end of its complete response.",
    "goodput": "Requests per second that are complete and break no objective with one verdict per "
    "request. The share of a goodput objective is good / (good + bad) of all requests sent: failed "
    "ones are bad, planned cancellations count only if they broke a clause before.",
    "output_tokens_per_second": "Tokens that arrived in the measured window, by the server's count "
    "of output tokens; where it reports none, each chunk with text counts as one token.",
    "lag": "How late the load generator sent a request, after its scheduled start.",
    "client_lag": "How late the load generator's own event loop ran. Above 10 ms (p99) it is too "
    "busy to measure gaps between tokens.",
    "kept": "An objective is kept if the lower Wilson bound of its share of good events is at "
    "least its target, and missed if the upper bound is below; each bound is one-sided. Of "
    "objectives on gaps between tokens, each stream counts as one event of the bound, because gaps "
    "of one stream are not independent.",
}
