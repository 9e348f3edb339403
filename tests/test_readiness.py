"""Readiness of models and servers, and the layers that decide it."""

from __future__ import annotations

from dataclasses import replace

from exporter.samples import ModelInfo
from exporter.settings import ExpectedModel
from exporter.sources.probe import ProbeState
from exporter.store.decode_progress import Decoding
from exporter.store.view import SourceState, View
from exporter.web.collector import expose
from exporter.web.readiness import Readiness, ReadinessInputs, family, readiness
from tests.views import UP, busy, view

LLAMA = ("llama", "1")
WELL = Decoding(True, "", True)
EMPTY = view(sources=(), models=())


def judged(shown: View, *expected: ExpectedModel, **watched: object) -> Readiness:
    return readiness(shown, 5, ReadinessInputs(expected, **watched))  # type: ignore[arg-type]


def layers(found: Readiness) -> dict[str, bool | None]:
    return {f"{layer.layer} {layer.name}".strip(): layer.ready for layer in found.layers}


def test_all_layers_are_ready() -> None:
    found = judged(busy(), decoding={LLAMA: WELL}, probes={"llama": ProbeState(True, "")})
    assert found.ready
    assert found.reasons == ()
    assert layers(found) == {
        "process tokenslo": True,
        "source triton": True,
        "server triton": True,
        "model llama": True,
        "backend llama": True,
        "decode llama": True,
        "probe llama": True,
    }


def test_nothing_is_ready_before_the_first_scrape() -> None:
    found = judged(EMPTY, ExpectedModel("llama"))
    assert layers(found) == {"process tokenslo": True, "source": False, "model llama": None}
    assert found.reasons == ("no source has been scraped yet",)


def test_one_failed_scrape_stays_ready() -> None:
    failing = replace(UP, up=False, age=4.9, error="no answer")
    assert judged(view(sources=(failing,))).ready
    stale = judged(view(sources=(replace(failing, age=5.1),)))
    assert stale.reasons == ("source triton was last scraped 5.1 s ago: no answer",)


def test_source_without_a_successful_scrape_is_not_ready() -> None:
    never = SourceState("triton", False, None, 0.1, "refused", {"refused": 1}, None)
    found = judged(view(sources=(never,), models=()))
    assert found.reasons == ("source triton has not been scraped yet: refused",)


def test_server_and_models_report_their_readiness() -> None:
    models = (
        ModelInfo("llama", "1", ready=False, reason="UNAVAILABLE: out of memory"),
        ModelInfo("tokenizer", "1", ready=False, excluded="not decoupled"),
    )
    found = judged(view(sources=(replace(UP, ready=False),), models=models))
    assert found.reasons == (
        "the server triton reports that it is not ready",
        "model llama is not ready: UNAVAILABLE: out of memory",
    )


def test_expected_model_requires_its_version() -> None:
    assert judged(busy(), ExpectedModel("llama", "1"), ExpectedModel("tokenizer")).ready
    found = judged(busy(), ExpectedModel("llama", "2"), ExpectedModel("mistral"))
    assert found.reasons == (
        "model llama, version 2, is not on the server",
        "model mistral is not on the server",
    )


def test_expected_model_accepts_any_loaded_version() -> None:
    models = tuple(
        ModelInfo("tokenizer", version, ready=version == "2", excluded="not decoupled")
        for version in ("1", "2", "3")
    )
    [*_, last] = judged(view(models=models), ExpectedModel("tokenizer")).layers
    assert (last.name, last.version, last.ready) == ("tokenizer", "2", True)
    assert not judged(view(models=models), ExpectedModel("tokenizer", "3")).ready


def test_unknown_readiness_keeps_the_server_ready() -> None:
    unknown = Decoding(None, "no source counts tokens", None)
    found = judged(busy(), decoding={LLAMA: unknown}, probes={"llama": ProbeState(None, "not yet")})
    assert found.ready
    assert [(layer.layer, layer.ready, layer.reason) for layer in found.layers[-3:]] == [
        ("backend", None, "it has published no iteration and produced no token yet"),
        ("decode", None, "llama: no source counts tokens"),
        ("probe", None, "not yet"),
    ]


def test_stuck_engine_and_failing_probe_are_not_ready() -> None:
    stuck = Decoding(False, "decoding is stuck", True)
    found = judged(
        busy(), decoding={LLAMA: stuck}, probes={"llama": ProbeState(False, "timed out")}
    )
    assert found.reasons == ("llama: decoding is stuck", "timed out")


def test_every_layer_with_known_readiness_is_a_metric() -> None:
    decoding = {LLAMA: Decoding(None, "no source counts tokens", True)}
    found = judged(busy(), decoding=decoding, probes={"llama": ProbeState(False, "timed out")})
    text = expose(EMPTY, "1.2.3", more=[family(found)]).body.decode()
    assert [line for line in text.splitlines() if line.startswith("tokenslo_ready")] == [
        'tokenslo_ready{layer="process",model="",source="",version=""} 1.0',
        'tokenslo_ready{layer="source",model="",source="triton",version=""} 1.0',
        'tokenslo_ready{layer="server",model="",source="triton",version=""} 1.0',
        'tokenslo_ready{layer="model",model="llama",source="",version="1"} 1.0',
        'tokenslo_ready{layer="backend",model="llama",source="",version="1"} 1.0',
        'tokenslo_ready{layer="probe",model="llama",source="",version=""} 0.0',
    ]
