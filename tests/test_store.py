"""The store: monotonic counters, choice of methods, staleness, models and sources."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from itertools import chain, pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.methods import METHODS
from exporter.samples import (
    Distribution,
    Labels,
    Measurement,
    Missing,
    ModelInfo,
    Snapshot,
    SourceError,
    Value,
)
from exporter.store import signal_record
from exporter.store.increase import continued
from exporter.store.store import FORGET_SIZE, STEP_SIZE, Store
from exporter.store.view import SignalState

OK: Labels = (("outcome", "ok"), ("reason", "success"))
ERROR: Labels = (("outcome", "error"), ("reason", "backend"))
CHAT = ModelInfo("chat", "1", "tensorrtllm", decoupled=True)
REFUSED = SourceError("refused", "http://t:8000 refused the connection")


def snapshot(
    *measurements: Measurement, missing: tuple[Missing, ...] = (), **rest: object
) -> Snapshot:
    rest.setdefault("models", (CHAT,))
    return Snapshot("triton", measurements, missing, **rest)  # type: ignore[arg-type]


def requests(method: str = "triton_counters", **by_outcome: float) -> Measurement:
    labels = {"ok": OK, "error": ERROR}
    samples: dict[Labels, Value] = {labels[name]: n for name, n in by_outcome.items()}
    return Measurement("requests", "chat", "1", method, samples)


def ttft(*counts: float, total: float = 0.0, method: str = "triton_first_response") -> Measurement:
    edges = (0.1, 0.5, 2.0, 5.0, inf)[-len(counts) :]
    return Measurement("ttft", "chat", "1", method, {(): Distribution(edges, counts, total)})


def gauge(value: float, signal: str = "sequences_active", model: str = "chat") -> Measurement:
    return Measurement(signal, model, "1", "trtllm_iteration", {(): value})


def lora(running: str) -> Measurement:
    labels = ("max_lora", "2"), ("running_lora_adapters", running), ("waiting_lora_adapters", "")
    return Measurement("lora_adapters", "chat", "1", "vllm_lora", {labels: 1795213791.0})


def gap(signal: str, reason: str = "why not", *, unread: bool = False) -> Missing:
    return Missing(signal, "chat", "1", reason, "do this", unread=unread)


def of(*names: str, source: str = "triton") -> Snapshot:
    measurements = tuple(gauge(1, model=name) for name in names)
    return Snapshot(source, measurements, models=tuple(ModelInfo(name, "1") for name in names))


def shown(store: Store, now: float) -> list[str]:
    return [one.model for one in store.view(now).signals]


def state(store: Store, signal: str, now: float) -> SignalState:
    view = store.summarized_view(now)()
    (found,) = [one for one in view.signals if one.signal == signal]
    return found


def served_value(store: Store, now: float, signal: str = "requests", labels: Labels = OK) -> Value:
    return state(store, signal, now).samples[labels]


class TestCounters:
    def test_start_at_zero_and_add_what_comes_in(self) -> None:
        store = Store(10)
        store.update(snapshot(requests(ok=1000, error=3)), 0, 0.01)
        assert state(store, "requests", 0).samples == {OK: 0, ERROR: 0}
        store.update(snapshot(requests(ok=1007, error=3)), 1, 0.01)
        assert state(store, "requests", 1).samples == {OK: 7, ERROR: 0}

    def test_a_lower_value_is_a_reload_and_counts_whole(self) -> None:
        store = Store(10)
        for now, ok in enumerate((50, 60, 4, 9)):
            store.update(snapshot(requests(ok=ok)), now, 0.01)
        assert served_value(store, 3) == 10 + 4 + 5

    def test_series_new_since_the_last_snapshot_counts_from_zero(self) -> None:
        store = Store(10)
        store.update(snapshot(requests(ok=50)), 0, 0.01)
        store.update(snapshot(requests(ok=50, error=2)), 1, 0.01)
        assert served_value(store, 1, labels=ERROR) == 2

    def test_series_missing_from_one_snapshot_is_not_new_again(self) -> None:
        store = Store(10)
        store.update(snapshot(requests(ok=50, error=8)), 0, 0.01)
        store.update(snapshot(requests(ok=51)), 1, 0.01)
        store.update(snapshot(requests(ok=52, error=9)), 2, 0.01)
        assert state(store, "requests", 2).samples == {OK: 2, ERROR: 1}

    def test_model_loaded_between_two_snapshots_counts_from_zero(self) -> None:
        store = Store(10)
        store.update(snapshot(models=()), 0, 0.01)
        store.update(snapshot(requests(ok=3)), 1, 0.01)
        assert served_value(store, 1) == 3

    def test_a_model_that_was_there_before_brings_no_past(self) -> None:
        """Its configuration was read later, say: all that it counted is not from this second."""
        store = Store(10)
        store.update(snapshot(), 0, 0.01)
        store.update(snapshot(requests(ok=5000)), 1, 0.01)
        store.update(snapshot(requests(ok=5002)), 2, 0.01)
        assert served_value(store, 2) == 2

    def test_a_reload_restarts_only_what_fell(self) -> None:
        """Triton keeps a model's failures over unload and load, and forgets its successes."""
        store = Store(10)
        store.update(snapshot(requests(ok=5, error=2)), 0, 0.01)
        store.update(snapshot(requests(ok=6, error=3)), 1, 0.01)
        unloaded = ModelInfo("chat", "1", ready=False, reason="UNAVAILABLE")
        store.update(snapshot(missing=(gap("requests"),), models=(unloaded,)), 2, 0.01)
        store.update(snapshot(requests(ok=4, error=3)), 3, 0.01)
        assert state(store, "requests", 3).samples == {OK: 1 + 4, ERROR: 1}

    def test_failures_before_a_model_was_first_seen_loaded_are_not_counted(self) -> None:
        store = Store(10)
        unloaded = ModelInfo("chat", "1", ready=False, reason="UNAVAILABLE")
        store.update(snapshot(models=(unloaded,)), 0, 0.01)
        store.update(snapshot(requests(ok=0, error=7)), 1, 0.01)
        assert state(store, "requests", 1).samples == {OK: 0, ERROR: 0}

    def test_an_outage_loses_nothing_that_the_server_still_counts(self) -> None:
        store = Store(10)
        store.update(snapshot(requests(ok=5)), 0, 0.01)
        for now in range(1, 100):
            store.fail("triton", REFUSED, now, 2.0)
        assert state(store, "requests", 99).samples == {}
        store.update(snapshot(requests(ok=25)), 100, 0.01)
        assert served_value(store, 100) == 20


