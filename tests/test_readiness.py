from __future__ import annotations

from dataclasses import replace

from exporter.readiness import readiness
from exporter.readings import ModelInfo
from exporter.view import SourceState, View
from tests.views import UP, busy, view


def layers(shown: View) -> dict[str, bool]:
    judged = readiness(shown, stale_after=5)
    return {f"{layer.layer} {layer.name}".strip(): layer.ready for layer in judged.layers}


def test_all_is_well() -> None:
    judged = readiness(busy(), stale_after=5)
    assert judged.ready
    assert judged.reasons == ()
    assert layers(busy()) == {
        "process tokenslo": True,
        "source triton": True,
        "server triton": True,
        "model llama": True,
    }


def test_nothing_is_ready_before_anything_is_read() -> None:
    assert layers(view(sources=(), models=())) == {"process tokenslo": True, "source": False}


def test_one_failed_reading_is_not_yet_a_reason() -> None:
    failing = replace(UP, up=False, age=4.9, error="no answer")
    assert readiness(view(sources=(failing,)), stale_after=5).ready
    stale = readiness(view(sources=(replace(failing, age=5.1),)), stale_after=5)
    assert stale.reasons == ("source triton was last read 5.1 s ago: no answer",)


def test_a_source_that_never_answered_is_not_ready() -> None:
    never = SourceState("triton", False, None, 0.1, "refused", {"refused": 1}, None)
    judged = readiness(view(sources=(never,), models=()), stale_after=5)
    assert judged.reasons == ("source triton has not been read yet: refused",)


def test_server_and_models_speak_for_themselves() -> None:
    models = (
        ModelInfo("llama", "1", ready=False, reason="UNAVAILABLE: out of memory"),
        ModelInfo("tokenizer", "1", ready=False, excluded="not decoupled"),
    )
    judged = readiness(view(sources=(replace(UP, ready=False),), models=models), stale_after=5)
    assert judged.reasons == (
        "the server triton says it is not ready",
        "model llama is not ready: UNAVAILABLE: out of memory",
    )
