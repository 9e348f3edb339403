"""Causes in the stages of an ensemble beside the engine.

Instance groups and their updates are Triton's (``docs/user_guide/model_management.md``).
"""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

ENSEMBLE = (
    Playbook(
        key="slow_stage",
        title="One stage of an ensemble is slow",
        layer="instance",
        symptoms=(
            "TTFT is high while the engine's queue is empty",
            "requests are served one after the other",
            "a high pending count at preprocessing or postprocessing",
        ),
        meaning=(
            "The engine has time, and requests wait for another stage: tokenizing, detokenizing, "
            "a business-logic model (BLS), retrieval or moderation. A stage with one instance "
            "serves one request at a time, so its queue grows with the number of clients, not "
            "with the number of tokens."
        ),
        impact=(
            "A slow stage before the engine delays first tokens; one behind it delays every chunk. "
            "GPUs are idle at the same time, so more GPU instances do not help."
        ),
        steps=(
            Step(
                "stage_slow",
                "The row names the stage and the seconds that it adds to each request.",
                "instance",
            ),
            Step(
                "waiting",
                "Sequences wait inside the engine: the engine is slow as well, start there.",
                "batcher",
            ),
            Step(
                "prefill_slow",
                "With no sequence waiting, a first token that is late by a constant time comes "
                "from a stage before the engine.",
                "instance",
            ),
            Step(
                "stalls",
                "Chunks are late while the engine keeps its pace: detokenizing or a filter behind "
                "the engine.",
                "instance",
            ),
            Step(
                "arrivals",
                "More requests than yesterday: the stage reached its limit before the engine did.",
                "client",
            ),
        ),
        actions=(
            Action(
                "Turn off the optional stage, if the route allows it.",
                "its function is missing: ask its owner when it filters content",
                setting="the route or the ensemble that clients call, such as the engine's own",
            ),
            Action(
                "Add instances of the stage.",
                "each Python instance is a process with its own memory",
                "Needs a model reload",
                "`config.pbtxt` of the stage: `instance_group [ { count: 4 kind: KIND_CPU } ]` "
                "(`preprocessing_instance_count`, `postprocessing_instance_count`; "
                "`bls_instance_count` as large as the engine's batch). Triton changes only the "
                "count, without unloading the model",
            ),
            Action(
                "Give the stage's container the CPU that it needs.",
                "streams under way end with the old pod",
                "Needs a restart",
                "`resources.limits.cpu`; `container_cpu_cfs_throttled_periods_total` increases if "
                "the limit is too low",
            ),
            Action(
                "In trtllm-serve, detokenize in processes of their own.",
                "memory for each process",
                "Needs a restart",
                "`trtllm-serve --num_postprocess_workers N`; the default is 0",
            ),
            Action(
                "Call a remote stage with a deadline and a fallback.",
                "responses without its result",
                "Needs a plan",
                "the timeout of the stage's own client",
            ),
        ),
        verified_by="stage_slow",
        escalate=(
            "Call the owner of the stage if more instances do not shorten its queue. Bring the "
            "seconds per request of each stage today and yesterday, its pending requests "
            "(`nv_inference_pending_request_count`) and its CPU."
        ),
        follow_up=(
            "Load the ensemble, not only the engine, in load tests.",
            "Scrape Triton's own metrics into Prometheus, so that each stage has a latency.",
            "Bound the work between stages with `max_inflight_requests` of the ensemble.",
        ),
        see=("overload", "bad_rollout", "latency_spike"),
    ),
)