def own(
    value: float, method: str = "wire", *, start: float = 0.0, version: str = "1"
) -> Measurement:
    """Return a counter that the sidecar keeps itself since ``start``."""
    return replace(requests(method, ok=value), version=version, start_time=start)


def taps(*measurements: Measurement) -> Snapshot:
    return Snapshot("taps", measurements)


class TestOwnCounters:
    def test_the_first_value_counts_in_full(self) -> None:
        store = Store(10)
        store.update(taps(own(3)), 5, 0.01)
        assert served_value(store, 5) == 3
        store.update(taps(own(4)), 6, 0.01)
        assert served_value(store, 6) == 4

    def test_the_first_value_counts_beside_the_history_of_a_server(self) -> None:
        store = Store(10)
        for now, served in ((0, 1000), (1, 1001)):
            store.update(snapshot(requests(ok=served)), now, 0.01)
        store.update(taps(own(2, start=1.0)), 2, 0.01)
        store.update(snapshot(requests(ok=1003)), 3, 0.01)
        assert served_value(store, 3) == 1 + 2
        assert state(store, "requests", 3).method == "wire"

    def test_a_histogram_counts_in_full(self) -> None:
        store = Store(10)
        store.update(taps(replace(ttft(1, 5, 9, total=7.0, method="wire"), start_time=0.0)), 5, 0)
        assert served_value(store, 5, "ttft", ()) == Distribution((2.0, 5.0, inf), (1, 5, 9), 7.0)

    def test_a_later_start_time_is_a_restart_although_the_value_grew(self) -> None:
        store = Store(10)
        for now, value, start in ((1, 3, 0.0), (2, 5, 1.5), (3, 6, 1.5)):
            store.update(taps(own(value, start=start)), now, 0.01)
        assert served_value(store, 3) == 3 + 5 + 1

    def test_a_restart_of_all_labels_is_one_of_labels_that_come_back_later(self) -> None:
        store = Store(10)
        for now, values, start in (
            (1, {"ok": 3, "error": 2}, 0.0),
            (2, {"ok": 1}, 1.5),
            (3, {"ok": 1, "error": 4}, 1.5),
        ):
            store.update(taps(replace(requests("wire", **values), start_time=start)), now, 0.01)
        assert state(store, "requests", 3).samples == {OK: 3 + 1, ERROR: 2 + 4}

    def test_another_method_continues_the_total(self) -> None:
        store = Store(10)
        for now, value, method in (
            (1, 3, "wire"),
            (2, 5, "wire_chunks"),
            (3, 5, "wire_chunks"),
            (4, 8, "wire"),
        ):
            store.update(taps(own(value, method)), now, 0.01)
            assert served_value(store, now) == value
            assert state(store, "requests", now).method == method

    def test_another_method_after_a_restart_counts_once(self) -> None:
        """The method that continues was also the one before the restart."""
        store = Store(10)
        for now, value, method, start in (
            (1, 2, "wire_chunks", 0.0),
            (2, 5, "wire", 1.5),
            (3, 7, "wire_chunks", 1.5),
        ):
            store.update(taps(own(value, method, start=start)), now, 0.01)
        assert served_value(store, 3) == 2 + 7

    def test_a_fallback_and_its_end_count_nothing_twice(self) -> None:
        store = Store(stale_after=2)
        store.update(snapshot(requests(ok=100)), 0, 0.01)
        store.update(taps(own(1)), 0, 0.01)
        store.update(snapshot(requests(ok=102)), 1, 0.01)
        store.update(taps(own(3)), 1, 0.01)
        store.update(snapshot(requests(ok=105)), 4, 0.01)  # the tap is stale: 1 → 4 counts
        assert served_value(store, 4) == 3 + 3
        store.update(taps(own(7)), 5, 0.01)  # a part of 3 → 7 is counted already
        store.update(taps(own(8)), 6, 0.01)
        assert served_value(store, 6) == 6 + 1

    def test_a_model_with_and_without_version_is_one_total(self) -> None:
        store = Store(10)
        store.update(of("chat"), 0, 0)
        store.update(taps(own(3, version="")), 1, 0)
        assert served_value(store, 1) == 3
        store.update(taps(own(3, version=""), own(2, start=1.5)), 2, 0)
        assert served_value(store, 2) == 3 + 2

    def test_a_second_version_counts_nothing_again(self) -> None:
        store = Store(10)

        def counts() -> dict[str, Value]:
            states = store.view(0).signals
            return {one.version: one.samples[OK] for one in states if one.signal == "requests"}

        store.update(of("chat"), 0, 0)
        store.update(taps(own(100, version=""), own(5, start=0.5)), 1, 0)
        assert counts() == {"1": 105}
        second = replace(gauge(1), version="2")
        store.update(snapshot(gauge(1), second), 2, 0)
        store.update(taps(own(101, version=""), own(6, start=0.5)), 3, 0)
        assert counts() == {"1": 105, "": 0}
        store.update(taps(own(103, version=""), own(7, start=0.5)), 4, 0)
        assert counts() == {"1": 106, "": 2}


