"""Log lines about objectives: at first, after lasting changes, at a bounded rate."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from exporter.objectives.objective_log import CHECK_INTERVAL, SETTLED, ObjectiveLog
from exporter.samples import Measurement, Missing, ModelInfo, Snapshot, SourceError
from exporter.store.store import Store
from tests.service_example import objective, service

MEASURED = "objective chat/kv-headroom on llama is measured, quality exact"
IDLE = "the engine has run no iteration yet"
REFUSED = SourceError("refused", "nothing listens there")


def measured(model: str = "llama", source: str = "triton") -> Snapshot:
    measurement = Measurement("kv_utilization", model, "1", "trtllm_iteration", {(): 0.5})
    return Snapshot(source, (measurement,), models=(ModelInfo(model, "1"),))


def without(reason: str = IDLE) -> Snapshot:
    gap = Missing("kv_utilization", "llama", "1", reason, "send a first request")
    return Snapshot("triton", missing=(gap,), models=(ModelInfo("llama", "1"),))


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tokenslo")


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines; those of measured objectives without their note."""
    texts = [record.getMessage() for record in caplog.records]
    return [text.partition(": ")[0] if "is measured" in text else text for text in texts]


class LoggedStore:
    """A store and its log of objectives, with a snapshot every second."""

    def __init__(self, *sources: str, **selector: str) -> None:
        chat = service(objective("kv_headroom"), selector=selector)
        self.store, self.now = Store(5.0), 0.0
        self.log = ObjectiveLog((chat,), sources or ("triton",))

    def read(self, *outcomes: Snapshot | SourceError) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Snapshot):
                self.store.update(outcome, self.now, 0.01)
            else:
                self.store.fail("triton", outcome, self.now, 0.01)
            snapshot = outcome if isinstance(outcome, Snapshot) else None
            self.log.update(snapshot, self.store.view, self.now)
            self.now += 1.0


def times(outcome: Snapshot | SourceError, count: float) -> Iterable[Snapshot | SourceError]:
    return [outcome] * int(count)


UNTIL_LOGGED = CHECK_INTERVAL + SETTLED + 2


def test_an_objective_is_logged_at_once_and_not_again_without_a_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sidecar = LoggedStore()
    sidecar.read(measured())
    assert logged(caplog) == [MEASURED]
    sidecar.read(*times(measured(), 60))
    assert logged(caplog) == [MEASURED]


def test_an_objective_is_logged_again_after_a_lasting_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sidecar = LoggedStore()
    sidecar.read(*times(without(), 30))
    [first] = logged(caplog)
    assert first == (
        f"objective chat/kv-headroom on llama cannot be measured: KV-cache utilization: {IDLE}. "
        "Fix: send a first request."
    )
    sidecar.read(*times(measured(), SETTLED - 1))
    assert logged(caplog) == [first], "not before it has settled"
    sidecar.read(*times(measured(), UNTIL_LOGGED))
    assert logged(caplog) == [first, MEASURED]
    sidecar.read(*times(without("another reason"), UNTIL_LOGGED))
    assert "another reason" in logged(caplog)[-1]
    assert len(logged(caplog)) == 3


def test_a_reason_with_another_number_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    sidecar = LoggedStore()
    sidecar.read(*(without(f"stopped {age} s ago, 1.{age} active") for age in range(60)))
    assert len(logged(caplog)) == 1


def test_a_flapping_objective_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    sidecar = LoggedStore()
    for _ in range(20):
        sidecar.read(*times(measured(), 4), *times(without(), 5))
    assert logged(caplog) == [MEASURED]


def test_a_flapping_model_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    sidecar = LoggedStore(model="llama")
    sidecar.store = Store(5.0, max_models=1)  # so that another model replaces it at once
    sidecar.read(*(measured(model) for model in ("llama", "other") * 30))
    first, then = logged(caplog)
    assert first == MEASURED
    assert "no reported model matches the selector (model=llama)" in then


def test_an_outage_and_its_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    sidecar = LoggedStore()
    sidecar.read(measured(), *times(REFUSED, 40), *times(measured(), UNTIL_LOGGED))
    first, outage, last = logged(caplog)
    assert (first, last) == (MEASURED, MEASURED)
    assert "cannot be measured: KV-cache utilization: no successful scrape for" in outage


def test_nothing_is_logged_before_every_source_was_scraped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sidecar = LoggedStore("triton", "traces")
    sidecar.read(REFUSED, Snapshot("traces"))
    assert logged(caplog) == [
        "objective chat/kv-headroom cannot be measured: no model is reported. Fix: compare the "
        "selector with the reported models: none."
    ]
    caplog.clear()
    sidecar = LoggedStore("triton", "traces")
    sidecar.read(Snapshot("traces"))
    assert logged(caplog) == []
    sidecar.read(measured())
    assert logged(caplog) == [MEASURED]


def test_nothing_is_logged_while_no_scrape_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    sidecar = LoggedStore()
    sidecar.read(*times(REFUSED, 30))
    assert logged(caplog) == []
    sidecar.read(measured())
    assert logged(caplog) == [MEASURED]


def test_no_view_is_made_while_no_check_is_due() -> None:
    sidecar = LoggedStore()
    sidecar.read(measured())
    viewed = []

    def view(now: float) -> object:
        viewed.append(now)
        return sidecar.store.view(now)

    for tenth in range(1, 101):
        sidecar.log.update(measured(), view, tenth / 10)  # type: ignore[arg-type]
    assert len(viewed) == 2
