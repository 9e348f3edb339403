"""Timing of single requests: items, losses and tailed files."""

from __future__ import annotations

import json
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.samples import Distribution, Measurement, Missing, Snapshot
from exporter.sources.loss_counter import LossCounter
from exporter.sources.trtllm.iterations.json_splitter import JsonSplitter
from exporter.sources.trtllm.request_feed import LOSSY_FOR, RequestFeed
from exporter.sources.trtllm.request_timing import SPANS, RequestTimings, timing, token_gaps
from exporter.store.store import Store

BOOT = 76735.0
Item = dict[str, object]


def item(
    queue: float = 0.5,
    prefill: float = 0.25,
    decode: float = 1.0,
    *,
    tokens: int = 11,
    drafts: int = 0,
    at: float = BOOT,
    **more: object,
) -> Item:
    times = {
        "server_arrival_time": at - 0.001,
        "arrival_time": at,
        "first_scheduled_time": at + queue,
        "first_token_time": at + queue + prefill,
        "server_first_token_time": at + queue + prefill + 0.004,
        "last_token_time": at + queue + prefill + decode,
    }
    metrics: Item = {"first_iter": 10, "last_iter": 9 + tokens - drafts, "timing_metrics": times}
    if drafts:
        metrics["speculative_decoding"] = {"total_accepted_draft_tokens": drafts}
    return {"request_id": 1, "perf_metrics": metrics, **more}


def breakdown(chunks: list[object], steps: list[object]) -> Item:
    """Return the times of a request's prefill chunks and steps, as the PyTorch backend does."""

    def metrics(times: list[object]) -> list[Item]:
        return [
            {"forward_start_time": 1.0, "gpu_forward_time": 17.5, "iter": 3, "token_time": time}
            for time in times
        ]

    return {
        "step_metrics": metrics(steps),
        "ctx_chunk_metrics": metrics(chunks),
        "ctx_gpu_forward_time": 41.2,
    }


def changed(**times: object) -> Item:
    """Return an item with other times."""
    one = json.loads(json.dumps(item()))
    one["perf_metrics"]["timing_metrics"].update(times)
    return dict(one)


def histograms(timings: RequestTimings) -> dict[str, Distribution]:
    found = {}
    for measurement in timings.measurements():
        [distribution] = measurement.samples.values()
        assert isinstance(distribution, Distribution)
        found[measurement.signal] = distribution
    return found


