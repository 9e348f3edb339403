"""vLLM by itself as a source."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.reader import Family
from exporter.readings import Distribution, Missing, ModelInfo, Reading, SourceError, Survey
from exporter.sources import vllm
from exporter.sources.by_model import ByModel
from exporter.sources.fetch import Limits
from exporter.sources.vllm_server import VllmSource
from slos.signals import COMPANIONS, MAIN_SIGNALS
from tests.fake_server import Said, fake_server, status
from tests.fake_triton import outcomes

CAPTURE = (Path(__file__).parent / "captures" / "vllm_standalone_by_hand.txt").read_text()
CHAT = "example/chat-8b"


def answers(metrics: Said = CAPTURE, **more: Said) -> dict[str, Said]:
    found: dict[str, Said] = {
        "/health": "",
        "/version": {"version": "0.33.0"},
        "/metrics": metrics,
    }
    return found | {f"/{name}": said for name, said in more.items()}


async def look(server: dict[str, Said]) -> Survey:
    async with fake_server(server) as fake, VllmSource(fake.url, limits=Limits(5.0)) as source:
        return await source.survey(0.0)


def said(survey: Survey, model: str = CHAT) -> dict[str, Reading | Missing]:
    found: tuple[Reading | Missing, ...] = (*survey.missing, *survey.readings)
    return {one.signal: one for one in found if one.model == model}


def value(one: Reading | Missing) -> object:
    assert isinstance(one, Reading), one
    [sample] = one.samples.values()
    return sample


def series(name: str, *values: float, labels: str = "") -> str:
    """Write one sample for each engine."""
    return "".join(
        f'vllm:{name}{{engine="{number}",{labels}model_name="chat"}} {value}\n'
        for number, value in enumerate(values)
    )


def engines(kind: str, name: str, *values: float, labels: str = "") -> str:
    return f"# TYPE vllm:{name} {kind}\n" + series(name, *values, labels=labels)


def rejections(**counts: int) -> str:
    lines = [
        f'vllm:admission_rejections_total{{model_name="chat",reason="{reason}"}} {count}\n'
        for reason, count in counts.items()
    ]
    return "# TYPE vllm:admission_rejections_total counter\n" + "".join(lines)


async def test_every_signal_is_told_or_explained() -> None:
    survey = await look(answers())
    found = said(survey)
    assert found.keys() - COMPANIONS == set(MAIN_SIGNALS)
    assert survey.models == (ModelInfo(CHAT, "", "vllm 0.33.0", decoupled=True),)
    assert survey.ready is True
    told = {signal for signal, one in found.items() if isinstance(one, Reading)}
    assert {"ttft", "requests", "kv_utilization", "sequences_active", "preemptions"} <= told
    for one in found.values():
        assert isinstance(one, Reading) or (one.reason and one.fix)


async def test_engines_are_added_but_never_their_utilization() -> None:
    metrics = (
        engines("gauge", "num_requests_running", 5, 3)
        + engines("gauge", "kv_cache_usage_perc", 0.9, 0.7)
        + engines("counter", "num_preemptions_total", 1, 2)
        + engines("counter", "request_success_total", 4, 6, labels='finished_reason="stop",')
        + "# TYPE vllm:time_to_first_token_seconds histogram\n"
        + series("time_to_first_token_seconds_sum", 1, 2)
        + series("time_to_first_token_seconds_count", 4, 6)
        + series("time_to_first_token_seconds_bucket", 1, 2, labels='le="0.5",')
        + series("time_to_first_token_seconds_bucket", 4, 6, labels='le="+Inf",')
    )
    found = said(await look(answers(metrics)), "chat")
    assert value(found["sequences_active"]) == 8
    assert value(found["kv_utilization"]) == pytest.approx(0.8)
    assert value(found["preemptions"]) == 3
    assert outcomes(found["requests"]) == {"ok": 10}
    assert value(found["ttft"]) == Distribution((0.5, inf), (3, 10), 3)


async def test_the_client_that_left_and_the_full_queue() -> None:
    metrics = engines("counter", "request_success_total", 2, labels='finished_reason="abort",')
    metrics += rejections(max_num_queued_reqs=3, new_word=4)
    found = said(await look(answers(metrics)), "chat")
    assert outcomes(found["requests"]) == {"disconnected": 2, "rejected": 7}
    failures = found["request_failures"]
    assert isinstance(failures, Reading)
    assert failures.samples == {
        (("outcome", "disconnected"), ("reason", "abort")): 2,
        (("outcome", "rejected"), ("reason", "max_num_queued_reqs")): 3,
        (("outcome", "rejected"), ("reason", "unknown")): 4,
    }
    died = found["requests_without_first_token"]
    assert isinstance(died, Reading)
    assert died.samples == {(("outcome", "rejected"),): 7}


async def test_rejections_alone_are_not_all_requests() -> None:
    found = said(await look(answers(rejections(max_num_queued_reqs=3))), "chat")
    assert isinstance(found["requests"], Missing)


async def test_several_models() -> None:
    metrics = engines("gauge", "num_requests_running", 5)
    survey = await look(answers(metrics + metrics.replace("chat", "other").partition("\n")[2]))
    assert [info.model for info in survey.models] == ["chat", "other"]
    assert value(said(survey, "other")["sequences_active"]) == 5


async def test_an_outage_keeps_the_models_and_asks_for_patience() -> None:
    async with fake_server(answers()) as fake, VllmSource(fake.url) as source:
        await source.survey(0)
        fake.answers["/metrics"] = status(500)
        survey = await source.survey(1)
    ttft = said(survey)["ttft"]
    assert isinstance(ttft, Missing)
    assert ttft.unread


@pytest.mark.parametrize("body", ["", "hello", "\x00", '{"a": 1}', "# TYPE up gauge\nup 1\n"])
async def test_what_is_not_vllm(body: str) -> None:
    survey = await look(answers(body))
    assert [error.kind for error in survey.parts.values() if error] == ["malformed"]
    assert survey.models == ()


async def test_nothing_there() -> None:
    async with fake_server({}) as fake:
        url = fake.url
    async with VllmSource(url) as source:
        with pytest.raises(SourceError, match="refused the connection"):
            await source.survey(0)


async def test_not_healthy() -> None:
    survey = await look(answers(health=status(503)))
    assert survey.ready is False
    assert survey.models[0].reason == "/health answers 503"


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-5, 5).map(float)
labels = st.dictionaries(
    st.sampled_from(
        ["engine", "model_name", "model", "version", "finished_reason", "reason", "le"]
    ),
    st.sampled_from(["0", "1", "chat", "abort", "0.1", "+Inf", ""]),
)
samples = st.tuples(
    st.sampled_from(sorted(vllm.FAMILIES)),
    st.sampled_from(["", "_bucket", "_sum", "_count"]),
    labels,
    numbers,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(samples, max_size=20))
def test_whatever_an_exposition_says_nothing_unusable_comes_out(
    found: list[tuple[str, str, dict[str, str], float]],
) -> None:
    families: dict[str, Family] = {}
    for name, suffix, labels_of, number in found:
        family = families.setdefault(name, Family(name))
        family.samples.append((name + suffix, labels_of, number))
    metrics = ByModel(families)
    infos = [ModelInfo(*model) for model in metrics.models(*vllm.FAMILIES)]
    for one in vllm.interpret(metrics, infos):
        for sample in one.samples.values():
            single = not isinstance(sample, Distribution)
            assert all(0 <= n < inf for n in ([sample] if single else [*sample.counts, sample.sum]))


async def test_a_histogram_with_a_negative_edge_is_left_out() -> None:
    name = "time_to_first_token_seconds"
    buckets = "".join(
        f'vllm:{name}_bucket{{engine="0",le="{edge}",model_name="chat"}} 1\n'
        for edge in ("-1.0", "0.5", "+Inf")
    )
    text = f"# TYPE vllm:{name} histogram\n" + buckets
    text += series(f"{name}_sum", 1.0) + series(f"{name}_count", 1.0)
    running = engines("gauge", "num_requests_running", 1.0)
    survey = await look(answers(running + text))
    assert isinstance(said(survey, "chat")["ttft"], Missing)
    good = await look(answers(running + text.replace("-1.0", "0.1")))
    assert isinstance(said(good, "chat")["ttft"], Reading)
