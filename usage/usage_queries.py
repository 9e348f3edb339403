"""PromQL of the usage of one step, evaluated at the end of the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from promql.expr import Matcher, equal, selector_text
from slos.signals import SIGNALS, TENANT

MINUTE = 60
REQUESTS, TENANT_REQUESTS = "requests", "tenant_requests"
TOKENS, TENANT_TOKENS = "tokens", "tenant_tokens"
WASTED, TENANT_WASTED = "wasted_tokens", "tenant_wasted_tokens"
KV, TENANT_KV = "kv_token_seconds", "tenant_kv_token_seconds"
MEASURED, PRESENT, OBSERVED, BUSY = "measured", "present", "observed", "busy"
UNSCRAPED, QUALITY, GPUS = "unscraped", "quality", "gpus"

_METRICS = {
    REQUESTS: SIGNALS["requests"].metric,
    TENANT_REQUESTS: SIGNALS["tenant_requests"].metric,
    TOKENS: SIGNALS["output_tokens"].metric,
    TENANT_TOKENS: SIGNALS["tenant_output_tokens"].metric,
    WASTED: SIGNALS["wasted_tokens"].metric,
    TENANT_WASTED: SIGNALS["tenant_wasted_tokens"].metric,
    KV: SIGNALS[KV].metric,
    TENANT_KV: SIGNALS[TENANT_KV].metric,
}
_SIGNALS = (
    *("input_tokens", "cached_input_tokens", "output_tokens", "wasted_tokens"),
    *("tenant_input_tokens", "tenant_cached_input_tokens", "tenant_output_tokens"),
    *("tenant_wasted_tokens", KV, TENANT_KV),
)
DCGM_GPU = "DCGM_FI_DEV_GPU_UTIL"
"""The series of dcgm-exporter that each GPU has."""


def usage_queries(
    seconds: int,
    *,
    server_label: str,
    selector: Iterable[Matcher] = (),
    dcgm: Iterable[Matcher] | None = None,
) -> Mapping[str, str]:
    """Return the queries over the last ``seconds``, whole minutes.

    Those of time return numbers of minutes.  A subquery begins one second late, so that its first
    minute is not counted twice by any version of Prometheus.
    """
    matchers = tuple(selector)

    def of(metric: str, *more: Matcher) -> str:
        return selector_text(metric, (*matchers, *more))

    def minutes(function: str, expr: str) -> str:
        return f"{function}(({expr})[{seconds - 1}s:1m])"

    live = of(SIGNALS["live_streams"].metric)
    active = SIGNALS["sequences_active"]
    sequences = of(active.metric, *equal(active.fixed))
    activity = f"max by ({server_label}) ({live} or {sequences})"
    signals = Matcher("signal", "=~", "|".join(_SIGNALS))
    queries = {
        MEASURED: minutes("count_over_time", f"count({of('up')})"),
        PRESENT: minutes("count_over_time", _servers(of("tokenslo_build_info"), server_label)),
        OBSERVED: minutes("count_over_time", activity),
        BUSY: minutes("sum_over_time", f"{activity} > bool 0"),
        UNSCRAPED: minutes("sum_over_time", f"{_servers(of('up'), server_label)} == bool 0"),
        QUALITY: "count by (model, signal, quality) (last_over_time("
        f"{of('tokenslo_signal_info', signals)}[{seconds}s]))",
    }
    for key, metric in _METRICS.items():
        labels = [server_label, "model"]
        labels += [TENANT] if key.startswith(TENANT) else []
        labels += ["direction"] if key in (TOKENS, TENANT_TOKENS) else []
        increase = f"increase({of(metric)}[{seconds}s])"
        queries[key] = f"sum by ({', '.join(labels)}) ({increase})"
    if dcgm is not None:
        queries[GPUS] = minutes("sum_over_time", f"count({selector_text(DCGM_GPU, dcgm)})")
    return queries


def _servers(selected: str, server_label: str) -> str:
    return f"max by ({server_label}) ({selected})"
