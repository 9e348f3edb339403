"""Triton's request counters, and the models for which they are used."""

from __future__ import annotations

from math import inf

import pytest
from aiohttp import web

from exporter.samples import Distribution, Measurement, Missing
from tests.fake_triton import config, core, ensemble, found, outcomes, ready, scrape, stats

FIRST_RESPONSE = """\
# TYPE nv_inference_first_response_histogram_ms histogram
nv_inference_first_response_histogram_ms_count{model="chat",version="1"} 4
nv_inference_first_response_histogram_ms_sum{model="chat",version="1"} 1162
nv_inference_first_response_histogram_ms_bucket{model="chat",version="1",le="100"} 2
nv_inference_first_response_histogram_ms_bucket{model="chat",version="1",le="500"} 3
nv_inference_first_response_histogram_ms_bucket{model="chat",version="1",le="2000"} 4
nv_inference_first_response_histogram_ms_bucket{model="chat",version="1",le="5000"} 4
nv_inference_first_response_histogram_ms_bucket{model="chat",version="1",le="+Inf"} 4
"""
OUTPUT_LENGTH = """\
# TYPE nv_llm_output_token_len histogram
nv_llm_output_token_len_count{model="chat",response_metric_type="total_output_tokens",version="1"} 9
nv_llm_output_token_len_sum{model="chat",response_metric_type="total_output_tokens",version="1"} 900
"""


async def test_tensorrtllm_counts_at_the_end_of_a_stream() -> None:
    metrics = core(ok=7, backend=2, rejected=3, canceled=1, other=4, seconds=35.0, queue=1.5)
    by_signal = found(
        await scrape(metrics=metrics, configs={"chat": config("tensorrtllm")}), "chat"
    )
    assert outcomes(by_signal["requests"]) == {"ok": 7, "error": 6, "shed": 3, "cancelled": 1}
    assert outcomes(by_signal["request_failures"]) == {
        "error backend": 2,
        "error other": 4,
        "shed deadline": 3,
        "cancelled canceled": 1,
    }
    assert by_signal["requests"].method == "triton_counters"  # type: ignore[union-attr]
    assert outcomes(by_signal["requests_without_first_token"]) == {"shed": 3, "cancelled": 1}
    assert by_signal["e2e"].samples == {(): Distribution((inf,), (7,), 35.0)}  # type: ignore[union-attr]
    assert by_signal["queue"].samples == {(): Distribution((inf,), (7,), 1.5)}  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", ["python", "vllm", "something_compiled"])
async def test_decoupled_models_are_counted_before_their_first_token(backend: str) -> None:
    metrics = core(ok=7, backend=2, seconds=0.035, queue=1.5)
    by_signal = found(await scrape(metrics=metrics, configs={"chat": config(backend)}), "chat")
    requests, e2e = by_signal["requests"], by_signal["e2e"]
    assert isinstance(requests, Missing)
    assert isinstance(e2e, Missing)
    assert "when execute() returns, before its first token" in requests.reason
    assert "failures alone would read as 100 % bad" in requests.reason
    assert "when execute() returns" in e2e.reason
    assert isinstance(by_signal["queue"], Measurement)


async def test_engine_counters_of_finished_requests_are_preferred() -> None:
    metrics = core(ok=70, backend=2, rejected=1) + OUTPUT_LENGTH
    by_signal = found(await scrape(metrics=metrics, configs={"chat": config("python")}), "chat")
    assert outcomes(by_signal["requests"]) == {"ok": 9, "error": 2, "shed": 1}
    assert by_signal["requests"].method == "trtllm_finished"  # type: ignore[union-attr]
    assert isinstance(by_signal["e2e"], Missing)


async def test_unary_model_is_counted_only_when_configured() -> None:
    answers = {
        "metrics": core(ok=7, backend=2),
        "configs": {"chat": config("onnx", decoupled=False)},
    }
    snapshot = await scrape(**answers)  # type: ignore[arg-type]
    assert snapshot.measurements == ()
    (info,) = snapshot.models
    assert info.excluded == (
        "not decoupled and without engine metrics; name it in models to report on it"
    )
    by_signal = found(await scrape(options={"models": ["ch*"]}, **answers), "chat")  # type: ignore[arg-type]
    assert by_signal["requests"].method == "triton_unary_counters"  # type: ignore[union-attr]
    assert isinstance(by_signal["e2e"], Measurement)


