"""Failures of requests and streams in the server."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

FAILURES = (
    Playbook(
        key="failures",
        title="Requests fail in the server",
        layer="backend",
        symptoms=(
            "requests with outcome error, truncated or draining",
            "status 500, or gRPC INTERNAL",
        ),
        meaning=(
            "The server answers requests with errors. The label `reason` of "
            "`llm_request_failures_total` narrows it down on Triton: `BACKEND` is the engine or "
            "the model, `OTHER` mostly a step of an ensemble."
        ),
        impact=(
            "Users get errors at once. Clients that retry add load, and may turn the failure of "
            "one instance into overload of the others."
        ),
        steps=(
            Step(
                "errors",
                "Requests fail; the reasons show where. `BACKEND` with the message `Maximum queue "
                "size` is TensorRT-LLM refusing load: overload.",
                "backend",
            ),
            Step(
                "not_ready",
                "A model is not loaded: requests for it fail with status 400 or 404.",
                "instance",
            ),
            Step(
                "rejections",
                "The queue policy drops requests: overload. Triton counts refusals of a full "
                "queue nowhere; clients get status 503.",
                "Triton queue",
            ),
            Step("versions", "One version fails: a rollout.", "artifact or configuration"),
            Step(
                "instances",
                "One instance fails: an engine or a GPU. All fail: the requests, the artifact or "
                "a dependency.",
                "instance",
            ),
            Step(
                "memory",
                "The engine's memory has grown: requests fail for lack of memory first, then the "
                "engine dies.",
                "GPU",
            ),
            Step(
                "died",
                "Requests end without a first token. No latency histogram counts them.",
                "backend",
            ),
        ),
        actions=(
            Action(
                "Read the server's log at the first failure. Compare failing requests: one kind "
                "(tools, guided decoding, images, very long prompts) often explains all.",
            ),
            Action(
                "Take instances that fail alone out of traffic.",
                "the others take their load: check that they have headroom",
            ),
            Action(
                "Refuse the failing kind of request at the gateway.",
                "those users are refused",
            ),
            Action(
                "Roll back if one version fails: see the playbook on rollouts.",
                "the change is lost",
                "Needs a model reload",
                "the artifact that changed: engine, tokenizer, configuration or image",
            ),
            Action(
                "Restart failing instances one at a time.",
                "their active streams are lost",
                "Needs a restart",
                "`kubectl delete pod POD`, or `kubectl rollout restart deployment/NAME`",
            ),
        ),
        verified_by="errors",
        escalate=(
            "All instances fail and there was no rollout: call the owner of the model. The "
            "kernel log has XID messages: call the owner of the nodes."
        ),
        follow_up=(
            "Add the failing request to the tests of the model.",
            "Python models: raise an exception for a failed request. Triton counts an error that "
            "is sent as a response as a success.",
        ),
        see=("engine_death", "load_failure", "bad_rollout", "overload"),
    ),
    Playbook(
        key="broken_streams",
        title="Streams break off",
        layer="instance",
        symptoms=(
            "streams under status 200 end with an error event, or without a final event",
            "many streams end at one moment",
        ),
        meaning=(
            "Streams fail after their first token: an error event, an incomplete response, a "
            "reset or a deadline. Client disconnects are not included."
        ),
        impact=(
            "Users have half a response. Programs that parse it get nothing of use. Status codes "
            "and Triton's counters show no error."
        ),
        steps=(
            Step(
                "broken",
                "The label `outcome` has the kind: `truncated` is a stream without its last event, "
                "`error` an error event, `timeout` a deadline of the server.",
                "backend",
            ),
            Step("recent_start", "An instance restarted: its streams ended with it.", "instance"),
            Step(
                "not_ready",
                "A model was unloaded, or its engine died, under active streams.",
                "instance",
            ),
            Step("memory", "The engine ran short of memory.", "GPU"),
            Step(
                "versions",
                "One version breaks its streams: a rollout.",
                "artifact or configuration",
            ),
            Step(
                "server_timeouts",
                "Deadlines of the server end streams: compare them with the longest response.",
                "Triton queue",
            ),
            Step(
                "ages",
                "Streams end at one age: a timeout of a gateway, which looks the same to users.",
                "gateway",
            ),
        ),
        actions=(
            Action(
                "Take the instance with most broken streams out of traffic.",
                "the others take its load: check that they have headroom",
            ),
            Action(
                "Pause the rollout, or the scaling down, during which streams break.",
                "capacity stays as it is",
            ),
            Action(
                "Drain before an instance stops: no new requests, and time for the longest "
                "response.",
                "rollouts take longer",
                "Needs a restart",
                setting=(
                    "Kubernetes: `terminationGracePeriodSeconds` and `preStop` of the pod.\n"
                    "Triton: `--exit-timeout-secs` (default 30).\n"
                    "vLLM: `--shutdown-timeout`.\n"
                    "Proxy tap: `--tap-drain` (default 30 s)."
                ),
            ),
        ),
        verified_by="broken",
        escalate="Streams break at one moment on several instances: call the owner of the nodes.",
        follow_up=(
            "Set the grace period from data: the 99.9th percentile of the request duration.",
            "Scale down instances with the fewest live streams first.",
        ),
        see=("failures", "engine_death", "gateway_timeout", "bad_rollout"),
    ),
)
