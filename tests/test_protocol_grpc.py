"""Events of gRPC calls: recorded from a real Triton, and constructed."""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
import zlib
from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as kserve

from exporter.outcome_rules import ERROR_BYTES
from exporter.protocol.events import CLIENT, SERVER, ObserverSettings
from exporter.protocol.grpc import HELD_BYTES
from exporter.protocol.grpc_calls import LINGER_SECONDS, QUIET_SECONDS
from exporter.protocol.kserve_grpc import (
    NAME_BYTES,
    HeadCache,
    scan_request,
    scan_response,
)
from exporter.protocol.protobuf import MalformedMessageError
from tests.captures.record_wire_grpc import SCENARIOS
from tests.event_log import CAPTURES, Event, WireLog
from tests.grpc_connection import (
    DATA,
    END_STREAM,
    INFER,
    GrpcConnection,
    capture,
    captures,
    enveloped,
    frame,
    infer_request,
    observe_lines,
    stream_response,
)

SAW = json.loads((CAPTURES / "wire_grpc_saw.json").read_text())

# Scenario: model, version, id and what happened of every request, in the order of sending.
RECORDED = {
    "at_once": [f"streaming 1 {one} 4 chunks ok" for one in "abc"],
    "closed_by_error": ["streaming 1 a 2 chunks error INTERNAL"],
    "died": ["streaming 1 a 6 chunks client_disconnected"],
    "empty": ["streaming - a ok"],
    "engine": ["tensorrt_llm 1 a 5 chunks ok"],
    "errors": [
        "absent - x error in_band",
        "streaming - a error in_band",
        "streaming - b error in_band",
        "streaming 1 c 2 chunks error in_band",
        "streaming 1 d 4 chunks ok",
    ],
    # Responses without an id: the error belongs to the oldest request.
    "errors_without_ids": [
        "streaming 1 - 4 chunks error in_band",
        "streaming 1 - 2 chunks ok",
    ],
    "half_closed": ["streaming 1 a 8 chunks ok"],
    "in_turn": ["streaming 1 - 4 chunks ok"] * 3,
    "left": [f"streaming 1 {one} 5 chunks closing client_disconnected stopped" for one in "ab"],
    "left_at_once": ["streaming - a closing client_disconnected stopped"],
    "stream": ["streaming 1 a 4 chunks ok"],
    "unary": [f"plain 1 {one} ok" for one in ("one", "two", "zip")],
    "unary_failures": [
        "absent - - invalid NOT_FOUND",
        "failing - - error INTERNAL",
        "streaming - - invalid UNIMPLEMENTED",
        "slow - - timeout total",
    ],
    "whole": [f"plain 1 {one} 1 chunks ok" for one in ("a", "b", "-")],
    "zipped": ["streaming 1 a 4 chunks ok"],
}


def event_lines(log: WireLog) -> list[str]:
    """Return the final state of every request, one per line."""
    return [_outcome_of(log, number) for number in range(len(log.streams))]


def _outcome_of(log: WireLog, number: int) -> str:
    stream, events = log.streams[number], log.of(number)
    assert events[0][0] == "started"
    words = [stream.model or "-", stream.version or "-", stream.request_id or "-"]
    for kind, same in groupby(events[1:], key=lambda event: event[0]):
        run = list(same)
        words.append(f"{len(run)} chunks" if kind == "chunk" else _word(run))
    return " ".join(words)


def _word(run: list[Event]) -> str:
    (event,) = run
    if event[0] != "ended":
        return str(event[0])
    _, _, outcome, reason, stopped = event
    return " ".join(filter(None, (outcome, reason, "stopped" if stopped is not None else "")))


# Recorded


