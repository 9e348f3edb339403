"""Recognition of outcomes: for every rule the bytes that its server or gateway sends.

The bodies are those of the servers: recorded from Triton, Envoy, nginx and HAProxy, else written
after the source or the documentation of the sender. test_outcomes_envoy.py has Envoy's own bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import pytest

from exporter import outcome_rules
from exporter.outcome_rules import CODES, ERROR_BYTES, RULES, OutcomeRule, counted_outcome
from exporter.protocol.events import CLIENT, SERVER, ObserverSettings
from exporter.protocol.http1 import Http1Observer
from exporter.recording.stream_recorder import StreamRecorder
from slos.outcomes import FAILURES, MEANINGS, OUTCOMES, REFUSALS, Outcome, failures
from tests.event_log import WireLog
from tests.grpc_connection import (
    DATA,
    END_STREAM,
    INFER,
    GrpcConnection,
    frame,
    infer_request,
    stream_response,
)

STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
GOAWAY = 7
CHUNK = 'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
Ended = tuple[str, str]


def http(
    status: int, body: str = "", path: str = "/v1/chat/completions", **headers: str
) -> Callable[[], Ended]:
    """Return the end of a request with this response over HTTP/1."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    fields["content-length"] = str(len(body))
    return lambda: _watched(path, _head(status, fields) + body.encode())


def stream(
    *events: str, path: str = "/v1/chat/completions", end: bool = True
) -> Callable[[], Ended]:
    """Return the end of a stream with these events; without ``end`` the last chunk is missing."""
    chunks = "".join(f"{len(event):x}\r\n{event}\r\n" for event in events)
    fields = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    last = "0\r\n\r\n" if end else ""
    return lambda: _watched(path, _head(200, fields) + (chunks + last).encode(), closed=not end)


def accepted(body: str) -> Callable[[], Ended]:
    """Return the end of a request that Triton accepts, and answers by 400 when it fails."""
    fields = {"content-type": "application/json", "transfer-encoding": "chunked"}
    chunks = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
    return lambda: _watched(GENERATE_STREAM, (_head(400, fields) + chunks.encode()))


def reset(response: str = "") -> Callable[[], Ended]:
    """Return the end of a request whose server resets the connection after this response."""

    def ended() -> Ended:
        log = WireLog()
        observer = Http1Observer(log, ObserverSettings())
        observer.feed(CLIENT, _request("/v1/chat/completions"), 1.0)
        fields = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        if response:
            chunk = f"{len(response):x}\r\n{response}\r\n"
            observer.feed(SERVER, _head(200, fields) + chunk.encode(), 2.0)
        observer.server_lost(3.0)
        return _end(log)

    return ended


def closed() -> Ended:
    """Return the end of a request whose server closes the connection without a response."""
    return _watched("/v1/chat/completions", b"", closed=True)


def event(**content: object) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(content)}\n\n"


def grpc(status: int, message: str = "") -> Callable[[], Ended]:
    """Return the end of a call with this status."""

    def ended() -> Ended:
        connection = GrpcConnection()
        connection.call(infer_request("a"), path=INFER)
        connection.status(status, message)
        return _end(connection.log)

    return ended


def grpc_error(message: str) -> Callable[[], Ended]:
    """Return the end of a request whose stream carries this error message."""

    def ended() -> Ended:
        connection = GrpcConnection()
        connection.call(infer_request("a"), path=STREAM_INFER)
        connection.respond(stream_response("a", error=message))
        return _end(connection.log)

    return ended


def http2(act: Callable[[GrpcConnection], object]) -> Callable[[], Ended]:
    """Return the end of a call after an event of its connection."""

    def ended() -> Ended:
        connection = GrpcConnection()
        connection.call(infer_request("a"), path=STREAM_INFER, stream=1)
        act(connection)
        return _end(connection.log)

    return ended


def counter(source: str, label: str = "") -> Callable[[], Ended]:
    """Return outcome and reason of an engine's counter."""
    return lambda: counted_outcome(source, label)


