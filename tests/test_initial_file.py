"""The initial SLO file: its objectives, comments and omissions."""

from __future__ import annotations

from decimal import Decimal
from itertools import accumulate
from math import inf
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slos.initial_file import MeasuredModel, MeasuredSignal, text
from slos.load import load_file

BOUNDARIES = (0.1, 0.25, 0.5, 1.0, inf)
TTFT = MeasuredSignal("exact", boundaries=BOUNDARIES, counts=(100.0, 800.0, 960.0, 1000.0, 1000.0))
GONE = MeasuredSignal("unavailable", "no metric has it", "give the sidecar --tap")


def written(folder: Path, *models: MeasuredModel) -> tuple[str, dict[str, dict[str, object]]]:
    made = text(models, about="A test.")
    path = folder / "slo.yaml"
    path.write_text(made, encoding="utf-8")
    services = load_file(path).services
    return made, {
        service.selector["model"]: {each.name: each for each in service.objectives}
        for service in services
    }


def test_initial_file_is_as_expected() -> None:
    model = MeasuredModel(
        "llama-3/70b",
        {
            "ttft": TTFT,
            "itl": GONE,
            "requests": MeasuredSignal(
                "exact", values={"ok": 9980.0, "error": 15.0, "invalid": 400.0}
            ),
            "kv_utilization": MeasuredSignal("exact", values={"": 0.34}),
            "streams": GONE,
        },
    )
    assert (
        text([model], about="Begun by a test.")
        == """\
# Begun by a test.
# The thresholds are what this server keeps now, not what its users need: talk to them, and
# tighten or loosen. Read it again under the usual load if there was little.

apiVersion: tokenslo/v1
service: llama-3-70b
selector:
  model: llama-3/70b
window: 28d
objectives:
  # p95 now about 0.484 s, 1,000 requests: 96.0% were within 500ms, the next bucket boundary.
  # 95%: long prompts take longer, and should not page.
  - {name: first-token, indicator: ttft, threshold: 500ms, target: 95%}

  # 99.85% of 9,995 requests were served: the highest usual target that is kept.
  - {name: availability, indicator: availability, target: 99.5%}

  # 34% of the KV cache is used now. 99%: bursts may fill it for a moment, a long prompt then
  # waits.
  - {name: kv-headroom, indicator: kv_headroom, threshold: 90%, target: 99%}

  # Not measured here:
  # - itl: no metric has it; give the sidecar --tap
  # - stream_completion, disconnects, goodput: they are measured on the streams; run the sidecar
  #   with --tap (docs/how-to/proxy-tap.md)
"""
    )


def test_streams_add_goodput_and_completion(tmp_path: Path) -> None:
    signals = {
        "ttft": TTFT,
        "tpot": MeasuredSignal(
            "exact", boundaries=BOUNDARIES, counts=(990.0, 1000.0, 1000.0, 1000.0, 1000.0)
        ),
        "streams": MeasuredSignal(
            "exact", values={"ok": 940.0, "error": 60.0, "client_disconnected": 90.0}
        ),
    }
    made, found = written(tmp_path, MeasuredModel("m", signals))
    assert "--tap" not in made
    assert found["m"].keys() == {"first-token", "mean-pace", "completion", "goodput"}
    assert found["m"]["goodput"].clauses == {"ttft": Decimal("0.5"), "tpot": Decimal("0.1")}
    assert found["m"]["completion"].target == Decimal("0.9")


def test_without_measured_signals_there_is_no_objective() -> None:
    assert text([MeasuredModel("m", {"ttft": GONE, "requests": GONE})], about="x") == ""
    assert text([], about="x") == ""


def test_without_traffic_comments_recommend_another_run(tmp_path: Path) -> None:
    idle = MeasuredSignal("exact", boundaries=BOUNDARIES, counts=(0.0,) * 5)
    made, found = written(
        tmp_path, MeasuredModel("m", {"ttft": idle, "requests": MeasuredSignal("exact")})
    )
    assert "No requests seen yet: a usual threshold, to be read again under load." in made
    assert "0 requests so far are too few to judge by: a usual target." in made
    assert found["m"]["first-token"].threshold == 1


def test_latencies_beyond_the_last_boundary_are_commented(tmp_path: Path) -> None:
    slow = MeasuredSignal(
        "estimate", "read late", boundaries=BOUNDARIES, counts=(0.0, 0.0, 0.0, 100.0, 1000.0)
    )
    made, found = written(tmp_path, MeasuredModel("m", {"ttft": slow}))
    flat = " ".join(made.replace("#", "").split())
    assert "p95 now beyond the last bucket boundary, 1,000 requests: 10.0% were within 1s" in flat
    assert "That is less than the target, and there is no higher boundary." in flat
    assert "An estimate: read late." in flat
    assert found["m"]["first-token"].threshold == 1


def test_a_histogram_without_boundaries_is_skipped(tmp_path: Path) -> None:
    bare = MeasuredSignal("exact", boundaries=(inf,), counts=(5.0,))
    whole = MeasuredSignal("exact", boundaries=BOUNDARIES, counts=(0.0, 0.0, 0.0, 5.0, 5.0))
    _, found = written(tmp_path, MeasuredModel("m", {"ttft": bare, "e2e": whole}))
    assert list(found["m"]) == ["whole-answer"]


names = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cn", "Co")),
    min_size=1,
    max_size=70,
).filter(lambda name: "\ufeff" not in name)
histograms = st.lists(st.integers(0, 500), min_size=5, max_size=5).map(
    lambda rises: MeasuredSignal(
        "exact", boundaries=BOUNDARIES, counts=tuple(float(count) for count in accumulate(rises))
    )
)
numbers = st.dictionaries(
    st.sampled_from(["ok", "error", "timeout", ""]), st.floats(0, 1e9), max_size=3
).map(lambda values: MeasuredSignal("exact", values=values))
models = st.builds(
    MeasuredModel,
    names,
    st.fixed_dictionaries(
        {"ttft": histograms},
        optional={
            **dict.fromkeys(("itl", "tpot", "e2e"), histograms | st.just(GONE)),
            **dict.fromkeys(("requests", "streams", "kv_utilization"), numbers | st.just(GONE)),
            **dict.fromkeys(("sequences_active", "sequences_max"), numbers),
        },
    ),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(st.lists(models, min_size=1, max_size=3, unique_by=lambda model: model.name))
def test_the_file_is_valid_and_its_thresholds_are_met(
    tmp_path: Path, seen: list[MeasuredModel]
) -> None:
    _, found = written(tmp_path, *seen)
    assert found.keys() == {model.name for model in seen}
    for model in seen:
        histogram = model.signals["ttft"]
        first_token = found[model.name]["first-token"]
        kept = histogram.counts[histogram.boundaries.index(float(first_token.threshold))]
        whole = histogram.counts[-1]
        assert kept >= 0.95 * whole or first_token.threshold == 1, "the highest boundary"
