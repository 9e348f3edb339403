"""Join spans of exports to timed requests: recorded, malformed and in any order."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from exporter.sources.probe import ID
from exporter.sources.traces import otlp_json, otlp_protobuf, spans
from exporter.sources.traces.span_join import SpanJoiner, SpanJoinLimits, TracedRequest
from exporter.sources.traces.spans import ExportTooLargeError, MalformedExportError, Span
from exporter.sources.traces.timing import timing
from tests.traced_triton import RECORDED_PROBE

CAPTURES = Path(__file__).parent / "captures"
SCENARIOS = sorted(path.stem.removeprefix("traces_") for path in CAPTURES.glob("traces_*.jsonl"))
MS = 1_000_000
patient = settings(deadline=None)
START = 1_795_000_000_000 * MS


def bodies(scenario: str) -> list[bytes]:
    recorded = (CAPTURES / f"traces_{scenario}.jsonl").read_bytes()
    return recorded.replace(b'"%b"' % RECORDED_PROBE.encode(), b'"%b"' % ID.encode()).splitlines()


def spans_of(scenario: str) -> list[Span]:
    return [span for body in bodies(scenario) for span in otlp_json.decode(body).spans]


def joined(spans: Iterable[Span], joiner: SpanJoiner | None = None) -> list[TracedRequest]:
    joiner = joiner or SpanJoiner()
    return [request for span in spans if (request := joiner.add(span, 0.0))]


def as_protobuf(body: bytes) -> bytes:
    """Return a JSON export in protobuf; protobuf's own JSON has its ids in base64."""
    document = json.loads(body)
    for span in spans_in(document):
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in span:
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return bytes(json_format.ParseDict(document, ExportTraceServiceRequest()).SerializeToString())