class TestMethods:
    def test_the_best_one_wins_and_names_its_quality(self) -> None:
        store = Store(10)
        both = (ttft(1, 2, 3), ttft(4, 5, method="vllm_histogram"))
        store.update(snapshot(*both), 0, 0.01)
        found = state(store, "ttft", 0)
        assert (found.method, found.quality) == ("vllm_histogram", "exact")
        store.update(snapshot(ttft(1, 2, 3)), 1, 0.01)
        found = state(store, "ttft", 1)
        assert (found.method, found.quality) == ("triton_first_response", "estimate")
        assert "rounded down" in found.note

    def test_switching_never_jumps_and_never_counts_twice(self) -> None:
        store = Store(10)

        def read(now: float, counters: float | None, statistics: float | None) -> None:
            found = []
            if counters is not None:
                found.append(requests("triton_counters", ok=counters))
            if statistics is not None:
                found.append(requests("statistics_requests", ok=statistics))
            store.update(snapshot(*found), now, 0.01)

        read(0, 100, 90)
        read(1, 110, 100)
        read(2, None, 105)  # goes on where the counters stopped
        assert served_value(store, 2) == 15
        read(3, 125, None)  # what came since its last value is partly in already
        assert served_value(store, 3) == 15
        read(4, 126, None)
        assert served_value(store, 4) == 16

    def test_note_of_the_measurement_follows_that_of_the_method(self) -> None:
        store = Store(10)
        measurement = Measurement(
            "sequences_active", "chat", "1", "vllm_gauge", {(): 1.0}, "two engines"
        )
        store.update(snapshot(measurement), 0, 0.01)
        assert (
            state(store, "sequences_active", 0).note == "as of the engine's last step; two engines"
        )


class TestStoredGauges:
    def test_series_of_earlier_snapshots_are_dropped(self) -> None:
        class Name(str):
            """A text to which there can be weak references."""

        store = Store(10)
        names = [Name(f"adapter-{number}") for number in range(3)]
        references = [weakref.ref(name) for name in names]
        for at in range(3):
            store.update(snapshot(lora(names.pop(0))), at, 0.01)
        gc.collect()
        assert [reference() for reference in references] == [None, None, "adapter-2"]
        [labels] = state(store, "lora_adapters", 2).samples
        assert dict(labels)["running_lora_adapters"] == "adapter-2"


