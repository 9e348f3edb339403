"""The catalogue of diagnosis steps.

A check has a question, the PromQL that answers it, the result of a healthy service, and the
playbook that another result points to.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from promql.expr import aggregate
from runbooks import check_queries as queries
from runbooks.diagnosis_check import (
    DiagnosisCheck,
    compares,
    no_result,
    within_budget,
)
from slos.queries import INSTANCE

_THAN_BEFORE = " times the value of this time yesterday, or no result if that is unknown"


_CHECKS = (
    DiagnosisCheck(
        "cause_alerts",
        "Which cause alerts fire?",
        queries.firing_causes,
        no_result(),
        "none of the causes that have an alert is detected",
        "",
        "The annotation `causes` of a page names them as well.",
        per_objective=True,
    ),
    DiagnosisCheck(
        "sources",
        "Does the sidecar still scrape the server?",
        lambda s: aggregate("min", s.scope.series("tokenslo_source_up"), ("source", INSTANCE)),
        compares("==", 1, " for every source"),
        "the numbers below are current",
        "source_down",
        "While a source is down its series are withdrawn, so nothing below shows old values. "
        "Sidecars of other services may be listed too.",
    ),
    DiagnosisCheck(
        "stuck",
        "Is an engine busy without finishing iterations?",
        queries.stuck_engines,
        no_result(),
        "decoding goes on",
        "stuck_decode",
        "The health endpoint returns 200 while decoding is stuck. The sidecar withdraws an "
        "engine's gauges when they do not change with sequences active, so steps about sequences "
        "and the KV cache have no result for that instance. Some executors keep their last record "
        "when idle; output tokens per second then distinguish a stuck engine from an idle one.",
    ),
    DiagnosisCheck(
        "versions",
        "Is one version worse than the rest?",
        queries.version_excess,
        within_budget(" for every version"),
        "not a rollout",
        "bad_rollout",
        "The result is a version's bad share less that of all versions.",
        per_objective=True,
    ),
    DiagnosisCheck(
        "died",
        "Do requests end before their first token?",
        queries.died_before_first_token,
        compares("==", 0, ", or no result"),
        "requests are slow rather than failing",
        "failures",
        "They count as bad here although no latency histogram has seen them.",
    ),
    DiagnosisCheck(
        "waiting",
        "Are sequences waiting inside the engine?",
        queries.by_instance("sequences_waiting"),
        compares("<", 1, ", apart from moments"),
        "requests are scheduled at once",
        "overload",
        "One instance waiting while the others are idle is a routing problem, not a lack of "
        "capacity. The number is a lower bound: TensorRT-LLM does not export the queue beyond its "
        "maximum of active sequences, and Triton's queue figures end where the backend takes over.",
    ),
    DiagnosisCheck(
        "batch",
        "Is the batch full?",
        lambda s: s.scope.fullest("sequence_headroom"),
        compares("<", 1),
        "the batch limit does not delay requests",
        "overload",
        "Waiting with a batch that is not full: another resource is short, mostly the KV cache.",
    ),
    DiagnosisCheck(
        "kv",
        "Is the KV cache full on any instance?",
        lambda s: s.scope.fullest("kv_headroom"),
        compares("<", "0.9", " on every instance"),
        "there is room for new sequences",
        "kv_pressure",
        "With the policy guaranteed_no_evict a sequence starts only if its longest possible "
        "response fits, so requests wait well below 1: waiting above 0 with a batch that is not "
        "full is the same finding.",
    ),
    DiagnosisCheck(
        "paused",
        "Are sequences paused for lack of KV-cache blocks?",
        queries.by_instance("sequences_paused"),
        compares("<", 1),
        "no sequence loses its blocks to another",
        "kv_pressure",
        "Only the policy max_utilization pauses. A paused sequence is computed again from the "
        "start: token pace collapses, while TTFT may improve.",
    ),
    DiagnosisCheck(
        "prompts",
        "Are prompts longer than yesterday?",
        queries.length_ratio("input"),
        compares("<", "1.5", _THAN_BEFORE),
        "prompts are as long as before",
        "long_work",
        "Time to first token grows with prompt length, and a long prefill delays the next token "
        "of every stream in the batch.",
    ),
    DiagnosisCheck(
        "answers",
        "Are responses longer than yesterday?",
        queries.length_ratio("output"),
        compares("<", "1.5", _THAN_BEFORE),
        "responses are as long as before",
        "long_work",
        "Long responses hold their slot and their KV-cache blocks for longer.",
    ),
    DiagnosisCheck(
        "arrivals",
        "Are there more requests than yesterday?",
        queries.rate_ratio("requests"),
        compares("<", "1.5", _THAN_BEFORE),
        "there is no surge",
        "timeout_storm",
        "Requests count when they end. A surge that starts when latency crosses a client's "
        "timeout, with the same prompts again, is a retry storm; a surge of new prompts is load.",
    ),
    DiagnosisCheck(
        "reuse",
        "Does the prefix cache still help?",
        queries.rate_ratio("kv_reused_blocks"),
        compares(">", "0.5", _THAN_BEFORE),
        "prompts find their prefixes in the cache as before",
        "long_work",
        "NaN: block reuse is off. A drop means cache misses: a changed system prompt, or traffic "
        "spread over more instances.",
    ),
    DiagnosisCheck(
        "output",
        "Does the engine produce as many tokens as yesterday?",
        queries.output_ratio,
        compares(">", "0.5", _THAN_BEFORE),
        "the engine as a whole has not slowed down",
        "slow_engine",
        "Triton counts the tokens of a request when it ends, so use a range of minutes. Less "
        "traffic also lowers it: compare with the number of requests.",
    ),
    DiagnosisCheck(
        "gateway",
        "Does the slowest first token reach a gateway's timeout?",
        lambda s: s.scope.quantile(Decimal("0.99"), "ttft"),
        compares("<", 10, " seconds, the shortest timeout in common use"),
        "no gateway cuts streams before they start",
        "gateway_timeout",
        "Common limits are 10, 15, 30, 60 and 300 s.",
    ),
    DiagnosisCheck(
        "errors",
        "Do requests fail in the server?",
        queries.failures("error"),
        compares("==", 0, ", or no result"),
        "the engine completes all requests",
        "failures",
        "Label reason is the server's: BACKEND is the engine or the model, OTHER mostly a failed "
        "step of an ensemble.",
    ),
    DiagnosisCheck(
        "rejections",
        "Are requests rejected or timed out in the queue?",
        queries.failures("rejected", "timeout"),
        compares("==", 0, ", or no result"),
        "the scheduler's queue policy drops nothing",
        "overload",
        "Triton counts requests that time out in the queue, but not those that it refuses because "
        "the queue is full; clients get 503.",
    ),
    DiagnosisCheck(
        "broken",
        "Do streams break off in the middle?",
        queries.mid_stream_failures,
        compares("==", 0, ", or no result"),
        "streams end normally",
        "broken_streams",
        "Needs a tap (--tap): an error mid-stream has status 200. Client disconnects are not "
        "included.",
    ),
    DiagnosisCheck(
        "ages",
        "Do clients disconnect at one age of the stream?",
        queries.disconnect_age_ratio,
        compares("<", "0.9", ", or no result"),
        "no timeout cuts streams",
        "gateway_timeout",
        "The result is the 90th over the 99th percentile of the age at disconnect; near 1, the "
        "oldest streams had one age. The dashboard's heatmap shows which.",
    ),
    DiagnosisCheck(
        "early",
        "Do clients disconnect before their first token?",
        queries.early_disconnects,
        compares("<", "0.5", ", or no result"),
        "most clients got the first token: check token pace and the responses",
        "overload",
        "They waited too long for the first token: fix that first.",
    ),
    DiagnosisCheck(
        "retries",
        "Do clients retry the same prompts?",
        queries.retries,
        compares("<", "0.1", ", or no result"),
        "requests are new work",
        "timeout_storm",
        "The share of requests with the prompt of one that failed or was cancelled shortly before. "
        "Needs a tap (--tap).",
    ),
    DiagnosisCheck(
        "reading",
        "Do clients read their streams?",
        queries.backpressure,
        compares("<", "0.05", " of the live streams, or no result"),
        "clients do not delay the streams",
        "slow_clients",
        "A client that does not read lengthens the gaps of its stream, and a server that waits for "
        "it may delay others.",
    ),
    DiagnosisCheck(
        "wasted",
        "Does the server work for disconnected clients?",
        queries.wasted_tokens,
        compares("<", "0.05", ", or no result"),
        "work ends with the disconnect",
        "wasted_work",
        "The share of tokens sent after a disconnect: a lower bound, as a server may compute "
        "without sending.",
    ),
    DiagnosisCheck(
        "clause",
        "Which clause fails?",
        queries.failing_clause,
        within_budget(" for every clause"),
        "no clause alone spends the budget",
        "",
        "Label clause is the first clause, in the order of the SLO file, that a bad request "
        "failed. ttft or queue: requests wait; tpot or max_gap: streams are slow; e2e: responses "
        "are long; outcome: requests fail in the server.",
        per_objective=True,
    ),
    DiagnosisCheck(
        "memory",
        "Has the memory of the engine grown?",
        queries.memory_growth,
        compares("<", "1.05", " times the least of the last day"),
        "the engine's memory is as at load",
        "engine_death",
        "The engine allocates its memory at load. The PyTorch backend reports the whole "
        "device, so a neighbour on the same GPU shows here too.",
    ),
    DiagnosisCheck(
        "estimate",
        "Is the objective measured, or estimated?",
        queries.estimated_signals,
        no_result(": every signal of this objective is exact"),
        "the numbers are exact",
        "estimated",
        "The label method names how the signal is obtained.",
    ),
    DiagnosisCheck(
        "goes_on",
        "Is the incident still active?",
        queries.error_ratio,
        within_budget(),
        "it is over, and the alert ends with its short window",
        "service",
        per_objective=True,
    ),
    DiagnosisCheck(
        "more_events",
        "Is there more traffic than yesterday?",
        queries.traffic_ratio,
        compares("<=", 2, _THAN_BEFORE),
        "it is not the load",
        "more_traffic",
        per_objective=True,
    ),
    DiagnosisCheck(
        "instances",
        "Are some instances worse than others?",
        queries.bad_share_by_instance,
        within_budget(" for every instance"),
        "it is not a single instance",
        "bad_instance",
        per_objective=True,
    ),
    DiagnosisCheck(
        "queries",
        "Does the query of all events have a result?",
        lambda s: s.planned.events.total,
        compares(">=", 0),
        "the events are counted again",
        "no_result",
        "If not, query its metrics one by one, first without labels.",
        per_objective=True,
    ),
    DiagnosisCheck(
        "contradiction",
        "Is the SLI still inconsistent?",
        queries.inconsistency,
        no_result(),
        "bad and total count the same events again",
        "contradiction",
        per_objective=True,
    ),
    DiagnosisCheck(
        "lost",
        "Are records of the engine dropped?",
        lambda s: s.scope.rate("tokenslo_source_lost_records_total", by=("source",)),
        compares("==", 0, ", or no result"),
        "the sidecar reads every record",
        "records_lost",
    ),
    DiagnosisCheck(
        "still_burning",
        "Does the budget still burn?",
        queries.error_ratio,
        within_budget(),
        "the incident is over",
        "still_burning",
        per_objective=True,
    ),
    DiagnosisCheck(
        "scraped",
        "Does Prometheus scrape the sidecar?",
        lambda s: aggregate("count", s.scope.series("tokenslo_build_info")),
        compares(">=", 1, ": one for every sidecar"),
        "the sidecar runs and is scraped",
        "source_down",
    ),
    DiagnosisCheck(
        "unavailable",
        "Does the sidecar report the signal as unavailable?",
        queries.unavailable_signals,
        no_result(),
        "the sidecar has a method for every signal of this objective",
        "signal_unavailable",
        "The status page of the sidecar (its address without /metrics) has the reason and the fix.",
    ),
    DiagnosisCheck(
        "selected",
        "Does the signal exist under other labels?",
        queries.models_with_signal,
        compares(">=", 1, " in the row of the model that the SLO file selects"),
        "the SLO file selects labels that exist, if its model is among the rows",
        "wrong_selector",
        "No row at all: no server provides the signal.",
    ),
    DiagnosisCheck(
        "threshold",
        "Which instances count requests but not against the threshold?",
        queries.instances_without_threshold,
        no_result(),
        "every sidecar evaluates requests against the threshold",
        "boundary_missing",
        per_objective=True,
    ),
    DiagnosisCheck(
        "source_errors",
        "Why do the sidecar's scrapes fail?",
        lambda s: s.scope.rate("tokenslo_source_errors_total", by=("source", "kind")),
        compares("==", 0, ", or no result"),
        "all scrapes succeed",
        "source_down",
        "Label kind is the error: a refused connection is a dead server, a timeout a stuck or "
        "overloaded one.",
    ),
)

CHECKS: Mapping[str, DiagnosisCheck] = {check.key: check for check in _CHECKS}
