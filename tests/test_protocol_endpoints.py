"""Requests that are not understood are counted, each by a bounded reason."""

from __future__ import annotations

import pytest
from hpack import Encoder

from exporter.protocol.detection import PREFACE, observe
from exporter.protocol.events import CLIENT, ObserverSettings
from tests.event_log import WireLog
from tests.http_streams import request, skipped

REASONS = {
    "/v1/embeddings": "embeddings",
    "/v1/audio/transcriptions": "audio",
    "/v1/images/generations": "images",
    "/inference/v1/generate": "token_generate",
    "/v1/rerank": "pooling",
    "/score": "pooling",
    "/tokenize": "tokenize",
    "/v1/messages/count_tokens": "tokenize",
    "/some/prefix/v1/embeddings?x=/generate": "embeddings",
    "/v1/completions/": "endpoint",
    "/v1/chat/completions%20": "endpoint",
    "/xv1/completions/x": "endpoint",
    "/v2/models/m/rank": "endpoint",
    "/v1/anything/that/a/client/makes/up": "endpoint",
}


@pytest.mark.parametrize(("path", "reason"), REASONS.items())
def test_every_request_counts_once(path: str, reason: str) -> None:
    log = WireLog()
    observer = observe(log, ObserverSettings())
    for _ in range(10):
        observer.feed(
            CLIENT, request(f"/some/prefix{path}"[path.startswith("/v2") * 12 :], {}), 1.0
        )

    assert skipped(log) == [reason] * 10
    assert log.streams == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/completions"),
        ("GET", "/metrics"),
        ("OPTIONS", "*"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/m/load"),
        ("POST", "/v2/models/m/trace/setting"),
        ("POST", "/v2/logging"),
    ],
)
def test_a_request_without_inference_is_not_counted(method: str, path: str) -> None:
    log = WireLog()
    observe(log, ObserverSettings()).feed(CLIENT, request(path, {}, method), 1.0)

    assert log.events == []


def http2_request(encoder: Encoder, stream: int, *fields: tuple[str, str]) -> bytes:
    block = encoder.encode([(":scheme", "http"), (":authority", "h"), *fields])
    head = len(block).to_bytes(3, "big") + bytes((1, 5)) + stream.to_bytes(4, "big")
    return head + block


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ([(":method", "POST"), (":path", "/v1/chat/completions")], ["http2"] * 5),
        ([(":method", "POST"), (":path", "/v1/embeddings?x=1")], ["embeddings"] * 5),
        ([(":method", "PUT"), (":path", "/generate")], ["http2"] * 5),
        ([(":method", "POST"), (":path", "/sglang.grpc.scheduler.SglangScheduler/Generate"),
          ("content-type", "application/grpc")], ["grpc_method"] * 5),
        ([(":method", "POST"), (":path", "/inference.GRPCInferenceService/ServerLive"),
          ("content-type", "application/grpc")], []),
        ([(":method", "POST"), (":path", "/grpc.health.v1.Health/Check"),
          ("content-type", "application/grpc+proto")], []),
        ([(":method", "GET"), (":path", "/v1/models")], []),
    ],
)  # fmt: skip
def test_every_request_over_http2_counts(fields: list[tuple[str, str]], reasons: list[str]) -> None:
    log = WireLog()
    observer = observe(log, ObserverSettings())
    encoder = Encoder()
    observer.feed(CLIENT, PREFACE + b"\0\0\0\4\0\0\0\0\0", 1.0)
    for stream in range(1, 11, 2):
        observer.feed(CLIENT, http2_request(encoder, stream, *fields), 1.0)

    assert skipped(log) == reasons