class TestStoredHistograms:
    def test_start_empty_and_add_up(self) -> None:
        store = Store(10)
        store.update(snapshot(ttft(1, 5, 9, total=7.0)), 0, 0.01)
        store.update(snapshot(ttft(1, 7, 12, total=9.5)), 1, 0.01)
        assert served_value(store, 1, "ttft", ()) == Distribution((2.0, 5.0, inf), (0, 2, 3), 2.5)

    @pytest.mark.parametrize(
        "reloaded",
        [
            pytest.param(ttft(0, 1, 1, total=3.0), id="count fell"),
            pytest.param(ttft(0, 9, 11, total=60.0), id="one bucket fell"),
            pytest.param(ttft(3, 6, 11, total=6.0), id="sum fell"),
            pytest.param(ttft(4, 6, 10, total=60.0), id="more in a bucket than in the next"),
        ],
    )
    def test_buckets_count_and_sum_reset_together(self, reloaded: Measurement) -> None:
        store = Store(10)
        store.update(snapshot(ttft(1, 5, 9, total=7.0)), 0, 0.01)
        store.update(snapshot(reloaded), 1, 0.01)
        assert served_value(store, 1, "ttft", ()) == reloaded.samples[()]

    def test_a_count_that_fell_is_a_reset_even_if_the_sum_grew(self) -> None:
        store = Store(10)
        store.update(snapshot(ttft(9, total=7.0)), 0, 0.01)
        store.update(snapshot(ttft(4, total=11.0)), 1, 0.01)
        assert served_value(store, 1, "ttft", ()) == Distribution((inf,), (4,), 11.0)

    def test_other_edges_start_a_new_histogram(self) -> None:
        store = Store(10)
        store.update(snapshot(ttft(1, 5, 9, total=7.0)), 0, 0.01)
        store.update(snapshot(ttft(1, 6, 10, total=7.0)), 1, 0.01)
        store.update(snapshot(ttft(2, 3, total=4.0)), 2, 0.01)
        assert served_value(store, 2, "ttft", ()) == Distribution((5.0, inf), (2, 3), 4.0)

    def test_a_sum_that_wobbles_in_its_last_digit_is_no_reset(self) -> None:
        store = Store(10)
        store.update(snapshot(ttft(1, 5, 9, total=7.0)), 0, 0.01)
        store.update(snapshot(ttft(1, 5, 9, total=7.0 - 1e-12)), 1, 0.01)
        assert served_value(store, 1, "ttft", ()) == Distribution((2.0, 5.0, inf), (0, 0, 0), 0.0)


def test_models_are_checked_in_bounded_steps_once_one_may_be_forgotten() -> None:
    models = [f"m{number}" for number in range(8 * FORGET_SIZE)]
    store = Store(5.0, max_models=len(models))
    store.update(of(*models), 0.0, 0.1)
    steps = [sum(1 for _ in store.updating(of(*models), now, 0.1)) for now in (1.0, 3601.0)]
    assert steps[1] - steps[0] == len(models) / FORGET_SIZE


def test_counters_of_idle_models_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Value] = []

    def noted(total: Value | None, previous: Value | None, value: Value) -> Value:
        added.append(value)
        return continued(total, previous, value)

    store = Store(5.0)
    store.update(snapshot(requests(ok=1.0, error=2.0), ttft(1, 2)), 0.0, 0.1)
    monkeypatch.setattr(signal_record, "continued", noted)
    store.update(snapshot(requests(ok=1.0, error=3.0), ttft(1, 2)), 1.0, 0.1)
    assert added == [3.0]
    assert served_value(store, 1.0, labels=ERROR) == 1
    assert served_value(store, 1.0, labels=OK) == 0


def test_an_unchanged_histogram_replaces_one_with_other_boundaries() -> None:
    store = Store(5.0)
    best, other = ttft(1, 2, 3), ttft(4, 5, method="vllm_histogram")
    first, second = sorted((best, other), key=lambda one: METHODS[one.method].rank)
    store.update(snapshot(first, second), 0.0, 0.1)
    store.update(snapshot(second), 1.0, 0.1)
    value = served_value(store, 1.0, "ttft", ())
    assert isinstance(value, Distribution)
    replaced = second.samples[()]
    assert isinstance(replaced, Distribution)
    assert value.boundaries == replaced.boundaries
    assert value.count == 0