class TestItems:
    def test_spans(self) -> None:
        assert dict(timing(item())) == {
            "ttft": 0.75,
            "queue": 0.5,
            "prefill": 0.25,
            "decode": 1.0,
            "e2e": 1.75,
            "tpot": 0.1,
        }

    def test_the_clock_is_no_date(self) -> None:
        assert dict(timing(item(at=1.0))) == dict(timing(item(at=2.0**30)))

    def test_drafts_are_tokens_too(self) -> None:
        assert dict(timing(item(tokens=21, drafts=10)))["tpot"] == 0.05

    def test_a_wait_of_zero_counts_and_a_single_token_has_no_decode(self) -> None:
        found = dict(timing(item(queue=0.0, decode=0.0, tokens=1)))
        assert found == {"ttft": 0.25, "queue": 0.0, "prefill": 0.25, "e2e": 0.25}

    @pytest.mark.parametrize("never", [0, 0.0, None, "1", True, float("nan"), inf, -5.0, 10**400])
    def test_request_without_tokens_has_no_ttft(self, never: object) -> None:
        found = dict(timing(changed(first_token_time=never, last_token_time=never)))
        assert found == {"queue": 0.5}

    @pytest.mark.parametrize(
        "times",
        [
            {"first_token_time": BOOT - 1},
            {"arrival_time": BOOT + 100},
            {"last_token_time": BOOT + 0.6},
            {"arrival_time": 1e-300, "first_scheduled_time": 1e300},
        ],
    )
    def test_contradicting_times_are_ignored(self, times: dict[str, float]) -> None:
        assert dict(timing(changed(**times))) == {}

    @pytest.mark.parametrize(
        "one",
        [
            {},
            {"perf_metrics": None},
            {"perf_metrics": {"timing_metrics": [1]}},
            {"ctx_perf_metrics": 7, "disagg_server_arrival_time": "x"},
        ],
    )
    def test_nonsense(self, one: Item) -> None:
        assert dict(timing(one)) == {}

    def test_token_times_are_gaps(self) -> None:
        """Steps have a clock of their own, and the first token is that of the prefill."""
        one = item(time_breakdown_metrics=breakdown([7.0, 7.5], [7.52, 7.54, 7.74]))
        assert token_gaps(one) == [0.02, 0.02, 0.2]
        timings = RequestTimings("chat", {"itl": [0.06]})
        timings.add([one])
        timings.measurements()
        found = histograms(timings)
        assert (found["itl"].count, found["itl"].sum) == (3, pytest.approx(0.24))
        assert found["itl"].counts[found["itl"].boundaries.index(0.06)] == 2
        assert (found["max_gap"].count, found["max_gap"].sum) == (1, 0.2)

    def test_an_orchestrator_has_the_steps_of_the_decoding_half(self) -> None:
        whole = {
            "ctx_perf_metrics": item(time_breakdown_metrics=breakdown([3.0], [])),
            "gen_perf_metrics": item(time_breakdown_metrics=breakdown([], [900.0, 900.02])),
        }
        assert token_gaps(whole) == [0.02]
        assert token_gaps(whole["gen_perf_metrics"] | {"ctx_request_id": 3}) == []

    @pytest.mark.parametrize(
        "times", [[2.0, 1.0], [1.0, None], [1.0, "2"], [1.0, 1e9], [0, 1.0], [1.0, inf]]
    )
    def test_steps_without_usable_times_have_no_gaps(self, times: list[object]) -> None:
        one = item(time_breakdown_metrics=breakdown([], times))
        assert token_gaps(one) == []
        assert dict(timing(one))["ttft"] == 0.75

    @pytest.mark.parametrize("bad", [None, 7, {}, {"step_metrics": 3}, {"step_metrics": [1, None]}])
    def test_a_breakdown_that_is_none(self, bad: object) -> None:
        assert token_gaps(item(time_breakdown_metrics=bad)) == []

    def test_halves_of_a_request_are_none(self) -> None:
        timings = RequestTimings("chat", {})
        timings.add([item(ctx_request_id=3)])
        assert histograms(timings) == {}
        assert timings.refused == {"half of a disaggregated request": 1}

    @pytest.mark.parametrize(
        "name", ["disagg_server_first_token_time", "disagg_server_first_token_ts"]
    )
    def test_the_orchestrator_has_the_whole(self, name: str) -> None:
        whole = {
            "disagg_server_arrival_time": 100.0,
            name: 100.5,
            "ctx_perf_metrics": item(0.125, 0.25, at=5000.0, ctx_request_id=3),
            "gen_perf_metrics": item(0.5, 0.5, at=9000.0, ctx_request_id=3),
        }
        assert dict(timing(whole)) == {"ttft": 0.5, "queue": 0.125, "prefill": 0.25}


class TestTimingHistograms:
    def test_threshold_is_a_bucket_boundary(self) -> None:
        timings = RequestTimings("chat", {"ttft": [0.8]})
        timings.add([item(), item(prefill=0.3), item(prefill=0.31)])
        ttft = histograms(timings)["ttft"]
        assert ttft.counts[ttft.boundaries.index(0.8)] == 2
        assert ttft.count == 3

    def test_the_first_items_of_a_signal_count(self) -> None:
        timings = RequestTimings("chat", {})
        timings.add([item()])
        assert {signal: one.count for signal, one in histograms(timings).items()} == dict.fromkeys(
            (*SPANS, "tpot"), 1
        )
        timings.add([item()])
        assert histograms(timings)["e2e"].count == 2

    def test_items_of_the_past_only_show_the_signals(self) -> None:
        timings = RequestTimings("chat", {})
        assert timings.add([item(), item()], past=True) == 2
        timings.measurements()
        assert histograms(timings)["ttft"].count == 0


