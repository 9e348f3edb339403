"""The gauges of the Gateway API inference extension, under every set of names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from exporter.gateway_names import NAMES, parse
from exporter.samples import Measurement, Model, Snapshot, SourceError
from exporter.store.store import STEP_SIZE, Store
from exporter.store.view import View
from exporter.web.collector import expose
from exporter.web.gateway import model_series
from exporter.web.gateway_page import GatewayPage
from slos.errors import BadValue
from tests.views import measured, unavailable, view

NOTHING = view(sources=(), models=())


def series(shown: View, *settings: str) -> list[str]:
    """Return the gateway's series of a scrape."""
    wanted = [one for setting in settings for one in parse(setting)]
    page = GatewayPage(lambda: shown.by_model, wanted)
    text = expose(NOTHING, "1", more=page.families()).body.decode()
    return [line for line in text.splitlines() if not line.startswith(("#", "tokenslo_"))]


def engine() -> View:
    return view(
        measured("sequences_active", 14.0),
        measured("sequences_waiting", 3.0, "trtllm_waiting", "estimate"),
        measured("kv_utilization", 0.25),
        measured("kv_blocks_max", 400.0),
        measured("kv_block_tokens", 64.0),
    )


def test_gauges_under_vllms_names() -> None:
    assert series(engine(), "vllm") == [
        'vllm:num_requests_waiting{model_name="llama",version="1"} 3.0',
        'vllm:num_requests_running{model_name="llama",version="1"} 11.0',
        'vllm:kv_cache_usage_perc{model_name="llama",version="1"} 0.25',
        'vllm:cache_config_info{block_size="64",model_name="llama",num_gpu_blocks="400",'
        'version="1"} 1.0',
    ]


def test_gauges_under_trtllm_serves_names() -> None:
    assert series(engine(), "trtllm") == [
        'trtllm_num_requests_waiting{model_name="llama",version="1"} 3.0',
        'trtllm_num_requests_running{model_name="llama",version="1"} 11.0',
        'trtllm_kv_cache_utilization{model_name="llama",version="1"} 0.25',
        'trtllm_kv_cache_tokens_per_block{model_name="llama",version="1"} 64.0',
        'trtllm_kv_cache_max_blocks{model_name="llama",version="1"} 400.0',
    ]


def test_gauges_under_sglangs_names() -> None:
    assert series(engine(), "sglang") == [
        'sglang:num_queue_reqs{model_name="llama",version="1"} 3.0',
        'sglang:num_running_reqs{model_name="llama",version="1"} 11.0',
        'sglang:token_usage{model_name="llama",version="1"} 0.25',
        'sglang:cache_config_info{model_name="llama",num_pages="400",page_size="64",'
        'version="1"} 1.0',
    ]


def test_gauges_under_tritons_names() -> None:
    requests, blocks = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
    model = 'model_name="llama"'
    assert series(engine(), "triton") == [
        f'{requests}{{{model},request_type="waiting",version="1"}} 3.0',
        f'{requests}{{{model},request_type="scheduled",version="1"}} 11.0',
        f'{blocks}{{kv_cache_block_type="fraction",{model},version="1"}} 0.25',
        f'{blocks}{{kv_cache_block_type="tokens_per",{model},version="1"}} 64.0',
        f'{blocks}{{kv_cache_block_type="max",{model},version="1"}} 400.0',
    ]


LORA = measured(
    "lora_adapters",
    {
        (
            ("max_lora", "2"),
            ("running_lora_adapters", "law,sql"),
            ("waiting_lora_adapters", "chat"),
        ): 1795213791.5
    },
    "vllm_lora",
)


def test_lora_adapters_have_vllms_names_or_custom_names() -> None:
    before = 'max_lora="2",model_name="llama",'
    after = 'running_lora_adapters="law,sql",version="1",waiting_lora_adapters="chat"'
    vllms = f"vllm:lora_requests_info{{{before}{after}}} 1.7952137915e+09"
    ones_own = f'adapters{{{before}pool="a",{after}}} 1.7952137915e+09'
    assert series(view(LORA), "vllm") == [vllms]
    assert series(view(LORA), "lora=adapters{pool=a}") == [ones_own]


@pytest.mark.parametrize("names", ["trtllm", "sglang", "triton"])
def test_lora_adapters_have_no_name_where_the_protocol_gives_none(names: str) -> None:
    assert series(view(LORA), names) == []


def test_unavailable_lora_adapters_are_absent() -> None:
    shown = view(unavailable("lora_adapters", "no vllm:lora_requests_info"))
    assert series(shown, "vllm") == []


def test_gauges_under_custom_names() -> None:
    settings = ("vllm", "queued=my_queue{kind=all,pool=a}", "block_size=cache{size=*}")
    lines = series(engine(), *settings)
    assert 'my_queue{kind="all",model_name="llama",pool="a",version="1"} 3.0' in lines
    assert 'cache{model_name="llama",size="64",version="1"} 1.0' in lines
    assert "vllm:num_requests_waiting" not in "".join(lines)


def test_unavailable_gauges_are_absent() -> None:
    shown = view(
        unavailable("sequences_active", "no engine"),
        unavailable("kv_utilization", "no engine"),
        measured("sequences_waiting", 0.0, "trtllm_waiting"),
    )
    assert series(shown, "vllm") == [
        'vllm:num_requests_waiting{model_name="llama",version="1"} 0.0'
    ]
    assert series(NOTHING, "vllm", "trtllm", "triton") == []


def test_scheduled_is_absent_if_waiting_among_active_is_unavailable() -> None:
    by_iteration = view(
        measured("sequences_active", 14.0),
        measured("sequences_waiting", {}, "trtllm_waiting"),
    )
    assert series(by_iteration, "running=running") == []