def spans_in(document: Any) -> list[dict[str, Any]]:
    return [
        span
        for resource in document["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def root(
    *events: tuple[str, float],
    number: int = 1,
    end: float = 1000.0,
    start: float = 0.0,
    dropped_events: int = 0,
) -> Span:
    """Return a root span; times are in milliseconds after START."""
    return Span(
        trace=number.to_bytes(16, "big"),
        id=number.to_bytes(8, "big"),
        parent=b"",
        start=START + round(start * MS),
        end=START + round(end * MS),
        events=tuple((name, START + round(at * MS)) for name, at in events),
        dropped_events=dropped_events,
    )


def model(number: int = 1, name: str = "llama") -> Span:
    own = (number + 1_000_000).to_bytes(8, "big")
    trace, parent = number.to_bytes(16, "big"), number.to_bytes(8, "big")
    return Span(trace, own, parent, START, START + MS, name, "1")


DAY_MILLISECONDS = 86_400_000.0


def http(*responses: float, sent: int | None = None) -> list[tuple[str, float]]:
    """Return the events of an HTTP stream; times of sending are zero, which reads as boot time."""
    sends = [("HTTP_SEND_END", -9e9)] * (len(responses) if sent is None else sent)
    completes = [("INFER_RESPONSE_COMPLETE", at) for at in responses]
    return [("HTTP_RECV_START", -1.0), *completes, *sends]


def grpc(*responses: float) -> list[tuple[str, float]]:
    sends = [
        event
        for at in responses
        for event in (("GRPC_SEND_START", at), ("GRPC_SEND_END", at + 0.5))
    ]
    first = [("INFER_RESPONSE_COMPLETE", at) for at in responses[:1]]
    return [("GRPC_WAITREAD_START", -5e6), ("GRPC_WAITREAD_END", -1.0), *first, *sends]


# What a real Triton exported


@pytest.mark.parametrize(
    ("scenario", "name", "gaps", "streams"),
    [
        ("whole", "plain", [0], False),
        ("http", "streaming", [3], True),
        ("http_one_word", "streaming", [0], True),
        ("http_mid_error", "streaming", [2], True),
        ("http_first_error", "streaming", [0], True),
        ("http_context", "streaming", [1], True),
        ("ensemble", "chained", [2], True),
        ("called", "calling", [2], True),
        ("grpc", "streaming", [3, 3], True),
        ("grpc_mid_error", "streaming", [2], True),
        # The empty final response looks like any other: method notes say so.
        ("grpc_final", "streaming", [4], True),
    ],
)
def test_every_response_of_a_recorded_request_is_timed(
    scenario: str, name: str, gaps: list[int], *, streams: bool
) -> None:
    joiner = SpanJoiner()
    requests = joined(spans_of(scenario), joiner)
    assert [(one.model, one.version) for one in requests] == [(name, "1")] * len(gaps)
    assert [len(one.timing.gaps) for one in requests] == gaps
    joiner.expire(1e9)
    assert joiner.lost == 0  # and no step of an ensemble waits for a request of its own
    for one in requests:
        assert one.timing.streams == streams
        assert one.timing.first is not None
        assert one.timing.whole is not None
        # A word every 20 ms, and the end soon after the last; spans stay open for longer.
        assert all(0.015 < gap < 0.08 for gap in one.timing.gaps[:3])
        assert 0 <= one.timing.whole - one.timing.first - sum(one.timing.gaps) < 0.01


def test_a_stream_without_a_word_has_no_first_response() -> None:
    (request,) = joined(spans_of("http_no_word"))
    assert (request.timing.first, request.timing.gaps) == (None, ())
    assert request.timing.whole is not None


@pytest.mark.parametrize("scenario", ["http_left", "grpc_left"])
def test_disconnected_stream_has_the_times_of_a_complete_one(scenario: str) -> None:
    (request,) = joined(spans_of(scenario))
    assert 1 <= len(request.timing.gaps) <= 4


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_encodings_give_the_same_spans(scenario: str) -> None:
    for body in bodies(scenario):
        assert otlp_protobuf.decode(as_protobuf(body)) == otlp_json.decode(body)


@pytest.mark.parametrize("scenario", ["http_probe", "ensemble_probe"])
@pytest.mark.parametrize("order", [1, -1])
def test_probes_are_left_out_and_not_counted_as_lost(scenario: str, order: int) -> None:
    spans = spans_of(scenario)[::order]
    assert any(span.probe for span in spans)
    joiner = SpanJoiner()
    assert joined(spans, joiner) == joined(spans, joiner) == []
    joiner.add(model(number=7), 1e6)  # long after: what had waited would be given up
    assert joiner.lost == 0


def test_the_same_request_under_another_id_is_reported() -> None:
    for name in ("http_probe", "ensemble_probe"):
        others = [replace(span, probe=False) for span in spans_of(name)]
        assert len(joined(others)) == 1


# Times


def test_http_counts_from_the_first_byte_and_leaves_out_the_empty_final() -> None:
    found = timing(root(*http(50, 70, 95, 95.1, sent=3), end=96))
    assert found is not None
    assert (found.first, found.gaps) == (0.051, (0.02, 0.025))
    assert found.whole == 0.0961


def test_http_keeps_the_last_response_if_it_has_the_final_flag() -> None:
    found = timing(root(*http(50, 70, 95), end=96))
    assert found is not None
    assert found.gaps == (0.02, 0.025)


def test_grpc_ends_with_its_last_response_and_not_with_its_span() -> None:
    found = timing(root(*grpc(50, 70, 95), end=60_000))
    assert found is not None
    assert (found.first, found.gaps, found.whole) == (0.051, (0.02, 0.025), 0.0965)


def test_a_stream_of_which_nothing_was_sent_has_no_times() -> None:
    found = timing(root(*grpc()))
    assert found is not None
    assert (found.first, found.gaps, found.whole) == (None, (), None)


@pytest.mark.parametrize("received", [-120_000.0, -9e9, 5.0])
def test_invalid_arrival_falls_back_to_the_start_of_the_span(received: float) -> None:
    found = timing(root(("HTTP_RECV_START", received), *http(50)[1:]))
    assert found is not None
    assert found.first == 0.05


def test_events_may_come_in_any_order() -> None:
    events = http(50, 70, 95, sent=3)
    assert timing(root(*reversed(events))) == timing(root(*events))


@pytest.mark.parametrize(
    "span",
    [
        root(*http(50, 1001)),  # a response after the end
        root(*http(50, -3)),  # a clock that was set back
        root(*grpc(50, -9e9)),  # a zero
        root(*http(50), start=10, end=5),
        root(*http(50, 8 * DAY_MILLISECONDS), end=9 * DAY_MILLISECONDS),  # two clocks
        root(*grpc(50, 8 * DAY_MILLISECONDS), end=9 * DAY_MILLISECONDS),
        root(("INFER_RESPONSE_COMPLETE", 50.0)),  # no front end
        root(),
    ],
)
def test_contradicting_times_are_counted_as_lost(span: Span) -> None:
    joiner = SpanJoiner()
    assert joined([model(), span], joiner) == []
    assert joiner.lost == 1


@pytest.mark.parametrize("events", [http(50, 70), grpc(50, 70)])
def test_a_span_that_was_cut_off_has_no_gaps_and_counts_as_lost(
    events: list[tuple[str, float]],
) -> None:
    joiner = SpanJoiner()
    (request,) = joined([model(), root(*events, dropped_events=3)], joiner)
    assert (request.timing.first, request.timing.gaps) == (0.051, ())
    assert request.timing.whole is None
    assert joiner.lost == 1


@given(
    st.sampled_from([http, grpc]),
    st.lists(st.floats(0, 900), max_size=8),
    st.randoms(use_true_random=False),
)
def test_times_add_up(front_end: Any, at: list[float], shuffled: random.Random) -> None:
    events = front_end(*at)
    shuffled.shuffle(events)
    found = timing(root(*events))
    assert found is not None
    assert all(gap >= 0 for gap in found.gaps)
    assert len(found.gaps) == max(0, len(at) - 1)
    if found.first is not None and found.whole is not None:
        assert found.first >= 0
        assert found.first + sum(found.gaps) <= found.whole + 1e-9


# Joining


@given(
    st.permutations([0, 1, 2, 3, 4, 5]),
    st.lists(st.integers(0, 5), max_size=6),
)
def test_each_request_is_reported_once_in_any_span_order(
    order: Sequence[int], again: Sequence[int]
) -> None:
    parts = [
        span
        for n in (1, 2, 3)
        for span in (root(*http(10 * n, 20 * n), number=n), model(n, f"m{n}"))
    ]
    joiner = SpanJoiner()
    requests = joined([parts[i] for i in (*order, *again)], joiner)
    assert sorted(one.model for one in requests) == ["m1", "m2", "m3"]
    assert {one.model: one.timing.gaps for one in requests} == {
        f"m{n}": (0.01 * n,) for n in (1, 2, 3)
    }
    assert joiner.lost == 0


def test_an_export_that_is_sent_again_is_not_counted_again() -> None:
    joiner = SpanJoiner()
    spans = spans_of("grpc")
    assert len(joined(spans, joiner)) == 2
    assert joined(spans, joiner) == []
    assert joiner.lost == 0


def test_model_span_waits_for_its_own_request() -> None:
    assert joined([model(1), root(*http(10), number=2)]) == []


def test_missing_halves_expire_and_are_counted() -> None:
    joiner = SpanJoiner(SpanJoinLimits(model_wait=100, root_wait=10))
    joiner.add(model(1), 0.0)
    joiner.add(root(*http(10), number=2), 0.0)
    joiner.expire(10.0)
    assert joiner.lost == 0
    joiner.expire(10.1)
    assert joiner.lost == 1
    joiner.expire(100.1)
    assert joiner.lost == 2
    # Late halves are neither reported nor counted again.
    assert joiner.add(root(*http(10), number=1), 101.0) is None
    assert joiner.add(model(2), 101.0) is None
    joiner.expire(1000.0)
    assert joiner.lost == 2


@pytest.mark.parametrize(
    ("limits", "models", "roots"),
    [
        (SpanJoinLimits(), 100, 100),
        (SpanJoinLimits(models=10), 10, 100),
        (SpanJoinLimits(roots=10), 100, 10),
        (SpanJoinLimits(gaps=10), 100, 10),
    ],
)
def test_joiner_keeps_only_the_newest_halves(
    limits: SpanJoinLimits, models: int, roots: int
) -> None:
    joiner = SpanJoiner(limits)
    for number in range(1, 101):
        joiner.add(model(number), 0.0)
        joiner.add(root(*http(10, 20), number=1000 + number), 0.0)
    assert joiner.lost == 200 - models - roots
    held = [n for n in range(1, 101) if joiner.add(model(1000 + n), 0.0)]
    assert held == list(range(101 - roots, 101))
    held = [n for n in range(1, 101) if joiner.add(root(*http(10), number=n), 0.0)]
    assert held == list(range(101 - models, 101))


def test_joiner_remembers_only_the_newest_requests() -> None:
    joiner = SpanJoiner(SpanJoinLimits(remembered=10))

    def is_counted(number: int) -> bool:
        joiner.add(model(number), 0.0)
        return joiner.add(root(*http(10), number=number), 0.0) is not None

    assert all(map(is_counted, range(1, 101)))
    assert not any(map(is_counted, range(91, 101)))
    assert is_counted(90)


# Exports that are wrong


def changed(scenario: str, **fields: object) -> bytes:
    document = json.loads(bodies(scenario)[0])
    spans_in(document)[0].update(fields)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"traceId": "ab"},
        {"traceId": 7},
        {"traceId": "0" * 32},
        {"traceId": "g" * 32},
        {"traceId": " " + "a" * 31},
        {"spanId": "abcd"},
        {"spanId": "0" * 16},
        {"parentSpanId": "ab"},
        {"parentSpanId": None},
        {"startTimeUnixNano": "0"},
        {"startTimeUnixNano": "-5"},
        {"startTimeUnixNano": 1.5},
        {"startTimeUnixNano": True},
        {"endTimeUnixNano": "9" * 30},
        {"endTimeUnixNano": str(2**64)},
        {"endTimeUnixNano": "١٢"},
        {"name": 1},
        {"name": "InferRequest", "events": {}},
        {"name": "InferRequest", "events": [7]},
        {"name": "InferRequest", "events": [{"name": "a"}]},
        {"name": "InferRequest", "events": [{"name": 1, "timeUnixNano": "1"}]},
        {"name": "InferRequest", "events": [{"name": "a", "timeUnixNano": {}}]},
        {"attributes": [{"key": "triton.model_name"}]},
        {"attributes": [{"key": "triton.model_name", "value": {"stringValue": 3}}]},
        {"attributes": [{"key": "triton.model_name", "value": {"stringValue": "a" * 300}}]},
        {"attributes": [{"key": "triton.model_name", "value": {"boolValue": True}}]},
        {"attributes": [[]]},
    ],
)
def test_a_malformed_span_is_rejected_and_the_others_are_not(fields: dict[str, object]) -> None:
    export = otlp_json.decode(changed("http", **fields))
    assert (export.rejected, len(export.spans)) == (1, 2)


