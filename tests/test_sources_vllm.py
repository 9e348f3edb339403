"""vLLM's families under the names of Triton's backend and of vLLM itself, old and new."""

from __future__ import annotations

from math import inf

import pytest

from exporter.samples import Distribution, Measurement, Missing
from tests.fake_triton import config, core, found, outcomes, scrape

VLLM = {"chat": config("vllm")}


def histogram(name: str, labels: str = 'model="chat",version="1"') -> str:
    return (
        f"# TYPE vllm:{name} histogram\n"
        f"vllm:{name}_count{{{labels}}} 5\n"
        f"vllm:{name}_sum{{{labels}}} 2.5\n"
        f'vllm:{name}_bucket{{{labels},le="0.25"}} 2\n'
        f'vllm:{name}_bucket{{{labels},le="+Inf"}} 5\n'
    )


def plain(kind: str, *samples: str) -> str:
    name = samples[0].partition("{")[0]
    return f"# TYPE {name} {kind}\n" + "".join(sample + "\n" for sample in samples)


@pytest.mark.parametrize(
    ("name", "signal", "method"),
    [
        ("time_to_first_token_seconds", "ttft", "vllm_histogram"),
        ("inter_token_latency_seconds", "itl", "vllm_histogram"),
        ("time_per_output_token_seconds", "itl", "vllm_histogram"),
        ("e2e_request_latency_seconds", "e2e", "vllm_histogram"),
        ("request_queue_time_seconds", "queue", "vllm_histogram"),
        ("request_prefill_time_seconds", "prefill", "vllm_histogram"),
        ("request_decode_time_seconds", "decode", "vllm_histogram"),
        ("request_prompt_tokens", "input_length", "vllm_input_lengths"),
        ("request_generation_tokens", "output_length", "vllm_output_lengths"),
    ],
)
async def test_histograms(name: str, signal: str, method: str) -> None:
    by_signal = found(await scrape(metrics=core() + histogram(name), configs=VLLM), "chat")
    expected = {(): Distribution((0.25, inf), (2, 5), 2.5)}
    assert by_signal[signal] == Measurement(signal, "chat", "1", method, expected)


async def test_the_newest_name_wins() -> None:
    old = histogram("time_per_output_token_seconds").replace("} 2.5", "} 9.9")
    new = histogram("inter_token_latency_seconds")
    by_signal = found(await scrape(metrics=core() + old + new, configs=VLLM), "chat")
    assert by_signal["itl"].samples == {(): Distribution((0.25, inf), (2, 5), 2.5)}  # type: ignore[union-attr]


async def test_several_engines_are_one_model() -> None:
    metrics = core() + "".join(
        plain(
            "gauge",
            f'vllm:{name}{{engine="0",model_name="chat"}} {one}',
            f'vllm:{name}{{engine="1",model_name="chat"}} {other}',
        )
        for name, one, other in (
            ("num_requests_running", 5, 3),
            ("num_requests_waiting", 2, 0),
            ("kv_cache_usage_perc", 0.4, 0.2),
        )
    )
    by_signal = found(await scrape(metrics=metrics, configs=VLLM), "chat", "")
    assert by_signal["sequences_active"].samples == {(): 8}  # type: ignore[union-attr]
    assert by_signal["sequences_waiting"].samples == {(): 2}  # type: ignore[union-attr]
    assert by_signal["kv_utilization"].samples == {(): pytest.approx(0.3)}  # type: ignore[union-attr]


async def test_the_older_name_of_the_cache_usage() -> None:
    metrics = core() + plain("gauge", 'vllm:gpu_cache_usage_perc{model="chat",version="1"} 0.37')
    by_signal = found(await scrape(metrics=metrics, configs=VLLM), "chat")
    assert by_signal["kv_utilization"].samples == {(): 0.37}  # type: ignore[union-attr]


async def test_tokens_and_finished_requests() -> None:
    metrics = (
        core(ok=40, backend=1)
        + histogram("e2e_request_latency_seconds")
        + plain("counter", 'vllm:prompt_tokens_total{model="chat",version="1"} 1234')
        + plain("counter", 'vllm:generation_tokens_total{model="chat",version="1"} 567')
        + plain("counter", 'vllm:prompt_tokens_cached_total{model="chat",version="1"} 1000')
    )
    by_signal = found(await scrape(metrics=metrics, configs=VLLM), "chat")
    assert by_signal["input_tokens"].samples == {(): 1234}  # type: ignore[union-attr]
    assert by_signal["cached_input_tokens"].samples == {(): 1000}  # type: ignore[union-attr]
    assert by_signal["output_tokens"].samples == {(): 567}  # type: ignore[union-attr]
    assert by_signal["requests"].method == "vllm_finished"  # type: ignore[union-attr]
    assert outcomes(by_signal["requests"])["ok"] == 5
    assert outcomes(by_signal["request_failures"])["error backend"] == 1


async def test_finish_reasons_are_better_than_a_count() -> None:
    words = {"stop": 10, "length": 4, "abort": 2, "error": 1, "tired": 3}
    metrics = core(ok=40) + histogram("e2e_request_latency_seconds") + plain(
        "counter",
        *(
            f'vllm:request_success_total{{finished_reason="{word}",model="chat",version="1"}} {n}'
            for word, n in words.items()
        ),
    )  # fmt: skip
    by_signal = found(await scrape(metrics=metrics, configs=VLLM), "chat")
    assert by_signal["requests"].method == "vllm_finish_reason"  # type: ignore[union-attr]
    assert outcomes(by_signal["requests"]) == {"ok": 14, "client_disconnected": 2, "error": 4}
    assert outcomes(by_signal["request_failures"]) == {
        "client_disconnected abort": 2,
        "error error": 1,
        "error unknown": 3,
    }


async def test_without_custom_metrics_the_stanza_is_named() -> None:
    by_signal = found(await scrape(metrics=core(ok=40), configs=VLLM), "chat")
    for signal in ("ttft", "itl", "e2e", "requests", "input_tokens", "output_tokens"):
        gap = by_signal[signal]
        assert isinstance(gap, Missing)
        assert 'key: "REPORT_CUSTOM_METRICS" value: { string_value: "true" }' in gap.fix
    assert by_signal["sequences_active"].fix == "none with Triton's vLLM backend"  # type: ignore[union-attr]


LORA = (
    'vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""} '
    "1.795213791418207e+09"
)


async def test_lora_adapters_are_read_from_triton_where_the_model_publishes_them() -> None:
    running = plain("gauge", 'vllm:num_requests_running{model="chat",version="1"} 1')
    by_signal = found(
        await scrape(metrics=core() + running + plain("gauge", LORA), configs=VLLM), "chat"
    )
    labels = ("max_lora", "2"), ("running_lora_adapters", "sql"), ("waiting_lora_adapters", "")
    assert by_signal["lora_adapters"] == Measurement(
        "lora_adapters", "chat", "1", "vllm_lora", {labels: 1795213791.418207}
    )


async def test_tritons_vllm_backend_publishes_no_lora_adapters() -> None:
    by_signal = found(await scrape(metrics=core(ok=40), configs=VLLM), "chat")
    gap = by_signal["lora_adapters"]
    assert isinstance(gap, Missing)
    assert gap.reason == "Triton's vLLM backend does not publish vllm:lora_requests_info"
