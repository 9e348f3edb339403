"""SGLang as a source."""

from __future__ import annotations

import re
from math import inf
from pathlib import Path

import pytest

from exporter.methods import METHODS
from exporter.samples import Distribution, Measurement, Missing, ModelInfo, Snapshot, SourceError
from exporter.sources.sglang.sglang_source import SglangSource
from promql.http_client import FetchLimits
from slos.signals import MAIN_SIGNALS, SIGNALS
from tests.fake_server import fake_server

CAPTURE = (Path(__file__).parent / "captures" / "sglang_by_hand.txt").read_text()
CHAT = "example/chat-8b"


async def scrape(metrics: str) -> Snapshot:
    async with (
        fake_server({"/metrics": metrics}) as fake,
        SglangSource(fake.url, limits=FetchLimits(5.0)) as source,
    ):
        return await source.snapshot(0.0)


def by_signal(snapshot: Snapshot) -> dict[str, Measurement | Missing]:
    found: tuple[Measurement | Missing, ...] = (*snapshot.missing, *snapshot.measurements)
    return {one.signal: one for one in found if one.model == CHAT}


def value(one: Measurement | Missing) -> object:
    assert isinstance(one, Measurement), one
    [sample] = one.samples.values()
    return sample


async def test_every_signal_has_a_measurement_or_a_reason() -> None:
    snapshot = await scrape(CAPTURE)
    found = by_signal(snapshot)
    assert set(MAIN_SIGNALS) <= found.keys()
    assert snapshot.models == (ModelInfo(CHAT, "", "sglang", decoupled=True),)
    for one in found.values():
        assert isinstance(one, Measurement) or (one.reason and one.fix)
        assert isinstance(one, Missing) or one.method in METHODS


async def test_values() -> None:
    found = by_signal(await scrape(CAPTURE))
    numbers = {
        signal: value(one)
        for signal, one in found.items()
        if isinstance(one, Measurement) and SIGNALS[signal].kind != "histogram"
        if signal != "requests"
    }
    assert numbers == {
        "input_tokens": 7500,
        "cached_input_tokens": 2100,
        "output_tokens": 950,
        "preemptions": 3,
        "sequences_active": 6,
        "sequences_waiting": 2,
        "kv_utilization": 0.25,
        "kv_blocks_max": 1000,
        "kv_block_tokens": 64,
        "kv_blocks_used": 250,
        "kv_blocks_free": 750,
    }
    assert value(found["queue"]) == Distribution((0.0, 0.1, inf), (0, 8, 10), 1.5)
    assert value(found["e2e"]) == Distribution((4.0, inf), (8, 10), 29.0)


async def test_lengths_are_those_of_the_engine() -> None:
    labels = f'engine_type="unified",model_name="{CHAT}"'
    text = "".join(
        f"# TYPE sglang:{name}_tokens_histogram histogram\n"
        f'sglang:{name}_tokens_histogram_bucket{{{labels},le="100.0"}} 4\n'
        f'sglang:{name}_tokens_histogram_bucket{{{labels},le="+Inf"}} 10\n'
        f"sglang:{name}_tokens_histogram_sum{{{labels}}} 7500\n"
        f"sglang:{name}_tokens_histogram_count{{{labels}}} 10\n"
        for name in ("prompt", "generation")
    )
    found = by_signal(await scrape(CAPTURE + text))
    for signal, quality in (("input_length", "exact"), ("output_length", "estimate")):
        one = found[signal]
        assert isinstance(one, Measurement)
        assert (value(one), METHODS[one.method].quality) == (
            Distribution((100.0, inf), (4, 10), 7500),
            quality,
        )
    assert "input_length" not in by_signal(await scrape(CAPTURE))


async def test_ttft_is_that_of_streams() -> None:
    found = by_signal(await scrape(CAPTURE))
    assert value(found["ttft"]) == Distribution((0.2, inf), (4, 9), 2.25)
    unlabelled = re.sub('.*is_streaming="false".*\n', "", CAPTURE)
    unlabelled = unlabelled.replace('is_streaming="true",', "")
    found = by_signal(await scrape(unlabelled))
    assert value(found["ttft"]) == Distribution((0.2, inf), (4, 9), 2.25)
    without = re.sub('sglang:time_to_first.*is_streaming="true".*\n', "", CAPTURE)
    gap = by_signal(await scrape(without))["ttft"]
    assert isinstance(gap, Missing)
    assert gap.reason == "no streaming request has completed yet"


async def test_intervals_are_shared_out_over_their_tokens() -> None:
    found = by_signal(await scrape(CAPTURE))
    intervals = Distribution((0.02, inf), (700, 900), 18.0)
    for signal, quality in (("itl_normalized", "exact"), ("itl", "estimate")):
        one = found[signal]
        assert isinstance(one, Measurement)
        assert (value(one), METHODS[one.method].quality) == (intervals, quality)


async def test_aborted_requests_are_not_ok() -> None:
    requests = by_signal(await scrape(CAPTURE))["requests"]
    assert isinstance(requests, Measurement)
    assert requests.samples == {
        (("outcome", "ok"), ("reason", "finished")): 8,
        (("outcome", "client_disconnected"), ("reason", "abort")): 2,
    }
    assert METHODS[requests.method].quality == "estimate"


async def test_ranks_of_one_replica_count_once_and_replicas_are_added_up() -> None:
    """With --enable-metrics-for-all-schedulers every rank publishes the same requests."""

    def ranks(name: str, numbers: dict[tuple[str, str], float]) -> str:
        return f"# TYPE sglang:{name} gauge\n" + "".join(
            f'sglang:{name}{{dp_rank="{replica}",model_name="{CHAT}",tp_rank="{rank}"}} {number}\n'
            for (replica, rank), number in numbers.items()
        )

    running = {("0", "1"): 5, ("0", "0"): 5, ("1", "2"): 3, ("1", "10"): 3}
    usage = {("0", "0"): 0.5, ("0", "1"): 0.5, ("1", "2"): 0.3, ("1", "10"): 0.3}
    found = by_signal(
        await scrape(ranks("num_running_reqs", running) + ranks("token_usage", usage))
    )
    assert value(found["sequences_active"]) == 8
    assert value(found["kv_utilization"]) == 0.4


async def test_priorities_are_not_added_to_the_total() -> None:
    name = "sglang:num_queue_reqs"
    text = f"# TYPE {name} gauge\n" + "".join(
        f'{name}{{model_name="{CHAT}",priority="{priority}",tp_rank="0"}} {number}\n'
        for priority, number in (("", 7), ("1", 4), ("2", 3))
    )
    assert value(by_signal(await scrape(text))["sequences_waiting"]) == 7


async def test_a_utilization_above_one_is_refused() -> None:
    found = by_signal(await scrape(CAPTURE.replace("} 0.25", "} 1e9")))
    gap = found["kv_utilization"]
    assert isinstance(gap, Missing)
    assert gap.reason == "SGLang reports a token usage of 1e+09, more than 1"


async def test_without_metrics_the_flag_is_named() -> None:
    with pytest.raises(SourceError, match="start SGLang with --enable-metrics"):
        await scrape("# TYPE http_requests_total counter\nhttp_requests_total 1\n")
