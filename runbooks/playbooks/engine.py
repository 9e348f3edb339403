"""Causes in the engine: decoding, processes, GPU.

Parameters are those of TensorRT-LLM's Triton backend (``docs/model_config.md``), of the LLM API and
of ``trtllm-serve``.
"""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

ENGINE = (
    Playbook(
        key="stuck_decode",
        title="Decoding is stuck",
        layer="backend",
        symptoms=(
            "no tokens although the server is ready",
            "all streams of an instance freeze at once",
            "DecodeStuck fires",
        ),
        meaning=(
            "The engine has active sequences and finishes no iteration: no stream of the model "
            "receives a token. The process responds, so health endpoints return 200: Triton's, and "
            "`/health` of older releases of trtllm-serve. In a multi-GPU engine the usual state is "
            "one rank that waits for another one: the GPUs that wait show 100% utilization, the "
            "other one 0."
        ),
        impact=(
            "Every stream on the instance hangs until a client or gateway times out, and new "
            "requests join them. A load balancer that counts only connections keeps sending."
        ),
        steps=(
            Step(
                "stuck",
                "The instance in the row hangs. Take it out of traffic before you look further.",
                "backend",
            ),
            Step(
                "sources",
                "The server does not answer scrapes either: the process hangs or is dead, not "
                "only its engine. Continue with the death of the engine.",
                "instance",
            ),
            Step(
                "output",
                "Near 0 for the service: all instances hang, so look for what they share, such "
                "as a request that reached all of them, a driver or a file system.",
                "backend",
            ),
            Step(
                "memory",
                "Memory grew before the hang: an allocation may have failed in one rank.",
                "GPU",
            ),
            Step(
                "recent_start",
                "It hung soon after its start: suspect the last rollout.",
                "artifact or configuration",
            ),
        ),
        actions=(
            Action(
                "Take the instance out of traffic, and leave it running.",
                "the others take its load: check that they have free slots",
                setting=(
                    "a readiness probe on the sidecar's `/readyz` does it, which returns 503 "
                    "while decoding is stuck; otherwise change the label that the Service selects "
                    "(`kubectl label pod POD app-`)"
                ),
            ),
            Action(
                "Save what a restart destroys: stacks of all ranks, the state of the GPUs, Xid "
                "messages of the kernel.",
                "the instance is missing for these minutes: limit them to five",
                setting=(
                    "`py-spy dump --pid PID` or `gdb -p PID -batch -ex 'thread apply all bt'` for "
                    "each rank, `nvidia-smi -q`, `dmesg -T | grep -i xid`"
                ),
            ),
            Action(
                "Restart all ranks of the instance together.",
                "its streams end without a final event",
                "Needs a restart",
                "`kubectl delete pod POD`; for an engine over several nodes all of its pods",
            ),
            Action(
                "If it hangs again, disable the feature that changed last.",
                "slower decoding, or requests for guided decoding fail",
                "Needs a model reload",
                "`speculative_config` in the LLM API, `decoding_mode` or "
                "`guided_decoding_backend` in `config.pbtxt`",
            ),
            Action(
                "If it hangs again on the same node, drain the node.",
                "less capacity until the node is repaired",
                "Needs a plan",
                "`kubectl drain NODE --ignore-daemonsets`",
            ),
        ),
        verified_by="stuck",
        escalate=(
            "Call the owner of the inference engine if a second instance hangs or the same one "
            "hangs twice within an hour. Bring the stacks, `nvidia-smi -q`, the Xid messages, the "
            "image and engine version, and the last requests before the hang."
        ),
        follow_up=(
            "Report the hang to NVIDIA with the stacks and a request that reproduces it.",
            "Point the readiness probe at the sidecar, so that a hang ends traffic by itself.",
            "Check that gateways time out on idle streams, which bounds what users wait.",
        ),
        see=("engine_death", "bad_rollout", "slow_engine"),
    ),
    Playbook(
        key="engine_death",
        title="The engine has died, or is out of memory",
        layer="backend",
        symptoms=(
            "model not ready after it was serving",
            "many streams break off at the same second",
            "CUDA out of memory in the log",
        ),
        meaning=(
            "A process of the engine has ended. In a multi-GPU engine one dead rank is enough: the "
            "others cannot finish an iteration without it. The time shows the kind.\n\n"
            "- At load: weights, buffers and KV cache do not fit. The model never becomes ready, "
            "and the same configuration fails again.\n"
            "- At run time: another process on the GPU allocated, or a request needed more than "
            "any before. The same configuration may run for days again.\n"
            "- Without an out-of-memory message: a crash, a signal (exit code 137 is SIGKILL, "
            "mostly the host's memory limit) or a hardware fault (Xid in the kernel log)."
        ),
        impact=(
            "All streams of the instance break off, and everything in its KV cache is lost: the "
            "prefix cache starts cold. Triton's counters start again at 0; those of the sidecar "
            "go on."
        ),
        steps=(
            Step(
                "not_ready",
                "The server runs and has lost the model: read the reason in the repository index.",
                "backend",
            ),
            Step(
                "sources",
                "The server itself does not answer: the whole process ended.",
                "instance",
            ),
            Step(
                "source_errors",
                "A refused connection is a dead process, a timeout one that hangs or starts.",
                "instance",
            ),
            Step(
                "memory",
                "Memory grew before the end: out of memory at run time. A neighbour on the GPU "
                "shows here too if the backend is PyTorch.",
                "GPU",
            ),
            Step(
                "broken",
                "Streams broke off when the engine died: each one is a user with half a response.",
                "backend",
            ),
            Step(
                "recent_start",
                "The instance has restarted by itself: look for a loop of restarts.",
                "instance",
            ),
        ),
        actions=(
            Action(
                "Keep the instance out of traffic until its model is ready.",
                "the remaining instances carry the traffic alone",
                setting=(
                    "readiness probe on Triton's `GET /v2/health/ready`, which needs every model "
                    "to be ready (`--strict-readiness=true`, the default)"
                ),
            ),
            Action(
                "Read why the process ended.",
                setting=(
                    "`kubectl logs POD --previous`, `kubectl describe pod POD` (exit code, "
                    "OOMKilled), `nvidia-smi` (other processes), `dmesg -T | grep -i xid`"
                ),
            ),
            Action(
                "Restart the instance, all ranks together.",
                "minutes of load time, and a cold prefix cache",
                "Needs a restart",
                "`kubectl delete pod POD`",
            ),
            Action(
                "Out of memory: leave more of the GPU free.",
                "a smaller KV cache: requests queue earlier",
                "Needs a model reload",
                "lower `kv_cache_free_gpu_mem_fraction` in `config.pbtxt`, "
                "`kv_cache_config.free_gpu_memory_fraction` in the LLM API; then "
                "`max_num_tokens` and `max_batch_size`, which size the activation buffers",
            ),
            Action(
                "After an Xid message, drain the node and have the GPU tested.",
                "a node less",
                "Needs a plan",
                "`kubectl cordon NODE`, then `dcgmi diag -r 3`",
            ),
        ),
        verified_by="not_ready",
        escalate=(
            "Call the owner of the inference engine if an instance dies twice within an hour, and "
            "the owner of the nodes for any Xid message. Bring the log of the dead process, the "
            "exit code, `nvidia-smi -q` and memory over the last day."
        ),
        follow_up=(
            "Give the engine the GPU for itself; if it must share, size the KV cache in tokens "
            "(`max_tokens_in_paged_kv_cache`) instead of a fraction of what is free.",
            "Set the host's memory limit above the peak during load.",
            "Check that clients resume or repeat a broken stream only once.",
        ),
        see=("load_failure", "stuck_decode", "broken_streams", "cold_start"),
    ),
    Playbook(
        key="slow_engine",
        title="The engine has slowed down",
        layer="GPU",
        symptoms=(
            "every token takes longer at the same load",
            "one instance is slower than its neighbours",
            "throughput falls at the same traffic",
        ),
        meaning=(
            "Iterations take longer although batch, prompts and versions are as before. The usual "
            "reasons are GPU clocks lowered by heat or a power limit, an NVLink fault after which "
            "ranks communicate over PCIe, and a neighbour on the same GPU or host."
        ),
        impact=(
            "First tokens and token pace get worse together. As sequences stay longer, batch and "
            "KV cache fill up at the usual traffic, and the symptoms of overload follow."
        ),
        steps=(
            Step(
                "pace_slow",
                "Decoding has slowed down. The next steps find out whether the batch or the "
                "hardware is the reason.",
                "GPU",
            ),
            Step(
                "prefill_slow",
                "Prefill has slowed down too, which a larger batch alone does not explain.",
                "GPU",
            ),
            Step(
                "stalls",
                "Streams freeze. Paused sequences, long prefills and slow clients do that on a "
                "healthy GPU: look at the steps below first.",
                "backend",
            ),
            Step(
                "instances",
                "A single instance is slow: its node, not the software.",
                "GPU",
            ),
            Step(
                "paused",
                "The engine computes tokens twice: this is KV-cache pressure.",
                "KV cache",
            ),
            Step(
                "throughput",
                "Total throughput is as good as before: the batch is too large, and the GPU is "
                "fine.",
                "batcher",
            ),
            Step(
                "output",
                "Total throughput has halved at least. If arrivals are as before, the GPU does "
                "less work.",
                "GPU",
            ),
        ),
        actions=(
            Action(
                "If one instance is slow, reduce its share of the traffic or remove it.",
                "its load moves to the others",
                setting="the weight of the endpoint in the gateway, or the label of its pod",
            ),
            Action(
                "Compare the GPUs of a slow and of a fast node.",
                setting=(
                    "`nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE`, "
                    "`nvidia-smi nvlink -s`, `nvidia-smi topo -m`; over time "
                    "`DCGM_FI_DEV_POWER_USAGE` and `DCGM_FI_DEV_XID_ERRORS`"
                ),
            ),
            Action(
                "Move other processes off the GPU and the host.",
                "they are interrupted",
                "Needs a restart",
                "`nvidia-smi` lists the GPU's processes; node selector or taint of the pods",
            ),
            Action(
                "Restart the instance on another node.",
                "active streams of this instance are lost",
                "Needs a restart",
                "`kubectl cordon NODE` and `kubectl delete pod POD`",
            ),
            Action(
                "Have the slow node repaired.",
                "less capacity meanwhile",
                "Needs a plan",
                "`dcgmi diag -r 3` on the drained node",
            ),
        ),
        verified_by="pace_slow",
        escalate=(
            "Call the owner of the nodes if clocks, power or NVLink differ between nodes, and the "
            "owner of the engine if all instances became slow at the same minute. Bring TPOT by "
            "instance, the output of the comparison and the start of the change."
        ),
        follow_up=(
            "Alert on lowered clocks and NVLink errors of the nodes (dcgm-exporter).",
            "Keep a reference measurement of tokens per second for each node type.",
        ),
        see=("batch_too_large", "kv_pressure", "long_work", "bad_instance"),
    ),
)
