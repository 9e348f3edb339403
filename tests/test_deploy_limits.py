"""The limits of a PodMonitor hold what a sidecar can serve, and ``deploy/`` has them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from exporter.families import MetricFamily
from exporter.protocol.events import Stages
from exporter.recording.goodput import GoodputObjective
from exporter.recording.label_limiter import MAX_SERIES, OTHER, SeriesBudget
from exporter.recording.model_metrics import ModelMetrics
from exporter.samples import Distribution, Measurement, ModelInfo
from exporter.store.view import SignalState, SourceState, View, grouped_by_model
from exporter.web.text_format import TextWriter
from exporter.web.view_families import families
from slos.indicators import CLAUSES
from slos.load import load_file
from slos.prompt_classes import MAX_BOUNDS, PromptClasses
from slos.signals import SIGNALS
from tools.kubernetes import limits
from tools.kubernetes.limit_files import ROOT, limit_files

MODELS = 3
OBJECTIVES = 12
CLASSES = PromptClasses.of(range(1, MAX_BOUNDS + 1))
BOUNDARIES = (*(number / 10 for number in range(1, limits.ENGINE_BOUNDARIES + 1)), inf)
DISTRIBUTION = Distribution(BOUNDARIES, (1.0,) * len(BOUNDARIES), 1.0)


def busiest_model(name: str, budget: SeriesBudget) -> ModelMetrics:
    """Return a model with goodput objectives, and tenants until the budget is spent.

    No two objectives share a threshold, and the number of prompt classes is the limit.
    """
    limits = [0.81 + number / 1000 for number in range(OBJECTIVES)]
    goodput = [
        GoodputObjective(f"chat/goodput-{limit}", name, dict.fromkeys(CLAUSES, limit))
        for limit in limits
    ]
    thresholds = dict.fromkeys(CLAUSES, limits)
    model = ModelMetrics(name, "1", thresholds, goodput, budget, prompt_classes=CLASSES)
    assert model.token_histograms()
    model.observe_stages(Stages(0.5, 0.5, 0.5), CLASSES.labels[0])
    for signal in ("tpot", "max_gap", "e2e"):
        model.observe(signal, 0.5)
    number = 0
    while model.begin_tenant(f"tenant-{number}") != OTHER:
        number += 1
    for reason in range(30):
        labels = {"outcome": "error", "reason": model.reason_label(f"reason_{reason}")}
        model.count("request_failures", labels)
    return model


def states(model: ModelMetrics) -> Iterator[SignalState]:
    measured = {one.signal: one for one in model.measurements()}
    for key, signal in SIGNALS.items():
        value = DISTRIBUTION if signal.kind == "histogram" else 1.0
        labels = tuple((label, "x") for label in signal.labels)
        other = Measurement(key, model.name, "1", "engine", {labels: value})
        samples = measured.get(key, other).samples
        if signal.kind == "histogram" and not signal.by_prompt_class:
            samples = dict.fromkeys(samples, DISTRIBUTION)
        yield SignalState(key, model.name, "1", "wire", "exact", samples)


def busiest_view() -> View:
    """Return the view of models whose clients have used up the limit of series."""
    budget = SeriesBudget()
    models = [busiest_model(f"model-{number}", budget) for number in range(MODELS)]
    assert not budget.take(100)
    kinds = dict.fromkeys((f"kind-{number}" for number in range(12)), 1)
    sources = tuple(
        SourceState(f"source-{number}", True, 0.1, 0.1, "", kinds, True, 0) for number in range(16)
    )
    return View(
        grouped_by_model(state for model in models for state in states(model)),
        sources,
        tuple(ModelInfo(model.name, "1") for model in models),
        {(model.name, "1"): 1.0 for model in models},
    )


@pytest.fixture(scope="module")
def busiest() -> list[MetricFamily]:
    return list(families(busiest_view(), "0.1.0"))


def test_the_busiest_sidecar_stays_below_the_sample_limit(busiest: list[MetricFamily]) -> None:
    text = TextWriter().render(busiest, openmetrics=False).decode()
    samples = sum(not line.startswith("#") for line in text.splitlines())
    limit = limits.sample_limit(MODELS, OBJECTIVES)
    assert MAX_SERIES < samples < limit
    assert samples > 0.9 * limit, "the limit is much higher than what a sidecar can serve"


def test_the_most_labels_of_a_sample_are_below_the_label_limit(busiest: list[MetricFamily]) -> None:
    most = max(
        len(labels) + isinstance(value, Distribution)
        for family in busiest
        for labels, value in family.series
    )
    assert most + len(limits.TARGET_LABELS) + len(("__name__",)) == limits.label_limit()


@pytest.mark.parametrize(("path", "text"), tuple(limit_files()))
def test_the_manifests_have_the_current_limits(path: str, text: str) -> None:
    current = (ROOT / path).read_text(encoding="utf-8")
    assert current == text, "write it again: python -m tools.kubernetes"


# The longest stream


@pytest.mark.parametrize(
    ("objectives", "seconds"),
    [
        (["indicator: e2e, threshold: 90s", "indicator: tpot, threshold: 60ms"], 90),
        (["indicator: ttft, threshold: 800ms", "indicator: tpot, threshold: 60ms"], 247),
        (["indicator: goodput, clauses: {ttft: 2s, tpot: 20ms}"], 84),
        (["indicator: itl, threshold: 10ms"], 41),
        (["indicator: ttft, threshold: 800ms", "indicator: availability"], 0),
    ],
)
def test_the_longest_stream_is_the_one_that_objectives_allow(
    objectives: list[str], seconds: int, tmp_path: Path
) -> None:
    lines = [f"  - {{name: o{n}, {one}, target: 95%}}" for n, one in enumerate(objectives)]
    file = tmp_path / "slo.yaml"
    head = ["apiVersion: tokenslo/v1", "service: chat", "objectives:"]
    file.write_text("\n".join([*head, *lines]))
    assert limits.longest_stream(load_file(file).services) == seconds
