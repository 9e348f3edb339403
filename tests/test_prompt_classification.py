"""Requests by prompt class: one class for each request, in all of its series, from the start."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.objectives.objective_status import evaluate
from exporter.objectives.unclassified_models import UNCLASSIFIED, with_unclassified
from exporter.objectives.unseen_models import selected_models
from exporter.protocol.events import Stages, Stream
from exporter.recording.goodput import GoodputObjective
from exporter.recording.model_registry import CLASS_SERIES
from exporter.recording.prompt_classifier import BYTES_PER_TOKEN, PromptLengths
from exporter.recording.stream_recorder import StreamRecorder
from exporter.samples import Distribution, Measurement, Snapshot
from exporter.store.increase import summed
from exporter.store.store import Store
from slos.model import Objective
from slos.outcomes import OUTCOMES
from slos.prompt_classes import PromptClasses
from slos.signals import PROMPT_CLASS, SIGNALS
from tests.service_example import service
from tests.test_stream_recorder import (
    chunks,
    ended,
    measurements,
    methods,
    play,
    spread,
    stream,
    text,
    value,
)

BOUNDS = (512, 4096)
LABELS = PromptClasses.of(BOUNDS).labels
THRESHOLDS = {"ttft": (0.5,), "queue": (0.1,), "e2e": (5.0,)}
GOODPUT = GoodputObjective("chat/good", "", {"ttft": 0.5})


def recorder() -> StreamRecorder:
    return StreamRecorder(THRESHOLDS, [GOODPUT], expected=["llama"], prompt_classes=BOUNDS)


def classes(found: StreamRecorder) -> Iterator[tuple[str, str, float]]:
    """Yield signal, prompt class and count of every series that is not 0 and has a class."""
    for one in measurements(found):
        for labels, number in one.samples.items():
            count = number.count if isinstance(number, Distribution) else number
            if count and PROMPT_CLASS in dict(labels):
                yield one.signal, dict(labels)[PROMPT_CLASS], count


def test_without_prompt_classes_nothing_changes() -> None:
    plain = StreamRecorder(THRESHOLDS, [GOODPUT], expected=["llama"])
    one = stream(prompt_tokens=600, prompt_bytes=2400, stages=Stages(0.05, 0.1, 0.2))
    play(plain, one, *chunks(100.2, 100.3), ended(100.4))
    found = text(plain, buckets=True)
    assert PROMPT_CLASS not in found
    assert not {one.signal for one in measurements(plain)} & {
        *("prompt_class", "input_length", "output_length")
    }


def test_every_class_is_served_at_zero_from_the_start() -> None:
    found = recorder()
    begun = {
        (one.signal, dict(labels).get(PROMPT_CLASS, ""))
        for one in measurements(found)
        for labels in one.samples
    }
    signals = {"ttft", "requests", "goodput", "prompt_class", "ttft_slo_events"}
    assert {(signal, label) for signal in signals for label in LABELS} <= begun
    assert not {(signal, "") for signal in signals} & begun
    assert {signal for signal, label in begun if label} == signals
    assert not list(classes(found))
    [requests] = [one for one in measurements(found) if one.signal == "requests"]
    assert len(requests.samples) == len(OUTCOMES) * len(LABELS)


def test_a_request_is_in_one_class_in_all_of_its_series() -> None:
    found = recorder()
    one = stream(prompt_tokens=600, stages=Stages(0.05, 0.1, 0.2))
    play(found, one, *chunks(100.2, 100.3), ended(100.4))
    assert dict.fromkeys(label for _, label, _ in classes(found)) == {"513-4096": None}
    assert {signal: count for signal, _, count in classes(found)} == {
        **dict.fromkeys(("ttft", "queue", "prefill", "requests", "goodput", "prompt_class"), 1),
        **dict.fromkeys(("ttft_slo_events", "queue_slo_events"), 1),
    }
    assert spread(found, "input_length") == (1, 600)
    assert spread(found, "output_length") == (1, 2)
    assert value(found, "e2e_slo_events", result="good") == 1


def test_a_count_of_the_server_precedes_the_estimate_if_it_comes_in_time() -> None:
    early, late = recorder(), recorder()
    one = stream(prompt_bytes=40, input_tokens=5000)
    play(early, one, *chunks(100.2), ended(100.4))
    assert {label for _, label, _ in classes(early)} == {"over-4096"}
    assert methods(early, "prompt_class") == {"wire_prompt_tokens"}
    assert value(early, "prompt_class", basis="count") == 1
    other = stream(prompt_bytes=40)
    play(late, other, *chunks(100.2))
    other.input_tokens = 5000  # with the end of the stream
    late.ended(other, 100.4, "ok", "stop", None)
    assert {label for _, label, _ in classes(late)} == {"0-512"}
    assert methods(late, "prompt_class") == {"wire_prompt_bytes"}
    assert value(late, "prompt_class", basis="estimate") == 1
    assert spread(late, "input_length") == (1, 5000)


def test_a_request_of_unknown_length_has_a_class_of_its_own() -> None:
    found = recorder()
    play(found, stream(), *chunks(100.2), ended(100.4))
    assert {label for _, label, _ in classes(found)} == {"unknown"}
    assert spread(found, "input_length") == (0, 0)


def test_a_request_that_is_late_keeps_the_class_of_that_moment() -> None:
    found = recorder()
    one = stream(prompt_bytes=40)
    found.started(one, 100.0)
    for _ in found.evaluate_active(101.0):
        pass
    assert value(found, "ttft_slo_events", prompt_class="0-512", result="bad") == 1
    assert value(found, "goodput", prompt_class="0-512", clause="ttft") == 1
    one.input_tokens = 5000
    found.chunk(one, 102.0, 0)
    found.ended(one, 103.0, "ok", "stop", None)
    assert {label for _, label, _ in classes(found)} == {"0-512"}
    assert value(found, "prompt_class") == value(found, "requests") == 1


def test_chunks_after_a_half_close_are_recorded_in_the_class() -> None:
    found = recorder()
    one = stream(prompt_tokens=600)
    found.started(one, 100.0)
    found.closing(one, 100.1)
    found.chunk(one, 100.2, 0)
    found.ended(one, 100.4, "ok", "stop", None)
    assert [(label, count) for signal, label, count in classes(found) if signal == "ttft"] == [
        ("513-4096", 1)
    ]
    disconnected = recorder()
    other = stream(prompt_tokens=600)
    disconnected.started(other, 100.0)
    disconnected.closing(other, 100.1)
    disconnected.chunk(other, 100.2, 0)
    disconnected.ended(other, 100.4, "client_disconnected", "", 100.2)
    assert "ttft" not in {signal for signal, _, _ in classes(disconnected)}


LENGTHS = st.one_of(st.none(), st.integers(0, 10_000))


@given(st.lists(st.tuples(LENGTHS, LENGTHS, LENGTHS, st.booleans()), max_size=20))
def test_classes_add_up_to_all_requests(
    requests: list[tuple[int | None, int | None, int | None, bool]],
) -> None:
    found = recorder()
    for counted, tokenised, size, ok in requests:
        one = stream(input_tokens=counted, prompt_tokens=tokenised, prompt_bytes=size)
        play(found, one, *chunks(100.2), ended(100.4, "ok" if ok else "error"))
    for signal in ("requests", "prompt_class", "goodput", "ttft_slo_events"):
        assert value(found, signal) == len(requests)
    assert spread(found, "ttft")[0] == len(requests)
    by_class = [
        {label: count for signal, label, count in classes(found) if signal == name}
        for name in ("ttft", "prompt_class")
    ]
    assert by_class[0].keys() == by_class[1].keys()


# Estimates


def test_an_estimate_begins_with_the_usual_ratio() -> None:
    assert PromptLengths().tokens(sized(400)) == (400 / BYTES_PER_TOKEN, False)
    assert PromptLengths().tokens(sized(None)) == (None, False)


def sized(size: int | None, tokens: int | None = None) -> Stream:
    return stream(prompt_bytes=size, input_tokens=tokens)


@pytest.mark.parametrize("ratio", [1.5, 3.0, 4.0, 8.0])
def test_an_estimate_approaches_the_ratio_of_the_counted_requests(ratio: float) -> None:
    lengths = PromptLengths()
    for size in range(1000, 40_000, 1000):
        lengths.learn(sized(size, round(size / ratio)))
    tokens, is_count = lengths.tokens(sized(20_000))
    assert not is_count
    assert tokens == pytest.approx(20_000 / ratio, rel=0.02)


def test_a_prompt_that_is_not_text_is_no_evidence() -> None:
    lengths = PromptLengths()
    lengths.learn(sized(60, 3000))  # an image
    lengths.learn(sized(1_000_000, 10))
    lengths.learn(sized(0, 10))
    lengths.learn(sized(100, 0))
    assert lengths.tokens(sized(400)) == (100, False)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), max_size=50))
def test_an_estimate_stays_between_the_ratios_of_the_evidence(
    evidence: list[tuple[int, int]],
) -> None:
    lengths = PromptLengths()
    for size, tokens in evidence:
        lengths.learn(sized(size, tokens))
    tokens, _ = lengths.tokens(sized(32_000))
    assert tokens is not None
    assert 1_000 <= tokens <= 64_000


# What others make of it


def snapshot(found: StreamRecorder) -> Snapshot:
    return Snapshot("taps", tuple(measurements(found)))


def test_the_sum_of_the_classes_is_what_the_sidecar_shows() -> None:
    found = recorder()
    play(found, stream(prompt_tokens=10), *chunks(100.2), ended(100.4))
    play(found, stream(prompt_tokens=600), *chunks(101.0), ended(101.4))
    store = Store(10)
    store.update(Snapshot("taps"), 0, 0)
    store.update(snapshot(found), 1, 0)
    states = {one.signal: one for one in store.view(1).signals}
    total = summed(states["ttft"].samples)
    assert isinstance(total, Distribution)
    assert (total.count, round(total.sum, 6)) == (2, 1.2)
    assert (states["prompt_class"].quality, states["ttft"].quality) == ("exact", "exact")


CLASSED = service(
    Objective("short", "ttft", Decimal("0.95"), Decimal("0.5"), selector={PROMPT_CLASS: "0-512"}),
    Objective("long", "ttft", Decimal("0.95"), Decimal("0.5"), selector={PROMPT_CLASS: "513-4096"}),
    Objective("all", "ttft", Decimal("0.95"), Decimal("0.5")),
    selector={"model": "llama"},
    prompt_classes=BOUNDS,
)


def test_an_objective_is_about_the_requests_of_its_class() -> None:
    found = recorder()
    store = Store(10)
    store.update(snapshot(found), 0, 0)
    play(found, stream(prompt_tokens=10), *chunks(100.2), ended(100.4))
    play(found, stream(prompt_tokens=600), *chunks(101.0), ended(101.4))
    store.update(snapshot(found), 5, 0)
    view = store.summarized_view(5)()
    events = {one.objective: (one.good_events, one.bad_events) for one in evaluate([CLASSED], view)}
    assert events == {"short": (1, 0), "long": (0, 1), "all": (1, 1)}


def test_an_estimated_class_makes_an_objective_an_estimate() -> None:
    found = recorder()
    play(found, stream(prompt_bytes=40), *chunks(100.2), ended(100.4))
    store = Store(10)
    store.update(snapshot(found), 0, 0)
    quality = {one.objective: one.quality for one in evaluate([CLASSED], store.view(0))}
    assert quality == {"short": "estimate", "long": "estimate", "all": "exact"}


def test_an_engines_histogram_has_no_prompt_class() -> None:
    whole = Distribution((0.5, float("inf")), (1.0, 1.0), 0.1)
    ttft = Measurement("ttft", "llama", "1", "vllm_histogram", {(): whole})
    requests = Measurement("requests", "llama", "1", "vllm_finished", {(("outcome", "ok"),): 1.0})
    store = Store(10)
    store.update(with_unclassified(Snapshot("vllm", (ttft, requests))), 0, 0)
    view = store.view(0)
    states = {one.signal: one for one in view.signals}
    assert states["prompt_class"].quality == "unavailable"
    assert states["prompt_class"].reason == UNCLASSIFIED.reason
    found = {one.objective: one for one in evaluate([CLASSED], view)}
    assert found["all"].quality != "unavailable"
    assert found["short"].quality == "unavailable"
    assert UNCLASSIFIED.reason in found["short"].note
    assert "--tap" in found["short"].fix
    tapped = with_unclassified(snapshot(recorder()))
    assert not tapped.missing


def test_a_selected_model_that_no_source_has_seen_has_all_classes_at_zero() -> None:
    [states] = selected_models([CLASSED]).values()
    [events] = [one for one in states if one.signal == "ttft_slo_events"]
    assert {dict(labels)[PROMPT_CLASS] for labels in events.samples} == set(LABELS)


def test_a_class_adds_no_more_series_than_its_budget() -> None:
    def series(bounds: tuple[int, ...]) -> int:
        found = StreamRecorder({}, expected=["llama"], prompt_classes=bounds)
        one = stream(prompt_tokens=1, stages=Stages(0.05, 0.1, 0.2))
        play(found, one, *chunks(100.2, 100.3), ended(100.4))
        return sum(
            len(number.boundaries) + 2 if isinstance(number, Distribution) else 1
            for measurement in measurements(found)
            for number in measurement.samples.values()
        )

    added = (series((1, 2, 3)) - series((1, 2))) - 1  # and a boundary of the input length
    assert 0.9 * CLASS_SERIES < added <= CLASS_SERIES


def test_labels_of_the_catalogue_are_those_that_are_served() -> None:
    found = recorder()
    one = stream(prompt_tokens=600, stages=Stages(0.05, 0.1, 0.2))
    play(found, one, *chunks(100.2, 100.3), ended(100.4))
    for measurement in measurements(found):
        for labels in measurement.samples:
            known = {*SIGNALS[measurement.signal].possible_labels}
            assert {name for name, _ in labels} <= known, measurement.signal
            assert labels == tuple(sorted(labels))