def _watched(path: str, response: bytes, *, closed: bool = False) -> Ended:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, _request(path), 1.0)
    for at in range(0, len(response), 100):  # in several segments
        observer.feed(SERVER, response[at : at + 100], 2.0)
    if closed:
        observer.half_closed(SERVER, 3.0)
    return _end(log)


def _request(path: str) -> bytes:
    body = b'{"model":"m","stream":true}'
    return b"POST %s HTTP/1.1\r\nHost: s\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(),
        len(body),
        body,
    )


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} S", *(f"{name}: {value}" for name, value in fields.items())]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def _end(log: WireLog) -> Ended:
    kind, _, outcome, reason, _ = log.of(0)[-1]
    assert kind == "ended"
    return outcome, reason


NGINX_504 = """<html>\r
<head><title>504 Gateway Time-out</title></head>\r
<body>\r
<center><h1>504 Gateway Time-out</h1></center>\r
<hr><center>nginx/1.27.3</center>\r
</body>\r
</html>\r
"""
ALB_504 = NGINX_504.replace("nginx/1.27.3", "awselb/2.0")
HAPROXY_504 = """<html><body><h1>504 Gateway Time-out</h1>
The server didn't respond in time.
</body></html>
"""
OVERFLOW = "upstream connect error or disconnect/reset before headers. reset reason: overflow"
EPP = '{"error":{"message":"system saturated","type":"rate_limit_error","code":429}}'
SGLANG_ABORT = {"error": {"object": "error", "message": "", "type": "503", "code": 503}}
GENERATE = "/v2/models/m/generate"
GENERATE_STREAM = "/v2/models/m/generate_stream"
DROPPED = "x-llm-d-request-dropped-reason"


def dropped(value: str, status: int = 429) -> Callable[[], Ended]:
    """Return the end of a request that llm-d's endpoint picker drops."""
    return http(status, EPP, **{DROPPED: value})


def sglang(message: str) -> Callable[[], Ended]:
    """Return the end of a stream that SGLang aborts."""
    return stream(event(error={**SGLANG_ABORT["error"], "message": message}), "data: [DONE]\n\n")


@dataclass(frozen=True)
class OutcomeCase:
    """What a server sends, and the outcome and reason that follow."""

    ended: Callable[[], Ended]
    outcome: Outcome
    reason: str