class TestEnsembles:
    CONFIGS = {  # noqa: RUF012
        "chat": ensemble("pre", "llm"),
        "pre": config("python", decoupled=False),
        "llm": config("python"),
    }

    async def test_ensemble_failures_are_halved_with_a_note(self) -> None:
        metrics = core(ok=6, other=4, seconds=12.0) + core("pre", ok=8) + core("llm", ok=8)
        snapshot = await scrape(metrics=metrics, configs=self.CONFIGS)
        by_signal = found(snapshot, "chat")
        assert outcomes(by_signal["request_failures"])["error other"] == 2
        assert outcomes(by_signal["requests"])["ok"] == 6
        assert by_signal["e2e"].samples == {(): Distribution((inf,), (6,), 12.0)}  # type: ignore[union-attr]
        assert by_signal["queue"].fix == "see the steps of the ensemble: llm"  # type: ignore[union-attr]
        assert isinstance(by_signal["requests_without_first_token"], Missing)
        excluded = {info.model: info.excluded for info in snapshot.models}
        assert excluded["pre"].startswith("a step of the ensemble chat, not decoupled")
        assert excluded["llm"] == ""

    async def test_triton_mixes_an_ensembles_versions(self) -> None:
        """Version 3 is counted under 1, its failures once under each."""
        metrics = core(ok=6, other=2) + core(version="3", other=2)
        index = [*ready("chat", version="3"), *ready("pre", "llm")]
        snapshot = await scrape(metrics=metrics, configs=self.CONFIGS, index=index,
                            stats=[stats("chat", ok=6, fail=4, version="3")])  # fmt: skip
        assert ("chat", "1") not in {(info.model, info.version) for info in snapshot.models}
        by_signal = found(snapshot, "chat", "3")
        assert outcomes(by_signal["requests"])["ok"] == 6
        assert outcomes(by_signal["request_failures"])["error other"] == 2

    async def test_an_ensemble_streams_if_one_of_its_steps_does(self) -> None:
        snapshot = await scrape(metrics=core() + FIRST_RESPONSE, configs=self.CONFIGS)
        assert {info.model: info.decoupled for info in snapshot.models} == {
            "chat": True,
            "pre": False,
            "llm": True,
        }
        assert isinstance(found(snapshot, "chat")["ttft"], Measurement)


class TestFirstResponse:
    async def test_milliseconds_become_seconds(self) -> None:
        answers = {"metrics": core() + FIRST_RESPONSE, "configs": {"chat": config("tensorrtllm")}}
        ttft = found(await scrape(**answers), "chat")["ttft"]  # type: ignore[arg-type]
        assert isinstance(ttft, Measurement)
        edges = (0.1, 0.5, 2.0, 5.0, inf)
        assert ttft.samples == {(): Distribution(edges, (2, 3, 4, 4, 4), 1.162)}

    async def test_first_response_of_a_unary_model_is_the_whole_response(self) -> None:
        configs = {"chat": config("tensorrtllm", decoupled=False)}
        by_signal = found(
            await scrape(
                metrics=core() + FIRST_RESPONSE, configs=configs, options={"models": ["chat"]}
            ),
            "chat",
        )
        assert isinstance(by_signal["ttft"], Missing)
        assert "not decoupled" in by_signal["ttft"].reason
        assert "decoupled: true" in by_signal["ttft"].fix

    async def test_without_it_the_flag_is_named(self) -> None:
        by_signal = found(await scrape(metrics=core(), configs={"chat": config("python")}), "chat")
        assert "--metrics-config histogram_latencies=true" in by_signal["ttft"].fix  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("there", "instead"),
        [
            ('le="+Inf"} 4', 'le="9000"} 4'),
            ('le="100"} 2', 'le="100"} 7'),
            ('le="100"} 2', 'le="100"} NaN'),
            ('le="100"', 'le="soon"'),
            ("_sum{", "_sums{"),
        ],
        ids=["no +Inf", "falling", "NaN", "no number", "no sum"],
    )
    async def test_invalid_histogram_is_not_reported(self, there: str, instead: str) -> None:
        text = FIRST_RESPONSE.replace(there, instead)
        if "_sums" in text:
            text = "\n".join(line for line in text.splitlines() if "_sums" not in line) + "\n"
        snapshot = await scrape(metrics=core() + text, configs={"chat": config("tensorrtllm")})
        assert isinstance(found(snapshot, "chat")["ttft"], Missing)