def test_vllms_running_requests_are_all_scheduled() -> None:
    shown = view(
        measured("sequences_active", 14.0, "vllm_gauge"),
        measured("sequences_waiting", 3.0, "vllm_gauge"),
    )
    assert series(shown, "running=running") == ['running{model_name="llama",version="1"} 14.0']


def test_every_model_has_its_own_gauges() -> None:
    shown = view(
        measured("sequences_waiting", 1.0, model="a"), measured("sequences_waiting", 2.0, model="b")
    )
    assert series(shown, "queued=queued") == [
        'queued{model_name="a",version="1"} 1.0',
        'queued{model_name="b",version="1"} 2.0',
    ]


@pytest.mark.parametrize(
    "text",
    ["", "vllm2", "queued", "queued=", "waiting=x", "queued=a b", "queued=a{", 'queued=a{b="c"}'],
)
def test_invalid_names_are_refused_with_a_fix(text: str) -> None:
    with pytest.raises(BadValue) as refused:
        parse(text)
    assert all(name in refused.value.fix for name in NAMES)


def test_a_stale_gauge_withdraws_all_gauges_of_its_model() -> None:
    stale = unavailable("kv_utilization", "no successful scrape for 6 s")._replace(stale=True)
    shown = view(
        measured("sequences_waiting", 3.0),
        stale,
        measured("sequences_waiting", 4.0, model="other"),
    )
    assert series(shown, "queued=queued") == ['queued{model_name="other",version="1"} 4.0']


class TestPage:
    """``/gateway``: the same gauges as on ``/metrics``, of a store at a given time."""

    def setup_method(self) -> None:
        self.now = 0.0
        self.store = Store(stale_after=5.0)
        self.page = self.new_page()

    def new_page(self) -> GatewayPage:
        return GatewayPage(lambda: self.store.states_by_model(self.now), parse("trtllm")[:3])

    def snapshot(self, source: str, models: Iterable[str], **gauges: float) -> Snapshot:
        measurements = tuple(
            Measurement(signal, model, "1", "trtllm_iteration", {(): value})
            for model in models
            for signal, value in gauges.items()
        )
        return Snapshot(source, measurements)

    def scrape(
        self, source: str = "engine", models: Iterable[str] = ("llama",), **gauges: float
    ) -> None:
        self.store.update(self.snapshot(source, models, **gauges), self.now, 0.01)

    def lines(self) -> list[str]:
        """Return the series, which must be those of a page without a cache, and of /metrics."""
        of_metrics = expose(NOTHING, "1", more=self.page.families())
        lines = [
            [line for line in text.decode().splitlines() if not line.startswith(("#", "tokenslo_"))]
            for text in (self.page.render(), self.new_page().render(), of_metrics.body)
        ]
        assert lines[0] == lines[1] == lines[2]
        return lines[0]

    def test_a_new_value_is_served_from_its_scrape_on(self) -> None:
        assert self.page.render() == b""
        self.scrape(sequences_waiting=3.0)
        assert self.lines() == ['trtllm_num_requests_waiting{model_name="llama",version="1"} 3.0']
        self.scrape(sequences_waiting=4.0)
        assert self.lines() == ['trtllm_num_requests_waiting{model_name="llama",version="1"} 4.0']

    def test_text_is_rendered_once_per_change(self) -> None:
        self.scrape(sequences_waiting=3.0)
        text = self.page.render()
        assert text.startswith(b"# HELP trtllm_num_requests_waiting ")
        self.now = 4.9
        assert self.page.render() is text
        self.scrape(sequences_waiting=3.0, kv_blocks_used=1.0)
        assert self.page.render() is text

    def test_gauges_are_withdrawn_when_their_source_is_silent(self) -> None:
        self.scrape(sequences_waiting=3.0)
        self.now = 5.0
        self.store.fail("engine", SourceError("refused", "refused"), self.now, 0.01)
        assert self.lines() != []
        self.now = 5.1
        assert self.lines() == []
        self.scrape(sequences_waiting=1.0)
        assert self.lines() != []

    def test_gauges_are_withdrawn_when_one_of_two_sources_is_silent(self) -> None:
        self.scrape("engine", kv_utilization=0.5)
        self.now = 4.0
        self.scrape("tap", sequences_waiting=3.0)
        assert len(self.lines()) == 2
        self.now = 6.0
        assert self.lines() == []

    def test_only_models_with_other_gauges_are_computed_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        computed: list[str] = []

        def counting(model: Model, *rest: Any) -> Any:
            computed.append(model[0])
            return model_series(model, *rest)

        monkeypatch.setattr("exporter.web.gateway.model_series", counting)
        self.scrape(models="abc", sequences_waiting=3.0)
        assert len(self.page.families()[0].series) == 3
        assert computed == ["a", "b", "c"]
        self.scrape("tap", models="b", sequences_waiting=3.0, kv_utilization=0.5)
        self.page.render()
        assert computed == ["a", "b", "c", "b"]

    def test_the_page_between_two_steps_of_an_update_is_current(self) -> None:
        models = [f"m{number}" for number in range(2 * STEP_SIZE)]
        self.scrape(models=models, sequences_waiting=3.0)
        updated = set()
        new = self.snapshot("engine", models, sequences_waiting=4.0)
        for _ in self.store.updating(new, self.now, 0.01):
            updated.add(sum(line.endswith(" 4.0") for line in self.lines()))
        assert updated == {0, STEP_SIZE, 2 * STEP_SIZE}

    def test_a_gauge_that_its_source_withdraws_leaves_the_others(self) -> None:
        self.scrape(kv_utilization=0.5, sequences_waiting=3.0)
        self.scrape(sequences_waiting=3.0)
        assert self.lines() == ['trtllm_num_requests_waiting{model_name="llama",version="1"} 3.0']