CASES: list[OutcomeCase] = [
    # llm-d
    OutcomeCase(dropped("rejected-saturated"), "shed", "capacity"),
    OutcomeCase(dropped("rejected-ttl-expired", 503), "shed", "deadline"),
    OutcomeCase(dropped("evicted-priority"), "shed", "priority"),
    OutcomeCase(dropped("evicted-queue-pressure"), "shed", "capacity"),
    OutcomeCase(dropped("evicted"), "shed", "capacity"),
    OutcomeCase(dropped("rejected-shutting-down", 503), "draining", "503"),
    OutcomeCase(dropped("rejected-context-cancelled", 503), "cancelled", "503"),
    OutcomeCase(dropped("rejected-no-endpoints", 503), "error", "no_endpoints"),
    OutcomeCase(dropped("rejected-internal", 500), "error", "router_error"),
    # Triton and TensorRT-LLM
    OutcomeCase(http(503, '{"error":"Exceeds maximum queue size"}', GENERATE), "shed", "capacity"),
    OutcomeCase(grpc(14, "Exceeds maximum queue size"), "shed", "capacity"),
    OutcomeCase(grpc_error("Exceeds maximum queue size"), "shed", "capacity"),
    OutcomeCase(http(503, '{"error":"Request timeout expired"}', GENERATE), "shed", "deadline"),
    OutcomeCase(grpc(14, "Request timeout expired"), "shed", "deadline"),
    OutcomeCase(accepted('{"error":"Request timeout expired"}'), "shed", "deadline"),
    OutcomeCase(accepted('{"error":"CUDA out of memory"}'), "error", "400"),
    OutcomeCase(
        stream('data: {"error":"Request timeout expired"}\n\n', path=GENERATE_STREAM),
        "shed",
        "deadline",
    ),
    OutcomeCase(
        http(
            500,
            '{"error":"Executor failed process requestId 7 due to the following error: Encountered '
            "an error: [TensorRT-LLM][ERROR] Assertion failed: Maximum queue size of 8 has been "
            'reached, please try again later"}',
            GENERATE,
        ),
        "shed",
        "capacity",
    ),
    OutcomeCase(
        grpc_error(
            "[request id: 7] Server is stopping, scheduler for model has stopped accepting new "
            "inference requests"
        ),
        "draining",
        "in_band",
    ),
    OutcomeCase(
        grpc(14, "GRPC server is shutting down and has stopped accepting new requests."),
        "draining",
        "UNAVAILABLE",
    ),
    OutcomeCase(grpc(14, "Request for unknown model: 'm' is not found"), "invalid", "UNAVAILABLE"),
    OutcomeCase(http(404, '{"error":"Request for unknown model"}', GENERATE), "invalid", "404"),
    # Engines behind OpenAI-style APIs
    OutcomeCase(
        http(503, '{"error":{"message":"Request queue full.","code":503}}'), "shed", "capacity"
    ),
    OutcomeCase(
        http(503, '{"error":{"message":"Request queue reached max pending tokens limit."}}'),
        "shed",
        "capacity",
    ),
    OutcomeCase(sglang("The request queue is full."), "shed", "capacity"),
    OutcomeCase(sglang("The request is aborted by a higher priority request."), "shed", "priority"),
    OutcomeCase(sglang("Request waiting timeout reached."), "shed", "deadline"),
    OutcomeCase(sglang("Request running timeout reached."), "timeout", "total"),
    OutcomeCase(
        http(
            503,
            '{"message":"Service temporarily unavailable: All workers are busy, please retry '
            'later","type":"service_unavailable","code":503}',
        ),
        "shed",
        "capacity",
    ),
    OutcomeCase(http(529, '{"message":"All workers are busy"}'), "shed", "capacity"),
    OutcomeCase(
        http(
            503,
            "Request dropped due to backpressure (num_queued_requests=2, max_queued_requests=2).",
        ),
        "shed",
        "capacity",
    ),
    OutcomeCase(http(503, "pending request queue full\n"), "shed", "capacity"),
    # Envoy
    OutcomeCase(http(503, OVERFLOW, x_envoy_overloaded="true"), "shed", "capacity"),
    OutcomeCase(grpc(14, OVERFLOW), "shed", "capacity"),
    OutcomeCase(http(503, "envoy overloaded"), "shed", "capacity"),
    OutcomeCase(http(429, "", x_envoy_ratelimited="true"), "quota", "429"),
    OutcomeCase(grpc(14, "local_rate_limited"), "quota", "UNAVAILABLE"),
    OutcomeCase(http(504, "stream timeout"), "timeout", "idle"),
    OutcomeCase(http(504, "upstream max stream duration reached"), "timeout", "total"),
    OutcomeCase(http(504, "downstream duration timeout"), "timeout", "total"),
    OutcomeCase(http(504, "upstream request timeout"), "timeout", "504"),
    OutcomeCase(grpc(14, "upstream request timeout"), "timeout", "UNAVAILABLE"),
    # Other gateways
    OutcomeCase(http(504, NGINX_504), "timeout", "idle"),
    OutcomeCase(http(504, HAPROXY_504), "timeout", "idle"),
    OutcomeCase(http(504, ALB_504), "timeout", "idle"),
    OutcomeCase(
        http(
            429,
            '{"error":{"message":"No deployments available for selected model, Try again in 5 '
            'seconds.","code":"429"}}',
        ),
        "shed",
        "capacity",
    ),
    OutcomeCase(
        http(
            400, '{"error":{"message":"Budget has been exceeded! Current cost: 2, Max budget: 1"}}'
        ),
        "quota",
        "400",
    ),
    OutcomeCase(http(422, '{"errors":[{"code":"budget_exceeded"}]}'), "quota", "422"),
    OutcomeCase(
        http(503, "", **{"X-AI-RateLimit-Remaining-ai-proxy": "0", "Retry-After": "9"}),
        "quota",
        "503",
    ),
    OutcomeCase(
        http(429, '{"message":"AI token rate limit exceeded for provider(s): openai"}'),
        "quota",
        "429",
    ),
    # Errors inside a response
    OutcomeCase(
        stream(
            'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
            path="/v1/messages",
        ),
        "shed",
        "capacity",
    ),
    OutcomeCase(
        stream(
            'event: error\ndata: {"type":"error","error":{"type":"rate_limit_error"}}\n\n',
            path="/v1/messages",
        ),
        "quota",
        "in_band",
    ),
    OutcomeCase(stream(event(error={"code": "rate_limit_exceeded"})), "quota", "in_band"),
    OutcomeCase(stream(event(error={"code": "insufficient_quota"})), "quota", "in_band"),
    OutcomeCase(stream(event(error={"message": "CUDA out of memory"})), "error", "in_band"),
    # HTTP
    OutcomeCase(http(503, "busy", Retry_After="1"), "shed", "capacity"),
    OutcomeCase(http(402), "quota", "402"),
    OutcomeCase(http(408), "timeout", "408"),
    OutcomeCase(http(499), "cancelled", "499"),
    OutcomeCase(http(200, "{}"), "ok", ""),
    OutcomeCase(http(302), "invalid", "302"),
    OutcomeCase(http(502), "error", "502"),
    # gRPC
    OutcomeCase(grpc(0), "ok", ""),
    OutcomeCase(grpc(1), "cancelled", "CANCELLED"),
    OutcomeCase(grpc(4), "timeout", "total"),
    OutcomeCase(grpc(8), "shed", "capacity"),
    OutcomeCase(grpc(13), "error", "INTERNAL"),
    OutcomeCase(grpc(3), "invalid", "INVALID_ARGUMENT"),
    # Ends of connections and streams
    OutcomeCase(http2(lambda connection: connection.reset(SERVER, 7)), "shed", "capacity"),
    OutcomeCase(
        http2(
            lambda connection: connection.send(
                SERVER, frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0))
            )
        ),
        "draining",
        "goaway",
    ),
    OutcomeCase(closed, "error", "closed"),
    OutcomeCase(reset(), "error", "reset"),
    OutcomeCase(stream(CHUNK), "truncated", "unended"),
    OutcomeCase(stream(CHUNK, end=False), "truncated", "closed"),
    OutcomeCase(reset(CHUNK), "truncated", "reset"),
    # Finish reasons
    OutcomeCase(stream(CHUNK.replace("null", '"timeout"')), "timeout", "total"),
    OutcomeCase(stream(CHUNK.replace("null", '"abort"')), "cancelled", "abort"),
    OutcomeCase(stream(CHUNK.replace("null", '"error"')), "error", "error"),
    # Counters
    OutcomeCase(counter("triton", "REJECTED"), "shed", "deadline"),
    OutcomeCase(counter("triton", "CANCELED"), "cancelled", "canceled"),
    OutcomeCase(counter("triton", "BACKEND"), "error", "backend"),
    OutcomeCase(counter("triton"), "error", ""),
    OutcomeCase(counter("trtllm", "length"), "ok", "length"),
    OutcomeCase(counter("trtllm", "timeout"), "timeout", "total"),
    OutcomeCase(counter("trtllm", "cancelled"), "cancelled", "cancelled"),
    OutcomeCase(counter("trtllm", "error"), "error", "error"),
    OutcomeCase(counter("vllm", "stop"), "ok", "stop"),
    OutcomeCase(counter("vllm", "abort"), "client_disconnected", "abort"),
    OutcomeCase(counter("vllm", "error"), "error", "error"),
    OutcomeCase(counter("vllm_admission"), "shed", "capacity"),
    OutcomeCase(counter("sglang", "abort"), "client_disconnected", "abort"),
    OutcomeCase(counter("sglang", "unknown_reason"), "error", "unknown"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.outcome}-{case.reason}")
