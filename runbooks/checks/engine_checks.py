"""Checks of the engine: scheduling, KV cache, batch, memory."""

from __future__ import annotations

from runbooks import service_queries as queries
from runbooks.checks.comparison import THAN_BEFORE
from runbooks.diagnosis_check import compares, service_check

ENGINE_CHECKS = (
    service_check(
        "stuck",
        "Does every engine with active sequences produce tokens?",
        queries.decoding,
        compares("==", 1, " for every model"),
        "decoding progresses, or the engine is idle",
        "stuck_decode",
        "The health endpoint returns 200 while decoding is stuck. The sidecar withdraws an "
        "engine's gauges when they do not change with sequences active, so steps about sequences "
        "and the KV cache have no result for that instance.",
    ),
    service_check(
        "waiting",
        "Are sequences waiting inside the engine?",
        queries.by_instance("sequences_waiting"),
        compares("<", 1, " on every instance"),
        "requests are scheduled at once",
        "overload",
        "The average of five minutes. The number is a lower bound: TensorRT-LLM does not export "
        "the queue beyond its maximum of active sequences, and Triton's queue figures end where "
        "the backend takes over.",
    ),
    service_check(
        "batch",
        "Is the batch full?",
        queries.running_share,
        compares("<", "0.75", " on every instance"),
        "the batch limit does not delay requests",
        "overload",
        "The sequences of an iteration over the maximum, on average over five minutes: from 0.75 "
        "on the batch is full at times. Waiting sequences are not included. Waiting with a batch "
        "that is not full: another resource is short, mostly the KV cache.",
    ),
    service_check(
        "no_evict_waiting",
        "Do sequences wait although the batch has free slots?",
        queries.waiting_with_free_slots,
        compares("<", 1, " on every instance"),
        "requests wait, if at all, for a slot in the batch",
        "kv_pressure",
        "0 where at least 90% of the batch runs. With the policy guaranteed_no_evict a sequence "
        "starts only if the KV cache has room for its longest possible response. Long prefills "
        "that use up the tokens of an iteration (max_num_tokens) look the same: compare prompts.",
    ),
    service_check(
        "kv",
        "Is the KV cache full on any instance?",
        lambda scope: scope.fullest("kv_headroom"),
        compares("<", "0.9", " on every instance"),
        "there is room for new sequences",
        "kv_pressure",
        "With the policy guaranteed_no_evict requests wait well below 1, because blocks are "
        "reserved for whole responses.",
    ),
    service_check(
        "paused",
        "Are sequences paused for lack of KV-cache blocks?",
        queries.paused,
        compares("<", 1, " on every instance"),
        "no sequence loses its blocks to another",
        "kv_pressure",
        "The maximum of five minutes. TensorRT-LLM pauses only with the policy max_utilization. "
        "The tokens of a paused sequence are computed again: token pace collapses, while TTFT "
        "may improve.",
    ),
    service_check(
        "traffic_one_instance",
        "Does one instance queue while another is half as busy?",
        queries.waiting_beside_idle,
        compares("<", 1),
        "instances share the load",
        "overload",
        "The longest queue of an instance, 0 if the least busy instance has at least half the "
        "sequences of the busiest. The cause is routing, not capacity.",
    ),
    service_check(
        "output",
        "Does the engine produce as many tokens as yesterday?",
        queries.ratio(queries.output),
        compares(">", "0.5", THAN_BEFORE),
        "the engine as a whole has not slowed down",
        "slow_engine",
        "Triton counts the tokens of a request when it ends, so use a range of minutes. Less "
        "traffic also lowers it: compare with the number of requests.",
    ),
    service_check(
        "throughput",
        "Is throughput as good as yesterday while streams are slow?",
        queries.throughput_while_slow,
        compares("<", "0.9"),
        "streams are not slow, or throughput fell with them",
        "batch_too_large",
        "Output tokens per second over those of this time yesterday, 0 while a token takes less "
        "than 1.5 times as long as yesterday. Near or above 1, the engine works at full speed for "
        "too many sequences at once.",
    ),
    service_check(
        "memory",
        "Has the memory of the engine grown?",
        queries.memory_growth,
        compares("<", "1.05", " times the least of the last day"),
        "the engine's memory is as at load",
        "engine_death",
        "The engine allocates its memory at load. The PyTorch backend reports the whole "
        "device, so a neighbour on the same GPU shows here too.",
    ),
    service_check(
        "errors",
        "Do requests fail in the server?",
        queries.failures("error", "draining", "truncated"),
        compares("<", "0.01", " of the requests"),
        "the engine completes the requests",
        "failures",
        "Label reason is the server's: BACKEND is the engine or the model, OTHER mostly a failed "
        "step of an ensemble. Outcome draining is a server that shuts down.",
    ),
    service_check(
        "rejections",
        "Are requests shed or timed out in the queue?",
        queries.failures("shed", "timeout"),
        compares("<", "0.01", " of the requests"),
        "the scheduler's queue policy drops nothing",
        "overload",
        "Triton counts requests that time out in the queue, but not those that it refuses because "
        "the queue is full; clients get 503. A tap counts both as shed.",
    ),
    service_check(
        "died",
        "Do requests fail before their first token?",
        queries.died_before_first_token,
        compares("<", "0.01", " of the requests"),
        "requests are slow rather than failing",
        "failures",
        "A TTFT objective counts them as bad although no latency histogram has observed them.",
    ),
    service_check(
        "broken",
        "Do streams break off in the middle?",
        queries.mid_stream_failures,
        compares("<", "0.01", " of the streams"),
        "streams end normally",
        "broken_streams",
        "Needs a tap (--tap): an error mid-stream has status 200. Client disconnects are not "
        "included.",
    ),
)