@pytest.mark.parametrize(
    "fields", [{"traceId": "ab"}, {"spanId": "00"}, {"startTimeUnixNano": "0"}]
)
def test_a_malformed_span_is_rejected_in_protobuf_too(fields: dict[str, object]) -> None:
    export = otlp_protobuf.decode(as_protobuf(changed("http", **fields)))
    assert (export.rejected, len(export.spans)) == (1, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"NaN",
        b'{"resourceSpans": NaN}',
        b'{"resourceSpans": 1}',
        b'{"resourceSpans": [1]}',
        b'{"resourceSpans": [{"scopeSpans": {}}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": "all"}]}]}',
        b'{"timeUnixNano": "1"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        bodies("http")[0][:-1],
    ],
)
def test_invalid_json_export_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedExportError):
        otlp_json.decode(body)


@pytest.mark.parametrize("body", [b"\xff", b"hello", as_protobuf(bodies("http")[0])[:-1]])
def test_invalid_protobuf_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedExportError):
        otlp_protobuf.decode(body)


def message(field: int, *bodies: bytes) -> bytes:
    """Return length-delimited fields of one number."""
    found = b""
    for body in bodies:
        size, length = len(body), b""
        while size > 0x7F:
            length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
        found += bytes([field << 3 | 2]) + length + bytes([size]) + body
    return found


