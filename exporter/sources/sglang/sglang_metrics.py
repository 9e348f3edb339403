"""Interpret SGLang's metrics, by the names in python/sglang/srt/observability/metrics_collector.py.

Schedulers publish their gauges and queue times with the labels ``tp_rank``, ``pp_rank``,
``moe_ep_rank`` and, with data parallelism, ``dp_rank``.  With
``--enable-metrics-for-all-schedulers`` every rank of a replica publishes the same requests, so only
one rank of each replica counts.  With priority scheduling the totals have an empty ``priority``,
and the series of single priorities are parts of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from exporter.samples import Labels, Measurement, Missing, Model, ModelInfo, Value
from exporter.sources.exposition.by_model import FamiliesByModel
from exporter.sources.exposition.text_parser import ParsedFamily, Sample
from exporter.sources.measurements import of_models

TTFT = "sglang:time_to_first_token_seconds"
HISTOGRAMS = (
    ("ttft", "sglang_histogram", TTFT),
    ("itl", "sglang_shared_intervals", "sglang:inter_token_latency_seconds"),
    ("itl_normalized", "sglang_histogram", "sglang:inter_token_latency_seconds"),
    ("e2e", "sglang_histogram", "sglang:e2e_request_latency_seconds"),
    ("queue", "sglang_histogram", "sglang:queue_time_seconds"),
    ("input_length", "sglang_input_lengths", "sglang:prompt_tokens_histogram"),
    ("output_length", "sglang_output_lengths", "sglang:generation_tokens_histogram"),
)
COUNTERS = (
    ("input_tokens", "sglang:prompt_tokens_total"),
    ("cached_input_tokens", "sglang:cached_tokens_total"),
    ("output_tokens", "sglang:generation_tokens_total"),
    ("preemptions", "sglang:num_retracted_requests_total"),
)
FINISHED = "sglang:num_requests_total"
ABORTED = "sglang:num_aborted_requests_total"
GAUGES = (
    ("sequences_active", "sglang:num_running_reqs"),
    ("sequences_waiting", "sglang:num_queue_reqs"),
)
USAGE = "sglang:token_usage"
PAGES = "sglang:num_pages"
PAGE_SIZE = "sglang:page_size"
USED_TOKENS = "sglang:kv_used_tokens"
OF_SCHEDULERS = frozenset(
    {
        "sglang:queue_time_seconds",
        "sglang:num_retracted_requests_total",
        *(name for _, name in GAUGES),
        USAGE,
        PAGES,
        PAGE_SIZE,
        USED_TOKENS,
    }
)
FAMILIES = frozenset(
    {
        FINISHED,
        ABORTED,
        *(name for _, _, name in HISTOGRAMS),
        *(name for _, name in COUNTERS),
        *OF_SCHEDULERS,
    }
)
RANKS = ("pp_rank", "tp_rank", "moe_ep_rank")


def selected(families: Mapping[str, ParsedFamily]) -> dict[str, ParsedFamily]:
    """Return the families with the series that count: one rank per replica, streams for TTFT."""
    return {
        name: _kept(family, _of_one_rank)
        if name in OF_SCHEDULERS
        else _kept(family, _of_streams)
        if name == TTFT
        else family
        for name, family in families.items()
    }


def interpret(
    metrics: FamiliesByModel, models: Sequence[ModelInfo]
) -> Iterator[Measurement | Missing]:
    """Yield the measurements of these models, and the reason for every refused value."""
    keys = [(info.model, info.version) for info in models]
    for signal, method, name in HISTOGRAMS:
        yield from of_models(signal, method, keys, metrics.distributions(name))
    for signal, name in COUNTERS:
        yield from of_models(signal, "sglang_counter", keys, metrics.total(name))
    for signal, name in GAUGES:
        totals = {model: sum(values) for model, values in metrics.values(name).items()}
        yield from of_models(signal, "sglang_gauge", keys, totals)
    yield from _cache(metrics, keys)
    yield from _requests(metrics, keys)


def _cache(metrics: FamiliesByModel, keys: Sequence[Model]) -> Iterator[Measurement | Missing]:
    pages, sizes = metrics.values(PAGES), metrics.values(PAGE_SIZE)
    used_tokens = metrics.values(USED_TOKENS)
    for key, values in metrics.values(USAGE).items():
        if max(values) > 1:
            reason = f"SGLang reports a token usage of {max(values):g}, more than 1"
            yield Missing("kv_utilization", *key, reason, "report it to SGLang")
        else:
            mean = sum(values) / len(values)
            yield from of_models("kv_utilization", "sglang_gauge", keys, {key: mean})
    for key, replicas in pages.items():
        size = set(sizes.get(key, ()))
        most = sum(replicas)
        if len(size) != 1 or not (tokens := size.pop()) or not most:
            continue
        yield from of_models("kv_blocks_max", "sglang_gauge", keys, {key: most})
        yield from of_models("kv_block_tokens", "sglang_gauge", keys, {key: tokens})
        used = sum(used_tokens.get(key, ())) / tokens
        if key in used_tokens and used <= most:
            for signal, value in (("kv_blocks_used", used), ("kv_blocks_free", most - used)):
                yield from of_models(signal, "sglang_pages", keys, {key: value})


def _requests(metrics: FamiliesByModel, keys: Sequence[Model]) -> Iterator[Measurement]:
    """Yield requests by outcome.

    SGLang counts aborted requests when the abort is sent, and counts them as processed as well if
    they were running.
    """
    aborted = metrics.total(ABORTED)
    for key, finished in metrics.total(FINISHED).items():
        if key not in keys:
            continue
        disconnected = aborted.get(key, 0.0)
        [ok] = metrics.parts.derived(
            ("requests", key), (max(0.0, finished - disconnected),), (finished, disconnected)
        )
        samples: dict[Labels, Value] = {
            (("outcome", "ok"), ("reason", "finished")): ok,
            (("outcome", "client_disconnected"), ("reason", "abort")): disconnected,
        }
        yield Measurement("requests", *key, "sglang_requests", samples)


def _kept(family: ParsedFamily, choose: Callable[[Sequence[Sample]], list[int]]) -> ParsedFamily:
    """Return a family with the chosen samples; which ones depends on names and labels only."""
    if "kept" not in family.cache:
        family.cache["kept"] = choose(family.samples)
        family.cache["of kept"] = {}
    kept = cast(list[int], family.cache["kept"])
    cache = cast(dict[object, object], family.cache["of kept"])
    samples = [family.samples[place] for place in kept]
    return ParsedFamily(family.name, family.type, family.help, samples, family.duplicate, cache)


def _of_one_rank(samples: Sequence[Sample]) -> list[int]:
    """Return the indices of the samples of one rank of each replica, without single priorities."""
    first: dict[tuple[tuple[str, str], ...], tuple[tuple[int, ...], list[int]]] = {}
    for place, (name, labels, _) in enumerate(samples):
        if labels.get("priority"):
            continue
        replica = ("", name), *(pair for pair in labels.items() if pair[0] not in RANKS)
        rank = tuple(_number(labels.get(label, "")) for label in RANKS)
        known = first.get(replica)
        if known is None or rank < known[0]:
            first[replica] = (rank, [place])
        elif rank == known[0]:
            known[1].append(place)
    return sorted(place for _, places in first.values() for place in places)


def _of_streams(samples: Sequence[Sample]) -> list[int]:
    """Return the indices of the samples of streams; of all if the release does not label them."""
    streams = [place for place, sample in enumerate(samples) if _streams(sample[1]) == "true"]
    labelled = any(_streams(labels) for _, labels, _ in samples)
    return streams if labelled else list(range(len(samples)))


def _streams(labels: Mapping[str, str]) -> str:
    return labels.get("is_streaming", "")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else -1
