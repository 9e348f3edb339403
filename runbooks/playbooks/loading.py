"""Causes around the load of a model: cold starts and failed loads.

The options are Triton's and Kubernetes' own.
"""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

LOADING = (
    Playbook(
        key="cold_start",
        title="A cold start",
        layer="instance",
        symptoms=(
            "latency is bad for minutes after a start or a scale-out",
            "the first requests to a new instance are slow",
        ),
        meaning=(
            "An instance or a model has started and receives its full share of traffic before it "
            "is warm. Some kernels and graphs are prepared at the first requests of a shape, the "
            "prefix cache is empty, and while the model loads its share of the capacity is "
            "missing elsewhere."
        ),
        impact=(
            "Requests to the new instance have late first tokens for a few minutes; then it ends "
            "by itself. With frequent scaling it happens all day."
        ),
        steps=(
            Step(
                "recent_start",
                "The instance in the row is new. If the burn began with its first requests, wait "
                "with other changes.",
                "instance",
            ),
            Step(
                "not_ready",
                "A model still loads, or fails to load: capacity is missing, the others are "
                "overloaded rather than cold.",
                "instance",
            ),
            Step(
                "reuse",
                "Prefixes are not in the cache of the new instance yet.",
                "KV cache",
            ),
            Step(
                "traffic_one_instance",
                "The new instance queues while the others have room: its share is too large for "
                "its first minutes.",
                "gateway",
            ),
            Step(
                "instances",
                "The new instance is worse than the rest. If an old one is, this is no cold start.",
                "instance",
            ),
        ),
        actions=(
            Action(
                "Start the new instance with a small share of the traffic.",
                "the warm instances carry more meanwhile",
                setting="Envoy `slow_start_config`, HAProxy `slowstart`, or the route's weight",
            ),
            Action(
                "Send warm-up requests of typical lengths before it receives traffic.",
                "they appear in the server's own counters",
                setting=(
                    "a script that calls `/v2/models/MODEL/generate` before the pod's readiness "
                    "probe may succeed"
                ),
            ),
            Action(
                "Keep old instances until the new ones are ready.",
                "needs room for one more instance during a rollout",
                setting=(
                    "Deployment `strategy.rollingUpdate: { maxUnavailable: 0, maxSurge: 1 }`, "
                    "`minReadySeconds`"
                ),
            ),
            Action(
                "Slow down the scale-in that causes repeated starts.",
                "idle GPUs for longer",
                setting=(
                    "`behavior.scaleDown.stabilizationWindowSeconds` of the HPA, `minReplicas`"
                ),
            ),
            Action(
                "Let Triton warm the model up before it reports it as ready.",
                "a longer load; a sample that fails keeps the model from being ready",
                "Needs a model reload",
                "`model_warmup` in `config.pbtxt` of the steps, which Triton refuses for ensembles",
            ),
            Action(
                "Keep engine and weights on a local volume.",
                "storage on every node",
                "Needs a plan",
                "a volume that exists before the pod, instead of a download at start",
            ),
        ),
        verified_by="recent_start",
        escalate=(
            "Call the owner of the deployment if instances restart repeatedly, or if a load takes "
            "longer than usual. Bring the times of start, ready and first good minute of the last "
            "instances."
        ),
        follow_up=(
            "Record how long an instance takes from its start to the normal pace, and scale that "
            "much earlier.",
            "Give the startup probe more time than the slowest load, so that the liveness probe "
            "does not kill a loading model.",
        ),
        see=("load_failure", "overload", "engine_death"),
    ),
    Playbook(
        key="load_failure",
        title="A model fails to load",
        layer="artifact or configuration",
        symptoms=(
            "the server is live and the model is not ready",
            "UNAVAILABLE in the repository index",
            "a pod that restarts during its load",
        ),
        meaning=(
            "The server process runs, or restarts in a loop, and the model does not become ready. "
            "The reason is in the repository index and in the log. Common ones:\n\n"
            "| message | reason |\n"
            "|---|---|\n"
            "| serialization version, plan not compatible | an engine built with another TensorRT "
            "release or for another GPU |\n"
            "| out of memory | weights, buffers and KV cache do not fit, or the previous process "
            "still holds the GPU |\n"
            "| no such file | engine or tokenizer not on the volume, or a path of another "
            "release |\n"
            "| invalid argument, a literal `${…}` | a placeholder in `config.pbtxt` that was not "
            "filled in |\n"
            "| no message, exit code 137 | the liveness probe or the memory limit ended the "
            "load |\n\n"
            "Otherwise the first error after the start of the load says more than the last one."
        ),
        impact=(
            "The capacity of the instance is missing. At a rollout that replaces instances one by "
            "one it stops at the first; after a change of the common volume every restart fails."
        ),
        steps=(
            Step(
                "not_ready",
                "The row names model and version. Read its reason in the repository index.",
                "artifact or configuration",
            ),
            Step(
                "sources",
                "The server is gone: Triton exits when a model fails at startup, because "
                "`--exit-on-error` is true by default, and trtllm-serve listens only after the "
                "load.",
                "artifact or configuration",
            ),
            Step(
                "memory",
                "Another process holds memory of the GPU, which the load then lacks.",
                "GPU",
            ),
            Step(
                "waiting",
                "The remaining instances are overloaded meanwhile: shed load there first.",
                "batcher",
            ),
            Step(
                "recent_start",
                "It loads again and again. Look at the restarts of the pod.",
                "instance",
            ),
        ),
        actions=(
            Action(
                "Pause the rollout, so that no further instance loses its model.",
                "the old and the new version run side by side",
                setting="`kubectl rollout pause deployment/NAME`",
            ),
            Action(
                "Read the reason.",
                setting=(
                    "`curl -X POST http://SERVER:8000/v2/repository/index`, "
                    "`kubectl logs POD --previous`, `kubectl describe pod POD`"
                ),
            ),
            Action(
                "Load the model again, if the file or the memory is there now.",
                "the other models of the server are not affected",
                "Needs a model reload",
                "`POST /v2/repository/models/MODEL/load` with `--model-control-mode=explicit`; in "
                "the other modes restart the server",
            ),
            Action(
                "Restore the artifact or the configuration that loaded before.",
                "the change is undone",
                "Needs a model reload",
                "`gpt_model_path` and `tokenizer_dir` in `config.pbtxt`, the symbolic link or the "
                "volume of the engine directory, or `kubectl rollout undo deployment/NAME`",
            ),
            Action(
                "Out of memory at load: make the KV cache smaller, then the batch.",
                "sequences queue earlier",
                "Needs a model reload",
                "`kv_cache_free_gpu_mem_fraction`, or `kv_cache_config.free_gpu_memory_fraction` "
                "with `max_batch_size` and `max_num_tokens` in the LLM API",
            ),
            Action(
                "Give a slow load more time.",
                "a server that hangs at load is noticed later",
                "Needs a restart",
                "`startupProbe`: `failureThreshold` times `periodSeconds` above the slowest load",
            ),
        ),
        verified_by="not_ready",
        escalate=(
            "Call the owner of the artifact when the previous one does not load either, as then "
            "the node, the driver or the volume has changed. Bring the reason from the index, the "
            "log from the start of the load, image and engine versions, and `nvidia-smi`."
        ),
        follow_up=(
            "Load every engine once in the image of production before the rollout.",
            "Check configurations for placeholders that were not filled in before you deploy.",
            "Keep at least one instance more than the peak needs during rollouts.",
        ),
        see=("bad_rollout", "engine_death", "cold_start"),
    ),
)
