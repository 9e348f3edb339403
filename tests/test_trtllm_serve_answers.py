"""Responses of the fake trtllm-serve's two APIs, chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from lab.engine_events import EngineEvent, RequestMetrics
from lab.trtllm_serve.openai import CHAT, COMPLETIONS, Api, BadRequest, CompletionWriter, read
from lab.trtllm_serve.settings import ServeSettings

METRICS = RequestMetrics(
    *(1.0, 1.1, 1.2, 1.5, 1, 4, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0),
)
OPTIONS = {"include_usage": True}


def body(api: Api, **more: object) -> bytes:
    prompt = {"prompt": "a b c"} if api is COMPLETIONS else {"messages": [{"content": "a b c"}]}
    return json.dumps({"model": "m", "max_tokens": 9, "stream": True, **prompt, **more}).encode()


def events(*bursts: int) -> Iterable[EngineEvent]:
    """Yield the events of a request that gets ``bursts`` of tokens."""
    index, total = 0, sum(bursts)
    for step, tokens in enumerate(bursts):
        for number in range(tokens):
            last = index == total - 1
            yield EngineEvent(
                request_id=7,
                time=float(step),
                index=index,
                finish_reason="length" if last else None,
                more=number < tokens - 1,
                metrics=METRICS if last else None,
            )
            index += 1


def stream(
    api: Api, *bursts: int, serve: dict[str, Any] | None = None, **fields: Any
) -> list[bytes]:
    answer = CompletionWriter(
        api, read(api, body(api, **fields)), ServeSettings(model="m", **(serve or {}))
    )
    return [*map(answer.handle, events(*bursts)), answer.end()]


def chunks(data: Iterable[bytes]) -> list[dict[str, Any]]:
    lines = b"".join(data).decode().split("\n")
    assert [line for line in lines if line][-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def texts(found: list[dict[str, Any]]) -> list[str]:
    """Return the text of every chunk that has some, be it empty."""
    choices = [choice for chunk in found for choice in chunk["choices"]]
    deltas = [choice.get("delta", choice) for choice in choices]
    texts = [delta.get("text", delta.get("content")) for delta in deltas]
    return [text for text in texts if text is not None]


def test_a_chat_stream_begins_with_a_role_and_a_space_before_its_end() -> None:
    first, second, end = stream(CHAT, 1, 1)
    role, token = first.split(b"\n\n")[:2]
    assert role.startswith(b"data: {")
    assert role.endswith(b"} ")
    assert json.loads(role[6:])["choices"] == [{"index": 0, "delta": {"role": "assistant"}}]
    assert token.endswith(b"}")
    assert b" \n" not in second + end
    found = json.loads(token[6:])
    assert found.pop("id").startswith("chatcmpl-")
    assert isinstance(found.pop("created"), int)
    assert found == {
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"content": "token0 ", "reasoning_content": ""},
                "avg_decoded_tokens_per_iter": 1.0,
            }
        ],
    }
    assert json.loads(second[6:])["choices"][0]["finish_reason"] == "length"
    assert end == b"data: [DONE]\n\n"


def test_a_completion_stream_has_no_role_and_all_its_nulls() -> None:
    first, second, end = stream(COMPLETIONS, 1, 1)
    found = json.loads(first[6:])
    assert found.pop("id").startswith("cmpl-")
    assert isinstance(found.pop("created"), int)
    assert found == {
        "object": "text_completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "token0 ",
                "token_ids": None,
                "logprobs": None,
                "finish_reason": None,
                "stop_reason": None,
                "avg_decoded_tokens_per_iter": 1.0,
            }
        ],
        "usage": None,
    }
    assert first.startswith(b'data: {"id":"')
    assert json.loads(second[6:])["choices"][0]["finish_reason"] == "length"
    assert end == b"data: [DONE]\n\n"


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS])
def test_usage_comes_last_and_without_choices(api: Api) -> None:
    *_, last = chunks(stream(api, 1, 1, stream_options=OPTIONS))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize(("api", "tokens"), [(CHAT, [0, 1, 3, 4]), (COMPLETIONS, [1, 3, 4])])
def test_continuous_usage_has_the_tokens_of_every_chunk(api: Api, tokens: list[int]) -> None:
    found = chunks(stream(api, 1, 2, 1, stream_options={"continuous_usage_stats": True}))
    assert [chunk["usage"]["completion_tokens"] for chunk in found] == tokens
    assert {chunk["usage"]["total_tokens"] for chunk in found} == {3 + n for n in tokens}


def test_tokens_of_one_step_share_a_chunk() -> None:
    found = chunks(stream(COMPLETIONS, 1, 3, 2))
    assert texts(found) == ["token0 ", "token1 token2 token3 ", "token4 token5 "]
    pace = [chunk["choices"][0]["avg_decoded_tokens_per_iter"] for chunk in found]
    assert pace == [1.0, 2.0, 2.0]


def test_a_stream_interval_joins_chunks_but_for_the_first_and_the_last() -> None:
    found = chunks(stream(CHAT, *[1] * 8, serve={"stream_interval": 3}))
    joined = ["token0 ", "token1 token2 ", "token3 token4 token5 ", "token6 token7 "]
    assert texts(found) == joined


def test_text_can_be_withheld_while_the_token_counts() -> None:
    usage = {"continuous_usage_stats": True}
    found = chunks(stream(COMPLETIONS, *[1] * 5, serve={"withhold": 2}, stream_options=usage))
    assert texts(found) == ["token0 ", "", "token1 token2 ", "", "token3 token4 "]
    assert [chunk["usage"]["completion_tokens"] for chunk in found] == [1, 2, 3, 4, 5]


def test_text_that_is_withheld_at_the_end_is_not_lost() -> None:
    assert texts(chunks(stream(CHAT, 1, 1, serve={"withhold": 2}))) == ["token0 ", "token1 "]


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS])
def test_unary_response_has_all_the_text(api: Api) -> None:
    answer = CompletionWriter(api, read(api, body(api, stream=False)), ServeSettings(model="m"))
    assert b"".join(map(answer.handle, events(1, 2))) == b""
    whole = answer.whole()
    choice = whole["choices"][0]
    text = choice["text"] if api is COMPLETIONS else choice["message"]["content"]
    assert text == "token0 token1 token2 "
    assert whole["object"] == ("text_completion" if api is COMPLETIONS else "chat.completion")
    assert choice["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 3


def test_model_that_stops_has_finish_reason_stop() -> None:
    parsed = read(CHAT, body(CHAT, stop_after=2))
    assert (parsed.max_tokens, parsed.stops) == (2, True)
    last = chunks(stream(CHAT, 1, 1, stop_after=2))[-1]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert not read(CHAT, body(CHAT, stop_after=10)).stops


def test_prompt_is_text_or_token_ids() -> None:
    assert read(COMPLETIONS, body(COMPLETIONS)).prompt == ("a", "b", "c")
    assert read(COMPLETIONS, body(COMPLETIONS, prompt=[5, 6])).prompt == (5, 6)
    messages = [{"role": "system", "content": "x y"}, {"role": "user", "content": "z"}]
    assert read(CHAT, body(CHAT, messages=messages)).prompt == ("x", "y", "z")


@pytest.mark.parametrize(
    ("api", "wrong", "message"),
    [
        (CHAT, b"{", "JSON decode error"),
        (CHAT, b"[]", "valid dictionary"),
        (CHAT, body(CHAT, max_tokens="many"), "valid integer"),
        (CHAT, body(CHAT, max_tokens=True), "valid integer"),
        (CHAT, body(CHAT, max_tokens=None), "valid integer"),
        (CHAT, body(CHAT, n=2), "n must be 1"),
        (CHAT, body(CHAT, messages="a"), "messages: "),
        (CHAT, body(CHAT, messages=[{"role": "user"}]), "messages: "),
        (COMPLETIONS, body(COMPLETIONS, prompt=None), "prompt: "),
        (COMPLETIONS, body(COMPLETIONS, prompt=["a"]), "prompt: "),
    ],
)
def test_invalid_requests_are_refused(api: Api, wrong: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        read(api, wrong)


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS])
def test_the_name_of_the_model_is_echoed(api: Api) -> None:
    echoed = chunks(stream(api, 1, 1, model="invented", serve={}))
    assert {chunk["model"] for chunk in echoed} == {"invented"}