class TestLapsing:
    def test_stale_signal_has_no_series_but_a_reason(self) -> None:
        store = Store(10)
        store.update(snapshot(gauge(4)), 0, 0.01)
        store.fail("triton", REFUSED, 10, 2.0)
        assert served_value(store, 10, "sequences_active", ()) == 4
        store.fail("triton", REFUSED, 11, 2.0)
        found = state(store, "sequences_active", 11)
        assert (found.quality, found.samples) == ("unavailable", {})
        assert found.note == ("no successful scrape for 11 s: http://t:8000 refused the connection")

    def test_what_never_was_keeps_its_own_reason_through_an_outage(self) -> None:
        store = Store(10)
        store.update(snapshot(missing=(gap("itl", "no metric of single tokens"),)), 0, 0.01)
        store.fail("triton", REFUSED, 60, 2.0)
        found = state(store, "itl", 60)
        assert (found.note, found.fix) == ("no metric of single tokens", "do this")

    def test_a_refused_signal_is_withdrawn_at_once(self) -> None:
        store = Store(10)
        store.update(snapshot(gauge(4)), 0, 0.01)
        store.update(snapshot(missing=(gap("sequences_active", "stuck"),)), 1, 0.01)
        found = state(store, "sequences_active", 1)
        assert (found.quality, found.note) == ("unavailable", "stuck")
        store.update(snapshot(gauge(5)), 2, 0.01)
        assert served_value(store, 2, "sequences_active", ()) == 5

    def test_unread_part_keeps_the_last_samples_until_they_are_stale(self) -> None:
        store = Store(10)
        store.update(snapshot(gauge(4)), 0, 0.01)
        unread = gap("sequences_active", "metrics: timeout", unread=True)
        for now in range(1, 12):
            store.update(snapshot(missing=(unread,)), now, 0.01)
        assert served_value(store, 10, "sequences_active", ()) == 4
        found = state(store, "sequences_active", 11)
        assert found.note == "no successful scrape for 11 s: metrics: timeout"
        assert found.fix == "do this"

    def test_a_model_that_vanished_is_forgotten_after_a_while(self) -> None:
        store = Store(10, forget_after=60)
        store.update(snapshot(gauge(4)), 0, 0.01)
        store.update(snapshot(models=()), 1, 0.01)
        assert state(store, "sequences_active", 1).quality == "unavailable"
        store.update(snapshot(models=()), 61, 0.01)
        assert store.view(61).signals == ()

    def test_a_model_without_version_becomes_its_only_version_at_once(self) -> None:
        store = Store(stale_after=5)

        def taps(count: float) -> Snapshot:
            live = replace(gauge(1.0, "live_streams"), version="")
            counted = replace(requests("wire", ok=count), version="")
            return Snapshot("taps", (live, counted), models=(ModelInfo("chat", ""),))

        store.update(taps(0), 0, 0.01)
        assert {(one.model, one.version) for one in store.view(0).signals} == {("chat", "")}
        store.update(snapshot(gauge(2.0), models=(ModelInfo("chat", "1"),)), 1, 0.01)
        for now, count in ((1, 0), (2, 5), (3, 7)):
            if count:
                store.update(taps(count), now, 0.01)
            view = store.view(now)
            assert [(one.model, one.version) for one in view.models] == [("chat", "1")]
            assert {(one.signal, one.quality, one.version) for one in view.signals} == {
                ("live_streams", "exact", "1"),
                ("requests", "exact", "1"),
                ("sequences_active", "exact", "1"),
            }
            assert served_value(store, now) == count

    def test_a_tap_gives_the_reason_whichever_source_was_read_first(self) -> None:
        tap = Snapshot("taps", (), (replace(gap("itl_normalized", "no counts"), version=""),))
        server = snapshot(missing=(gap("itl_normalized", "no server metric"),))
        for snapshots in ((tap, server), (server, tap), (tap, server, tap)):
            store = Store(10, tapped=True)
            for one in snapshots:
                store.update(one, 0, 0)
            assert state(store, "itl_normalized", 0).note == "no counts"

    def test_a_source_that_names_a_model_with_and_without_version_counts_once(self) -> None:
        store = Store(10)
        versioned = ModelInfo("chat", "1")

        def taps(bare: float, named: float | None = None) -> Snapshot:
            measurements = [replace(requests("wire", ok=bare), version="")]
            measurements += [] if named is None else [requests("wire", ok=named)]
            infos = (ModelInfo("chat", ""), *([] if named is None else [versioned]))
            return Snapshot("taps", tuple(measurements), models=infos)

        store.update(taps(0), 0, 0.01)
        for now, bare, named in ((1, 100, None), (2, 103, 5), (3, 103, 6), (4, 110, 6)):
            store.update(taps(bare, named), now, 0.01)
            assert served_value(store, now) == bare + (named or 0)
        assert {one.version for one in store.view(4).signals} == {"1"}

    def test_first_snapshot_with_and_without_version_starts_at_zero(self) -> None:
        store = Store(10)
        for now, more in ((0, 0), (1, 7)):
            bare = replace(requests("wire", ok=100 + more), version="")
            store.update(Snapshot("taps", (bare, requests("wire", ok=5)), models=(CHAT,)), now, 0)
            assert served_value(store, now) == more

    def test_a_second_version_counts_nothing_again(self) -> None:
        store = Store(10)

        def taps(bare: float, first: float) -> Snapshot:
            measurements = (
                replace(requests("wire", ok=bare), version=""),
                requests("wire", ok=first),
            )
            return Snapshot("taps", measurements, models=(ModelInfo("chat", ""), CHAT))

        def counts() -> dict[str, Value]:
            states = store.view(0).signals
            return {one.version: one.samples[OK] for one in states if one.signal == "requests"}

        store.update(taps(0, 0), 0, 0)
        store.update(taps(100, 5), 0, 0)
        assert counts() == {"1": 105}
        store.update(of("chat"), 0, 0)
        second = replace(gauge(1), version="2")
        store.update(snapshot(gauge(1), second, models=(CHAT, ModelInfo("chat", "2"))), 0, 0)
        store.update(taps(101, 6), 0, 0)
        assert counts() == {"1": 105, "": 0}
        store.update(taps(103, 7), 0, 0)
        assert counts() == {"1": 106, "": 2}

    def test_a_version_that_is_left_alone_takes_over_the_model_without_one(self) -> None:
        store = Store(10, forget_after=60)

        def taps(bare: float, *named: float) -> Snapshot:
            measurements = [replace(requests("wire", ok=bare), version="")]
            measurements += [
                replace(requests("wire", ok=count), version=str(version))
                for version, count in enumerate(named, 1)
            ]
            return Snapshot("taps", tuple(measurements))

        def counts(now: float) -> dict[str, Value]:
            return {one.version: one.samples[OK] for one in store.view(now).signals}

        store.update(taps(0, 0, 0), 0, 0)
        store.update(taps(10, 20, 30), 1, 0)
        assert counts(1) == {"": 10, "1": 20, "2": 30}
        for now, bare, first, expected in ((55, 11, 21, None), (62, 12, 22, None), (63, 13, 24, 0)):
            store.update(taps(bare, first), now, 0)
            assert expected is None or counts(now) == {"1": 25}

    def test_version_that_cannot_be_a_label_joins_no_other(self) -> None:
        store = Store(10)
        long = ModelInfo("chat", "v" * 300)
        bare = replace(requests("wire", ok=1), version="")
        refused = replace(bare, version=long.version)
        for now in (0, 1):
            store.update(Snapshot("taps", (bare, refused), models=(long,)), now, 0)
            assert {(one.model, one.version) for one in store.view(now).signals} == {("chat", "")}

    def test_an_outage_however_long_forgets_nothing(self) -> None:
        store = Store(10, forget_after=60)
        store.update(snapshot(requests(ok=4)), 0, 0.01)
        store.update(snapshot(requests(ok=5)), 1, 0.01)
        store.fail("triton", REFUSED, 30_000, 2.0)
        assert state(store, "requests", 30_000).note.startswith(
            "no successful scrape for 29999 s: "
        )
        store.update(snapshot(requests(ok=7)), 30_001, 0.01)
        assert served_value(store, 30_001) == 3

    def test_models_beyond_the_limit_are_refused_and_said(self) -> None:
        store = Store(10, max_models=2)
        names = ("a", "b", "c")
        infos = tuple(ModelInfo(name, "1") for name in names)
        store.update(snapshot(*(gauge(1, model=name) for name in names), models=infos), 0, 0.01)
        view = store.view(0)
        assert [one.model for one in view.signals] == ["a", "b"]
        assert [one.excluded for one in view.models] == [
            "", "", "more than 2 models are reported on already",
        ]  # fmt: skip

    def test_models_that_are_gone_make_room_the_longest_gone_first(self) -> None:
        store = Store(10, max_models=3)
        store.update(of("a", "b", "c"), 0, 0.01)
        store.update(of("a", "c"), 1, 0.01)
        store.update(of("c"), 2, 0.01)
        store.update(of("c", "d"), 3, 0.01)
        assert shown(store, 3) == ["a", "c", "d"]
        for now in range(4, 40):
            names = [f"{name}{now}" for name in "xyz"]
            store.update(of(*names), now, 0.01)
            assert shown(store, now) == names
            assert [one.excluded for one in store.view(now).models] == ["", "", ""]

    def test_models_of_other_sources_make_no_room_until_they_are_stale(self) -> None:
        store = Store(10, max_models=2)
        store.update(of("a", source="other"), 0, 0.01)
        store.update(of("b"), 1, 0.01)
        store.update(of("c", "d"), 2, 0.01)
        assert shown(store, 2) == ["a", "c"]
        store.update(of("c", "d"), 11, 0.01)
        assert shown(store, 11) == ["c", "d"]

    def test_a_model_that_found_no_room_gets_it_when_there_is_some(self) -> None:
        store = Store(10, max_models=1)
        store.update(of("a", "b"), 0, 0.01)
        store.update(of("b"), 1, 0.01)
        assert shown(store, 1) == ["b"]

    @pytest.mark.parametrize(
        ("name", "version", "cut"),
        [("n" * 257, "1", ("n" * 60 + "…", "1")), ("n", "1" * 257, ("n", "1" * 60 + "…"))],
    )
    def test_names_that_are_too_long_are_no_labels(
        self, name: str, version: str, cut: tuple[str, str]
    ) -> None:
        store, longest = Store(10, max_models=2), "m" * 256
        infos = (ModelInfo(name, version), ModelInfo(longest, "1"), ModelInfo("a", "1"))
        measurements = [
            Measurement("sequences_active", one.model, one.version, "trtllm_iteration", {(): 1.0})
            for one in infos
        ]
        store.update(snapshot(*measurements, models=infos), 0, 0.01)
        assert shown(store, 0) == ["a", longest]
        assert {(one.model, one.version): one.excluded for one in store.view(0).models} == {
            cut: "its name or version is longer than 256 characters",
            (longest, "1"): "",
            ("a", "1"): "",
        }