def test_each_response_has_its_outcome(case: OutcomeCase) -> None:
    assert case.ended() == (case.outcome, case.reason)


def test_rules_are_searched_once_for_a_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scrape has the same counters, several for each model."""
    searched = []
    original = outcome_rules.rule_for

    def noted(code: str, headers: Mapping[str, str], text: bytes) -> OutcomeRule | None:
        searched.append(code)
        return original(code, headers, text)

    monkeypatch.setattr(outcome_rules, "rule_for", noted)
    outcome_rules.counted_outcome.cache_clear()
    outcomes = {outcome_rules.counted_outcome("triton", "CANCELED") for _ in range(100)}
    assert outcomes == {("cancelled", "canceled")}
    assert searched == ["triton:CANCELED"]


def test_every_rule_decides_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[OutcomeRule] = set()

    def noted(code: str, headers: Mapping[str, str], text: bytes) -> OutcomeRule | None:
        rule = original(code, headers, text)
        used.update([rule] if rule else [])
        return rule

    original = outcome_rules.rule_for
    monkeypatch.setattr(outcome_rules, "rule_for", noted)
    outcome_rules.counted_outcome.cache_clear()
    for case in CASES:
        case.ended()
    # Successes never reach the table.
    unused = [rule for rule in RULES if rule not in used and rule.codes not in (("2xx",), ("OK",))]
    assert unused == []


def test_every_outcome_has_a_case() -> None:
    assert {case.outcome for case in CASES} == set(get_args(Outcome)) == set(OUTCOMES)


def test_rules_name_known_codes_and_reasons() -> None:
    for rule in RULES:
        kinds = {code.partition(":")[0] for code in rule.codes}
        assert all(kind in CODES or kind[:1].isdigit() or kind.isupper() for kind in kinds), rule
        closed_set = MEANINGS[rule.outcome].reasons
        if rule.reason and rule.outcome in ("shed", "timeout", "truncated"):
            assert rule.reason in closed_set, rule
    assert all(rule.reason for rule in RULES if rule.outcome == "shed")


def test_a_finish_reason_or_the_last_event_completes_a_stream() -> None:
    finished = CHUNK.replace("null", '"stop"')
    assert stream(finished)() == ("ok", "stop")
    assert stream(CHUNK, "data: [DONE]\n\n")() == ("ok", "")
    assert stream(finished, end=False)() == ("ok", "stop")
    assert stream(end=True)() == ("truncated", "unended")


def test_text_beyond_the_limit_is_not_searched() -> None:
    body = " " * ERROR_BYTES + "Exceeds maximum queue size"
    assert http(503, body)() == ("error", "503")
    assert http(503, body[30:])() == ("shed", "capacity")


def test_text_of_an_error_is_not_exported() -> None:
    secret = "Exceeds maximum queue size: my prompt"
    recorder = StreamRecorder({}, expected=["m"])
    observer = Http1Observer(recorder, ObserverSettings())
    observer.feed(CLIENT, _request(GENERATE), 1.0)
    observer.feed(SERVER, _head(503, {"content-length": str(len(secret))}) + secret.encode(), 2.0)
    shown = repr(list(recorder.measurements()))
    assert "'shed'" in shown
    assert "capacity" in shown
    assert "prompt" not in shown


def test_an_invalid_request_that_quotes_a_text_stays_invalid() -> None:
    assert http(404, "The request queue is full.")() == ("invalid", "404")
    assert http(422, "upstream request timeout")() == ("invalid", "422")
    quoted = '{"error":"unexpected inference input \'Exceeds maximum queue size\'"}'
    assert http(400, quoted, GENERATE)() == ("invalid", "400")


def test_refusals_are_apart_from_failures() -> None:
    assert set(REFUSALS) == {"shed", "quota"}
    assert failures(()) == ("error", "draining", "timeout", "truncated")
    assert failures(["shed"]) == FAILURES
    assert failures(["quota", "shed"]) == (
        *("error", "shed", "quota", "draining", "timeout", "truncated"),
    )


def test_a_call_without_a_status_is_truncated() -> None:
    def cut(connection: GrpcConnection) -> None:
        connection.respond(stream_response("a"))
        connection.send(SERVER, frame(DATA, END_STREAM, 1))

    assert http2(cut)() == ("truncated", "closed")
