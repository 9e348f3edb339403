"""What to look at during an incident: every diagnosis step as data.

A check is one question, the PromQL that answers it, what a healthy server answers, and what another
answer points at.  Pages print checks; nothing in them is tied to Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from promql.expr import Expr, aggregate, decimal_text
from runbooks import questions
from runbooks.questions import Subject
from slos import names
from slos.queries import INSTANCE

Operator = Literal["<", "<=", ">", ">=", "=="]
_WORDS: Mapping[Operator, str] = {
    "<": "below ",
    "<=": "at most ",
    ">": "above ",
    ">=": "at least ",
    "==": "",
}


@dataclass(frozen=True, slots=True)
class Healthy:
    """A healthy answer: every element compares like this; with ``value`` None there is no element.

    ``qualifier`` is what people must know beside the number.
    """

    op: Operator
    value: Decimal | None
    qualifier: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"no result{self.qualifier}"
        return f"{_WORDS[self.op]}{decimal_text(self.value)}{self.qualifier}"


@dataclass(frozen=True, slots=True)
class Check:
    """One diagnosis step.

    ``rules_out`` completes "a healthy answer says that …"; ``points_to`` is a key of
    :data:`runbooks.causes.CAUSES`; ``note`` is what to keep in mind when reading the answer.
    ``per_objective`` steps have a query or an expected value of their own for each objective; a
    service's objectives with one indicator share the others.
    """

    key: str
    question: str
    query: Callable[[Subject], Expr]
    healthy: Callable[[Subject], Healthy]
    rules_out: str
    points_to: str
    note: str = ""
    per_objective: bool = False


_THAN_BEFORE = " times what it was at this time yesterday, or no result if that is unknown"


def _no_result(qualifier: str = "") -> Callable[[Subject], Healthy]:
    return lambda _: Healthy("==", None, qualifier)


def _is(op: Operator, value: int | str, qualifier: str = "") -> Callable[[Subject], Healthy]:
    return lambda _: Healthy(op, Decimal(value), qualifier)


def _within_budget(scope: str = "") -> Callable[[Subject], Healthy]:
    return lambda s: Healthy("<=", s.budget, f" (the error budget){scope}")


def _error_ratio(subject: Subject) -> Expr:
    return subject.recorded(names.error_ratio(subject.planned.windows[0]))


def _catalogue(*checks: Check) -> Mapping[str, Check]:
    return {check.key: check for check in checks}


CHECKS = _catalogue(
    Check(
        "cause_alerts",
        "Which cause alerts fire?",
        questions.firing_causes,
        _no_result(),
        "none of the causes that have an alert is detected",
        "cause_alert",
        "The annotation `causes` of a page names them as well.",
        per_objective=True,
    ),
    Check(
        "sources",
        "Does the sidecar still read the server?",
        lambda s: aggregate("min", s.scope.series("tokenslo_source_up"), ("source", INSTANCE)),
        _is("==", 1, " for every source"),
        "the numbers below are current",
        "server_gone",
        "While a source is down its series are withdrawn, so nothing below shows old values. "
        "Sidecars of other services may be listed too.",
    ),
    Check(
        "stuck",
        "Is an engine busy without finishing iterations?",
        questions.stuck,
        _no_result(),
        "decoding goes on",
        "stuck_decode",
        "The health endpoint says nothing about this: it answers 200 while decoding is dead. The "
        "sidecar withdraws an engine's gauges when they stand still with sequences active, so the "
        "steps about sequences and the KV cache then have no result for that instance. Some "
        "executors leave their last record standing when they fall idle; then output tokens per "
        "second tell a stuck engine from an idle one.",
    ),
    Check(
        "versions",
        "Is one version worse than the rest?",
        questions.worse_by_version,
        _within_budget(" for every version"),
        "not a rollout",
        "bad_rollout",
        "The result is a version's bad share less that of all versions.",
        per_objective=True,
    ),
    Check(
        "died",
        "Do requests end before their first token?",
        questions.died_before_first_token,
        _is("==", 0, ", or no result"),
        "requests are slow rather than failing",
        "failures",
        "They count as bad here although no latency histogram has seen them.",
    ),
    Check(
        "waiting",
        "Are sequences waiting inside the engine?",
        questions.by_instance("sequences_waiting"),
        _is("<", 1, ", apart from moments"),
        "requests are scheduled as they come",
        "overload",
        "One instance waiting while the others are idle is a routing problem, not a lack of "
        "capacity. The number is a lower bound: TensorRT-LLM does not export the queue beyond its "
        "maximum of active sequences, and Triton's queue figures end where the backend takes over.",
    ),
    Check(
        "batch",
        "Is the batch full?",
        lambda s: s.scope.fullest("sequence_headroom"),
        _is("<", 1),
        "the batch limit is not what holds requests back",
        "overload",
        "Waiting with a batch that is not full means that something else is short: mostly the KV "
        "cache, see the next steps.",
    ),
    Check(
        "kv",
        "Is the KV cache full on any instance?",
        lambda s: s.scope.fullest("kv_headroom"),
        _is("<", "0.9", " on every instance"),
        "there is room for new sequences",
        "kv_pressure",
        "With the policy guaranteed_no_evict a sequence starts only if its longest possible answer "
        "fits, so requests wait well below 1: take waiting above 0 with a batch that is not full "
        "as the same finding.",
    ),
    Check(
        "paused",
        "Are sequences paused for lack of KV-cache blocks?",
        questions.by_instance("sequences_paused"),
        _is("<", 1),
        "no sequence loses its blocks to another",
        "kv_pressure",
        "Only the policy max_utilization pauses. A paused sequence is computed again from the "
        "start: token pace collapses while time to first token may even look better.",
    ),
    Check(
        "prompts",
        "Are prompts longer than yesterday?",
        questions.length_against_before("input"),
        _is("<", "1.5", _THAN_BEFORE),
        "the prompts are as long as ever",
        "long_work",
        "Time to first token grows with prompt length, and a long prefill delays the next token "
        "of every stream in the batch.",
    ),
    Check(
        "answers",
        "Are answers longer than yesterday?",
        questions.length_against_before("output"),
        _is("<", "1.5", _THAN_BEFORE),
        "the answers are as long as ever",
        "long_work",
        "Long answers hold their slot and their KV-cache blocks for longer.",
    ),
    Check(
        "arrivals",
        "Do more requests come than yesterday?",
        questions.rate_against_before("requests"),
        _is("<", "1.5", _THAN_BEFORE),
        "there is no surge",
        "retry_storm",
        "Requests count when they end. A surge that starts when latency crosses a client's "
        "timeout, with the same prompts again, is a retry storm; a surge of new prompts is load.",
    ),
    Check(
        "reuse",
        "Does the prefix cache still help?",
        questions.rate_against_before("kv_reused_blocks"),
        _is(">", "0.5", _THAN_BEFORE),
        "prompts find their prefixes in the cache as before",
        "long_work",
        "NaN: block reuse is off, go on. A drop means that prompts are computed in "
        "full that used to be cached: a changed system prompt, or traffic spread over more "
        "instances.",
    ),
    Check(
        "output",
        "Does the engine produce as many tokens as yesterday?",
        questions.output_against_before,
        _is(">", "0.5", _THAN_BEFORE),
        "the engine as a whole has not slowed down",
        "slow_engine",
        "Triton counts the tokens of a request when it ends, so look at a few minutes. Less "
        "traffic also lowers it: compare with the step about arrivals.",
    ),
    Check(
        "gateway",
        "Does the slowest first token reach a gateway's timeout?",
        lambda s: s.scope.quantile(Decimal("0.99"), "ttft"),
        _is("<", 10, " seconds, the shortest timeout in common use"),
        "gateways have no reason to cut streams before they start",
        "gateway_timeout",
        "Common limits are 10, 15, 30, 60 and 300 s.",
    ),
    Check(
        "errors",
        "Do requests fail in the server?",
        questions.failures("error"),
        _is("==", 0, ", or no result"),
        "the engine accepts and finishes what it is given",
        "failures",
        "reason is the server's word: BACKEND is the engine or the model, OTHER mostly a failed "
        "step of an ensemble.",
    ),
    Check(
        "rejections",
        "Are requests rejected or timed out in the queue?",
        questions.failures("rejected", "timeout"),
        _is("==", 0, ", or no result"),
        "the scheduler's queue policy drops nothing",
        "overload",
        "Triton counts a request whose time in the queue ran out. It does not count those that it "
        "refuses because the queue is full; clients see them as 503.",
    ),
    Check(
        "broken",
        "Do streams break off in the middle?",
        questions.broken_off,
        _is("==", 0, ", or no result"),
        "what begins also ends",
        "broken_streams",
        "Only a sidecar that watches the streams (--tap) sees this: an error in the middle has "
        "status 200. Streams that their client left are not in it.",
    ),
    Check(
        "ages",
        "Do clients leave at one age of the stream?",
        questions.sameness_of_age,
        _is("<", "0.9", ", or no result"),
        "people leave when they want to, and no timeout on the way cuts streams",
        "gateway_timeout",
        "The answer is the 90th percentile of the age at which streams were left over the 99th; "
        "near 1, the oldest were all of one age. The heatmap of ages on the dashboard shows which.",
    ),
    Check(
        "early",
        "Do clients leave before their first token?",
        questions.left_early,
        _is("<", "0.5", ", or no result"),
        "most clients have seen a beginning: look at token pace and at what they were sent",
        "overload",
        "Those that leave before the first token waited too long for it: work on that first.",
    ),
    Check(
        "retries",
        "Do clients send the same prompts again?",
        questions.retried,
        _is("<", "0.1", ", or no result"),
        "what comes is new work",
        "retry_storm",
        "The share of requests with the prompt of one that failed or was left shortly before. Only "
        "a sidecar that watches the streams (--tap) sees it.",
    ),
    Check(
        "reading",
        "Do clients read what is there for them?",
        questions.not_reading,
        _is("<", "0.05", " of the live streams, or no result"),
        "nobody holds up the streams from the other end",
        "slow_clients",
        "A client that does not read makes the gaps of its stream look long, and a server that "
        "waits for it may hold up others.",
    ),
    Check(
        "wasted",
        "Does the server work for clients that have left?",
        questions.wasted,
        _is("<", "0.05", ", or no result"),
        "work ends when its client leaves",
        "wasted_work",
        "The share of tokens sent after their client had left: a lower bound, as a server may go "
        "on without sending.",
    ),
    Check(
        "clause",
        "Which clause fails?",
        questions.failing_clause,
        _within_budget(" for every clause"),
        "no clause alone spends the budget",
        "failing_clause",
        "clause is the first, in the order of the SLO file, that a bad request failed; outcome "
        "stands for a request that the server failed.",
        per_objective=True,
    ),
    Check(
        "memory",
        "Has the memory of the engine grown?",
        questions.memory_against_least,
        _is("<", "1.05", " times the least of the last day"),
        "the engine keeps what it claimed when it was loaded",
        "engine_death",
        "The engine claims its memory when it is loaded. The PyTorch backend reports the whole "
        "device, so a neighbour on the same GPU shows here too.",
    ),
    Check(
        "estimate",
        "Is the objective measured, or estimated?",
        questions.estimated,
        _no_result(": every signal of this objective is exact"),
        "the numbers mean what they say",
        "estimated",
        "The label method says how the signal is obtained.",
    ),
    Check(
        "goes_on",
        "Does it still go on?",
        _error_ratio,
        _within_budget(),
        "it is over, and the alert ends with its short window",
        "service",
        per_objective=True,
    ),
    Check(
        "more_events",
        "Is there more traffic than yesterday?",
        questions.total_against_before,
        _is("<=", 2, _THAN_BEFORE),
        "it is not the load",
        "more_traffic",
        per_objective=True,
    ),
    Check(
        "instances",
        "Are some instances worse than others?",
        questions.bad_share_by_instance,
        _within_budget(" for every instance"),
        "it is not a single instance",
        "bad_instance",
        per_objective=True,
    ),
    Check(
        "queries",
        "Does the query of all events have a result?",
        lambda s: s.planned.events.total,
        _is(">=", 0),
        "the events are counted again",
        "no_result",
        "Ask for its metrics one by one, without their labels first.",
        per_objective=True,
    ),
    Check(
        "contradiction",
        "Do the numbers still contradict each other?",
        questions.contradiction,
        _no_result(),
        "both sides count the same events again",
        "contradiction",
        per_objective=True,
    ),
    Check(
        "lost",
        "Do records of the engine get lost?",
        lambda s: s.scope.rate("tokenslo_source_lost_records_total", by=("source",)),
        _is("==", 0, ", or no result"),
        "the sidecar reads every record",
        "records_lost",
    ),
    Check(
        "still_burning",
        "Does the budget still burn?",
        _error_ratio,
        _within_budget(),
        "the incident is over",
        "still_burning",
        per_objective=True,
    ),
    Check(
        "scraped",
        "Does Prometheus scrape the sidecar?",
        lambda s: aggregate("count", s.scope.series("tokenslo_build_info")),
        _is(">=", 1, ": one for every sidecar"),
        "the sidecar runs and is scraped",
        "sidecar_down",
    ),
    Check(
        "unavailable",
        "Does the sidecar say that the signal cannot be had?",
        questions.unavailable,
        _no_result(),
        "the sidecar has a method for every signal of this objective",
        "signal_off",
        "The status page of the sidecar (its address without /metrics) says why, and what would "
        "bring it.",
    ),
    Check(
        "selected",
        "Does the signal exist under other labels?",
        questions.models_with_signal,
        _is(">=", 1, " in the row of the model that the SLO file selects"),
        "the SLO file asks for labels that exist, if its model is among the rows",
        "wrong_selector",
        "No row at all: no server has the signal; see the other steps.",
    ),
    Check(
        "threshold",
        "Which instances count requests without judging them against the threshold?",
        questions.without_threshold,
        _no_result(),
        "every exporter judges requests against the threshold",
        "edge_missing",
        per_objective=True,
    ),
    Check(
        "source_errors",
        "Why do the sidecar's readings fail?",
        lambda s: s.scope.rate("tokenslo_source_errors_total", by=("source", "kind")),
        _is("==", 0, ", or no result"),
        "all readings succeed",
        "server_gone",
        "kind is one word for what went wrong: a refused connection is a dead server, a timeout a "
        "stuck or overloaded one.",
    ),
)