def in_spans(spans: bytes) -> bytes:
    return message(1, message(2, spans))


MANY = spans.MAX_PARTS + 1
ARRAY = message(9, message(2, message(5, b"\x0a\x00" * MANY)))


@pytest.mark.parametrize(
    "body",
    [
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b"{}," * MANY + b"{}]}]}]}",
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b"1," * MANY + b"1]}]}]}",
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"x":[' + b"[]," * MANY + b"[]]}]}]}]}",
    ],
)
def test_a_small_export_of_many_parts_is_too_large(body: bytes) -> None:
    with pytest.raises(ExportTooLargeError):
        otlp_json.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x00" * MANY,
        in_spans(b"\x12\x00" * MANY),
        in_spans(message(2, b"\x5a\x00" * MANY)),
        in_spans(message(2, b"\x4a\x00" * MANY)),
        in_spans(message(2, ARRAY)),
    ],
    ids=["resources", "spans", "events", "attributes", "values"],
)
def test_a_small_protobuf_export_of_many_parts_is_too_large(body: bytes) -> None:
    with pytest.raises(ExportTooLargeError):
        otlp_protobuf.decode(body)


def test_exports_within_the_limit_are_accepted() -> None:
    half = spans.MAX_PARTS // 2
    assert otlp_json.decode(b'{"resourceSpans":[' + b"{}," * half + b"{}]}").rejected == 0
    assert otlp_protobuf.decode(b"\x0a\x00" * half).rejected == 0