class TestLossCounter:
    def test_complete_items_lose_nothing(self) -> None:
        losses = LossCounter()
        for counted, arrived in ((100, 1000), (103, 3), (103, 2), (105, 0), (120, 15)):
            losses.add_received(arrived)
            assert losses.compare(counted) == 0

    def test_item_late_by_one_scrape_is_not_lost(self) -> None:
        losses = LossCounter()
        for counted, arrived in ((0, 0), (5, 4), (9, 5), (9, 0)):
            losses.add_received(arrived)
            losses.compare(counted)
        assert losses.lost == 0

    def test_a_longer_grace_counts_later_records(self) -> None:
        losses = LossCounter(grace_scrapes=3)
        for counted, arrived in ((0, 0), (5, 0), (9, 0), (9, 0), (9, 9), (20, 0), (20, 0)):
            losses.add_received(arrived)
            assert losses.compare(counted) == 0
        assert [losses.compare(20) for _ in range(3)] == [0, 11, 0]

    def test_another_reader_takes_half(self) -> None:
        losses = LossCounter()
        for counted in range(0, 110, 10):
            losses.add_received(5)
            losses.compare(counted)
        assert losses.lost == pytest.approx(50, abs=10)

    def test_earlier_items_hide_no_loss(self) -> None:
        losses = LossCounter()
        losses.add_received(1000)
        losses.compare(0)
        for counted in range(10, 60, 10):
            losses.add_received(5)
            losses.compare(counted)
        assert losses.lost >= 10

    def test_a_restart_is_no_loss(self) -> None:
        losses = LossCounter()
        for counted, arrived in ((50, 0), (60, 10), (2, 2), (4, 2)):
            losses.add_received(arrived)
            losses.compare(counted)
        assert losses.lost == 0

    @given(
        st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1)), max_size=40), st.integers(0, 900)
    )
    def test_single_reader_loses_nothing(
        self, steps: list[tuple[int, float]], history: int
    ) -> None:
        """Requests end all the time, also between the reading of the count and of the items."""
        losses, counted, queued = LossCounter(), history, history
        for ended, share in steps:
            before = round(ended * share)
            queued += before
            counted += before
            at_reading = counted
            queued += ended - before
            counted += ended - before
            losses.add_received(queued)
            queued = 0
            assert losses.compare(at_reading) == 0

    @given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=40))
    def test_loss_is_at_most_the_count(self, steps: list[tuple[int, int]]) -> None:
        losses, counted = LossCounter(), 0
        losses.compare(0)
        for ended, arrived in steps:
            counted += ended
            losses.add_received(min(ended, arrived))
            losses.compare(counted)
        missing = sum(max(0, ended - arrived) for ended, arrived in steps)
        assert losses.lost <= missing
        losses.compare(counted)
        assert losses.lost == missing