def test_all_scenarios_are_recorded_and_expected() -> None:
    assert sorted(SCENARIOS) == captures() == sorted(RECORDED) == sorted(SAW)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_scenario_has_the_expected_events(name: str) -> None:
    log = observe_lines(capture(name))
    assert event_lines(log) == RECORDED[name]
    assert all(kind != "skipped" for kind, *_ in log.events)
    assert [stream.streaming for stream in log.streams] == [
        not name.startswith("unary") for _ in log.streams
    ]


@pytest.mark.parametrize("name", sorted(set(RECORDED) - {"died"}))
def test_chunks_are_what_the_client_saw(name: str) -> None:
    log, saw = observe_lines(capture(name)), SAW[name]
    if not name.startswith("unary"):
        seen = Counter(request_id for request_id, kind, _ in saw if kind == "text")
        assert seen == Counter(
            log.streams[event[1]].request_id for event in log.events if event[0] == "chunk"
        )
    failed = [event for event in log.events if event[0] == "ended" and event[3] != "ok"]
    errors = [kind for _, kind, _ in saw if kind == "error"]
    # A call is cancelled once, whatever the number of its requests.
    assert len(errors) == (1 if name.startswith("left") else len(failed))


def test_times_are_those_of_the_last_byte_of_each_message() -> None:
    lines = capture("stream")
    log = observe_lines(lines)
    (question,) = [
        at for way, at, what in lines if way == CLIENT and b"max_tokens" in (what or b"")
    ]
    words = [at for way, at, what in lines if way == SERVER and b"word" in (what or b"")]
    assert log.events == [
        ("started", 0, question),
        *[("chunk", 0, at, 0) for at in words],
        ("ended", 0, words[-1], "ok", "", None),
    ]
    assert log.streams[0].arrived == question


# How requests end


def test_requests_of_a_call_are_distinguished_by_id() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a", final=True), infer_request("b", final=True))
    connection.respond(stream_response("b"), stream_response("a"), stream_response("b"))
    connection.respond(
        stream_response("a", None, final=True),
        stream_response("b"),
        stream_response("b", None, final=True),
    )
    assert event_lines(connection.log) == ["m 1 a 1 chunks ok", "m 1 b 3 chunks ok"]
    assert connection.observer.live == 0


def test_the_same_id_again_goes_to_the_oldest_first() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a", final=True), infer_request("a", final=True))
    connection.respond(
        stream_response("a"),
        stream_response("a", None, final=True),
        stream_response("a"),
        stream_response("a"),
    )
    connection.respond(stream_response("a", None, final=True))
    assert event_lines(connection.log) == ["m 1 a 1 chunks ok", "m 1 a 2 chunks ok"]


def test_request_without_final_flag_may_end_unseen() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a", final=True), infer_request("b"))
    assert [stream.silent_end for stream in connection.log.streams] == [False, True]


@pytest.mark.parametrize("final", [None, False])
def test_unseen_end_is_the_last_response_before_the_next_request(
    final: bool | None,
) -> None:
    connection = GrpcConnection()
    connection.call(infer_request())
    connection.respond(stream_response(final=final), stream_response(final=final))
    last = connection.now
    connection.send_request(infer_request())
    assert connection.log.of(0)[-1] == ("ended", last, "ok", "", None)
    connection.respond(stream_response(final=final))
    assert connection.observer.live == 1
    last = connection.now
    connection.send(CLIENT, frame(DATA, END_STREAM, 1))
    connection.status()
    assert connection.log.of(1)[-1] == ("ended", last, "ok", "", None)


def test_half_closed_request_ends_with_the_call() -> None:
    connection = GrpcConnection()
    connection.call(infer_request())
    connection.respond(stream_response())
    connection.send(CLIENT, frame(DATA, END_STREAM, 1))
    connection.respond(stream_response())
    connection.status()
    assert connection.log.of(0)[-1] == ("ended", connection.now, "ok", "", None)


