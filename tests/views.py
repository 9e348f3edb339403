"""Hand-made views of one busy model, and of models and sources with problems."""

from __future__ import annotations

from math import inf

from exporter.samples import Distribution, Labels, ModelInfo, Value
from exporter.store.view import SignalState, SourceState, View, grouped_by_model

FIRST_TOKEN = Distribution((0.1, 0.5, 0.8, 2.0, inf), (1.0, 4.0, 7.0, 9.0, 10.0), 6.5)
COUNT_AND_SUM = Distribution((inf,), (10.0,), 0.25)
UP = SourceState("triton", True, 0.5, 0.012, "", {"timeout": 2}, True)


def measured(
    signal: str,
    value: Value | dict[Labels, Value],
    method: str = "trtllm_iteration",
    quality: str = "exact",
    model: str = "llama",
    **more: str,
) -> SignalState:
    samples = value if isinstance(value, dict) else {(): value}
    return SignalState(signal, model, "1", method, quality, samples, **more)  # type: ignore[arg-type]


def unavailable(signal: str, reason: str, fix: str = "", model: str = "llama") -> SignalState:
    return SignalState(
        signal, model, "1", "", "unavailable", {}, note=reason, fix=fix, reason=reason
    )


def view(
    *signals: SignalState,
    sources: tuple[SourceState, ...] = (UP,),
    models: tuple[ModelInfo, ...] = (ModelInfo("llama", "1", "tensorrtllm", True),),
    engine_stats_age: dict[tuple[str, str], float] | None = None,
) -> View:
    return View(grouped_by_model(signals), sources, models, engine_stats_age or {})


def busy() -> View:
    outcomes: dict[Labels, Value] = {
        (("outcome", "ok"),): 981.0,
        (("outcome", "error"),): 9.0,
    }
    return view(
        measured(
            "ttft",
            FIRST_TOKEN,
            "triton_first_response",
            "estimate",
            note="whole milliseconds",
            recent="p50 ≈0.58 s",
        ),
        unavailable("itl", "Triton does not see token gaps", "serve with the vLLM backend"),
        measured("queue", COUNT_AND_SUM, "triton_queue", "estimate"),
        measured("requests", outcomes, "trtllm_finished", "estimate"),
        measured("sequences_active", 14.0),
        measured("sequences_waiting", 3.0, "trtllm_waiting", "estimate"),
        measured("kv_utilization", 0.5),
        sources=(
            UP,
            SourceState(
                "triton/statistics", False, None, None, "answered 503", {"status": 3}, None
            ),
        ),
        models=(
            ModelInfo("llama", "1", "tensorrtllm", True),
            ModelInfo("tokenizer", "1", "python", False, excluded="not decoupled"),
        ),
        engine_stats_age={("llama", "1"): 0.25},
    )
