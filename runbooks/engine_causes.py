"""Causes in server and engine, and their mitigations.

Facts about TensorRT-LLM and Triton are from their sources and documentation
(``batch_scheduler_policy``, ``kv_cache_free_gpu_mem_fraction``, ``--metrics-config``).
"""

from __future__ import annotations

from runbooks.mitigations import Action, Cause

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

ENGINE_CAUSES = (
    Cause(
        "server_gone",
        "The server is down or cannot be scraped",
        "tokenslo_source_up is 0; the sidecar's status page has the error. If the model is not "
        "ready either, the engine has died; if it is ready, only the metrics are missing.",
        (
            Action(
                "Query the server: `curl -i http://SERVER:8000/v2/health/ready` and "
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
        "Sequences are active, but iterations and output tokens do not increase. GPU utilization "
        "is 0, or 100% if ranks wait for each other. Requests queue until they time out, while the "
        "health endpoint returns 200.",
        (
            Action(
                "Take the instance out of traffic: fail its readiness, or remove it from the "
                "load balancer. Leave it running.",
                "the others take its load: check that they have headroom",
            ),
            Action(
                "Save the evidence that a restart destroys: stacks of all ranks (`py-spy dump`, "
                "`gdb`), `nvidia-smi -q`, kernel log lines with XID.",
                "capacity is missing meanwhile: at most five minutes",
            ),
            Action(
                "Restart all ranks of the instance together.",
                "its active streams are lost; after a driver or NVLink fault it gets stuck again: "
                "drain the node",
                "Needs a restart",
            ),
            Action(
                "If it gets stuck again, disable the latest change: speculative decoding, "
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
        "mix of prompts, often without any error.",
        (
            Action(
                "Send the traffic back to the previous version.",
                "the previous version must still be loaded; otherwise its load time comes first",
            ),
            Action(
                "If only some nodes are worse on the same version, compare drivers, clocks and "
                "NVLink state; drain the node that differs.",
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
        "Waiting sequences increase, active sequences are at the maximum, the KV cache is not "
        "full. TTFT grows without limit while ITL stays.",
        (
            _SHED,
            Action(
                "If only some instances are full, route by waiting sequences or KV-cache "
                "utilization instead of round robin.",
                "prefix-cache hits drop where routing followed the prefix",
            ),
            Action(
                "Cancel requests at the gateway that have waited longer than the client's timeout. "
                "Triton's queue policy does not apply to requests that the backend has accepted.",
                "late responses become errors",
            ),
            Action(
                "Raise max_batch_size, up to what the engine was built for, if the KV cache has "
                "room.",
                "every stream gets slower as the batch grows: watch ITL",
                "Needs a model reload",
            ),
            _SCALE_OUT,
        ),
    ),
    Cause(
        "kv_pressure",
        "KV-cache pressure",
        "Utilization is near 1, or sequences wait although the batch is not full "
        "(guaranteed_no_evict reserves room for the longest response), or sequences are paused "
        "(max_utilization). Paused sequences are computed again: throughput falls at the same "
        "load.",
        (
            Action(
                "Lower the default and the limit of max_tokens at the gateway.",
                "long responses are cut; with guaranteed_no_evict this frees room at once, as it "
                "reserves blocks for the limit",
            ),
            Action(
                "Refuse or reroute the longest prompts.",
                "those users are refused: identify them first",
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
        "Prompts or responses have become longer",
        "The same number of requests brings more tokens: a new client, a longer system prompt, "
        "more retrieved context, a prefix that no longer hits the cache.",
        (
            Action(
                "Identify the client at the gateway, and limit its prompt length or tokens per "
                "minute.",
                "that client is refused",
            ),
            Action(
                "Revert the change that made prompts longer or their prefixes differ (a date or an "
                "id before the system prompt defeats the prefix cache).",
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
                "On the slow node check clocks, power and temperature limits, NVLink state "
                "(`nvidia-smi -q`, `nvidia-smi nvlink -s`) and the kernel log for XID.",
            ),
            Action(
                "Move other processes off the GPU, or drain the node.",
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
        "engine one dead rank stops all others. The model is not ready, scrapes fail, and "
        "memory rose in a step before.",
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
                "less capacity: requests queue earlier",
                "Needs a model reload",
            ),
        ),
    ),
)