class TestFeed:
    def feed(self) -> RequestFeed:
        return RequestFeed(
            "chat", {}, place="there", grace_scrapes=1, if_empty="turn it on", if_lost="share not"
        )

    def by_signal(self, feed: RequestFeed, now: float = 0.0) -> dict[str, Measurement | Missing]:
        return {one.signal: one for one in feed.report(now)}

    def count(self, feed: RequestFeed, now: float = 0.0) -> float:
        measurement = self.by_signal(feed, now)["ttft"]
        assert isinstance(measurement, Measurement)
        [distribution] = measurement.samples.values()
        assert isinstance(distribution, Distribution)
        return distribution.count

    def test_first_items_belong_to_the_past(self) -> None:
        feed = self.feed()
        feed.add([item()] * 7)
        feed.end_scrape(7, 0)
        assert self.count(feed) == 0
        feed.add([item()] * 2)
        feed.end_scrape(9, 1)
        assert self.count(feed) == 2

    def test_past_ends_with_the_first_successful_scrape(self) -> None:
        feed = self.feed()
        feed.add([item()] * 3)
        feed.end_scrape(7, 0, failed=True)
        feed.add([item()] * 4)
        feed.end_scrape(7, 1)
        assert self.count(feed) == 0

    def test_empty_while_requests_end(self) -> None:
        feed = self.feed()
        for count in (0, 5, 10):
            feed.end_scrape(count, count)
        gap = self.by_signal(feed, 10)["ttft"]
        assert isinstance(gap, Missing)
        assert (gap.reason, gap.fix) == ("requests end and there stays empty", "turn it on")

    def test_empty_while_nothing_ends(self) -> None:
        feed = self.feed()
        feed.end_scrape(5, 0)
        assert self.by_signal(feed) == {}

    def test_refused_while_some_are_missing(self) -> None:
        feed = self.feed()
        for now in range(4):
            feed.add([item()])
            feed.end_scrape(now * 2, now)
        gap = self.by_signal(feed, 3)["ttft"]
        assert isinstance(gap, Missing)
        assert gap.reason.startswith("there lacks 1 of 5 requests")
        assert gap.fix == "share not"
        assert self.count(feed, 3 + LOSSY_FOR) == 3

    def test_what_was_withheld_is_not_counted_beside_the_histogram(self) -> None:
        """The histogram of the engine counted the same requests until the feed was used."""
        feed, store = self.feed(), Store(stale_after=60.0)
        engine = Distribution((1.0, inf), (4.0, 4.0), 1.0)
        histogram = Measurement("ttft", "chat", "", "trtllm_serve_histogram", {(): engine})
        for now, (records, finished) in enumerate([(0, 0), (1, 2), (1, 4), (0, 4), (0, 4)]):
            feed.add([item()] * records)
            feed.end_scrape(finished, now)
            store.update(self.snapshot(feed, now, histogram), now, 0.1)
        withheld = self.by_signal(feed, now)["ttft"]
        assert isinstance(withheld, Missing)
        late = now + LOSSY_FOR
        store.update(self.snapshot(feed, late, histogram), late, 0.1)
        assert self.shown(store, late) == ("trtllm_request_timing", 0)
        feed.add([item()])
        feed.end_scrape(finished + 1, late + 1)
        store.update(self.snapshot(feed, late + 1, histogram), late + 1, 0.1)
        assert self.shown(store, late + 1) == ("trtllm_request_timing", 1)

    def snapshot(self, feed: RequestFeed, now: float, *more: Measurement) -> Snapshot:
        found = tuple(one for one in feed.report(now) if isinstance(one, Measurement))
        return Snapshot("trtllm", (*more, *found))

    def shown(self, store: Store, now: float) -> tuple[str, float]:
        [state] = [one for one in store.view(now).signals if one.signal == "ttft"]
        [value] = state.samples.values()
        assert isinstance(value, Distribution)
        return state.method, value.count

    def test_halves_are_named(self) -> None:
        feed = self.feed()
        feed.add([item(ctx_request_id=1)])
        feed.end_scrape(1, 0)
        gap = self.by_signal(feed)["ttft"]
        assert isinstance(gap, Missing)
        assert "half of a disaggregated request" in gap.reason


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["perf_metrics", "timing_metrics", "ctx_perf_metrics", "first_iter", "last_iter",
             "arrival_time", "first_scheduled_time", "first_token_time", "last_token_time",
             "ctx_request_id", "speculative_decoding", "total_accepted_draft_tokens"]
        ),
        inner,
        max_size=6,
    ),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=2) | st.just("perf_metrics"), values, max_size=4)))
def test_any_items_give_consistent_histograms(items: list[Item]) -> None:
    timings = RequestTimings("chat", {"ttft": (0.8,)})
    timings.add(items)
    timings.measurements()
    timings.add([item()])
    timings.measurements()
    for distribution in histograms(timings).values():
        assert list(distribution.counts) == sorted(distribution.counts)
        assert 0 <= distribution.sum < inf
        assert 1 <= distribution.count <= len(items) + 1


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_cut_body_gives_its_complete_items_once(data: st.DataObject) -> None:
    body = json.dumps([item(at=BOOT + n) for n in range(5)], indent=1).encode()
    end = data.draw(st.integers(0, len(body)))
    splitter = JsonSplitter()
    timings = RequestTimings("chat", {})
    cuts = sorted(data.draw(st.lists(st.integers(0, end), max_size=4)))
    count = 0
    for start, stop in zip([0, *cuts], [*cuts, end], strict=True):
        count += timings.add(splitter.feed(body[start:stop]))
    count += timings.add(splitter.end())
    assert count == sum(
        1
        for n in range(1, 6)
        if len(json.dumps([item(at=BOOT + k) for k in range(n)], indent=1)) - 2 <= end
    )
