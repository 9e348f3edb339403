"""The exposition as text, in both formats."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import ItemsView, Mapping
from math import inf
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.families import LabelSet
from exporter.samples import Distribution
from exporter.store.view import View
from exporter.web import text_format, view_families
from exporter.web.collector import expose, expose_in_steps
from slos.own_metrics import OWN_METRICS
from slos.signals import SIGNALS
from tests.views import busy, measured, unavailable, view

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4"

TEXT = """\
# HELP llm_time_to_first_token_seconds Time from the arrival of a request to its first token.
# TYPE llm_time_to_first_token_seconds histogram
llm_time_to_first_token_seconds_bucket{le="0.1",model="llama",version="1"} 1.0
llm_time_to_first_token_seconds_bucket{le="0.5",model="llama",version="1"} 4.0
llm_time_to_first_token_seconds_bucket{le="0.8",model="llama",version="1"} 7.0
llm_time_to_first_token_seconds_bucket{le="2.0",model="llama",version="1"} 9.0
llm_time_to_first_token_seconds_bucket{le="+Inf",model="llama",version="1"} 10.0
llm_time_to_first_token_seconds_count{model="llama",version="1"} 10.0
llm_time_to_first_token_seconds_sum{model="llama",version="1"} 6.5
# HELP llm_request_queue_seconds Time a request waits before its first scheduling.
# TYPE llm_request_queue_seconds histogram
llm_request_queue_seconds_bucket{le="+Inf",model="llama",version="1"} 10.0
llm_request_queue_seconds_count{model="llama",version="1"} 10.0
llm_request_queue_seconds_sum{model="llama",version="1"} 0.25
# HELP llm_requests_total Requests that ended, by outcome.
# TYPE llm_requests_total counter
llm_requests_total{model="llama",outcome="error",version="1"} 9.0
llm_requests_total{model="llama",outcome="ok",version="1"} 981.0
# HELP llm_sequences Sequences in the engine, by state.
# TYPE llm_sequences gauge
llm_sequences{model="llama",state="active",version="1"} 14.0
llm_sequences{model="llama",state="waiting",version="1"} 3.0
# HELP llm_kv_cache_utilization_ratio Blocks held by live sequences / all blocks of the KV cache.
# TYPE llm_kv_cache_utilization_ratio gauge
llm_kv_cache_utilization_ratio{model="llama",version="1"} 0.5
# HELP tokenslo_build_info Version of tokenslo; always 1.
# TYPE tokenslo_build_info gauge
tokenslo_build_info{version="1.2.3"} 1.0
# HELP tokenslo_signal_info How each signal is obtained, or the reason why it is unavailable; always 1.
# TYPE tokenslo_signal_info gauge
tokenslo_signal_info{method="triton_first_response",model="llama",quality="estimate",signal="ttft",version="1"} 1.0
tokenslo_signal_info{method="",model="llama",quality="unavailable",reason="Triton does not see token gaps",signal="itl",version="1"} 1.0
tokenslo_signal_info{method="triton_queue",model="llama",quality="estimate",signal="queue",version="1"} 1.0
tokenslo_signal_info{method="trtllm_finished",model="llama",quality="estimate",signal="requests",version="1"} 1.0
tokenslo_signal_info{method="trtllm_iteration",model="llama",quality="exact",signal="sequences_active",version="1"} 1.0
tokenslo_signal_info{method="trtllm_waiting",model="llama",quality="estimate",signal="sequences_waiting",version="1"} 1.0
tokenslo_signal_info{method="trtllm_iteration",model="llama",quality="exact",signal="kv_utilization",version="1"} 1.0
# HELP tokenslo_model_info Models that the server reports, with their backend; always 1.
# TYPE tokenslo_model_info gauge
tokenslo_model_info{backend="tensorrtllm",decoupled="true",model="llama",version="1"} 1.0
tokenslo_model_info{backend="python",decoupled="false",model="tokenizer",version="1"} 1.0
# HELP tokenslo_source_up Whether the last scrape of a source succeeded.
# TYPE tokenslo_source_up gauge
tokenslo_source_up{source="triton"} 1.0
tokenslo_source_up{source="triton/statistics"} 0.0
# HELP tokenslo_source_age_seconds Time since the last successful scrape of a source.
# TYPE tokenslo_source_age_seconds gauge
tokenslo_source_age_seconds{source="triton"} 0.5
# HELP tokenslo_source_read_seconds Duration of the last scrape of a source.
# TYPE tokenslo_source_read_seconds gauge
tokenslo_source_read_seconds{source="triton"} 0.012
# HELP tokenslo_source_errors_total Failed scrapes of a source, by kind of failure.
# TYPE tokenslo_source_errors_total counter
tokenslo_source_errors_total{kind="timeout",source="triton"} 2.0
tokenslo_source_errors_total{kind="status",source="triton/statistics"} 3.0
# HELP tokenslo_engine_stats_age_seconds Time since the engine last published an iteration; grows while the engine is idle or stuck.
# TYPE tokenslo_engine_stats_age_seconds gauge
tokenslo_engine_stats_age_seconds{model="llama",version="1"} 0.25
"""  # noqa: E501


def text(shown: View, accept: str = "") -> str:
    return expose(shown, "1.2.3", accept).body.decode()


def as_openmetrics(classic: str) -> str:
    """Convert the Prometheus text format to OpenMetrics: counter names, units and the end mark."""
    lines = []
    for line in classic.splitlines():
        words = line.split(" ")
        if line.startswith("#"):
            words[2] = words[2].removesuffix("_total")
        lines.append(" ".join(words))
        unit = words[2].rpartition("_")[2] if words[1] == "TYPE" else ""
        if unit in ("seconds", "ratio"):
            lines.append(f"# UNIT {words[2]} {unit}")
    return "\n".join([*lines, "# EOF", ""])


def test_prometheus_text_is_as_expected() -> None:
    exposition = expose(busy(), "1.2.3", "text/html,*/*")
    assert exposition.body.decode() == TEXT
    assert exposition.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert exposition.encoding == ""


def test_openmetrics_is_served_to_clients_that_accept_it() -> None:
    exposition = expose(busy(), "1.2.3", OPENMETRICS)
    assert exposition.body.decode() == as_openmetrics(TEXT)
    assert exposition.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"


def test_parsers_accept_both_formats() -> None:
    classic = list(parse_text(text(busy())))
    modern = list(parse_openmetrics(text(busy(), OPENMETRICS)))
    assert [family.name for family in classic] == [family.name for family in modern]
    series = [line for line in TEXT.splitlines() if not line.startswith("#")]
    assert sum(len(family.samples) for family in classic) == len(series)


def test_compression_changes_nothing_but_the_size() -> None:
    exposition = expose(busy(), "1.2.3", compress=True)
    assert exposition.encoding == "gzip"
    assert gzip.decompress(exposition.body).decode() == TEXT


def test_an_unavailable_signal_has_no_series() -> None:
    shown = text(view(unavailable("itl", "why", "how")))
    assert "llm_" not in shown
    assert 'quality="unavailable",reason="why",signal="itl"' in shown


def test_samples_are_sorted_by_label() -> None:
    states = [measured("sequences_active", 1.0, model=name) for name in ("b", "a")]
    series = [line for line in text(view(*states)).splitlines() if line.startswith("llm_sequences")]
    assert series == [
        'llm_sequences{model="a",state="active",version="1"} 1.0',
        'llm_sequences{model="b",state="active",version="1"} 1.0',
    ]


def test_signals_of_one_family_agree() -> None:
    by_metric: dict[str, set[object]] = {}
    for signal in SIGNALS.values():
        by_metric.setdefault(signal.metric, set()).add((signal.kind, signal.help))
    assert {metric: len(facts) for metric, facts in by_metric.items() if len(facts) != 1} == {}


def test_every_sample_has_the_labels_of_the_catalogue() -> None:
    for family in parse_text(TEXT):
        declared = OWN_METRICS.get(family.name)
        for sample in family.samples:
            if declared:
                measured = sample.labels.get("quality", "unavailable") != "unavailable"
                without = {"reason"} if measured else set()
                assert set(sample.labels) == set(declared[2]) - without
            else:
                assert {"model", "version"} <= set(sample.labels)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_model_name_survives(accept: str, name: str) -> None:
    parse = parse_openmetrics if accept else parse_text
    families = {
        one.name: one
        for one in parse(text(view(measured("sequences_max", 0.5, model=name)), accept))
    }
    info = families["tokenslo_signal_info"].samples[0]
    assert info.labels["model"] == name


def test_a_lone_surrogate_does_not_stop_the_scrape() -> None:
    assert 'model="a?b"' in text(view(measured("sequences_active", 1.0, model="a\ud800b")))


def test_malformed_accept_headers_get_an_exposition() -> None:
    for accept in (
        "application/openmetrics-text;version=x",
        "a" * 10_000,
        ";;,,",
        "text/plain;version=z",
    ):
        assert text(busy(), accept)


@given(counts=st.lists(st.integers(0, 10**15), min_size=1, max_size=8))
def test_histograms_stay_cumulative_and_end_in_infinity(counts: list[int]) -> None:
    total, edges, upto = 0.0, [], []
    for position, count in enumerate(counts):
        total += count
        edges.append(0.001 * 2**position)
        upto.append(total)
    value = Distribution((*edges, float("inf")), (*upto, total), 1.0)
    [family] = [
        one for one in parse_text(text(view(measured("e2e", value)))) if one.type == "histogram"
    ]
    buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    assert [float(sample.labels["le"]) for sample in buckets] == [*edges, float("inf")]
    assert [sample.value for sample in buckets] == [*upto, total]


def test_second_scrape_renders_no_label_set(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    init = LabelSet.__init__

    def counted_init(self: LabelSet, labels: Mapping[str, str]) -> None:
        made.append(labels)
        init(self, labels)

    def counted_items(self: LabelSet) -> ItemsView[str, str]:
        made.append(self)
        return dict.items(self)

    monkeypatch.setattr(LabelSet, "__init__", counted_init)
    monkeypatch.setattr(LabelSet, "items", counted_items)
    models = [f"rendered-once-{number}" for number in range(200)]
    before, after = (
        view(*(measured("e2e", _distribution(count), model=model) for model in models))
        for count in (1.0, 2.0)
    )
    first = text(before)
    assert len(made) > 2 * len(models)
    made.clear()
    second = text(after)
    assert second.count("llm_request_duration_seconds_sum") == len(models)
    assert second != first
    assert len(made) < 20  # for the exporter's own few series


def _distribution(count: float) -> Distribution:
    return Distribution((0.1, float("inf")), (count, count), count)


def test_a_step_of_a_scrape_renders_a_bounded_number_of_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of families and models that are new, whose caches are empty."""
    done: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def counted(module: ModuleType, name: str) -> None:
        work = getattr(module, name)

        def called(*arguments: Any) -> Any:
            done[name] += 1
            return work(*arguments)

        monkeypatch.setattr(module, name, called)
        monkeypatch.setattr(module, "STEP_SIZE", 10)

    counted(view_families, "_measured_labels")
    counted(view_families, "_info")
    counted(text_format, "_head")
    counted(text_format, "_number")
    value = Distribution((0.1, inf), (1.0, 2.0), 3.0)
    shown = view(
        *(measured("sequences_active", 1.0, model=f"step-{number}") for number in range(95)),
        *(measured("e2e", value, model=f"step-{number}") for number in range(95)),
    )
    for _ in expose_in_steps(shown, "1"):
        most |= done
        done.clear()
    most |= done
    assert {name for name, count in most.items() if count} == {
        "_measured_labels",
        "_info",
        "_head",
        "_number",
    }
    lines_of_series = 4
    assert most["_measured_labels"] <= 11
    assert most["_info"] == 10
    assert most["_head"] <= 10 + lines_of_series
    assert most["_number"] <= 10 + lines_of_series  # the boundaries of heads are numbers, too
