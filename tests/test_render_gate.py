"""Readings pause while a scrape is rendered, and not for long."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from exporter import render_gate
from exporter.render_gate import CLOSED_SECONDS, OPEN_SECONDS, RENDER_GATE, RenderGate
from exporter.web.server import Renderer


@pytest.fixture
def time() -> list[float]:
    return [1000.0]


def test_gate_is_closed_while_something_is_rendered(time: list[float]) -> None:
    gate = RenderGate(lambda: time[0])
    assert gate.closed_for() == 0
    with gate.rendering():
        assert gate.closed_for() == pytest.approx(CLOSED_SECONDS)
    assert gate.closed_for() == 0


def test_gate_opens_during_a_long_rendering(time: list[float]) -> None:
    gate = RenderGate(lambda: time[0])
    with gate.rendering():
        time[0] += CLOSED_SECONDS
        assert gate.closed_for() == 0
        assert list(gate.paced("ab")) == ["a", "b"]


def test_back_to_back_scrapes_yield_most_of_the_time(time: list[float]) -> None:
    gate = RenderGate(lambda: time[0])
    closed = 0
    for _ in range(1000):
        with gate.rendering():
            closed += gate.closed_for() > 0
            time[0] += 0.01
    assert 0 < closed / 1000 <= CLOSED_SECONDS / (CLOSED_SECONDS + OPEN_SECONDS)


def test_gate_stays_closed_until_the_last_rendering_ends(time: list[float]) -> None:
    gate = RenderGate(lambda: time[0])
    with gate.rendering():
        with gate.rendering():
            pass
        assert gate.closed_for() > 0


def test_gate_opens_after_a_rendering_that_fails(time: list[float]) -> None:
    gate = RenderGate(lambda: time[0])
    with pytest.raises(ValueError, match="no view"), gate.rendering():
        raise ValueError("no view")
    assert gate.closed_for() == 0


def test_paused_thread_resumes_when_the_rendering_ends(
    time: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_gate, "CLOSED_SECONDS", 60.0)
    gate = RenderGate(lambda: time[0])
    taken = threading.Event()
    read: list[str] = []

    def items() -> Iterator[str]:
        for item in "abc":
            taken.set()
            yield item

    measurement = threading.Thread(target=lambda: read.extend(gate.paced(items())))
    with gate.rendering():
        measurement.start()
        assert taken.wait(60)
        assert read == []
    measurement.join(60)
    assert read == ["a", "b", "c"]


async def test_event_loop_serves_while_the_gate_is_closed(time: list[float]) -> None:
    gate = RenderGate(lambda: time[0])
    with gate.rendering():
        opened = asyncio.create_task(gate.opened())
        assert await asyncio.to_thread(lambda: "served") == "served"
        assert not opened.done()
    await opened


async def test_renderer_closes_the_gate() -> None:
    renderer = Renderer()

    async def work() -> float:
        return RENDER_GATE.closed_for()

    assert await renderer.render("kind", work) > 0
    assert RENDER_GATE.closed_for() == 0
    renderer.close()


def test_no_garbage_is_collected_during_a_rendering() -> None:
    gate = RenderGate()
    assert gc.isenabled()
    with gate.rendering():
        assert not gc.isenabled()
        with gate.rendering():
            pass
        # After each end, so that renderings without a pause do not prevent collections.
        assert gc.isenabled()
    assert gc.isenabled()
