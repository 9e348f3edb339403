"""Series exist at zero before the first event: in the taps, in sources, for selected models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

import pytest

from exporter.objectives.slo_events import SloEvents
from exporter.objectives.unseen_models import selected_models, with_unseen
from exporter.recording.goodput import goodput_objectives
from exporter.recording.stream_recorder import MAX_TENANTS, StreamRecorder
from exporter.samples import Distribution, Labels, Measurement, Missing, Snapshot
from exporter.settings import load_settings
from exporter.sources.factory import configured
from exporter.store.store import Store
from exporter.taps.process.messages import TapSettings
from exporter.web.collector import expose
from slos.model import Objective
from slos.outcomes import OUTCOMES, REFUSALS
from slos.signals import SIGNALS, TENANT_SIGNALS, threshold_label
from tests.service_example import service
from tests.test_stream_recorder import chunks, ended, measurements, play, play_on, stream, value

TTFT = {"ttft": (0.25, 0.8)}


def counter(recorder: StreamRecorder, signal: str) -> dict[frozenset[tuple[str, str]], float]:
    [samples] = [one.samples for one in measurements(recorder) if one.signal == signal]
    return {frozenset(key): n for key, n in samples.items() if isinstance(n, float)}


def test_an_expected_model_has_all_series_before_its_first_request() -> None:
    goodput = Objective("good", "goodput", Decimal("0.95"), clauses={"ttft": Decimal("0.8")})
    own = tuple(goodput_objectives([service(goodput)]))
    recorder = StreamRecorder(TTFT, own, expected=["llama"])
    assert counter(recorder, "requests") == {
        frozenset({("outcome", outcome)}): 0.0 for outcome in OUTCOMES
    }
    assert len(counter(recorder, "streams")) == 1 + 2 * (len(OUTCOMES) - 1)
    assert {dict(key)["phase"] for key in counter(recorder, "disconnects")} == {
        "before_first_token",
        "mid_stream",
    }
    assert {(dict(key)["result"], dict(key)["clause"]) for key in counter(recorder, "goodput")} == {
        ("good", ""),
        ("unknown", ""),
        ("bad", "outcome"),
        ("bad", "ttft"),
        ("shed", "outcome"),
        ("quota", "outcome"),
    }
    events = counter(recorder, "ttft_slo_events")
    assert {(dict(key)["threshold"], dict(key)["result"]) for key in events} == {
        (threshold, result)
        for threshold in ("0.25", "0.8")
        for result in ("good", "bad", *REFUSALS)
    }
    for signal in ("input_tokens", "cached_input_tokens", "output_tokens"):
        assert counter(recorder, signal) == {frozenset(): 0.0}
    assert not any(
        value
        for one in measurements(recorder)
        for value in one.samples.values()
        if not isinstance(value, Distribution)
    )


def test_a_model_is_counted_by_the_same_methods_with_and_without_its_version() -> None:
    """The store merges both, so exact zeros of one must not hide estimates of the other."""
    clauses = {"ttft": Decimal("0.8"), "tpot": Decimal("0.06")}
    goodput = Objective("good", "goodput", Decimal("0.95"), clauses=clauses)
    recorder = StreamRecorder({}, tuple(goodput_objectives([service(goodput)])), expected=["llama"])
    store = Store(10)
    server = Snapshot("triton", (), (Missing("kv_utilization", "llama", "1", "why", "fix"),))

    kept: dict[tuple[str, str], tuple[Measurement, ...]] = {}

    def snapshot() -> Snapshot:
        # The tap source keeps unchanged measurements.
        kept.update(
            {
                (one[0].model, one[0].version): one
                for one in recorder.measurements(changed_only=True)
            }
        )
        return Snapshot("taps", tuple(one for found in kept.values() for one in found))

    store.update(server, 0, 0)
    store.update(snapshot(), 0, 0)
    for now in (1, 3, 5):
        streams = [stream(), stream()]
        for one in streams:
            recorder.started(one, 100.0)
            one.version = "1"
            play_on(recorder, one, *chunks(100.2, 100.21, 100.22))
        store.update(snapshot(), now, 0)
        for one in streams:
            play_on(recorder, one, ended(100.3))
        store.update(snapshot(), now + 1, 0)
    [state] = [one for one in store.view(6).signals if one.signal == "goodput"]
    assert (state.version, state.method) == ("1", "wire_chunks")
    assert sum(n for n in state.samples.values() if isinstance(n, float)) == 6


def test_first_tokens_are_evaluated_by_every_threshold() -> None:
    recorder = StreamRecorder(TTFT)
    play(recorder, stream(), *chunks(100.25), ended(101.0))
    play(recorder, stream(), *chunks(100.5), ended(101.0))
    play(recorder, stream(), *chunks(101.0), ended(101.0, "error", "500"))
    play(recorder, stream(), ended(100.1, "error", "500"))
    play(recorder, stream(), ended(100.1, "invalid", "400"))
    evaluated = {
        (dict(key)["threshold"], dict(key)["result"]): n
        for key, n in counter(recorder, "ttft_slo_events").items()
    }
    assert evaluated == {
        ("0.25", "good"): 1,
        ("0.25", "bad"): 3,
        ("0.8", "good"): 2,
        ("0.8", "bad"): 2,
        **{(threshold, refusal): 0 for threshold in ("0.25", "0.8") for refusal in REFUSALS},
    }


def test_refused_requests_are_events_of_their_own_unless_they_were_late() -> None:
    recorder = StreamRecorder({"ttft": (0.8,)}, expected=["llama"])
    play(recorder, stream(), ended(100.1, "shed", "capacity"))
    play(recorder, stream(), ended(100.1, "quota", "429"))
    play(recorder, stream(), ended(102.0, "shed", "deadline"))
    evaluated = counter(recorder, "ttft_slo_events")
    assert {dict(key)["result"]: n for key, n in evaluated.items()} == {
        "good": 0,
        "bad": 1,
        "shed": 1,
        "quota": 1,
    }


def test_gaps_are_evaluated_with_the_counts_of_the_histogram() -> None:
    recorder = StreamRecorder({"itl": (0.0625,)})
    play(recorder, stream(), *chunks(100.0, 100.0625, 100.5, 100.51), ended(100.52))
    evaluated = counter(recorder, "itl_slo_events")
    assert {dict(key)["result"]: n for key, n in evaluated.items()} == {"good": 2, "bad": 1}


def test_a_tenant_begins_at_zero_when_its_first_request_starts() -> None:
    recorder = StreamRecorder({})
    play(recorder, stream(input_tokens=7, cached_tokens=0), *chunks(101.0), ended(102.0))
    one = stream(tenant="acme")
    recorder.started(one, 103.0)
    initial = counter(recorder, "tenant_requests")
    assert initial == {
        frozenset({("outcome", outcome), ("tenant", "acme")}): 0.0 for outcome in OUTCOMES
    }
    assert {signal for signal in TENANT_SIGNALS.values() if signal != "tenant_goodput"} <= {
        one.signal for one in measurements(recorder)
    }
    recorder.ended(one, 104.0, "error", "500", None)
    assert value(recorder, "tenant_requests", tenant="acme", outcome="error") == 1
    assert value(recorder, "requests") == 2


def test_a_selected_tenant_begins_at_zero_with_the_model() -> None:
    tenants = {"llama": ("acme",), "": ("globex",), "mistral": ("initech",)}
    recorder = StreamRecorder({}, tenants=tenants, expected=["llama"])
    begun = counter(recorder, "tenant_requests")
    assert begun == {
        frozenset({("outcome", outcome), ("tenant", tenant)}): 0.0
        for outcome in OUTCOMES
        for tenant in ("acme", "globex")
    }


def test_a_selected_tenant_is_never_other() -> None:
    recorder = StreamRecorder({}, tenants={"": ("acme",)}, expected=["llama"])
    for number in range(MAX_TENANTS + 1):
        play(recorder, stream(tenant=f"t{number}"), *chunks(101.0), ended(102.0))
    play(recorder, stream(tenant="acme"), *chunks(101.0), ended(102.0))
    assert value(recorder, "tenant_requests", tenant="acme", outcome="ok") == 1
    assert value(recorder, "tenant_requests", tenant="other", outcome="ok") == 1


@pytest.mark.parametrize("header", ["x-tenant", ""])
def test_taps_have_the_tenants_of_selectors_if_they_read_a_header(
    header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[TapSettings] = []
    monkeypatch.setattr("exporter.sources.factory.TapProcess", given.append)
    monkeypatch.setattr("exporter.sources.factory.TapSource", lambda *_, **__: None)
    selected = replace(
        service(Objective("up", "availability", Decimal("0.99"))),
        selector={"model": "llama", "tenant": "acme"},
    )
    flags = {"tap": ["proxy=127.0.0.1:0=127.0.0.1:8000"]}
    flags |= {"tap-tenant-header": [header]} if header else {}
    list(configured(load_settings(flags, {}), [selected]))
    assert given[0].tenants == ({"": ("other",), "llama": ("acme",)} if header else {})


def test_taps_have_the_prompt_classes_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[TapSettings] = []
    monkeypatch.setattr("exporter.sources.factory.TapProcess", given.append)
    monkeypatch.setattr("exporter.sources.factory.TapSource", lambda *_, **__: None)
    flags = {"tap": ["proxy=127.0.0.1:0=127.0.0.1:8000"]}
    services = [service(), replace(service(), prompt_classes=(512, 4096))]
    list(configured(load_settings(flags, {}), services))
    assert given[0].prompt_classes == (512, 4096)


def test_no_family_that_an_objective_reads_has_a_reason_or_a_tenant() -> None:
    for signal in ("requests", "streams", "disconnects", "goodput", "output_tokens"):
        assert not {"reason", "tenant"} & set(SIGNALS[signal].labels)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.8, "0.8"),
        (1.0, "1"),
        (0.06, "0.06"),
        (100.0, "100"),
        (1e-05, "0.00001"),
        (Decimal("0.80"), "0.8"),
        (Decimal("1E+1"), "10"),
    ],
)
def test_a_threshold_is_written_as_a_plain_decimal(seconds: float | Decimal, text: str) -> None:
    assert threshold_label(seconds) == text


# Counters of engines


def histogram(*counts: float, edges: tuple[float, ...] = (0.25, 0.8, math.inf)) -> Distribution:
    return Distribution(edges, counts, 1.0)


def scrape(
    events: SloEvents,
    now: float,
    ttft: Distribution,
    died: float | None = None,
    shed: float = 0.0,
) -> Snapshot:
    found = [Measurement("ttft", "llama", "1", "vllm_histogram", {(): ttft})]
    if died is not None:
        samples = {
            (("outcome", "error"),): died,
            (("outcome", "invalid"),): 100.0,
            (("outcome", "shed"),): shed,
        }
        found.append(
            Measurement("requests_without_first_token", "llama", "1", "vllm_rejections", samples)
        )
    return events.added(Snapshot("vllm", tuple(found)), now)


def event_counts(snapshot: Snapshot) -> Mapping[tuple[str, str], float]:
    [one] = [each for each in snapshot.measurements if each.signal == "ttft_slo_events"]
    assert one.method == "vllm_histogram"
    return {
        (dict(labels)["threshold"], dict(labels)["result"]): n
        for labels, n in one.samples.items()
        if isinstance(n, float) and n
    }


def test_events_of_an_engine_come_from_exact_bucket_boundaries() -> None:
    snapshot = scrape(SloEvents(TTFT), 0.0, histogram(1.0, 4.0, 10.0))
    assert event_counts(snapshot) == {
        ("0.25", "good"): 1,
        ("0.25", "bad"): 9,
        ("0.8", "good"): 4,
        ("0.8", "bad"): 6,
    }


def test_a_reset_of_one_counter_counts_nothing_twice() -> None:
    events = SloEvents({"ttft": (0.8,)})
    scrape(events, 0.0, histogram(1.0, 4.0, 10.0), died=3.0)
    scrape(events, 1.0, histogram(1.0, 4.0, 10.0))  # its source did not answer
    scrape(events, 2.0, histogram(1.0, 4.0, 10.0), died=4.0)
    snapshot = scrape(events, 3.0, histogram(0.0, 1.0, 1.0), died=4.0)
    assert event_counts(snapshot) == {("0.8", "good"): 4 + 1, ("0.8", "bad"): 6 + 4}


def test_requests_without_first_token_count_from_their_first_scrape() -> None:
    events = SloEvents({"ttft": (0.8,)})
    scrape(events, 0.0, histogram(1.0, 4.0, 10.0))
    scrape(events, 1.0, histogram(1.0, 4.0, 10.0), died=1000.0)
    snapshot = scrape(events, 2.0, histogram(1.0, 4.0, 10.0), died=1001.0)
    assert event_counts(snapshot)["0.8", "bad"] == 6 + 1


def test_requests_that_an_engine_sheds_are_events_of_their_own() -> None:
    events = SloEvents({"ttft": (0.8,)})
    snapshot = scrape(events, 0.0, histogram(1.0, 4.0, 10.0), died=2.0, shed=3.0)
    assert event_counts(snapshot) == {("0.8", "good"): 4, ("0.8", "bad"): 6 + 2, ("0.8", "shed"): 3}


def test_a_threshold_that_is_no_boundary_is_unavailable_with_a_reason() -> None:
    snapshot = scrape(SloEvents({"ttft": (0.5,)}), 0.0, histogram(1.0, 4.0, 10.0))
    [gap] = snapshot.missing
    assert (gap.signal, gap.model) == ("ttft_slo_events", "llama")
    assert gap.reason == "no threshold (500ms) is a bucket boundary of the server's histogram"
    assert not [one for one in snapshot.measurements if one.signal == "ttft_slo_events"]


def test_events_of_an_unavailable_signal_have_its_reason() -> None:
    gap = Missing("ttft", "llama", "1", "no histogram", "add a tap")
    snapshot = SloEvents(TTFT).added(Snapshot("triton", missing=(gap,)), 0.0)
    assert [(one.signal, one.reason) for one in snapshot.missing] == [
        ("ttft", "no histogram"),
        ("ttft_slo_events", "no histogram"),
    ]


# Models that only a selector names


OBJECTIVES = (
    Objective("first-token", "ttft", Decimal("0.95"), Decimal("0.8")),
    Objective("availability", "availability", Decimal("0.999")),
    Objective("good", "goodput", Decimal("0.95"), clauses={"ttft": Decimal("0.8")}),
)


def shown(store: Store, now: float = 0.0) -> dict[str, float]:
    view = with_unseen(store.view(now), selected_models([service(*OBJECTIVES)]))
    lines = expose(view, "1").body.decode().splitlines()
    return {
        name: float(number)
        for name, _, number in (line.rpartition(" ") for line in lines if line.startswith("llm_"))
    }


def test_a_selected_model_without_requests_is_at_zero() -> None:
    series = shown(Store(60.0))
    assert set(series.values()) == {0.0}
    assert 'llm_requests_total{model="llama",outcome="timeout",version=""}' in series
    event = 'model="llama",result="bad",signal="ttft",threshold="0.8",version=""'
    assert f"llm_slo_events_total{{{event}}}" in series
    clause = 'clause="ttft",model="llama",objective="chat/good",result="bad",version=""'
    assert f"llm_goodput_requests_total{{{clause}}}" in series


def test_a_reported_model_has_its_own_series_only() -> None:
    store = Store(60.0)
    samples: dict[Labels, float] = {(("outcome", "ok"),): 3.0}
    seen = Measurement("requests", "llama", "1", "triton_counters", {**samples})
    gap = Missing("ttft_slo_events", "llama", "1", "no histogram", "add a tap")
    store.update(Snapshot("triton", (seen,), (gap,)), 0.0, 0.1)
    assert set(shown(store)) == {'llm_requests_total{model="llama",outcome="ok",version="1"}'}


@pytest.mark.parametrize("seen", ["", "requests", "kv_utilization"])
def test_a_gauge_that_no_source_reports_is_declared_unavailable(seen: str) -> None:
    store = Store(60.0)
    if seen:
        measurement = Measurement(
            seen, "llama", "1", "trtllm_iteration", {(("outcome", "ok"),): 0.5}
        )
        store.update(Snapshot("source", (measurement,)), 0.0, 0.1)
    headroom = Objective("kv", "kv_headroom", Decimal("0.99"), Decimal("0.9"))
    view = with_unseen(store.view(0.0), selected_models([service(headroom)]))
    states = [one for one in (*view.signals, *view.unseen) if one.signal == "kv_utilization"]
    reported = seen == "kv_utilization"
    assert [one.quality for one in states] == ["exact" if reported else "unavailable"]
    info = 'tokenslo_signal_info{method="",model="llama",quality="unavailable",'
    assert (info in expose(view, "1").body.decode()) == (not reported)


def test_a_selector_without_a_model_names_none() -> None:
    anything = replace(service(*OBJECTIVES), selector={"namespace": "prod"})
    assert selected_models([anything]) == {}
