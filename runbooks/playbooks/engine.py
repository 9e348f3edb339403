"""Causes in the engine: KV cache, batch, decoding, GPU."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

ENGINE = (
    Playbook(
        key="kv_pressure",
        title="KV-cache pressure",
        layer="KV cache",
        symptoms=("KV-cache pressure",),
        meaning=(
            "Utilization is near 1, or sequences wait although the batch is not full "
            "(guaranteed_no_evict reserves room for the longest response), or sequences"
            " are paused (max_utilization). Paused sequences are computed again: "
            "throughput falls at the same load."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("kv", "The result is outside its healthy range.", "KV cache"),
            Step("paused", "The result is outside its healthy range.", "KV cache"),
            Step("no_evict_waiting", "The result is outside its healthy range.", "KV cache"),
            Step("stalls", "The result is outside its healthy range.", "KV cache"),
        ),
        actions=(
            Action(
                "Lower the default and the limit of max_tokens at the gateway.",
                (
                    "long responses are cut; with guaranteed_no_evict this frees room at once, "
                    "as it reserves blocks for the limit"
                ),
            ),
            Action(
                "Refuse or reroute the longest prompts.",
                "those users are refused: identify them first",
            ),
            Action(
                (
                    "Shed load at the gateway: answer 429 with Retry-After to the lowest "
                    "priority first."
                ),
                "some users are refused, instead of all being slow",
            ),
            Action(
                ("If sequences are paused, set batch_scheduler_policy to guaranteed_no_evict."),
                "requests wait before their first token instead of stopping in the middle",
                effort="Needs a model reload",
            ),
            Action(
                ("Raise kv_cache_free_gpu_mem_fraction (default 0.9) or lower max_batch_size."),
                ("too high a fraction runs out of memory at load or at the first long prefill"),
                effort="Needs a model reload",
            ),
            Action(
                "Add instances, or store the KV cache in FP8, or offload it to host memory.",
                "FP8 must be checked for quality; offloading makes reused prefixes slower",
                effort="Needs a plan",
            ),
        ),
        verified_by="waiting",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="overload",
        title="More load than capacity",
        layer="batcher",
        symptoms=("More load than capacity",),
        meaning=(
            "Waiting sequences increase, active sequences are at the maximum, the KV "
            "cache is not full. TTFT grows without limit while ITL stays."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("waiting", "The result is outside its healthy range.", "batcher"),
            Step("batch", "The result is outside its healthy range.", "batcher"),
            Step("rejections", "The result is outside its healthy range.", "batcher"),
            Step("early", "The result is outside its healthy range.", "batcher"),
            Step("queue_share", "The result is outside its healthy range.", "batcher"),
            Step("traffic_one_instance", "The result is outside its healthy range.", "batcher"),
            Step("server_timeouts", "The result is outside its healthy range.", "batcher"),
            Step("disconnects_up", "The result is outside its healthy range.", "batcher"),
        ),
        actions=(
            Action(
                (
                    "Shed load at the gateway: answer 429 with Retry-After to the lowest "
                    "priority first."
                ),
                "some users are refused, instead of all being slow",
            ),
            Action(
                (
                    "If only some instances are full, route by waiting sequences or KV-cache "
                    "utilization instead of round robin."
                ),
                "prefix-cache hits drop where routing followed the prefix",
            ),
            Action(
                (
                    "Cancel requests at the gateway that have waited longer than the client's "
                    "timeout. Triton's queue policy does not apply to requests that the backend"
                    " has accepted."
                ),
                "late responses become errors",
            ),
            Action(
                (
                    "Raise max_batch_size, up to what the engine was built for, if the KV cache"
                    " has room."
                ),
                "every stream gets slower as the batch grows: watch ITL",
                effort="Needs a model reload",
            ),
            Action(
                "Add instances.",
                (
                    "a new instance loads its model for minutes before it helps; scale on "
                    "waiting sequences, not on CPU or GPU utilization"
                ),
                effort="Needs a plan",
            ),
        ),
        verified_by="waiting",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="long_work",
        title="Prompts or responses have become longer",
        layer="client",
        symptoms=("Prompts or responses have become longer",),
        meaning=(
            "The same number of requests brings more tokens: a new client, a longer "
            "system prompt, more retrieved context, a prefix that no longer hits the "
            "cache."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("prompts", "The result is outside its healthy range.", "client"),
            Step("answers", "The result is outside its healthy range.", "client"),
            Step("reuse", "The result is outside its healthy range.", "client"),
        ),
        actions=(
            Action(
                (
                    "Identify the client at the gateway, and limit its prompt length or tokens "
                    "per minute."
                ),
                "that client is refused",
            ),
            Action(
                "Revert the change that made prompts longer or their prefixes differ (a "
                "date or an id before the system prompt defeats the prefix cache)."
            ),
            Action(
                (
                    "Enable chunked context, so that a long prefill shares the batch with "
                    "running streams."
                ),
                "long prompts themselves take a little longer",
                effort="Needs a model reload",
            ),
            Action(
                "Serve long prompts from instances of their own.",
                "capacity is split",
                effort="Needs a plan",
            ),
        ),
        verified_by="prompts",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="stuck_decode",
        title="Decoding is stuck",
        layer="backend",
        symptoms=("Decoding is stuck",),
        meaning=(
            "Sequences are active, but iterations and output tokens do not increase. "
            "GPU utilization is 0, or 100% if ranks wait for each other. Requests queue"
            " until they time out, while the health endpoint returns 200."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("stuck", "The result is outside its healthy range.", "backend"),),
        actions=(
            Action(
                (
                    "Take the instance out of traffic: fail its readiness, or remove it from "
                    "the load balancer. Leave it running."
                ),
                "the others take its load: check that they have headroom",
            ),
            Action(
                (
                    "Save the evidence that a restart destroys: stacks of all ranks (`py-spy "
                    "dump`, `gdb`), `nvidia-smi -q`, kernel log lines with XID."
                ),
                "capacity is missing meanwhile: at most five minutes",
            ),
            Action(
                "Restart all ranks of the instance together.",
                (
                    "its active streams are lost; after a driver or NVLink fault it gets stuck "
                    "again: drain the node"
                ),
                effort="Needs a restart",
            ),
            Action(
                (
                    "If it gets stuck again, disable the latest change: speculative decoding, "
                    "guided decoding, a new kernel."
                ),
                "slower decoding",
                effort="Needs a model reload",
            ),
        ),
        verified_by="stuck",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="engine_death",
        title="The engine has died, or is about to",
        layer="backend",
        symptoms=("The engine has died, or is about to",),
        meaning=(
            "Out of memory at load (the model stays UNAVAILABLE) or at run time; in a "
            "multi-GPU engine one dead rank stops all others. The model is not ready, "
            "scrapes fail, and memory rose in a step before."
        ),
        impact="Users notice what the alert's page states.",
        steps=(Step("memory", "The result is outside its healthy range.", "backend"),),
        actions=(
            Action(
                "Keep the instance out of traffic until its model is ready again.",
                "the others take its load",
            ),
            Action(
                "Look for XID in the kernel log, and for other processes on the GPU (`nvidia-smi`)."
            ),
            Action(
                "Restart the instance, all ranks together.",
                "its active streams are lost",
                effort="Needs a restart",
            ),
            Action(
                ("Lower kv_cache_free_gpu_mem_fraction, then max_batch_size or max_num_tokens."),
                "less capacity: requests queue earlier",
                effort="Needs a model reload",
            ),
        ),
        verified_by="sources",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="slow_engine",
        title="The engine has slowed down",
        layer="GPU",
        symptoms=("The engine has slowed down",),
        meaning=(
            "Output tokens per second fall at the same traffic: paused sequences, "
            "throttled GPUs, a broken NVLink that fell back to PCIe, a neighbour on the"
            " same GPU."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("output", "The result is outside its healthy range.", "GPU"),
            Step("prefill_slow", "The result is outside its healthy range.", "GPU"),
            Step("pace_slow", "The result is outside its healthy range.", "GPU"),
        ),
        actions=(
            Action(
                "Compare the instances: if one is slow, take it out of traffic.",
                "the others take its load",
            ),
            Action(
                "On the slow node check clocks, power and temperature limits, NVLink state "
                "(`nvidia-smi -q`, `nvidia-smi nvlink -s`) and the kernel log for XID."
            ),
            Action(
                "Move other processes off the GPU, or drain the node.",
                "less capacity",
                effort="Needs a plan",
            ),
        ),
        verified_by="output",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
    Playbook(
        key="batch_too_large",
        title="The batch is too large",
        layer="batcher",
        symptoms=("The batch is too large",),
        meaning=(
            "Throughput is good, but every stream is slow: the batch holds more "
            "sequences than the objective allows."
        ),
        impact="Users notice what the alert's page states.",
        steps=(
            Step("batch", "The result is outside its healthy range.", "batcher"),
            Step("throughput", "The result is outside its healthy range.", "batcher"),
        ),
        actions=(Action("Follow the steps of the diagnosis; mitigate what they find."),),
        verified_by="batch",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
)