class TestLabels:
    async def test_gpu_and_tag_series_of_a_model_are_one_number(self) -> None:
        """The series without gpu_uuid has the queue's failures, those with it the successes."""
        metrics = (
            core(ok=0, rejected=5)
            + core(ok=4, backend=1, seconds=8, labels='gpu_uuid="GPU-1",')
            + core(ok=3, backend=2, seconds=6, labels='gpu_uuid="GPU-2",')
            + core(ok=1, seconds=2, labels='_team="nlp",')
        ).replace('model="chat",_team="nlp"', '_team="nlp",model="chat"')
        by_signal = found(
            await scrape(metrics=metrics, configs={"chat": config("tensorrtllm")}), "chat"
        )
        assert outcomes(by_signal["requests"]) == {"ok": 8, "error": 3, "shed": 5}
        assert by_signal["e2e"].samples == {(): Distribution((inf,), (8,), 16.0)}  # type: ignore[union-attr]

    async def test_namespaces_keep_models_of_one_name_apart(self) -> None:
        metrics = core(ok=4, labels='namespace="blue",') + core(ok=9, labels='namespace="red",')
        metrics += OUTPUT_LENGTH
        snapshot = await scrape(
            metrics=metrics,
            index=[*ready("chat"), *ready("chat")],
            options={"models": ["*"]},
        )
        assert {info.model for info in snapshot.models if not info.excluded} == {
            "blue/chat",
            "red/chat",
        }
        tokens = found(snapshot, "red/chat")["output_tokens"]
        assert isinstance(tokens, Missing)
        assert tokens.reason == (
            "another namespace has a model of this name, and engine metrics carry no namespace"
        )

    async def test_a_namespaced_model_keeps_its_engine_metrics_and_configuration(self) -> None:
        snapshot = await scrape(
            metrics=core(ok=4, labels='namespace="blue",') + OUTPUT_LENGTH,
            configs={"chat": config("tensorrtllm")},
            stats=[stats("chat", ok=4, queue=2.0)],
        )
        by_signal = found(snapshot, "blue/chat")
        assert by_signal["requests"].method == "triton_counters"  # type: ignore[union-attr]
        assert by_signal["output_tokens"].samples == {(): 900}  # type: ignore[union-attr]
        assert [(info.model, info.backend) for info in snapshot.models] == [
            ("blue/chat", "tensorrtllm")
        ]
        assert {one.method for one in snapshot.measurements if one.signal == "queue"} == {
            "triton_queue",
            "statistics_queue",
        }

    async def test_unknown_reason_is_an_error_and_bounded(self) -> None:
        metrics = core(ok=1).replace("OTHER", "SOLAR_FLARE")
        metrics = metrics.replace('"SOLAR_FLARE",version="1"} 0', '"SOLAR_FLARE",version="1"} 6')
        by_signal = found(
            await scrape(metrics=metrics, configs={"chat": config("tensorrtllm")}), "chat"
        )
        assert outcomes(by_signal["request_failures"])["error unknown"] == 6

    async def test_triton_before_24_07_has_no_reasons(self) -> None:
        metrics = core(ok=3).replace('reason="BACKEND",', "")
        metrics = "".join(
            line + "\n" for line in metrics.splitlines() if "reason=" not in line
        ).replace('_failure{model="chat",version="1"} 0', '_failure{model="chat",version="1"} 2')
        by_signal = found(
            await scrape(metrics=metrics, configs={"chat": config("tensorrtllm")}), "chat"
        )
        assert outcomes(by_signal["requests"]) == {"ok": 3, "error": 2}
        assert isinstance(by_signal["requests_without_first_token"], Missing)

    @pytest.mark.parametrize("value", ["Nan", "-1", "+Inf"])
    async def test_invalid_counter_value_is_not_reported(self, value: str) -> None:
        metrics = core(ok=3, labels='gpu_uuid="GPU-1",') + core(ok=7).replace("} 7", f"}} {value}")
        by_signal = found(
            await scrape(metrics=metrics, configs={"chat": config("tensorrtllm")}), "chat"
        )
        assert isinstance(by_signal["requests"], Missing)


