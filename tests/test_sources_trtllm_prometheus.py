"""trtllm-serve's metrics of each release, and gauges of dead processes."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.samples import Distribution, Measurement, Missing
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.exposition.text_parser import ExpositionError, ParsedFamily, read
from exporter.sources.trtllm import prometheus_metrics
from exporter.sources.trtllm.prometheus_metrics import GaugeState
from slos.outcomes import OUTCOMES as ALL_OUTCOMES
from slos.signals import SIGNALS
from tests.fake_triton import outcomes

CAPTURES = Path(__file__).parent / "captures"
OUTCOMES = {"ok": 9.0, "cancelled": 1.0}
TTFT = Distribution((0.1, 1.0, inf), (7.0, 10.0, 10.0), 1.5)

BySignal = dict[str, Measurement | Missing]


def capture(release: str) -> str:
    return (CAPTURES / f"trtllm_serve_{release}_by_hand.txt").read_text()


class Watcher:
    """Reads expositions one after the other, as a source does."""

    def __init__(self, frozen_after: float = 5.0) -> None:
        self.state: GaugeState | None = None
        self.frozen_after = frozen_after

    def scrape(self, text: str, now: float = 0.0, model: str = "chat") -> BySignal:
        return self.see(read(text.encode(), prometheus_metrics.FAMILIES), now, model)

    def see(self, families: dict[str, ParsedFamily], now: float, model: str = "chat") -> BySignal:
        labelled = prometheus_metrics.metrics_model(families, model)
        assert labelled is not None
        metrics = FamiliesByModel(families)
        done = prometheus_metrics.finished(metrics, labelled)
        self.state = prometheus_metrics.update_gauges(self.state, families, done, now)
        found = prometheus_metrics.interpret(
            metrics, labelled, self.state, model, now, self.frozen_after
        )
        return {one.signal: one for one in found}


def value(one: Measurement | Missing) -> object:
    assert isinstance(one, Measurement), one
    [sample] = one.samples.values()
    return sample


def gauges(pid: str, **values: float) -> str:
    labels = f'engine_type="pytorch",model_name="chat",pid="{pid}"'
    return "".join(f"trtllm_{name}{{{labels}}} {number}\n" for name, number in values.items())


def finished(count: float) -> str:
    return f'trtllm_request_success_total{{finished_reason="stop",model_name="chat"}} {count}\n'


class TestGenerations:
    @pytest.mark.parametrize("release", ["1.1", "1.3", "1.4"])
    def test_common_metrics_of_every_release(self, release: str) -> None:
        by_signal = Watcher().scrape(capture(release))
        assert value(by_signal["ttft"]) == TTFT
        assert value(by_signal["e2e"]) == Distribution((1.0, 2.0, inf), (4.0, 9.0, 10.0), 14.25)
        assert value(by_signal["tpot"]) == Distribution((0.01, 0.05, inf), (1.0, 9.0, 9.0), 0.18)
        assert value(by_signal["queue"]) == Distribution((0.3, inf), (8.0, 8.0), 0.4)
        requests = by_signal["requests"]
        assert isinstance(requests, Measurement)
        assert outcomes(requests) == OUTCOMES
        assert {one.model for one in by_signal.values()} == {"chat"}

    def test_a_mean_per_token_is_never_the_gap_between_tokens(self) -> None:
        for release in ("1.1", "1.3", "1.4"):
            assert "itl" not in Watcher().scrape(capture(release))

    def test_release_1_1_lacks_waits_of_zero(self) -> None:
        notes = {r: Watcher().scrape(capture(r))["queue"] for r in ("1.1", "1.4")}
        assert [one.note != "" for one in notes.values() if isinstance(one, Measurement)] == [
            True,
            False,
        ]

    def test_release_1_3_has_the_utilization_only(self) -> None:
        by_signal = Watcher().scrape(capture("1.3"))
        assert value(by_signal["kv_utilization"]) == 0.4
        assert not by_signal.keys() & {"kv_blocks_used", "sequences_active", "input_tokens"}

    def test_release_1_4_has_every_gauge(self) -> None:
        by_signal = Watcher().scrape(capture("1.4"))
        numbers = {
            signal: value(one)
            for signal, one in by_signal.items()
            if isinstance(one, Measurement) and SIGNALS[signal].kind != "histogram"
            if signal not in ("requests", "request_failures")
        }
        assert numbers == {
            "input_tokens": 4000.0,
            "cached_input_tokens": 1600.0,
            "output_tokens": 900.0,
            "kv_reused_blocks": 50.0,
            "kv_missed_blocks": 150.0,
            "draft_tokens": 80.0,
            "accepted_draft_tokens": 60.0,
            "sequences_active": 6.0,
            "sequences_decoding": 3.0,
            "sequences_paused": 1.0,
            "sequences_waiting": 2.0,  # 6 active, 4 scheduled
            "sequences_max": 2048.0,
            "kv_utilization": 0.4,
            "kv_blocks_used": 400.0,
            "kv_blocks_free": 600.0,
            "kv_blocks_max": 1000.0,
            "kv_block_tokens": 32.0,
            "memory_gpu": 4.0e10,
        }
        assert {"prefill", "decode"} <= by_signal.keys()
        assert isinstance(by_signal["memory_cpu"], Missing)
        assert isinstance(by_signal["memory_pinned"], Missing)

    def test_series_of_an_older_release_are_not_added(self) -> None:
        by_signal = Watcher().scrape(
            capture("1.1").replace("undefined", "chat") + capture("1.4"), model="example/chat-8b"
        )
        assert value(by_signal["ttft"]) == TTFT

    def test_requests_start_at_zero(self) -> None:
        requests = Watcher().scrape("")["requests"]
        assert isinstance(requests, Measurement)
        assert requests.samples == {(("outcome", outcome),): 0.0 for outcome in ALL_OUTCOMES}

    @pytest.mark.parametrize(
        ("word", "outcome", "reason"),
        [
            ("tool_calls", "ok", "tool_calls"),
            ("not_finished", "ok", "not_finished"),
            ("timeout", "timeout", "total"),
            ("error", "error", "error"),
            ("a new word", "error", "unknown"),
        ],
    )
    def test_finish_reasons(self, word: str, outcome: str, reason: str) -> None:
        by_signal = Watcher().scrape(finished(3).replace("stop", word))
        assert outcomes(by_signal["requests"]) == {outcome: 3.0}
        failures = {} if outcome == "ok" else {f"{outcome} {reason}": 3.0}
        assert outcomes(by_signal["request_failures"]) == failures

    def test_several_models_require_the_served_name(self) -> None:
        text = finished(3) + finished(4).replace("chat", "other")
        families = read(text.encode(), prometheus_metrics.FAMILIES)
        assert prometheus_metrics.metrics_model(families, "third") is None
        assert prometheus_metrics.metrics_model(families, "other") == ("other", "")


class TestMultiprocessGauges:
    def test_gauges_of_dead_processes_are_not_added(self) -> None:
        watcher = Watcher()
        dead = gauges("7", num_requests_running=5, kv_cache_used_blocks=90, kv_cache_max_blocks=100)

        def scrape(now: float, used: float) -> BySignal:
            alive = gauges(
                "8", num_requests_running=1, kv_cache_used_blocks=used, kv_cache_max_blocks=100
            )
            return watcher.scrape(dead + alive, now)

        first = scrape(0, 10)["kv_utilization"]
        assert isinstance(first, Missing)
        assert first.reason.startswith("2 processes have gauges and none of them has changed yet")
        by_signal = scrape(1, 20)
        assert value(by_signal["kv_utilization"]) == 0.2
        assert value(by_signal["sequences_active"]) == 1

    def test_a_process_that_appears_is_alive(self) -> None:
        watcher = Watcher()
        old = gauges("7", num_requests_running=5)
        assert value(watcher.scrape(old, 0)["sequences_active"]) == 5
        by_signal = watcher.scrape(old + gauges("8", num_requests_running=2), 1)
        assert value(by_signal["sequences_active"]) == 2

    def test_frontends_of_one_engine_are_not_added_up(self) -> None:
        """With ``num_serve_frontends`` each frontend has the whole engine's gauges."""
        watcher = Watcher()
        looks = [(1, 1), (2, 1), (2, 5), (3, 5), (3, 0)]
        cache = []
        for now, (first, second) in enumerate(looks):
            by_signal = watcher.scrape(
                gauges("7", num_requests_running=first, max_num_active_requests=64)
                + gauges("8", num_requests_running=second, max_num_active_requests=64)
                + gauges("6", num_requests_running=9, max_num_active_requests=32),  # dead
                now,
            )
            cache.append(by_signal["sequences_active"])
        assert isinstance(cache[0], Missing)
        assert [value(one) for one in cache[1:]] == [2, 5, 3, 0]
        assert value(by_signal["sequences_max"]) == 64

    def test_a_process_that_ended_is_replaced_by_its_successor(self) -> None:
        watcher = Watcher()
        watcher.scrape(gauges("7", num_requests_running=1), 0)
        watcher.scrape(gauges("7", num_requests_running=2), 1)
        by_signal: BySignal = {}
        for now in (2, 10):
            both = gauges("7", num_requests_running=2) + gauges("8", num_requests_running=now)
            by_signal = watcher.scrape(both, now)
        assert value(by_signal["sequences_active"]) == 10

    def test_active_gauges_without_change_are_withdrawn(self) -> None:
        watcher = Watcher(frozen_after=5)
        text = gauges("7", num_requests_running=4, max_num_active_requests=64)
        assert value(watcher.scrape(text, 0)["sequences_active"]) == 4
        assert value(watcher.scrape(text, 5)["sequences_active"]) == 4
        by_signal = watcher.scrape(text, 6)
        stale = by_signal["sequences_active"]
        assert isinstance(stale, Missing)
        assert "have not moved for 6 s" in stale.reason
        assert value(by_signal["sequences_max"]) == 64
        assert value(watcher.scrape(text.replace(" 4", " 3"), 7)["sequences_active"]) == 3

    def test_idle_gauges_may_stay_unchanged(self) -> None:
        watcher = Watcher()
        text = gauges("7", num_requests_running=0)
        watcher.scrape(text, 0)
        assert value(watcher.scrape(text, 1000)["sequences_active"]) == 0

    def test_requests_that_complete_without_a_move_show_a_dead_writer(self) -> None:
        watcher = Watcher()
        text = gauges("7", num_requests_running=0, iteration_latency_seconds=0.01)
        for now, count in enumerate((10, 11, 12, 13)):
            by_signal = watcher.scrape(text + finished(count), now)
            assert isinstance(by_signal["sequences_active"], Missing) == (count == 13)

    def test_host_pool_is_subtracted(self) -> None:
        watcher = Watcher()

        def scrape(now: float, running: float, used: float) -> BySignal:
            return watcher.scrape(
                gauges(
                    "7",
                    num_requests_running=running,
                    kv_cache_used_blocks=used,
                    kv_cache_free_blocks=1000 - used,
                    kv_cache_max_blocks=1000,
                ),
                now,
            )

        scrape(0, 0, 800)
        scrape(1, 0, 800)
        by_signal = scrape(2, 1, 850)
        assert value(by_signal["kv_utilization"]) == 0.25
        assert value(by_signal["kv_blocks_max"]) == 200
        assert by_signal["kv_utilization"].method == "trtllm_without_host_pool"  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("used", "free", "most", "words"),
        [(0, 0, 0, "KV cache of 0 blocks"), (7, 7, 5, "contradict"), (2, 90, 10, "contradict")],
    )
    def test_invalid_blocks_are_refused(
        self, used: float, free: float, most: float, words: str
    ) -> None:
        by_signal = Watcher().scrape(
            gauges(
                "7",
                kv_cache_used_blocks=used,
                kv_cache_free_blocks=free,
                kv_cache_max_blocks=most,
            )
        )
        for signal in ("kv_utilization", "kv_blocks_used", "kv_blocks_free", "kv_blocks_max"):
            gap = by_signal[signal]
            assert isinstance(gap, Missing)
            assert words in gap.reason

    @pytest.mark.parametrize("bad", ["NaN", "-1", "+Inf"])
    def test_invalid_gauges_are_left_out(self, bad: str) -> None:
        by_signal = Watcher().scrape(gauges("7", num_requests_running=1).replace(" 1", f" {bad}"))
        assert "sequences_active" not in by_signal


