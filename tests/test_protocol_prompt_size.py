"""The length of prompts on the wire: token ids, text, tensors; no text is kept."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.protocol.events import CLIENT, ObserverSettings
from exporter.protocol.http1 import Http1Observer
from exporter.protocol.kserve_grpc import scan_request
from exporter.protocol.prompt_size import UNMEASURED, PromptLength, PromptScanner
from tests.event_log import WireLog
from tests.grpc_connection import GrpcConnection, infer_request, kserve
from tests.http_streams import request

MEASURE = ObserverSettings(measure_prompts=True)
GENERATE = "/v2/models/m/generate"


def length(body: object, *, cut: int = 0) -> PromptLength:
    """Return the measured length of a request's body, fed in parts of ``cut`` bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    scanner = PromptScanner({})
    step = cut or len(data) or 1
    for begin in range(0, len(data), step):
        scanner.feed(data[begin : begin + step])
    return scanner.length()


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": [1, 22, 333]}, 3),
        ({"prompt": [[1, 22], [333], [4]]}, 4),
        ({"model": "m", "input_ids": [7] * 5000, "stream": True}, 5000),
        ({"prompt_token_ids": [5], "messages": []}, 1),
        ({"inputs": [{"name": "input_ids", "shape": [1, 12], "datatype": "INT32"}]}, 12),
    ],
)
def test_a_tokenised_prompt_is_counted(body: object, tokens: int) -> None:
    for cut in (0, 1, 7):
        assert length(body, cut=cut) == PromptLength(tokens=tokens)
    indented = json.dumps(body, indent=2).encode()
    assert length(indented) == PromptLength(tokens=tokens)


TEXT = "one two three four"


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({"prompt": TEXT}, 20),
        ({"prompt": [TEXT, TEXT]}, 44),
        ({"text_input": TEXT, "system": "", "max_tokens": 12345678, "id": "x" * 99}, 22),
        ({"input": TEXT, "instructions": TEXT}, 40),
        ({"messages": [{"role": "user", "content": TEXT}], "temperature": 0.1234567}, 51),
        ({"QUESTION": TEXT}, 20),
    ],
)
def test_the_text_of_a_prompt_has_the_bytes_of_its_json(body: object, size: int) -> None:
    for cut in (0, 1, 7):
        assert length(body, cut=cut) == PromptLength(size=size)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=100), max_size=20), st.data())
def test_the_size_does_not_depend_on_the_segments(contents: list[str], data: st.DataObject) -> None:
    body = {"messages": [{"role": "user", "content": text} for text in contents]}
    raw = json.dumps(body, ensure_ascii=False).encode()
    cut = data.draw(st.integers(1, len(raw)))
    expected = len(json.dumps(body["messages"], ensure_ascii=False).encode())
    escapes = raw.count(b"\\u")
    found = length(raw, cut=cut).size
    assert found is not None
    assert expected - 3 * escapes <= found <= expected


def test_escaped_characters_count_as_in_utf8() -> None:
    text = "\u4e2d\u6587" * 50
    ascii_only, plain = (json.dumps({"prompt": text}, ensure_ascii=each) for each in (True, False))
    assert length(ascii_only.encode()) == length(plain.encode()) == PromptLength(size=302)


@pytest.mark.parametrize("cut", [0, 1448, 65536])
def test_images_count_as_no_tokens(cut: int) -> None:
    image = base64.b64encode(bytes(range(256)) * 1200).decode()
    parts: list[Any] = [{"type": "text", "text": TEXT}]
    without = length({"messages": [{"role": "user", "content": parts}]}).size
    parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}})
    found = length({"messages": [{"role": "user", "content": parts}]}, cut=cut).size
    assert without is not None
    assert found is not None
    segments = len(image) // (cut or len(image)) + 1
    assert without <= found <= without + 600 + 256 * segments
    assert found < len(image) / 4


@pytest.mark.parametrize("body", [b"", b'{"prompt": "one tw', b"not json", b"{}", b"[1, 2]"])
def test_an_incomplete_or_foreign_body_has_no_length(body: bytes) -> None:
    assert length(body) == UNMEASURED


def test_what_the_scan_skips_by_its_limits_still_counts() -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    assert (length(b'{"messages": ' + deep + b"}").size or 0) >= 390_000


def observed(path: str, body: object, settings: ObserverSettings = MEASURE) -> Any:
    log = WireLog()
    Http1Observer(log, settings).feed(CLIENT, request(path, body), 1.0)
    [one] = log.streams
    return one


def test_observers_measure_only_if_enabled() -> None:
    body = {"model": "m", "prompt": TEXT}
    stream = observed("/v1/completions", body)
    assert (stream.prompt_tokens, stream.prompt_bytes) == (None, 20)
    stream = observed("/v1/completions", body, ObserverSettings())
    assert (stream.prompt_tokens, stream.prompt_bytes) == (None, None)


@pytest.mark.parametrize(
    ("path", "body", "tokens", "size"),
    [
        ("/v1/completions", {"prompt": [1, 2, 3]}, 3, None),
        ("/v1/chat/completions", {"messages": [{"content": "hi"}]}, None, 19),
        ("/v1/responses", {"input": "hi"}, None, 4),
        ("/v1/messages", {"messages": [{"content": "hi"}], "system": "s"}, None, 22),
        ("/generate", {"input_ids": [1, 2]}, 2, None),
        (GENERATE, {"text_input": "hi", "max_tokens": 5}, None, 4),
        (GENERATE, {"input_ids": [1, 2], "input_lengths": [2]}, 2, None),
    ],
)
def test_prompts_of_every_api_are_measured(
    path: str, body: object, tokens: int | None, size: int | None
) -> None:
    stream = observed(path, body)
    assert (stream.prompt_tokens, stream.prompt_bytes) == (tokens, size)


def test_binary_tensors_over_http_have_the_size_of_their_data() -> None:
    tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES"}
    body = {"inputs": [{**tensor, "parameters": {"binary_data_size": 404}}]}
    assert length(json.dumps(body).encode() + b"\x90\x01\0\0" + b"x" * 400).size == 404


def test_ids_over_grpc_are_counted_by_their_shape() -> None:
    message = kserve.ModelInferRequest(model_name="m")
    message.inputs.add(name="input_ids", datatype="INT32", shape=[1, 9000])
    message.inputs.add(name="input_lengths", datatype="INT32", shape=[1, 1])
    message.raw_input_contents.append(b"\1\0\0\0" * 9000)
    message.raw_input_contents.append(b"\1\0\0\0")
    whole = message.SerializeToString()
    assert scan_request(whole, measure=True).length == PromptLength(tokens=9000)
    assert scan_request(whole[:8192], whole=False, measure=True).length.tokens == 9000
    assert scan_request(whole).length == UNMEASURED


def test_text_over_grpc_has_its_size_also_where_the_message_is_not_kept_whole() -> None:
    whole = infer_request(text=b"x" * 20_000)
    assert scan_request(whole, measure=True).length == PromptLength(size=20_004)
    assert scan_request(whole[:8192], whole=False, measure=True).length == PromptLength(size=20_004)
    typed = kserve.ModelInferRequest(model_name="m")
    tensor = typed.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"x" * 50)
    assert scan_request(typed.SerializeToString(), measure=True).length == PromptLength(size=52)


def test_a_grpc_call_measures_its_requests() -> None:
    connection = GrpcConnection(MEASURE)
    connection.call(infer_request(text=b"four"))
    [stream] = connection.log.streams
    assert (stream.prompt_tokens, stream.prompt_bytes) == (None, 8)