def test_request_with_final_flag_waits_for_its_own_end() -> None:
    connection = GrpcConnection()
    connection.call(infer_request())
    connection.respond(stream_response(), stream_response(final=True))
    connection.send_request(infer_request())
    connection.respond(stream_response())
    connection.send_request(infer_request())
    connection.respond(stream_response(), stream_response(final=True), stream_response(final=True))
    assert event_lines(connection.log) == [
        "m 1 - 2 chunks ok",
        "m 1 - 3 chunks ok",
        "m 1 - 1 chunks ok",
    ]


def test_final_response_ends_only_its_request() -> None:
    connection = GrpcConnection()
    connection.call(infer_request(final=True))
    connection.respond(stream_response(), stream_response(text=None, final=True))
    connection.send_request(infer_request())
    connection.respond(stream_response())
    connection.send_request(infer_request())
    connection.respond(stream_response(), stream_response())
    assert event_lines(connection.log) == [
        "m 1 - 1 chunks ok",
        "m 1 - 1 chunks ok",
        "m 1 - 2 chunks",
    ]


def test_version_comes_with_the_first_response() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a", final=True), infer_request("a", final=True))
    connection.respond(
        stream_response("a"), stream_response("a", None, final=True), stream_response("a")
    )
    assert [stream.version for stream in connection.log.at_start] == ["", ""]
    assert [stream.version for stream in connection.log.streams] == ["1", "1"]


def test_text_that_parses_as_a_message_is_text() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.respond(stream_response("a"))
    inside = enveloped(stream_response("a", b""))
    outside = enveloped(stream_response("a", b"so they say: " + inside))
    start = outside.index(inside)
    for part in (outside[:start], outside[start : start + len(inside)]):
        connection.send(SERVER, frame(DATA, 0, 1, part))
    assert event_lines(connection.log) == ["m 1 a 2 chunks"]


def test_unseen_end_is_found_by_silence() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), infer_request("b"), infer_request("c", final=True))
    connection.respond(stream_response("a"), stream_response("c"))
    heard_last = connection.now - 1
    connection.observer.expire(heard_last + QUIET_SECONDS - 0.1)
    assert connection.observer.live == 3
    connection.observer.expire(heard_last + QUIET_SECONDS)
    assert connection.log.events[-1] == ("ended", 0, heard_last, "ok", "", None)
    connection.observer.expire(heard_last + 10 * QUIET_SECONDS)
    assert connection.observer.live == 2


def test_the_last_response_of_a_failed_request_ends_no_other() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a", final=True), infer_request("a", final=True))
    connection.respond(
        stream_response("a"), stream_response("a"), stream_response("a", None, error="boom")
    )
    assert connection.log.of(0)[-1][2:4] == ("error", "in_band")
    connection.respond(
        stream_response("a"), stream_response("a", None, final=True), stream_response("a")
    )
    assert connection.observer.live == 1
    connection.respond(stream_response("a", None, final=True))
    assert event_lines(connection.log) == ["m 1 a 2 chunks error in_band", "m 1 a 2 chunks ok"]


def test_error_with_an_unknown_id_belongs_to_the_oldest_request() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), infer_request("b"))
    connection.respond(kserve.ModelStreamInferResponse(error_message="boom").SerializeToString())
    assert event_lines(connection.log) == ["m - a error in_band", "m - b"]


def test_unmatched_responses_are_skipped_once_per_call() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.respond(
        stream_response("z"),
        stream_response("z"),
        stream_response("z", None, final=True),
        stream_response("a"),
    )
    assert connection.log.events[1:] == [("skipped", "unmatched"), ("chunk", 0, connection.now, 0)]


def test_response_without_text_is_no_chunk() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.respond(
        stream_response("a", b""),
        stream_response("a", b"x"),
        stream_response("a", b""),
        stream_response("a", b"y"),
    )
    connection.respond(stream_response("a", b"", name="other"), *[stream_response("a", None)] * 3)
    assert event_lines(connection.log) == ["m 1 a 3 chunks"]


