"""Causes in what was rolled out: versions, canaries, bad responses.

The model control API and version policies are Triton's (``docs/user_guide/model_management.md``);
parameters are those of TensorRT-LLM's Triton backend, of the LLM API and of ``trtllm-serve``.
"""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

ROLLOUT = (
    Playbook(
        key="bad_rollout",
        title="A bad rollout",
        layer="artifact or configuration",
        symptoms=(
            "one version is worse than the rest",
            "the objective burns since a deployment",
            "instances that restarted last are worse",
        ),
        meaning=(
            "A change of what is deployed made the service worse, often without a single error. "
            "Four artifacts change separately; each has signs of its own and another way back.\n\n"
            "| changed | signs | way back |\n"
            "|---|---|---|\n"
            "| engine or weights | speed or memory differ at the same mix; responses differ | "
            "previous version directory, or previous engine directory |\n"
            "| tokenizer | broken characters, responses that do not stop, another number of "
            "tokens for the same text; speed per token as before | previous `tokenizer_dir` in "
            "all models that read it |\n"
            "| configuration | queueing, pausing or batch size differ; the responses are the "
            "same | previous `config.pbtxt` or `model.yaml` |\n"
            "| runtime image | everything may differ, also which metrics exist; an engine of "
            "another TensorRT release does not load | previous image, together with the engine "
            "built for it |\n\n"
            "Several changed at once: start with the one whose signs fit."
        ),
        impact=(
            "Users who are routed to the new version have the problem, at random if the traffic is "
            "split by weight. During a rolling update their number grows with each instance."
        ),
        steps=(
            Step(
                "versions",
                "The row with the excess is the version to roll back. If it has less than all "
                "traffic, move the traffic first.",
                "artifact or configuration",
            ),
            Step(
                "mix_by_version",
                "The versions receive different prompts, so a worse number proves nothing yet: "
                "compare them at the same prompt lengths.",
                "client",
            ),
            Step(
                "recent_start",
                "Something started in the last minutes: compare its time with the start of the "
                "burn.",
                "artifact or configuration",
            ),
            Step(
                "pace_slow",
                "Slower tokens with unchanged responses: engine, configuration or image, not the "
                "tokenizer.",
                "artifact or configuration",
            ),
            Step(
                "short_answers",
                "The content changed: engine, weights, tokenizer or prompt template.",
                "artifact or configuration",
            ),
            Step(
                "no_evict_waiting",
                "Queueing changed: compare the KV-cache fraction, the scheduler policy and the "
                "batch limit of both configurations.",
                "artifact or configuration",
            ),
            Step(
                "unavailable",
                "Signals have disappeared with the rollout: the image or the backend changed.",
                "artifact or configuration",
            ),
        ),
        actions=(
            Action(
                "Stop the rollout.",
                "two versions stay in service until you decide",
                setting=(
                    "`kubectl rollout pause deployment/NAME`, `kubectl argo rollouts abort NAME`"
                ),
            ),
            Action(
                "Send the traffic back to the previous version, if it is still loaded.",
                "its instances must have room for all of it",
                setting=(
                    "weights of `backendRefs` in an HTTPRoute or of an Istio VirtualService; "
                    "where one Triton serves both versions, the path "
                    "`/v2/models/MODEL/versions/1/…`"
                ),
            ),
            Action(
                "Engine, both versions in the repository: serve the previous one.",
                "the model is loaded again: minutes without it, as two engines rarely fit on the "
                "GPU",
                "Needs a model reload",
                "`config.pbtxt` `version_policy: { specific: { versions: [1] } }`, then "
                "`POST /v2/repository/models/MODEL/load`, which needs "
                "`--model-control-mode=explicit`; unload the model first",
            ),
            Action(
                "Engine replaced in place: point to the previous engine directory.",
                "as above; the directory must still exist on the volume",
                "Needs a model reload",
                '`config.pbtxt` of `tensorrt_llm`: `parameters { key: "gpt_model_path" }`, called '
                "`engine_dir` in the template, or the symbolic link or volume behind it; in the "
                "LLM API `model` in `model.yaml`",
            ),
            Action(
                "Tokenizer: restore it in every model that reads it, at the same time.",
                "with two tokenizers at once prompts and responses do not match",
                "Needs a model reload",
                "`tokenizer_dir` of `preprocessing` and of `postprocessing`, "
                "`trtllm-serve --tokenizer`; the chat template is part of it "
                "(`trtllm-serve --chat_template`)",
            ),
            Action(
                "Configuration: load the model with the previous one.",
                "an override lasts until the next load: restore the file too",
                "Needs a model reload",
                'restore the file and load the model, or pass it as `{"parameters": {"config": '
                '"…"}}` (JSON) in the body of the load request',
            ),
            Action(
                "Image: roll back the Deployment, and the engine with it.",
                "one instance at a time is missing for its load time, and its streams end",
                "Needs a restart",
                "`kubectl rollout undo deployment/NAME`; a TensorRT engine loads only in the "
                "release it was built with, unless it was built to be version compatible",
            ),
        ),
        verified_by="versions",
        escalate=(
            "Call the owner of the release when the previous version cannot be loaded, or when it "
            "is as bad as the new one: then the rollout was a coincidence. Bring what changed "
            "(image digest, checksums of engine and tokenizer, difference of the configuration) "
            "and when each instance changed."
        ),
        follow_up=(
            "Keep the previous engine, tokenizer and configuration on the volume until the new "
            "version has passed a day.",
            "Deploy the four artifacts as one versioned bundle.",
            "Gate the rollout on the objective by version, with a minimum of requests.",
        ),
        see=("canary_mix", "load_failure", "bad_inference", "batch_too_large"),
        diagram="""\
flowchart TD
  start["One version is worse"] --> mix{"Same mix of prompts?"}
  mix -->|"no"| canary["Canary and production had different traffic"]
  mix -->|"yes"| content{"Content changed?"}
  content -->|"yes"| length{"Tokens per text changed?"}
  length -->|"yes"| tokenizer["Tokenizer"]
  length -->|"no"| weights["Engine or weights"]
  content -->|"no"| deployed{"Image changed?"}
  deployed -->|"yes"| image["Runtime image"]
  deployed -->|"no"| settings["Engine or configuration"]
""",
    ),
    Playbook(
        key="canary_mix",
        title="The canary passed and production failed",
        layer="client",
        symptoms=(
            "a version that passed its canary burns the objective",
            "prompt lengths differ between versions",
        ),
        meaning=(
            "The canary was compared with production under other traffic, so its result was not "
            "valid for production. The usual differences:\n\n"
            "- *Prompt lengths*: routing by user, tenant or path gave the canary shorter prompts.\n"
            "- *Prefix cache*: a canary with few clients hits its cache nearly always, or, just "
            "started, never.\n"
            "- *Concurrency*: at 1% of the traffic the batch is never full and the KV cache never "
            "under pressure.\n"
            "- *Sampling parameters*: clients with long limits, several choices, guided decoding "
            "or tools were not among the canary's.\n"
            "- *Number of requests*: a few hundred requests cannot show a difference of 1%."
        ),
        impact=(
            "The problem appears after the promotion, for all users at once, when the previous "
            "version may have been scaled down already."
        ),
        steps=(
            Step(
                "mix_by_version",
                "Versions or instances receive different prompts. Any comparison between them is "
                "void until it is made at equal lengths.",
                "client",
            ),
            Step(
                "versions",
                "At the production mix the new version is worse: roll it back.",
                "artifact or configuration",
            ),
            Step(
                "reuse",
                "The new version computes prefixes that the canary had in its cache.",
                "KV cache",
            ),
            Step(
                "waiting",
                "The new version queues at full concurrency: its batch limit or its KV cache is "
                "smaller than before.",
                "batcher",
            ),
            Step(
                "errors",
                "A kind of request fails that the canary did not receive; the reason and the log "
                "name it.",
                "backend",
            ),
        ),
        actions=(
            Action(
                "Return the traffic to the previous version while its instances still exist.",
                "if they are scaled down, scale them up first: their load takes minutes",
                setting="`backendRefs[].weight` of the HTTPRoute, `setWeight` of an Argo Rollout",
            ),
            Action(
                "Freeze the old instances, so that autoscaling does not remove them.",
                "twice the instances for a while",
                setting="`minReplicas` of the HPA; KEDA `autoscaling.keda.sh/paused-replicas`",
            ),
            Action(
                "Divide the traffic at random per request instead of by user or tenant.",
                "conversations lose their prefix cache when they change version",
                setting="weights without session affinity in the gateway",
            ),
            Action(
                "Repeat the canary at production concurrency: fewer instances, or more traffic "
                "per instance.",
                "more users are exposed to the new version",
                "Needs a plan",
                "canary weight and replicas chosen so that active sequences per instance equal "
                "those of production",
            ),
        ),
        verified_by="mix_by_version",
        escalate=(
            "Call the owner of the release with the table of what differed between canary and "
            "production. Bring mean prompt length, reused blocks per request, active sequences "
            "per instance and number of requests, for both versions."
        ),
        follow_up=(
            "Require a minimum of requests: about 300 without a bad one show less than 1% bad.",
            "Compare shares within the objective's threshold, not percentiles.",
            "Exclude the warm-up of the canary, and compare within classes of prompt length.",
        ),
        see=("bad_rollout", "long_work", "cold_start"),
    ),
    Playbook(
        key="bad_inference",
        title="Ready, but responses are empty or wrong",
        layer="artifact or configuration",
        symptoms=(
            "responses are empty, truncated or garbage with status 200",
            "probes fail while the model is ready",
            "tokens per response have collapsed",
        ),
        meaning=(
            "The model is loaded, requests end with success, and the text is useless: empty, cut "
            "after a few tokens, repeated without end, or in broken characters. Health endpoints "
            "and error rates cannot show this. Typical reasons are a tokenizer that does not "
            "belong to the engine, a wrong end-of-sequence token, damaged weights, a numerical "
            "fault of one GPU, and a postprocessing step that drops text."
        ),
        impact=(
            "Users receive nothing of use, quickly. Latency objectives look better than usual, as "
            "short responses are fast."
        ),
        steps=(
            Step(
                "short_answers",
                "Responses have lost at least half of their tokens. Send one prompt by hand.",
                "artifact or configuration",
            ),
            Step(
                "probe_fails",
                "The model does not return a single token for the probe of this instance.",
                "backend",
            ),
            Step(
                "answers",
                "Responses have become longer instead: the model does not stop, which is a wrong "
                "end-of-sequence token or chat template.",
                "artifact or configuration",
            ),
            Step(
                "versions",
                "Only one version is affected: an artifact of the rollout.",
                "artifact or configuration",
            ),
            Step(
                "errors",
                "Some requests fail openly: their message in the server's log names the step.",
                "backend",
            ),
            Step(
                "disconnects_up",
                "Users stop the generation of useless text, or ask again.",
                "client",
            ),
        ),
        actions=(
            Action(
                "Send the same prompt to each instance, with temperature 0 and a short limit.",
                setting=(
                    '`curl -d \'{"text_input": "The capital of France is", "max_tokens": 16, '
                    '"temperature": 0}\' http://SERVER:8000/v2/models/ensemble/generate`; '
                    "`sampling_param_max_tokens` on the LLM API model"
                ),
            ),
            Action(
                "If some instances are wrong, take those out of traffic and keep one for analysis.",
                "less capacity",
                setting="the readiness of the pod, or its label",
            ),
            Action(
                "If all are wrong since a rollout, roll back the artifact that changed.",
                "see the playbook of bad rollouts",
                "Needs a model reload",
                "`tokenizer_dir` of `preprocessing` and `postprocessing`, `gpt_model_path` of "
                "`tensorrt_llm`, `model` in `model.yaml`",
            ),
            Action(
                "If only characters or spaces are missing in streams, decode accumulated tokens.",
                "a little more work for each token",
                "Needs a model reload",
                "`accumulate_tokens` of `tensorrt_llm_bls`",
            ),
            Action(
                "If the prompt is part of the response, exclude it.",
                "clients that cut the prompt off themselves lose text",
                "Needs a model reload",
                "`exclude_input_in_output` in `config.pbtxt` of `tensorrt_llm`",
            ),
            Action(
                "If one GPU computes wrong values, drain its node.",
                "less capacity until it is tested",
                "Needs a plan",
                "`kubectl drain NODE`, then `dcgmi diag -r 3`",
            ),
        ),
        verified_by="short_answers",
        escalate=(
            "Call the owner of the model at once if users receive wrong content and no previous "
            "version is available: stopping the service may be better than wrong responses. Bring "
            "one prompt with the expected and the received response from two instances."
        ),
        follow_up=(
            "Run a handful of prompts with known responses before an instance receives traffic.",
            "Probe the model (`tokenslo exporter --probe MODEL`), and use the sidecar's `/readyz` "
            "as readiness probe.",
            "Verify checksums of engine and tokenizer at load.",
        ),
        see=("bad_rollout", "failures", "long_work"),
    ),
)