class TestSources:
    def test_health_counts_failures_by_kind(self) -> None:
        store = Store(10)
        store.fail("triton", REFUSED, 0, 2.0)
        (before,) = store.view(0).sources
        assert (before.up, before.age, before.read_seconds) == (False, None, 2.0)
        store.update(snapshot(ready=True), 5, 0.01)
        store.fail("triton", SourceError("timeout", "slow"), 7, 2.0)
        store.fail("triton", REFUSED, 8, 0.1)
        (source,) = store.view(9).sources
        assert (source.up, source.age, source.read_seconds) == (False, 4, 0.1)
        assert source.errors == {"refused": 2, "timeout": 1}
        assert source.error == str(REFUSED)
        assert source.ready is None

    def test_parts_are_sources_of_their_own(self) -> None:
        store = Store(10)
        down = SourceError("timeout", "statistics: slow")
        store.update(snapshot(parts={"metrics": None, "statistics": None}), 0, 0.01)
        store.update(snapshot(parts={"metrics": None, "statistics": down}, ready=False), 3, 0.01)
        shown = {one.source: (one.up, one.age, one.error) for one in store.view(4).sources}
        assert shown == {
            "triton": (True, 1, ""),
            "triton/metrics": (True, 1, ""),
            "triton/statistics": (False, 4, "statistics: slow"),
        }
        assert store.view(4).sources[0].errors == {"timeout": 1}
        assert store.view(4).sources[0].ready is False

    def test_a_total_failure_takes_the_parts_with_it(self) -> None:
        store = Store(10)
        store.update(snapshot(parts={"metrics": None}), 0, 0.01)
        store.fail("triton", REFUSED, 1, 0.01)
        assert [one.up for one in store.view(1).sources] == [False, False]

    def test_engine_age_grows_between_snapshots_and_expires_with_them(self) -> None:
        store = Store(10)
        store.update(snapshot(gauge(1), engine_stats_age={("chat", "1"): 2.0}), 0, 0.01)
        assert store.view(3).engine_stats_age == {("chat", "1"): 5.0}
        assert store.view(11).engine_stats_age == {}

    def test_signals_come_by_model_then_in_catalogue_order(self) -> None:
        store = Store(10)
        store.update(
            snapshot(gauge(1), requests(ok=1), gauge(1, model="a"), missing=(gap("ttft"),)), 0, 0.01
        )
        assert [(one.model, one.signal) for one in store.view(0).signals] == [
            ("a", "sequences_active"),
            ("chat", "ttft"),
            ("chat", "requests"),
            ("chat", "sequences_active"),
        ]