class TestFrozenCounters:
    """counter_latencies=false stops all counters, not only latencies."""

    SUMMARY = """\
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us_count{model="chat",version="1"} 5
nv_inference_request_summary_us_sum{model="chat",version="1"} 105084
nv_inference_request_summary_us{model="chat",version="1",quantile="0.5"} Nan
"""

    async def test_statistics_take_over_with_a_note(self) -> None:
        snapshot = await scrape(
            metrics=core() + core("other"),
            configs={"chat": config("tensorrtllm"), "other": config("tensorrtllm")},
            stats=[stats("chat", ok=5, fail=2, seconds=10.0, queue=0.5), stats("other", ok=0)],
        )
        by_signal = found(snapshot, "chat")
        assert outcomes(by_signal["requests"]) == {"ok": 5, "error": 2}
        assert by_signal["e2e"].samples == {(): Distribution((inf,), (5,), 10.0)}  # type: ignore[union-attr]
        assert by_signal["queue"].samples == {(): Distribution((inf,), (5,), 0.5)}  # type: ignore[union-attr]
        for model in ("chat", "other"):
            requests = found(snapshot, model)["requests"]
            assert isinstance(requests, Measurement)
            assert requests.method == "statistics_requests"
            assert "counter_latencies=false stops all of them" in requests.note
        deaths = by_signal["requests_without_first_token"]
        assert isinstance(deaths, Missing)
        assert deaths.fix == "start Triton without counter_latencies=false"

    async def test_moving_summary_shows_frozen_counters(self) -> None:
        """Without the statistics there is no fallback, and they may return."""

        async def busy(_: web.Request) -> web.Response:
            return web.Response(status=503)

        snapshot = await scrape(
            metrics=core() + self.SUMMARY,
            configs={"chat": config("tensorrtllm")},
            instead={"/v2/models/stats": busy},
        )
        assert snapshot.measurements == ()
        frozen = [gap for gap in snapshot.missing if "counter_latencies=false" in gap.reason]
        assert {gap.signal for gap in frozen} == {
            "requests",
            "e2e",
            "queue",
            "requests_without_first_token",
        }
        assert all(gap.unread for gap in frozen)

    async def test_finished_requests_go_with_the_failures_of_the_statistics(self) -> None:
        snapshot = await scrape(
            metrics=core() + OUTPUT_LENGTH,
            configs={"chat": config("python")},
            stats=[stats("chat", ok=5, fail=2)],
        )
        by_signal = found(snapshot, "chat")
        assert outcomes(by_signal["requests"]) == {"ok": 9, "error": 2}
        assert by_signal["requests"].method == "trtllm_finished_statistics"  # type: ignore[union-attr]
        assert "when execute() returns" in by_signal["e2e"].reason  # type: ignore[union-attr]

    async def test_ensemble_versions_do_not_look_frozen(self) -> None:
        snapshot = await scrape(
            metrics=core(ok=6) + core(version="3"),
            configs={"chat": ensemble("llm")},
            index=ready("chat", version="3"),
            stats=[stats("chat", ok=6, version="3")],
        )
        assert found(snapshot, "chat", "3")["requests"].method == "triton_ensemble_counters"  # type: ignore[union-attr]


async def test_an_ensembles_failures_are_doubled_in_the_statistics_too() -> None:
    snapshot = await scrape(
        metrics=core(), configs={"chat": ensemble("llm")}, stats=[stats("chat", ok=1, fail=4)]
    )
    assert outcomes(found(snapshot, "chat")["requests"]) == {"ok": 1, "error": 2}
