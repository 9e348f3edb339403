"""Options of engines and servers for the limits of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from admission.plan import AdmissionPlan
from admission.triton_policy import engine_stanza, queued_model_stanza

_UNLIMITED = "has no limit of its queue: the gateway limits requests in flight."


def _triton(plan: AdmissionPlan) -> str:
    options: dict[str, object] = {
        "max_input_len": plan.input_tokens,
        "max_seq_len": plan.sequence_tokens,
        "max_batch_size": plan.running,
        "max_num_tokens": plan.max_num_tokens,
    }
    chunks = ""
    if plan.needs_chunks:
        options["use_paged_context_fmha"] = "enable"
        chunks = (
            "# Prompts are longer than an iteration: set enable_chunked_context in config.pbtxt of "
            "the engine.\n"
        )
    build = f"# Options of trtllm-build.\n{chunks}{_flags(options)}\n"
    exit_timeout = int(plan.hops.server.seconds)
    serve = (
        "# Options of tritonserver, so that open streams end before it does. "
        f"terminationGracePeriodSeconds\n# of its pod is {int(plan.hops.gateway.seconds)}.\n"
        f"--exit-timeout-secs={exit_timeout}\n"
    )
    return "\n".join((engine_stanza(plan), queued_model_stanza(plan), build, serve))


def _llm_api(plan: AdmissionPlan) -> str:
    options = {
        "max_batch_size": plan.running,
        "max_input_len": plan.input_tokens,
        "max_seq_len": plan.sequence_tokens,
        "max_num_tokens": plan.max_num_tokens,
        "enable_chunked_prefill": "true" if plan.needs_chunks else None,
    }
    lines = "".join(f"{key}: {value}\n" for key, value in _given(options))
    return (
        f"# model.yaml of the LLM API. Its model takes requests at once and {_UNLIMITED}\n"
        "# A queue policy in config.pbtxt has no effect.\n"
        f"{lines}"
    )


def _trtllm_serve(plan: AdmissionPlan) -> str:
    options = {
        "max_batch_size": plan.running,
        "max_seq_len": plan.sequence_tokens,
        "max_num_tokens": plan.max_num_tokens,
        "enable_chunked_prefill": "" if plan.needs_chunks else None,
    }
    return f"# Options of trtllm-serve, which {_UNLIMITED}\n{_flags(options)}\n"


def _vllm(plan: AdmissionPlan) -> str:
    options = {
        "max-num-seqs": plan.running,
        "max-model-len": plan.sequence_tokens,
        "max-num-batched-tokens": plan.max_num_tokens,
        "max-num-queued-reqs": plan.running + plan.queue_size,
    }
    return (
        "# Options of vllm serve. max-num-queued-reqs counts running requests too.\n"
        f"{_flags(options)}\n"
    )


def _sglang(plan: AdmissionPlan) -> str:
    options = {
        "max-running-requests": plan.running,
        "context-length": plan.sequence_tokens,
        "chunked-prefill-size": plan.max_num_tokens,
        "max-queued-requests": plan.queue_size,
    }
    return f"# Options of SGLang.\n{_flags(options)}\n"


def _flags(options: Mapping[str, object]) -> str:
    return " ".join(f"--{key} {value}".rstrip() for key, value in _given(options))


def _given(options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    return ((key, value) for key, value in options.items() if value is not None)


SERVERS: Mapping[str, Callable[[AdmissionPlan], str]] = {
    "triton": _triton,
    "triton-llm-api": _llm_api,
    "trtllm-serve": _trtllm_serve,
    "vllm": _vllm,
    "sglang": _sglang,
}
"""Settings by server."""
