"""Caches of the exposition: filled before the first scrape, and never served stale."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import accumulate
from math import inf
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.families import LabelSet, MetricFamily
from exporter.samples import Distribution, Labels, Measurement, Missing, ModelInfo, Snapshot, Value
from exporter.store.store import Store
from exporter.store.view import View
from exporter.web import text_format, view_families
from exporter.web.collector import expose
from exporter.web.text_format import TextWriter
from exporter.web.warm_up import WarmUp
from tests.test_exporter_command import Scripted, watched
from tests.traced_memory import traced_memory

CACHED = (
    (view_families, "_measured_labels"),
    (view_families, "_info"),
    (view_families, "_model_info"),
    (text_format, "_pair"),
    (text_format, "_number"),
)
OPENMETRICS = "application/openmetrics-text"
METHODS = {
    "ttft": ("triton_first_response", "vllm_histogram"),
    "requests": ("triton_counters", "trtllm_finished"),
    "kv_utilization": ("trtllm_iteration", "vllm_gauge"),
}
MODELS = tuple((name, version) for name in ('a"b', "c\\d", "é") for version in ("1", "2"))
COUNTS = st.integers(0, 9).map(float)


@st.composite
def histograms(draw: st.DrawFn) -> dict[Labels, Value]:
    edges = draw(st.sampled_from([(inf,), (0.1, inf), (0.1, 0.5, inf)]))
    counts = accumulate(draw(COUNTS) for _ in edges)
    return {(): Distribution(edges, tuple(counts), draw(COUNTS))}


OUTCOMES = st.sampled_from(["ok", "error", "shed"]).map(lambda outcome: (("outcome", outcome),))
SAMPLES: Mapping[str, st.SearchStrategy[dict[Labels, Value]]] = {
    "ttft": histograms(),
    "requests": st.dictionaries(OUTCOMES, COUNTS, min_size=1),
    "kv_utilization": COUNTS.map(lambda value: {(): value}),
}


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    models = draw(st.lists(st.sampled_from(MODELS), unique=True))
    found: list[Measurement | Missing] = []
    for model in models:
        for signal in draw(st.lists(st.sampled_from(sorted(SAMPLES)), unique=True)):
            method = draw(st.sampled_from(METHODS[signal]))
            measurement = Measurement(signal, *model, method, draw(SAMPLES[signal]))
            found.append(draw(st.sampled_from([measurement, Missing(signal, *model, "off", "on")])))
    return Snapshot(
        "triton",
        measurements=tuple(one for one in found if isinstance(one, Measurement)),
        missing=tuple(one for one in found if isinstance(one, Missing)),
        models=tuple(ModelInfo(*model, draw(st.sampled_from(["vllm", ""]))) for model in models),
    )


def rendered_afresh(view: View) -> bytes:
    """Render a view without any cache."""
    with ExitStack() as stack:
        for module, name in CACHED:
            stack.enter_context(patch.object(module, name, getattr(module, name).__wrapped__))
        return TextWriter().render(view_families.families(view, "1.2.3"), openmetrics=True)


@given(st.lists(st.tuples(snapshots(), st.booleans()), max_size=8))
def test_text_from_caches_is_the_text_without_them(updates: list[tuple[Snapshot, bool]]) -> None:
    store, warm_up = Store(1.5), WarmUp()
    for now, (snapshot, stored) in enumerate(updates):
        warm_up.warm(snapshot)
        if stored:
            store.update(snapshot, now, 0.1)
        view = store.view(now)
        assert expose(view, "1.2.3", OPENMETRICS).body == rendered_afresh(view)


def snapshot_of(*models: str) -> Snapshot:
    return Snapshot(
        "scripted",
        measurements=tuple(
            Measurement(signal, model, "1", methods[0], {(): value})
            for model in models
            for signal, methods in METHODS.items()
            for value in [Distribution((0.1, inf), (1.0, 2.0), 3.0) if signal == "ttft" else 1.0]
        ),
        models=tuple(ModelInfo(model, "1") for model in models),
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return what is rendered from now on: the thread, and the labels that it sorts or writes."""
    found: list[tuple[str, str]] = []

    def items(labels: LabelSet) -> Any:
        found.append((threading.current_thread().name, str(labels)))
        return dict.items(labels)

    monkeypatch.setattr(LabelSet, "items", items)
    return found


def test_first_scrape_renders_nothing_of_models_after_the_warm_up(
    made: list[tuple[str, str]],
) -> None:
    snapshot, store, warm_up = snapshot_of("warm-a", "warm-b"), Store(5.0), WarmUp()
    warm_up.warm(snapshot)
    assert {text for _, text in made if "warm-a" in text}
    store.update(snapshot, 0.0, 0.1)
    made.clear()
    warm_up.warm(snapshot)
    assert not made
    body = expose(store.view(0.0), "1.2.3", OPENMETRICS).body
    assert body.count(b'llm_time_to_first_token_seconds_bucket{le="0.1",model="warm-') == 2
    assert not [text for _, text in made if "warm-" in text]


def test_only_new_models_are_rendered_in_a_warm_up(made: list[tuple[str, str]]) -> None:
    warm_up = WarmUp()
    warm_up.warm(snapshot_of("known-one"))
    made.clear()
    warm_up.warm(snapshot_of("known-one", "new-one"))
    shown = [text for _, text in made if "backend" not in text]
    assert any("new-one" in text for text in shown)
    assert not any("known-one" in text for text in shown)


async def test_sidecar_renders_new_models_before_a_scrape_shows_them(
    made: list[tuple[str, str]],
) -> None:
    text = await watched(
        Scripted(snapshot_of("early-a", "early-b")), wanted=lambda text: "early-b" in text
    )
    assert 'llm_kv_cache_utilization_ratio{model="early-a",version="1"} 1.0\n' in text
    signals = [thread for thread, text in made if "early-" in text and "signal" in text]
    assert signals
    assert threading.main_thread().name not in signals


def test_threads_share_a_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_format, "MAX_HEADS", 50)
    shared = TextWriter()

    def labels(number: int) -> LabelSet:
        return LabelSet({"model": f"{number % 20:01000}", "version": f"{number // 20:01000}"})

    def differs(seed: int) -> bool:
        series = tuple((labels(seed + n), float(n)) for n in range(20))
        shown = [MetricFamily("llm_requests", "counter", "", series)]
        text = shared.render(shown, openmetrics=True)
        return text != TextWriter().render(shown, openmetrics=True)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads, traced_memory() as held:
            assert not any(threads.map(differs, range(50)))
            before = held()
            assert not any(threads.map(differs, range(50, 400)))
            assert held() - before < 350 * 1_000  # of 350 new heads of 2,000 bytes
    finally:
        sys.setswitchinterval(interval)
