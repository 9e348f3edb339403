"""Latency by layer: the procedure that leads to the other playbooks."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

_LAYERS = """\
flowchart TD
  spike["p99 spike"] --> scraped{"Is the server scraped?"}
  scraped -->|no| measurement["Measurement: exporter source down"]
  scraped -->|yes| tokens{"Do engines with active sequences produce tokens?"}
  tokens -->|no| stuck["Backend: stuck decode"]
  tokens -->|yes| one{"Is it one version or one instance?"}
  one -->|one version| rollout["Artifact or configuration: bad rollout"]
  one -->|it has just started| cold["Instance: cold start"]
  one -->|it queues, others are idle| routing["Instance: routing, bad instance"]
  one -->|neither| part{"Which part of the time has grown?"}
  part -->|clients do not read| slow["Client: slow clients"]
  part -->|streams end at one age| timeout["Gateway: gateway timeout"]
  part -->|share of queueing| queue{"Why do requests wait?"}
  part -->|prefill per prompt token| prefill{"Does the prefix cache help less?"}
  part -->|longer prompts| long["Client: long prompts or responses"]
  part -->|time per output token| pace{"Are sequences paused?"}
  part -->|one stage of the ensemble| stage["Backend: slow ensemble stage"]
  queue -->|the same prompts again| storm["Client: timeout storm"]
  queue -->|a deadline of the server| policy["Triton queue: overload"]
  queue -->|the batch is full| overload["Batcher: overload"]
  queue -->|KV cache full, or free slots| kv["KV cache: KV pressure"]
  prefill -->|yes| long
  prefill -->|no| gpu["GPU: slow engine"]
  pace -->|yes| kv
  pace -->|no, throughput is as before| large["Batcher: batch too large"]
  pace -->|no, throughput fell| gpu
"""

LATENCY = (
    Playbook(
        key="latency_spike",
        title="p99 spike by layer",
        layer=None,
        symptoms=(
            "p99 of TTFT, ITL or request duration rises",
            "no cause alert fires",
            "the median is as before",
        ),
        meaning=(
            "The slowest requests have become slower, and it is not known in which layer. Take "
            "the steps in order: the first ones are cheap and rule out most. The first "
            "unhealthy result names the layer and the playbook to open."
        ),
        impact=(
            "A share of the users waits longer, usually for one reason that those requests have "
            "in common: an instance, a version, a prompt length, a full queue."
        ),
        steps=(
            Step("sources", "The numbers are not current: solve this first.", "measurement"),
            Step(
                "stuck",
                "An engine holds its requests without progress. Its instance is all of the p99.",
                "backend",
            ),
            Step(
                "versions",
                "One version has the slow requests: model, tokenizer, configuration or image.",
                "artifact or configuration",
            ),
            Step(
                "recent_start",
                "An instance has just started: first requests compile, allocate and fill caches.",
                "instance",
            ),
            Step(
                "traffic_one_instance",
                "One instance has a queue while others are idle: the load balancer, not capacity.",
                "instance",
            ),
            Step(
                "reading",
                "Streams wait for their clients. The server is not the reason for their gaps.",
                "client",
            ),
            Step(
                "ages",
                "Streams end at one age: a timeout cuts the slowest ones, and hides how slow "
                "they would have been.",
                "gateway",
            ),
            Step("retries", "Part of the load is repeated work.", "client"),
            Step(
                "server_timeouts",
                "Requests reach a deadline of the server: that of Triton's queue policy, or one "
                "that the client sends.",
                "Triton queue",
            ),
            Step(
                "queue_share",
                "Most of TTFT is waiting: more load than capacity, or too little KV cache. The "
                "next three steps decide which.",
                "batcher",
            ),
            Step("batch", "All slots are in use: requests wait for a slot.", "batcher"),
            Step(
                "no_evict_waiting", "Requests wait for room for their whole response.", "KV cache"
            ),
            Step("kv", "Requests wait for KV-cache blocks.", "KV cache"),
            Step(
                "paused", "Running sequences lose their blocks and are computed again.", "KV cache"
            ),
            Step(
                "prompts",
                "Longer prompts: each prefill takes longer, and delays the tokens of all others.",
                "client",
            ),
            Step(
                "reuse",
                "The prefix cache no longer helps, so prompts are computed in full.",
                "artifact or configuration",
            ),
            Step(
                "prefill_slow",
                "Prefill is slower at the same prompt length: the GPU or a co-tenant, if the "
                "steps above are healthy.",
                "GPU",
            ),
            Step("pace_slow", "Every token takes longer: a larger batch, or a slower GPU.", "GPU"),
            Step(
                "throughput",
                "The engine is as productive as before: each token is slow because too many "
                "sequences share a step.",
                "batcher",
            ),
            Step(
                "stage_slow",
                "One step of the ensemble takes the time: tokenizer, detokenizer or a Python "
                "model with one instance.",
                "backend",
            ),
        ),
        actions=(
            Action(
                "Open the playbook of the first unhealthy result, and follow its mitigation.",
            ),
            Action(
                "If one instance or version is slow, take it out of traffic while you look.",
                "the others take its load: check that they have headroom",
            ),
            Action(
                "If all are slow and the queue grows, shed load at the gateway while you look: "
                "status 429 with `Retry-After`, the lowest priority first.",
                "some users are refused",
            ),
            Action(
                "If all results are healthy, compare traces or access logs of slow and fast "
                "requests: prompt length, `max_tokens`, tools, guided decoding, LoRA adapter, "
                "tenant.",
            ),
        ),
        verified_by="still_burning",
        escalate=(
            "All results are healthy and the p99 stays: call the owner of the model, with the ids "
            "of three slow requests and the time at which it began."
        ),
        follow_up=(
            "Write down the step that found the cause. Add the signal if none did.",
            "If the signal of a step was unavailable, make it available: `tokenslo doctor` "
            "prints how.",
        ),
        see=("overload", "kv_pressure", "long_work", "slow_engine", "bad_rollout", "slow_stage"),
        diagram=_LAYERS,
    ),
)
