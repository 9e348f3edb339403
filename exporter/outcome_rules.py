"""Rules that recognise the outcome of a request: one table for taps, sources and documentation.

The first rule that matches decides.  A rule matches if its ``codes`` contain the code of the
response, its header has one of its values, and its text occurs in the error.  Text is compared and
forgotten: it never becomes a label.

A code is

* an HTTP status (``503``, or ``5xx`` for all of them) or the name of a gRPC status;
* ``in_band``: an error inside a response whose status was a success;
* ``finish:REASON``: the finish reason of a response;
* ``SOURCE:LABEL``: the label of an engine's counter (:data:`CODES`);
* an end of the connection (:data:`CODES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from slos.outcomes import Outcome

ERROR_BYTES: Final = 2048
"""The bytes of an error that are searched for text."""

CODES: Final[Mapping[str, str]] = {
    "in_band": "an error inside a response with a successful status",
    "accepted_400": "`400` without Content-Length: an error after Triton accepted the request",
    "finish": "finish reason of a response",
    "triton": "`nv_inference_request_failure{reason}`",
    "trtllm": "`trtllm_request_success_total{finished_reason}`",
    "vllm": "`vllm:request_success_total{finished_reason}`",
    "vllm_admission": "`vllm:admission_rejections_total`",
    "sglang": "`sglang:num_aborted_requests_total`",
    "no_response_closed": "the server closes the connection before a response",
    "no_response_reset": "the server resets the connection before a response, or is unreachable",
    "response_unended": "a complete stream without finish reason and without its last event",
    "response_closed": "the server closes the connection inside a response",
    "response_reset": "the server resets the connection or the stream inside a response",
    "refused_stream": "HTTP/2 RST_STREAM with REFUSED_STREAM",
    "goaway": "HTTP/2 GOAWAY, for streams after the last one that the server accepted",
}
"""Meanings of codes, or of the part before the colon."""


@dataclass(frozen=True, slots=True)
class OutcomeRule:
    """One rule; ``sender`` is the software that sends the response, empty for any.

    ``reason`` is the label ``reason``; if empty, it is the code.  ``header`` is a name in lower
    case; it may end in ``*``.  An empty ``value`` matches any value of it.
    """

    outcome: Outcome
    reason: str
    sender: str
    codes: tuple[str, ...]
    header: str = ""
    value: str = ""
    text: str = ""


_FAILED = ("4xx", "5xx")
_UNAVAILABLE = ("503", "UNAVAILABLE", "in_band")
# Any other 400 may quote the request, so its text is no evidence of load shedding.
_TRITON = ("503", "accepted_400", "UNAVAILABLE", "in_band")
_DROPPED = "x-llm-d-request-dropped-reason"


def _dropped(outcome: Outcome, reason: str, value: str) -> OutcomeRule:
    return OutcomeRule(outcome, reason, "llm-d router", _FAILED, _DROPPED, value)


def _counter(outcome: Outcome, *codes: str, sender: str, reason: str = "") -> OutcomeRule:
    return OutcomeRule(outcome, reason, sender, codes)


RULES: Final[tuple[OutcomeRule, ...]] = (
    # llm-d's endpoint picker
    _dropped("shed", "capacity", "rejected-saturated"),
    _dropped("shed", "deadline", "rejected-ttl-expired"),
    _dropped("shed", "priority", "evicted-priority"),
    _dropped("shed", "capacity", "evicted-queue-pressure"),
    _dropped("shed", "capacity", "evicted"),
    _dropped("draining", "", "rejected-shutting-down"),
    _dropped("cancelled", "", "rejected-context-cancelled"),
    _dropped("error", "no_endpoints", "rejected-no-endpoints"),
    _dropped("error", "router_error", "rejected-internal"),
    # Triton, TensorRT-LLM
    OutcomeRule("shed", "capacity", "Triton", _TRITON, text="Exceeds maximum queue size"),
    OutcomeRule("shed", "deadline", "Triton", _TRITON, text="Request timeout expired"),
    OutcomeRule(
        "shed",
        "capacity",
        "Triton, TensorRT-LLM C++ backend",
        ("500", "accepted_400", "INTERNAL", "in_band"),
        text="Maximum queue size of ",
    ),
    OutcomeRule("draining", "", "Triton", _TRITON, text="has stopped accepting new"),
    OutcomeRule("error", "400", "Triton", ("accepted_400",)),
    OutcomeRule("invalid", "", "Triton", ("UNAVAILABLE",), text="unknown model"),
    # vLLM, SGLang, Dynamo, Ray Serve
    OutcomeRule("shed", "capacity", "vLLM", _UNAVAILABLE, text="Request queue full."),
    OutcomeRule(
        "shed", "capacity", "vLLM", _UNAVAILABLE, text="Request queue reached max pending tokens"
    ),
    OutcomeRule("shed", "capacity", "SGLang", _UNAVAILABLE, text="The request queue is full."),
    OutcomeRule(
        "shed", "priority", "SGLang", _UNAVAILABLE, text="aborted by a higher priority request"
    ),
    OutcomeRule(
        "shed", "deadline", "SGLang", _UNAVAILABLE, text="Request waiting timeout reached."
    ),
    OutcomeRule(
        "timeout", "total", "SGLang", _UNAVAILABLE, text="Request running timeout reached."
    ),
    OutcomeRule("shed", "capacity", "Dynamo", _UNAVAILABLE, text="All workers are busy"),
    OutcomeRule(
        "shed",
        "capacity",
        "Ray Serve",
        ("503", "RESOURCE_EXHAUSTED"),
        text="Request dropped due to backpressure",
    ),
    OutcomeRule("shed", "capacity", "Knative, KServe", ("503",), text="pending request queue full"),
    # Envoy, and the gateways on it
    OutcomeRule("shed", "capacity", "Envoy", ("503", "UNAVAILABLE"), "x-envoy-overloaded", "true"),
    OutcomeRule("shed", "capacity", "Envoy", ("503", "UNAVAILABLE"), text="reset reason: overflow"),
    OutcomeRule("shed", "capacity", "Envoy", ("503", "UNAVAILABLE"), text="envoy overloaded"),
    OutcomeRule(
        "quota",
        "",
        "Envoy",
        ("4xx", "503", "UNAVAILABLE", "RESOURCE_EXHAUSTED"),
        "x-envoy-ratelimited",
    ),
    OutcomeRule(
        "quota", "", "Envoy", ("UNAVAILABLE", "RESOURCE_EXHAUSTED"), text="local_rate_limited"
    ),
    OutcomeRule("timeout", "idle", "Envoy", ("408", "504", "UNAVAILABLE"), text="stream timeout"),
    OutcomeRule(
        "timeout",
        "total",
        "Envoy",
        ("408", "504", "UNAVAILABLE"),
        text="upstream max stream duration reached",
    ),
    OutcomeRule("timeout", "total", "Envoy", ("408", "504"), text="downstream duration timeout"),
    OutcomeRule("timeout", "", "Envoy", ("504", "UNAVAILABLE"), text="upstream request timeout"),
    # Other gateways
    OutcomeRule("timeout", "idle", "nginx", ("504",), text="<center>nginx"),
    OutcomeRule("timeout", "idle", "HAProxy", ("504",), text="The server didn't respond in time"),
    OutcomeRule("timeout", "idle", "AWS ALB", ("504",), text="<center>awselb"),
    OutcomeRule(
        "shed", "capacity", "LiteLLM", ("429",), text="No deployments available for selected model"
    ),
    OutcomeRule("quota", "", "LiteLLM", ("4xx",), text="Budget has been exceeded"),
    OutcomeRule("quota", "", "Telnyx and others", ("4xx",), text="budget_exceeded"),
    OutcomeRule("quota", "", "APISIX, Kong", ("503", "429"), "x-ai-ratelimit-remaining*", "0"),
    # Errors of OpenAI's and Anthropic's APIs
    OutcomeRule("shed", "capacity", "Anthropic API", _UNAVAILABLE, text="overloaded_error"),
    OutcomeRule("quota", "", "Anthropic API", ("in_band",), text="rate_limit_error"),
    OutcomeRule("quota", "", "OpenAI API", ("in_band",), text="rate_limit_exceeded"),
    OutcomeRule("quota", "", "OpenAI API", ("in_band",), text="insufficient_quota"),
    # HTTP
    OutcomeRule("shed", "capacity", "", ("503",), "retry-after"),
    OutcomeRule("shed", "capacity", "Dynamo, Anthropic API", ("529",)),
    OutcomeRule("quota", "", "", ("402", "429")),
    OutcomeRule("timeout", "", "", ("408", "504")),
    OutcomeRule("cancelled", "", "", ("499",)),
    OutcomeRule("ok", "", "", ("2xx",)),
    OutcomeRule("invalid", "", "", ("1xx", "3xx", "4xx")),
    OutcomeRule("error", "", "", ("5xx", "in_band")),
    # gRPC
    OutcomeRule("ok", "", "", ("OK",)),
    OutcomeRule("cancelled", "", "", ("CANCELLED",)),
    OutcomeRule("timeout", "total", "", ("DEADLINE_EXCEEDED",)),
    OutcomeRule("shed", "capacity", "", ("RESOURCE_EXHAUSTED",)),
    OutcomeRule("error", "", "", ("UNKNOWN", "ABORTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")),
    OutcomeRule(
        "invalid",
        "",
        "",
        (
            *("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED"),
            *("FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED", "UNAUTHENTICATED"),
        ),
    ),
    # Ends of connections and streams
    OutcomeRule("shed", "capacity", "", ("refused_stream",)),
    OutcomeRule("draining", "", "", ("goaway",)),
    OutcomeRule("error", "closed", "", ("no_response_closed",)),
    OutcomeRule("error", "reset", "", ("no_response_reset",)),
    OutcomeRule("truncated", "unended", "", ("response_unended",)),
    OutcomeRule("truncated", "closed", "", ("response_closed",)),
    OutcomeRule("truncated", "reset", "", ("response_reset",)),
    # Finish reasons
    OutcomeRule("timeout", "total", "trtllm-serve", ("finish:timeout",)),
    OutcomeRule(
        "cancelled", "", "trtllm-serve, SGLang, vLLM", ("finish:cancelled", "finish:abort")
    ),
    OutcomeRule("error", "", "vLLM", ("finish:error",)),
    # Counters of engines
    _counter("shed", "triton:REJECTED", sender="Triton", reason="deadline"),
    _counter("cancelled", "triton:CANCELED", sender="Triton"),
    _counter("error", "triton:BACKEND", "triton:OTHER", "triton", sender="Triton"),
    _counter(
        "ok",
        *("trtllm:stop", "trtllm:length", "trtllm:tool_calls", "trtllm:not_finished"),
        sender="trtllm-serve",
    ),
    _counter("timeout", "trtllm:timeout", sender="trtllm-serve", reason="total"),
    _counter("cancelled", "trtllm:cancelled", sender="trtllm-serve"),
    _counter("error", "trtllm:error", sender="trtllm-serve"),
    _counter("ok", "vllm:stop", "vllm:length", "vllm:repetition", sender="vLLM"),
    _counter("client_disconnected", "vllm:abort", sender="vLLM"),
    _counter("error", "vllm:error", sender="vLLM"),
    _counter("shed", "vllm_admission", sender="vLLM", reason="capacity"),
    _counter("client_disconnected", "sglang:abort", sender="SGLang"),
)
HEADERS: Final = tuple(dict.fromkeys(rule.header for rule in RULES if rule.header))
"""The headers of responses that rules read; one that ends in ``*`` is a prefix."""


def classify(
    code: str, headers: Mapping[str, str] | None = None, text: bytes = b""
) -> tuple[Outcome, str] | None:
    """Return outcome and reason of a response by the first rule that matches, None without one."""
    rule = rule_for(code, headers or {}, text)
    return (rule.outcome, rule.reason or code.rpartition(":")[2]) if rule else None


def rule_for(code: str, headers: Mapping[str, str], text: bytes) -> OutcomeRule | None:
    """Return the first rule that matches a response."""
    return next(
        (
            rule
            for rule in RULES
            if _has_code(rule, code) and _has_header(rule, headers) and _has_text(rule, text)
        ),
        None,
    )


def outcome_of(
    code: str, headers: Mapping[str, str] | None = None, text: bytes = b""
) -> tuple[Outcome, str]:
    """Return outcome and reason of a response; a response without a rule is an error."""
    return classify(code, headers, text) or ("error", code.rpartition(":")[2])


@lru_cache(maxsize=1_024)
def counted_outcome(source: str, label: str = "") -> tuple[Outcome, str]:
    """Return outcome and reason of an engine's counter; an unknown label is an error."""
    found = classify(f"{source}:{label}" if label else source)
    if found is None:
        return "error", "unknown"
    outcome, reason = found
    return outcome, "" if reason == source else reason.lower()


def wanted_headers(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that rules read, with their values in lower case."""
    return {
        name: value.strip().lower()
        for name, value in fields.items()
        if any(_named(header, name) for header in HEADERS)
    }


def _has_code(rule: OutcomeRule, code: str) -> bool:
    return code in rule.codes or (code[:3].isdigit() and f"{code[0]}xx" in rule.codes)


def _has_header(rule: OutcomeRule, headers: Mapping[str, str]) -> bool:
    return not rule.header or any(
        _named(rule.header, name) and rule.value in ("", value) for name, value in headers.items()
    )


def _has_text(rule: OutcomeRule, text: bytes) -> bool:
    return not rule.text or rule.text.encode() in text


def _named(header: str, name: str) -> bool:
    return name.startswith(header[:-1]) if header.endswith("*") else name == header