def test_tensor_with_any_text_is_a_chunk() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    for texts, chunks in (([b"", b""], 0), ([b"", b"x"], 1), ([b"x", b""], 2), ([b"", b""], 2)):
        message = kserve.ModelStreamInferResponse.FromString(stream_response("a"))
        packed = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        message.infer_response.raw_output_contents[0] = packed
        connection.respond(message.SerializeToString())
        assert sum(event[0] == "chunk" for event in connection.log.events) == chunks


# Statuses

OUTCOMES = """
0 ok
1 cancelled CANCELLED
2 error UNKNOWN
3 invalid INVALID_ARGUMENT
4 timeout total
5 invalid NOT_FOUND
6 invalid ALREADY_EXISTS
7 invalid PERMISSION_DENIED
8 shed capacity
9 invalid FAILED_PRECONDITION
10 error ABORTED
11 invalid OUT_OF_RANGE
12 invalid UNIMPLEMENTED
13 error INTERNAL
14 error UNAVAILABLE
15 error DATA_LOSS
16 invalid UNAUTHENTICATED
17 error UNKNOWN
"""


@pytest.mark.parametrize("line", OUTCOMES.split("\n")[1:-1])
@pytest.mark.parametrize("path", [INFER, "/inference.GRPCInferenceService/ModelStreamInfer"])
def test_statuses(line: str, path: str) -> None:
    code, outcome = line.split(" ", 1)
    connection = GrpcConnection()
    connection.call(infer_request("a"), path=path)
    connection.status(int(code))
    assert event_lines(connection.log) == [f"m - a {outcome}"]


def test_unavailable_for_an_unknown_model_is_invalid() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), path=INFER)
    connection.status(14, "Request for unknown model: 'm' has no available versions")
    assert event_lines(connection.log) == ["m - a invalid UNAVAILABLE"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("404", "invalid 404"),
        ("408", "timeout 408"),
        ("429", "quota 429"),
        ("499", "cancelled 499"),
        ("502", "error 502"),
        ("503", "error 503"),
        ("504", "timeout 504"),
        ("odd", "truncated closed"),
    ],
)
@pytest.mark.parametrize("end", [True, False])
def test_http_statuses(status: str, outcome: str, end: bool) -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), path=INFER)
    connection.headers(SERVER, 1, {":status": status}, end=end)
    assert event_lines(connection.log) == [f"m - a {outcome}"]


def test_stream_without_a_status_is_truncated() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.respond(stream_response("a"))
    connection.send(SERVER, frame(DATA, END_STREAM, 1))
    assert event_lines(connection.log) == ["m 1 a 1 chunks truncated closed"]


def test_a_status_before_the_complete_request_ends_it() -> None:
    connection = GrpcConnection()
    connection.call(path=INFER)
    connection.send(CLIENT, frame(DATA, 0, 1, enveloped(infer_request("a", text=b"x" * 99))[:60]))
    assert connection.log.events == []
    connection.status(8)
    assert event_lines(connection.log) == ["m - a shed capacity"]
    assert connection.log.streams[0].prompt == 0


# Client disconnects


def test_responses_after_a_reset_belong_to_a_disconnect() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), infer_request("b"))
    connection.respond(stream_response("a"))
    connection.reset(CLIENT)
    left = connection.now
    connection.respond(
        stream_response("a"), stream_response("a"), stream_response("a", None, final=True)
    )
    assert connection.log.of(0)[2:] == [
        ("closing", left),
        ("chunk", left + 1, 0),
        ("chunk", left + 2, 0),
        ("ended", left + 3, "client_disconnected", "", left + 3),
    ]
    assert connection.observer.live == 1
    connection.reset(SERVER)
    assert connection.log.of(1)[-1] == (
        "ended",
        connection.now,
        "client_disconnected",
        "",
        connection.now,
    )
    assert connection.observer.live == 0


