"""Causes in scheduling: load, lengths, batch size.

Parameters are those of TensorRT-LLM's Triton backend (``docs/model_config.md``), of the LLM API and
of ``trtllm-serve``.
"""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

SCHEDULING = (
    Playbook(
        key="overload",
        title="More load than capacity",
        layer="batcher",
        symptoms=(
            "TTFT grows without limit while token pace is normal",
            "waiting sequences with a full batch",
            "503 from Triton: Exceeds maximum queue size",
        ),
        meaning=(
            "Requests arrive faster than the instances finish them. The batch is full, the KV "
            "cache has room, and the queue grows until clients give up. Each stream that runs is "
            "as fast as usual."
        ),
        impact=(
            "Every new request waits longer than the one before. Clients reach their timeout, and "
            "those that retry add to the load."
        ),
        steps=(
            Step(
                "arrivals",
                "Demand has grown. Continue here if the prompts are new, and with the timeout "
                "storm if they are repeats.",
                "client",
            ),
            Step(
                "batch",
                "Every slot is taken. If it is not full while requests wait, look at the KV cache.",
                "batcher",
            ),
            Step("waiting", "Requests queue behind the full batch.", "batcher"),
            Step(
                "queue_share",
                "Waiting, not prefill, makes the first token late: a faster GPU would not help, "
                "fewer requests or more instances do.",
                "Triton queue",
            ),
            Step(
                "traffic_one_instance",
                "Capacity is there, on another instance. Correct the routing before you shed load.",
                "gateway",
            ),
            Step(
                "rejections",
                "A queue limit or deadline already sheds load; users see 503.",
                "Triton queue",
            ),
            Step(
                "early",
                "Clients give up before the first token: shed load now, because much of the work "
                "is for clients that have disconnected.",
                "client",
            ),
        ),
        actions=(
            Action(
                "If one instance queues and others are idle, balance by outstanding requests "
                "instead of round robin.",
                "fewer hits in the prefix cache where the routing followed prefixes",
                setting=(
                    "Envoy `lb_policy: LEAST_REQUEST`, NGINX `least_conn`, HAProxy "
                    "`balance leastconn`"
                ),
            ),
            Action(
                "Shed load at the gateway: answer 429 with `Retry-After`, lowest priority first.",
                "some users are refused, and the others are served in time",
                setting=(
                    "NGINX `limit_req` with `limit_req_status 429`, Envoy's local rate limit, "
                    "token limits by client in an AI gateway"
                ),
            ),
            Action(
                "Stop batch jobs and evaluations that share the instances.",
                "their owners finish later",
                setting="the jobs' own concurrency, or a quota of their API key",
            ),
            Action(
                "Bound the queue in the server, so that requests fail fast.",
                "refused requests get 503 from Triton, but 500 where TensorRT-LLM's executor "
                "applies the limit, and Triton counts no refusal of a full queue",
                "Needs a model reload",
                "`config.pbtxt`: `dynamic_batching { default_queue_policy { max_queue_size: N } }`"
                "; `tokenslo server-config FILE --capacity load.json` has N",
            ),
            Action(
                "Run more sequences at once, if the KV cache has room and token pace has reserve.",
                "every stream gets slower as the batch grows: watch ITL",
                "Needs a model reload",
                "`max_batch_size` in `model.yaml` of the LLM API, `trtllm-serve --max_batch_size`; "
                "a built engine has its limit from `trtllm-build --max_batch_size`",
            ),
            Action(
                "Scale out on waiting sequences, not on CPU or GPU utilization.",
                "an instance loads its model for minutes before it helps",
                "Needs a plan",
                'KEDA\'s Prometheus trigger on `llm_sequences{state="waiting"}` with '
                '`ignoreNullValues: "false"` and a `fallback`',
            ),
        ),
        verified_by="waiting",
        escalate=(
            "Call the owner of capacity if the queue still grows after load shedding, or if "
            "shedding would hit paying users. Bring requests per second against yesterday, the "
            "waiting sequences by instance, and the clients with the most requests."
        ),
        follow_up=(
            "Measure the highest rate at which the objective holds, and set the gateway's limit "
            "below it.",
            "Agree on priorities of clients before the next surge.",
            "Check that autoscaling reacted, and how long the new instances took to become ready.",
        ),
        see=("kv_pressure", "timeout_storm", "long_work", "cold_start"),
    ),
    Playbook(
        key="long_work",
        title="Prompts or responses have become longer",
        layer="client",
        symptoms=(
            "TTFT grows with the same number of requests",
            "more tokens per request than yesterday",
            "prefix cache no longer hit",
        ),
        meaning=(
            "The number of requests is as usual, but each one brings more work: a new client, a "
            "longer system prompt, more retrieved context, a higher limit of the response length, "
            "or prompts whose prefix no longer matches the cache."
        ),
        impact=(
            "Prefill takes longer, and without chunked context a long prefill stalls the streams "
            "that share the batch. Long responses keep their slots, so others wait."
        ),
        steps=(
            Step(
                "prompts",
                "Prefill has grown with the prompts. Find the client or the template that changed.",
                "client",
            ),
            Step(
                "answers",
                "Decoding takes longer for each request. Check the limits that clients send, and "
                "whether the model still stops at its end-of-sequence token.",
                "client",
            ),
            Step(
                "reuse",
                "Prefixes are computed that were cached before: a date or an identifier ahead of "
                "the system prompt, or a routing change.",
                "KV cache",
            ),
            Step(
                "stalls",
                "Prefills interrupt running streams. Chunked context spreads them over several "
                "iterations.",
                "batcher",
            ),
            Step(
                "prefill_slow",
                "A token of the prompt takes longer as well: besides its length, the engine or "
                "the hardware has changed.",
                "GPU",
            ),
        ),
        actions=(
            Action(
                "Find the client in the gateway's log, and limit its prompt length or its tokens "
                "per minute.",
                "that client is refused above the limit",
                setting=(
                    "Envoy AI Gateway `llmRequestCosts` with `type: InputToken` and a rate limit "
                    "on it, or the token limit of another AI gateway"
                ),
            ),
            Action(
                "Revert the change of the template or of the retrieval, and move variable text "
                "behind the common prefix.",
                "the feature behind the change is off",
                setting="the client's prompt template",
            ),
            Action(
                "Route long prompts to instances of their own.",
                "those instances have less reserve",
                setting="a route in the gateway on the size of the request",
            ),
            Action(
                "Enable chunked context, so that a prefill shares its iterations with decoding.",
                "the first token of long prompts comes a little later",
                "Needs a model reload",
                "`enable_chunked_context` in `config.pbtxt`, `enable_chunked_prefill: true` in "
                "the LLM API, `trtllm-serve --enable_chunked_prefill`",
            ),
            Action(
                "Enable reuse of KV-cache blocks, if it is off.",
                "an engine built without paged-context attention reuses nothing",
                "Needs a model reload",
                "`enable_kv_cache_reuse` in `config.pbtxt`, `kv_cache_config.enable_block_reuse` "
                "in the LLM API",
            ),
        ),
        verified_by="prompts",
        escalate=(
            "Call the team of the client with the change, once its name is known; call the owner "
            "of the model if responses no longer end by themselves. Bring tokens per request "
            "today and yesterday, and the time of the step."
        ),
        follow_up=(
            "Plan capacity in tokens, not in requests.",
            "Add the prompt length to the client's release checks.",
            "Set a maximum of input and output tokens for each client.",
        ),
        see=("kv_pressure", "bad_inference", "canary_mix"),
    ),
    Playbook(
        key="batch_too_large",
        title="Good throughput, bad objective: the batch is too large",
        layer="batcher",
        symptoms=(
            "tokens per second at their best while the objective burns",
            "every stream is slow, no request waits",
        ),
        meaning=(
            "The engine runs more sequences at once than the objective allows. The GPU is busy "
            "and total throughput is high, but each iteration serves too many sequences, so "
            "the next token of each one comes late. Usually the batch limit was raised, or a limit "
            "of concurrency in front of the engine was removed."
        ),
        impact=(
            "Text appears slowly for all users at once. Dashboards of utilization and throughput "
            "look better than before."
        ),
        steps=(
            Step(
                "throughput",
                "The engine does all the work it can, and streams are slow: it has too many "
                "sequences, not too little speed.",
                "batcher",
            ),
            Step("pace_slow", "Each token takes longer than yesterday.", "batcher"),
            Step(
                "waiting",
                "Requests wait as well: the load exceeds the capacity at any batch size.",
                "batcher",
            ),
            Step(
                "prompts",
                "Longer prompts slow the iterations too: rule this out before you change limits.",
                "client",
            ),
            Step(
                "recent_start",
                "The engine restarted recently: compare its batch limit with the one before.",
                "artifact or configuration",
            ),
        ),
        actions=(
            Action(
                "Limit concurrent requests per instance at the gateway to the last number that "
                "met the objective.",
                "requests above the limit wait or are refused",
                setting=(
                    "Envoy circuit breaker `max_requests`, HAProxy `maxconn` on the server line, "
                    "NGINX `max_conns`"
                ),
            ),
            Action(
                "Move offline work to other instances or to the night.",
                "it finishes later",
                setting="the route or the schedule of the batch jobs",
            ),
            Action(
                "Lower the batch limit of the engine.",
                "requests wait for a slot at peaks: watch TTFT",
                "Needs a model reload",
                "`max_batch_size` in `model.yaml` of the LLM API, `trtllm-serve --max_batch_size`. "
                "The runtime batch of a built engine follows `trtllm-build --max_batch_size`, "
                "not `triton_max_batch_size`",
            ),
            Action(
                "Lower the tokens of one iteration, if long prefills make it slow.",
                "long prompts take more iterations; without chunked context, prompts above the "
                "limit are refused",
                "Needs a model reload",
                "`max_num_tokens` in the LLM API, `trtllm-serve --max_num_tokens`",
            ),
            Action(
                "Spread the load over more instances.",
                "cost per token rises",
                "Needs a plan",
                "replicas of the Deployment",
            ),
        ),
        verified_by="pace_slow",
        escalate=(
            "Call the owner of the serving configuration if the limit cannot be lowered without "
            "a queue: then capacity is missing. Bring the batch limit before and after, active "
            "sequences, TPOT and tokens per second at both."
        ),
        follow_up=(
            "Find the largest batch that meets the objective with a load test that reports "
            "goodput, not throughput.",
            "Put the limit next to the objective in the configuration, and review them together.",
        ),
        see=("overload", "slow_engine", "long_work", "bad_rollout"),
    ),
)