names = st.sampled_from(sorted(prometheus_metrics.FAMILIES))
numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-5, 5).map(float)
labels = st.dictionaries(
    st.sampled_from(["pid", "model_name", "finished_reason", "le", "engine_type"]),
    st.sampled_from(["1", "2", "chat", "stop", "0.1", "+Inf", ""]),
)
suffixes = st.sampled_from(["", "_bucket", "_sum", "_count"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(names, suffixes, labels, numbers), max_size=12),
        min_size=1,
        max_size=4,
    )
)
def test_any_exposition_gives_valid_measurements(
    looks: list[list[tuple[str, str, dict[str, str], float]]],
) -> None:
    watcher = Watcher()
    for now, samples in enumerate(looks):
        families: dict[str, ParsedFamily] = {}
        for name, suffix, labels_of, number in samples:
            family = families.setdefault(name, ParsedFamily(name))
            family.samples.append((name + suffix, labels_of, number))
        if prometheus_metrics.metrics_model(families, "chat") is None:
            continue
        for one in watcher.see(families, float(now)).values():
            if isinstance(one, Measurement):
                for number in one.samples.values():
                    values = (
                        [*number.counts, number.sum]
                        if isinstance(number, Distribution)
                        else [number]
                    )
                    assert all(0 <= each < inf for each in values)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_truncated_exposition_is_refused_or_has_less(data: st.DataObject) -> None:
    body = capture("1.4").encode()
    part = body[: data.draw(st.integers(0, len(body)))]
    try:
        families = read(part, prometheus_metrics.FAMILIES)
    except ExpositionError:
        return
    whole = Watcher().scrape(body.decode())
    for signal, one in Watcher().see(families, 0.0).items():
        if isinstance(one, Measurement) and SIGNALS[signal].kind == "histogram":
            assert one == whole[signal]