@pytest.mark.parametrize("more", [0, 2])
def test_after_a_reset_silence_is_the_end(more: int) -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.reset(CLIENT)
    connection.respond(*[stream_response("a")] * more)
    connection.observer.expire(connection.now + LINGER_SECONDS - 0.1)
    assert connection.observer.live == 1
    end = connection.now + LINGER_SECONDS
    connection.observer.expire(end)
    stopped = connection.now if more else None
    assert connection.log.events[-1] == ("ended", 0, end, "client_disconnected", "", stopped)
    assert connection.observer.live == 0


def test_a_reset_after_the_end_is_nothing() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.respond(stream_response("a", final=True))
    connection.reset(CLIENT)
    connection.status()
    assert event_lines(connection.log) == ["m 1 a 1 chunks ok"]


def test_half_closed_client_is_still_connected() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), infer_request("b"))
    connection.observer.half_closed(CLIENT, connection.now)
    connection.observer.half_closed(CLIENT, connection.now)
    connection.respond(stream_response("a"), stream_response("a", final=True))
    connection.observer.half_closed(SERVER, 99.0)
    assert event_lines(connection.log) == [
        "m 1 a closing 2 chunks ok",
        "m - b closing client_disconnected stopped",
    ]


def test_a_status_after_the_client_s_fin_is_a_disconnect() -> None:
    # As gRPC's C core does when a client is killed: UNAVAILABLE, "Socket closed".
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.respond(stream_response("a"))
    connection.observer.half_closed(CLIENT, connection.now)
    connection.status(14)
    assert event_lines(connection.log) == ["m 1 a 1 chunks closing client_disconnected stopped"]


@pytest.mark.parametrize("closed_before", [True, False])
def test_client_reset_is_an_immediate_disconnect(closed_before: bool) -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.respond(stream_response("a"))
    if closed_before:
        connection.observer.half_closed(CLIENT, connection.now)
    connection.respond(stream_response("a"))
    connection.observer.aborted(99.0)
    stopped = connection.now if closed_before else None
    assert connection.log.events[-1] == ("ended", 0, 99.0, "client_disconnected", "", stopped)


def test_server_goaway_ends_streams() -> None:
    for end, reason in (
        (lambda connection: connection.observer.half_closed(SERVER, 9.0), "closed"),
        (lambda connection: connection.observer.server_lost(9.0), "reset"),
        (lambda connection: connection.reset(SERVER), "reset"),
    ):
        connection = GrpcConnection()
        connection.call(infer_request("a"))
        end(connection)
        assert event_lines(connection.log) == [f"m - a error {reason}"]


def test_a_refused_stream_is_shed() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"))
    connection.reset(SERVER, 7)
    assert event_lines(connection.log) == ["m - a shed capacity"]


# Requests


def test_the_prompt_hash_excludes_the_id() -> None:
    prompts = {
        (text[:5], salt, request_id): _prompt(infer_request(request_id, text=text), salt)
        for text in (b"hello", b"x" * HELD_BYTES * 3, b"y" * HELD_BYTES * 3 + b"z")
        for salt in (b"", b"salt" * 40)
        for request_id in ("", "one")
    }
    assert 0 not in prompts.values()
    assert all(prompts[text, salt, ""] == value for (text, salt, _), value in prompts.items())
    assert len(set(prompts.values())) == 6
    same_head = _prompt(infer_request(text=b"x" * HELD_BYTES * 2 + b"y" * HELD_BYTES), b"")
    assert same_head not in prompts.values()


def _prompt(message: bytes, salt: bytes) -> int:
    connection = GrpcConnection(ObserverSettings(salt=salt))
    connection.call(message)
    return connection.log.streams[0].prompt


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_messages_are_parsed(encoding: str, compress: object) -> None:
    assert callable(compress)
    connection = GrpcConnection()
    connection.call(grpc_encoding=encoding)
    connection.send_request(compress(infer_request("a", text=b"hello " * 99)), compressed=1)
    connection.headers(SERVER, 1, {":status": "200", "grpc-encoding": encoding})
    connection.send(SERVER, frame(DATA, 0, 1, enveloped(compress(stream_response("a")), 1)))
    assert event_lines(connection.log) == ["m 1 a 1 chunks"]
    assert connection.log.streams[0].prompt == _prompt(infer_request("", text=b"hello " * 99), b"")