def test_an_empty_export_is_none() -> None:
    assert otlp_json.decode(b"{}") == otlp_protobuf.decode(b"")


def test_only_names_and_times_are_kept() -> None:
    secret = {"key": "gen_ai.prompt", "value": {"stringValue": "SECRET"}}
    event = {"name": "SECRET", "timeUnixNano": "5", "attributes": [secret]}
    request_id = {"key": "triton.request_id", "value": {"stringValue": "SECRET"}}
    document = json.loads(bodies("http")[0])
    for span in spans_in(document):
        span["attributes"] = [*span.get("attributes", []), secret, request_id]
        span["events"] = [*span["events"], event]
    body = json.dumps(document).encode()
    for export in (otlp_json.decode(body), otlp_protobuf.decode(as_protobuf(body))):
        assert len(export.spans) == 2
        assert "SECRET" not in repr(export)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a document where something stands."""
    inside = list(value.items() if isinstance(value, dict) else enumerate(value))
    return [(value, key) for key, _ in inside] + [
        place for _, one in inside if isinstance(one, dict | list) for place in places(one)
    ]


@patient
@given(st.data())
def test_any_value_is_accepted_or_rejected(data: st.DataObject) -> None:
    document = copy.deepcopy(json.loads(bodies("http")[0]))
    found = places(document)
    for index in data.draw(st.sets(st.integers(0, len(found) - 1), min_size=1, max_size=3)):
        container, key = found[index]
        container[key] = data.draw(JSON)
    try:
        export = otlp_json.decode(json.dumps(document).encode())
    except MalformedExportError:
        return
    joined(export.spans)


@patient
@given(st.data())
def test_any_damaged_protobuf_is_accepted_or_refused(data: st.DataObject) -> None:
    body = bytearray(as_protobuf(bodies("http")[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        export = otlp_protobuf.decode(bytes(body))
    except MalformedExportError:
        return
    joined(export.spans)


@patient
@given(st.binary(max_size=200))
def test_any_bytes_are_accepted_or_refused(body: bytes) -> None:
    for decode in (otlp_json.decode, otlp_protobuf.decode):
        try:
            decode(body)
        except MalformedExportError:
            continue
