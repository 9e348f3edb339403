"""SGLang's own API on the wire."""

from __future__ import annotations

import pytest

from exporter.protocol.events import CLIENT, ObserverSettings
from exporter.protocol.http1 import Http1Observer
from tests.event_log import WireLog
from tests.http_streams import answered, chunks, event, request, streamed

PATH = "/generate"
DONE = b"data: [DONE]\n\n"
ASK = {"text": "Hi", "sampling_params": {"max_new_tokens": 4}, "stream": True}


def so_far(text: str, tokens: int, finish: object = None, **members: object) -> bytes:
    meta = {"id": "1", "finish_reason": finish, "prompt_tokens": 5, "completion_tokens": tokens,
            "cached_tokens": 2, "weight_version": "default"}  # fmt: skip
    return event({"text": text, "output_ids": [1] * tokens, "meta_info": meta, **members})


def end(log: WireLog) -> tuple[str, str]:
    ended = log.of(0)[-1]
    assert ended[0] == "ended"
    return ended[2], ended[3]


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_request_is_counted(method: str) -> None:
    log = WireLog()
    Http1Observer(log, ObserverSettings()).feed(CLIENT, request(PATH, ASK, method), 1.0)

    stream = log.at_start[0]
    assert (stream.endpoint, stream.model, stream.streaming) == ("sglang_generate", "", True)
    assert stream.choices == 1


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        ({"text": ["a", "b", "c"]}, 3),
        ({"input_ids": [1, 2, 3]}, 1),
        ({"input_ids": [[1, 2], [3]]}, 2),
        ({"text": ["a", "b"], "sampling_params": {"n": 2}}, 4),
        ({"text": "a", "sampling_params": {"n": 2}}, 2),
    ],
)
def test_the_number_of_choices(body: object, choices: int) -> None:
    log = WireLog()
    Http1Observer(log, ObserverSettings()).feed(CLIENT, request(PATH, body), 1.0)

    assert log.at_start[0].choices == choices


def test_a_chunk_has_the_tokens_that_are_new_in_it() -> None:
    stop = {"type": "length", "length": 4}
    log = streamed(PATH, [so_far("a", 1), so_far("a", 2), so_far("abc", 4, stop), DONE], ASK)

    assert chunks(log) == [(1.0, 1), (2.0, 1), (3.0, 2)]
    stream = log.streams[0]
    assert (stream.input_tokens, stream.output_tokens, stream.cached_tokens) == (5, 4, 2)
    assert end(log) == ("ok", "length")


def test_only_the_first_choice_is_timed_and_the_others_are_counted() -> None:
    two_prompts = {**ASK, "text": ["a", "b"]}
    events = [so_far("a", 1, index=0), so_far("b", 1, index=1), so_far("ab", 2, index=0), DONE]
    log = streamed(PATH, events, two_prompts)

    assert chunks(log) == [(1.0, 0), (3.0, 0)]
    assert log.streams[0].other_chunks == 1
    assert not log.streams[0].counted  # no event has the tokens of the whole answer


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (so_far("a", 1, {"type": "stop", "matched": 2}), ("ok", "stop")),
        (so_far("a", 1, {"type": "abort", "message": "text"}), ("cancelled", "abort")),
        (so_far("", 0, {"type": "abort", "message": "full", "status_code": 503}),
         ("error", "503")),
        (so_far("", 0, {"type": "abort", "message": "The request queue is full.",
                        "status_code": 503}),
         ("shed", "capacity")),
        (so_far("", 0, {"type": "abort", "message": "bad", "status_code": 400}),
         ("invalid", "400")),
        (event({"error": {"message": "text"}}), ("error", "in_band")),
    ],
)  # fmt: skip
def test_how_streams_end(last: bytes, outcome: tuple[str, str]) -> None:
    assert end(streamed(PATH, [last, DONE], ASK)) == outcome


def test_a_whole_response_has_usage() -> None:
    meta = {"id": "1", "finish_reason": {"type": "stop"}, "prompt_tokens": 5,
            "completion_tokens": 7, "cached_tokens": 0, "e2e_latency": 0.5}  # fmt: skip
    log = answered(PATH, {"text": "abc", "output_ids": [1], "meta_info": meta}, ASK)

    assert (log.streams[0].input_tokens, log.streams[0].output_tokens) == (5, 7)
    assert end(log) == ("ok", "stop")