def test_decompression_bomb_is_parsed_up_to_the_limit() -> None:
    connection = GrpcConnection()
    bomb = gzip.compress(infer_request("a", text=b"\0" * 100_000_000), 1)
    connection.call(grpc_encoding="gzip")
    tracemalloc.start()
    connection.send_request(bomb, compressed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(bomb) + 1_000_000
    assert event_lines(connection.log) == ["m - a"]
    assert connection.log.streams[0].prompt == 0


@pytest.mark.parametrize(
    ("encoding", "body", "compressed", "reason"),
    [
        ("snappy", b"x", 1, "encoding"),
        ("identity", b"x", 1, "encoding"),
        ("gzip", b"no gzip", 1, "malformed"),
        ("gzip", b"", 2, "malformed"),
    ],
)
def test_unreadable_messages_skip_the_call(
    encoding: str, body: bytes, compressed: int, reason: str
) -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a"), grpc_encoding=encoding)
    connection.send_request(body, compressed=compressed)
    assert connection.log.events[1:] == [("skipped", reason), ("lost", 0)]
    assert connection.observer.live == 0
    connection.respond(stream_response("a"))
    assert not connection.observer.inactive


def test_large_message_is_not_buffered() -> None:
    connection = GrpcConnection()
    request = enveloped(infer_request("a", text=b"x" * 20_000_000))
    answer = enveloped(stream_response("a", b"y" * 20_000_000))
    connection.call()
    segments = [
        (way, frame(DATA, 0, 1, whole[at : at + 16384]))
        for way, whole in ((CLIENT, request), (SERVER, answer))
        for at in range(0, len(whole), 16384)
    ]
    tracemalloc.start()
    for way, segment in segments:
        connection.observer.feed(way, segment, 9.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert event_lines(connection.log) == ["m 1 a 1 chunks"]
    assert peak < 10 * HELD_BYTES


def test_no_text_is_kept() -> None:
    connection = GrpcConnection()
    connection.call(infer_request("a", text=b"a secret"))
    for index in range(9):
        connection.respond(stream_response("a", b"secret %d" % index))
    assert event_lines(connection.log) == ["m 1 a 9 chunks"]
    assert b"secret" not in b"".join(_reachable(connection.observer))


def _reachable(root: object) -> list[bytes]:
    seen, found, todo = {id(root)}, [], [root]
    while todo:
        one = todo.pop()
        if isinstance(one, bytes | bytearray):
            found.append(bytes(one))
        elif isinstance(one, str):
            found.append(one.encode())
        parts: list[object] = []
        if isinstance(one, dict):
            parts = [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset) or hasattr(one, "popleft"):
            parts = list(one)  # type: ignore[call-overload]
        else:
            names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            parts = [getattr(one, name) for name in names if hasattr(one, name)]
            parts += list(getattr(one, "__dict__", {}).values())
        for part in parts:
            if id(part) not in seen:
                seen.add(id(part))
                todo.append(part)
    return found


# The messages themselves, against the generated classes

TEXTS = st.text(max_size=20) | st.text(min_size=100, max_size=140)
PARAMETERS = st.dictionaries(
    st.sampled_from(["triton_final_response", "triton_enable_empty_final_response", "x", ""]),
    st.one_of(
        st.booleans().map(lambda value: {"bool_param": value}),
        st.integers(-(2**63), 2**63 - 1).map(lambda value: {"int64_param": value}),
        st.text(max_size=9).map(lambda value: {"string_param": value}),
        st.floats(allow_nan=False).map(lambda value: {"double_param": value}),
        st.just({}),
    ),
    max_size=3,
)
CONTENTS = st.one_of(
    st.none(),
    st.lists(st.binary(max_size=5), max_size=3).map(lambda value: {"bytes_contents": value}),
    st.lists(st.integers(0, 2**31), max_size=3).map(lambda value: {"int64_contents": value}),
)
TENSORS = st.lists(
    st.tuples(
        st.sampled_from(["text_output", "logits", ""]), st.lists(st.integers(0, 999)), CONTENTS
    ),
    max_size=3,
)
RAW = st.lists(
    st.one_of(
        st.binary(max_size=9),
        st.binary(max_size=300).map(lambda text: struct.pack("<I", len(text)) + text),
        st.just(b"\0\0\0\0"),
    ),
    max_size=4,
)


def _put_parameters(message: object, parameters: dict[str, dict[str, object]]) -> None:
    for key, value in parameters.items():
        message.parameters[key].SetInParent()  # type: ignore[attr-defined]
        for name, what in value.items():
            setattr(message.parameters[key], name, what)  # type: ignore[attr-defined]


def _cut(text: str, size: int = NAME_BYTES) -> str:
    return text.encode()[: min(size, NAME_BYTES)].decode(errors="replace")


@given(TEXTS, TEXTS, TEXTS, PARAMETERS, RAW)
def test_requests_are_parsed_as_by_protobuf(
    model: str,
    version: str,
    request_id: str,
    parameters: dict[str, dict[str, object]],
    raw: list[bytes],
) -> None:
    message = kserve.ModelInferRequest(
        model_name=model, model_version=version, id=request_id, raw_input_contents=raw
    )
    _put_parameters(message, parameters)
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1, 300])
    data = message.SerializeToString(deterministic=True)
    found = scan_request(data)
    assert (found.model, found.version, found.request_id) == (
        _cut(model),
        _cut(version),
        _cut(request_id),
    )
    final = message.parameters["triton_enable_empty_final_response"].bool_param
    assert found.wants_final == final
    start, stop = found.id_field
    message.id = ""
    del message.parameters["triton_enable_empty_final_response"]
    _put_parameters(message, parameters)
    assert data[:start] + data[stop:] == message.SerializeToString(deterministic=True)
    for cut in range(0, len(data), 7):
        head = 2 if len(model.encode()) < 128 else 3
        assert scan_request(data[:cut], whole=False).model == _cut(model, max(0, cut - head))


