"""Pressure on the KV cache, which looks different under each scheduler policy.

Parameters are those of TensorRT-LLM's Triton backend (``docs/model_config.md``), of the LLM API and
of ``trtllm-serve``.
"""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

KV_CACHE = (
    Playbook(
        key="kv_pressure",
        title="KV-cache pressure",
        layer="KV cache",
        symptoms=(
            "requests wait although the batch is not full",
            "streams freeze in the middle while TTFT looks good",
            "KV-cache utilization near 1",
        ),
        meaning=(
            "The KV cache has no room for the sequences that clients want to run. The scheduler "
            "policy decides what users notice.\n\n"
            "- `guaranteed_no_evict`, the default: a sequence starts only if the cache has room "
            "for its longest possible response. Requests wait in front of a batch with free "
            "slots, often at a utilization of 0.6 to 0.9, because blocks are reserved and not yet "
            "in use.\n"
            "- `max_utilization`: sequences start at once. When blocks run out, the engine pauses "
            "some sequences and later computes their tokens again."
        ),
        impact=(
            "With `guaranteed_no_evict` time to first token grows and running streams keep their "
            "pace. With `max_utilization` streams freeze for seconds and total throughput falls, "
            "because the GPU repeats work."
        ),
        steps=(
            Step(
                "no_evict_waiting",
                "The engine holds requests back until blocks are free. If no sequence is paused, "
                "the policy is `guaranteed_no_evict`: shorten the longest possible response. A "
                "request without a limit reserves room up to the longest sequence of the model.",
                "KV cache",
            ),
            Step(
                "paused",
                "The policy is `max_utilization`, and running sequences lose their blocks. Reduce "
                "the number of running sequences before anything else.",
                "KV cache",
            ),
            Step(
                "kv",
                "Live sequences use nearly all blocks. If requests wait below 0.9, blocks are "
                "reserved rather than used.",
                "KV cache",
            ),
            Step(
                "answers",
                "Longer responses hold their blocks longer. The limit of the response length has "
                "been raised, or clients ask for more.",
                "client",
            ),
            Step("prompts", "Longer prompts need more blocks from their start.", "client"),
            Step(
                "wasted",
                "Blocks are in use for clients that have disconnected: release them first.",
                "gateway",
            ),
        ),
        actions=(
            Action(
                "Lower the default and the maximum of the response length where requests enter.",
                "longer responses end with finish reason `length`",
                setting=(
                    "`max_tokens` in requests of the OpenAI API and of Triton's ensemble, "
                    "`request_output_len` of the model `tensorrt_llm`, "
                    "`sampling_param_max_tokens` of the LLM API model. With `guaranteed_no_evict` "
                    "this frees room for new requests at once"
                ),
            ),
            Action(
                "Refuse the longest prompts, or route them to other instances.",
                "their users get 413: find out who they are first",
                setting="NGINX `client_max_body_size`, Envoy's buffer filter `max_request_bytes`",
            ),
            Action(
                "Limit the concurrent requests of the lowest priority.",
                "some users get 429",
                setting=(
                    "NGINX `limit_conn` with `limit_conn_status 429`; in an inference gateway an "
                    "`InferenceObjective` with a negative `spec.priority`"
                ),
            ),
            Action(
                "If sequences are paused, change the policy to `guaranteed_no_evict`.",
                "requests wait before their first token instead of in the middle of a stream",
                "Needs a model reload",
                '`config.pbtxt` of `tensorrt_llm`: `parameters { key: "batch_scheduler_policy" '
                'value { string_value: "guaranteed_no_evict" } }`; LLM API (`model.yaml`, or the '
                "file of `trtllm-serve --config`, formerly `--extra_llm_api_options`): "
                "`scheduler_config.capacity_scheduler_policy: GUARANTEED_NO_EVICT`",
            ),
            Action(
                "Give the KV cache more of the GPU's memory, if `nvidia-smi` shows some unused.",
                "too large a share runs out of memory at load, or when a neighbour allocates",
                "Needs a model reload",
                "`kv_cache_free_gpu_mem_fraction` in `config.pbtxt`, "
                "`kv_cache_config.free_gpu_memory_fraction` in the LLM API, "
                "`trtllm-serve --kv_cache_free_gpu_memory_fraction`; the default is 0.9. Remove "
                "a limit in `max_tokens_in_paged_kv_cache`",
            ),
            Action(
                "Store the KV cache in FP8.",
                "responses may differ: evaluate their quality first",
                "Needs a plan",
                "`kv_cache_config.dtype: fp8` in the LLM API; a built engine must be built again",
            ),
            Action(
                "Add instances, and scale on waiting sequences and KV-cache utilization.",
                "a new instance has a cold prefix cache",
                "Needs a plan",
                "replicas of the Deployment",
            ),
        ),
        verified_by="no_evict_waiting",
        escalate=(
            "Call the owner of the model's capacity if requests still wait ten minutes after the "
            "second mitigation. Bring the policy and the memory fraction "
            "(`GET /v2/models/tensorrt_llm/config`), waiting and paused sequences of the last "
            "hour, and the mean lengths of prompts and responses today and yesterday."
        ),
        follow_up=(
            "Compute how many sequences of the 95th percentile of prompt plus response fit in the "
            'cache (`llm_kv_cache_blocks{state="max"}` times `llm_kv_cache_block_tokens`), and '
            "alert before that number runs at once.",
            "Set a limit of the response length per client, near what each really uses.",
            "Add an objective on KV-cache headroom, which burns before users notice.",
        ),
        see=("overload", "long_work", "wasted_work", "batch_too_large"),
        diagram="""\
flowchart TD
  start["Requests wait or streams freeze"] --> paused{"Sequences paused?"}
  paused -->|"yes"| evict["max_utilization: limit concurrency, then change the policy"]
  paused -->|"no"| batch{"Batch full?"}
  batch -->|"no"| reserve["guaranteed_no_evict: limit the response length"]
  batch -->|"yes"| load["More load than capacity"]
""",
    ),
)