class TestRecent:
    def test_rates_of_counters(self) -> None:
        store = Store(10)
        for now in range(0, 241, 20):
            busy, calm = min(now, 180), max(0, now - 180)
            store.update(snapshot(requests(ok=busy * 30 + calm * 3, error=now // 200)), now, 0.01)
        assert state(store, "requests", 240).recent == "error backend 0.0167/s, ok success 3/s"

    def test_percentiles_are_interpolated_and_marked(self) -> None:
        store = Store(10)
        store.update(snapshot(ttft(0, 0, 0, 0, 0)), 0, 0.01)
        store.update(snapshot(ttft(0, 100, 100, 100, 100, total=30)), 5, 0.01)
        assert state(store, "ttft", 5).recent == "p50 ≈300 ms, p95 ≈480 ms"
        store.update(snapshot(ttft(0, 100, 100, 100, 900, total=9000)), 10, 0.01)
        assert state(store, "ttft", 10).recent == "p50 >5 s, p95 >5 s"

    def test_count_and_sum_alone_give_a_mean(self) -> None:
        store = Store(10)
        for now, count in enumerate((10, 14)):
            waits = {(): Distribution((inf,), (count,), count * 0.25)}
            measurement = Measurement("queue", "chat", "1", "triton_queue", waits)
            store.update(snapshot(measurement), now * 5, 0.01)
        assert state(store, "queue", 5).recent == "mean 250 ms"

    def test_silence_is_said(self) -> None:
        store = Store(10)
        for now in (0, 5):
            store.update(snapshot(requests(ok=7), ttft(1, 2, 3)), now, 0.01)
        assert state(store, "requests", 5).recent == "none in 5 s"
        assert state(store, "ttft", 5).recent == "none in 5 s"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("serve"), st.integers(1, 20)),
        st.tuples(st.just("reload"), st.just(0)),
        st.tuples(st.just("poll"), st.sampled_from(["both", "counters", "statistics"])),
        st.tuples(st.just("down"), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_served_counter_never_falls_and_never_exceeds_the_truth(
    steps: list[tuple[str, int | str]],
) -> None:
    store, count, truth, first, before = Store(5), 0, 0, None, 0.0
    for now, (what, how) in enumerate(steps):
        if what == "serve":
            count += int(how)
            truth += int(how)
        elif what == "reload":
            count = 0
        elif what == "down":
            store.fail("triton", REFUSED, now, 2.0)
        else:
            methods = {"counters": "triton_counters", "statistics": "statistics_requests"}
            chosen = methods if how == "both" else [str(how)]
            store.update(snapshot(*(requests(methods[one], ok=count) for one in chosen)), now, 0.01)
            first = truth if first is None else first
            value = served_value(store, now)
            assert isinstance(value, float)
            assert before <= value <= truth - first
            before = value


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=40))
def test_equals_the_truth_where_every_reload_can_be_seen(steps: list[tuple[int, bool]]) -> None:
    """Between two snapshots there is either traffic or a reload."""
    store, count, truth = Store(5), 7, 0
    store.update(snapshot(requests(ok=count)), 0, 0.01)
    for now, (served, reload) in enumerate(steps, 1):
        if reload:
            count = 0
        else:
            count += served
            truth += served
        store.update(snapshot(requests(ok=count)), now, 0.01)
    assert served_value(store, len(steps)) == truth


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=60))
def test_histograms_stay_cumulative_and_equal_the_truth(steps: list[int | None]) -> None:
    """Observations by bucket, and None for a reload; a snapshot after each."""
    store, counts = Store(5), [3.0, 3.0, 4.0, 4.0, 9.0]
    truth = [0.0] * 5
    store.update(snapshot(ttft(*counts, total=sum(counts))), 0, 0.01)
    for now, bucket in enumerate(steps, 1):
        if bucket is None:
            counts = [0.0] * 5
        else:
            counts = [n + (i >= bucket) for i, n in enumerate(counts)]
            truth = [n + (i >= bucket) for i, n in enumerate(truth)]
        store.update(snapshot(ttft(*counts, total=sum(counts))), now, 0.01)
    found = served_value(store, len(steps), "ttft", ())
    assert isinstance(found, Distribution)
    assert list(found.counts) == truth
    assert found.sum >= 0