@st.composite
def responses(draw: st.DrawFn) -> kserve.ModelStreamInferResponse:
    message = kserve.ModelStreamInferResponse(
        error_message=draw(st.sampled_from(["", "", "", "boom"]))
    )
    inner = message.infer_response
    inner.SetInParent()
    inner.model_name, inner.id = draw(TEXTS), draw(TEXTS)
    inner.model_version = draw(st.sampled_from(["", "1"]))
    _put_parameters(inner, draw(PARAMETERS))
    for name, shape, contents in draw(TENSORS):
        output = inner.outputs.add(name=name, datatype="BYTES", shape=shape)
        if contents is not None:
            output.contents.SetInParent()
            for key, values in contents.items():
                getattr(output.contents, key).extend(values)
    inner.raw_output_contents.extend(draw(RAW))
    return message


def expected(inner: kserve.ModelInferResponse) -> tuple[object, ...]:
    names = [output.name for output in inner.outputs]
    bearing = bool(names)
    if "text_output" in names:
        index = names.index("text_output")
        output = inner.outputs[index]
        if output.HasField("contents"):
            bearing = any(output.contents.bytes_contents)
        elif index < len(inner.raw_output_contents):
            bearing = any(inner.raw_output_contents[index])
    final = None
    if "triton_final_response" in inner.parameters:
        value = inner.parameters["triton_final_response"]
        final = value.bool_param if value.WhichOneof("parameter_choice") == "bool_param" else None
    return _cut(inner.id), inner.model_version, final, len(names), bearing


