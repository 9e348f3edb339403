"""OpenAI's Responses API on the wire, in the events of vLLM and trtllm-serve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.protocol.events import CLIENT, SERVER, ObserverSettings
from exporter.protocol.http1 import Http1Observer
from tests.event_log import WireLog
from tests.http_streams import (
    STREAM_HEAD,
    answered,
    chunk,
    chunks,
    request,
    skipped,
    streamed,
    typed,
)

PATH = "/v1/responses"


def response(state: str, **members: object) -> dict[str, object]:
    """Return the response object that the first and the last event carry."""
    return {
        "id": "resp_1",
        "created_at": 1,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": None,
        "model": "org/model",
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "status": state,
        "usage": None,
        **members,
    }


def usage(output: int, prompt: int = 9, cached: int = 0) -> dict[str, object]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "input_tokens_per_turn": []},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }


CREATED = typed("response.created", response=response("in_progress"), sequence_number=0)
BEGUN = typed("response.in_progress", response=response("in_progress"), sequence_number=1)
MESSAGE_ADDED = typed(
    "response.output_item.added",
    item={"id": "msg_1", "content": [], "role": "assistant", "status": "in_progress",
          "type": "message"},
    output_index=0, sequence_number=2,
)  # fmt: skip
PART_ADDED = typed(
    "response.content_part.added",
    content_index=0, item_id="msg_1", output_index=0, sequence_number=3,
    part={"annotations": [], "text": "", "type": "output_text", "logprobs": []},
)  # fmt: skip
TEXT_DONE = typed(
    "response.output_text.done",
    content_index=0, item_id="msg_1", logprobs=[], output_index=0, sequence_number=9, text="abc",
)  # fmt: skip
ITEM_DONE = typed(
    "response.output_item.done",
    item={"id": "msg_1", "content": [{"text": "abc", "type": "output_text"}], "type": "message"},
    output_index=0, sequence_number=10,
)  # fmt: skip
TOOL_ADDED = typed(
    "response.output_item.added",
    item={"arguments": "", "call_id": "call_1", "name": "get_weather", "type": "function_call",
          "id": "fc_1", "status": "in_progress"},
    output_index=1, sequence_number=4,
)  # fmt: skip


def delta(text: str, kind: str = "output_text", number: int = 4) -> bytes:
    return typed(
        f"response.{kind}.delta",
        content_index=0, delta=text, item_id="msg_1", logprobs=[], output_index=0,
        sequence_number=number,
    )  # fmt: skip


def completed(output: int = 3, kind: str = "completed", **members: object) -> bytes:
    whole = response(kind, **{"output": [{"type": "message"}], "usage": usage(output), **members})
    return typed(f"response.{kind}", response=whole, sequence_number=11)


def end(log: WireLog) -> tuple[str, str]:
    last = log.of(0)[-1]
    assert last[0] == "ended"
    return last[2], last[3]


def test_a_request_is_counted_with_its_model() -> None:
    log = streamed(PATH, [], {"input": "Hi", "model": "m", "stream": True, "user": "u"})

    stream = log.at_start[0]
    assert (stream.endpoint, stream.model, stream.request_id) == ("responses", "m", "u")
    assert stream.streaming


def test_a_stream_of_vllm_is_timed_by_its_deltas() -> None:
    log = streamed(PATH, [
        CREATED, BEGUN, MESSAGE_ADDED, PART_ADDED,
        delta("a", number=4), delta("b", number=5), delta("c", number=6),
        TEXT_DONE, ITEM_DONE, completed(),
    ])  # fmt: skip

    assert chunks(log) == [(5.0, 0), (6.0, 0), (7.0, 0)]
    stream = log.streams[0]
    assert stream.model == "org/model"
    assert (stream.input_tokens, stream.output_tokens, stream.cached_tokens) == (9, 3, 0)
    assert stream.counted
    assert end(log) == ("ok", "")
    assert skipped(log) == []


@pytest.mark.parametrize(
    "kind",
    ["output_text", "refusal", "reasoning_text", "reasoning_summary_text",
     "function_call_arguments", "mcp_call_arguments", "custom_tool_call_input"],
)  # fmt: skip
def test_every_kind_of_delta_has_text(kind: str) -> None:
    log = streamed(PATH, [CREATED, delta("", kind), delta("a", kind), completed()])

    assert chunks(log) == [(3.0, 0)]


def test_a_tool_call_begins_with_its_name() -> None:
    log = streamed(PATH, [CREATED, TOOL_ADDED, delta("{", "function_call_arguments"), completed()])

    assert chunks(log) == [(2.0, 0), (3.0, 0)]


@pytest.mark.parametrize(
    "whole",
    [
        TEXT_DONE,
        ITEM_DONE,
        typed("response.output_item.done", item={"type": "function_call", "name": "f"}),
        typed("response.function_call_arguments.done", arguments="{}", item_id="fc_1"),
    ],
)
def test_text_in_one_event_counts_once(whole: bytes) -> None:
    log = streamed(PATH, [CREATED, BEGUN, whole, ITEM_DONE, completed(40)])

    assert chunks(log) == [(3.0, 0)]


def test_text_that_comes_with_the_last_event_alone_has_all_tokens() -> None:
    log = streamed(PATH, [CREATED, BEGUN, completed(40)])

    assert chunks(log) == [(3.0, 40)]


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (completed(), ("ok", "")),
        (completed(kind="incomplete", incomplete_details={"reason": "max_output_tokens"}),
         ("ok", "max_output_tokens")),
        (completed(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
         ("ok", "max_output_tokens")),
        (completed(kind="failed", error={"code": "server_error", "message": "text"}),
         ("error", "in_band")),
        (completed(status="cancelled"), ("cancelled", "cancelled")),
        (typed("error", code="server_error", message="text", param=None), ("error", "in_band")),
        (b'data: {"error":{"message":"text","type":"InternalServerError","code":500}}\n\n',
         ("error", "in_band")),
    ],
)  # fmt: skip
def test_the_last_event_determines_the_outcome(last: bytes, outcome: tuple[str, str]) -> None:
    assert end(streamed(PATH, [CREATED, delta("a"), last])) == outcome


def test_a_disconnect_after_the_last_event_is_ok() -> None:
    log = WireLog()
    observer = Http1Observer(log, ObserverSettings())
    observer.feed(CLIENT, request(PATH, {"model": "m", "stream": True}), 0.0)
    observer.feed(SERVER, STREAM_HEAD + chunk(CREATED + delta("a") + completed()), 1.0)
    observer.aborted(2.0)

    assert end(log) == ("ok", "")


def test_a_whole_response_has_usage() -> None:
    whole = response("completed", output=[{"type": "message"}], usage=usage(7, cached=4))
    log = answered(PATH, whole)

    stream = log.streams[0]
    assert (stream.input_tokens, stream.output_tokens, stream.cached_tokens) == (9, 7, 4)
    assert (stream.model, stream.streaming) == ("org/model", False)
    assert end(log) == ("ok", "")


@pytest.mark.parametrize(
    ("whole", "status", "outcome"),
    [
        (response("failed", error={"code": "server_error", "message": "x"}), 200,
         ("error", "in_band")),
        (response("incomplete", incomplete_details={"reason": "max_output_tokens"}), 200,
         ("ok", "max_output_tokens")),
        ({"error": {"message": "x", "code": 404}}, 404, ("invalid", "404")),
    ],
)  # fmt: skip
def test_outcomes_of_whole_responses(whole: object, status: int, outcome: tuple[str, str]) -> None:
    assert end(answered(PATH, whole, status=status)) == outcome


def test_a_request_with_many_tools_is_scanned_where_an_event_repeats_it() -> None:
    tools = [{"type": "function", "name": f"f{n}", "parameters": {"x": "y" * 100}}
             for n in range(1000)]  # fmt: skip
    created = typed("response.created", response=response("in_progress", tools=tools))
    log = streamed(PATH, [created, delta("a"), completed(5, tools=tools)])

    assert chunks(log) == [(2.0, 0)]
    assert (log.streams[0].model, log.streams[0].output_tokens) == ("org/model", 5)
    assert end(log) == ("ok", "")


WORDS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(['"', "\\", '","sequence_number":1,"type":"x', '\\"', "[DONE]"]),
)


@given(
    st.lists(
        st.tuples(
            WORDS,
            st.integers(0, 10**20),
            st.sampled_from(["output_text.delta"] * 4 + ["refusal.delta", "output_text.done"]),
            st.sampled_from([0, 0, 0, 1]),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_scanned_events_equal_parsed_ones(
    found: list[tuple[str, int, str, int, bool]],
) -> None:
    events, expected = [], []
    for time, (words, number, kind, index, is_int) in enumerate(found, 1):
        events.append(typed(
            f"response.{kind}",
            content_index=0, delta=words, item_id="msg_1", logprobs=[], output_index=index,
            sequence_number=number if is_int else str(number), last=None,
        ))  # fmt: skip
        if words and kind.endswith(".delta"):
            expected.append((float(time), 0))
    assert chunks(streamed(PATH, events)) == expected
