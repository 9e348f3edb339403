"""What goes wrong in LLM serving, and what to do about it.

Each cause lists its mitigations in the order to try them: what can be taken back at once comes
first.  Facts about TensorRT-LLM and Triton are from their sources and documentation
(``batch_scheduler_policy``, ``kv_cache_free_gpu_mem_fraction``, ``--metrics-config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Effort = Literal[
    "Reversible at once",
    "Needs a model reload",
    "Needs a restart",
    "Needs a restart of the sidecar",
    "Needs a plan",
]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, what it costs or may break (empty: nothing), and what it takes."""

    do: str
    risk: str = ""
    effort: Effort = "Reversible at once"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause: how to recognise it, and what to do, in order.

    ``see`` are keys of the causes that may be behind it.
    """

    key: str
    title: str
    signs: str
    actions: tuple[Action, ...]
    see: tuple[str, ...] = ()


def _catalogue(*causes: Cause) -> Mapping[str, Cause]:
    return {cause.key: cause for cause in causes}


_SHED = Action(
    "Shed load at the gateway: answer 429 with Retry-After to the lowest priority first.",
    "some users are refused, instead of all being slow",
)
_SCALE_OUT = Action(
    "Add instances.",
    "a new instance loads its model for minutes before it helps; scale on waiting sequences, not "
    "on CPU or GPU utilization",
    "Needs a plan",
)

CAUSES = _catalogue(
    Cause(
        "cause_alert",
        "A cause alert fires",
        "The exporter's signals show a known cause. Each cause alert has a page of its own, with "
        "the name of the alert.",
        (Action("Mitigate as on the page of the cause alert."),),
    ),
    Cause(
        "server_gone",
        "The server is down or cannot be read",
        "tokenslo_source_up is 0, the sidecar's status page names the error. If the model is not "
        "ready as well, the engine has died; if it is, only the metrics are lost.",
        (
            Action(
                "Ask the server itself: `curl -i http://SERVER:8000/v2/health/ready` and "
                "`curl -i http://SERVER:8000/v2/models/MODEL/ready`.",
            ),
            Action(
                "If the model is ready, compare the sidecar's `--triton-metrics` with the port and "
                "path of Triton, which answers 200 with an empty body on a wrong path.",
                effort="Needs a restart of the sidecar",
            ),
        ),
        see=("engine_death",),
    ),
    Cause(
        "stuck_decode",
        "Decoding is stuck",
        "Sequences are active, the iteration counter stands still, no output tokens come, GPU "
        "utilization is 0 or (ranks waiting for each other) 100%. Requests pile up and die of "
        "their timeouts while the health endpoint says 200.",
        (
            Action(
                "Take the instance out of traffic: fail its readiness, or remove it from the "
                "load balancer. Leave it running.",
                "the others take its load: check that they have headroom",
            ),
            Action(
                "Save what a restart would destroy: stacks of all ranks (`py-spy dump`, `gdb`), "
                "`nvidia-smi -q`, kernel log lines with XID.",
                "the instance is missing meanwhile: give it five minutes, not more",
            ),
            Action(
                "Restart all ranks of the instance together.",
                "its active streams are lost; with a driver or NVLink fault it gets stuck again, "
                "then drain the node",
                "Needs a restart",
            ),
            Action(
                "If it comes back, switch off what was switched on last: speculative decoding, "
                "guided decoding, a new kernel.",
                "slower decoding",
                "Needs a model reload",
            ),
        ),
    ),
    Cause(
        "bad_rollout",
        "A bad rollout",
        "One version, or the instances that restarted last, are worse than the rest at the same "
        "mix of prompts; often there is no error anywhere.",
        (
            Action(
                "Send the traffic back to the previous version.",
                "the previous version must still be loaded; otherwise its load time comes first",
            ),
            Action(
                "If only some nodes are worse on the same version, compare their drivers, clocks "
                "and NVLink state; drain the odd one.",
                "less capacity",
            ),
            Action(
                "Roll back.",
                "loading a model takes minutes in which capacity is missing: one instance at a "
                "time",
                "Needs a model reload",
            ),
        ),
    ),
    Cause(
        "overload",
        "More load than capacity",
        "Waiting sequences grow, active ones are at the maximum, the KV cache is not full. "
        "Latency before the first token grows without limit while token pace stays.",
        (
            _SHED,
            Action(
                "If only some instances are full, route by waiting sequences or KV-cache "
                "utilization instead of round robin.",
                "prefix-cache hits drop where routing followed the prefix",
            ),
            Action(
                "Cancel requests at the gateway that have waited longer than their clients will. "
                "Triton's queue policy does not reach what the backend has already taken.",
                "requests are cancelled that would have been served late",
            ),
            Action(
                "Raise max_batch_size, up to what the engine was built for, if the KV cache has "
                "room.",
                "every stream gets slower as the batch grows: watch the token pace",
                "Needs a model reload",
            ),
            _SCALE_OUT,
        ),
    ),
    Cause(
        "kv_pressure",
        "KV-cache pressure",
        "Utilization is near 1, or sequences wait although the batch is not full "
        "(guaranteed_no_evict keeps room for the longest answer), or sequences are paused "
        "(max_utilization). Paused sequences are computed again: throughput falls while demand "
        "stays.",
        (
            Action(
                "Lower the default and the limit of max_tokens at the gateway.",
                "long answers are cut; with guaranteed_no_evict this frees room at once, as it "
                "reserves for the limit rather than for what is used",
            ),
            Action(
                "Refuse or reroute the longest prompts.",
                "those users are refused; find out who sends them first",
            ),
            _SHED,
            Action(
                "If sequences are paused, set batch_scheduler_policy to guaranteed_no_evict.",
                "requests wait before their first token instead of stopping in the middle",
                "Needs a model reload",
            ),
            Action(
                "Raise kv_cache_free_gpu_mem_fraction (default 0.9) or lower max_batch_size.",
                "too high a fraction runs out of memory at load or at the first long prefill",
                "Needs a model reload",
            ),
            Action(
                "Add instances, or store the KV cache in FP8, or offload it to host memory.",
                "FP8 must be checked for quality; offloading makes reused prefixes slower",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "long_work",
        "Prompts or answers have become longer",
        "The same number of requests brings more tokens: a new client, a longer system prompt, "
        "more retrieved context, a prefix that no longer hits the cache.",
        (
            Action(
                "Find who sends them at the gateway, and limit prompt length or tokens per minute "
                "for that client.",
                "that client is refused",
            ),
            Action(
                "Undo the change that made prompts longer or their beginnings differ (a date or "
                "an id in front of a system prompt defeats the prefix cache).",
            ),
            Action(
                "Enable chunked context, so that a long prefill shares the batch with running "
                "streams.",
                "long prompts themselves take a little longer",
                "Needs a model reload",
            ),
            Action(
                "Serve long prompts from instances of their own.",
                "capacity is split",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "retry_storm",
        "A retry storm, or a surge",
        "Requests rise just when latency passes a client's or gateway's timeout, with the same "
        "prompts again (llm_suspected_retries_total). Abandoned work goes on in the engine, so it "
        "feeds itself and does not end when the first cause does.",
        (
            Action(
                "Answer 429 with Retry-After at the gateway, and limit retries to a share of the "
                "requests (10% is plenty) with jitter.",
                "some users are refused; without it nobody is served",
            ),
            Action(
                "Make sure that a client leaving cancels its request. A gateway that keeps its "
                "upstream connection open hides it from Triton.",
            ),
            Action(
                "Cancel requests at the gateway that are older than their client's timeout: nobody "
                "waits for them.",
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
        "Streams end at one constant age (10, 15, 30, 60, 300 s), or after a constant silence; "
        "the client has status 200 and no final event. Triton counts such a request as a success; "
        "a sidecar that watches the streams counts a client that left, and the spike in "
        "llm_disconnect_age_seconds is the timeout.",
        (
            Action(
                "Read the gateway's own log for durations that repeat exactly; look at every hop, "
                "as there may be two deadlines.",
            ),
            Action(
                "Replace the route's total timeout by an idle timeout of about 300 s for "
                "streaming paths.",
                "a hung upstream is noticed later",
            ),
            Action(
                "Send comments on the stream until the first token comes, so that it never looks "
                "idle.",
                "clients must ignore SSE comments, as the standard says",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "broken_streams",
        "Streams break off in the middle",
        "llm_streams_total has failures in the phase mid_stream: an error event under status 200, "
        "an answer without its end, a reset, a deadline. Each is a user with half an answer.",
        (
            Action(
                "Read the outcomes: timeout is a deadline of the request or of the server's queue; "
                "error with many streams at the same moment is an engine or an instance that died.",
            ),
            Action(
                "Take the instance with most of them out of traffic.",
                "the others take its load",
            ),
            Action(
                "If they come with rollouts or scaling down, drain first: no new requests, and "
                "a grace period as long as the longest answer.",
                "rollouts take longer",
                "Needs a plan",
            ),
        ),
        see=("failures", "engine_death"),
    ),
    Cause(
        "slow_clients",
        "Clients do not read",
        "llm_client_backpressure_seconds_total rises: what is there for clients is not taken. A "
        "few clients on bad networks are normal; many at once are a gateway or a proxy.",
        (
            Action(
                "Compare with the gateway's own figures: if it is the one that does not read, "
                "it is overloaded or holds back for its own clients.",
            ),
            Action(
                "Set a write timeout at the gateway, so that a client that reads nothing for a "
                "minute is let go.",
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
        "Work goes on for clients that left",
        "llm_wasted_tokens_total rises, llm_disconnect_release_seconds is long: the server does "
        "not notice that nobody reads, and slots and KV-cache blocks stay taken.",
        (
            Action(
                "See that every hop passes a disconnect on: a gateway that keeps its upstream "
                "connection open hides it from the server.",
            ),
            Action(
                "Cancel on disconnect where the server leaves it to the model: Python models must "
                "ask response_sender.is_cancelled(), and gRPC clients must cancel their stream.",
                "",
                "Needs a model reload",
            ),
            Action(
                "Until then, lower the limit of max_tokens at the gateway: it bounds the waste.",
                "long answers are cut",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "failing_clause",
        "One clause fails most requests",
        "The clause that most bad requests failed first says what users notice.",
        (
            Action(
                "ttft or queue: requests wait. Go on with the steps about waiting, the batch and "
                "the KV cache.",
            ),
            Action(
                "tpot or max_gap: streams are slow or stall. Go on with the steps about paused "
                "sequences, prompts and output.",
            ),
            Action(
                "e2e: answers are long, or all of it is slow. Go on with the step about answers.",
            ),
            Action(
                "outcome: requests fail, whatever their times. Go on with the step about errors.",
            ),
        ),
    ),
    Cause(
        "slow_engine",
        "The engine has slowed down",
        "Output tokens per second fall at the same traffic: paused sequences, throttled GPUs, a "
        "broken NVLink that fell back to PCIe, a neighbour on the same GPU.",
        (
            Action(
                "Compare the instances: if one is slow, take it out of traffic.",
                "the others take its load",
            ),
            Action(
                "On the slow node read clocks, power and temperature limits, NVLink state "
                "(`nvidia-smi -q`, `nvidia-smi nvlink -s`) and the kernel log for XID.",
            ),
            Action(
                "Move away what else runs on the GPU, or drain the node.",
                "less capacity",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "failures",
        "Requests fail in the server",
        "Outcome error. Reason BACKEND: the engine or the model. Reason OTHER: a step of an "
        "ensemble, or before execution. Triton's Python backends report only raised exceptions: "
        "an error sent as a response counts as a success.",
        (
            Action(
                "Read the server's log at the time of the first failure; one kind of request "
                "(tools, guided decoding, images, very long) often explains all of them.",
            ),
            Action(
                "Refuse that kind of request at the gateway.",
                "those users are refused",
            ),
            Action(
                "Take failing instances out of traffic; restart them one at a time.",
                "their active streams are lost",
                "Needs a restart",
            ),
        ),
    ),
    Cause(
        "engine_death",
        "The engine has died, or is about to",
        "Out of memory at load (the model stays UNAVAILABLE) or at run time; in a multi-GPU "
        "engine one dead rank takes all with it. The model is not ready, the readings fail, "
        "memory made a step before.",
        (
            Action(
                "Keep the instance out of traffic until its model is ready again.",
                "the others take its load",
            ),
            Action(
                "Look for XID in the kernel log, and for other processes on the GPU "
                "(`nvidia-smi`).",
            ),
            Action(
                "Restart the instance, all ranks together.",
                "its active streams are lost",
                "Needs a restart",
            ),
            Action(
                "Lower kv_cache_free_gpu_mem_fraction, then max_batch_size or max_num_tokens.",
                "less capacity: requests wait earlier",
                "Needs a model reload",
            ),
        ),
    ),
    Cause(
        "estimated",
        "The number is an estimate",
        'tokenslo_signal_info says quality="estimate" and names the method. Estimates follow the '
        "trend; they need not agree with a client's clock.",
        (
            Action(
                "Confirm with a client or the gateway's log before an expensive mitigation.",
                "minutes",
            ),
            Action(
                "Read the status page of the sidecar (its address without /metrics): it says what "
                "the method leaves out, and what an exact one would need.",
            ),
        ),
    ),
    Cause(
        "budget_spent",
        "The budget is spent",
        "More went wrong in the period than was promised, in one long incident or in many short "
        "ones: the burn rate on the dashboard shows which, over the whole period.",
        (
            Action(
                "Stop rollouts of models, engines and drivers, but for those that make the service "
                "more reliable, until the budget is back.",
                "other plans are late",
            ),
            Action(
                "List the incidents of the period by the budget that each of them took, and work "
                "on the largest first.",
            ),
            Action(
                "If users did not notice, the promise is stricter than needed: agree on another "
                "target with those who rely on it, and change the SLO file.",
                "a target that follows the failures promises nothing",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "service",
        "The service or what it depends on",
        "The objective is measured by queries of its own, so nothing else is known here. The time "
        "at which the burn rate rose, on the dashboard, says what to look for.",
        (
            Action(
                "Take back what changed last before that time: a rollout, a configuration, a "
                "feature flag.",
                "whatever the change was for is undone",
            ),
            Action("Read the service's own dashboard and logs, then those of what it calls."),
        ),
    ),
    Cause(
        "more_traffic",
        "More traffic than usual",
        "Events per second are far above the day before, and the errors came with them.",
        (
            Action(
                "Limit at the gateway, the lowest priority first.",
                "some users are refused, instead of all being served badly",
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
        "no_result",
        "The queries have no result",
        "Prometheus has no series for the objective's queries: the target is gone, its metrics or "
        "labels have other names now, or the query itself leaves out an idle service.",
        (
            Action("Look at Prometheus's page of targets for the jobs that the query names."),
            Action(
                "If metrics or labels were renamed, change the SLO file and generate again.",
            ),
        ),
    ),
    Cause(
        "contradiction",
        "The numbers contradict each other",
        "More of one kind are counted than there are of all kinds, or a share is not within 0 and "
        "1. Nobody knows what the error ratio is worth until that is explained.",
        (
            Action(
                "Ask for both parts of the objective one by one, by job and instance: what is "
                "counted twice, or by one side only, shows as a factor between them.",
            ),
            Action(
                "Look for what changed when it began: an exporter's or a server's release that "
                "gave a metric another meaning or unit (percent instead of a ratio), a second "
                "scrape job or recording rule with the same series.",
            ),
            Action(
                "Correct the selector or the queries in the SLO file so that both sides count the "
                "same events, run `tokenslo generate`, and load the rules again.",
            ),
        ),
    ),
    Cause(
        "records_lost",
        "Records of the engine get lost",
        "tokenslo_source_lost_records_total rises: iterations are missing from what the sidecar "
        "reads, so rates and estimates made of them are too low.",
        (
            Action(
                "Look for a second reader: an engine's records are handed out once, and whoever "
                "asks first has them.",
            ),
            Action(
                "Let the sidecar read more often (`--interval`): records wait in a queue of fixed "
                "length, and the oldest are dropped.",
                "a little more work for the server",
                "Needs a restart of the sidecar",
            ),
        ),
    ),
    Cause(
        "still_burning",
        "The budget still burns",
        "The burn rate over the short window is above 1: the incident is not over.",
        (Action("Work on the page of the burn-rate alert first."),),
    ),
    Cause(
        "sidecar_down",
        "The sidecar is down or not scraped",
        "Prometheus has no tokenslo_build_info. Requests are affected only where the sidecar is a "
        "proxy (`--tap proxy=…`): then clients are refused while it is down.",
        (
            Action(
                "Ask it in its pod: `curl -i http://127.0.0.1:9464/healthz`, then look at "
                "Prometheus's page of targets.",
            ),
            Action(
                "If it is a proxy and does not answer, send clients to the server's own port.",
                "streams and goodput are not measured meanwhile",
            ),
            Action(
                "If it answers there and not to Prometheus, correct the address it listens on "
                "(`--listen`, by default loopback only) or the scrape configuration.",
                effort="Needs a restart of the sidecar",
            ),
            Action(
                "Restart the sidecar's container.",
                effort="Needs a restart of the sidecar",
            ),
        ),
    ),
    Cause(
        "signal_off",
        "The server does not give the signal",
        "tokenslo_signal_info says unavailable. For time to first token on Triton (24.11 or "
        "later): the first-response histogram is off by default, and exists for decoupled models; "
        "for `counter_latencies=false`: Triton freezes all its request counters at 0. What is said "
        "of streams and of goodput no server gives: the sidecar must watch the streams.",
        (
            Action(
                "Run `tokenslo server-config FILE` with this SLO file: it prints the flag "
                "(`--metrics-config histogram_latencies=true`) and the model_metrics stanza for "
                "config.pbtxt with a bucket at this objective's threshold.",
            ),
            Action(
                "For streams and goodput start the sidecar with a tap: `--tap "
                "proxy=:9000=127.0.0.1:8000`, with clients sent to port 9000, or `--tap "
                "capture=eth0:8000` where it may have CAP_NET_RAW. `tokenslo doctor URL` says what "
                "any other signal needs.",
                effort="Needs a restart of the sidecar",
            ),
            Action(
                "Restart Triton with the flag, and load the model again after changing "
                "config.pbtxt.",
                "active streams are lost: one instance at a time",
                "Needs a restart",
            ),
            Action(
                "If the model is served by a backend that has no such metric, take the objective "
                "out of the SLO file rather than leave an alert that cannot work.",
                "the promise is no longer watched: say so to those who rely on it",
                "Needs a plan",
            ),
        ),
    ),
    Cause(
        "edge_missing",
        "The histogram lacks the threshold's bucket",
        "A share within a threshold is exact only at a bucket edge, and without one there is no "
        "result at all.",
        (
            Action(
                "Start the sidecar with `--slo FILE` of this service: it inserts every threshold "
                "as an edge where it measures itself.",
                effort="Needs a restart of the sidecar",
            ),
            Action(
                "Where the histogram is Triton's own, give it the edge with the stanza that "
                "`tokenslo server-config FILE` prints; the model must be unloaded and loaded.",
                "active streams are lost: one instance at a time",
                "Needs a model reload",
            ),
        ),
    ),
    Cause(
        "wrong_selector",
        "The SLO file selects labels that do not exist",
        "The signal exists, under another model or version name: a renamed model, or a label that "
        "Prometheus's relabelling dropped.",
        (
            Action(
                "Correct the selector in the SLO file, run `tokenslo generate`, and load the rules "
                "again.",
            ),
        ),
    ),
)