@given(responses())
def test_responses_are_parsed_as_by_protobuf(message: kserve.ModelStreamInferResponse) -> None:
    for streamed, one in ((True, message), (False, message.infer_response)):
        found = scan_response(one.SerializeToString(), streamed=streamed)
        read = (found.request_id, found.version, found.final, found.outputs, found.has_text)
        assert read == expected(message.infer_response)
        assert found.error == (message.error_message.encode()[:ERROR_BYTES] if streamed else b"")


@given(st.lists(responses(), min_size=1, max_size=4), st.lists(RAW, max_size=6), st.data())
def test_parsing_by_prefix_gives_what_full_parsing_gives(
    learnt: list[kserve.ModelStreamInferResponse], contents: list[list[bytes]], data: st.DataObject
) -> None:
    cache = HeadCache()
    for message in learnt:
        whole = message.SerializeToString()
        cache.add(whole, scan_response(whole, streamed=True))
    for raw in contents:
        message = data.draw(st.sampled_from(learnt))
        del message.infer_response.raw_output_contents[:]
        message.infer_response.raw_output_contents.extend(raw)
        whole = message.SerializeToString()
        read = cache.lookup(b"before" + whole + b"after", 6, 6 + len(whole))
        assert read == cache.lookup(whole, 0, len(whole))
        for cut in range(len(whole)):
            assert cache.lookup(whole[:cut], 0, cut) is None
        if read is not None:
            found = scan_response(whole, streamed=True)
            assert read == (found.request_id, found.version, found.has_text)
            assert not found.final
            assert not found.error


def test_second_response_of_a_stream_is_parsed_by_prefix() -> None:
    cache, first, second = (
        HeadCache(),
        stream_response("a", b"one"),
        stream_response("a", b"another " * 20),
    )
    assert cache.lookup(first, 0, len(first)) is None
    cache.add(first, scan_response(first, streamed=True))
    assert cache.lookup(second, 0, len(second)) == ("a", "1", True)
    without = kserve.ModelStreamInferResponse.FromString(first)
    del without.infer_response.raw_output_contents[:]
    cut = without.SerializeToString()
    assert cache.lookup(cut, 0, len(cut)) is None
    empty = stream_response("a", b"")
    assert cache.lookup(empty, 0, len(empty)) == ("a", "1", False)
    for other in (
        stream_response("b"),
        stream_response("a", final=True),
        stream_response("a", None),
        second + b"\x08\1",
    ):
        assert cache.lookup(other, 0, len(other)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x02\x01x",  # a field without a number
        b"\x00\x01",
        b"\x0b",  # a group
        b"\x0a\x02x",  # more than there is
        b"\x0a",
        b"\x0a\x80",
        b"\x08" + b"\x80" * 10 + b"\1",  # a number of 71 bits
        b"\x0d\1\1\1",
        b"\x22\x01\x0a",  # a parameter that is cut off, before the end and at it
        b"\x22\x01\x0a\x1a\x00",
        b"\x22\x03\x12\x01\x08\x1a\x00",
        b"\x22\x04\x12\x02\x08\x80\x01\x00",
    ],
)
def test_invalid_messages_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        scan_request(data)
    with pytest.raises(MalformedMessageError):
        scan_response(data, streamed=False)
    inner = b"\x12" + bytes([len(data)]) + data
    with pytest.raises(MalformedMessageError):
        scan_response(inner, streamed=True)


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    cache = HeadCache()
    for whole in (True, False):
        for streamed in (True, False):
            try:
                cache.add(data, scan_response(data, streamed=streamed, whole=whole))
                scan_request(data, whole=whole)
            except MalformedMessageError:
                pass
    cache.lookup(data, 0, len(data))
