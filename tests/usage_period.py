"""A period of usage: a Prometheus that answers the queries of a report, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from promql.client import Sample
from usage.prometheus_usage import STEP
from usage.usage_queries import usage_queries

DAY = 1_440.0
NOW = 1_769_904_000.0  # 2026-02-01
Answers = Mapping[str, Sequence[Sample]]


def sample(value: float, **labels: str) -> Sample:
    return Sample(labels, value)


def answers(
    minutes: float = DAY,
    busy: float = 720.0,
    unscraped: float = 0.0,
    *more: Sample,
    scale: float = 1.0,
) -> Answers:
    """Return a day of two servers with the model llama, of which the second is idle.

    ``scale`` multiplies requests and tokens.
    """
    a = {"instance": "a", "model": "llama"}
    return {
        "measured": [sample(minutes)],
        "present": [sample(minutes, instance="a"), sample(minutes, instance="b")],
        "observed": [sample(minutes, instance="a"), sample(minutes, instance="b")],
        "busy": [sample(busy, instance="a"), sample(0, instance="b")],
        "unscraped": [sample(unscraped, instance="a"), sample(9, instance="other-exporter")],
        "requests": [sample(45 * scale, **a)],
        "tenant_requests": [
            sample(30 * scale, tenant="acme", **a),
            sample(10 * scale, tenant="other", **a),
        ],
        "tokens": [
            sample(4_000 * scale, direction="input", **a),
            sample(1_000 * scale, direction="cached_input", **a),
            sample(2_000 * scale, direction="output", **a),
        ],
        "tenant_tokens": [
            sample(3_000 * scale, direction="input", tenant="acme", **a),
            sample(1_000 * scale, direction="cached_input", tenant="acme", **a),
            sample(1_500 * scale, direction="output", tenant="acme", **a),
            sample(500 * scale, direction="input", tenant="other", **a),
            sample(500 * scale, direction="output", tenant="other", **a),
            *more,
        ],
        "wasted_tokens": [sample(100 * scale, **a)],
        "tenant_wasted_tokens": [sample(100 * scale, tenant="acme", **a)],
        "kv_token_seconds": [sample(20_000 * scale, **a)],
        "tenant_kv_token_seconds": [
            sample(15_000 * scale, tenant="acme", **a),
            sample(4_000 * scale, tenant="other", **a),
        ],
        "quality": [
            sample(1, model="llama", signal="output_tokens", quality="exact"),
            sample(1, model="llama", signal="tenant_input_tokens", quality="estimate"),
            sample(1, model="llama", signal="wasted_tokens", quality="estimate"),
            sample(1, model="llama", signal="kv_token_seconds", quality="estimate"),
        ],
        "gpus": [sample(8 * minutes)],
    }


EMPTY: Answers = dict.fromkeys(answers(), ())


def evaluator(answer: Answers, seconds: int = STEP) -> Callable[[str], list[Sample]]:
    """Return a function that answers the queries of one step."""
    known = usage_queries(seconds, server_label="instance", dcgm=())
    by_query = {expr: answer[key] for key, expr in known.items()}
    return lambda expr: list(by_query[expr])