def test_state_is_built_once_between_snapshots_and_expires() -> None:
    store = Store(stale_after=5.0)
    store.update(Snapshot("triton", measurements=(ttft(1, 2, 3),)), 0.0, 0.1)

    def state(now: float) -> SignalState:
        [found] = store.view(now).signals
        return found

    assert state(1.0) is state(2.0)
    assert state(5.1).quality == "unavailable"
    assert state(5.1).note.startswith("no successful scrape for 5 s")
    assert state(9.0).note.startswith("no successful scrape for 9 s")
    assert state(5.1).reason == state(9.0).reason, "a label does not change with every scrape"
    store.update(Snapshot("triton", measurements=(ttft(2, 3, 4),)), 10.0, 0.1)
    assert state(10.0).quality != "unavailable"
    gap = Missing("ttft", "chat", "1", "it is gone", "load it")
    store.update(Snapshot("triton", missing=(gap,)), 11.0, 0.1)
    assert state(11.0).note == "it is gone"


class TestSteps:
    MODELS = tuple(f"chat-{number}" for number in range(250))

    def snapshot(self, value: float, *signals: str) -> Snapshot:
        return snapshot(
            *(gauge(value, signal, model) for signal in signals for model in self.MODELS),
            models=tuple(ModelInfo(model, "1") for model in self.MODELS),
        )

    def test_each_step_updates_a_bounded_number_of_whole_models(self) -> None:
        signals = ("sequences_active", "sequences_waiting", "kv_utilization", "sequences_max")
        store = Store(10)
        store.update(self.snapshot(0.0, *signals), 0, 0.01)
        done = [0]
        for _ in store.updating(self.snapshot(1.0, *signals), 1, 0.01):
            values: dict[str, set[object]] = {}
            for one in store.view(1).signals:
                values.setdefault(one.model, set()).update(one.samples.values())
            assert all(len(found) == 1 for found in values.values())
            done.append(sum(found == {1.0} for found in values.values()))
        steps = [after - before for before, after in pairwise(done)]
        assert len(steps) > len(self.MODELS) * len(signals) // STEP_SIZE
        assert 0 < max(steps) <= STEP_SIZE // len(signals)
        assert {*state_values(store, 1)} == {1.0}

    def test_view_takes_states_that_the_update_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Store(10)
        for now in (0, 1):
            store.update(self.snapshot(1.0, "sequences_active"), now, 0.01)
        built: list[object] = []

        def counted(*args: object, **fields: object) -> SignalState:
            built.append(1)
            return SignalState(*args, **fields)  # type: ignore[arg-type]

        monkeypatch.setattr("exporter.store.store.SignalState", counted)
        assert len(store.view(1.5).signals) == len(self.MODELS)
        assert built == []
        store.view(11.5)  # they are stale
        assert len(built) == len(self.MODELS)

    def test_views_between_two_updates_share_the_states_of_each_model(self) -> None:
        store = Store(10)
        store.update(self.snapshot(1.0, "sequences_active"), 0, 0.01)
        one, two = store.view(0.5), store.view(1.0)
        store.update(self.snapshot(2.0, "sequences_active"), 1, 0.01)
        later = store.view(1.5)
        for model in one.by_model:
            assert one.by_model[model] is two.by_model[model] is not later.by_model[model]

    def test_a_summary_made_later_is_of_the_time_of_its_view(self) -> None:
        store = Store(10)
        for now in range(5):
            store.update(self.snapshot(100.0 * now, "output_tokens"), 10.0 * now, 0.01)
        summarized = store.summarized_view(40.0)
        expected = store.summarized_view(40.0)()
        for now in range(5, 30):
            store.update(self.snapshot(900.0 * now, "output_tokens"), 10.0 * now, 0.01)
        assert summarized() == expected
        assert {state.recent for state in expected.signals} == {"10/s"}


def state_values(store: Store, now: float) -> list[object]:
    return [*chain.from_iterable(one.samples.values() for one in store.view(now).signals)]
